"""FrankaCubePush and FrankaCubeStack: every term and every rule with hand-made states, then with physics."""

import math

import mujoco
import numpy as np
import pytest
import torch

import envs
from envs.models import franka as robot
from envs.tasks import franka_cube as task
from tests.envs.helpers import StillEngine, data_of, random_actions, started

IDS = ["FrankaCubePush", "FrankaCubeStack"]
both = pytest.mark.parametrize("env_id", IDS)
TABLE_TOP = 1.025


@pytest.fixture
def make_still(monkeypatch):
    monkeypatch.setattr(task, "make_engine", StillEngine)

    def make(env_id, num_envs=3, seed=1):
        env = envs.make(env_id, num_envs, seed=seed)
        data = mujoco.MjData(env.engine.models[0].compile())
        data.qpos[:9] = robot.DEFAULT_POSE
        mujoco.mj_forward(data.model, data)
        bodies = [data.body(name) for name in env.engine.bodies]
        env.engine.body_pos[:] = torch.tensor(np.array([body.xpos for body in bodies]))
        env.engine.body_quat[:] = torch.tensor(np.array([body.xquat for body in bodies]))
        env.reset()
        return env

    return make


def put_cube(env, index, offset):
    """Cube A in one environment, from its target."""
    env.engine.qpos[index, 9:12] = env.target()[index] + torch.tensor(offset)


def act(env, action=None):
    return env.step(torch.zeros(env.num_envs, 7) if action is None else action)


# -------------------------------------------------------------------- push: the reward, term by term


def push(x, y=0.0, z=TABLE_TOP + 0.025, steps_left=100):
    """push_terms of one cube at x, y from its goal."""
    cube = torch.tensor([[0.1 + x, -0.2 + y, z]])
    goal = torch.tensor([[0.1, -0.2, TABLE_TOP + 0.025]])
    terms, reached, lost = task.push_terms(cube, goal, torch.tensor([steps_left]))
    return {name: value.item() for name, value in terms.items()}, reached.item(), lost.item()


LIFTED = TABLE_TOP + 0.0901
NOT_LIFTED = TABLE_TOP + 0.0899


@pytest.mark.parametrize(
    "state, expected, reached, lost",
    [
        # near: 2 (1 - tanh(10 d)), d = 0.1, 0.05, 0.3 m in the plane, wherever it is
        (dict(x=0.1), dict(near=0.476812), False, False),
        (dict(x=0.03, y=0.04), dict(near=1.075766), False, False),
        (dict(x=0.0, y=-0.3), dict(near=0.009890), False, False),
        (dict(x=0.1, z=0.025), dict(near=0.476812), False, False),
        # reached, within 5 mm: 4 per step that is left
        (dict(x=0.003, y=0.0039, steps_left=300), dict(reached=1200.0), True, False),
        (dict(x=0.003, y=0.0039, steps_left=17), dict(reached=68.0), True, False),
        (dict(x=0.003, y=0.0039, steps_left=1), dict(reached=4.0), True, False),
        (dict(x=0.003, y=0.0041), dict(near=2.0 - 2.0 * math.tanh(0.050804)), False, False),
        # lost when it is lifted, or when time runs out: 5 (tanh(10 d) - 1)
        (dict(x=0.1, z=LIFTED), dict(failed=5.0 * (0.238406 - 1.0)), False, True),
        (dict(x=0.1, z=NOT_LIFTED), dict(near=0.476812), False, False),
        (dict(x=0.0, z=LIFTED), dict(reached=400.0), True, True),  # both: it counts
        (dict(x=0.1, steps_left=1), dict(failed=-3.80797), False, False),
        (dict(x=0.1, steps_left=2), dict(near=0.476812), False, False),
    ],
)
def test_push_terms(state, expected, reached, lost):
    terms, *ends = push(**state)
    assert ends == [reached, lost]
    assert terms == pytest.approx({**dict.fromkeys(terms, 0.0), **expected}, abs=1e-5)


def test_push_episode(make_still):
    env = make_still("FrankaCubePush", 4)
    for index, offset in enumerate([[0.1, 0.0, 0.0], [0.004, 0.0, 0.0], [0.1, 0.0, 0.07], [0.1, 0.0, 0.0]]):
        put_cube(env, index, offset)
    env.episode_step[3] = 299
    goal = env.goal.clone()
    obs, reward, terminated, truncated, info = act(env)
    assert reward.tolist() == pytest.approx([0.476812, 1200.0, -3.80797, -3.80797], abs=1e-3)
    assert terminated.tolist() == [False, True, True, False]
    assert truncated.tolist() == [False, False, False, True]
    assert info["metrics"]["success_rate"].item() == 0.25
    assert torch.equal(info["episode"]["objective"], info["episode"]["return"])
    assert torch.equal(env.goal[0], goal[0])
    assert (env.goal[1:] != goal[1:]).any(1).all()
    assert info["final_obs"][1, 7:10].tolist() == pytest.approx([-0.004, 0.0, 0.0], abs=1e-6)


# -------------------------------------------------------------------- stack: the reward, term by term


def stack(cube, base=(0.0, 0.0, TABLE_TOP + 0.035), grip=(1.0, 0.0, 0.0), tips=None):
    """stack_terms of one cube; grip site and tips given from the cube's centre."""
    tips = [grip, grip] if tips is None else tips
    cube = torch.tensor([cube])
    base = torch.tensor([base])
    terms, stacked = task.stack_terms(cube, base, cube[:, None] + torch.tensor([[grip, *tips]]))
    return {name: value.item() for name, value in terms.items()}, stacked.item()


@pytest.mark.parametrize(
    "cube, hand, expected",
    [
        # reach: 0.1 (1 - tanh(10 d)), d the mean distance of grip site and tips: 0.1 m, and (0.1 + 0.05 + 0.15) / 3
        ((0.3, 0.0, 0.025), dict(grip=(0.1, 0.0, 0.0)), dict(reach=0.0238406, lift=0.0, align=0.0)),
        (
            (0.3, 0.0, 0.025),
            dict(grip=(0.06, 0.0, 0.08), tips=[(0.0, 0.05, 0.0), (0.0, 0.0, -0.15)]),
            dict(reach=0.0238406, lift=0.0, align=0.0),
        ),
        # lift: 9 cm above the table
        ((0.3, 0.0, 0.0901), {}, dict(lift=1.5)),
        ((0.3, 0.0, 0.0899), {}, dict(lift=0.0)),
        # align: near the top of the other cube, once lifted; 5 cm away in the plane, 10 cm too high, not lifted
        ((0.03, 0.04, 0.095), dict(grip=(0.0, 0.0, 0.0)), dict(align=2.0 * 0.537883, reach=0.1, lift=1.5)),
        ((0.0, 0.0, 0.195), {}, dict(align=0.476812)),
        ((0.1, 0.0, 0.05), {}, dict(align=0.0)),
        # reach pays as much as the alignment of a cube let go
        ((0.03, 0.04, 0.095), dict(grip=(1.0, 0.0, 0.0)), dict(reach=0.1 * 0.537883)),
    ],
)
def test_stack_terms(cube, hand, expected):
    terms, stacked = stack((cube[0], cube[1], TABLE_TOP + cube[2]), **hand)
    assert {name: terms[name] for name in expected} == pytest.approx(expected, abs=1e-5)
    assert not stacked
    assert terms["stacked"] == 0.0


@pytest.mark.parametrize(
    "cube, grip, stacked",
    [
        ((0.0, 0.0, 0.095), 0.041, True),
        ((0.0, 0.0, 0.095), 0.039, False),  # let go
        ((0.012, 0.0159, 0.095), 0.1, True),
        ((0.012, 0.0161, 0.095), 0.1, False),  # 2 cm in the plane
        ((0.0, 0.0, 0.1149), 0.1, True),
        ((0.0, 0.0, 0.1151), 0.1, False),  # 2 cm in height
        ((0.0, 0.0, 0.0751), 0.1, True),
        ((0.0, 0.0, 0.0749), 0.1, False),
    ],
)
def test_stacked_is_on_top_and_let_go(cube, grip, stacked):
    terms, result = stack((cube[0], cube[1], TABLE_TOP + cube[2]), grip=(grip, 0.0, 0.0))
    assert result == stacked
    if stacked:
        assert terms == {"reach": 0.0, "lift": 0.0, "align": 0.0, "stacked": 16.0}
    else:
        assert terms["stacked"] == 0.0
        assert terms["reach"] > 0.0


def test_stack_episode(make_still):
    env = make_still("FrankaCubeStack", 4)
    put_cube(env, 0, [0.0, 0.0, 0.06])
    put_cube(env, 1, [0.03, 0.04, 0.06])
    put_cube(env, 2, [0.03, 0.04, 0.06])
    env.engine.body_pos[:, 9:] = env.engine.qpos[:, None, 9:12]
    env.engine.body_pos[0, 9, 2] += 0.05
    env.episode_step[2] = 299
    obs, reward, terminated, truncated, info = act(env)
    held = 0.1 + 1.5 + 2.0 * 0.537883
    assert reward[:3].tolist() == pytest.approx([16.0, held, held], abs=1e-4)
    assert terminated.tolist() == [True, False, False, False]
    assert truncated.tolist() == [False, False, True, False]
    assert info["metrics"]["success_rate"].item() == 0.25
    assert info["metrics"]["reward_lift"].item() == 0.375


# -------------------------------------------------------------------- what both share


def test_gripper(make_still):
    env = make_still("FrankaCubePush", 4)
    action = torch.zeros(4, 7)
    action[:, 6] = torch.tensor([1.0, 0.0, -0.01, -1.0])
    act(env, action)
    opening = torch.tensor([0.04, 0.04, 0.0, 0.0])
    assert torch.equal(env.engine.ctrl[:, 7:], opening[:, None].expand(4, 2))


def test_an_action_is_an_acceleration_of_the_hand(make_still):
    """150 / s^2 times 0.1 m or 0.5 rad in world axes; nothing at rest in the default pose without an action."""
    env = make_still("FrankaCubePush", 7)
    env.engine.qpos[:, :9] = env.joint_default
    act(env, torch.cat([torch.eye(7)[:, :6] * 0.02, torch.zeros(7, 1)], 1))
    torque = env.engine.ctrl[:, :7]
    jacobian, mass = env.controller.dynamics(env.engine.body_pos[:, :9], env.engine.body_quat[:, :9])
    acceleration = (jacobian @ torch.linalg.solve(mass, torque[..., None])).squeeze(2)
    expected = torch.zeros(7, 6)
    expected[:6] = torch.diag(0.02 * 150.0 * torch.tensor([0.1, 0.1, 0.1, 0.5, 0.5, 0.5]))
    assert (acceleration - expected).abs().max() < 0.005
    assert torque[6].abs().max() < 1e-5
    assert torque[:6].abs().amax(1).min() > 0.01


@both
def test_reset_distribution(make_still, env_id):
    env = make_still(env_id, 4000)
    stack = env_id == "FrankaCubeStack"
    joints = env.engine.qpos[:, :9]
    velocity = env.engine.qvel
    default = torch.tensor(robot.DEFAULT_POSE).float()
    offset = (joints - default)[:, :7]
    assert offset.abs().max() <= 0.25 + 1e-6
    assert (offset.amax(0) > 0.245).all()
    assert (offset.amin(0) < -0.245).all()
    assert offset.std(0).tolist() == pytest.approx([0.25 / math.sqrt(3.0)] * 7, abs=0.005)
    assert torch.equal(joints[:, 7:], torch.full((4000, 2), 0.035))
    assert (velocity == 0).all()
    cube = env.cube()
    target = env.target()
    assert velocity.shape == (4000, 21 if stack else 15)
    for position, half in ((cube[:, :3], 0.025), (target, 0.035 if stack else 0.025)):  # cube B not in the table
        assert torch.allclose(position[:, 2], torch.tensor(TABLE_TOP + half))
        assert position[:, :2].abs().max() <= 0.25
        assert (position[:, :2].abs().amax(0) > 0.245).all()
    assert target[:, :2].std(0).tolist() == pytest.approx([0.25 / math.sqrt(3.0)] * 2, abs=0.005)
    distance = (cube[:, :2] - target[:, :2]).norm(dim=1)
    least = 0.1697 if stack else 0.1414
    assert (distance < least).sum() <= 3
    assert distance.min() < least + 0.01
    for quaternion in [cube[:, 3:]] + [env.engine.qpos[:, 19:]] * stack:
        yaw = 2.0 * torch.atan2(quaternion[:, 3], quaternion[:, 0])
        assert (quaternion[:, 1:3] == 0).all()
        assert torch.allclose(quaternion.norm(dim=1), torch.ones(4000))
        assert 0.78 < yaw.max() <= 0.7851
        assert -0.7851 <= yaw.min() < -0.78
        assert yaw.mean().abs() < 0.03


# -------------------------------------------------------------------- with physics


@both
def test_observation_layout(env_id):
    """Every slice against MuJoCo's own kinematics of the same state."""
    env = started(env_id, 2, seed=3)
    for action in random_actions(env, 10):
        obs, *_ = env.step(action)
    for i in range(2):
        _, data = data_of(env, i)
        cube = data.body("cube_a")
        grip = data.body("panda_grip_site")
        target = data.body("cube_b").xpos if env_id == "FrankaCubeStack" else env.goal[i].numpy()
        expected = [*cube.xquat[[1, 2, 3, 0]], *cube.xpos, *(target - cube.xpos)]
        expected += [*grip.xpos, *grip.xquat[[1, 2, 3, 0]], *data.qpos[7:9]]
        assert obs[i].tolist() == pytest.approx(expected, abs=1e-5)
