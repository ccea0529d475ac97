"""Ant and Humanoid: run along the x axis as fast as possible, upright and with little effort.

Shape letters: N num_envs, J joints. Units are metres, seconds and radians, and the world's z axis points up.
Quaternions are ordered w, x, y, z.
"""

import torch

from envs.base import VectorEnv
from envs.engines import make_engine
from envs.models import ant, humanoid
from envs.models.walker import CONTROL_PERIOD, SUBSTEPS
from envs.rotations import rotation_matrix, wrap_angle

# MuJoCo Warp's buffers per world. Legs that moved at random made 8.9 contacts on average and 49 rows of constraints at
# most.
MAX_CONTACTS = 24
MAX_CONSTRAINTS = 128
TARGET_X = 1000.0  # m; the target is the point (1000, 0), which is out of reach
POSE_NOISE = 0.2  # rad, half width of the uniform noise at a reset
VELOCITY_NOISE = 0.1  # rad/s, half width of the uniform noise at a reset
REWARD_TERMS = ("progress", "alive", "upright", "heading", "action", "energy", "limits")


class LocomotionBase(VectorEnv):
    """The base class of both tasks.

    Observation: see `observe`. Action (J): torque as a fraction of the motor's maximum. Reward: see `reward_terms`.
    When the torso is below `min_height`, the episode terminates with the reward `fall_reward`. Objective: the return.
    """

    max_episode_steps = 1000
    frame_rate = 60
    fitness_floor = 10.0
    robot: object  # module of envs.models
    min_height: float  # m, of the torso
    fall_reward: float
    alive_reward: float
    action_cost: float
    angular_velocity_scale: float  # in the observation
    joint_velocity_scale: float  # also in the energy cost
    wrench_scale: float

    def __init__(self, num_envs, device, seed, engine="mujoco"):
        super().__init__(num_envs, device, seed)
        self.engine = make_engine(
            engine,
            [self.robot.build],
            num_envs,
            SUBSTEPS,
            [],
            self.device,
            max_contacts=MAX_CONTACTS,
            max_constraints=MAX_CONSTRAINTS,
        )

        self.joint_default = self.constant(self.robot.DEFAULT_POSE)
        self.joint_lower = self.constant(self.robot.JOINT_LOWER)
        self.joint_upper = self.constant(self.robot.JOINT_UPPER)
        self.gear = self.constant(self.robot.GEAR)  # N m
        self.root_start = self.constant([0.0, 0.0, self.robot.START_HEIGHT, 1.0, 0.0, 0.0, 0.0])
        self.action = self.zeros(self.num_actions)
        # m; in float64, because it changes by as little as 10^-7 of its value per step
        self.distance = self.zeros(dtype=torch.float64)
        self.step_metrics = {}

    # ---------------------------------------------------------------- what a task implements

    def limit_cost(self, position):
        """Cost (N,) of joints near their limits. position (N, J): joint positions, scaled to limits at -1 and 1."""
        raise NotImplementedError

    def joint_force(self):
        """Further columns of the observation, after the joint velocities: a list of (N, J)."""
        return []

    # ---------------------------------------------------------------- one control step

    def advance(self, action):
        self.action = action
        self.engine.step(action)
        distance = self.distance_to_target()
        terms = self.reward_terms((self.distance - distance).float())
        self.distance = distance
        fallen = self.engine.qpos[:, 2] < self.min_height
        reward = sum(terms[name] for name in REWARD_TERMS)
        reward = torch.where(fallen, self.fall_reward, reward)
        means = torch.stack(list(terms.values())).masked_fill(self.engine.broken, 0.0).mean(1)
        self.step_metrics = {"reward_" + name: mean for name, mean in zip(terms, means)}
        return reward, fallen, torch.zeros_like(fallen)

    def distance_to_target(self):
        """Horizontal distance to the target (N,) float64, m."""
        x, y = self.engine.qpos[:, :2].double().unbind(1)
        return torch.hypot(TARGET_X - x, y)

    def reward_terms(self, approach):
        """The reward of one control step, name -> (N,). approach (N,): decrease of the distance to the target, m."""
        axes = rotation_matrix(self.engine.qpos[:, 3:7].T).permute(2, 0, 1)
        up = axes[:, 2, 2]
        heading = self.heading(axes)
        power = (self.action * self.joint_velocity_scale * self.engine.qvel[:, 6:]).abs()
        return {
            "progress": approach / CONTROL_PERIOD,
            "alive": torch.full_like(up, self.alive_reward),
            "upright": 0.1 * (up > 0.93),
            "heading": 0.5 * (heading / 0.8).clamp(max=1.0),
            "action": -self.action_cost * self.action.square().sum(1),
            "energy": -0.05 * (power * self.gear / self.gear.max()).sum(1),
            "limits": -self.limit_cost(self.joint_position()),
        }

    # ---------------------------------------------------------------- measurements

    def heading(self, axes):
        """Cosine (N,) of the horizontal angle between the torso's x axis and the target. axes (N, 3, 3)."""
        to_target = torch.stack([TARGET_X - self.engine.qpos[:, 0], -self.engine.qpos[:, 1]], 1)
        return (axes[:, :2, 0] * torch.nn.functional.normalize(to_target)).sum(1)

    def joint_position(self):
        """Joint positions (N, J), scaled to limits at -1 and 1."""
        lower = self.joint_lower
        upper = self.joint_upper
        return (2.0 * self.engine.qpos[:, 7:] - lower - upper) / (upper - lower)

    def observe(self):
        """The observation (N, D); velocities in the torso's axes, angles in [-pi, pi)."""
        qpos = self.engine.qpos
        qvel = self.engine.qvel
        axes = rotation_matrix(qpos[:, 3:7].T).permute(2, 0, 1)
        yaw = torch.atan2(axes[:, 1, 0], axes[:, 0, 0])
        roll = torch.atan2(axes[:, 2, 1], axes[:, 2, 2])
        to_target = torch.atan2(-qpos[:, 1], TARGET_X - qpos[:, 0])
        obs = [
            qpos[:, 2:3],
            (qvel[:, None, :3] @ axes)[:, 0],
            self.angular_velocity_scale * qvel[:, 3:6],
            torch.stack([yaw, roll, wrap_angle(to_target - yaw), axes[:, 2, 2], self.heading(axes)], 1),
            self.joint_position(),
            self.joint_velocity_scale * qvel[:, 6:],
            *self.joint_force(),
            self.wrench_scale * self.engine.sensors[:, : 6 * len(self.robot.FOOT_BODIES)],
            self.action,
        ]
        return torch.cat(obs, 1)

    # ---------------------------------------------------------------- resets, log

    def reset_where(self, mask):
        noise = self.uniform(-POSE_NOISE, POSE_NOISE, self.num_actions)
        joints = (self.joint_default + noise).clamp(self.joint_lower, self.joint_upper)
        velocity = self.uniform(-VELOCITY_NOISE, VELOCITY_NOISE, self.num_actions)
        qpos = torch.cat([self.root_start.expand(self.num_envs, 7), joints], 1)
        qvel = torch.cat([self.zeros(6), velocity], 1)
        self.engine.set_state(mask, qpos, qvel)
        self.action = self.action.masked_fill(mask[:, None], 0.0)
        self.distance = torch.where(mask, self.distance_to_target(), self.distance)

    def metrics(self):
        return self.step_metrics

    def render(self, index):
        return self.engine.render(index, camera="track")


class Ant(LocomotionBase):
    """A robot with four legs and 8 joints. Observation (60), without joint forces."""

    num_obs = 60
    num_actions = 8
    robot = ant
    min_height = 0.31
    fall_reward = -2.0
    alive_reward = 0.5
    action_cost = 0.005
    angular_velocity_scale = 1.0
    joint_velocity_scale = 0.2
    wrench_scale = 0.1

    def limit_cost(self, position):
        return 0.1 * (position > 0.99).sum(1)  # only the upper limit, as in the original


class Humanoid(LocomotionBase):
    """A robot with two legs and 21 joints. Observation (108)."""

    num_obs = 108
    num_actions = 21
    robot = humanoid
    min_height = 0.8
    fall_reward = -1.0
    alive_reward = 2.0
    action_cost = 0.01
    angular_velocity_scale = 0.25
    joint_velocity_scale = 0.1
    wrench_scale = 0.01

    def limit_cost(self, position):
        excess = (position.abs() - 0.98).clamp(min=0.0) / 0.02
        return 0.25 * (excess * self.gear / self.gear.max()).sum(1)

    def joint_force(self):
        limits = -self.joint_position().sign() * self.engine.sensors[:, 12:]  # N m; a limit pushes towards the middle
        return [0.01 * (self.gear * self.action + limits)]
