"""AllegroKuka, what all its tasks share and Regrasping: rules with hand-made states and numbers, then with physics."""

import math

import mujoco
import numpy as np
import pytest
import torch

from envs.clearance import Clearance
from envs.models import allegro_kuka_scene as scene
from envs.tasks import allegro_kuka as task
from tests.envs.helpers import StillEngine, data_of, motion, random_actions, started, turn

TURN_X = turn(math.pi / 2, 0)  # y -> z, z -> -y
TURN_Z = turn(math.pi / 2, 2)  # x -> y, y -> -x


@pytest.fixture
def make_still(monkeypatch):
    monkeypatch.setattr(task, "make_engine", StillEngine)

    def make(num_envs=3, seed=1, env_class=task.AllegroKukaRegrasping):
        env = env_class(num_envs, "cpu", seed)
        env.engine.body_pos[:, 0, 2] = 2.0  # out of the way
        env.reset()
        return env

    return make


@pytest.fixture
def nothing_in_the_way(monkeypatch):
    """Starts are not compared with the robot, which takes seconds for thousands."""
    far = torch.tensor(1.0)
    monkeypatch.setattr(Clearance, "distance", lambda self, shapes, box_pos, *box: far.expand(len(box_pos)))


def put_object(env, index, position):
    env.engine.qpos[index, 23:26] = torch.tensor(position)
    env.engine.body_pos[index, 5] = torch.tensor(position)


def put_at_goal(env, index):
    put_object(env, index, env.goal[index, :3].tolist())


def act(env, action=None):
    return env.step(torch.zeros(env.num_envs, 23) if action is None else action)


def rewards(**changes):
    """reward_terms of one environment at rest on the table, far from everything; `changes` replace its arguments."""
    state = dict(
        height=0.555,
        fingertip_distance=[0.5] * 4,
        keypoint_distance=0.4,
        joint_velocity=[0.0] * 23,
        lifted=False,
        closest_fingertip=[0.5] * 4,
        closest_keypoint=0.4,
        tolerance=0.075,
        success_steps=30,
    )
    state.update(changes)
    for name in ("height", "fingertip_distance", "keypoint_distance", "joint_velocity", "closest_fingertip"):
        state[name] = torch.tensor([state[name]])
    for name in ("lifted", "closest_keypoint"):
        state[name] = torch.tensor([state[name]])
    terms, near, lifted, closest_fingertip, closest_keypoint = task.reward_terms(**state)
    result = {name: value.item() for name, value in terms.items()}
    result.update(near=near.item(), lifted=lifted.item(), closest_keypoint=closest_keypoint.item())
    result["closest_fingertip"] = closest_fingertip[0].tolist()
    return result


# -------------------------------------------------------------------- reward, term by term


@pytest.mark.parametrize(
    "changes, expected",
    [
        # until it is lifted, the height pays
        (dict(height=0.63), dict(lift=1.0, lift_bonus=0.0, lifted=False)),
        (dict(height=0.7), dict(lift=2.4)),
        (dict(height=0.58), dict(lift=0.0)),
        (dict(height=0.3), dict(lift=0.0)),
        (dict(height=0.729), dict(lift=2.98)),
        (dict(height=0.731), dict(lift=0.0, lift_bonus=300.0, lifted=True)),
        (dict(height=2.0), dict(lift=0.0)),
        (dict(height=0.63, lifted=True), dict(lift=0.0, lift_bonus=0.0, lifted=True)),  # once lifted, always lifted
        # fingertips: new records alone, 50 * (0.1 + 0.05); after the lift they are remembered and pay no more
        (dict(fingertip_distance=[0.4, 0.6, 0.45, 0.5]), dict(fingertip=7.5, closest_fingertip=[0.4, 0.5, 0.45, 0.5])),
        (
            dict(fingertip_distance=[0.4, 0.6, 0.45, 0.5], lifted=True),
            dict(fingertip=0.0, closest_fingertip=[0.4, 0.5, 0.45, 0.5]),
        ),
        (dict(fingertip_distance=[0.4, 0.6, 0.45, 0.5], height=0.75), dict(fingertip=0.0)),  # the very step of lifting
        (dict(fingertip_distance=[5.0] * 4, closest_fingertip=[20.0, 5.0, 5.0, 5.0]), dict(fingertip=500.0)),  # at most
        # keypoints: the other way round, and progress before the lift is forfeited
        (dict(lifted=True, keypoint_distance=0.3), dict(keypoint=20.0)),
        (dict(lifted=True, keypoint_distance=0.5), dict(keypoint=0.0)),
        (dict(height=0.75, keypoint_distance=0.3), dict(keypoint=20.0)),
        (dict(keypoint_distance=0.3), dict(keypoint=0.0, closest_keypoint=0.3)),
        (dict(keypoint_distance=0.5), dict(closest_keypoint=0.4)),
        (dict(lifted=True, keypoint_distance=0.0, closest_keypoint=200.0), dict(keypoint=20_000.0)),
        # every step within one and a half tolerances
        (dict(keypoint_distance=0.1124), dict(near=True, goal=1000.0 / 30.0)),
        (dict(keypoint_distance=0.1126), dict(near=False, goal=0.0)),
        (dict(keypoint_distance=0.0149, tolerance=0.01), dict(near=True)),
        (dict(keypoint_distance=0.0151, tolerance=0.01), dict(near=False)),
        (dict(keypoint_distance=0.1124, success_steps=5), dict(goal=200.0)),
        (dict(keypoint_distance=0.1124, success_steps=1), dict(goal=1000.0)),
        # speed costs, of the arm more than of the hand
        (
            dict(joint_velocity=[1.0, -2.0] + [0.0] * 5 + [-3.0] + [0.0] * 14 + [4.0]),
            dict(arm_speed=-0.009, hand_speed=-0.0021),
        ),
    ],
)
def test_reward_terms(changes, expected):
    found = rewards(**changes)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-5), name


# -------------------------------------------------------------------- success and the ends of an episode


def test_near_steps_need_not_be_in_a_row(make_still):
    env = make_still(2)
    first_goal = env.goal.clone()
    for step in range(29):
        put_at_goal(env, 0)
        act(env)
        put_object(env, 0, [0.0, 0.0, 0.5])
        act(env)
        assert env.near_steps.tolist() == [step + 1, 0]
    assert env.successes.tolist() == [0.0, 0.0]
    assert torch.equal(env.goal, first_goal)
    put_at_goal(env, 0)
    act(env)
    assert env.successes.tolist() == [1.0, 0.0]
    assert env.near_steps.tolist() == [0, 0]
    assert not torch.equal(env.goal[0], first_goal[0])
    assert torch.equal(env.goal[1], first_goal[1])


def test_success_begins_the_next_goal_within_the_step(make_still):
    env = make_still(2)
    put_at_goal(env, 0)
    put_at_goal(env, 1)
    env.lifted[:] = True
    env.near_steps[0] = 29
    env.near_steps[1] = 5
    env.closest_keypoint[:] = 0.001
    env.closest_fingertip[:] = 0.001
    env.episode_step[:] = 100
    joints = env.engine.qpos[:, :23].clone()
    velocity = env.engine.qvel[:, :23].clone()
    obs, reward, terminated, truncated, info = act(env, torch.zeros(2, 23))
    assert not (terminated | truncated).any()
    assert torch.equal(info["final_obs"], obs)
    assert env.episode_step.tolist() == [0, 101]
    assert env.episode_length.tolist() == [1, 1]
    # environment 0: the object lies above the table, the memories start from there, the robot has not moved
    x, y, z = env.engine.qpos[0, 23:26].tolist()
    assert abs(x) <= 0.1
    assert abs(y) <= 0.1
    assert 0.61 <= z <= 0.7
    assert env.lifted.tolist() == [False, True]
    assert env.near_steps.tolist() == [0, 6]
    assert env.closest_keypoint[0].item() == pytest.approx((env.engine.qpos[0, 23:26] - env.goal[0, :3]).norm().item())
    assert torch.allclose(env.closest_fingertip[0], env.fingertip_distance()[0])
    assert env.closest_keypoint[1].item() == 0.0
    assert env.closest_fingertip[1].tolist() == pytest.approx([0.001] * 4)
    assert torch.equal(env.engine.qpos[:, :23], joints)
    assert torch.equal(env.engine.qvel[:, :23], velocity)
    assert torch.equal(env.engine.qvel[0, 23:], torch.zeros(6))
    # the observation shows the new goal, the new memories and the reward just earned
    assert obs[0, 90].item() == env.closest_keypoint[0].item()
    assert torch.allclose(obs[0, 84:87], env.engine.qpos[0, 23:26] - env.goal[0, :3])
    assert obs[0, 97].item() == pytest.approx(math.log(2.0))
    assert obs[0, 96].item() == 0.0
    assert obs[0, 98].item() == pytest.approx(0.01 * reward[0].item())


def test_a_fallen_object_terminates(make_still):
    env = make_still(3)
    for index, height in enumerate([0.099, 0.101, 0.5]):
        put_object(env, index, [0.0, 0.0, height])
    obs, _, terminated, truncated, info = act(env)
    assert terminated.tolist() == [True, False, False]
    assert not truncated.any()
    assert info["final_obs"][0, 83].item() == pytest.approx(0.099 - (2.0 + 0.16))  # as it fell
    assert env.engine.qpos[0, 25].item() > 0.6
    assert env.engine.qpos[1, 25].item() == pytest.approx(0.101)
    assert torch.equal(obs[1:], info["final_obs"][1:])


def test_fifty_successes_truncate(make_still):
    env = make_still(2)
    put_at_goal(env, 0)
    put_at_goal(env, 1)
    env.successes[:] = torch.tensor([49.0, 48.0])
    env.near_steps[:] = 29
    obs, _, terminated, truncated, info = act(env)
    assert truncated.tolist() == [True, False]
    assert not terminated.any()
    assert info["episode"]["objective"].tolist() == [50.0, 49.0]
    assert info["final_obs"][0, 97].item() == pytest.approx(math.log(51.0))
    assert info["final_obs"][0, 84:87].abs().max().item() < 1e-6  # still at its goal
    assert obs[0, 97].item() == 0.0
    assert env.successes.tolist() == [0.0, 49.0]
    assert env.finished_successes.tolist() == [50.0, 0.0]


def test_time_is_up_400_steps_after_the_last_success(make_still):
    env = make_still(3)
    env.episode_step[:] = torch.tensor([398, 399, 399])
    put_at_goal(env, 2)
    env.near_steps[2] = 29
    _, _, terminated, truncated, info = act(env)
    assert truncated.tolist() == [False, True, False]
    assert not terminated.any()
    assert env.episode_step.tolist() == [399, 0, 0]
    assert info["final_obs"][1, 96].item() == pytest.approx(math.log(41.0))


# -------------------------------------------------------------------- curriculum, metrics


def test_tolerance_shrinks_in_training_when_both_conditions_hold(make_still):
    env = make_still(2)
    for env.training, age, successes, shrinks in [
        (True, 2998, 3.0, False),
        (True, 2999, 2.9, False),
        (True, 2999, 3.0, True),
        (True, 5000, 9.0, True),
        (False, 5000, 9.0, False),
    ]:
        env.tolerance.fill_(0.075)
        env.tolerance_age.fill_(age)
        env.finished_successes[:] = torch.tensor([0.0, 2.0 * successes])
        info = act(env)[4]
        assert env.tolerance.item() == pytest.approx(0.0675 if shrinks else 0.075)
        assert info["metrics"]["success_tolerance"].item() == env.tolerance.item()
        assert env.tolerance_age.item() == (0 if shrinks else age + 1)


def test_tolerance_ends_at_one_centimetre(make_still):
    env = make_still(1)
    env.training = True
    env.finished_successes.fill_(5.0)
    for tolerance in (0.0101, 0.01):
        env.tolerance.fill_(tolerance)
        env.tolerance_age.fill_(2999)
        info = act(env)[4]
        assert env.tolerance.item() == pytest.approx(0.01)
    assert info["metrics"]["true_objective"].item() == pytest.approx(6.0)  # 1 + successes at the end of the curriculum


# -------------------------------------------------------------------- drives and pushes


def test_arm_targets_integrate_up_to_the_limits_and_hand_targets_are_absolute(make_still):
    env = make_still(1)
    before = env.target.clone()
    action = torch.full((1, 23), 0.5)
    action[0, 7:] = torch.linspace(-1.0, 1.0, 16)
    act(env, action)
    assert torch.allclose(env.engine.ctrl[0, :7], before[0, :7] + 0.5 * 0.1667)
    lower = torch.tensor(scene.JOINT_LOWER[7:]).float()
    upper = torch.tensor(scene.JOINT_UPPER[7:]).float()
    share = torch.linspace(0.0, 1.0, 16)
    assert torch.allclose(env.engine.ctrl[0, 7:], (1.0 - share) * lower + share * upper, atol=1e-6)
    act(env, torch.full((1, 23), 5.0))  # clamped to 1
    assert torch.allclose(env.target[0, 2], before[0, 2] + 1.5 * 0.1667)  # the still joints have not followed
    for _ in range(60):
        act(env, torch.full((1, 23), 1.0))
    assert torch.allclose(env.target[0], torch.tensor(scene.JOINT_UPPER).float())
    act(env, torch.full((1, 23), -1.0))
    assert torch.allclose(env.target[0, :7], torch.tensor(scene.JOINT_UPPER[:7]).float() - 0.1667)


def test_push_is_renewed_or_fades():
    force = torch.tensor([[1.0, 2.0, 3.0]] * 2)
    noise = torch.tensor([[1.0, -1.0, 0.5]] * 2)
    pushed = task.next_push(force, torch.tensor([0.05, 0.05]), torch.tensor([0.0499, 0.0501]), noise)
    assert pushed[0].tolist() == pytest.approx([0.3, -0.3, 0.15])
    assert pushed[1].tolist() == pytest.approx([0.99791, 1.99581, 2.99372], abs=1e-5)


def test_push_strength_and_probability(make_still, nothing_in_the_way):
    env = make_still(4000)
    logs = env.push_probability.log10()
    assert logs.min() >= -3.0
    assert logs.max() <= -1.0
    assert logs.mean().item() == pytest.approx(-2.0, abs=0.05)
    assert logs.std().item() == pytest.approx(0.577, abs=0.03)
    act(env)
    share = (env.push_force != 0).any(1).float().mean().item()
    assert share == pytest.approx((0.1 - 0.001) / math.log(100.0), abs=0.01)
    env.push_probability.fill_(1.0)
    act(env)
    assert env.push_force.std(0).tolist() == pytest.approx([0.3] * 3, abs=0.02)
    assert env.push_force.mean(0).abs().max() < 0.03


def test_push_acts_in_the_frame_of_the_object(make_still):
    env = make_still(1)
    env.push_probability.fill_(0.0)
    env.push_force[0] = torch.tensor([0.3, 0.0, 0.1]) / task.PUSH_DECAY
    env.engine.body_quat[0, 5] = torch.tensor(TURN_Z)
    act(env)
    assert env.engine.xfrc[0, 5].tolist() == pytest.approx([0.0, 0.3, 0.1, 0.0, 0.0, 0.0], abs=1e-6)
    assert env.engine.xfrc[0, :5].abs().max() == 0.0
    assert env.engine.bodies[5] == "object"


# -------------------------------------------------------------------- resets


def test_geometry_by_hand():
    edges = torch.tensor([[0.1, 0.3, 0.2]] * 3)
    eighth = [math.cos(math.pi / 8), math.sin(math.pi / 8), 0.0, 0.0]  # 45 degrees about x
    height = task.half_height(torch.tensor([TURN_X, TURN_Z, eighth]), edges)
    assert height.tolist() == pytest.approx([0.15, 0.1, 0.25 * math.sqrt(0.5)])


def test_reset_distribution(make_still, nothing_in_the_way):
    env = make_still(4000)
    joints = env.engine.qpos[:, :23]
    velocity = env.engine.qvel[:, :23]
    lower = torch.tensor(scene.JOINT_LOWER).float()
    upper = torch.tensor(scene.JOINT_UPPER).float()
    default = torch.tensor(scene.DEFAULT_POSE).float()
    free = torch.arange(23) != 19
    low = 0.9 * default + 0.1 * lower
    high = 0.9 * default + 0.1 * upper
    span = (high - low)[free]
    assert (joints >= low - 1e-6)[:, free].all()
    assert (joints <= high + 1e-6)[:, free].all()
    assert ((joints.amin(0) - low)[free] < 0.01 * span).all()
    assert ((high - joints.amax(0))[free] < 0.01 * span).all()
    assert scene.JOINT_NAMES[19] == "thumb_joint_0"
    assert torch.equal(joints[:, 19], lower[19].expand(4000))
    assert torch.equal(env.target, joints)
    assert velocity.abs().max() <= 0.5
    assert velocity.std().item() == pytest.approx(0.5 / math.sqrt(3.0), abs=0.01)
    assert torch.equal(env.engine.qvel[:, 23:], torch.zeros(4000, 6))
    assert not env.lifted.any()
    assert env.near_steps.abs().sum() == 0
    assert env.successes.abs().sum() == 0


def test_objects_start_above_the_table(make_still, nothing_in_the_way):
    env = make_still(4000)
    position = env.engine.qpos[:, 23:26].double().numpy()
    quaternion = env.engine.qpos[:, 26:30].double().numpy()
    assert (np.abs(position[:, :2]) <= 0.1).all()
    assert (position[:, 2] >= 0.61 - 1e-6).all()
    assert position[:, :2].std(0) == pytest.approx([0.1 / math.sqrt(3.0)] * 2, abs=0.002)
    signs = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
    lowest = np.zeros(4000)
    matrix = np.zeros(9)
    scales = scene.object_scales()
    for i in range(4000):
        mujoco.mju_quat2Mat(matrix, quaternion[i])
        corners = signs * 0.025 * scales[i % 947]
        lowest[i] = (position[i] + corners @ matrix.reshape(3, 3).T)[:, 2].min()
    assert lowest.min() >= 0.535 - 1e-5
    raised = position[:, 2] > 0.65 + 1e-6
    assert raised.sum() > 20
    assert np.abs(lowest[raised] - 0.535).max() < 1e-5  # no higher than needed
    products = quaternion.T @ quaternion / 4000  # uniform over rotations: the identity / 4
    assert np.abs(products - np.eye(4) / 4).max() < 0.02


@pytest.mark.parametrize(
    "env_class, turned", [(task.AllegroKukaRegrasping, False), (task.AllegroKukaReorientation, True)]
)
def test_goals_fill_their_box(env_class, turned, make_still, nothing_in_the_way):
    goal = make_still(4000, env_class=env_class).goal
    assert goal[:, :3].amin(0).tolist() == pytest.approx([-0.4, 0.0, 0.68], abs=0.005)
    assert goal[:, :3].amax(0).tolist() == pytest.approx([0.4, 0.35, 1.05], abs=0.005)
    products = goal[:, 3:].T @ goal[:, 3:] / 4000  # uniform over rotations: the identity / 4
    expected = torch.eye(4) / 4 if turned else torch.diag(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    assert (products - expected).abs().max() < 0.02
    assert torch.allclose(goal[:, 3:].norm(dim=1), torch.ones(4000))


def test_every_environment_has_the_object_of_its_number(make_still, monkeypatch):
    env = make_still(950)
    scales = scene.object_scales()
    assert torch.equal(env.object_scale, torch.tensor(np.concatenate([scales, scales[:3]])).float())
    assert len(env.engine.models) == 947
    assert env.engine.substeps == scene.SUBSTEPS
    for index in (0, 1, 500, 946):
        size = env.engine.models[index].geom("object").size
        assert size.tolist() == pytest.approx((0.025 * scales[index]).tolist())
    assert torch.allclose(env.observe()[:, 87:90], env.object_scale)
    monkeypatch.setenv("RANK", "2")
    assert torch.equal(make_still(4).object_scale, env.object_scale[:4])  # a single process
    monkeypatch.setenv("WORLD_SIZE", "3")
    third = make_still(4)
    assert torch.equal(third.object_scale, env.object_scale[8:12])
    assert third.engine.models[1].geom("object").size.tolist() == env.engine.models[9].geom("object").size.tolist()


# -------------------------------------------------------------------- with physics


CENTRE = np.zeros((1, 3))
CORNERS = np.array([[1, 1, 1], [1, 1, -1], [-1, -1, 1], [-1, -1, -1]])


@pytest.mark.parametrize(
    "env_id, arms, pattern",
    [
        ("AllegroKukaRegrasping", [""], CENTRE),
        ("AllegroKukaThrow", [""], CENTRE),
        ("AllegroKukaReorientation", [""], CORNERS),
        ("AllegroKukaTwoArmsRegrasping", ["arm0_", "arm1_"], CENTRE),
        ("AllegroKukaTwoArmsReorientation", ["arm0_", "arm1_"], CORNERS),
    ],
)
def test_observation_layout(env_id, arms, pattern):
    """Every slice against MuJoCo's own kinematics of the same state."""
    env = started(env_id, 2, seed=3)
    for action in random_actions(env, 5):
        reward = env.step(action)[1]
    env.successes[:] = 3.0
    env.lifted[1] = True
    obs = env.observe().double().numpy()
    for i in range(2):
        model, data = data_of(env, i)
        scale = scene.object_scales(env.object_families)[i]

        def point(name, offset):
            return data.body(name).xpos + data.body(name).xmat.reshape(3, 3) @ offset

        matrix = np.zeros(9)
        mujoco.mju_quat2Mat(matrix, env.goal[i, 3:].double().numpy())
        corners = 0.0375 * scale * pattern
        of_object = np.array([point("object", corner) for corner in corners])
        of_goal = env.goal[i, :3].numpy() + corners @ matrix.reshape(3, 3).T
        palms = np.array([point(arm + "iiwa7_link_7", [0, -0.02, 0.16]) for arm in arms])
        offsets = dict(index=0.05, middle=0.05, ring=0.05, thumb=0.06)
        tips = [[point(f"{arm}{name}_link_3", [x, 0.005, 0]) for name, x in offsets.items()] for arm in arms]
        lower, upper = model.jnt_range[: 23 * len(arms)].T
        expected = [
            *(2 * (data.qpos[: len(lower)] - lower) / (upper - lower) - 1),
            *data.qvel[: len(lower)],
            *palms.flatten(),
            *[x for arm in arms for x in motion(model, data, arm + "iiwa7_link_7")[3:]],
            *motion(model, data, "object")[3:],
            *(np.array(tips) - palms[:, None]).flatten(),
            *(of_object - palms[:, None]).flatten(),
            *(of_object - of_goal).flatten(),
            *scale,
            env.closest_keypoint[i],
            *(env.closest_fingertip[i] if len(arms) == 1 else []),
            float(i == 1),
            math.log(5 / 10 + 1),
            math.log(4),
            0.01 * reward[i],
        ]
        assert obs[i] == pytest.approx(np.clip(np.array(expected, float), -10.0, 10.0), abs=2e-4)
        distance = np.linalg.norm(np.array(tips) - data.body("object").xpos, axis=2).flatten()
        assert (env.closest_fingertip[i].numpy() <= distance + 1e-5).all()
