"""FrankaCube: a Panda arm pushes a cube to a point on the table, or stacks it on another cube.

Shape letter: N num_envs. Units are metres, seconds and radians, and the world's z axis points up. Quaternions are
ordered w, x, y, z, but x, y, z, w in the observation.
"""

import functools

import torch

from envs.base import VectorEnv
from envs.engines import make_engine
from envs.models import franka
from envs.models.franka import NUM_ARM, NUM_JOINTS
from envs.operational_space_control import OperationalSpaceController

# Indices into the engine's bodies
LINKS = slice(0, 9)
GRIP = 9
HAND = slice(9, 12)  # grip site and tips
# MuJoCo Warp's buffers per world. A trained arm made 15.6 contacts on average and 75 rows of constraints at most.
MAX_CONTACTS = 24
MAX_CONSTRAINTS = 192
ACTION_SCALE = (0.1, 0.1, 0.1, 0.5, 0.5, 0.5)  # m and rad, the displacement that an action of 1 asks for
STIFFNESS = 150.0  # 1/s^2, of the hand
NULLSPACE_STIFFNESS = 10.0  # 1/s^2, of the arm's pose

RESET_NOISE = 0.25  # rad
START_RANGE = 0.25  # m from the middle of the table
START_YAW = 0.785  # rad
START_DRAWS = 8  # candidate positions of the cube; in 1 of 10^4 resets all are too close to the target

LIFT_HEIGHT = 0.04  # m, height of the cube's centre over the table, minus one edge length
REACHED_DISTANCE = 0.005  # m, in the horizontal plane
STACK_TOLERANCE = 0.02  # m
RELEASE_DISTANCE = 0.04  # m


def shaped(distance):
    """1 at distance 0 (m), 0.24 at 10 cm."""
    return 1.0 - torch.tanh(10.0 * distance)


def lifted(cube):
    """Whether the cube at position (N, 3) is in the air -> (N,) bool."""
    return cube[:, 2] - franka.TABLE_TOP - franka.SIZE_A > LIFT_HEIGHT


def push_terms(cube, goal, steps_left):
    """The reward of one control step of FrankaCubePush, term by term. Exactly one of the terms is not 0.

    cube, goal (N, 3) m; steps_left (N,): how many steps of the episode are left, including this one.
    Returns terms: name -> (N,); reached, lost (N,) bool.
    """
    distance = (cube - goal)[:, :2].norm(dim=1)
    near = shaped(distance)
    reached = distance < REACHED_DISTANCE
    lost = lifted(cube)
    failed = ~reached & (lost | (steps_left == 1))
    terms = {
        "reached": 4.0 * steps_left * reached,
        "near": 2.0 * near * ~(reached | failed),
        "failed": 5.0 * (near - 1.0) * failed,
    }
    return terms, reached, lost


def stack_terms(cube, base, hand):
    """The reward of one control step of FrankaCubeStack, term by term.

    cube (N, 3) m: the one to be stacked; base (N, 3) m: the other one; hand (N, 3, 3) m: grip site and both finger
    tips. Returns terms: name -> (N,); stacked (N,) bool.
    """
    distance = (cube[:, None] - hand).norm(dim=2)
    to_top = base - cube
    to_top[:, 2] += (franka.SIZE_A + franka.SIZE_B) / 2.0
    in_air = lifted(cube)
    aligned = shaped(to_top.norm(dim=1)) * in_air
    height_error = cube[:, 2] - franka.TABLE_TOP - franka.SIZE_B - franka.SIZE_A / 2.0
    stacked = (
        (to_top[:, :2].norm(dim=1) < STACK_TOLERANCE)
        & (height_error.abs() < STACK_TOLERANCE)
        & (distance[:, 0] > RELEASE_DISTANCE)
    )
    terms = {
        "reach": 0.1 * torch.maximum(shaped(distance.mean(1)), aligned) * ~stacked,
        "lift": 1.5 * in_air * ~stacked,
        "align": 2.0 * aligned * ~stacked,
        "stacked": 16.0 * stacked,
    }
    return terms, stacked


class FrankaCubeBase(VectorEnv):
    """The base class of both tasks.

    Observation (19): see `observe`. Action (7): displacement of the hand (6) and opening of the gripper.
    A task sets the constants below and implements `target`, `begin` and `judge`. The episode terminates with a success,
    when the task can no longer be solved, or when the physics diverges. Objective: the return, as in CPO Fig. 5; a
    fitness that is 0 until the first success would tell EPO nothing.
    """

    num_obs = 19
    num_actions = 7
    max_episode_steps = 300
    frame_rate = 60
    second_cube: bool
    target_height: float  # m, of the centre of the goal or of the second cube at the start
    start_distance: float  # m, the smallest horizontal distance between cube and target at the start
    terms: tuple  # names of the reward's terms

    def __init__(self, num_envs, device, seed, engine="mujoco"):
        super().__init__(num_envs, device, seed)
        scene = functools.partial(franka.build_scene, self.second_cube)
        bodies = [*franka.LINK_BODIES, franka.GRIP_BODY, *franka.TIP_BODIES]
        self.engine = make_engine(
            engine,
            [scene],
            num_envs,
            franka.SUBSTEPS,
            bodies,
            self.device,
            max_contacts=MAX_CONTACTS,
            max_constraints=MAX_CONSTRAINTS,
        )

        self.controller = OperationalSpaceController(
            mass=franka.LINK_MASS,
            com=franka.LINK_COM,
            inertia=franka.LINK_INERTIA,
            armature=franka.ARM_ARMATURE,
            hand_offset=franka.HAND_OFFSET,
            effort=franka.ARM_EFFORT,
            speed=franka.ARM_SPEED,
            period=franka.CONTROL_PERIOD,
            nullspace_pose=franka.DEFAULT_POSE[:NUM_ARM],
            stiffness=STIFFNESS,
            nullspace_stiffness=NULLSPACE_STIFFNESS,
            device=self.device,
        )
        self.joint_default = self.constant(franka.DEFAULT_POSE)
        self.joint_lower = self.constant(franka.JOINT_LOWER)
        self.joint_upper = self.constant(franka.JOINT_UPPER)
        self.action_scale = self.constant(ACTION_SCALE)
        self.finished_success = self.zeros()  # of the last finished episode
        self.term_sums = self.zeros(len(self.terms))  # of the reward's terms over the episode
        self.finished_term_means = self.zeros(len(self.terms))  # per step of the last finished episode

    # ---------------------------------------------------------------- what a task implements

    def target(self):
        """Position (N, 3) m of the goal, or of the cube to stack on."""
        raise NotImplementedError

    def begin(self, mask, qpos, target):
        """Begin at rest in the environments of mask (N,) bool. qpos (N, 16): robot and cube; target (N, 7): pose."""
        raise NotImplementedError

    def judge(self):
        """Judge the state after a step: the terms of the reward, name -> (N,); success (N,) and lost (N,) bool."""
        raise NotImplementedError

    # ---------------------------------------------------------------- one control step

    def advance(self, action):
        engine = self.engine
        torque = self.controller.torque(
            self.action_scale * action[:, :6],
            torch.cat([engine.body_linvel[:, GRIP], engine.body_angvel[:, GRIP]], 1),
            engine.qpos[:, :NUM_ARM],
            engine.qvel[:, :NUM_ARM],
            engine.body_pos[:, LINKS],
            engine.body_quat[:, LINKS],
        )
        opening = franka.FINGER_OPEN * (action[:, 6:] >= 0.0)
        engine.step(torch.cat([torque, opening, opening], 1))

        terms, success, lost = self.judge()
        broken = engine.broken  # the engine has reset these worlds, whose episode ends without a reward
        terms = torch.stack([terms[name] for name in self.terms], 1).masked_fill(broken[:, None], 0.0)
        self.term_sums = self.term_sums + terms
        terminated = success | lost | broken
        done = terminated | (self.episode_step >= self.max_episode_steps)
        finished = done & ~self.shortened
        self.finished_success = torch.where(finished, (success & ~broken).float(), self.finished_success)
        means = self.term_sums / self.episode_length[:, None]
        self.finished_term_means = torch.where(finished[:, None], means, self.finished_term_means)
        return terms.sum(1), terminated, torch.zeros_like(terminated)

    def cube(self):
        """Pose of the cube to move: position, quaternion (N, 7)."""
        return self.engine.qpos[:, NUM_JOINTS : NUM_JOINTS + 7]

    def observe(self):
        """The observation (N, 19), clamped to +-5; positions in world axes."""
        engine = self.engine
        cube = self.cube()
        obs = [
            cube[:, 3:].roll(-1, 1),
            cube[:, :3],
            self.target() - cube[:, :3],
            engine.body_pos[:, GRIP],
            engine.body_quat[:, GRIP].roll(-1, 1),
            engine.qpos[:, NUM_ARM:NUM_JOINTS],
        ]
        return torch.cat(obs, 1).clamp(-5.0, 5.0)

    # ---------------------------------------------------------------- resets

    def reset_where(self, mask):
        draws = self.uniform(-1.0, 1.0, NUM_ARM + 4 + 2 * START_DRAWS)  # one call costs less than four
        noise, yaw, target, cubes = draws.split([NUM_ARM, 2, 2, 2 * START_DRAWS], 1)
        arm = self.joint_default[:NUM_ARM] + RESET_NOISE * noise
        joints = torch.cat([arm, self.joint_default[NUM_ARM:].expand(self.num_envs, 2)], 1)
        joints = joints.clamp(self.joint_lower, self.joint_upper)
        yaw = START_YAW * yaw
        target = START_RANGE * target
        cubes = START_RANGE * cubes.view(-1, 2, START_DRAWS)
        distance = torch.hypot(cubes[:, 0] - target[:, :1], cubes[:, 1] - target[:, 1:])
        # argmax returns the first of equal values: the first cube far enough away or, if there is none, the farthest
        best = distance.clamp(max=self.start_distance).argmax(1)
        cube = cubes.gather(2, best[:, None, None].expand(-1, 2, 1)).squeeze(2)
        cube = self.upright(cube, franka.TABLE_TOP + franka.SIZE_A / 2.0, yaw[:, 0])
        target = self.upright(target, self.target_height, yaw[:, 1])
        self.term_sums = self.term_sums.masked_fill(mask[:, None], 0.0)
        self.begin(mask, torch.cat([joints, cube], 1), target)

    def upright(self, xy, z, yaw):
        """Pose (N, 7) of a cube lying flat, centre at xy (N, 2) and z (m), rotated by yaw (N,) rad."""
        pose = self.zeros(7)
        pose[:, :2] = xy
        pose[:, 2] = z
        pose[:, 3] = (yaw / 2.0).cos()
        pose[:, 6] = (yaw / 2.0).sin()
        return pose

    # ---------------------------------------------------------------- log

    def metrics(self):
        metrics = {"success_rate": self.finished_success.mean()}
        for name, value in zip(self.terms, self.finished_term_means.mean(0)):
            metrics["reward_" + name] = value
        return metrics

    def render(self, index):
        return self.engine.render(index, camera="overview")


class FrankaCubePush(FrankaCubeBase):
    """Push a cube to within 5 mm of a goal on the table. Lifting the cube ends the episode as a failure."""

    second_cube = False
    target_height = franka.TABLE_TOP + franka.SIZE_A / 2.0
    start_distance = 0.1414
    terms = ("reached", "near", "failed")

    def __init__(self, num_envs, device, seed, engine="mujoco"):
        super().__init__(num_envs, device, seed, engine)
        self.goal = self.zeros(3)

    def target(self):
        return self.goal

    def begin(self, mask, qpos, target):
        self.goal = torch.where(mask[:, None], target[:, :3], self.goal)
        self.engine.set_state(mask, qpos, self.zeros(NUM_JOINTS + 6))

    def judge(self):
        return push_terms(self.cube()[:, :3], self.goal, self.max_episode_steps + 1 - self.episode_step)

    def render(self, index):
        return self.engine.render(index, camera="overview", markers={franka.GOAL: self.goal[index]})


class FrankaCubeStack(FrankaCubeBase):
    """Put a 5 cm cube on a 7 cm cube and release it."""

    second_cube = True
    target_height = franka.TABLE_TOP + franka.SIZE_B / 2.0
    start_distance = 0.1697
    terms = ("reach", "lift", "align", "stacked")

    def target(self):
        return self.engine.qpos[:, NUM_JOINTS + 7 : NUM_JOINTS + 10]

    def begin(self, mask, qpos, target):
        at_rest = self.zeros(NUM_JOINTS + 12)
        self.engine.set_state(mask, torch.cat([qpos, target], 1), at_rest)

    def judge(self):
        terms, stacked = stack_terms(self.cube()[:, :3], self.target(), self.engine.body_pos[:, HAND])
        return terms, stacked, torch.zeros_like(stacked)
