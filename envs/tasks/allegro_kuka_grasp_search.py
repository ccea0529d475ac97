"""The search for held states: hands close around their objects in the air, put them on the table and let go of them.

What has come to rest on the way is kept in `HeldStates`, from which the held starts of allegro_kuka_held_starts.py are
drawn. With two arms, either of them grasps. Shape letters as in allegro_kuka.py; H kinds of held states, S states of a
kind that an environment keeps, R the 23 joints of one robot.
"""

from typing import NamedTuple

import torch

from envs.models import allegro_kuka_scene as scene
from envs.tasks.allegro_kuka import FINGERS, JOINTS_PER_ROBOT, NUM_ARM, OBJECT, half_height
from envs.terminal import say

CAPACITY = 4  # S

# Joint angles (rad) of a grasp of a 5 cm cube with thumb and fingers, and of the arm that lifts it off the table
ARM_LOW = (-1.613, 1.644, 0.033, 1.307, 0.04, 1.354, 2.312)
ARM_HIGH = (-1.631, 0.725, 0.026, 0.02, 0.033, 0.939, 2.323)
HAND_OPEN = (-0.124, 0.821, 0.243, 0.281, 0.091, 0.787, 0.304, 0.335, 0, 0.3, 0.3, 0.3, 1.406, 0.441, -0.059, 1.068)
HAND_SHUT = (-0.077, 1.03, 0.759, 0.789, -0.002, 1.09, 0.78, 0.45, 0, 1.03, 0.759, 0.789, 1.57, -0.17, 0.467, -0.271)

# How grasps vary
ARM_SHARE = (0.5, 1.5)  # of the way from ARM_LOW to ARM_HIGH
ARM_NOISE = 0.3  # rad
HAND_NOISE = 0.15  # rad, of the open hand
EXTRA_CLOSING = (0.0, 0.5)  # rad that the hand's targets go beyond HAND_SHUT
TOWARDS_PALM = (0.0, 0.5)  # share of the way from between the fingertips to the palm at which the object is put
CENTRE_NOISE = 0.015  # m, of that place
GRASP_HEIGHT = scene.TABLE_TOP + 0.27  # m: where the middle of the fingertips is lower, another pose is drawn
POSE_DRAWS = 4  # at most

# Control steps
GRASP_STEPS = 300  # of all grasps together
CHECK_STEPS = 15  # between looks at them
HELD_STEPS = 75  # that a grasp has to last
LOWER_STEPS = 120  # to put an object down
MOVE_STEPS = 15  # to each kind of state while letting go of it
SETTLE_STEPS = 10  # after each movement
PUT_DOWNS = 2  # how often each environment puts an object down

# What counts as held, as at rest and as on the table
HELD_HEIGHT = scene.TABLE_TOP + 0.2  # m, of an object that is high enough to count as lifted
HELD_DISTANCE = 0.16  # m between palm and object, at most, in the closed hand
OPEN_DISTANCE = 0.19  # m, in the open hand
LEFT_DISTANCE = 0.4  # m, where the hand leaves it
REST_SPEED = 0.1  # m/s
TABLE_GAP = 0.003  # m between the table and an object that is put down: less stops the arm
TIP_GAP = 0.012  # m between the table and the lowest fingertip: less stops the arm too
LAID_GAP = 0.01  # m between the table and an object that lies on it


class Release(NamedTuple):
    """A kind of state in which a hand lets go of its object."""

    name: str
    palm_distance: float  # m, from the palm's centre to the object's, at most
    on_table: bool = True  # whether the object has to lie on the table
    closing: bool = False  # whether the targets kept are ahead, a random share of the way back to the closed hand
    spread: float = 0.0  # share of the way that the object is moved to where an original episode could begin


# Each kind is a random point in its part of a movement, here a third
OPENING = (
    Release("ajar", OPEN_DISTANCE, on_table=False, closing=True),
    Release("half_open", OPEN_DISTANCE, closing=True),
    Release("open", OPEN_DISTANCE, closing=True),
)
LEAVING = (
    Release("near", LEFT_DISTANCE),
    Release("halfway", LEFT_DISTANCE, spread=0.5),
    Release("far", LEFT_DISTANCE, spread=1.0),
)


class HeldStates:
    """Up to S = CAPACITY states of each of the K kinds `names` for every environment; some objects cannot be held.

    qpos (N, K, S, nq): joint coordinates of the robot and the object; target (N, K, S, J) rad: of the drives;
    count (N, K): how many of the S states have been found.
    """

    def __init__(self, names, num_envs, num_qpos, num_joints, device):
        self.names = list(names)
        self.qpos = torch.zeros(num_envs, len(names), CAPACITY, num_qpos, device=device)
        self.target = torch.zeros(num_envs, len(names), CAPACITY, num_joints, device=device)
        self.count = torch.zeros(num_envs, len(names), dtype=torch.long, device=device)
        self.searched = False  # a search may find nothing, and is not repeated when a run is resumed

    def has(self, name):
        """Which environments have states of a kind (N,) bool."""
        return self.count[:, self.names.index(name)] > 0

    def add(self, name, mask, qpos, target):
        """Keep the states of mask (N,) bool where there is room. qpos: the engine's; target (N, J) rad."""
        index = self.names.index(name)
        rows = (mask & (self.count[:, index] < CAPACITY)).nonzero().squeeze(1)
        place = rows, index, self.count[rows, index]
        self.qpos[place] = qpos[rows]
        self.target[place] = target[rows]
        self.count[rows, index] += 1

    def draw(self, index, uniform):
        """One state of every environment, zeros where it has none: the engine's qpos and targets (N, J) rad.

        index (N,): of its kind in `names`; uniform (N,) in [0, 1)
        """
        rows = torch.arange(len(index), device=index.device)
        place = rows, index, (uniform * self.count[rows, index]).long()
        return self.qpos[place], self.target[place]

    def state_dict(self):
        tensors = {"qpos": self.qpos.clone(), "target": self.target.clone(), "count": self.count.clone()}
        return {**tensors, "searched": self.searched}

    def load_state_dict(self, state):
        self.qpos.copy_(state["qpos"])
        self.target.copy_(state["target"])
        self.count.copy_(state["count"])
        self.searched = state["searched"]


class GraspSearch:
    """Fills `held_states` of env, an AllegroKuka task. It moves the engine's worlds and draws env's random numbers."""

    def __init__(self, env, held_states):
        self.env = env
        self.engine = env.engine
        self.held_states = held_states
        self.lower_limit = env.joint_lower[:JOINTS_PER_ROBOT]
        self.upper_limit = env.joint_upper[:JOINTS_PER_ROBOT]
        self.worlds = torch.arange(env.num_envs, device=env.device)
        self.robot = env.zeros(dtype=torch.long)  # the one that grasps, in each environment
        self.arm_low = env.tensor(ARM_LOW)
        self.arm_high = env.tensor(ARM_HIGH)
        self.hand_open = env.tensor(HAND_OPEN)
        self.hand_shut = env.tensor(HAND_SHUT)

    def run(self):
        say(f"held starts: {self.env.num_envs:,} hands grasp their objects and put them down")
        self.grasp()
        for _ in range(PUT_DOWNS):
            self.put_down()
        found = (self.held_states.count > 0).float().mean(0).tolist()  # share of the environments, per kind
        shares = ", ".join(f"{name} {share:.0%}" for name, share in zip(self.held_states.names, found))
        say(f"held starts: environments with states of each kind: {shares}")

    # ---------------------------------------------------------------- closing hands in the air

    def grasp(self):
        """Hands close around objects. What they hold for HELD_STEPS is kept; then, or if it falls, they begin anew."""
        env = self.env
        age = env.zeros(dtype=torch.long)  # control steps since the hand began to close
        target = self.begin_grasps(age == 0, env.target)
        for _ in range(GRASP_STEPS // CHECK_STEPS):
            for _ in range(CHECK_STEPS):
                self.engine.step(target)
            age += CHECK_STEPS
            lasted = age >= HELD_STEPS
            high = self.engine.body_pos[:, OBJECT, 2] > HELD_HEIGHT
            fallen = self.palm_distance() >= HELD_DISTANCE
            over = self.engine.broken | fallen | lasted
            self.keep("high", lasted & high & self.rests_within(HELD_DISTANCE), target)
            target = self.begin_grasps(over, target)
            age.masked_fill_(over, 0)

    def begin_grasps(self, mask, target):
        """Put the objects of mask (N,) bool between the fingers of open hands in the air, at rest.

        Returns the targets (N, J) rad that close these hands; all others are those of `target`.
        """
        env = self.env
        at_rest = torch.zeros_like(self.engine.qvel)
        far = env.tensor((0.0, 0.0, 3.0, 1.0, 0.0, 0.0, 0.0)).expand(env.num_envs, 7)  # the object touches nothing
        any_robot = (env.uniform(0.0, 1.0) * env.num_robots).long()
        self.robot = torch.where(mask, any_robot, self.robot)
        pose = env.draw_pose()  # in which the robot waits that does not grasp
        too_low = mask
        for _ in range(POSE_DRAWS):
            arm = self.arm_low + env.uniform(*ARM_SHARE, 1) * (self.arm_high - self.arm_low)
            arm = arm + env.uniform(-ARM_NOISE, ARM_NOISE, len(ARM_LOW))
            hand = self.hand_open + env.uniform(-HAND_NOISE, HAND_NOISE, len(HAND_OPEN))
            drawn = torch.cat([arm, hand], 1).clamp(self.lower_limit, self.upper_limit)
            pose = torch.where(too_low[:, None], self.with_joints(pose, drawn), pose)
            self.engine.set_state(too_low, torch.cat([pose, far], 1), at_rest)
            index, middle, _, thumb = self.fingertips().unbind(1)
            centre = 0.5 * thumb + 0.25 * (index + middle)
            too_low = too_low & (centre[:, 2] < GRASP_HEIGHT)
        centre = centre + env.uniform(*TOWARDS_PALM, 1) * (self.palm_centre() - centre)
        centre = centre + env.uniform(-CENTRE_NOISE, CENTRE_NOISE, 3)
        self.engine.set_state(mask, torch.cat([pose, centre, env.random_rotation(env.num_envs)], 1), at_rest)
        shut = self.hand_shut + env.uniform(*EXTRA_CLOSING, len(HAND_SHUT))
        closed = torch.cat([self.joints_of(pose)[:, :NUM_ARM], shut], 1).clamp(self.lower_limit, self.upper_limit)
        return torch.where(mask[:, None], self.with_joints(pose, closed), target)

    # ---------------------------------------------------------------- putting objects down, letting go of them

    def put_down(self):
        """Lower what is held high to the table, open the hand and lead it away; keep states on the way."""
        env = self.env
        mask = self.held_states.has("high")
        high = torch.full_like(mask, self.held_states.names.index("high"), dtype=torch.long)
        qpos, target = self.held_states.draw(high, env.uniform(0.0, 1.0))
        self.engine.set_state(mask, qpos, torch.zeros_like(self.engine.qvel))
        self.robot = self.palm_distances().argmin(1)  # the one that holds the object
        shut = self.lower(mask, target)
        self.keep("low", mask & self.rests_within(HELD_DISTANCE), shut)
        opened = torch.cat([self.joints_of(shut)[:, :NUM_ARM], self.hand_open.expand(env.num_envs, -1)], 1)
        opened = self.with_joints(shut, opened)
        away = self.with_joints(shut, self.joints_of(env.draw_pose()))
        target = self.release(OPENING, mask, shut, shut, opened)
        self.release(LEAVING, mask, target, opened, away)

    def lower(self, mask, target):
        """Lower the arms of mask (N,) bool until object or fingertips are at the table. Returns targets (N, J) rad."""
        arm, hand = self.joints_of(target).split([NUM_ARM, len(HAND_OPEN)], 1)
        way = self.arm_high - self.arm_low
        from_low = arm - self.arm_low
        aside = from_low - (from_low @ way / (way @ way))[:, None] * way
        lowest = self.arm_low - 0.2 * way + 0.5 * aside
        arm_target = arm
        down = ~mask
        for step in range(LOWER_STEPS + SETTLE_STEPS):
            lowest_tip = self.fingertips()[..., 2].amin(1)
            down = down | (self.gap() < TABLE_GAP) | (lowest_tip < scene.TABLE_TOP + TIP_GAP)
            lowered = arm + min((step + 1) / LOWER_STEPS, 1.0) * (lowest - arm)
            arm_target = torch.where(down[:, None], arm_target, lowered)
            joints = torch.cat([arm_target, hand], 1).clamp(self.lower_limit, self.upper_limit)
            arm_target = joints[:, :NUM_ARM]
            target = self.with_joints(target, joints)
            self.engine.step(target)
        return target

    def release(self, kinds, mask, target, start, end):
        """Move from `target` along the way from `start` to `end` (N, J) rad, which is divided evenly among `kinds`.

        Keeps a state of each kind in the environments of mask (N,) bool. Returns the last targets.
        """
        env = self.env
        for part, kind in enumerate(kinds):
            before = target
            after = start + (part + env.uniform(0.0, 1.0, 1)) / len(kinds) * (end - start)
            for step in range(MOVE_STEPS + SETTLE_STEPS):
                if step == MOVE_STEPS and kind.spread > 0.0:
                    self.spread_objects(kind.spread)
                target = before + min((step + 1) / MOVE_STEPS, 1.0) * (after - before)
                target = target.clamp(env.joint_lower, env.joint_upper)
                self.engine.step(target)
            rests = mask & self.rests_within(kind.palm_distance)
            if kind.on_table:
                rests = rests & (self.gap() < LAID_GAP)
            ahead = env.uniform(0.0, 1.0, 1) * kind.closing
            self.keep(kind.name, rests, target + ahead * (start - target))
        return target

    def spread_objects(self, share):
        """Move objects that lie on the table a share of the way to where an original episode could begin.

        With two arms, that is on the side where they lie.
        """
        env = self.env
        start = env.object_start + env.uniform(-1.0, 1.0, 3) * env.start_range
        qpos = self.engine.qpos.clone()
        place = slice(env.num_joints, env.num_joints + 2)
        start[:, 0] += env.start_side * qpos[:, env.num_joints].sign()
        qpos[:, place] += share * (start[:, :2] - qpos[:, place])
        self.engine.set_state(self.gap() < LAID_GAP, qpos, torch.zeros_like(self.engine.qvel))

    def keep(self, name, mask, target):
        """Add the present states of mask (N,) bool to those held, with target (N, J) rad."""
        self.held_states.add(name, mask, self.engine.qpos, target)

    # ---------------------------------------------------------------- measurements

    def rests_within(self, distance):
        """Whether the object is within `distance` (m) of the palm and hardly moves (N,) bool."""
        slow = self.engine.body_linvel[:, OBJECT].norm(dim=1) < REST_SPEED
        return (self.palm_distance() < distance) & slow & ~self.engine.broken

    def gap(self):
        """Between the table and the object's lowest corner (N,) m."""
        height = self.engine.body_pos[:, OBJECT, 2]
        lowest = height - half_height(self.engine.body_quat[:, OBJECT], self.env.object_size)
        return lowest - scene.TABLE_TOP

    def palm_centre(self):
        """Of the robot that grasps (N, 3) m."""
        return self.of_robot(self.env.palm_centres())

    def palm_distance(self):
        """From the centre of that palm to the object's (N,) m."""
        return self.of_robot(self.palm_distances())

    def fingertips(self):
        """Of the robot that grasps (N, 4, 3) m."""
        return self.of_robot(self.env.fingertips().unflatten(1, (self.env.num_robots, FINGERS)))

    def palm_distances(self):
        """From the palms' centres to the object's (N, M) m."""
        return (self.engine.body_pos[:, OBJECT, None] - self.env.palm_centres()).norm(dim=2)

    # ---------------------------------------------------------------- the robot that grasps

    def of_robot(self, values):
        """Its part (N, ...) of values (N, M, ...)."""
        return values[self.worlds, self.robot]

    def joints_of(self, values):
        """Its part (N, R) of values (N, J)."""
        return self.of_robot(values.unflatten(1, (self.env.num_robots, JOINTS_PER_ROBOT)))

    def with_joints(self, values, joints):
        """values (N, J) with its part replaced by joints (N, R)."""
        parts = values.unflatten(1, (self.env.num_robots, JOINTS_PER_ROBOT)).clone()
        parts[self.worlds, self.robot] = joints
        return parts.flatten(1)
