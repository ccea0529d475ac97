"""AllegroKuka with held starts, ours: in training many goals begin with the object in the hand or beneath it.

Throwing the object is rewarded at once, holding it only once the policy can hold it: these starts show it what holding
is worth. Evaluation plays the original starts. Here are the kinds of start, the curriculum that chooses among them, and
the mixin that begins goals with them; allegro_kuka_grasp_search.py finds the held states, and all else is in
allegro_kuka.py. Shape letters as there.
"""

from typing import NamedTuple, Optional, Tuple

import torch

from envs.models import allegro_kuka_scene as scene
from envs.rotations import conjugate, multiply, rotate, wrap_angle
from envs.tasks.allegro_kuka import (
    FINGERS,
    NEAR_FACTOR,
    OBJECT,
    AllegroKukaRegrasping,
    AllegroKukaReorientation,
    AllegroKukaThrow,
)
from envs.tasks.allegro_kuka_grasp_search import GraspSearch, HeldStates
from envs.tasks.allegro_kuka_relative_targets import RelativeHandTargets
from envs.tasks.allegro_kuka_two_arms import AllegroKukaTwoArmsRegrasping

UNSOLVED = 0.002  # added to shares in weights, so that kinds that were never solved are still tried
NEXT = 0.1  # how much of the share of the kind before is added, so that a kind is tried once that one is solved
RECENT = 500.0  # goals over which successes are averaged
BACK_RANGE = 1.0 / 3.0  # a robot that is moved back is put between back_to and back_to + BACK_RANGE of the way
PATIENCE = 200  # control steps since a goal was set, after which a training episode ends
# m by which the distance of the nearest fingertip may exceed the smallest so far. Beyond that a training episode ends,
# unless a thrown object is in flight
DROPPED = 0.2
GRAVITY = 9.81  # m/s^2
AT_REST = 0.1  # m/s, below which a thrown object is not in flight
# Steps near a goal for a success in Reorientation's training: if one is enough, no policy learns to hold the object
HOLDING_STEPS = 30
DROP_HEIGHT = 0.3  # m of a held object's centre above the goal in a bucket beneath it; the rim is halfway
RIM_HEIGHT = 0.2  # m above the table of the rim of a bucket beside it, as high as an object counts as lifted
BUCKET_CLEARANCE = 0.05  # m between a bucket that is brought nearer and the robot, or the table that it is beside
SHOULDER_HEIGHT = 0.34  # m of the arm's second joint above its base
NUM_PLACES = 32  # that are drawn for a bucket at a given distance from the shoulder


class Start(NamedTuple):
    """A kind of start: how a goal may begin in training."""

    name: str
    factor: float = 1.0  # of its weight; highest for what evaluations begin with
    first: bool = True  # whether an episode's first goal may begin so
    later: bool = True  # whether the goal after a success may
    held: str = ""  # the kind of held states that it is one of
    lifted: bool = False  # whether the object counts as lifted, without the bonus
    way_left: Tuple[float, float] = (1.0, 1.0)  # range from which the remaining share of the way to the goal is drawn
    # range of a measure of the goal, which `adjust_goal` gives it; None: as drawn. In Reorientation, how far the turn
    # to it carries the keypoints, in success distances; in Throw, the bucket's distance from the arm's shoulder, m;
    # with two arms, the distance from the middle of the table along x, m, on the side of the arm that holds the object
    measure: Optional[Tuple[float, float]] = None
    back_to: float = 1.0  # where the robot is put on the way from a start pose, 0, to where it was, 1
    after: str = ""  # the kind that is learned before it, if not the one above it in the table


# From the task's end back to its beginning. How the held ones come about: allegro_kuka_grasp_search.py
STARTS = (
    Start("high", held="high", lifted=True, way_left=(0.0, 1.0)),  # the object in the closed hand, in the air
    Start("low", held="low"),  # in the closed hand, at the table
    Start("ajar", held="ajar"),  # between fingers opened by up to a third
    Start("half_open", held="half_open"),  # by up to two thirds
    Start("open", held="open"),  # by more
    Start("near", held="near"),  # beneath the open hand, which is in the first third of the way to its usual pose
    Start("halfway", held="halfway"),  # in the second third
    Start("far", held="far"),  # in the last third
    Start("original", later=False, factor=3.0),  # as in the original task
    Start("home", first=False, back_to=0.0),  # the object on the table again, the robot near a start pose
    Start("midway", first=False, back_to=1.0 / 3.0, factor=0.2),  # farther from it
    Start("away", first=False, back_to=2.0 / 3.0, factor=0.2),  # nearly where it was
    Start("next", first=False, factor=0.15),  # where it was, as in the original task
)
# Of Throw, where a start is harder the farther away the bucket is. A number in a name is the largest share of the way
# to the goal that is left, in percent, or the bucket's largest distance from the shoulder. Far throws are learned with
# objects held high, lifting with those at the table. Neither waits for the other: if objects at the table had to be
# thrown far, too, few goals would be reached, and the kinds from which objects are rarely lifted would hardly be tried
THROW_STARTS = (
    Start("high_20", held="high", lifted=True, way_left=(0.0, 0.2)),  # mostly above the bucket; letting go is enough
    Start("high_40", held="high", lifted=True, way_left=(0.2, 0.4)),
    Start("high_100cm", held="high", lifted=True, measure=(0.6, 1.0)),
    Start("high_110cm", held="high", lifted=True, measure=(1.0, 1.1)),
    Start("high_120cm", held="high", lifted=True, measure=(1.1, 1.2)),
    Start("high_130cm", held="high", lifted=True, measure=(1.2, 1.3)),
    Start("high_140cm", held="high", lifted=True, measure=(1.3, 1.4)),
    Start("high_160cm", held="high", lifted=True, measure=(1.4, 1.6)),
    Start("high", held="high", lifted=True),
    STARTS[1]._replace(way_left=(0.0, 0.2), after="high_20"),
    *(start._replace(way_left=(0.0, 0.2)) for start in STARTS[2:] if start.held),
    *(start for start in STARTS if not start.held),
)
# Of Reorientation, where the object stays in the hand after a success. In the right place, an object need not be turned
# if the turn to its goal would carry each keypoint less far than the success distance. The number in a name is the
# upper end of `measure`, in percent. Turning is learned with objects held high, lifting with those at the table, and
# neither waits for the other, as in Throw
REORIENTATION_STARTS = (
    Start("high_50", later=False, held="high", lifted=True, way_left=(0.0, 0.4), measure=(0.0, 0.5)),
    Start("high_100", later=False, held="high", lifted=True, way_left=(0.0, 1.0), measure=(0.5, 1.0)),
    Start("high_125", later=False, held="high", lifted=True, way_left=(0.0, 1.0), measure=(1.0, 1.25)),
    Start("high_150", later=False, held="high", lifted=True, way_left=(0.0, 1.0), measure=(1.25, 1.5)),
    Start("high", later=False, held="high", lifted=True, way_left=(0.0, 1.0)),
    STARTS[1]._replace(later=False, measure=(0.0, 0.5), after="high_50"),
    *(start._replace(later=False, measure=(0.0, 0.5)) for start in STARTS[2:] if start.held),
    Start("original", later=False, factor=3.0),
    Start("next_100", first=False, measure=(0.0, 1.0), after="high_100"),
    Start("next_125", first=False, measure=(1.0, 1.25)),
    Start("next_150", first=False, measure=(1.25, 1.5)),
    Start("next", first=False),
)
# Of two arms. Half of the goals are drawn on the side of the arm that does not hold the object, out of reach of the one
# that does. As long as no object is handed over, these goals fail, and the curriculum would stay with that kind. From
# held starts, goals are therefore on the holding arm's side, as far from the table's middle as in the original task
TWO_ARMS_STARTS = tuple(start._replace(measure=(0.55, 0.95)) if start.held else start for start in STARTS)


class StartCurriculum:
    """Draws the kinds of start with which goals begin: what is within reach first, then what is still left to learn.

    A kind's weight is (p + NEXT q + UNSOLVED) (1 - p)^4 times its factor, for the share p of its recent goals that were
    reached, and the same share q of the kind that is learned before it, if there is one.

    Some goals begin with the object near enough to them, so that a hand that stands still reaches them. They count in
    p, but not in `moved_share`, the share of the others that were reached, which is for the log alone.
    """

    def __init__(self, starts, num_envs, device):
        self.factor = torch.tensor([start.factor for start in starts], device=device)
        names = [start.name for start in starts]
        before = [names.index(start.after) if start.after else i - 1 for i, start in enumerate(starts)]
        self.before = torch.tensor(before, device=device)  # the kind that is learned before; -1: none
        self.solved_share = torch.full((len(starts),), 0.5, device=device)
        self.moved_share = self.solved_share.clone()
        self.began_near = torch.zeros(num_envs, dtype=torch.bool, device=device)  # whether the present goal did

    def record(self, kind, ended, reached):
        """Count the goals of ended (N,) bool, of which reached (N,) bool. kind (N,): that they began with."""
        self.solved_share = count_in(self.solved_share, kind, ended, reached)
        self.moved_share = count_in(self.moved_share, kind, ended & ~self.began_near, reached)

    def weights(self):
        before = self.solved_share[self.before].masked_fill(self.before < 0, 0.0)
        return (self.solved_share + NEXT * before + UNSOLVED) * (1.0 - self.solved_share).pow(4) * self.factor

    def draw(self, possible, uniform):
        """A kind for every environment (N,) among those of possible (N, kinds) bool; uniform (N, kinds) in (0, 1)."""
        exponential = uniform.log().neg()  # the largest ratio of weight to exponential numbers is drawn by weight
        return (self.weights() * possible / exponential).argmax(1)

    def state_dict(self):
        return {name: getattr(self, name).clone() for name in ("solved_share", "moved_share", "began_near")}

    def load_state_dict(self, state):
        """Restore what `state_dict` returned."""
        for name, value in state.items():
            getattr(self, name).copy_(value)


def count_in(share, kind, ended, reached):
    """Shares (kinds,) of recent goals that were reached, after those of ended (N,) bool, of which reached (N,) bool."""
    kinds = torch.arange(len(share), device=kind.device)
    ended = ended[:, None] & (kind[:, None] == kinds)
    count = ended.sum(0)
    successes = (ended & reached[:, None]).sum(0)
    return share + (successes - count * share) / (count + RECENT)


class HeldStarts:
    """Mixin for tasks of the family, named before the task: training goals begin with one of `starts`.

    Each environment has held states of its own object, which are found in the first step of a training. They are part
    of the state that is saved. A task may override the table of starts, the search, `begin_with`, `bring_nearer`,
    `adjust_goal` and `in_flight`.
    """

    starts = STARTS
    search = GraspSearch
    cpu_note = ""

    def __init__(self, num_envs, device, seed, engine="mujoco"):
        super().__init__(num_envs, device, seed, engine)
        names = [start.name for start in self.starts]
        held = list(dict.fromkeys(start.held for start in self.starts if start.held))
        num_qpos = self.engine.qpos.shape[1]
        self.held_states = HeldStates(held, num_envs, num_qpos, self.num_joints, self.device)
        self.start_curriculum = StartCurriculum(self.starts, num_envs, self.device)
        self.kind = self.zeros(dtype=torch.long).fill_(names.index("original"))  # of start, index into `starts`
        # the table as tensors, (kinds,)
        self.may_be_first = self.constant([start.first for start in self.starts], torch.bool)
        self.may_be_later = self.constant([start.later for start in self.starts], torch.bool)
        self.is_held = self.constant([bool(start.held) for start in self.starts], torch.bool)
        self.is_lifted = self.constant([start.lifted for start in self.starts], torch.bool)
        self.way_left = self.constant([start.way_left for start in self.starts])
        self.is_adjusted = self.constant([start.measure is not None for start in self.starts], torch.bool)
        self.measure = self.constant([start.measure or (0.0, 0.0) for start in self.starts])
        self.back_to = self.constant([start.back_to for start in self.starts])
        held_index = [held.index(start.held) if start.held else 0 for start in self.starts]
        self.held_index = self.constant(held_index, torch.long)  # of a kind among the held states

    def reset(self):
        super().reset()
        if self.training:  # goals' time ends earlier
            self.episode_step.mul_(PATIENCE).div_(self.max_episode_steps, rounding_mode="floor")
        return self.observe()

    def advance(self, action):
        if self.training and not self.held_states.searched:  # not in reset: a resumed run has its states by now
            self.find_held_states()
        return super().advance(action)

    def find_held_states(self):
        """Search for held states; the engine is then as before."""
        before = self.engine.state_dict()
        self.search(self, self.held_states).run()
        self.engine.load_state_dict(before)
        self.held_states.searched = True

    def set_goal(self, mask):
        reached = self.near_steps >= self.success_steps
        super().set_goal(mask)
        if self.training:
            ended = mask & (self.episode_length > 0) & ~self.shortened
            self.start_curriculum.record(self.kind, ended, reached)
            uniform = self.uniform(1e-6, 1.0 - 1e-6, len(self.starts))
            self.begin_with(mask, self.start_curriculum.draw(self.possible_starts(), uniform))

    def possible_starts(self):
        """Which kinds each environment's next goal may begin with (N, kinds) bool."""
        later = self.successes[:, None] > 0
        in_turn = torch.where(later, self.may_be_later, self.may_be_first)
        has_states = (self.held_states.count > 0)[:, self.held_index]
        return in_turn & (has_states | ~self.is_held)

    def begin_with(self, mask, kind):
        """Begin the goals of mask (N,) bool with starts of `kind` (N,)."""
        self.kind = torch.where(mask, kind, self.kind)
        back_to = self.back_to[kind]
        self.move_back(mask & (back_to < 1.0), back_to)
        held = mask & self.is_held[kind]
        qpos, target = self.held_states.draw(self.held_index[kind], self.uniform(0.0, 1.0))
        self.engine.set_state(held, qpos, torch.zeros_like(self.engine.qvel))
        self.target = torch.where(held[:, None], target, self.target)
        self.lifted = torch.where(held, self.is_lifted[kind], self.lifted)
        least, most = self.measure[kind].unbind(1)
        self.adjust_goal(mask & self.is_adjusted[kind], least + (most - least) * self.uniform(0.0, 1.0))
        least, most = self.way_left[kind].unbind(1)
        self.bring_nearer(mask & (least < 1.0), least + (most - least) * self.uniform(0.0, 1.0))
        self.closest_fingertip = torch.where(held[:, None], self.fingertip_distance(), self.closest_fingertip)
        keypoint_distance = self.keypoint_distance()
        self.closest_keypoint = torch.where(mask, keypoint_distance, self.closest_keypoint)
        near = keypoint_distance <= NEAR_FACTOR * self.tolerance
        self.start_curriculum.began_near = torch.where(mask, near, self.start_curriculum.began_near)

    def move_back(self, mask, share):
        """Put the objects of mask (N,) bool on the table and the robots on the way from a start pose to where they are.

        share (N,): of the way, at least; at most BACK_RANGE more.
        """
        share = share[:, None] + self.uniform(0.0, BACK_RANGE, 1)
        start = self.draw_pose()
        joints = slice(self.num_joints)
        qpos = self.engine.qpos.clone()
        qvel = self.engine.qvel.clone()
        qpos[:, joints] = start.lerp(qpos[:, joints], share)
        qvel[:, joints] *= share
        self.target = torch.where(mask[:, None], start.lerp(self.target, share), self.target)
        self.place_object(mask, qpos, qvel)

    def bring_nearer(self, mask, share):
        """Move the goals of mask (N,) bool towards the object, until share (N,) of the way is left."""
        nearer = self.engine.body_pos[:, OBJECT].lerp(self.goal[:, :3], share[:, None])
        self.goal[:, :3] = torch.where(mask[:, None], nearer, self.goal[:, :3])
        self.engine.set_mocap(mask, self.goal[:, None])

    def adjust_goal(self, mask, measure):
        """Give the goals of mask (N,) bool the measure (N,) that Start.measure means, if any kind of start has one."""

    def turn_distance(self):
        """How far the turn to the goal alone carries the farthest keypoint (N,) m."""
        of_object = rotate(self.engine.body_quat[:, None, OBJECT], self.keypoint_offsets)
        of_goal = rotate(self.goal[:, None, 3:], self.keypoint_offsets)
        return (of_goal - of_object).norm(dim=2).amax(1)

    def lost(self, near, fingertip_distance):
        farther = fingertip_distance.amin(1) - self.closest_fingertip.amin(1)
        dropped = (farther > DROPPED) & ~self.in_flight(near)
        return super().lost(near, fingertip_distance) | (self.training & dropped)

    def in_flight(self, near):
        """Whether an object far from the hand has not been dropped (N,) bool; only in Throw. near (N,) bool."""
        return torch.zeros_like(near)

    def given_up(self):
        return self.training & (self.episode_step >= PATIENCE)

    def metrics(self):
        metrics = dict(super().metrics())
        for start, share in zip(self.starts, self.start_curriculum.solved_share):
            metrics[f"solved_from_{start.name}"] = share
        for start, share in zip(self.starts, self.start_curriculum.moved_share):
            if start.way_left[0] < 1.0:  # its goals are brought nearer
                metrics[f"moved_from_{start.name}"] = share
        return metrics


class AllegroKukaRegraspingHeldStarts(HeldStarts, RelativeHandTargets, AllegroKukaRegrasping):
    """AllegroKukaRegrasping with held starts and relative hand targets."""


class GoalSeenOnceLifted:
    """Mixin for tasks with held starts: the goal is not observed until the object has been lifted.

    Fetching is learned from starts whose goals are easier than the original ones. A policy that sees the goal from the
    beginning fetches badly for others.
    """

    def seen_of_goal(self, values):
        return values * self.lifted[:, None]


class AllegroKukaThrowHeldStarts(GoalSeenOnceLifted, HeldStarts, RelativeHandTargets, AllegroKukaThrow):
    """AllegroKukaThrow with held starts and relative hand targets.

    The bucket is observed once the object has been lifted. Where an object is held high, either the arm is swung
    towards the bucket, which is moved to meet it below the object, or the bucket is put at a given distance from the
    arm's shoulder. For objects at the table, it is moved towards the table.
    """

    starts = THROW_STARTS

    def __init__(self, num_envs, device, seed, engine="mujoco"):
        super().__init__(num_envs, device, seed, engine)
        lower = scene.BUCKET_FLOOR - scene.BUCKET_FLOOR_DEPTH
        upper = scene.BUCKET_RIM
        self.bucket_centre = self.constant((0.0, 0.0, (lower + upper) / 2.0 - scene.BUCKET_GOAL))  # from the goal, m
        radius = scene.BUCKET_RIM_OUTER_RADIUS
        self.bucket_half = self.constant((radius, radius, (upper - lower) / 2.0))  # half edges of a box around it, m
        self.upright = self.constant((1.0, 0.0, 0.0, 0.0))
        self.table_centre = self.constant(scene.TABLE_POS)
        self.table_half = self.constant([edge / 2.0 for edge in self.layout.table_size])
        self.beside_table = self.layout.table_size[0] / 2.0 + radius + BUCKET_CLEARANCE  # m from the middle, along x
        self.goal_beside_table = scene.TABLE_TOP + RIM_HEIGHT - scene.BUCKET_RIM + scene.BUCKET_GOAL  # m, height
        self.base = self.constant(self.layout.positions[0])
        self.drop_offset = self.constant((0.0, 0.0, DROP_HEIGHT))
        x, y, z = self.layout.positions[0]
        self.shoulder = self.constant((x, y, z + SHOULDER_HEIGHT))
        self.rim_of_goal = self.constant((0.0, 0.0, scene.BUCKET_RIM - scene.BUCKET_GOAL))  # from the goal, m

    def in_flight(self, near):
        velocity = self.engine.body_linvel[:, OBJECT]
        rise = velocity[:, 2].clamp(min=0.0).square() / (2.0 * GRAVITY)
        high_enough = self.engine.body_pos[:, OBJECT, 2] + rise > self.goal[:, 2]
        return near | (high_enough & (velocity.norm(dim=1) > AT_REST))

    def bring_nearer(self, mask, share):
        """Move the buckets of mask (N,) bool nearer, until share (N,) of the way is left.

        Arms that hold an object high are swung towards their buckets until the same share of their way is left, and the
        buckets are moved towards places below the objects. For objects at the table, they are moved towards places
        beside the table. Where the arm would leave its joint limits, or the bucket touch the robot, the object or the
        table, nothing moves.
        """
        goal = self.goal[:, :3]
        position = self.engine.body_pos[:, OBJECT]
        angle = (1.0 - share) * bearing_difference(position - self.base, goal - self.base)
        qpos, target = self.swing(angle * self.lifted)
        beneath = qpos[:, self.num_joints : self.num_joints + 3] - self.drop_offset
        beside = position.clone()
        beside[:, 0] = goal[:, 0].sign() * self.beside_table
        beside[:, 2] = self.goal_beside_table
        nearest = torch.where(self.lifted[:, None], beneath, beside)
        nearer = nearest.lerp(goal, share[:, None])
        in_reach = (self.joint_lower[0] < target[:, 0]) & (target[:, 0] < self.joint_upper[0])
        moved = mask & in_reach
        candidates = moved.nonzero().squeeze(1)  # few: as in draw_clear_start, distances for all would take longer
        radius = self.object_size[candidates].norm(dim=1) / 2.0
        moved[candidates] = self.bucket_is_clear(qpos[candidates], radius, nearer[candidates])
        rows = moved[:, None]
        self.engine.set_state(moved, qpos, self.engine.qvel)
        self.target = torch.where(rows, target, self.target)
        self.goal[:, :3] = torch.where(rows, nearer, goal)
        self.engine.set_mocap(moved, self.goal[:, None])

    def adjust_goal(self, mask, measure):
        """Put the buckets of mask (N,) bool where the shoulder is `measure` (N,) m from the middle of their rims.

        They stay on their side of the table. Of NUM_PLACES places that are drawn as those of the original task are, the
        one is taken whose distance is nearest to `measure`.
        """
        drawn = self.uniform(self.goal_low, self.goal_high, NUM_PLACES, 3)
        drawn[:, :, 0] *= self.goal[:, None, 0].sign()
        drawn[:, :, 2] += scene.BUCKET_GOAL
        distance = (drawn + self.rim_of_goal - self.shoulder).norm(dim=2)
        best = (distance - measure[:, None]).abs().argmin(1)
        goal = drawn.take_along_dim(best[:, None, None], 1).squeeze(1)
        self.goal[:, :3] = torch.where(mask[:, None], goal, self.goal[:, :3])
        self.engine.set_mocap(mask, self.goal[:, None])

    def swing(self, angle):
        """The present qpos and targets (N, J) rad after a turn of arm, hand and object about the base's vertical axis.

        angle (N,) rad
        """
        turn = self.zeros(4)
        turn[:, 0] = (angle / 2.0).cos()
        turn[:, 3] = (angle / 2.0).sin()
        position = self.base + rotate(turn, self.engine.body_pos[:, OBJECT] - self.base)
        quaternion = multiply(turn, self.engine.body_quat[:, OBJECT])
        joints = self.engine.qpos[:, : self.num_joints].clone()
        joints[:, 0] += angle  # the first joint turns about this axis
        target = self.target.clone()
        target[:, 0] += angle
        return torch.cat([joints, position, quaternion], 1), target

    def bucket_is_clear(self, qpos, object_radius, goal):
        """Whether buckets at `goal` (R, 3) m would be clear of table, robots and objects: (R,) bool.

        qpos (R, nq); object_radius (R,) m: of a ball around each object.
        """
        centre = goal + self.bucket_centre
        size = len(goal), -1
        shapes = self.clearance.shapes(qpos[:, : self.num_joints])
        distance = self.clearance.distance(shapes, centre, self.upright.expand(*size), self.bucket_half.expand(*size))
        in_table = ((centre - self.table_centre).abs() < self.table_half + self.bucket_half).all(1)
        position = qpos[:, self.num_joints : self.num_joints + 3]
        to_object = ((position - centre).abs() - self.bucket_half).clamp(min=0.0).norm(dim=1)
        return (distance > BUCKET_CLEARANCE) & (to_object > object_radius) & ~in_table


def bearing_difference(start, end):
    """The angle (N,) in [-pi, pi) about the z axis from the vectors start (N, 3) to end (N, 3)."""
    return wrap_angle(torch.atan2(end[:, 1], end[:, 0]) - torch.atan2(start[:, 1], start[:, 0]))


def turn_as_far(start, end, share):
    """The rotation (N, 4) that carries every point share (N,) times as far from start (N, 4) as end (N, 4) does.

    It is on the way from start to end, or beyond end, but at most half a turn from start, which may be less far. A
    rotation by the angle a carries a point 2 r sin(a / 2) far, where r is its distance from the axis.
    """
    cosine = (start * end).sum(1, keepdim=True)  # of half the angle
    end = torch.where(cosine < 0.0, -end, end)  # the shorter way
    across = end - cosine.abs() * start  # as long as the sine of half the angle
    sine = (share * across.norm(dim=1)).clamp(max=1.0)[:, None]  # after the turn
    return (1.0 - sine.square()).sqrt() * start + sine * torch.nn.functional.normalize(across, dim=1)


class AllegroKukaReorientationHeldStarts(GoalSeenOnceLifted, HeldStarts, RelativeHandTargets, AllegroKukaReorientation):
    """AllegroKukaReorientation with held starts and relative hand targets. In training, goals need HOLDING_STEPS.

    The goal is observed once the object has been lifted. The observation ends with the turn to it (3), see `observe`.
    """

    starts = REORIENTATION_STARTS

    def __init__(self, num_envs, device, seed, engine="mujoco"):
        super().__init__(num_envs, device, seed, engine)
        self.num_obs += 3

    def observe(self):
        """The others' observation and the turn from the object to its goal (N, 3), in the axes of the palm's body.

        The vector is along the turn's axis and 2 sin(angle / 2) long. The keypoints tell the turn, too, but from them
        alone a small network learns to move the object and not to turn it.
        """
        turn = multiply(self.goal[:, 3:], conjugate(self.engine.body_quat[:, OBJECT]))
        shorter_way = torch.where(turn[:, :1] < 0.0, -turn[:, 1:], turn[:, 1:])
        in_palm = rotate(conjugate(self.engine.body_quat[:, 0]), 2.0 * shorter_way)
        return torch.cat([super().observe(), self.seen_of_goal(in_palm)], 1)

    def adjust_goal(self, mask, measure):
        """Make the turns to the goals of mask (N,) bool carry the keypoints `measure` (N,) success distances far.

        The turn keeps its axis. For some small objects, half a turn is not as far. Their goals are half a turn away.
        """
        distance = NEAR_FACTOR * self.tolerance * measure
        share = distance / self.turn_distance().clamp(min=1e-6)
        turned = turn_as_far(self.engine.body_quat[:, OBJECT], self.goal[:, 3:], share)
        self.goal[:, 3:] = torch.where(mask[:, None], turned, self.goal[:, 3:])
        self.engine.set_mocap(mask, self.goal[:, None])

    @property
    def success_steps(self):
        return HOLDING_STEPS if self.training else AllegroKukaReorientation.success_steps


class AllegroKukaTwoArmsRegraspingHeldStarts(HeldStarts, RelativeHandTargets, AllegroKukaTwoArmsRegrasping):
    """AllegroKukaTwoArmsRegrasping with held starts and relative targets. Either arm may hold the object.

    In training, the hand that is farther from the object when a goal begins is rewarded only once it comes closer than
    the nearer hand was. Otherwise it would earn nearly as much for its way there, more than a metre, as for a lift.
    """

    starts = TWO_ARMS_STARTS

    def adjust_goal(self, mask, measure):
        """Put the goals of mask (N,) bool on the side where the object is, `measure` (N,) m from the table's middle."""
        goal_x = measure * self.engine.body_pos[:, OBJECT, 0].sign()
        self.goal[:, 0] = torch.where(mask, goal_x, self.goal[:, 0])
        self.engine.set_mocap(mask, self.goal[:, None])

    def begin_with(self, mask, kind):
        super().begin_with(mask, kind)
        nearest = self.closest_fingertip.amin(1)
        of_hands = self.closest_fingertip.unflatten(1, (self.num_robots, FINGERS))
        waits = mask[:, None] & (of_hands.amin(2) > nearest[:, None])
        self.closest_fingertip = torch.where(waits[:, :, None], nearest[:, None, None], of_hands).flatten(1)
