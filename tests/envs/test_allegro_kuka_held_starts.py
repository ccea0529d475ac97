"""Held starts: where goals of a training begin with the object in the hand, what that pays, and what stays."""

import io
import math
from functools import lru_cache

import mujoco
import pytest
import torch

import envs
from benchmarks.scripts import starts
from envs.models import allegro_kuka_scene as scene
from envs.rotations import multiply, rotate
from envs.tasks import allegro_kuka as task
from envs.tasks.allegro_kuka_grasp_search import HAND_OPEN, LAID_GAP, LEAVING, OPENING, GraspSearch
from envs.tasks.allegro_kuka_held_starts import (
    DROP_HEIGHT,
    PATIENCE,
    REORIENTATION_STARTS,
    STARTS,
    THROW_STARTS,
    AllegroKukaThrowHeldStarts,
    HeldStarts,
    StartCurriculum,
    turn_as_far,
)
from tests.envs.helpers import turn

REGRASPING = "AllegroKukaRegraspingHeldStarts"
REORIENTATION = "AllegroKukaReorientationHeldStarts"
THROW = "AllegroKukaThrowHeldStarts"
TWO_ARMS = "AllegroKukaTwoArmsRegraspingHeldStarts"
EVERYWHERE = torch.ones(24, dtype=torch.bool)
NAMES = [start.name for start in STARTS]
HELD = [start.name for start in STARTS if start.held]
# Shares p of goals reached and, worked out by hand, the kinds' weights: (p + 0.1 q + 0.002) (1 - p)^4 times the kind's
# factor, where q is the share of the kind before
SHARES = torch.tensor([0.0, 0.3, 0.1, 0.0, 0.9, 0.9, 0.9, 0.9, 0.2, 0.2, 0.2, 0.25, 0.3])
HELD_WEIGHTS = [0.002, 0.0725102, 0.0866052, 0.012, 9.02e-5, 9.92e-5, 9.92e-5, 9.92e-5]
FIRST_WEIGHTS = [0.3588096]
LATER_WEIGHTS = [0.0909312, 0.01818624, 0.0172125, 0.011776905]


class RecordedSearch(GraspSearch):
    """Writes down what it offers to the bank: name, mask, targets kept, targets of the last step, gap to the table.

    And which objects it moves on the table: share of the way, mask, places before and after.
    """

    def __init__(self, env, held_states):
        super().__init__(env, held_states)
        self.kept = env.kept = []
        self.spread = env.spread = []
        step = self.engine.step

        def recorded(target):
            self.last = target
            step(target)

        self.engine.step = recorded

    def keep(self, name, mask, target):
        self.kept.append((name, mask, target.clone(), self.last.clone(), self.gap()))
        super().keep(name, mask, target)

    def spread_objects(self, share):
        laid = self.gap() < LAID_GAP
        before = self.engine.qpos[:, 23:25].clone()
        super().spread_objects(share)
        self.spread.append((share, laid, before, self.engine.qpos[:, 23:25].clone()))


@lru_cache(maxsize=None)
def searched(env_id):
    """The state of 24 environments that have searched, what was offered to the bank and what was moved."""
    env = envs.make(env_id, 24, training=True)
    env.search = RecordedSearch
    env.find_held_states()
    return env.state_dict(), env.kept, env.spread


def make(start="high", env_id=REGRASPING):
    """Environments of a training, resumed, that begin with `start`, clocks at 0, and which (24,) have such states."""
    env = envs.make(env_id, 24, training=True)
    env.load_state_dict(searched(env_id)[0])
    env.reset()
    kind = kind_of(env, start)
    has_some = env.held_states.has(env.starts[kind].held)
    env.begin_with(EVERYWHERE, torch.where(has_some, kind, kind_of(env, "original")))
    env.episode_step.zero_()
    return env, has_some


def kind_of(env, start):
    """The index of the kind of start that is called `start` in the table of env's task."""
    return [each.name for each in env.starts].index(start)


def measured(env):
    """Palm and object of env as the search sees them. With two arms, the palm is the one nearer to the object."""
    search = GraspSearch(env, env.held_states)
    search.robot = search.palm_distances().argmin(1)
    return search


def nearer_and_other_hands(env, values):
    """Of values (24, F) of fingertips those of the hand nearer to the object (24, 4), and the other's, if there is one.

    The nearer hand is the one with the nearest fingertip.
    """
    nearest_first = env.fingertip_distance().unflatten(1, (env.num_robots, 4)).amin(2).argsort(1)
    return values.unflatten(1, (env.num_robots, 4)).take_along_dim(nearest_first[:, :, None], 1).unbind(1)


# ---------------------------------------------------------------- the search


def test_the_first_step_searches_and_is_the_same_without_a_search():
    env, unsearched = (envs.make(REGRASPING, 24, training=True) for _ in range(2))
    unsearched.held_states.searched = True
    for each in (env, unsearched):
        each.reset()
        each.push = lambda: None  # random
    assert all(map(torch.equal, *(each.step(torch.full((24, 23), 0.5))[1:4] for each in (env, unsearched))))
    assert env.held_states.count.any()
    assert not unsearched.held_states.count.any()


def test_most_objects_have_held_states_and_the_first_time_limits_are_spread():
    env, _ = make()
    assert torch.equal(env.reset(), env.observe())  # which sees the clock
    assert env.episode_step.max() < PATIENCE
    assert len(env.episode_step.unique()) == 24
    assert env.shortened.sum() == 23
    has_states = env.held_states.count > 0
    assert has_states.any(0).all()
    assert has_states.any(1).float().mean() > 0.8
    assert env.held_states.count.max() <= 4


def test_targets_of_a_hand_that_opens_lead_back_to_the_closed_hand():
    """A random share of the way, as an action of 0 then goes it by itself; those of a hand that leaves do not."""
    opened = torch.tensor(HAND_OPEN)
    offered = searched(REGRASPING)[1]
    assert [name for name, *_ in offered] == ["high"] * 20 + 2 * HELD[1:]
    parts = {kind.name: part for kinds in (OPENING, LEAVING) for part, kind in enumerate(kinds)}
    for name, mask, kept, last, gap in offered:
        if name not in ("high", "ajar", "low"):
            assert (gap[mask] < LAID_GAP).all()
        if name == "low":
            shut = kept
        if name in ("ajar", "half_open", "open"):
            back = shut - last
            share = ((kept - last) * back).sum(1, True) / back.square().sum(1, True)
            torch.testing.assert_close(kept, last + share * back)
            assert 0.0 <= share.min() < 0.3
            assert 0.7 < share.max() <= 1.0
            way = (opened - shut[:, 7:])[:, :4]  # of the first finger
            third = 3.0 * ((last - shut)[:, 7:11] * way).sum(1) / way.square().sum(1)
            assert parts[name] - 1e-4 <= third.min()
            assert third.max() <= parts[name] + 1.0 + 1e-4
        else:
            assert torch.equal(kept, last)


def test_objects_are_moved_on_the_way_to_where_original_episodes_begin():
    moved = searched(REGRASPING)[2]
    assert [share for share, *_ in moved] == [0.5, 1.0, 0.5, 1.0]
    for share, laid, before, after in moved:
        assert laid.sum() > 12
        assert torch.equal(after[~laid], before[~laid])
        start = (before + (after - before) / share)[laid] - torch.tensor(scene.OBJECT_START[:2])
        assert (start.abs() < 0.1 + 1e-5).all()
        assert start.abs().max() > 0.08


def test_a_search_that_finds_nothing_is_not_repeated_when_the_run_is_resumed():
    searches = []

    class Nothing(GraspSearch):
        def run(self):
            searches.append(self)

    envs_made = [envs.make(REGRASPING, 4, seed=seed, training=True) for seed in (1, 2)]
    for env in envs_made:
        env.search = Nothing
        env.reset()
    first, second = envs_made
    first.step(torch.zeros(4, 23))
    assert len(searches) == 1
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.step(torch.zeros(4, 23))[0], second.step(torch.zeros(4, 23))[0])
    assert len(searches) == 1


# ---------------------------------------------------------------- starts


@pytest.mark.parametrize("env_id", [REGRASPING, REORIENTATION, TWO_ARMS])
@pytest.mark.parametrize("start", HELD)
def test_a_goal_begins_with_the_object_in_the_hand_or_beneath_it(start, env_id):
    env, held = make(start, env_id)
    joints = env.num_joints
    most = 0.9 if env_id == TWO_ARMS else 1.0  # a long object hangs over the table's edge and is in a finger's way
    index = HELD.index(start)
    assert torch.equal(env.kind, torch.where(held, kind_of(env, start), kind_of(env, "original")))
    assert not env.engine.qvel[held].any()
    reach = {"high": 0.16, "low": 0.16, "ajar": 0.19, "half_open": 0.19, "open": 0.19}.get(start, 0.4)
    assert (measured(env).palm_distance()[held] < reach).all()
    gap = measured(env).gap()[held]
    if start in ("high", "low", "ajar"):
        assert (gap > -0.005).float().mean() >= most
    else:
        assert (gap < 0.01).all()
    assert (env.target[held, None] == env.held_states.target[held, index]).all(2).any(1).all()
    first = env.num_obs - joints - (3 if env_id == REORIENTATION else 0)
    observed = env.observe()[:, first : first + joints]  # how far targets are ahead
    torch.testing.assert_close(observed, env.target - env.engine.qpos[:, :joints])
    ahead = observed[held].abs().amax(1)
    if start == "open":
        assert (ahead > 0.05).float().mean() > 0.5
    if start in ("near", "halfway", "far"):
        assert (ahead < 0.3).float().mean() >= most  # at rest
    if start == "far":
        place = (env.engine.body_pos[:, task.OBJECT] - env.object_start)[held]
        place[:, 0] -= env.start_side * place[:, 0].sign()
        assert (place[:, :2].abs() < env.start_range[:2] + 0.02).all()
    assert (env.lifted[held] == (start == "high")).all()
    records = nearer_and_other_hands(env, env.closest_fingertip)
    distances = nearer_and_other_hands(env, env.fingertip_distance())
    torch.testing.assert_close(records[0], distances[0])
    torch.testing.assert_close(env.closest_keypoint, env.keypoint_distance())
    assert not env.step(torch.zeros(24, joints))[2].any()


@pytest.mark.parametrize("start", ["high", "far"])
def test_either_arm_holds_the_object_and_the_other_waits_where_an_episode_begins(start):
    env, held = make(start, TWO_ARMS)
    holding = measured(env).robot[held]
    assert 3 <= holding.sum() <= held.sum() - 3
    pose = env.engine.qpos[held, :46].unflatten(1, (2, 23))
    waiting = pose[torch.arange(len(pose)), 1 - holding]
    lower = env.joint_lower[:23]
    upper = env.joint_upper[:23]
    usual = env.joint_default[:23].clamp(lower, upper)
    assert ((waiting - usual).abs() < task.RESET_NOISE * (upper - lower) + 0.05).all()
    side = env.engine.body_pos[held, task.OBJECT, 0]  # the left arm, robot 0, stands where x is negative
    assert torch.equal(holding, (side > 0.0).long())


@pytest.mark.parametrize("start", HELD)
def test_of_two_hands_the_farther_one_is_not_paid_until_it_is_as_near_as_the_other_was(start):
    env, _ = make(start, TWO_ARMS)
    nearer, other = nearer_and_other_hands(env, env.closest_fingertip)
    assert torch.equal(other, nearer.amin(1, keepdim=True).expand(-1, 4))
    _, distance = nearer_and_other_hands(env, env.fingertip_distance())
    assert (distance > other + 0.1).all()


def test_after_a_success_the_hand_is_on_its_way_back():
    env, _ = make("high")
    env.engine.set_state(EVERYWHERE, env.engine.qpos, torch.ones_like(env.engine.qvel))
    before = env.engine.qpos.clone()
    start = env.draw_pose()
    third = torch.arange(24) % 4  # 3: next
    env.target = before[:, :23] + 0.1
    env.draw_pose = lambda: start
    env.begin_with(EVERYWHERE, third + NAMES.index("home"))
    way = before[:, :23] - start
    rest = env.engine.qpos[:, :23] - start
    share = (rest * way).sum(1, True) / way.square().sum(1, True)
    torch.testing.assert_close(rest, share * way)
    torch.testing.assert_close(env.engine.qvel[:, :23], share.expand(-1, 23))
    torch.testing.assert_close(env.target, start + share * (way + 0.1))
    assert torch.equal((3.0 * share[:, 0] + 1e-4).long(), third)
    assert not env.lifted[third < 3].any()
    assert torch.equal(env.engine.qpos[third == 3], before[third == 3])
    torch.testing.assert_close(env.closest_fingertip, env.fingertip_distance())
    torch.testing.assert_close(env.closest_keypoint, env.keypoint_distance())


def test_in_reorientation_a_goal_needs_thirty_steps_and_the_next_one_comes_to_the_object_in_the_hand():
    env, held = make("high", REORIENTATION)
    env.near_steps.fill_(28)
    env.goal = torch.cat([env.engine.body_pos[:, task.OBJECT], env.engine.body_quat[:, task.OBJECT]], 1)
    before = dict(zip(env.reward_names, env.term_sums.T.clone()))["goal"]
    env.step(torch.zeros(24, 23))
    assert not env.successes.any()
    goal = dict(zip(env.reward_names, env.term_sums.T))["goal"] - before
    torch.testing.assert_close(goal[held], torch.full_like(goal[held], 1000.0 / 30.0))
    qpos = env.engine.qpos.clone()
    env.step(torch.zeros(24, 23))
    assert (env.successes[held] == 1.0).all()
    assert (env.engine.qpos - qpos)[held].abs().max() < 0.05  # one step, and nothing was put elsewhere
    env.training = False
    assert env.success_steps == 1


def test_in_reorientation_later_goals_begin_where_the_last_one_was_reached():
    env, held = make("high", REORIENTATION)
    env.successes.fill_(1.0)
    possible = [start.name for start, may_be in zip(env.starts, env.possible_starts().any(0)) if may_be]
    assert possible == ["next_100", "next_125", "next_150", "next"]
    qpos = env.engine.qpos.clone()
    env.closest_fingertip -= 0.01
    closest_fingertip = env.closest_fingertip.clone()
    env.training = False
    env.set_goal(EVERYWHERE)
    env.begin_with(EVERYWHERE, torch.full_like(env.kind, kind_of(env, "next_125")))
    assert torch.equal(env.lifted, held)
    assert torch.equal(env.engine.qpos, qpos)
    assert torch.equal(env.closest_fingertip, closest_fingertip)
    torch.testing.assert_close(env.closest_keypoint, env.keypoint_distance())


def angle_between(a, b):
    """Of the rotation from quaternions a to b (N, 4), which may have opposite signs (N,) rad."""
    return 2.0 * (a * b).sum(1).abs().clamp(max=1.0).acos()


@pytest.mark.parametrize(
    "env_id, start, least, most",
    [
        (REGRASPING, "high", 0.0, 1.0),
        (REORIENTATION, "high_50", 0.0, 0.4),
        (REORIENTATION, "high_125", 0.0, 1.0),
        (TWO_ARMS, "high", 0.0, 1.0),
    ],
)
def test_what_is_held_high_is_lifted_and_its_goal_nearer(env_id, start, least, most):
    env, held = make(start, env_id)
    env.training = False
    env.set_goal(EVERYWHERE)
    goals = []
    env.bring_nearer = lambda mask, share: goals.append(env.goal.clone()) or type(env).bring_nearer(env, mask, share)
    env.begin_with(held, torch.full_like(env.kind, kind_of(env, start)))
    assert torch.equal(env.lifted, held)
    assert (env.engine.body_pos[held, task.OBJECT, 2] > scene.TABLE_TOP + 0.2).all()
    way, whole = (goal[held, :3] - env.engine.body_pos[held, task.OBJECT] for goal in (env.goal, goals[0]))
    share = way.norm(dim=1) / whole.norm(dim=1)
    torch.testing.assert_close(way, share[:, None] * whole)
    assert least < share.min() < (least + most) / 2.0 < share.max() < most
    assert torch.equal(env.goal[~held], goals[0][~held])


@pytest.mark.parametrize("start", HELD)
def test_with_two_arms_goals_of_held_objects_are_on_the_side_of_the_arm_that_holds_them(start):
    env, held = make(start, TWO_ARMS)
    env.training = False
    env.set_goal(EVERYWHERE)
    drawn = env.goal.clone()
    env.bring_nearer = lambda mask, share: None
    env.begin_with(held, torch.full_like(env.kind, kind_of(env, start)))
    side = 2.0 * measured(env).robot[held] - 1.0
    distance = env.goal[held, 0] * side
    assert 0.55 < distance.min() < 0.65
    assert 0.85 < distance.max() < 0.95
    assert (drawn[held, 0] * side < 0.0).any()
    assert torch.equal(env.goal[held, 1:], drawn[held, 1:])
    assert torch.equal(env.goal[~held], drawn[~held])
    torch.testing.assert_close(env.engine.state_dict()["mocap"].float(), env.goal)


def keypoints_way(env, rotation):
    """How far the turn from the object's rotation to `rotation` (N, 4) carries its farthest keypoint (N,) m."""
    before = rotate(env.engine.body_quat[:, None, task.OBJECT], env.keypoint_offsets)
    return (rotate(rotation[:, None], env.keypoint_offsets) - before).norm(dim=2).amax(1)


@pytest.mark.parametrize(
    "start, least, most", [("high_50", 0.0, 0.5), ("high_125", 1.0, 1.25), ("low", 0.0, 0.5), ("next_150", 1.25, 1.5)]
)
@pytest.mark.parametrize("tolerance", [0.075, 0.05])
def test_in_reorientation_a_goal_turns_as_far_as_its_start_says(start, least, most, tolerance):
    env, held = make("low" if start == "low" else "high", REORIENTATION)
    env.tolerance.fill_(tolerance)
    env.training = False
    env.set_goal(EVERYWHERE)
    drawn = env.goal.clone()
    env.begin_with(held, torch.full_like(env.kind, kind_of(env, start)))
    rotation = env.engine.body_quat[held, task.OBJECT]
    left = angle_between(rotation, env.goal[held, 3:])
    success_distance = 1.5 * tolerance
    way = keypoints_way(env, env.goal[:, 3:])[held] / success_distance
    farthest = left > math.pi - 1e-2  # half a turn: a small object's keypoints cannot be carried as far as asked
    assert ((way >= least - 1e-4) | farthest).all()
    assert (way <= most + 1e-4).all()
    assert way.max() - way[~farthest].min() > (most - least) / 2.0
    torch.testing.assert_close(env.engine.state_dict()["mocap"].float(), env.goal)
    whole = angle_between(rotation, drawn[held, 3:])
    gone = angle_between(env.goal[held, 3:], drawn[held, 3:])
    torch.testing.assert_close((left - whole).abs(), gone, atol=2e-3, rtol=0.0)  # about the same axis
    assert torch.equal(env.goal[~held], drawn[~held])
    if not start.startswith("high"):
        assert torch.equal(env.goal[:, :3], drawn[:, :3])


@pytest.mark.parametrize("share, angle", [(0.0, 0.0), (0.5, 0.4841), (1.0, 1.0), (1.5, 1.6051), (3.0, math.pi)])
def test_a_turn_carries_points_a_share_as_far(share, angle):
    """Of a turn by 1 rad: 2 asin(share * sin(0.5)), worked out by hand. 3 sin(0.5) is more than half a turn reaches."""
    start = torch.tensor([turn(0.7, 0), turn(0.7, 0), turn(0.0, 1)])
    end = multiply(start, torch.tensor([turn(1.0, 2), turn(1.0 - 2.0 * math.pi, 2), turn(-1.0, 0)]))
    turned = turn_as_far(start, end, torch.full((3,), share))
    expected = multiply(start, torch.tensor([turn(angle, 2), turn(angle, 2), turn(-angle, 0)]))
    torch.testing.assert_close((turned * expected).sum(1).abs(), torch.ones(3), atol=1e-6, rtol=0.0)
    torch.testing.assert_close(turned.norm(dim=1), torch.ones(3))


@pytest.mark.parametrize("angle", [0.5, 2.0 * math.pi - 0.5])
def test_in_reorientation_the_turn_to_the_goal_is_observed(angle):
    env, _ = make("high", REORIENTATION)
    assert env.observe().shape == (24, env.num_obs)
    env.lifted.fill_(True)
    env.engine.body_quat[:, 0] = torch.tensor(turn(math.pi / 2.0, 0))  # the palm: its z axis is the world's -y axis
    env.engine.body_quat[:, task.OBJECT] = torch.tensor(turn(0.7, 1))
    env.goal[:, 3:] = multiply(torch.tensor(turn(angle, 2)), torch.tensor(turn(0.7, 1)))
    length = 2.0 * math.sin(0.25) * (1.0 if angle < math.pi else -1.0)  # by the shorter way
    expected = torch.tensor([0.0, length, 0.0])  # the world's z axis is the palm's y axis
    torch.testing.assert_close(env.observe()[:, -3:], expected.expand(24, 3), atol=1e-6, rtol=0.0)


@pytest.mark.parametrize("env_id, entries", [(REORIENTATION, 12 + 1 + 3), (THROW, 3 + 1)])
def test_the_goal_is_observed_once_the_object_has_been_lifted(env_id, entries):
    env, _ = make("high", env_id)
    env.lifted.copy_(torch.arange(24) < 12)
    before = env.observe()
    env.goal[:, :3] += 0.1
    env.goal[:, 3:] = multiply(torch.tensor([turn(0.5, 2)]), env.goal[:, 3:])
    env.closest_keypoint += 0.1
    changed = (env.observe() - before).abs() > 1e-4
    assert changed[:12].sum(1).tolist() == [entries] * 12
    assert not changed[12:].any()


@pytest.mark.parametrize("start", ["high", "original", "next"])
def test_in_reorientation_some_goals_stay_turned_as_drawn(start):
    env, held = make("high", REORIENTATION)
    env.training = False
    env.set_goal(EVERYWHERE)
    drawn = env.goal.clone()
    env.begin_with(held, torch.full_like(env.kind, kind_of(env, start)))
    assert torch.equal(env.goal[:, 3:], drawn[:, 3:])


@pytest.mark.parametrize("env_id", [REGRASPING, TWO_ARMS])
@pytest.mark.parametrize("start", ["high", "low"])
def test_what_is_held_stays_held_while_nothing_moves(start, env_id):
    env, held = make(start, env_id)
    for _ in range(60):
        env.engine.step(env.target)
    assert (measured(env).palm_distance()[held] < 0.16).float().mean() >= 0.9


def test_nobody_is_paid_for_a_lift_that_did_not_happen():
    env, high = make("high")
    env.training = False
    env.reset_where(torch.arange(24) < 12)  # as in the original: most objects have states held high
    env.training = True
    high[:12] = False
    for _ in range(20):
        env.step(torch.zeros(24, 23))
    terms = dict(zip(env.reward_names, env.term_sums.T))
    assert high.any()
    for name in ("lift", "lift_bonus", "fingertip"):
        assert not terms[name][high].any(), name
    assert terms["keypoint"][high].any()
    assert terms["lift"][~high].any()
    assert terms["fingertip"][~high].any()


def beneath(env):
    """Goals in buckets right beneath the objects (N, 3) m."""
    return env.engine.body_pos[:, task.OBJECT] - torch.tensor([0.0, 0.0, DROP_HEIGHT])


def draw_original_goals(env):
    """Set the goals of all environments as evaluations do, without bringing them nearer."""
    env.training = False
    env.set_goal(EVERYWHERE)
    env.training = True


def bearing(position):
    """Of position (N, 3) m as seen from the arm's base (N,) rad."""
    x, y, _ = (position - torch.tensor(scene.ONE_ARM.positions[0])).unbind(1)
    return torch.atan2(y, x)


def way_of_angle(start, end):
    """From start to end (N,) rad, the shorter way round."""
    return torch.atan2((end - start).sin(), (end - start).cos())


@pytest.mark.parametrize("start, least, most", [("high_20", 0.0, 0.2), ("high_40", 0.2, 0.4)])
def test_held_objects_swing_towards_buckets_that_come_nearer_and_touch_neither_robot_nor_table(start, least, most):
    env, held = make(start, THROW)
    kind = kind_of(env, start)
    shares = []
    all_moved = torch.zeros(24)
    for _ in range(20):
        before = {}

        def bring_nearer(mask, share, before=before):
            before["share"] = share
            before["goal"] = env.goal[:, :3].clone()
            before["position"] = env.engine.body_pos[:, task.OBJECT].clone()
            before["qpos"] = env.engine.qpos.clone()
            before["ahead"] = env.target - env.engine.qpos[:, :23]
            before["distance"] = env.fingertip_distance()
            AllegroKukaThrowHeldStarts.bring_nearer(env, mask, share)

        draw_original_goals(env)
        env.bring_nearer = bring_nearer
        env.begin_with(held, torch.full((24,), kind))
        del env.bring_nearer
        share = before["share"]
        position = env.engine.body_pos[:, task.OBJECT]
        moved = (env.goal[:, :3] != before["goal"]).any(1)
        assert not moved[~held].any()
        torch.testing.assert_close(env.engine.qpos[~moved], before["qpos"][~moved])
        whole = way_of_angle(bearing(before["position"]), bearing(before["goal"]))
        way = way_of_angle(bearing(before["position"]), bearing(position))
        torch.testing.assert_close(way[moved], ((1.0 - share) * whole)[moved], atol=1e-4, rtol=0.0)
        torch.testing.assert_close(position[:, 2], before["position"][:, 2])
        nearer = beneath(env).lerp(before["goal"], share[:, None])
        torch.testing.assert_close(env.goal[moved, :3], nearer[moved], atol=1e-5, rtol=0.0)
        # in the hand it is where it was
        torch.testing.assert_close(env.fingertip_distance(), before["distance"], atol=1e-4, rtol=0.0)
        torch.testing.assert_close(env.target - env.engine.qpos[:, :23], before["ahead"])
        assert (env.joint_lower[0] < env.target[moved, 0]).all()
        assert (env.target[moved, 0] < env.joint_upper[0]).all()
        shares.append(share[moved])
        all_moved += moved
        assert not env.engine.broken.any()
        assert not any(bucket_touches(env, world) for world in moved.nonzero().squeeze(1).tolist())
    shares = torch.cat(shares)
    assert shares.min() >= least
    assert shares.max() <= most
    assert shares.std() > 0.2 * (most - least)
    assert (all_moved[held] / 20.0).mean() > 0.6


@pytest.mark.parametrize("least, most", [(0.6, 1.0), (1.1, 1.2), (1.4, 1.6)])
def test_buckets_are_as_far_from_the_shoulder_as_the_start_says(least, most):
    start = f"high_{100 * most:.0f}cm"
    env, held = make(start, THROW)
    shoulder = torch.tensor(scene.ONE_ARM.positions[0]) + torch.tensor([0.0, 0.0, 0.34])
    rim = torch.tensor([0.0, 0.0, 0.1977 - 0.05])  # above the goal
    low, high = torch.tensor([0.5, -1.0, 0.0]), torch.tensor([0.9, 0.7, 1.0])  # of the underside
    distances = []
    for _ in range(20):
        draw_original_goals(env)
        drawn = env.goal.clone()
        env.begin_with(held, torch.full((24,), kind_of(env, start)))
        assert torch.equal(env.goal[~held], drawn[~held])
        assert torch.equal(env.goal[:, 0].sign(), drawn[:, 0].sign())  # on the same side of the table
        place = env.goal[held, :3] - torch.tensor([0.0, 0.0, 0.05])
        place[:, 0] = place[:, 0].abs()
        assert ((low <= place) & (place <= high)).all()
        torch.testing.assert_close(env.engine.state_dict()["mocap"].float(), env.goal)
        distances.append((env.goal[held, :3] + rim - shoulder).norm(dim=1))
        assert not any(bucket_touches(env, world) for world in held.nonzero().squeeze(1).tolist())
    distances = torch.cat(distances)
    # of 32 places the nearest to the distance that is asked; few are as near as 0.6 m or as far as 1.6 m
    assert ((least - 0.02 < distances) & (distances < most + 0.02)).float().mean() > 0.9
    assert abs(distances.mean() - (least + most) / 2.0) < 0.1 * (most - least)
    assert distances.std() > 0.2 * (most - least)


@pytest.mark.parametrize("start", ["low", "far"])
def test_buckets_come_nearer_to_objects_at_the_table(start):
    env, held = make(start, THROW)
    shares = []
    for _ in range(20):
        draw_original_goals(env)
        goal = env.goal[:, :3].clone()
        env.begin_with(held, torch.full((24,), kind_of(env, start)))
        position = env.engine.body_pos[:, task.OBJECT]
        moved = (env.goal[:, :3] != goal).any(1)
        assert not moved[~held].any()
        assert moved[held].float().mean() > 0.7
        # with their inner side 5 cm beside the table's, and their rims 0.2 m above it
        x = (0.2375 + 0.05 + 0.12) * goal[:, 0].sign()
        nearest = torch.stack([x, position[:, 1], torch.full_like(x, 0.53 + 0.2 - 0.1977 + 0.05)], 1)
        share = (env.goal[:, 0] - nearest[:, 0]) / (goal[:, 0] - nearest[:, 0])
        torch.testing.assert_close(env.goal[moved, :3], nearest.lerp(goal, share[:, None])[moved], atol=1e-4, rtol=0.0)
        shares.append(share[moved])
        assert not any(bucket_touches(env, world) for world in moved.nonzero().squeeze(1).tolist())
    shares = torch.cat(shares)
    assert -1e-4 < shares.min() < 0.02
    assert 0.18 < shares.max() < 0.2001
    assert abs(shares.mean() - 0.1) < 0.02


def bucket_touches(env, world):
    """Whether the bucket of a world touches anything, or reaches into the table."""
    model = env.engine.models[world % len(env.engine.models)]
    data = mujoco.MjData(model)
    data.qpos[:] = env.engine.qpos[world]
    data.mocap_pos[0] = env.goal[world, :3]
    mujoco.mj_forward(model, data)
    bodies = model.geom_bodyid[data.contact.geom]
    return (bodies == model.body("goal").id).any() or bucket_in_table(env.goal[world, :3])


def bucket_in_table(goal):
    """Whether a bucket, 0.12 m in radius and from 0.08 m below its goal to 0.148 m above it, reaches into the table."""
    x, y, z = goal.tolist()
    over = abs(x) < 0.2375 + 0.12 and abs(y) < 0.2 + 0.12
    return over and z - 0.08 < scene.TABLE_TOP


def test_an_object_that_is_let_go_above_a_bucket_falls_into_it_and_counts():
    env, held = make("high_20", THROW)
    above = held & ((beneath(env) - env.goal[:, :3]).norm(dim=1) < 0.1)  # within the bucket's rim
    opened = env.target.clone()
    opened[:, task.NUM_ARM :] = torch.tensor(HAND_OPEN)
    caught = torch.zeros_like(above)
    missed = torch.zeros_like(above)
    for _ in range(90):
        action = ((opened - env.target) / env.target_step).clamp(-1.0, 1.0)
        x, y, z = (env.engine.body_pos[:, task.OBJECT] - env.goal[:, :3]).unbind(1)
        missed |= (z < 0.05) & (torch.hypot(x, y) > scene.BUCKET_RIM_OUTER_RADIUS) & ~caught  # fell past the bucket
        _, _, terminated, _, _ = env.step(action)
        caught |= (env.successes > 0) & ~missed
        assert not (terminated & above & ~caught & ~missed).any()  # flying is not losing
        missed |= terminated & ~caught
    assert above.sum() > 5
    assert caught[above].float().mean() > 0.7  # others hang on a finger


class AbsoluteTargets(HeldStarts, task.AllegroKukaRegrasping):
    """Held starts without relative hand targets."""


def test_starts_do_not_depend_on_relative_targets():
    env = AbsoluteTargets(24, "cpu", 1)
    env.training = True
    env.load_state_dict(searched(REGRASPING)[0])
    original = envs.make("AllegroKukaRegrasping", 24)
    assert env.reset().shape == (24, original.num_obs)
    assert env.num_obs == original.num_obs
    action = torch.full((24, 23), 0.3)
    original.target = env.target
    assert torch.equal(env.next_target(action), original.next_target(action))
    assert env.is_held[env.kind].any()


# ---------------------------------------------------------------- the curriculum


def test_weights_of_kinds():
    curriculum = StartCurriculum(STARTS, 4, "cpu")
    factors = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 3.0, 1.0, 0.2, 0.2, 0.15])
    first = torch.tensor([0.031375] + 12 * [0.0345])  # shares of 0.5 everywhere, and none before the first kind
    torch.testing.assert_close(curriculum.weights(), first * factors, atol=0.0, rtol=1e-6)
    curriculum.solved_share.copy_(SHARES)
    expected = torch.tensor(HELD_WEIGHTS + FIRST_WEIGHTS + LATER_WEIGHTS)
    torch.testing.assert_close(curriculum.weights(), expected, atol=0.0, rtol=1e-5)


def kinds_learned_before(starts):
    names = [start.name for start in starts]
    before = StartCurriculum(starts, 4, "cpu").before.tolist()
    return {name: names[i] for name, i in zip(names, before) if i >= 0}


def test_lifting_and_later_goals_do_not_wait_for_throwing_far_or_turning():
    before = kinds_learned_before(THROW_STARTS)
    assert before["low"] == before["high_40"] == "high_20"
    assert before["high_110cm"] == "high_100cm"
    assert before["ajar"] == "low"
    before = kinds_learned_before(REORIENTATION_STARTS)
    assert before["low"] == before["high_100"] == "high_50"
    assert before["next_100"] == before["high_125"] == "high_100"
    assert before["ajar"] == "low"
    assert "high_50" not in before


@pytest.mark.parametrize(
    "begin, weight",
    [
        ("reset_where", HELD_WEIGHTS + FIRST_WEIGHTS + [0.0] * 4),
        ("begin_next_goal", HELD_WEIGHTS + [0.0] + LATER_WEIGHTS),
    ],
)
def test_goals_begin_most_with_starts_within_reach(begin, weight):
    env, _ = make()
    env.held_states.count[:] = torch.arange(len(HELD)) > HELD.index("high")
    drawn = []
    for _ in range(200):
        env.start_curriculum.solved_share.copy_(SHARES)
        env.successes.fill_(1.0)
        getattr(env, begin)(EVERYWHERE)
        drawn.append(env.kind)
    weight = torch.tensor([0.0, *weight[1:]])  # nobody has a state held high
    share = torch.cat(drawn).bincount(minlength=13) / 4_800.0
    torch.testing.assert_close(share, weight / weight.sum(), atol=0.03, rtol=0.0)
    assert not share[weight == 0.0].any()
    assert share[NAMES.index("half_open")] > 0.0  # never solved, and tried


def test_a_success_counts_for_the_kind_that_its_goal_began_with():
    env, held = make("low")
    env.shortened.fill_(False)
    env.episode_length.fill_(1)
    env.near_steps.fill_(30)
    env.begin_next_goal(held)
    expected = torch.full((13,), 0.5)
    expected[NAMES.index("low")] += 0.5 * held.sum() / (held.sum() + 500.0)
    torch.testing.assert_close(env.start_curriculum.solved_share, expected)
    env.kind.fill_(NAMES.index("far"))
    env.near_steps.fill_(29)
    env.shortened[12:] = True
    env.reset_where(EVERYWHERE)
    expected[NAMES.index("far")] -= 0.5 * 12 / 512.0
    torch.testing.assert_close(env.start_curriculum.solved_share, expected)
    logged = env.metrics()
    assert [logged[f"solved_from_{name}"] for name in NAMES] == env.start_curriculum.solved_share.tolist()


def test_goals_that_begin_reached_are_left_out_of_the_share_that_was_moved():
    env, held = make("high")
    object_position = env.engine.body_pos[:, task.OBJECT]
    near = (env.goal[:, :3] - object_position).norm(dim=1) <= 1.5 * 0.075
    assert torch.equal(env.start_curriculum.began_near[held], near[held])
    assert 0.2 < near[held].float().mean() < 0.8
    env.shortened.fill_(False)
    env.episode_length.fill_(1)
    env.near_steps.fill_(30)
    env.begin_next_goal(held)
    moved = (held & ~near).sum()
    assert env.metrics()["moved_from_high"].item() == pytest.approx(0.5 + 0.5 * moved.item() / (moved.item() + 500.0))


def test_a_curriculum_that_was_saved_without_the_share_that_was_moved_goes_on():
    env, _ = make()
    state = env.state_dict()
    state["start_curriculum"] = {"solved_share": SHARES}
    env.load_state_dict(state)
    assert env.start_curriculum.solved_share.tolist() == SHARES.tolist()


# ---------------------------------------------------------------- ends, evaluation, resuming


def test_an_episode_ends_where_the_object_leaves_the_hand_that_it_began_in_or_nothing_comes_of_it():
    env, held = make("high")
    env.episode_step[:6] = PATIENCE - 1
    qpos = env.engine.qpos.clone()
    qpos[12:, 23:26] = (measured(env).palm_centre() + torch.tensor([0.0, 0.0, 0.5]))[12:]
    env.engine.set_state(EVERYWHERE, qpos, torch.zeros_like(env.engine.qvel))
    _, _, terminated, truncated, _ = env.step(torch.zeros(24, 23))
    assert truncated.sum() == truncated[:6].sum() == 6
    assert torch.equal(terminated, held & (torch.arange(24) >= 12))
    assert terminated.any()


@pytest.mark.parametrize(
    "where, velocity, lost",
    [
        ((1.0, 0.0, 0.3), (1.0, 0.0, -1.0), False),  # falls from above
        ((1.0, 0.0, 0.3), (0.0, 0.0, 0.0), True),  # at rest, on the table for example
        ((1.0, 0.0, -0.1), (1.0, 0.0, 0.0), True),  # too low
        ((1.0, 0.0, -0.1), (1.0, 0.0, 1.3), True),  # rises by 8.6 cm
        ((1.0, 0.0, -0.1), (1.0, 0.0, 1.5), False),  # by 11.5 cm
        ((0.0, 0.0, -0.05), (0.0, 0.0, 0.0), False),  # in the bucket
    ],
)
def test_a_thrown_object_ends_the_episode_where_it_can_no_longer_reach_the_bucket(where, velocity, lost):
    """The object is at `where` (m) from the goal and has this velocity (m/s)."""
    env, held = make("high_20", THROW)
    qpos = env.engine.qpos.clone()
    qpos[:, 23:26] = env.goal[:, :3] + torch.tensor(where)
    qvel = torch.zeros_like(env.engine.qvel)
    qvel[:, 23:26] = torch.tensor(velocity)
    env.engine.set_state(EVERYWHERE, qpos, qvel)
    near = env.keypoint_distance() < 0.1
    missed = env.lost(near, env.fingertip_distance())
    off_the_ground = held & (env.goal[:, 2] > 0.3)
    assert off_the_ground.sum() > 5
    assert (missed[off_the_ground] == lost).all()


def test_an_object_far_from_the_hand_that_had_it_is_lost_although_the_other_hand_is_as_near_as_before():
    env, held = make("low", TWO_ARMS)
    assert not env.lost(env.lifted, env.fingertip_distance())[held].any()
    qpos = env.engine.qpos.clone()
    qpos[:, 46:49] += torch.tensor([0.0, 0.0, 0.6])
    env.engine.set_state(EVERYWHERE, qpos, torch.zeros_like(env.engine.qvel))
    assert env.lost(env.lifted, env.fingertip_distance())[held].all()


@pytest.mark.parametrize("env_id", [REGRASPING, REORIENTATION, THROW, TWO_ARMS])
def test_an_evaluation_plays_the_original_starts(env_id, capsys):
    ours = envs.make(env_id, 8)
    original = envs.make(env_id[: -len("HeldStarts")], 8)
    if env_id in (REORIENTATION, THROW):
        original.seen_of_goal = torch.zeros_like  # no object has been lifted
    assert torch.equal(ours.reset()[:, : original.num_obs], original.reset())
    assert not ours.held_states.count.any()
    assert capsys.readouterr().out == ""
    env, _ = make("low", env_id)
    env.training = False
    before = env.kind
    env.begin_next_goal(EVERYWHERE)
    assert torch.equal(env.kind, before)
    assert not env.lost(env.lifted, env.closest_fingertip + 1.0).any()


def test_a_resumed_run_goes_on_exactly(capsys):
    first, _ = make()
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = envs.make(REGRASPING, 24, seed=5, training=True)
    second.reset()
    second.load_state_dict(torch.load(file, weights_only=True))
    capsys.readouterr()
    for step in range(6):
        first.episode_step[step::6] = second.episode_step[step::6] = 10_000  # begin anew
        action = 2.0 * torch.rand(24, 23, generator=torch.Generator().manual_seed(step)) - 1.0
        for a, b in zip(first.step(action)[:4], second.step(action)[:4]):
            assert torch.equal(a, b)
    assert 0 < first.is_held[first.kind].sum() < 24
    assert capsys.readouterr().out == ""


# ---------------------------------------------------------------- the table of starts


def table_of(env_id, capsys, monkeypatch):
    """The cells of what `benchmarks.scripts.starts` prints, by kind of start and title, and the environments."""
    env = envs.make(env_id, 24)
    found = searched(env_id)[0]
    monkeypatch.setattr(envs, "make", lambda *args, **kwargs: env)
    monkeypatch.setattr(env, "find_held_states", lambda: env.load_state_dict(found))
    starts.main([env_id])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    titles, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    return {row[0]: dict(zip(titles, row)) for row in rows}, env


def percent(cell):
    return float(cell.removesuffix("%"))


def quartiles_of(cell):
    return [float(word) for word in cell.split()]


def test_the_table_of_starts_shows_how_far_goals_are_and_how_far_they_turn(capsys, monkeypatch):
    table, env = table_of(REORIENTATION, capsys, monkeypatch)
    assert list(table) == [start.name for start in REORIENTATION_STARTS if start.first]
    for start in env.starts:
        if start.held:
            assert table[start.name]["environments"] == f"{env.held_states.has(start.held).float().mean():.0%}"
    assert table["original"]["environments"] == "100%"
    assert table["high_50"]["moved"] == "100%"
    assert table["low"]["moved"] == "0%"
    assert table["original"]["moved"] == "0%"
    assert table["high_50"]["no turn"] == "100%"
    assert table["high_100"]["no turn"] == "100%"
    assert percent(table["high_125"]["no turn"]) < 20.0
    assert 0.0 < percent(table["high_50"]["near"]) < 100.0
    assert table["low"]["near"] == "0%"
    assert table["original"]["near"] == "0%"
    first, median, third = quartiles_of(table["high_100"]["turn"])
    assert 0.5 < first < median < third < 1.0
    assert quartiles_of(table["high_50"]["way"])[2] < quartiles_of(table["original"]["way"])[0]


def test_the_table_of_starts_shows_where_nothing_could_be_moved(capsys, monkeypatch):
    table, _ = table_of(THROW, capsys, monkeypatch)
    assert 0.0 < percent(table["high_40"]["moved"]) < 100.0
    assert table["high_100cm"]["moved"] == "100%"
    assert table["high"]["moved"] == "0%"
    assert quartiles_of(table["high_20"]["way"])[1] < quartiles_of(table["high"]["way"])[1]


def test_the_table_of_starts_is_for_tasks_that_have_some(capsys):
    with pytest.raises(SystemExit):
        starts.main(["AllegroKukaReorientation", "--num-envs", "2"])
    assert "has no held starts" in capsys.readouterr().err
