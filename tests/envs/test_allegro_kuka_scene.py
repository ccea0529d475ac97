"""The robot and the scene: published numbers, and physics that is at rest when it should be."""

import mujoco
import numpy as np
import pytest

from envs.models import allegro_kuka_scene as scene
from envs.models import allegro_kuka as robot
from tests.envs.helpers import touching

START = np.clip(robot.DEFAULT_POSE, robot.JOINT_LOWER, robot.JOINT_UPPER)
# World positions (m) at the default pose, base at (0, 0.8, 0), from the published robot description.
PALM_POSITION = (-0.000114, 0.241976, 0.72351)
PALM_CENTRE = (0.014022, 0.084465, 0.692039)
LINK_POSITIONS = [
    (0.064607, -0.051904, 0.693951),
    (0.011456, -0.054527, 0.693566),
    (-0.041694, -0.051863, 0.69376),
    (0.134756, 0.13504, 0.727844),
]
FINGERTIPS = [
    (0.06897, -0.100874, 0.683562),
    (0.011462, -0.103684, 0.683148),
    (-0.046046, -0.100831, 0.683355),
    (0.194964, 0.135266, 0.727975),
]


@pytest.fixture(scope="module")
def model():
    return scene.build_scene().compile()


def start(model, pose=START, object_pos=(2.0, 2.0, 0.025)):
    """Data with the robot in `pose`, targets there too, and the object at `object_pos`, by default out of the way."""
    data = mujoco.MjData(model)
    data.qpos[:23] = data.ctrl[:] = pose
    data.qpos[23:] = [*object_pos, 1, 0, 0, 0]
    mujoco.mj_forward(model, data)
    return data


def test_joint_order_limits_and_masses(model):
    assert (model.nq, model.nv, model.nu) == (30, 29, 23)
    assert [model.joint(i).name for i in range(24)] == robot.JOINT_NAMES + ["object"]
    assert [model.actuator(i).trnid[0] for i in range(23)] == list(range(23))
    assert np.allclose(model.jnt_range[[0, 1, 6]], [[-2.96706, 2.96706], [-2.0944, 2.0944], [-3.05433, 3.05433]])
    hand = [[-0.558489, 0.558489], [-0.279244, 1.727825], [0.279244, 1.57075]]
    assert np.allclose(model.jnt_range[[7, 8, 19]], hand, atol=1e-5)
    assert np.allclose(model.actuator_forcerange[:, 1], [300] * 7 + [0.35] * 16)
    assert model.body_mass.sum() == pytest.approx(28.9265 + 0.05, abs=1e-3)


def test_forward_kinematics(model):
    data = start(model, robot.DEFAULT_POSE)

    def point(name, offset):
        body = data.body(name)
        return body.xpos + body.xmat.reshape(3, 3) @ offset

    assert np.allclose(data.body(robot.PALM_BODY).xpos, PALM_POSITION, atol=1e-5)
    assert np.allclose(point(robot.PALM_BODY, robot.PALM_OFFSET), PALM_CENTRE, atol=1e-5)
    for i, body in enumerate(robot.FINGERTIP_BODIES):
        assert np.allclose(data.body(body).xpos, LINK_POSITIONS[i], atol=1e-5)
        assert np.allclose(point(body, robot.FINGERTIP_OFFSETS[i]), FINGERTIPS[i], atol=1e-5)


def test_nothing_touches_at_the_default_pose(model):
    for pose in (robot.DEFAULT_POSE, START):
        assert all("object" in pair for pair in touching(model, start(model, pose)))


@pytest.fixture
def free(model):
    """Data with every joint in the middle of its range; nothing touches."""
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT.value
    yield start(model, (robot.JOINT_LOWER + robot.JOINT_UPPER) / 2.0)
    model.opt.disableflags &= ~mujoco.mjtDisableBit.mjDSBL_CONTACT.value


def implicit_drive(targets, stiffness=40.0, damping=5.0, effort=0.35, speed=6.283, inertia=1e-4):
    """Angles after each control step of a light joint whose drive is solved implicitly, then limited."""
    angle = 0.0
    velocity = 0.0
    angles = []
    h = scene.TIMESTEP
    for target in targets:
        for _ in range(scene.SUBSTEPS):
            impulse = h * (stiffness * (target - angle - h * velocity) - damping * velocity)
            impulse /= 1.0 + h * (damping + h * stiffness) / inertia
            velocity += np.clip(impulse, -h * effort, h * effort) / inertia
            velocity = np.clip(velocity, -speed, speed)
            angle += h * velocity
        angles.append(angle)
    return np.array(angles)


def finger_angles(model, data, targets):
    """How far the 16 finger joints have gone after each control step, all given the same targets: (steps, 16) rad."""
    first = data.qpos[7:23].copy()
    angles = []
    for target in targets:
        data.ctrl[7:] = first + target
        mujoco.mj_step(model, data, scene.SUBSTEPS)
        angles.append(data.qpos[7:23] - first)
    return np.array(angles)


@pytest.mark.parametrize("distance", [0.03, 0.1, 0.3])
def test_fingers_approach_a_target_as_the_published_drive_would(model, free, distance):
    targets = np.full(60, distance)
    difference = finger_angles(model, free, targets) - implicit_drive(targets)[:, None]
    assert np.abs(difference).max() < 0.1 * distance


@pytest.mark.parametrize("std", [0.01, 0.03, 0.1])
def test_fingers_tremble_with_their_targets_as_the_published_drive_would(model, free, std):
    targets = std * np.random.default_rng(0).standard_normal(600)
    expected = implicit_drive(targets)
    trembling = finger_angles(model, free, targets)
    assert np.allclose(trembling.std(0), expected.std(), rtol=0.15)
    assert min(np.corrcoef(joint, expected)[0, 1] for joint in trembling.T) > 0.9


def test_object_scales():
    scales = scene.object_scales()
    assert scales.shape == (947, 3)
    assert len(np.unique(scales, axis=0)) == 938
    assert scales[:4].tolist() == [[4.0, 0.75, 1.0], [1.0, 2.5, 1.0], [1.25, 0.66, 3.0], [3.0, 0.75, 1.1]]
    checksum = (scales * np.arange(1, 948)[:, None]).sum(0)  # of the whole order
    assert checksum == pytest.approx((687216.43, 684882.37, 702790.07))
    masses = scales.prod(1) * scene.OBJECT_BASE_SIZE**3 * scene.OBJECT_DENSITY
    assert masses.min() == pytest.approx(0.05)
    assert masses.max() == pytest.approx(0.75)


@pytest.mark.parametrize("scale", [(1, 1, 1), (2, 2, 1), (3, 1, 1)])
def test_a_box_that_starts_inside_the_hand_is_not_shot_off(scale):
    """The reason for the damping of the contacts: critically damped, boxes leave at 5 to 7 m/s."""
    model = scene.build_scene(scale).compile()
    rng = np.random.default_rng(0)
    for _ in range(60):
        quaternion = rng.standard_normal(4)
        data = start(model, object_pos=PALM_CENTRE + rng.uniform(-0.04, 0.04, 3))
        data.qpos[26:] = quaternion / np.linalg.norm(quaternion)
        for _ in range(30):
            mujoco.mj_step(model, data)
            assert np.linalg.norm(data.qvel[23:26]) < 4.0
