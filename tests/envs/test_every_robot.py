"""Physics that every robot and every free object must obey, on the very models that the tasks step."""

import mujoco
import numpy as np
import pytest

import envs
from tests.envs.helpers import simulate, touching

FREE = {"AllegroHand": "cube", "AllegroKukaRegrasping": "object", "FrankaCubeStack": "cube_a", "ShadowHand": "cube"}


def task_model(env_id):
    """The task, and the model of its first environment, which the caller may change."""
    env = envs.make(env_id, 1)
    return env, env.engine.models[0]


def place(model, data, name, position, velocity=(0.0,) * 6):
    """A free body, upright."""
    joint = model.joint(name)
    data.qpos[joint.qposadr[0] :][:7] = [*position, 1, 0, 0, 0]
    data.qvel[joint.dofadr[0] :][:6] = velocity


@pytest.mark.parametrize(
    "env_id, joints, most",
    [
        ("AllegroHand", range(16), 0.2),
        ("AllegroKukaRegrasping", range(7, 23), 0.2),
        ("FrankaCubeStack", range(9), 0.05),
    ],
)
def test_shapes_do_not_overlap_for_want_of_space(env_id, joints, most):
    """A robot may collide with itself in random poses, but no pair of its bodies does so in nearly all of them."""
    _, model = task_model(env_id)
    data = mujoco.MjData(model)
    rng = np.random.default_rng(0)
    counts = {}
    place(model, data, FREE[env_id], (5.0, 5.0, 5.0))
    for _ in range(300):
        data.qpos[joints] = rng.uniform(*model.jnt_range[joints].T)
        mujoco.mj_kinematics(model, data)
        mujoco.mj_collision(model, data)
        for pair in {frozenset(pair) for pair in touching(model, data)}:
            counts[pair] = counts.get(pair, 0) + 1
    assert 0 < max((n for pair, n in counts.items() if "world" not in pair), default=0) < most * 300


@pytest.mark.parametrize("env_id, joints", [("AllegroHand", 16), ("AllegroKukaRegrasping", 23), ("FrankaCubeStack", 9)])
def test_a_robot_at_rest_stays_at_rest(env_id, joints):
    """In the pose of its first reset."""
    env, model = task_model(env_id)
    env.reset()
    data = mujoco.MjData(model)
    pose = data.qpos[:joints] = env.engine.qpos[0, :joints].double().numpy()
    position_drives = model.actuator_biastype == mujoco.mjtBias.mjBIAS_AFFINE
    data.ctrl[position_drives] = pose[position_drives]
    place(model, data, FREE[env_id], (2.0, 2.0, 0.1))
    simulate(model, data, 2.0)
    assert np.abs(data.qpos[:joints] - pose).max() < 1e-4
    assert np.abs(data.qvel[:joints]).max() < 1e-4


@pytest.mark.parametrize("env_id, name", FREE.items())
def test_a_flying_object_keeps_its_energy(env_id, name):
    _, model = task_model(env_id)
    data = mujoco.MjData(model)
    body = model.body(name)
    place(model, data, name, (2.0, 2.0, 3.0), [0.5, 0.0, 2.0, 3.0, 2.0, 1.0])
    velocity = data.qvel[model.joint(name).dofadr[0] :]
    height = data.qpos[model.joint(name).qposadr[0] + 2 :]

    def energy():
        moving = 0.5 * body.mass[0] * velocity[:3] @ velocity[:3] + 9.81 * body.mass[0] * height[0]
        return moving, 0.5 * body.inertia @ velocity[3:6] ** 2

    assert abs(max(body.iquat, key=abs)) == 1.0  # velocities are about the principal axes
    before = energy()
    simulate(model, data, 0.6)
    moving, spinning = energy()
    assert moving == pytest.approx(before[0], rel=0.02)
    assert spinning == pytest.approx(before[1], rel=0.05)


@pytest.mark.parametrize(
    "env_id, index, name, top",
    [
        *[("AllegroKukaRegrasping", i, "object", 0.53) for i in range(4)],
        ("FrankaCubeStack", 0, "cube_a", 1.025),
        ("FrankaCubeStack", 0, "cube_b", 1.025),
    ],
)
def test_a_dropped_box_comes_to_rest_on_the_table(env_id, index, name, top):
    model = envs.make(env_id, index + 1).engine.models[index]
    data = mujoco.MjData(model)
    half = model.geom(name).size[2]
    place(model, data, name, (0.15, 0.1, top + half + 0.05))
    at = model.joint(name).qposadr[0]
    data.qpos[:7] = 0.0  # the arm straight up
    simulate(model, data, 1.5)
    rest = data.qpos[at:][:7].copy()
    assert abs(rest[2] - top - half) < 0.002
    simulate(model, data, 2.0)
    assert np.abs(data.qpos[at:][:7] - rest).max() < 1e-4
    assert min(data.contact.dist) > -0.002
