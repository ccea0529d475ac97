"""Ant and Humanoid: published numbers, physics to be believed, every term of the reward and the observation by hand."""

import math

import mujoco
import numpy as np
import pytest
import torch

import envs
from envs.models import ant, humanoid
from envs.tasks import locomotion as task
from tests.envs.helpers import StillEngine, started, turn

BOTH = pytest.mark.parametrize("env_id", ["Ant", "Humanoid"])
ROBOTS = {"Ant": ant, "Humanoid": humanoid}


@pytest.fixture(scope="module")
def models():
    specs = {name: robot.build() for name, robot in ROBOTS.items()}
    for spec in specs.values():
        spec.compiler.discardvisual = True  # as the engines do
    return {name: spec.compile() for name, spec in specs.items()}


def data_at(model, pose, height=0.0):
    """Data with the joints in `pose` and the torso's origin at (0, 0, height)."""
    data = mujoco.MjData(model)
    data.qpos[2] = height
    data.qpos[7:] = pose
    mujoco.mj_forward(model, data)
    return data


def step(model, data, seconds):
    """Steps of MuJoCo; returns the deepest penetration (m) on the way."""
    deepest = 0.0
    for _ in range(round(seconds / model.opt.timestep)):
        mujoco.mj_step(model, data)
        deepest = max(deepest, -min(data.contact.dist, default=0.0))
    return deepest


# ---------------------------------------------------------------- the robots: published numbers


def test_ant_numbers(models):
    model = models["Ant"]
    assert (model.nq, model.nv, model.nu, model.nsensordata, model.ngeom) == (15, 14, 8, 24, 14)
    assert model.body_mass.sum() == pytest.approx(0.91088, abs=1e-5)
    for name, mass, inertia in (  # principal moments in kg m^2
        ("torso", 0.48388, (0.0135857, 0.0111204, 0.0111204)),
        ("left_back_leg", 0.0391578, (0.000567966, 0.000567966, 0.000118442)),
        ("right_back_foot", 0.0675922, (0.00267479, 0.00267479, 0.000209432)),
    ):
        assert model.body(name).mass[0] == pytest.approx(mass, rel=1e-5)
        assert sorted(model.body(name).inertia, reverse=True) == pytest.approx(inertia, rel=1e-5)
    names = ["hip_1", "ankle_1", "hip_2", "ankle_2", "hip_3", "ankle_3", "hip_4", "ankle_4"]
    assert [model.joint(i).name for i in range(1, 9)] == names == ant.JOINT_NAMES
    hip = (-0.698132, 0.698132)
    bent = (0.523599, 1.745329)
    mirrored = (-1.745329, -0.523599)
    assert np.allclose(model.jnt_range[1:], [hip, bent, hip, mirrored, hip, mirrored, hip, bent], atol=1e-6)
    assert (model.actuator_gear[:, 0] == 15.0).all()
    assert (model.geom_friction[1:, 0] == 1.5).all()


def test_humanoid_numbers(models):
    model = models["Humanoid"]
    assert (model.nq, model.nv, model.nu, model.nsensordata, model.ngeom) == (28, 27, 21, 33, 20)
    assert model.body_mass.sum() == pytest.approx(40.84402, abs=1e-4)
    for name, mass, centre in (
        ("torso", 5.85383, (-0.003864, 0, -0.046368)),
        ("pelvis", 6.61619, (-0.02, 0, 0)),
        ("left_thigh", 4.75175, (0, -0.005, -0.17)),
        ("right_foot", 1.13114, (0.035, -0.01, 0)),
        ("left_lower_arm", 0.961458, (0.09, -0.09, 0.09)),
    ):
        assert model.body(name).mass[0] == pytest.approx(mass, rel=1e-5)
        assert np.allclose(model.body(name).ipos, centre, atol=1e-6)
    assert [model.joint(i).name for i in range(1, 22)] == humanoid.JOINT_NAMES
    assert [model.actuator(i).trnid[0] for i in range(21)] == list(range(1, 22))
    gears = [67.5] * 3 + [45, 45, 135, 90, 22.5, 22.5] * 2 + [67.5, 67.5, 45] * 2
    assert model.actuator_gear[:, 0].tolist() == gears == humanoid.GEAR
    for name, low, high in (
        ("abdomen_y", -1.309, 0.5236),
        ("right_hip_x", -0.7854, 0.2618),
        ("left_knee", -2.7925, 0.034907),
        ("right_ankle_x", -0.87266, 0.87266),
        ("left_shoulder2", -1.5708, 1.2217),
    ):
        assert np.allclose(model.joint(name).range, (low, high), atol=1e-4)


# World positions (m) of body frames from the published tables, computed without MuJoCo.
BENT = [0.2, -0.3, 0.1, -0.2, 0.1, -0.5, -0.8, 0.3, -0.2, -0.1, 0.2]
BENT += [0.3, -0.4, -0.1, 0.2, 0.5, -0.4, -0.6, -0.3, 0.2, 0.4]


@pytest.mark.parametrize("env_id, pose, positions", [
    ("Ant", ant.DEFAULT_POSE + [0.3, 0, 0, 0, 0, 0, -0.2, 0], {
        "front_left_foot": (0.331963, 0.450171, 0.44), "left_back_foot": (-0.4, -0.4, 0.44),
        "right_back_foot": (0.356279, -0.435747, 0.44),
    }),
    ("Humanoid", np.zeros(21), {
        "head": (0, 0, 1.53), "pelvis": (-0.00934, 0, 0.915001), "right_foot": (-0.002676, -0.09, 0.082028),
        "left_hand": (0.36, 0.17, 1.4),
    }),
    ("Humanoid", BENT, {
        "pelvis": (0.055101, 0.023258, 0.926008), "right_shin": (0.360508, -0.020624, 0.59248),
        "right_foot": (0.35341, -0.087325, 0.212332), "left_foot": (-0.142957, 0.304312, 0.164384),
        "right_hand": (0.344311, -0.199232, 1.046443), "left_hand": (0.230423, 0.110555, 1.481935),
    }),
])  # fmt: skip
def test_forward_kinematics(models, env_id, pose, positions):
    data = data_at(models[env_id], pose, ROBOTS[env_id].START_HEIGHT)
    for name, position in positions.items():
        assert np.allclose(data.body(name).xpos, position, atol=2e-6), name


def test_self_collision_of_the_humanoid_alone(models):
    for env_id, touches in (("Ant", False), ("Humanoid", True)):
        model = models[env_id]
        rng = np.random.default_rng(0)
        touched = 0
        for _ in range(200):
            data = data_at(model, rng.uniform(model.jnt_range[1:, 0], model.jnt_range[1:, 1]), height=5.0)
            touched += data.ncon > 0
        assert touched > 20 if touches else touched == 0


# ---------------------------------------------------------------- physics


def test_the_ant_settles_on_its_feet_and_stays(models):
    model = models["Ant"]
    data = data_at(model, ant.DEFAULT_POSE, ant.START_HEIGHT)
    assert step(model, data, 2.0) < 0.02  # it falls 8 cm
    rest = data.qpos.copy()
    assert rest[2] == pytest.approx(0.5 * 0.4 * math.sqrt(2) + 0.08, abs=0.002)  # toes 30 degrees down
    assert {model.body(model.geom_bodyid[c.geom2]).name for c in data.contact} == set(ant.FOOT_BODIES)
    assert step(model, data, 2.0) < 0.001
    assert np.abs(data.qpos - rest).max() < 1e-6
    assert np.abs(data.qvel).max() < 1e-6


def test_the_humanoid_stands_when_its_motors_hold_the_joints():
    """Springs alone do not carry it; a position servo with the motors' own torques does."""
    spec = humanoid.build()
    for motor, torque in zip(spec.actuators, humanoid.GEAR):
        soft = dict(ankle=400.0, shoulder=100.0, elbow=50.0, hip_x=500.0, hip_z=500.0)  # N m / rad
        stiffness = next((value for part, value in soft.items() if part in motor.name), 1000.0)
        motor.set_to_position(kp=stiffness, kv=0.1 * stiffness)
        motor.gear[0] = 1.0
        motor.forcerange = (-torque, torque)
    model = spec.compile()
    data = data_at(model, humanoid.DEFAULT_POSE, 1.285)
    for _ in range(2):
        step(model, data, 2.0)
        assert min(data.contact.dist) > -0.001
        assert data.qpos[2] == pytest.approx(1.285, abs=0.003)
        assert np.abs(data.qpos[:2]).max() < 0.05
        assert np.abs(data.qpos[7:]).max() < 0.05
        assert np.abs(data.qvel).max() < 0.05
        assert (np.abs(data.actuator_force) < 0.6 * np.array(humanoid.GEAR)).all()
        assert {model.body(model.geom_bodyid[c.geom2]).name for c in data.contact} == set(humanoid.FOOT_BODIES)


def test_feet_of_a_resting_ant_carry_its_weight(models):
    model = models["Ant"]
    data = data_at(model, ant.DEFAULT_POSE, ant.START_HEIGHT)
    step(model, data, 3.0)
    force = np.zeros(3)
    for i, name in enumerate(ant.FOOT_BODIES):
        assert model.sensor(2 * i).adr[0] == 6 * i
        assert model.sensor(2 * i).dim[0] == 3
        force += data.body(name).xmat.reshape(3, 3) @ data.sensordata[6 * i : 6 * i + 3]
    weight = (0.91088 - 4 * 0.0675922) * 9.81  # of what the feet carry
    assert np.allclose(force, (0, 0, -weight), atol=0.01)


def test_limit_sensors_read_the_torque_of_the_stop(models):
    model = models["Humanoid"]
    model.opt.gravity[:] = 0.0
    data = data_at(model, humanoid.DEFAULT_POSE, 5.0)
    knee = humanoid.JOINT_NAMES.index("right_knee")
    data.ctrl[knee] = 0.2  # 18 N m against the upper limit of 2 degrees
    step(model, data, 0.5)
    model.opt.gravity[2] = -9.81
    limits = data.sensordata[12:]
    assert limits[knee] == pytest.approx(18.0, abs=0.3)
    assert data.qpos[7 + knee] > 0.0349  # its size; never negative
    assert np.delete(limits, knee).max() == 0.0


# ---------------------------------------------------------------- the tasks, with hand-made states


@pytest.fixture
def make_still(monkeypatch):
    monkeypatch.setattr(task, "make_engine", StillEngine)

    def make(env_id, num_envs=1):
        env = envs.make(env_id, num_envs)
        env.reset()
        env.engine.qpos[:, :7] = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0])
        env.engine.qpos[:, 7:] = (env.joint_lower + env.joint_upper) / 2.0
        env.engine.qvel.zero_()
        env.distance = env.distance_to_target()
        return env

    return make


def terms(env, approach=0.0):
    return {name: value.tolist() for name, value in env.reward_terms(torch.full((env.num_envs,), approach)).items()}


@BOTH
def test_reward_of_standing_still_in_the_middle_of_all_joints(make_still, env_id):
    env = make_still(env_id)
    alive = {"Ant": 0.5, "Humanoid": 2.0}[env_id]
    _, reward, terminated, truncated, _ = env.step(torch.zeros(1, env.num_actions))
    assert reward.item() == pytest.approx(alive + 0.1 + 0.5)
    assert not terminated
    assert not truncated
    expected = dict(progress=0, alive=alive, upright=0.1, heading=0.5, action=0, energy=0, limits=0)
    assert {name: value[0] for name, value in terms(env).items()} == pytest.approx(expected)


@BOTH
def test_progress_is_the_speed_towards_the_target(make_still, env_id):
    env = make_still(env_id, 4)
    base = env.step(torch.zeros(4, env.num_actions))[1]
    env.engine.qpos[:, :2] += torch.tensor([[0.0166, 0.0], [-0.0332, 0.0], [0.0, 0.5], [0.0, 0.0]])
    _, reward, *_ = env.step(torch.zeros(4, env.num_actions))
    # the third: sqrt(1000^2 + 0.5^2) - 1000 = 1.25e-4 m
    assert (reward - base).tolist() == pytest.approx([1.0, -2.0, -0.00753, 0.0], abs=1e-4)
    assert (env.step(torch.zeros(4, env.num_actions))[1] - base).abs().max() < 1e-4  # paid once


@BOTH
def test_progress_is_as_precise_far_away(make_still, env_id):
    env = make_still(env_id)
    env.engine.qpos[0, 0] = 130.0  # what a fast runner reaches
    env.distance = env.distance_to_target()
    base = env.step(torch.zeros(1, env.num_actions))[1]
    env.engine.qpos[0, 0] += 0.083
    assert (env.step(torch.zeros(1, env.num_actions))[1] - base).item() == pytest.approx(5.0, abs=2e-3)


@pytest.mark.parametrize(
    "env_id, action, velocity, costs",
    [
        ("Ant", {0: 1.0, 1: -0.5, 7: 0.2}, {0: 10.0, 1: 4.0, 2: 9.0, 7: -5.0}, (0.005, 0.05 * (2.0 + 0.4 + 0.2))),
        # abdomen_z, right_hip_y, right_knee; the energy of a joint is weighted by its gear
        (
            "Humanoid",
            {0: 1.0, 5: -0.5, 6: 0.2},
            {0: 10.0, 5: 4.0, 6: -5.0, 7: 9.0},
            (0.01, 0.05 * (1.0 * 0.5 + 0.2 * 1.0 + 0.1 * 90 / 135)),
        ),
    ],
)
def test_effort_costs(make_still, env_id, action, velocity, costs):
    env = make_still(env_id)
    env.action = torch.zeros(1, env.num_actions)
    for joint, value in action.items():
        env.action[0, joint] = value
    for joint, value in velocity.items():
        env.engine.qvel[0, 6 + joint] = value
    result = terms(env)
    assert result["action"] == pytest.approx([-costs[0] * (1.0 + 0.25 + 0.04)])
    assert result["energy"] == pytest.approx([-costs[1]])


def put_normalised(env, joints):
    """Joints of the first environment, -1 and 1 being their limits."""
    middle = (env.joint_upper + env.joint_lower) / 2
    half = (env.joint_upper - env.joint_lower) / 2
    env.engine.qpos[0, 7:] = middle
    for joint, value in joints.items():
        env.engine.qpos[0, 7 + joint] = middle[joint] + value * half[joint]


@pytest.mark.parametrize(
    "env_id, joints, cost",
    [
        ("Ant", {0: 0.992, 3: 1.01, 5: 0.985}, 0.2),
        ("Ant", {2: -1.05}, 0.0),  # at the upper side alone
        # right_hip_y (gear 135); right_knee (90), half as deep; abdomen_z (67.5), twice as deep
        ("Humanoid", {5: 1.0, 6: -0.99}, 0.25 * (1.0 + 0.5 * 90 / 135)),
        ("Humanoid", {0: -1.02}, 0.25 * 2.0 * 0.5),
        ("Humanoid", {0: 0.979}, 0.0),
    ],
)
def test_limits_cost(make_still, env_id, joints, cost):
    env = make_still(env_id)
    put_normalised(env, joints)
    assert terms(env)["limits"] == pytest.approx([-cost], abs=1e-3)


@BOTH
def test_upright_pays_above_093(make_still, env_id):
    env = make_still(env_id, 3)
    for i, (angle, axis) in enumerate(((0.37, 0), (-0.37, 1), (0.38, 0))):  # cos 0.37 = 0.932, cos 0.38 = 0.929
        env.engine.qpos[i, 3:7] = torch.tensor(turn(angle, axis))
    assert terms(env)["upright"] == pytest.approx([0.1, 0.1, 0.0])


@BOTH
def test_heading_pays_linearly_up_to_08(make_still, env_id):
    env = make_still(env_id, 5)
    for i, yaw in enumerate((0.0, 0.6, -1.2, 2.0, math.pi)):
        env.engine.qpos[i, 3:7] = torch.tensor(turn(yaw, 2))
    expected = [0.5, 0.5, 0.5 * math.cos(1.2) / 0.8, 0.5 * math.cos(2.0) / 0.8, -0.625]
    assert terms(env)["heading"] == pytest.approx(expected, abs=1e-6)
    env.engine.qpos[0, :2] = torch.tensor([1000.0, 7.0])  # the target lies at -y of it
    env.engine.qpos[0, 3:7] = torch.tensor(turn(-math.pi / 2, 2))
    assert terms(env)["heading"][0] == pytest.approx(0.5, abs=1e-6)
    env.engine.qpos[0, 3:7] = torch.tensor(turn(0.0, 2))
    assert terms(env)["heading"][0] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    "env_id, above, below, reward", [("Ant", 0.311, 0.309, -2.0), ("Humanoid", 0.801, 0.799, -1.0)]
)
def test_falling_ends_the_episode_and_replaces_the_reward(make_still, env_id, above, below, reward):
    env = make_still(env_id, 2)
    env.engine.qpos[:, 2] = torch.tensor([above, below])
    env.engine.qpos[:, 0] += 0.1  # progress counts no more
    _, rewards, terminated, truncated, info = env.step(torch.ones(2, env.num_actions))
    assert terminated.tolist() == [False, True]
    assert not truncated.any()
    assert rewards[1].item() == reward
    assert rewards[0].item() > 3.0
    assert info["episode"]["return"][1].item() == reward == info["episode"]["objective"][1].item()


@BOTH
def test_a_world_that_diverged_neither_earns_nor_logs_a_reward(make_still, env_id):
    env = make_still(env_id, 2)
    env.engine.qpos[1, 0] -= 900.0  # as where the engine has put the world back
    env.engine.broken = torch.tensor([False, True])
    _, rewards, terminated, _, info = env.step(torch.zeros(2, env.num_actions))
    assert terminated.tolist() == [False, True]
    assert rewards[1] == 0.0
    logged = info["metrics"]
    assert logged["reward_progress"] == 0.0
    assert logged["reward_alive"] == env.alive_reward / 2.0
    assert logged["nan_worlds"] == 1


@BOTH
def test_observation_layout(make_still, env_id):
    env = make_still(env_id)
    joints = env.num_actions
    shift = 0 if env_id == "Ant" else 21
    spin, speed, wrench = {"Ant": (1.0, 0.2, 0.1), "Humanoid": (0.25, 0.1, 0.01)}[env_id]
    env.engine.qpos[0, :3] = torch.tensor([999.0, 1.0, 1.2])
    env.engine.qpos[0, 3:7] = torch.tensor(turn(0.5, 2))
    env.engine.qpos[0, 7:] = env.joint_lower + (env.joint_upper - env.joint_lower) * torch.linspace(0, 1, joints)
    env.engine.qvel[0, :6] = torch.tensor([2.0, 1.0, -3.0, 0.4, -0.8, 1.2])
    env.engine.qvel[0, 6:] = torch.arange(joints)
    env.engine.sensors[0] = torch.arange(env.engine.sensors.shape[1]) + 1.0
    env.action = torch.linspace(-1, 1, joints)[None]
    obs = env.observe()[0].tolist()
    assert len(obs) == env.num_obs == {"Ant": 60, "Humanoid": 108}[env_id]
    cos = math.cos(0.5)
    sin = math.sin(0.5)
    assert obs[0] == pytest.approx(1.2)
    assert obs[1:4] == pytest.approx([2.0 * cos + sin, -2.0 * sin + cos, -3.0], abs=1e-5)
    assert obs[4:7] == pytest.approx([0.4 * spin, -0.8 * spin, 1.2 * spin])
    # the target lies 1 m ahead and 1 m to the right: at -45 degrees
    assert obs[7:10] == pytest.approx([0.5, 0.0, -math.pi / 4 - 0.5], abs=1e-5)
    assert obs[10:12] == pytest.approx([1.0, (cos - sin) / math.sqrt(2)], abs=1e-5)
    assert obs[12 : 12 + joints] == pytest.approx(np.linspace(-1, 1, joints), abs=1e-5)
    assert obs[12 + joints : 12 + 2 * joints] == pytest.approx(speed * np.arange(joints))
    feet = 12 + 2 * joints + shift
    sensors = 6 * len(env.robot.FOOT_BODIES)
    assert obs[feet : feet + sensors] == pytest.approx(wrench * (np.arange(sensors) + 1.0))
    assert obs[feet + sensors :] == pytest.approx(np.linspace(-1, 1, joints), abs=1e-5)


def test_humanoid_joint_forces_are_motor_and_limit(make_still):
    env = make_still("Humanoid")
    env.action = torch.zeros(1, 21)
    env.action[0, 5] = -1.0
    env.action[0, 6] = 0.5
    put_normalised(env, {5: -1.01, 20: 1.02})  # right_hip_y, left_elbow
    env.engine.sensors[0, [17, 32]] = torch.tensor([100.0, 7.0])
    obs = env.observe()[0]
    expected = torch.zeros(21)
    expected[5] = 0.01 * (100.0 - 135.0)
    expected[6] = 0.45
    expected[20] = -0.07
    torch.testing.assert_close(obs[54:75], expected)


@BOTH
def test_angles_are_wrapped(make_still, env_id):
    """Running straight ahead must not sit on a jump of the observation."""
    env = make_still(env_id, 4)
    for i, (angle, axis) in enumerate(((-0.01, 2), (-0.02, 0), (3.1, 2), (3.1, 0))):
        env.engine.qpos[i, 3:7] = torch.tensor(turn(angle, axis))
    env.engine.qpos[2, :2] = torch.tensor([999.0, 1.0])  # the target lies at -45 degrees
    yaw, roll, angle = env.observe()[:, 7:10].T.tolist()
    assert yaw == pytest.approx([-0.01, 0.0, 3.1, 0.0], abs=1e-5)
    assert roll == pytest.approx([0.0, -0.02, 0.0, 3.1], abs=1e-5)
    assert angle == pytest.approx([0.01, 0.0, 1.75 * math.pi - 3.1, 0.0], abs=1e-5)


@BOTH
def test_reset_distribution(make_still, env_id):
    env = make_still(env_id, 4000)
    env.action.fill_(0.5)
    env.distance.fill_(995.0)
    obs = env.reset()
    assert (env.distance == 1000.0).all()
    qpos = env.engine.qpos
    qvel = env.engine.qvel
    height = {"Ant": 0.44, "Humanoid": 1.34}[env_id]
    assert torch.equal(qpos[:, :7], torch.tensor([0, 0, height, 1, 0, 0, 0]).expand(4000, 7))
    default = env.joint_default
    lower = env.joint_lower
    upper = env.joint_upper
    low = torch.maximum(default - 0.2, lower)
    high = torch.minimum(default + 0.2, upper)
    joints = qpos[:, 7:]
    assert (joints >= low).all()
    assert (joints <= high).all()
    assert (joints.amin(0) < low + 0.005).all()
    assert (joints.amax(0) > high - 0.005).all()
    at_limit = ((joints == lower) | (joints == upper)).float().mean(0)  # half of an ankle's samples are clamped
    expected = [0.0, 0.5] * 4 if env_id == "Ant" else [0.0] * 6 + [0.41] + [0.0] * 5 + [0.41] + [0.0] * 8
    assert at_limit.tolist() == pytest.approx(expected, abs=0.03)
    assert (qvel[:, :6] == 0.0).all()
    assert qvel[:, 6:].abs().max() <= 0.1
    assert qvel[:, 6:].std().item() == pytest.approx(0.1 / math.sqrt(3), abs=0.002)
    assert (obs[:, -env.num_actions :] == 0.0).all()  # no action yet
    _, reward, *_ = env.step(torch.zeros(4000, env.num_actions))
    assert terms(env)["progress"] == [0.0] * 4000


# ---------------------------------------------------------------- the tasks, with physics


@BOTH
def test_the_action_is_the_torque(env_id):
    """In free flight, from rest: the reaction of the whole body aside, a joint turns the way of its action."""
    count = len(ROBOTS[env_id].JOINT_NAMES)
    env = started(env_id, 2 * count)
    qpos = env.root_start.repeat(2 * count, 1)
    qpos[:, 2] = 5.0
    qpos = torch.cat([qpos, ((env.joint_lower + env.joint_upper) / 2).expand(2 * count, count)], 1)
    env.engine.set_state(torch.ones(2 * count, dtype=torch.bool), qpos, torch.zeros(2 * count, 6 + count))
    signs = torch.cat([torch.eye(count), -torch.eye(count)])
    env.engine.step(torch.zeros(2 * count, count))
    drift = env.engine.qvel[:, 6:].clone()
    env.engine.set_state(torch.ones(2 * count, dtype=torch.bool), qpos, torch.zeros(2 * count, 6 + count))
    env.engine.step(signs)
    turned = (env.engine.qvel[:, 6:] - drift).gather(1, signs.abs().argmax(1, keepdim=True))[:, 0]
    assert (turned * signs.sum(1) > 1.0).all()
