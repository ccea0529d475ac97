"""Anymal: the quadruped ANYmal C (52 kg) walks on flat ground at a commanded velocity.

Shape letter: N num_envs. Units are metres, seconds and radians, and the world's z axis points up. Quaternions are
ordered w, x, y, z.
"""

import torch

from envs.base import VectorEnv
from envs.engines import make_engine
from envs.models import anymal as robot
from envs.rotations import conjugate, rotate

NUM_JOINTS = 12
# MuJoCo Warp's buffers per world. Legs that moved at random made 7.8 contacts on average and 28 rows of constraints at
# most.
MAX_CONTACTS = 24
MAX_CONSTRAINTS = 96
ACTION_SCALE = 0.5  # rad, from the default pose to the target at an action of 1
COMMAND_RANGE = (2.0, 1.0, 1.0)  # forward and sideways velocity (m/s), yaw rate (rad/s), drawn within +-
RESET_FACTOR = (0.5, 1.5)  # at a reset, each joint of the default pose is multiplied by a factor from this range
RESET_VELOCITY = 0.1  # rad/s

LINEAR_SCALE = 2.0  # in the observation
ANGULAR_SCALE = 0.25  # in the observation
JOINT_VELOCITY_SCALE = 0.05  # in the observation
OBS_LIMIT = 5.0

REWARD_TERMS = ("linear", "yaw", "torque")
TRACKING_WIDTH = 0.25  # of both Gaussians, (m/s)^2 and (rad/s)^2
FALL_FORCE = 1.0  # N; a larger force on the base or a thigh counts as a fall


def reward_terms(command, linear, angular, torque):
    """The terms of one control step's reward, name -> (N,). The environment clamps their sum to at least 0.

    command (N, 3): forward and sideways velocity (m/s), yaw rate (rad/s); linear, angular (N, 3): velocities in base
    axes; torque (N, 12), N m.
    """
    linear_error = (command[:, :2] - linear[:, :2]).square().sum(1)
    yaw_error = (command[:, 2] - angular[:, 2]).square()
    return {
        "linear": robot.CONTROL_PERIOD * torch.exp(-linear_error / TRACKING_WIDTH),
        "yaw": robot.CONTROL_PERIOD * 0.5 * torch.exp(-yaw_error / TRACKING_WIDTH),
        "torque": robot.CONTROL_PERIOD * -2.5e-5 * torque.square().sum(1),
    }


class Anymal(VectorEnv):
    """Walk at the commanded velocity, which is constant within an episode.

    Observation (48): see `observe`. Action (12): joint targets relative to the default pose.
    The episode terminates when the base or a thigh touches the ground. Objective: the return, which is at most 75.
    """

    num_obs = 48
    num_actions = NUM_JOINTS
    max_episode_steps = 2500
    frame_rate = 50
    fitness_floor = 4.0  # a twentieth of the highest return

    def __init__(self, num_envs, device, seed, engine="mujoco"):
        super().__init__(num_envs, device, seed)
        # no bodies to read, because the free joint's coordinates are the base's pose and velocity
        self.engine = make_engine(
            engine,
            [robot.build],
            num_envs,
            robot.SUBSTEPS,
            [],
            self.device,
            max_contacts=MAX_CONTACTS,
            max_constraints=MAX_CONSTRAINTS,
        )

        self.joint_default = self.constant(robot.DEFAULT_POSE)
        self.base_start = self.constant([0.0, 0.0, robot.START_HEIGHT, 1.0, 0.0, 0.0, 0.0])
        self.down = self.constant([0.0, 0.0, -1.0])
        self.command_range = self.constant(COMMAND_RANGE)
        self.command_scale = self.constant([LINEAR_SCALE, LINEAR_SCALE, ANGULAR_SCALE])
        self.command = self.zeros(3)
        self.action = self.zeros(NUM_JOINTS)  # the last one
        self.step_metrics = {}

    def reset_where(self, mask):
        joint_pos = self.joint_default * self.uniform(*RESET_FACTOR, NUM_JOINTS)
        joint_vel = self.uniform(-RESET_VELOCITY, RESET_VELOCITY, NUM_JOINTS)
        command = self.command_range * self.uniform(-1.0, 1.0, 3)
        self.command = torch.where(mask[:, None], command, self.command)
        self.action = self.action.masked_fill(mask[:, None], 0.0)
        at_rest = self.zeros(6)
        qpos = torch.cat([self.base_start.expand(self.num_envs, 7), joint_pos], 1)
        self.engine.set_state(mask, qpos, torch.cat([at_rest, joint_vel], 1))

    def advance(self, action):
        self.action = action
        self.engine.step(self.joint_default + ACTION_SCALE * action)
        linear, angular = self.base_velocity()
        torque = self.engine.sensors[:, :NUM_JOINTS]
        contact_force = self.engine.sensors[:, NUM_JOINTS:].unflatten(1, (-1, 3)).norm(dim=2)
        terms = reward_terms(self.command, linear, angular, torque)
        reward = (terms["linear"] + terms["yaw"] + terms["torque"]).clamp(min=0.0)
        self.step_metrics = {
            "velocity_error": (self.command[:, :2] - linear[:, :2]).norm(dim=1).mean(),
            "yaw_rate_error": (self.command[:, 2] - angular[:, 2]).abs().mean(),
        }
        for name in REWARD_TERMS:
            self.step_metrics["reward_" + name] = terms[name].masked_fill(self.engine.broken, 0.0).mean()
        terminated = (contact_force > FALL_FORCE).any(1)
        return reward, terminated, torch.zeros_like(terminated)

    def base_velocity(self):
        """Linear and angular velocity of the base in its own axes, each (N, 3)."""
        return rotate(conjugate(self.engine.qpos[:, 3:7]), self.engine.qvel[:, :3]), self.engine.qvel[:, 3:6]

    def observe(self):
        """The observation (N, 48), clamped to +-5; velocities and gravity in base axes."""
        linear, angular = self.base_velocity()
        obs = [
            LINEAR_SCALE * linear,
            ANGULAR_SCALE * angular,
            rotate(conjugate(self.engine.qpos[:, 3:7]), self.down),
            self.command_scale * self.command,
            self.engine.qpos[:, 7:] - self.joint_default,
            JOINT_VELOCITY_SCALE * self.engine.qvel[:, 6:],
            self.action,
        ]
        return torch.cat(obs, 1).clamp(-OBS_LIMIT, OBS_LIMIT)

    def metrics(self):
        return self.step_metrics

    def render(self, index):
        return self.engine.render(index, camera="follow")
