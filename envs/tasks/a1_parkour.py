"""A1Parkour: the quadruped Unitree A1 (12.5 kg) crosses obstacles from goal to goal, on ten levels of difficulty.

The task is the first phase of Extreme Parkour (https://arxiv.org/abs/2309.14341), which EPO's paper takes over.

Shape letter: N num_envs. Units are metres, seconds and radians, and the world's z axis points up. Quaternions are
ordered w, x, y, z.
"""

import functools
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from envs.base import VectorEnv, process_rank
from envs.engines import make_engine
from envs.models import a1
from envs.models import parkour_terrain as terrain
from envs.rotations import conjugate, rotate, wrap_angle

NUM_JOINTS = 12
NUM_LEGS = 4
# World i runs on column i % NUM_COLUMNS, so that any block of worlds, an agent's too, meets all kinds of obstacles, and
# as robot i % NUM_ROBOTS. (Where there are several processes, they begin with other columns.)
NUM_ROBOTS = 5 * terrain.NUM_COLUMNS
# MuJoCo Warp's buffers per world. At most, robots made 3.6 contacts on average over the worlds (trained actions) and 45
# rows of constraints in one world (random actions).
MAX_CONTACTS = 24
MAX_CONSTRAINTS = 128
ACTION_SCALE = 1.2  # rad, from the default pose to the target at an action of 1: the original's limit
RESET_RANGE = 0.9  # rad; at a reset, each joint is up to this far beyond the default pose

# Ranges from which the parameters of a robot are drawn
ADDED_MASS = (0.0, 3.0)  # kg
COM_SHIFT = (-0.2, 0.2)  # m, in each direction
FRICTION = (0.6, 2.0)
GAIN_FACTOR = (0.8, 1.2)  # of each drive's stiffness and damping

EPISODE_STEPS = 1000  # control steps, the time limit
SPEED_RANGE = (0.3, 0.8)  # m/s, of the command
COMMAND_PERIOD = 300  # control steps
PUSH_SPEED = 0.5  # m/s
PUSH_PERIOD = 400  # control steps
GOAL_RADIUS = 0.2  # m
GOAL_STEPS = 6  # within the radius, until the next goal is the current one
# In training, an episode is truncated when the robot has not come PROGRESS nearer to its goal for so many control steps
PATIENCE = 200
PROGRESS = 0.05  # m
MAX_TILT = 1.5  # rad, roll and pitch
MIN_HEIGHT = -0.25  # m, of the base; below it the robot has fallen into a pit

# Shares of the way that the commanded speed covers in a whole episode
PROMOTION = 0.8  # a robot that has got farther rises by a level
DEMOTION = 0.4  # one that has not got so far falls by a level

SCAN_X = np.linspace(-0.45, 1.2, 12)  # m, points of the height scan, in front of the base
SCAN_Y = np.linspace(-0.75, 0.75, 11)
SCAN_OFFSET = 0.3  # m, about the height of the base over the ground
OBS_LIMIT = 100.0

FOOT_CONTACT_FORCE = 2.0  # N
COLLISION_FORCE = 0.1  # N
ORIGINAL_ACTION_SCALE = 0.25  # rad; the reward counts changes of actions in this unit
EDGE_LEVEL = 3  # edges cost nothing up to this level
REWARD_WEIGHTS = {  # per second
    "goal_velocity": 1.5,
    "yaw": 0.5,
    "vertical_velocity": -1.0,
    "angular_velocity": -0.05,
    "orientation": -1.0,
    "joint_acceleration": -2.5e-7,
    "collision": -10.0,
    "action_rate": -0.1,
    "torque_change": -1e-7,
    "torque": -1e-5,
    "hip_position": -0.5,
    "joint_position": -0.04,
    "stumble": -1.0,
    "edge": -1.0,
}


class Motion(NamedTuple):
    """What the reward of a control step depends on; velocities and forces are those at its end."""

    to_goal: Tensor  # (N, 2) m, horizontal vector to the goal
    velocity: Tensor  # (N, 2) m/s, horizontal velocity in world axes
    command: Tensor  # (N,) m/s
    yaw_error: Tensor  # (N,) between the heading and the goal
    base_lin_vel: Tensor  # (N, 3) m/s, velocity in base axes
    base_ang_vel: Tensor  # (N, 3) rad/s, in base axes
    projected_gravity: Tensor  # (N, 3), direction in base axes
    joint_error: Tensor  # (N, 12), distance from the default pose
    joint_acceleration: Tensor  # (N, 12) rad/s^2, mean over the step
    action_change: Tensor  # (N, 12), since the last step
    torque: Tensor  # (N, 12) N m
    torque_change: Tensor  # (N, 12) N m
    body_force: Tensor  # (N, 9, 3) N, contact forces on base, thighs and calves
    foot_force: Tensor  # (N, 4, 3) N
    foot_on_edge: Tensor  # (N, 4) bool, of feet in contact
    flat: Tensor  # (N,) bool, whether the course has no obstacles
    level: Tensor  # (N,)


class BaseState(NamedTuple):
    """How the base stands and moves."""

    roll: Tensor  # (N,)
    pitch: Tensor  # (N,)
    yaw: Tensor  # (N,)
    projected_gravity: Tensor  # (N, 3), direction in base axes
    lin_vel: Tensor  # (N, 3) m/s, velocity in base axes


def reward_terms(m):
    """The terms of one control step's reward without their weights, name -> (N,). m: a Motion.

    Each is multiplied by its weight and the control period. Their sum is clamped to at least 0.
    """
    direction = torch.nn.functional.normalize(m.to_goal, eps=1e-5)
    approach = (m.velocity * direction).sum(1)
    foot_vertical = m.foot_force[..., 2].abs()
    foot_horizontal = m.foot_force[..., :2].norm(dim=2)
    return {
        "goal_velocity": torch.minimum(approach, m.command) / (m.command + 1e-5),
        "yaw": torch.exp(-m.yaw_error.abs()),
        "vertical_velocity": m.base_lin_vel[:, 2].square() * torch.where(m.flat, 1.0, 0.5),
        "angular_velocity": m.base_ang_vel[:, :2].square().sum(1),
        "orientation": m.projected_gravity[:, :2].square().sum(1) * m.flat,
        "joint_acceleration": m.joint_acceleration.square().sum(1),
        "collision": (m.body_force.norm(dim=2) > COLLISION_FORCE).sum(1),
        "action_rate": m.action_change.norm(dim=1) * ACTION_SCALE / ORIGINAL_ACTION_SCALE,
        "torque_change": m.torque_change.square().sum(1),
        "torque": m.torque.square().sum(1),
        "hip_position": m.joint_error[:, ::3].square().sum(1),
        "joint_position": m.joint_error.square().sum(1),
        "stumble": (foot_horizontal > 4.0 * foot_vertical).any(1),
        "edge": m.foot_on_edge.sum(1) * (m.level > EDGE_LEVEL),
    }


def next_level(level, finished, distance, command, uniform):
    """The level (N,) after an episode on `level` (N,). Whoever passes the last level goes to a random one.

    A robot that has passed all goals rises, however far it has got: many courses of stones and steps are short.
    finished (N,): whether all goals were passed; distance (N,) m from the start, at the end of the episode;
    command (N,) m/s; uniform (N,): random in [0, 1).
    """
    way = command * EPISODE_STEPS * a1.CONTROL_PERIOD
    promoted = finished | (distance > PROMOTION * way)
    demoted = ~finished & (distance < DEMOTION * way)
    level = (level + promoted.long() - demoted.long()).clamp(min=0)
    return torch.where(level < terrain.NUM_LEVELS, level, (uniform * terrain.NUM_LEVELS).long())


def draw_robots():
    """The NUM_ROBOTS robots, always the same: a list of a1.Dynamics."""
    rng = np.random.default_rng(0)
    return [
        a1.Dynamics(
            rng.uniform(*ADDED_MASS),
            tuple(rng.uniform(*COM_SHIFT, 3)),
            rng.uniform(*FRICTION),
            tuple(rng.uniform(*GAIN_FACTOR, NUM_JOINTS)),
            tuple(rng.uniform(*GAIN_FACTOR, NUM_JOINTS)),
        )
        for _ in range(NUM_ROBOTS)
    ]


def yaw_errors(vectors, yaw):
    """Angles (N, G) in [-pi, pi) from the heading yaw (N,) to the horizontal vectors (N, G, 2)."""
    return wrap_angle(torch.atan2(vectors[..., 1], vectors[..., 0]) - yaw[:, None])


def draw_command(uniform):
    """The commanded speed (N,) m/s. uniform (N,): random in [0, 1)."""
    low, high = SPEED_RANGE
    return low + (high - low) * uniform


class A1Parkour(VectorEnv):
    """Pass eight goals one after the other, at a commanded speed, over stones, hurdles, flat ground, steps or gaps.

    Observation (214): see `observe`. Action (12): joint targets relative to the default pose.
    The episode terminates when the robot turns over or falls into a pit. It is truncated when the robot has passed all
    goals or, in training, is stuck.
    Objective: the number of goals passed, at most 8, on a level that stays the same; an evaluation spreads the levels
    evenly over the worlds. In training the level follows the robot's success, and 8 goals are added for each level
    below, so that an agent is not worse off on a higher level.
    """

    num_obs = 214
    num_actions = NUM_JOINTS
    max_episode_steps = EPISODE_STEPS
    frame_rate = 50

    def __init__(self, num_envs, device, seed, engine="mujoco"):
        super().__init__(num_envs, device, seed)
        # Each of several processes begins with another column. An agent's few worlds in one process are thus on other
        # columns than its worlds in the next
        rank, num_processes = process_rank()
        world = rank * terrain.NUM_COLUMNS // num_processes + np.arange(num_envs)
        columns = [terrain.make_column(i) for i in world[: terrain.NUM_COLUMNS] % terrain.NUM_COLUMNS]
        drawn = draw_robots()
        robots = [drawn[i] for i in world % NUM_ROBOTS]
        scenes = [
            functools.partial(terrain.build_scene, columns[i % terrain.NUM_COLUMNS], robots[i])
            for i in range(min(num_envs, NUM_ROBOTS))
        ]
        # no bodies to read, because the free joint's coordinates are the base's pose and velocity
        self.engine = make_engine(
            engine,
            scenes,
            num_envs,
            a1.SUBSTEPS,
            [],
            self.device,
            max_contacts=MAX_CONTACTS,
            max_constraints=MAX_CONSTRAINTS,
        )

        # the courses
        heights = np.stack([terrain.height_map(column) for column in columns])
        self.edges = self.constant(np.stack([terrain.edge_map(each) for each in heights]).ravel(), dtype=torch.bool)
        self.heights = self.constant(heights.ravel())  # m
        self.goals = self.constant(np.stack([pair_goals(column.goals) for column in columns]))
        column = np.arange(num_envs) % terrain.NUM_COLUMNS  # index into `columns`
        self.column = self.constant(column, dtype=torch.long)
        kinds = [columns[i].kind for i in column]
        of_kind = np.array([[kind == each for kind in kinds] for each in terrain.KINDS])
        num_worlds = of_kind.sum(1, keepdims=True)  # of each kind; five worlds in a row have all kinds
        self.has_all_kinds = num_envs >= len(terrain.KINDS)
        self.kind_mean = self.constant(of_kind / num_worlds.clip(1))  # (kinds, N); @ (N,): the kinds' means
        self.flat = self.constant([kind == "flat" for kind in kinds], dtype=torch.bool)
        # Any ten worlds in a row have about all levels, so that an evaluation's few worlds, or an agent's, do too. As 7
        # and 10 have no common divisor, 50 worlds in a row have all kinds on all levels. Where columns and robots begin
        # again, the levels shift, and 2,000 worlds have all columns and robots on all levels
        kind = world % len(terrain.KINDS)
        group = world // len(terrain.KINDS) + world // NUM_ROBOTS
        self.evaluation_level = self.constant((2 * kind + 7 * group) % terrain.NUM_LEVELS, dtype=torch.long)
        self.field_origin = self.constant([terrain.BORDER, terrain.FIELD_HALF_WIDTH])  # cells
        # Edges are those of the points where cells begin in x. A foot half a cell farther is in the cell of its nearest
        self.half_cell = self.constant([terrain.CELL / 2, 0.0])
        self.field_last = self.constant([terrain.FIELD_LENGTH - 1, 2 * terrain.FIELD_HALF_WIDTH - 1], dtype=torch.long)
        self.scan_points = self.constant([(x, y) for x in SCAN_X for y in SCAN_Y])

        # the robots
        self.robot = self.constant([observed_dynamics(robot) for robot in robots])
        self.world_axes = self.constant(np.eye(3))
        self.joint_default = self.constant(a1.DEFAULT_POSE)
        self.joint_lower = self.constant(a1.JOINT_LOWER)
        self.joint_upper = self.constant(a1.JOINT_UPPER)
        self.reward_weights = self.constant([a1.CONTROL_PERIOD * weight for weight in REWARD_WEIGHTS.values()])

        # the state of the episodes
        self.level = self.zeros(dtype=torch.long)
        self.passed = self.zeros(dtype=torch.long)  # goals
        self.steps_at_goal = self.zeros(dtype=torch.long)
        # these two change in training only
        self.closest = self.zeros().fill_(torch.inf)  # m, to the goal, when the robot last made progress
        self.stalled = self.zeros(dtype=torch.long)  # steps since then
        self.command = self.zeros()  # m/s
        self.action = self.zeros(NUM_JOINTS)  # the last one
        self.torque = self.zeros(NUM_JOINTS)  # N m, at the end of the last step
        self.touched = self.zeros(NUM_LEGS, dtype=torch.bool)  # whether a foot had contact at the end of the last step
        self.contact = self.zeros(NUM_LEGS, dtype=torch.bool)  # or at the end of the step before that
        self.step_metrics = {}

    # ---------------------------------------------------------------- one control step

    def advance(self, action):
        engine = self.engine
        draws = self.uniform(0.0, 1.0, 3)
        self.push(draws[:, :2])
        last_joint_velocity = engine.qvel[:, 6:].clone()
        last_action = self.action
        last_torque = self.torque
        self.action = action
        engine.step(self.joint_default + ACTION_SCALE * action)
        self.torque = engine.sensors[:, a1.TORQUES].clone()
        touching = self.foot_force().norm(dim=2) > FOOT_CONTACT_FORCE
        self.contact = touching | self.touched
        self.touched = touching

        base = self.base_state()
        to_goals = self.to_goals()
        motion = self.motion(base, to_goals, last_joint_velocity, last_action, last_torque)
        values = reward_terms(motion)
        terms = self.reward_weights * torch.stack([values[name] for name in REWARD_WEIGHTS], 1)
        terms = terms.masked_fill(engine.broken[:, None], 0.0)
        reward = terms.sum(1).clamp(min=0.0)

        self.pass_goals(to_goals[:, 0])
        fallen = (base.roll.abs() > MAX_TILT) | (base.pitch.abs() > MAX_TILT) | (engine.qpos[:, 2] < MIN_HEIGHT)
        truncated = self.passed == terrain.NUM_GOALS
        if self.training:  # a robot that is stuck, with a hurdle between its legs, would stay so and earn nothing
            truncated = truncated | (self.stalled >= PATIENCE)
        self.command = torch.where(self.episode_length % COMMAND_PERIOD == 0, draw_command(draws[:, 2]), self.command)
        self.step_metrics = {"reward_" + name: mean for name, mean in zip(REWARD_WEIGHTS, terms.mean(0))}
        return reward, fallen, truncated

    def push(self, draws):
        """Every 8 s the base gets a random horizontal velocity. draws (N, 2): random in [0, 1)."""
        mask = self.episode_length % PUSH_PERIOD == 0
        velocity = torch.cat([PUSH_SPEED * (2.0 * draws - 1.0), self.engine.qvel[:, 2:]], 1)
        self.engine.set_state(mask, self.engine.qpos, velocity)

    def pass_goals(self, to_goal):
        """Count the steps near the goal and go on to the next one. to_goal (N, 2) m."""
        distance = to_goal.norm(dim=1)
        self.steps_at_goal = self.steps_at_goal + (distance < GOAL_RADIUS)
        passed = self.steps_at_goal >= GOAL_STEPS
        if self.training:
            self.count_stalled(distance, passed)
        self.passed = self.passed + passed
        self.steps_at_goal = self.steps_at_goal.masked_fill(passed, 0)

    def count_stalled(self, distance, passed):
        """Count the steps without progress to the goal. distance (N,) m; passed (N,): whether it is passed now."""
        nearer = distance < self.closest - PROGRESS
        self.stalled = torch.where(nearer | passed, 0, self.stalled + 1)
        self.closest = torch.where(nearer, distance, self.closest).masked_fill(passed, torch.inf)

    # ---------------------------------------------------------------- measurements

    def motion(self, base, to_goals, last_joint_velocity, last_action, last_torque):
        """The Motion of the step that has just been simulated.

        base: the BaseState after it; to_goals (N, 2, 2) m; the others (N, 12): from before it.
        """
        engine = self.engine
        foot_position = engine.sensors[:, a1.FOOT_POSITIONS].unflatten(1, (NUM_LEGS, 3))
        return Motion(
            to_goal=to_goals[:, 0],
            velocity=engine.qvel[:, :2],
            command=self.command,
            yaw_error=yaw_errors(to_goals, base.yaw)[:, 0],
            base_lin_vel=base.lin_vel,
            base_ang_vel=engine.qvel[:, 3:6],
            projected_gravity=base.projected_gravity,
            joint_error=engine.qpos[:, 7:] - self.joint_default,
            joint_acceleration=(engine.qvel[:, 6:] - last_joint_velocity) / a1.CONTROL_PERIOD,
            action_change=self.action - last_action,
            torque=self.torque,
            torque_change=self.torque - last_torque,
            body_force=engine.sensors[:, a1.BODY_FORCES].unflatten(1, (-1, 3)),
            foot_force=self.foot_force(),
            foot_on_edge=self.contact & self.edges[self.cells(foot_position[..., :2] + self.half_cell)],
            flat=self.flat,
            level=self.level,
        )

    def foot_force(self):
        """Contact forces (N, 4, 3) N on the feet."""
        return self.engine.sensors[:, a1.FOOT_FORCES].unflatten(1, (NUM_LEGS, 3))

    def base_state(self):
        """The BaseState now."""
        axes = self.world_axes.expand(self.num_envs, 3, 3)
        vectors = torch.cat([axes, self.engine.qvel[:, None, :3]], 1)
        # in base axes; those of the world's axes are the rows of the base's rotation matrix
        x, y, z, velocity = rotate(conjugate(self.engine.qpos[:, None, 3:7]), vectors).unbind(1)
        return BaseState(
            roll=torch.atan2(z[:, 1], z[:, 2]),
            pitch=(-z[:, 0]).clamp(-1.0, 1.0).asin(),
            yaw=torch.atan2(y[:, 0], x[:, 0]),
            projected_gravity=-z,
            lin_vel=velocity,
        )

    def to_goals(self):
        """Horizontal vectors from the base to the current goal and to the next one, in world axes: (N, 2, 2) m."""
        return self.goals[self.column, self.level, self.passed] - self.engine.qpos[:, None, :2]

    def cells(self, points):
        """Where the points (N, P, 2) m are in the flattened height maps, (N, P). Clamped to the column's map."""
        cell = (points / terrain.CELL + self.field_origin).long()  # rounds negative numbers up, which are clamped
        cell = cell.clamp(min=0).minimum(self.field_last)
        row = self.column[:, None] * terrain.FIELD_LENGTH + cell[..., 0]
        return row * (2 * terrain.FIELD_HALF_WIDTH) + cell[..., 1]

    def scan(self, yaw):
        """How far the ground is below the base minus SCAN_OFFSET, within +-1 m: (N, 132). yaw (N,).

        The points turn with the robot's heading, but not with its roll and pitch. The ground of a point is that in the
        middle of its cell.
        """
        cos = yaw.cos()
        sin = yaw.sin()
        turn = torch.stack([cos, sin, -sin, cos], 1).unflatten(1, (2, 2))
        points = self.engine.qpos[:, None, :2] + self.scan_points @ turn
        return (self.engine.qpos[:, 2:3] - SCAN_OFFSET - self.heights[self.cells(points)]).clamp(-1.0, 1.0)

    def observe(self):
        """The observation (N, 214), clamped to +-100; velocities in base axes.

        Angular velocity (3), roll and pitch (2), yaw errors to the current and the next goal (2), command (1), whether
        there are obstacles and whether there are none (2), joint positions (12) and velocities (12), last action (12),
        contacts of the feet (4), scan (132), linear velocity (3), parameters of the robot (29).
        """
        engine = self.engine
        base = self.base_state()
        obs = [
            0.25 * engine.qvel[:, 3:6],
            torch.stack([base.roll, base.pitch], 1),
            yaw_errors(self.to_goals(), base.yaw),
            torch.stack([self.command, ~self.flat, self.flat], 1),
            engine.qpos[:, 7:] - self.joint_default,
            0.05 * engine.qvel[:, 6:],
            self.action,
            self.contact.float() - 0.5,
            self.scan(base.yaw),
            2.0 * base.lin_vel,
            self.robot,
        ]
        return torch.cat(obs, 1).clamp(-OBS_LIMIT, OBS_LIMIT)

    # ---------------------------------------------------------------- resets

    def reset_where(self, mask):
        draws = self.uniform(0.0, 1.0, 2 + NUM_JOINTS)
        if self.training:
            # a broken world has been put back elsewhere, so its distance says nothing
            whole = mask & (self.episode_length > 0) & ~self.shortened & ~self.engine.broken
            finished = self.passed == terrain.NUM_GOALS
            level = next_level(self.level, finished, self.distance(), self.command, draws[:, 0])
            self.level = torch.where(whole, level, self.level)
            self.closest = self.closest.masked_fill(mask, torch.inf)  # so that the first step is progress
        else:
            self.level = torch.where(mask, self.evaluation_level, self.level)
        self.passed = self.passed.masked_fill(mask, 0)
        self.steps_at_goal = self.steps_at_goal.masked_fill(mask, 0)
        self.command = torch.where(mask, draw_command(draws[:, 1]), self.command)
        rows = mask[:, None]
        self.action = self.action.masked_fill(rows, 0.0)
        self.torque = self.torque.masked_fill(rows, 0.0)
        self.touched = self.touched.masked_fill(rows, False)
        self.contact = self.contact.masked_fill(rows, False)

        joints = self.joint_default + RESET_RANGE * draws[:, 2:]
        qpos = self.zeros(19)
        qpos[:, 0] = self.start_x()
        qpos[:, 2] = a1.START_HEIGHT
        qpos[:, 3] = 1.0
        qpos[:, 7:] = joints.clamp(self.joint_lower, self.joint_upper)
        self.engine.set_state(mask, qpos, self.zeros(18))

    def start_x(self):
        """x (N,) m of the robot's start on the current level."""
        return self.level * (terrain.TILE_LENGTH * terrain.CELL) + terrain.START

    def distance(self):
        """Horizontal distance (N,) m from the start."""
        return torch.hypot(self.engine.qpos[:, 0] - self.start_x(), self.engine.qpos[:, 1])

    # ---------------------------------------------------------------- score, log

    def objective(self):
        goals = self.passed + terrain.NUM_GOALS * self.level if self.training else self.passed
        return goals.float()

    def metrics(self):
        level = self.level.float()
        metrics = {**self.step_metrics, "terrain_level": level.mean()}
        if self.has_all_kinds:  # otherwise, each process would miss other kinds
            for kind, mean in zip(terrain.KINDS, self.kind_mean @ level):
                metrics[f"level_{kind}"] = mean
        return metrics

    def render(self, index):
        points = self.goals[self.column, self.level, self.passed]  # (N, 2, 2)
        height = self.heights[self.cells(points)] + terrain.MARKER_HEIGHT
        current, following = torch.cat([points, height[..., None]], 2)[index]
        markers = {terrain.GOAL: current, terrain.NEXT_GOAL: following}
        return self.engine.render(index, camera="follow", markers=markers)


def pair_goals(goals):
    """The current and the next goal, by the number of goals passed: (levels, 8, 2) -> (levels, 9, 2, 2). The last goal
    is followed by itself, also where it has been passed."""
    current = np.concatenate([goals, goals[:, -1:]], 1)
    following = np.concatenate([current[:, 1:], current[:, -1:]], 1)
    return np.stack([current, following], 2)


def observed_dynamics(robot):
    """What the policy observes of an a1.Dynamics (29): mass, centre of mass, friction, gain factors minus 1."""
    factors = np.subtract([*robot.stiffness, *robot.damping], 1.0)
    return [robot.added_mass, *robot.com_shift, robot.friction, *factors]
