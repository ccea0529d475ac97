"""In-hand reorientation: the hand's numbers, every term and rule of the task by hand, then with physics."""

import math

import mujoco
import numpy as np
import pytest
import torch

import envs
from envs.models import allegro_hand as robot
from envs.rotations import multiply
from envs.tasks import in_hand as task
from tests.envs.helpers import StillEngine, data_of, motion, random_actions, simulate, started, turn

START = np.clip(np.zeros(16), robot.JOINT_LOWER, robot.JOINT_UPPER)
# Joint targets (rad) that hold the cube, found by random search.
SHUT = [0.04, 0.58, 0.8, 0.78, 0.0, 1.11, 0.92, 1.18, -0.31, 1.29, 0.86, 0.63, 0.91, 0.98, 0.6, 0.6]
LOWER = torch.tensor(robot.JOINT_LOWER).float()
UPPER = torch.tensor(robot.JOINT_UPPER).float()


# -------------------------------------------------------------------- the hand


@pytest.fixture(scope="module")
def model():
    return envs.make("AllegroHand", 1).engine.models[0]


def start(model, cube=(0.0, 0.0, 5.0, 1.0, 0.0, 0.0, 0.0), pose=START):
    data = mujoco.MjData(model)
    data.qpos[:16] = data.ctrl[:] = pose
    data.qpos[16:] = cube
    mujoco.mj_forward(model, data)
    return data


def test_joints_drives_and_masses(model):
    assert (model.nq, model.nv, model.nu) == (23, 22, 16)
    assert [model.joint(i).name for i in range(16)] == robot.JOINT_NAMES
    assert robot.JOINT_NAMES[0] == "index_joint_0"
    assert robot.JOINT_NAMES[12] == "thumb_joint_0"
    assert [model.actuator(i).trnid[0] for i in range(16)] == list(range(16))
    finger = [[-0.558489, 0.558489]] + [[-0.279244, 1.727825]] * 3
    thumb = [[0.279244, 1.57075], [-0.331603, 1.151883], [-0.279244, 1.727825], [-0.279244, 1.762731]]
    assert np.allclose(model.jnt_range[:16], finger * 3 + thumb, atol=1e-5)
    assert np.allclose(model.actuator_forcerange, (-0.5, 0.5))
    assert model.body_mass.sum() == pytest.approx(0.4654 + 3 * 0.143 + 0.1273 + 0.109850, abs=1e-5)
    assert np.allclose(model.body("cube").inertia, 400 * 0.065**5 / 6)


def test_forward_kinematics(model):
    data = start(model, pose=np.zeros(16))  # positions from the published robot description
    for name, position in (
        ("allegro_mount", (0, 0, 0.5)),
        ("index_link_3", (-0.0532, -0.2242, 0.4879)),
        ("middle_link_3", (0.0000, -0.2268, 0.4877)),
        ("ring_link_3", (0.0531, -0.2242, 0.4879)),
        ("thumb_link_3", (-0.1233, -0.0343, 0.4927)),
    ):
        assert np.allclose(data.body(name).xpos, position, atol=1e-4), name


def test_fingers_pressed_against_each_other_do_not_jitter(model):
    pose = START.copy()
    pose[:12] = [-0.5, 1.3, 0.3, 0.3, 0.0, 1.3, 0.3, 0.3, 0.5, 1.3, 0.3, 0.3]  # index and ring press on the middle
    data = start(model)
    data.ctrl[:] = pose
    simulate(model, data, 2.0)
    assert data.ncon >= 2
    assert min(data.contact.dist) > -0.002
    before = data.qpos[:16].copy()
    speeds = []
    for _ in range(45):
        mujoco.mj_step(model, data)
        speeds.append(np.abs(data.qvel[:16]).max())
    assert max(speeds) < 0.02
    assert np.abs(data.qpos[:16] - before).max() < 5e-3


# -------------------------------------------------------------------- the cube

FLAT = [(0.0, 0), (math.pi / 2, 0), (math.pi / 2, 2), (math.pi, 0), (0.3, 2), (-math.pi / 2, 1)]  # rad, axis


@pytest.mark.parametrize("angle, axis", FLAT)
def test_a_cube_rests_in_the_hand(model, angle, axis):
    data = start(model, [0.0, -0.18, 0.56, *turn(angle, axis)])
    simulate(model, data, 1.5)  # it tips over, from the middle finger to the ring finger
    before = data.qpos.copy()
    simulate(model, data, 2.0)
    assert np.linalg.norm(data.qpos[16:19] - before[16:19]) < 0.0003
    assert np.linalg.norm(data.qpos[16:19] - (0.0, -0.2, 0.52)) < 0.06
    assert data.ncon >= 3
    assert min(data.contact.dist) > -0.002
    assert np.abs(data.qvel).max() < 0.01
    assert np.abs(data.qpos[:16] - before[:16]).max() < 0.005


def test_a_grasped_cube_stays_when_the_hand_is_turned_over(model):
    """The reason for the friction cone: three fingers and the thumb hold it, then gravity turns around."""
    data = start(model, [0.0, -0.17, 0.56, 1, 0, 0, 0])
    simulate(model, data, 0.5)
    data.ctrl[:] = SHUT
    simulate(model, data, 1.5)
    held = data.qpos[16:19].copy()
    for angle in np.linspace(0.0, math.pi, 60):
        model.opt.gravity[:] = 9.81 * math.sin(angle), 0.0, -9.81 * math.cos(angle)
        simulate(model, data, 0.03)
    simulate(model, data, 2.0)
    model.opt.gravity[:] = 0.0, 0.0, -9.81
    assert np.linalg.norm(data.qpos[16:19] - held) < 0.005
    assert min(data.contact.dist) > -0.002


def test_a_cube_that_starts_inside_the_fingers_is_not_shot_off(model):
    rng = np.random.default_rng(0)
    deepest = 0.0
    for _ in range(60):
        first, second = rng.uniform(-math.pi, math.pi, 2)
        quaternion = np.zeros(4)
        mujoco.mju_mulQuat(quaternion, turn(first, 0), turn(second, 1))
        pose = np.clip(rng.uniform(0.2 * robot.JOINT_LOWER, 0.2 * robot.JOINT_UPPER), robot.JOINT_LOWER, None)
        data = start(model, [*(rng.uniform(-0.01, 0.01, 3) + (0.0, -0.2, 0.56)), *quaternion], pose)
        deepest = min([deepest, *data.contact.dist])
        for _ in range(9):
            mujoco.mj_step(model, data)
            assert np.linalg.norm(data.qvel[16:19]) < 1.5  # m/s; 1.0 by gravity alone
    assert deepest < -0.01


# -------------------------------------------------------------------- reward, term by term


@pytest.fixture
def make_still(monkeypatch):
    monkeypatch.setattr(task, "make_engine", StillEngine)

    def make(num_envs=3, env_class=task.AllegroHand):
        env = env_class(num_envs, "cpu", 1)
        env.reset()
        return env

    return make


def put_cube(env, index, position=(0.0, -0.2, 0.52), off_goal=1.0):
    """The cube at `position`, turned by `off_goal` rad from the goal about the world's y axis."""
    env.engine.body_pos[index, 0] = torch.tensor(position)
    env.engine.body_quat[index, 0] = multiply(torch.tensor(turn(off_goal, 1)), env.goal[index])


def act(env, action=0.0):
    return env.step(torch.full((env.num_envs, 16), action))


def terms(distance=0.05, rotation=1.0, action=(0.0,) * 16):
    values = task.reward_terms(torch.tensor([distance]), torch.tensor([rotation]), torch.tensor([action]))
    return {name: value.item() for name, value in values.items()}


@pytest.mark.parametrize(
    "changes, name, expected",
    [
        (dict(distance=0.05), "distance", -0.5),
        (dict(rotation=0.0), "rotation", 10.0),
        (dict(rotation=0.1), "rotation", 5.0),
        (dict(rotation=1.9), "rotation", 0.5),
        (dict(rotation=math.pi), "rotation", 0.308489),
        (dict(action=[1.0, -0.5] + [0.0] * 14), "action", -0.00025),
        (dict(rotation=0.0999), "success", 250.0),
        (dict(rotation=0.1001), "success", 0.0),
    ],
)
def test_reward_terms(changes, name, expected):
    assert terms(**changes)[name] == pytest.approx(expected, abs=1e-5)


def test_reward_is_the_sum_of_its_terms(make_still):
    env = make_still(2)
    put_cube(env, 0, (0.0, -0.1, 0.52), 0.4)
    put_cube(env, 1, (0.0, -0.2, 0.52), 0.05)
    _, reward, *_ = act(env, 0.5)
    assert reward.tolist() == pytest.approx([-1.0 + 2.0 - 0.0008, 1 / 0.15 + 250.0 - 0.0008], abs=1e-3)
    assert env.term_sums[0].tolist() == pytest.approx([-1.0, 2.0, -0.0008, 0.0], abs=1e-4)


@pytest.mark.parametrize("angle", [0.0, 0.05, 1.0, 3.0, math.pi, 2 * math.pi - 0.3])
def test_angle_of_a_quaternion_and_its_negative(angle):
    for sign in (1.0, -1.0):
        found = task.angle(sign * torch.tensor(turn(angle, 1))).item()
        assert found == pytest.approx(min(angle, 2 * math.pi - angle), abs=2e-3)


# -------------------------------------------------------------------- rules


def test_a_success_brings_the_next_goal_at_once_and_leaves_all_else(make_still):
    env = make_still(2)
    put_cube(env, 0, off_goal=0.05)
    put_cube(env, 1, off_goal=0.3)
    goal = env.goal.clone()
    qpos = env.engine.qpos.clone()
    obs, _, terminated, truncated, info = act(env)
    assert env.successes.tolist() == [1.0, 0.0]
    assert not (terminated | truncated).any()
    assert (env.goal[0] != goal[0]).any()
    assert torch.equal(env.goal[1], goal[1])
    assert torch.equal(env.engine.qpos, qpos)
    assert env.episode_step.tolist() == [1, 1]
    assert torch.equal(obs[0, 64:68], env.goal[0].roll(-1))  # it is seen already
    put_cube(env, 0, off_goal=-0.05)
    act(env)
    assert env.successes.tolist() == [2.0, 0.0]


def test_objective_counts_the_successes_of_the_episode(make_still):
    env = make_still(3)
    env.consecutive_successes.fill_(10.0)
    for _ in range(3):
        for index, angle in enumerate((0.05, 1.0, 1.0)):
            put_cube(env, index, off_goal=angle)
        act(env)
    assert env.consecutive_successes.item() == 10.0  # nothing finished
    env.episode_step[:2] = 599
    put_cube(env, 0, off_goal=0.05)
    goal = env.goal.clone()
    *_, truncated, info = act(env)
    assert truncated.tolist() == [True, True, False]
    assert info["episode"]["objective"].tolist() == [4.0, 0.0, 0.0]
    assert torch.equal(info["final_obs"][:, 64:68], goal.roll(-1, 1))
    assert not env.term_sums[:2].any()
    assert info["metrics"]["successes"].item() == pytest.approx(4.0 / 3.0)
    assert not env.successes.any()
    assert info["metrics"]["consecutive_successes"].item() == pytest.approx(0.9 * 10.0 + 0.1 * 2.0)


@pytest.mark.parametrize("drop, lost", [(0.239, False), (0.241, True)])
def test_a_lost_cube_terminates(make_still, drop, lost):
    env = make_still(2)
    put_cube(env, 0, (0.0, -0.2, 0.52 - drop))
    put_cube(env, 1)
    _, reward, terminated, truncated, _ = act(env)
    assert terminated.tolist() == [lost, False]
    assert not truncated.any()
    assert reward[0].item() == pytest.approx(-10 * drop + 1 / 1.1, abs=1e-3)  # no penalty for losing it


def test_actions_are_absolute_targets(make_still):
    env = make_still(1)
    for action, expected in ((-1.0, LOWER), (1.0, UPPER), (0.0, (LOWER + UPPER) / 2), (5.0, UPPER)):
        act(env, action)
        assert torch.allclose(env.engine.ctrl[0], expected, atol=1e-6)


# -------------------------------------------------------------------- resets


@pytest.mark.parametrize(
    "env_class, start", [(task.AllegroHand, [0.0, -0.2, 0.56]), (task.ShadowHand, [0.0, -0.39, 0.6])]
)
def test_reset_distribution(make_still, env_class, start):
    env = make_still(4000, env_class)
    joints = env.engine.qpos[:, : env.num_joints]
    count = env.num_joints
    low, high = ((0.2 * limit).clamp(env.lower, env.upper) for limit in (env.lower, env.upper))
    assert (joints >= low - 1e-6).all()
    assert (joints <= high + 1e-6).all()
    assert torch.allclose(joints.amin(0), low, atol=0.005)
    assert torch.allclose(joints.amax(0), high, atol=0.005)
    offset = env.engine.qpos[:, count : count + 3] - torch.tensor(start)
    assert offset.abs().max() <= 0.01 + 1e-6
    assert offset.std(0).tolist() == pytest.approx([0.01 / 3**0.5] * 3, rel=0.05)
    assert not env.engine.qvel.any()
    for quaternion in (env.engine.qpos[:, count + 3 :], env.goal):  # a turn about x, then about the turned y
        w, x, y, z = quaternion.T
        assert torch.allclose(quaternion.norm(dim=1), torch.ones(4000), atol=1e-5)
        assert (w * z - x * y).abs().max() < 1e-6
        assert torch.allclose(quaternion.square().mean(0), torch.full((4,), 0.25), atol=0.02)
    assert not torch.allclose(env.engine.qpos[:, count + 3 :], env.goal)


# -------------------------------------------------------------------- with physics


@pytest.mark.parametrize("env_id", ["AllegroHand", "ShadowHand"])
def test_observation_layout(env_id):
    """Every slice against MuJoCo's own kinematics of the same state."""
    env = started(env_id, 2, seed=3)
    for action in random_actions(env, 12):
        obs = env.step(action)[0].double().numpy()
    for i in range(2):
        model, data = data_of(env, i)
        joints = data.qpos[: env.num_joints]
        lower = env.lower.numpy()
        upper = env.upper.numpy()
        cube = data.body("cube")
        goal = env.goal[i].double().numpy()
        relative = np.zeros(4)
        mujoco.mju_mulQuat(relative, cube.xquat, goal * [1, -1, -1, -1])

        expected = [
            *(2 * (joints - lower) / (upper - lower) - 1),
            *(0.2 * data.qvel[: env.num_joints]),
            *(10.0 * env.joint_force()[i]),
            *motion(model, data, "cube")[:10],
            *(0.2 * np.array(motion(model, data, "cube")[10:])),
            *env.cube_start[:2],
            env.cube_start[2] - 0.04,
            *np.roll(goal, -1),
            *np.roll(relative, -1),
            *[x for name in env.fingertip_bodies for x in motion(model, data, name)],
            *(10.0 * env.engine.sensors[i, 2 * env.num_joints :]),
            *action[i],
        ]
        assert obs[i] == pytest.approx(np.clip(np.array(expected, float), -5, 5), abs=3e-4)


def test_joint_forces_are_zeros_unless_switched_on(make_still, monkeypatch):
    """The hand of the original reads sensors that it never enables; ShadowHand's are on."""
    env = make_still(2)
    env.engine.sensors[:, :16] = 0.2
    env.engine.sensors[:, 16:] = 0.0
    assert torch.equal(env.observe()[:, 32:48], torch.zeros(2, 16))
    monkeypatch.setattr(task.AllegroHand, "joint_force_sensors", True)
    assert (env.observe()[:, 32:48] != 0.0).all()
    assert task.ShadowHand.joint_force_sensors
