"""A scripted grasp: the arm and three fingers, driven through their position drives alone, lift a cube and keep it."""

import mujoco
import numpy as np
import pytest

from envs.models import allegro_kuka as robot
from envs.models import allegro_kuka_scene as scene
from envs.tasks import allegro_kuka_grasp_search as grasp_search
from tests.envs.helpers import touching

# Joint targets (rad) for a 5 cm cube in the middle of the table, found by inverse kinematics; the shut hand was then
# tuned by random search to keep the cube under pushes, and its targets moved on for weaker drives.
ARM_LOW, ARM_HIGH, HAND_OPEN = map(list, (grasp_search.ARM_LOW, grasp_search.ARM_HIGH, grasp_search.HAND_OPEN))
HAND_SHUT = [-0.077, 1.03, 0.759, 0.789, -0.002, 1.09, 0.78, 0.45, 0, 0.3, 0.3, 0.3, 1.57, -0.17, 0.467, -0.271]
START = np.clip(scene.DEFAULT_POSE, scene.JOINT_LOWER, scene.JOINT_UPPER)
# (seconds, targets at the end). The drives are underdamped (natural period of the arm 2 s): each move takes a while.
GRASP = [(3.0, ARM_HIGH + HAND_OPEN), (5.0, ARM_LOW + HAND_OPEN), (1.5, ARM_LOW + HAND_SHUT)]
LIFT = [(4.0, ARM_HIGH + HAND_SHUT), (4.0, ARM_HIGH + HAND_SHUT)]
RESTING_HEIGHT = 0.53 + 0.025


def follow(model, data, keyframes):
    """Drive the targets smoothly through the keyframes, from where they are."""
    for seconds, goal in keyframes:
        first = data.ctrl.copy()
        steps = round(seconds / scene.CONTROL_PERIOD)
        for step in range(steps):
            t = (step + 1) / steps
            data.ctrl[:] = first + (np.array(goal) - first) * t**3 * (10 - 15 * t + 6 * t**2)
            mujoco.mj_step(model, data, scene.SUBSTEPS)


def object_in_palm(data):
    """Position of the object in the palm body's frame (3,) m."""
    palm = data.body(scene.PALM_BODY)
    return palm.xmat.reshape(3, 3).T @ (data.body(scene.OBJECT_BODY).xpos - palm.xpos)


@pytest.fixture(scope="module")
def lifted():
    """Model and data at the end of the lift, the arm at rest."""
    model = scene.build_scene().compile()
    data = mujoco.MjData(model)
    data.qpos[:23] = data.ctrl[:] = START
    data.qpos[23:] = [0, 0, RESTING_HEIGHT, 1, 0, 0, 0]
    follow(model, data, GRASP + LIFT)
    return model, data


@pytest.fixture
def held(lifted):
    """Model and data of a test's own, as `lifted` left them."""
    model, end = lifted
    data = mujoco.MjData(model)
    mujoco.mj_copyData(data, model, end)
    return model, data


def hold(model, data, seconds, force=lambda: np.zeros(3)):
    """Keep the targets while `force` pushes (N, object's frame) anew each control step.

    Returns the object's heights and its slips in the hand, (steps,) m.
    """
    heights = []
    slips = []
    before = object_in_palm(data)
    for _ in range(round(seconds / scene.CONTROL_PERIOD)):
        box = data.body(scene.OBJECT_BODY)
        box.xfrc_applied[:3] = box.xmat.reshape(3, 3) @ force()
        mujoco.mj_step(model, data, scene.SUBSTEPS)
        heights.append(box.xpos[2])
        slips.append(np.linalg.norm(object_in_palm(data) - before))
    return np.array(heights), np.array(slips)


def test_a_grasped_cube_is_lifted_and_stays_held(held):
    model, data = held
    assert data.body(scene.OBJECT_BODY).xpos[2] > RESTING_HEIGHT + 0.2
    assert set().union(*touching(model, data)) == {"object", "index_link_3", "middle_link_3", "thumb_link_3"}
    heights, slips = hold(model, data, 2.0)
    assert heights[0] - heights.min() < 0.01
    assert slips.max() < 0.001


@pytest.mark.parametrize("seed", range(4))
def test_a_held_cube_survives_the_pushes_of_the_task(held, seed):
    model, data = held
    rng = np.random.default_rng(seed)
    push = np.zeros(3)

    def force():  # the task's push where it is most frequent; the cube weighs 0.5 N
        push[:] = 0.3 * rng.standard_normal(3) if rng.random() < 0.1 else 0.998 * push
        return push

    _, slips = hold(model, data, 4.0, force)
    assert slips.max() < 0.002


@pytest.mark.parametrize("seed", range(4))
def test_a_held_cube_survives_trembling_actions(held, seed):
    model, data = held
    rng = np.random.default_rng(seed)
    before = object_in_palm(data)
    shut = data.ctrl[7:].copy()
    span = (robot.JOINT_UPPER - robot.JOINT_LOWER)[7:]
    for _ in range(round(2.0 / scene.CONTROL_PERIOD)):
        data.ctrl[7:] = shut + 0.03 * rng.standard_normal(16) * span / 2.0  # actions with a standard deviation of 0.03
        mujoco.mj_step(model, data, scene.SUBSTEPS)
    assert np.linalg.norm(object_in_palm(data) - before) < 0.01
