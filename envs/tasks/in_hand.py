"""In-hand reorientation: a hand with its palm up turns a cube to one goal orientation after another.

Shape letters: N num_envs, J joints, U actuated joints, F fingertips. Units are metres, seconds and radians, and the
world's z axis points up. Quaternions are ordered w, x, y, z, but x, y, z, w in the observation.
"""

import functools
import math

import torch

from envs.base import VectorEnv
from envs.engines import make_engine
from envs.models import allegro_hand, shadow_hand
from envs.models import in_hand_scene as scene
from envs.rotations import conjugate, multiply

# MuJoCo Warp's buffers per world. Hands that moved at random made 10.0 contacts on average and 54 rows of constraints
# at most.
MAX_CONTACTS = 24
MAX_CONSTRAINTS = 128
CUBE = 0  # index into the engine's bodies; the fingertips follow
RESET_RANGE = 0.2  # a start pose is this times a uniform sample within the joint limits
START_RANGE = 0.01  # m per axis, for the start of the cube
MAX_DISTANCE = 0.24  # m, the distance from the goal position at which the cube is lost
TOLERANCE = 0.1  # rad, the largest rotation error of a success
VELOCITY_SCALE = 0.2  # in the observation
FORCE_SCALE = 10.0  # in the observation
OBS_LIMIT = 5.0
GOAL_SHIFT = (-0.15, -0.04, 0.1)  # m, from the goal position to where images show the goal
REWARD_TERMS = ("distance", "rotation", "action", "success")
SMOOTHING = 0.1  # weight of the latest episodes in consecutive_successes


def turn_x_then_y(about_x, about_y):
    """Quaternion (N, 4) of a rotation about x, then about the rotated y axis. Angles (N,) rad."""
    cx = (about_x / 2.0).cos()
    sx = (about_x / 2.0).sin()
    cy = (about_y / 2.0).cos()
    sy = (about_y / 2.0).sin()
    return torch.stack([cx * cy, sx * cy, cx * sy, sx * sy], 1)


def angle(quaternion):
    """The angle (...,) in [0, pi] rad of the rotations (..., 4)."""
    return 2.0 * quaternion[..., 1:].norm(dim=-1).clamp(max=1.0).asin()


def reward_terms(distance, rotation, action):
    """The reward of one control step, term by term: name -> (N,).

    distance, rotation: of the cube to its goal (N,), m and rad; action (N, U)
    """
    return {
        "distance": -10.0 * distance,
        "rotation": 1.0 / (rotation + 0.1),
        "action": -0.0002 * action.square().sum(1),
        "success": 250.0 * (rotation <= TOLERANCE),
    }


class InHandBase(VectorEnv):
    """The base class of both tasks.

    Observation (3J + 24 + 19F + U): see `observe`. Action (U): absolute joint targets.
    A task sets the constants below. A goal is an orientation. When it is reached, the next one follows in the same
    episode; the cube is not moved, and the clock goes on. The episode terminates when the cube is lost or the physics
    diverges, and it is truncated at `max_episode_steps`.
    Objective: the number of successes in the episode.
    """

    max_episode_steps = 600
    frame_rate = 60
    fitness_floor = 1.0  # one success
    joint_force_sensors = True  # if False, the joint torques in the observation are zeros
    add_hand: object  # a staticmethod (spec) that adds the hand, and its drives in the order of `actuated`
    joint_names: tuple
    joint_lower: tuple  # (J,) rad
    joint_upper: tuple
    actuated: tuple  # (U,) indices into the joints
    fingertip_bodies: tuple  # F names, of those that are observed
    control_period: float  # s
    substeps: int  # per control step
    cube_edge: float  # m
    cube_density: float  # kg / m^3
    cube_start: tuple  # (3,) m
    goal_position: tuple  # (3,) m

    def __init__(self, num_envs, device, seed, engine="mujoco"):
        super().__init__(num_envs, device, seed)
        self.num_joints = len(self.joint_names)
        self.num_actions = len(self.actuated)
        self.num_obs = 3 * self.num_joints + 24 + 19 * len(self.fingertip_bodies) + self.num_actions
        model = functools.partial(
            scene.build_scene,
            self.add_hand,
            self.joint_names,
            self.fingertip_bodies,
            self.cube_edge,
            self.cube_density,
            self.cube_start,
            self.control_period / self.substeps,
        )
        bodies = [scene.CUBE_BODY, *self.fingertip_bodies]
        self.engine = make_engine(
            engine,
            [model],
            num_envs,
            self.substeps,
            bodies,
            self.device,
            max_contacts=MAX_CONTACTS,
            max_constraints=MAX_CONSTRAINTS,
        )

        self.lower = self.constant(self.joint_lower)
        self.upper = self.constant(self.joint_upper)
        self.start = self.constant(self.cube_start)
        self.goal_pos = self.constant(self.goal_position)
        actuated = list(self.actuated)
        self.target_lower = self.constant(self.lower[actuated])
        self.target_upper = self.constant(self.upper[actuated])

        self.goal = self.zeros(4)  # quaternion
        self.last_action = self.zeros(self.num_actions)
        self.successes = self.zeros()
        self.finished_successes = self.zeros()  # successes of the last finished episode
        self.term_sums = self.zeros(len(REWARD_TERMS))  # of the reward's terms over the episode
        self.finished_term_means = self.zeros(len(REWARD_TERMS))  # per step of the last finished episode
        self.consecutive_successes = torch.tensor(0.0, device=self.device)
        self.step_metrics = {}

    # ---------------------------------------------------------------- one control step

    def advance(self, action):
        target = self.target_lower + (action + 1.0) * (self.target_upper - self.target_lower) / 2.0
        self.engine.step(target)
        self.last_action = action
        distance = (self.engine.body_pos[:, CUBE] - self.goal_pos).norm(dim=1)
        rotation = angle(self.relative_rotation())
        terms = reward_terms(distance, rotation, action)
        broken = self.engine.broken  # the engine has reset these worlds, whose episode ends without a reward
        terms = torch.stack([terms[name] for name in REWARD_TERMS], 1).masked_fill(broken[:, None], 0.0)
        self.term_sums = self.term_sums + terms

        success = (rotation <= TOLERANCE) & ~broken
        self.successes = self.successes + success
        terminated = broken | (distance >= MAX_DISTANCE)
        done = terminated | (self.episode_step >= self.max_episode_steps)
        finished = done & ~self.shortened
        self.finished_successes = torch.where(finished, self.successes, self.finished_successes)
        means = self.term_sums / self.episode_length[:, None]
        self.finished_term_means = torch.where(finished[:, None], means, self.finished_term_means)
        self.record_metrics(finished)
        # a finished environment keeps its last state, which `step` observes before the reset
        self.set_goal(success & ~done)
        return terms.sum(1), terminated, torch.zeros_like(terminated)

    def set_goal(self, mask):
        self.goal = torch.where(mask[:, None], self.draw_rotation(), self.goal)

    def draw_rotation(self):
        """A random orientation (N, 4). As in the published task, it is not uniform over all rotations."""
        return turn_x_then_y(self.uniform(-math.pi, math.pi), self.uniform(-math.pi, math.pi))

    # ---------------------------------------------------------------- measurements

    def relative_rotation(self):
        """The rotation from the goal to the cube (N, 4), world axes."""
        return multiply(self.engine.body_quat[:, CUBE], conjugate(self.goal))

    def joint_force(self):
        """The torque (N, J) N m that the drive and the limit of each joint apply to it.

        It stands in for Isaac Gym's joint force sensor, which is not documented. Joint damping, contacts and tendons
        are not included, because MuJoCo has no sensors for them.
        """
        if not self.joint_force_sensors:
            return torch.zeros_like(self.engine.qvel[:, : self.num_joints])
        drive, limit = self.engine.sensors[:, : 2 * self.num_joints].split(self.num_joints, 1)
        nearest = ((self.lower + self.upper) / 2.0 - self.engine.qpos[:, : self.num_joints]).sign()
        return drive + limit * nearest  # MuJoCo gives only the magnitude, and a limit pushes towards the middle

    def observe(self):
        """The observation (N, D), clamped to +-5; positions in world axes."""
        engine = self.engine
        joints = slice(0, self.num_joints)
        bodies = [engine.body_pos, engine.body_quat.roll(-1, 2), engine.body_linvel, engine.body_angvel]
        obs = [
            (2.0 * engine.qpos[:, joints] - self.upper - self.lower) / (self.upper - self.lower),
            VELOCITY_SCALE * engine.qvel[:, joints],
            FORCE_SCALE * self.joint_force(),
            engine.body_pos[:, CUBE],
            engine.body_quat[:, CUBE].roll(-1, 1),
            engine.body_linvel[:, CUBE],
            VELOCITY_SCALE * engine.body_angvel[:, CUBE],
            self.goal_pos.expand(self.num_envs, 3),
            self.goal.roll(-1, 1),
            self.relative_rotation().roll(-1, 1),
            torch.cat(bodies, 2)[:, CUBE + 1 :].flatten(1),
            FORCE_SCALE * engine.sensors[:, 2 * self.num_joints :],
            self.last_action,
        ]
        return torch.cat(obs, 1).clamp(-OBS_LIMIT, OBS_LIMIT)

    # ---------------------------------------------------------------- resets

    def reset_where(self, mask):
        # the clamp is for AllegroHand's thumb, which would start outside its limits
        pose = (RESET_RANGE * self.uniform(self.lower, self.upper, self.num_joints)).clamp(self.lower, self.upper)
        position = self.start + START_RANGE * self.uniform(-1.0, 1.0, 3)
        qpos = torch.cat([pose, position, self.draw_rotation()], 1)
        self.engine.set_state(mask, qpos, self.zeros(self.num_joints + 6))
        self.set_goal(mask)
        self.last_action = self.last_action.masked_fill(mask[:, None], 0.0)
        self.successes = self.successes.masked_fill(mask, 0.0)
        self.term_sums = self.term_sums.masked_fill(mask[:, None], 0.0)

    # ---------------------------------------------------------------- score, log

    def objective(self):
        return self.successes

    def record_metrics(self, finished):
        newest = (self.finished_successes * finished).sum() / finished.sum().clamp(min=1)
        smoothed = SMOOTHING * newest + (1.0 - SMOOTHING) * self.consecutive_successes
        self.consecutive_successes = torch.where(finished.any(), smoothed, self.consecutive_successes)
        self.step_metrics = {
            "successes": self.finished_successes.mean(),
            "consecutive_successes": self.consecutive_successes,
        }
        for name, value in zip(REWARD_TERMS, self.finished_term_means.mean(0)):
            self.step_metrics["reward_" + name] = value

    def metrics(self):
        return self.step_metrics

    def render(self, index):
        shown = torch.cat([self.goal_pos + self.goal_pos.new_tensor(GOAL_SHIFT), self.goal[index]])
        return self.engine.render(index, camera="overview", markers={scene.GOAL_BODY: shown})


class AllegroHand(InHandBase):
    """The Allegro hand with 16 joints and a 6.5 cm cube, at 30 Hz. Observation (88), action (16).

    The observation is the published `full_state`, which the papers use with an MLP. With an LSTM they observe neither
    velocities nor forces.
    """

    joint_force_sensors = False  # the original reads the sensors without having switched them on
    add_hand = staticmethod(allegro_hand.add_allegro_hand)
    joint_names = allegro_hand.JOINT_NAMES
    joint_lower = allegro_hand.JOINT_LOWER
    joint_upper = allegro_hand.JOINT_UPPER
    actuated = range(16)
    fingertip_bodies = ()
    control_period = 2 * 0.01667
    frame_rate = 30
    substeps = 3  # the original's four do not make the grasp firmer; with two, fingers penetrate twice as deep
    cube_edge = 0.065
    cube_density = 400.0
    cube_start = (0.0, -0.2, 0.56)
    goal_position = (0.0, -0.2, 0.52)


class ShadowHand(InHandBase):
    """The Shadow hand with 24 joints and a 5 cm cube, at 60 Hz. Observation (211), action (20)."""

    add_hand = staticmethod(shadow_hand.add_shadow_hand)
    joint_names = shadow_hand.JOINT_NAMES
    joint_lower = shadow_hand.JOINT_LOWER
    joint_upper = shadow_hand.JOINT_UPPER
    actuated = shadow_hand.DRIVEN
    fingertip_bodies = shadow_hand.FINGERTIP_BODIES
    control_period = 0.01667
    substeps = 2  # as the original; four do not make the grasp firmer
    cube_edge = 0.05
    cube_density = 567.0
    cube_start = (0.0, -0.39, 0.6)
    goal_position = (0.0, -0.39, 0.56)
