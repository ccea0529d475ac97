"""Unitree A1: the published robot, and physics to believe on even ground."""

import mujoco
import numpy as np
import pytest

from envs.models import a1
from tests.envs.helpers import inertia_in_body, simulate

WEIGHT = 12.454 * 9.81  # N
LEVEL = (1.0, 0.0, 0.0, 0.0)
LEGS_UP = np.array([0.0, 3.0, -1.5] * 4)


def build(dynamics=a1.NOMINAL):
    """The robot on a plane."""
    spec = a1.build(dynamics)
    spec.worldbody.add_geom(name="ground", type=mujoco.mjtGeom.mjGEOM_PLANE, size=(0, 0, 1), contype=1, conaffinity=0)
    return spec.compile()


@pytest.fixture(scope="module")
def model():
    return build()


def data_at(model, height=a1.START_HEIGHT, quat=LEVEL, pose=a1.DEFAULT_POSE):
    """At rest at `height` with the joints in `pose` and their targets in the default pose."""
    data = mujoco.MjData(model)
    data.qpos[:] = [0, 0, height, *quat, *pose]
    data.ctrl[:] = a1.DEFAULT_POSE
    mujoco.mj_forward(model, data)
    return data


def feet(data):
    return np.array([data.geom(name).xpos for name in a1.FOOT_GEOMS])


# ---------------------------------------------------------------- the robot as published


def test_order_limits_and_mass(model):
    names = [leg + joint for leg in ("FR_", "FL_", "RR_", "RL_") for joint in ("hip", "thigh", "calf")]
    assert [model.joint(i).name for i in range(1, 13)] == [name + "_joint" for name in names]
    assert [model.body(i).name for i in range(1, 14)] == ["base", *names]
    assert model.actuator_trnid[:, 0].tolist() == list(range(1, 13))
    assert model.jnt_axis[1:].tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 0]] * 4
    limits = [(-0.802851, 0.802851), (-1.0472, 4.18879), (-2.69653, -0.916298)]
    assert np.allclose(model.jnt_range[1:], limits * 4, atol=1e-5)
    assert np.allclose(model.actuator_forcerange[:, 1], [20, 30, 30] * 4)
    assert model.body_mass.sum() == pytest.approx(12.454, abs=1e-9)


@pytest.mark.parametrize("body, mass, com, inertia", [  # inertia xx, yy, zz, xy, xz, yz
    ("base", 4.714, (0.0127283, 0.0021855, 0.0005149),
     (0.01694, 0.056679, 0.064814, 8.3874e-05, 0.00059767, 2.5133e-05)),
    ("FR_hip", 0.696, (-0.003311, -0.000635, 3.1e-05),
     (0.00046925, 0.00080749, 0.00055293, 9.409e-06, -3.42e-07, 4.66e-07)),
    ("RL_hip", 0.696, (0.003311, 0.000635, 3.1e-05),
     (0.00046925, 0.00080749, 0.00055293, 9.409e-06, 3.42e-07, -4.66e-07)),
    ("RR_hip", 0.696, (0.003311, -0.000635, 3.1e-05),
     (0.00046925, 0.00080749, 0.00055293, -9.409e-06, 3.42e-07, 4.66e-07)),
    ("RR_thigh", 1.013, (-0.003237, 0.022327, -0.027326),
     (0.0055291, 0.0051393, 0.0013678, -4.825e-06, 0.00034387, -2.2448e-05)),
    ("FL_thigh", 1.013, (-0.003237, -0.022327, -0.027326),
     (0.0055291, 0.0051393, 0.0013678, 4.825e-06, 0.00034387, 2.2448e-05)),
    ("RL_calf", 0.226, (0.0047266, 0, -0.131975), (0.0033856, 0.0034034, 4.3851e-05, 0, -0.00016743, 0)),
])  # fmt: skip
def test_masses_and_inertias(model, body, mass, com, inertia):
    body = model.body(body)
    assert body.mass == pytest.approx(mass)
    assert np.allclose(body.ipos, com, atol=1e-6)
    assert np.allclose(inertia_in_body(body), inertia, rtol=1e-4, atol=1e-8)


def test_feet(model):
    front = [(0.168372, -0.160807, 0.137641), (0.168372, 0.160807, 0.137641)]
    rear = [(-0.255409, -0.159936, 0.146331), (-0.255409, 0.159936, 0.146331)]
    assert np.allclose(feet(data_at(model)), front + rear, atol=1e-5)
    straight = [(x, y, -0.4) for x in (0.183, -0.183) for y in (-0.13205, 0.13205)]
    assert np.allclose(feet(data_at(model, 0.0, pose=np.zeros(12))), straight, atol=1e-5)


def test_what_collides(model):
    solid = {model.geom(i).name: model.geom_size[i] for i in range(model.ngeom) if model.geom_conaffinity[i]}
    assert set(solid) == {"base", *(f"{leg}_{part}" for leg in a1.LEGS for part in ("thigh", "calf", "foot"))}
    assert np.allclose(solid["base"], (0.19, 0.097, 0.057))
    assert np.allclose(solid["RL_thigh"], (0.017, 0.01225, 0.1))
    assert np.allclose(solid["RL_calf"], (0.008, 0.008, 0.1))
    assert solid["FR_foot"][0] == 0.02
    assert np.allclose(model.geom("base").pos, (0.1, 0, 0))
    folded = data_at(model, 0.3, pose=np.array([0.8, 4.1, -2.6, -0.8, 4.1, -2.6] * 2))
    assert folded.ncon == 0  # not with itself


def test_dynamics():
    plain = build()
    stiffness = np.linspace(0.8, 1.2, 12)
    damping = np.linspace(1.2, 0.8, 12)
    other = build(a1.Dynamics(2.0, (0.1, -0.2, 0.05), 0.6, tuple(stiffness), tuple(damping)))
    assert other.body("base").mass == pytest.approx(4.714 + 2.0)
    assert np.allclose(other.body("base").ipos - plain.body("base").ipos, (0.1, -0.2, 0.05))
    assert np.allclose(other.body("base").inertia, plain.body("base").inertia)
    assert np.allclose(other.actuator_gainprm[:, 0], 40.0 * stiffness)
    assert np.allclose(other.actuator_biasprm[:, 1], -40.0 * stiffness)
    assert np.allclose(other.actuator_biasprm[:, 2], -damping)
    data = data_at(other, 0.27)
    assert data.ncon > 0
    assert np.allclose([contact.friction[0] for contact in data.contact], 0.8)  # of 0.6 and the ground's 1


# ---------------------------------------------------------------- physics to believe


def test_it_stands(model):
    data = data_at(model)  # dropped from 12 cm
    simulate(model, data, 2.0)
    stance = feet(data)
    heights = []
    depth = 0.0
    for _ in range(round(10.0 / a1.TIMESTEP)):
        mujoco.mj_step(model, data)
        heights.append(data.qpos[2])
        depth = max(depth, -data.contact.dist.min())
        assert data.ncon == 4
    assert 0.27 < min(heights)
    assert max(heights) - min(heights) < 0.002
    assert depth < 0.001
    assert np.abs(feet(data) - stance).max() < 0.003
    assert np.abs(data.qpos[4:7]).max() < 0.02


def test_torques_are_those_of_the_drives(model):
    data = data_at(model)
    simulate(model, data, 3.0)
    drive = 40 * (a1.DEFAULT_POSE - data.qpos[7:]) - data.qvel[6:]
    mujoco.mj_step(model, data)  # sensors tell of the step's begin
    assert np.allclose(data.sensordata[a1.TORQUES], drive, atol=1e-9)
    data.ctrl[:] = a1.DEFAULT_POSE + 2.0
    mujoco.mj_step(model, data)
    assert np.allclose(data.sensordata[a1.TORQUES], [20, 30, 30] * 4)


def test_standing_feet_carry_the_robot(model):
    data = data_at(model)
    simulate(model, data, 3.0)
    forces = data.sensordata[a1.FOOT_FORCES].reshape(4, 3)
    assert np.allclose(forces.sum(0), (0, 0, -WEIGHT), atol=0.02 * WEIGHT)
    assert forces[:, 2].max() < -0.1 * WEIGHT
    assert np.abs(data.sensordata[a1.BODY_FORCES]).max() == 0.0
    assert np.allclose(data.sensordata[a1.FOOT_POSITIONS].reshape(4, 3), feet(data), atol=1e-3)


def test_the_trunk_carries_the_robot(model):
    data = data_at(model, height=0.06, pose=LEGS_UP)
    data.ctrl[:] = LEGS_UP
    simulate(model, data, 3.0)
    forces = data.sensordata[a1.BODY_FORCES].reshape(9, 3)
    assert np.allclose(forces[0], (0, 0, -WEIGHT), atol=0.02 * WEIGHT)
    assert np.abs(forces[1:]).max() == 0.0
    assert np.abs(data.sensordata[a1.FOOT_FORCES]).max() == 0.0
