"""Anymal: the published robot, physics to believe, and every rule of the task by hand."""

import math

import mujoco
import numpy as np
import pytest
import torch

from envs.models import anymal as robot
from envs.tasks.anymal import reward_terms
from tests.envs.helpers import inertia_in_body, simulate, started, turn

WEIGHT = 52.13488 * 9.81  # N
LEVEL = (1.0, 0.0, 0.0, 0.0)
LEGS_UP = np.array([0.0, math.pi, 0.0] * 4)


@pytest.fixture(scope="module")
def model():
    return robot.build().compile()


def data_at(model, height=robot.START_HEIGHT, quat=LEVEL, pose=robot.DEFAULT_POSE):
    """At rest at `height` with the joints and their targets in `pose`."""
    data = mujoco.MjData(model)
    data.qpos[:] = [0, 0, height, *quat, *pose]
    data.ctrl[:] = pose
    mujoco.mj_forward(model, data)
    return data


def contact_forces(data):
    """Net force (N) on the base and the four thighs."""
    return np.linalg.norm(data.sensordata[12:].reshape(5, 3), axis=1)


def feet(data):
    return np.array([data.geom(leg + "_FOOT").xpos for leg in robot.LEGS])


# ---------------------------------------------------------------- the robot as published


def test_order_limits_and_mass(model):
    assert (model.nq, model.nv, model.nu, model.nsensordata) == (19, 18, 12, 27)
    names = [leg + joint for leg in ("LF_", "LH_", "RF_", "RH_") for joint in ("HAA", "HFE", "KFE")]
    assert [model.joint(i).name for i in range(1, 13)] == names == [model.actuator(i).name for i in range(12)]
    assert model.actuator_trnid[:, 0].tolist() == list(range(1, 13))
    assert model.jnt_axis[1:, 0].tolist() == [1, 1, 1, -1, 1, 1, 1, -1, -1, -1, -1, -1]
    other = [[-9.42478, 9.42478]] * 2
    left = [[-0.72, 0.49], *other]
    right = [[-0.49, 0.72], *other]
    assert np.allclose(model.jnt_range[1:], left * 2 + right * 2)
    assert model.body_mass.sum() == pytest.approx(52.135, abs=1e-3)


@pytest.mark.parametrize("body, com, inertia", [  # inertia xx, yy, zz, xy, xz, yz
    ("base", (-0.0177939, -0.0001782, 0.0085043), (0.21671, 1.7852, 1.8337, 0.0092238, 0.058933, -0.00016378)),
    ("LF_HIP", (0.0566606, -0.015294, -0.0082978),
     (0.0032955, 0.0050443, 0.0057269, -1.0388e-05, 0.00010706, -0.00031949)),
    ("RH_THIGH", (0.0308147, 4.65e-05, -0.245696), (0.029564, 0.029904, 0.0048611, 4.4292e-05, 0.0041424, 9.448e-05)),
    ("LH_THIGH", (0.0308147, 4.65e-05, -0.245696), (0.029564, 0.029904, 0.0048611, 4.4396e-05, 0.0041424, 0.00011479)),
    ("LH_SHANK", (0.005462, 0.0612528, -0.0806598),
     (0.010161, 0.0088104, 0.0015498, 5.3571e-05, -2.266e-05, 0.0018194)),
])  # fmt: skip
def test_inertias(model, body, com, inertia):
    body = model.body(body)
    assert np.allclose(body.ipos, com, atol=1e-6)
    assert np.allclose(inertia_in_body(body), inertia, rtol=1e-4, atol=1e-8)


def test_feet_at_the_default_pose(model):
    x, y, z = 0.452673, 0.316634, 0.107327
    assert np.allclose(feet(data_at(model)), [(x, y, z), (-x, y, z), (x, -y, z), (-x, -y, z)], atol=2e-6)
    assert model.geom("LF_FOOT").size[0] == 0.03


def test_only_the_ground_is_touched(model):
    rng = np.random.default_rng(0)
    touches = 0
    for _ in range(50):
        data = data_at(model, rng.uniform(0.0, 0.3), rng.normal(size=4), rng.uniform(-1.5, 1.5, 12))
        touches += data.ncon
        assert all(0 in contact.geom for contact in data.contact)
    assert touches > 50
    assert model.geom(0).name == "ground"


# ---------------------------------------------------------------- physics to believe


def test_it_stands(model):
    data = data_at(model)
    simulate(model, data, 1.0)  # dropped from 7.7 cm
    stance = feet(data)
    heights = []
    depth = 0.0
    for _ in range(round(5.0 / robot.TIMESTEP)):
        mujoco.mj_step(model, data)
        heights.append(data.qpos[2])
        depth = max(depth, -min(contact.dist for contact in data.contact))
        assert contact_forces(data).max() == 0.0
        assert data.ncon == 4
    assert 0.50 < min(heights)
    assert max(heights) - min(heights) < 0.01
    assert depth < 0.002
    assert np.abs(feet(data) - stance)[:, :2].max() < 0.002
    assert np.abs(data.qvel).max() < 0.05
    assert np.abs(data.qpos[:2]).max() < 0.02
    assert np.allclose(data.qpos[3:7], LEVEL, atol=0.02)


def test_joint_torques_are_those_of_the_drives(model):
    data = data_at(model)
    simulate(model, data, 5.0)
    drive = 85 * (robot.DEFAULT_POSE - data.qpos[7:]) - 2 * data.qvel[6:]
    mujoco.mj_step(model, data)  # sensors tell of the step's begin
    assert np.allclose(data.sensordata[:12], drive, atol=1e-9)
    assert 5.0 < np.abs(drive[2::3]).min()
    assert np.abs(drive).max() < 30.0  # knees carry
    data.ctrl[:] = robot.DEFAULT_POSE + 2.0
    mujoco.mj_step(model, data)
    assert np.allclose(data.sensordata[:12], 80.0)


def test_contact_sensors_weigh_the_robot(model):
    data = data_at(model, height=0.1, pose=LEGS_UP)
    simulate(model, data, 3.0)
    assert data.qpos[2] == pytest.approx(0.09, abs=0.002)
    assert np.abs(data.qvel).max() < 0.01
    assert contact_forces(data) == pytest.approx([WEIGHT, 0, 0, 0, 0], rel=0.01)


# ---------------------------------------------------------------- the task, by hand


def put(env, quat=LEVEL, height=1.0, pose=None, qvel=None):
    """Every environment in this state."""
    pose = torch.tensor(robot.DEFAULT_POSE) if pose is None else pose
    qpos = torch.cat([torch.tensor([3.0, -2.0, height, *quat], dtype=torch.float64), pose.double()])
    qvel = torch.zeros(18) if qvel is None else qvel
    everywhere = torch.ones(env.num_envs, dtype=torch.bool)
    env.engine.set_state(everywhere, qpos.expand(env.num_envs, 19), qvel.expand(env.num_envs, 18))


def freeze(env, sensors):
    """From now on the physics stands still and the sensors read (N, 27) `sensors`. Returns the list of targets sent."""
    sent = []

    def step(ctrl):
        sent.append(ctrl.clone())
        env.engine.sensors.copy_(sensors)

    env.engine.step = step
    return sent


def test_reward_terms():
    command = torch.tensor([[1.0, 0.0, 0.5], [1.0, -0.5, 0.0], [0.0, 0.0, 0.0]])
    linear = torch.tensor([[1.0, 0.0, 9.0], [0.5, 0.0, 0.0], [0.0, 0.0, 0.0]])
    angular = torch.tensor([[9.0, 9.0, 0.5], [0.0, 0.0, -0.5], [0.0, 0.0, 0.0]])
    torque = torch.zeros(3, 12)
    torque[2] = 20.0
    terms = reward_terms(command, linear, angular, torque)
    assert terms["linear"].tolist() == pytest.approx([0.02, 0.02 * math.exp(-2.0), 0.02])
    assert terms["yaw"].tolist() == pytest.approx([0.01, 0.01 * math.exp(-1.0), 0.01])
    assert terms["torque"].tolist() == pytest.approx([0.0, 0.0, -0.0024])  # 12 * 400 * 2.5e-5 * 0.02


def test_reward_of_a_step_and_its_cut_at_zero():
    env = started("Anymal", 3)
    put(env)
    sensors = torch.zeros(3, 27)
    sensors[1, :12] = 20.0
    sensors[2, :12] = 80.0  # costs 0.0384
    freeze(env, sensors)
    env.command.zero_()
    _, reward, terminated, _, info = env.step(torch.zeros(3, 12))
    assert reward.tolist() == pytest.approx([0.03, 0.0276, 0.0])
    assert not terminated.any()
    env.command.copy_(torch.tensor([[0.3, -0.4, -0.1]] * 3))
    _, reward, _, _, info = env.step(torch.zeros(3, 12))
    assert reward[0].item() == pytest.approx(0.02 * math.exp(-1.0) + 0.01 * math.exp(-0.04))
    assert info["metrics"]["velocity_error"].item() == pytest.approx(0.5)
    assert info["metrics"]["yaw_rate_error"].item() == pytest.approx(0.1)


def test_a_world_that_diverged_neither_earns_nor_logs_a_reward():
    env = started("Anymal", 2)
    put(env)
    freeze(env, torch.zeros(2, 27))
    env.command.zero_()
    env.engine.broken = torch.tensor([False, True])
    _, reward, terminated, _, info = env.step(torch.zeros(2, 12))
    assert terminated.tolist() == [False, True]
    assert reward.tolist() == pytest.approx([0.03, 0.0])
    assert info["metrics"]["reward_linear"].item() == pytest.approx(0.01)
    assert info["metrics"]["reward_yaw"].item() == pytest.approx(0.005)
    assert info["metrics"]["nan_worlds"].item() == 1


def test_actions_are_targets_about_the_default_pose():
    env = started("Anymal")
    sent = freeze(env, torch.zeros(2, 27))
    action = torch.linspace(-1, 1, 12).repeat(2, 1)
    env.step(action)
    env.step(3.0 * torch.ones(2, 12))
    default = torch.tensor([0.03, 0.4, -0.8, 0.03, -0.4, 0.8, -0.03, 0.4, -0.8, -0.03, -0.4, 0.8])
    assert torch.allclose(sent[0], default + 0.5 * action)
    assert torch.allclose(sent[1], (default + 0.5).repeat(2, 1))


def test_observation():
    env = started("Anymal")
    pose = torch.tensor(robot.DEFAULT_POSE) + torch.arange(12) / 10
    qvel = torch.cat([torch.tensor([1.0, 2.0, 0.5, 4.0, -8.0, 12.0]), torch.arange(12) - 3.0])
    put(env, turn(math.pi / 2, 2), pose=pose, qvel=qvel)  # heading along y
    env.command[0] = torch.tensor([1.5, -0.5, 0.8])
    env.action = torch.linspace(-1, 1, 12).repeat(2, 1)
    obs = env.observe()
    assert obs.shape == (2, 48)
    assert torch.allclose(obs[0, :3], torch.tensor([4.0, -2.0, 1.0]), atol=1e-6)  # twice the velocity, in base axes
    assert obs[0, 3:6].tolist() == [1.0, -2.0, 3.0]  # a quarter of the angular velocity, which is in base axes
    assert torch.allclose(obs[0, 6:9], torch.tensor([0.0, 0.0, -1.0]))
    assert torch.allclose(obs[0, 9:12], torch.tensor([3.0, -1.0, 0.2]))
    assert torch.allclose(obs[0, 12:24], torch.arange(12) / 10, atol=1e-6)
    assert torch.allclose(obs[0, 24:36], 0.05 * (torch.arange(12) - 3.0))
    assert torch.equal(obs[0, 36:], env.action[0])
    put(env, qvel=10.0 * torch.ones(18))
    assert env.observe()[0, :3].tolist() == [5.0] * 3  # clamped


def test_gravity_is_in_base_axes_whatever_the_heading():
    env = started("Anymal")
    pitch = turn(0.3, 1)  # nose down
    for yaw in (0.0, 1.0, -2.5):
        quat = np.zeros(4)
        mujoco.mju_mulQuat(quat, turn(yaw, 2), pitch)
        put(env, quat)
        assert torch.allclose(env.observe()[0, 6:9], torch.tensor([math.sin(0.3), 0.0, -math.cos(0.3)]), atol=1e-6)


def test_resets():
    env = started("Anymal", 2_000)
    env.action.fill_(1.0)
    obs = env.reset()
    qpos = env.engine.qpos
    qvel = env.engine.qvel
    default = torch.tensor(robot.DEFAULT_POSE, dtype=torch.float32)
    assert torch.equal(qpos[:, :7], torch.tensor([0, 0, 0.62, 1, 0, 0, 0]).expand(2_000, 7))
    factor = qpos[:, 7:] / default
    assert 0.5 <= factor.min() < 0.51
    assert 1.49 < factor.max() <= 1.5
    assert (factor.mean(0) - 1).abs().max() < 0.03
    assert (qvel[:, :6] == 0).all()
    assert 0.099 < qvel[:, 6:].abs().max() <= 0.1
    assert qvel[:, 6:].mean(0).abs().max() < 0.01
    limits = torch.tensor([2.0, 1.0, 1.0])
    command = env.command
    assert (command.abs() <= limits).all()
    assert (command.abs().amax(0) > 0.99 * limits).all()
    assert (command.mean(0).abs() < 0.07 * limits).all()
    assert (obs[:, 36:] == 0).all()
    assert (env.engine.sensors == 0).all()


def test_the_command_stays_until_the_episode_ends():
    env = started("Anymal")
    first = env.command.clone()
    for _ in range(5):
        env.step(torch.zeros(2, 12))
    assert torch.equal(env.command, first)
    env.episode_step.copy_(torch.tensor([2498, 2499]))
    _, _, terminated, truncated, _ = env.step(torch.zeros(2, 12))
    assert truncated.tolist() == [False, True]
    assert not terminated.any()
    assert torch.equal(env.command[0], first[0])
    assert not torch.equal(env.command[1], first[1])


def test_more_than_a_newton_on_base_or_thighs_is_a_fall():
    env = started("Anymal", 12)
    sensors = torch.zeros(12, 27)
    for i in range(5):
        sensors[i, 12 + 3 * i + i % 3] = -1.01
        sensors[i + 5, 12 + 3 * i + i % 3] = 0.99
    sensors[10, 12:] = 0.577  # a norm of 0.9994 on each
    sensors[11, 12:15] = 0.58  # 1.0046
    freeze(env, sensors)
    assert env.step(torch.zeros(12, 12))[2].tolist() == [True] * 5 + [False] * 6 + [True]
