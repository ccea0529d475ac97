"""The Shadow hand: published numbers, believable physics, and what its task adds to the rules of test_in_hand.py."""

import math

import mujoco
import numpy as np
import pytest
import torch

import envs
from envs.models import shadow_hand as robot
from tests.envs.helpers import simulate, started

# World positions (m) with all joints at zero and the base at (0, 0, 0.5), from the published robot description.
POSITIONS = {
    "forearm": (0, 0, 0.49),
    "wrist": (0, -0.256, 0.49),
    "palm": (0, -0.29, 0.49),
    "ffdistal": (-0.033, -0.455, 0.49),
    "mfdistal": (-0.011, -0.459, 0.49),
    "rfdistal": (0.011, -0.455, 0.49),
    "lfdistal": (0.034, -0.448, 0.49),
    "thdistal": (-0.083478, -0.368517, 0.498999),
}
THUMB_TIP_QUAT = (0.270469, -0.270467, -0.653336, 0.653334)  # of thdistal, wxyz
LIMITS = {
    "WRJ1": (-0.489, 0.14),
    "WRJ0": (-0.698, 0.489),
    "LFJ4": (0, 0.785),
    "THJ4": (-1.047, 1.047),
    "THJ3": (0, 1.222),
    "THJ2": (-0.209, 0.209),
    "THJ1": (-0.524, 0.524),
    "THJ0": (-1.571, 0),
}
EFFORTS = [4.785, 2.175] + [0.9, 0.9, 0.7245] * 3 + [0.9, 0.9, 0.9, 0.7245] + [2.3722, 1.45, 0.99, 0.99, 0.81]
TIMESTEP = 0.01667 / 2
# A grasp (rad, targets of the 20 drives) around a cube that lies at CUBE_IN_PALM, found by random search.
GRASP = [0.14, 0, 0, 1.299, 1.152, 0, 1.426, 0.636, 0, 1.076, 1.013, 0.037, 0, 1.177, 1.367,
         0.617, 0.534, 0.136, 0.009, -0.734]  # fmt: skip
CUBE_IN_PALM = [0.0, -0.347, 0.54]
OUT_OF_THE_WAY = [3.0, 0.0, 0.5, 1, 0, 0, 0]


def build(floating=True):
    """The task's own model, which the caller may change; a floating cube stays where it is put."""
    model = envs.make("ShadowHand", 1).engine.models[0]
    model.body_gravcomp[model.body("cube").id] = float(floating)
    return model


def start(model, pose=(0.0,) * 24, cube=OUT_OF_THE_WAY):
    """Data with the joints in `pose`, the drives' targets there too, and the cube at `cube` (7)."""
    data = mujoco.MjData(model)
    data.qpos[:24] = pose
    data.qpos[24:] = cube
    data.ctrl[:] = np.array(pose)[robot.DRIVEN]
    mujoco.mj_forward(model, data)
    return data


def random_pose(rng):
    """A start pose of the task, but the coupled joints within their slack and no finger leaning on the next."""
    pose = 0.2 * rng.uniform(robot.JOINT_LOWER, robot.JOINT_UPPER)
    pose[[robot.JOINT_NAMES.index(finger + "J3") for finger in ("FF", "MF", "RF", "LF")]] = 0.0
    for follower, leader in robot.COUPLED:
        pose[robot.JOINT_NAMES.index(follower)] = pose[robot.JOINT_NAMES.index(leader)]
    return pose


def depth(data):
    """Deepest penetration of all contacts (m)."""
    return max(0.0, -data.contact.dist.min()) if data.ncon else 0.0


# -------------------------------------------------------------------- the robot: numbers


def test_joints_and_drives():
    model = build()
    assert (model.nq, model.nv, model.nu, model.ntendon) == (31, 30, 20, 4)
    names = "WRJ1 WRJ0 FFJ3 FFJ2 FFJ1 FFJ0 MFJ3 MFJ2 MFJ1 MFJ0 RFJ3 RFJ2 RFJ1 RFJ0 LFJ4 LFJ3 LFJ2 LFJ1 LFJ0"
    names = (names + " THJ4 THJ3 THJ2 THJ1 THJ0").split()
    assert [model.joint(i).name for i in range(25)] == names + ["cube"]
    driven = [name for name in names if name not in ("FFJ0", "MFJ0", "RFJ0", "LFJ0")]
    assert [model.joint(i).name for i in model.actuator_trnid[:, 0]] == driven
    for name in names:
        expected = LIMITS.get(name, (-0.349, 0.349) if name.endswith("3") else (0, 1.571))
        assert model.joint(name).range.tolist() == pytest.approx(expected)
    assert np.allclose(model.actuator_forcerange, [(-effort, effort) for effort in EFFORTS])


def test_tendons():
    model = build()
    assert np.allclose(model.tendon_range, [(-0.001, 0.001)] * 4)
    for i, finger in enumerate(("FF", "MF", "RF", "LF")):
        data = start(model)
        data.qpos[model.joint(finger + "J0").id] = 0.5
        data.qpos[model.joint(finger + "J1").id] = 0.4
        mujoco.mj_forward(model, data)
        assert data.ten_length[i] == pytest.approx(0.5 * 0.00705 - 0.4 * 0.00805)
        assert np.delete(data.ten_length, i).tolist() == [0.0] * 3


def test_masses():
    model = build()
    hand = ["mount", "forearm"] + [body[0] for body in robot.BODIES]
    assert sum(model.body(name).mass[0] for name in hand) == pytest.approx(5.011)
    assert model.body("cube").mass[0] == pytest.approx(0.070875)


def test_forward_kinematics():
    data = start(build())
    for name, position in POSITIONS.items():
        assert np.allclose(data.body(name).xpos, position, atol=3e-6)
    assert np.allclose(data.body("thdistal").xquat, THUMB_TIP_QUAT, atol=3e-6)
    x, y, z = data.body("palm").xmat.reshape(3, 3).T
    assert np.allclose([x, y, z], [(-1, 0, 0), (0, 0, -1), (0, -1, 0)], atol=1e-5)  # fingers along -y, palm up


def test_the_hand_touches_itself_only_in_the_listed_pairs():
    model = build()
    rng = np.random.default_rng(0)
    seen = set()
    assert model.npair == len(robot.TOUCHING_PAIRS) == 18
    assert (model.pair_dim == 1).all()
    listed = {frozenset(pair) for pair in robot.TOUCHING_PAIRS}
    data = start(model)
    for _ in range(2000):
        data.qpos[:24] = rng.uniform(robot.JOINT_LOWER, robot.JOINT_UPPER)
        mujoco.mj_kinematics(model, data)
        mujoco.mj_collision(model, data)
        for geoms in data.contact.geom:
            seen.add(frozenset(model.body(model.geom_bodyid[geom]).name for geom in geoms))
    assert len(seen) > 10
    assert seen <= listed


# -------------------------------------------------------------------- the robot: physics


def test_joints_reach_their_targets_and_the_coupled_ones_follow():
    model = build()
    rng = np.random.default_rng(0)
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT.value
    data = start(model)
    slack = robot.TENDON_SLACK / robot.TENDON_ARMS[0]
    lower, upper = model.actuator_ctrlrange.T
    for _ in range(8):
        before = data.qpos[robot.DRIVEN].copy()
        goal = data.ctrl[:] = lower + (upper - lower) * rng.uniform(0.05, 0.9, 20)
        overshoot = 0.0
        for _ in range(240):
            mujoco.mj_step(model, data)
            overshoot = max(overshoot, ((data.qpos[robot.DRIVEN] - goal) * np.sign(goal - before)).max())
            assert np.abs(data.qvel[:24]).max() < 20.0
            assert np.abs(data.ten_length).max() / robot.TENDON_ARMS[0] < slack + 0.1
        assert overshoot < 0.01
        assert np.abs(data.qpos[robot.DRIVEN] - goal).max() < 0.01
        assert np.abs(data.ten_length).max() / robot.TENDON_ARMS[0] < slack + 0.01
        assert np.abs(data.qvel[:24]).max() < 1e-3  # no chatter


def test_a_cube_dropped_into_the_palm_comes_to_rest():
    model = build(floating=False)
    rng = np.random.default_rng(1)
    kept = 0
    for _ in range(8):
        quaternion = rng.standard_normal(4)
        cube = [*(np.array([0, -0.39, 0.6]) + rng.uniform(-0.01, 0.01, 3)), *quaternion / np.linalg.norm(quaternion)]
        data = start(model, random_pose(rng), cube)
        simulate(model, data, 2.0)
        if data.qpos[26] < 0.4:  # of 400 cubes 7 % bounced off the open hand
            continue
        kept = kept + 1
        rest = data.qpos.copy()
        for _ in range(240):
            mujoco.mj_step(model, data)
            assert depth(data) < 0.001
        assert np.linalg.norm(rest[24:27] - (0, -0.39, 0.56)) < 0.1
        assert np.abs(data.qpos[24:27] - rest[24:27]).max() < 0.001  # m
        assert np.abs(data.qpos - rest).max() < 0.005  # rad
        assert np.abs(data.qvel[:27]).max() < 0.01
        assert np.abs(data.qvel[27:]).max() < 0.1
    assert kept >= 7


def test_a_cube_in_the_fist_is_held_with_the_palm_down():
    model = build(floating=False)
    data = start(model, cube=[*CUBE_IN_PALM, 1, 0, 0, 0])
    for step in range(180):
        data.ctrl[:] = np.array(GRASP) * min(1.0, step * TIMESTEP)
        mujoco.mj_step(model, data)

    def cube_in_palm():
        palm = data.body("palm")
        return palm.xmat.reshape(3, 3).T @ (data.body("cube").xpos - palm.xpos)

    before = cube_in_palm()
    for step in range(240):
        angle = min(1.0, 2.0 * step * TIMESTEP) * math.pi  # gravity turns in place of the hand
        model.opt.gravity[:] = 9.81 * math.sin(angle), 0.0, -9.81 * math.cos(angle)
        mujoco.mj_step(model, data)
        assert depth(data) < 0.002
        assert np.linalg.norm(cube_in_palm() - before) < 0.001


# -------------------------------------------------------------------- the task


@pytest.fixture
def env():
    return started("ShadowHand", 3)


def test_actions_are_absolute_targets(env):
    targets = []
    env.engine.step = targets.append
    action = torch.zeros(3, 20)
    action[1] = 1.0
    action[2, 0] = -1.0
    action[2, 19] = 0.5
    env.step(action)
    lower = robot.JOINT_LOWER[robot.DRIVEN]
    upper = robot.JOINT_UPPER[robot.DRIVEN]
    assert np.allclose(targets[0][0], (lower + upper) / 2, atol=1e-6)
    assert np.allclose(targets[0][1], upper)
    assert targets[0][2, [0, 1, 19]].tolist() == pytest.approx([-0.489, -0.1045, -0.39275])


@pytest.mark.parametrize("finger", range(5))
def test_fingertip_sensors_feel_a_push(finger):
    """A push on a fingertip passes to the link before it: minus the push, in the fingertip's axes."""
    model = build()
    body = robot.FINGERTIP_BODIES[finger]
    first = 48 + 6 * finger
    data = start(model)
    simulate(model, data, 1.0)
    before = data.sensordata.copy()
    push = np.array([0.0, 0.0, -0.5])
    data.body(body).xfrc_applied[:3] = push
    simulate(model, data, 1.0)
    axes = data.body(body).xmat.reshape(3, 3)
    arm = data.body(body).xipos - data.body(body).xpos
    weight = np.linalg.norm(before[first : first + 3])
    assert weight == pytest.approx(9.81 * model.body(body).mass[0], rel=0.01)  # the compensation acts at the joints
    push = push + [0, 0, -weight]
    assert data.sensordata[first : first + 3] == pytest.approx(axes.T @ -push, abs=0.01)
    assert data.sensordata[first + 3 : first + 6] == pytest.approx(axes.T @ -np.cross(arm, push), abs=1e-3)


def test_joint_forces_are_those_of_drives_and_limits(env):
    """A torque on a joint at rest: its drive or, at the joint's limit, the limit holds against it."""
    model = build()
    data = start(model)
    names = robot.JOINT_NAMES
    data.qfrc_applied[names.index("FFJ2")] = 0.3  # against the drive
    data.qfrc_applied[names.index("MFJ1")] = -0.4  # against the lower limit
    simulate(model, data, 2.0)
    env.engine.sensors[:] = torch.tensor(data.sensordata)
    env.engine.qpos[:] = torch.tensor(data.qpos)
    force = dict(zip(names, env.joint_force()[0].tolist()))
    assert force.pop("FFJ2") == pytest.approx(-0.3, abs=1e-3)
    assert force.pop("MFJ1") == pytest.approx(0.4, abs=1e-3)
    assert max(abs(value) for value in force.values()) < 1e-3
    assert env.observe()[0, 48 + names.index("FFJ2")].item() == pytest.approx(-3.0, abs=0.01)
