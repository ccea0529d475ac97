"""Start positions clear of the robot: distances against MuJoCo's own, and what a reset does with them."""

import mujoco
import numpy as np
import pytest
import torch

import envs
from envs.clearance import Clearance
from envs.models import allegro_kuka_scene as scene
from envs.tasks import allegro_kuka as task
from tests.envs.test_allegro_kuka import make_still  # noqa: F401, the fixture

OVERLAP = 1e-3  # m


def place(model, data, joints, position, quaternion):
    data.qpos[:23] = joints
    data.qpos[23:26] = position
    data.qpos[26:] = quaternion
    mujoco.mj_kinematics(model, data)


def depth(model, data):
    """How deep the object is in the robot, by MuJoCo's contacts, m."""
    mujoco.mj_collision(model, data)
    own = model.geom("object").id
    scenery = [model.geom("table").id, model.geom("ground").id]
    pairs = [(c.geom1, c.geom2, -c.dist) for c in data.contact]
    return max([d for a, b, d in pairs if own in (a, b) and a not in scenery and b not in scenery], default=0.0)


def robot_geoms(model):
    """Those that a joint moves; the base stands out of reach."""
    bodies = range(2, model.body("object").id)
    return [i for i in range(model.ngeom) if model.geom_contype[i] and model.geom_bodyid[i] in bodies]


@pytest.mark.parametrize("scale", [(1, 1, 1), (4, 0.75, 1), (0.5, 1.5, 2)])
def test_distances_are_mujocos(scale):
    model = scene.build_scene(scale).compile()
    data = mujoco.MjData(model)
    rng = np.random.default_rng(0)
    clearance = Clearance(model, 23, "cpu")
    cylinders = model.geom_type == mujoco.mjtGeom.mjGEOM_CYLINDER
    overlaps = 0
    for _ in range(60):
        joints = rng.uniform(scene.JOINT_LOWER, scene.JOINT_UPPER)
        quaternion = rng.standard_normal(4)
        place(model, data, joints, np.zeros(3), [1, 0, 0, 0])
        palm = data.body(scene.PALM_BODY).xpos + data.body(scene.PALM_BODY).xmat.reshape(3, 3) @ scene.PALM_OFFSET
        position = palm + rng.uniform(-0.2, 0.2, 3)
        place(model, data, joints, position, quaternion / np.linalg.norm(quaternion))
        box = model.geom("object").id
        far = {i: mujoco.mj_geomDistance(model, data, box, i, 10.0, None) for i in robot_geoms(model)}
        box = [torch.tensor(x)[None].float() for x in (position, data.qpos[26:], 0.025 * np.array(scale))]
        ours = clearance.distance(clearance.shapes(torch.tensor(joints)[None].float()), *box).item()
        nearest = min(far, key=far.get)
        if far[nearest] <= -OVERLAP:
            assert ours < task.START_CLEARANCE
            overlaps += 1
        else:  # a cylinder is taken for the box around it, whose corners are 0.415 radii farther out
            least = min(d - 0.415 * model.geom_size[i, 0] * cylinders[i] for i, d in far.items())
            assert least - 5e-3 < ours < far[nearest] + 5e-3
    assert overlaps > 5


def test_no_object_starts_in_the_hand():
    """All 947 objects, at resets and, as after a success, with the hand anywhere above the table."""
    env = envs.make("AllegroKukaRegrasping", 947)
    everywhere = torch.ones(947, dtype=torch.bool)
    generator = torch.Generator().manual_seed(0)
    datas = [mujoco.MjData(model) for model in env.engine.models]
    blocked = 0
    for attempt in range(4):
        if attempt < 2:
            env.reset()
        else:
            noise = torch.rand(947, 23, generator=generator) - 0.5
            joints = (env.joint_default + noise).clamp(env.joint_lower, env.joint_upper)
            env.place_object(everywhere, joints, torch.zeros(947, 23))
        for model, data, qpos in zip(env.engine.models, datas, env.engine.qpos.double().numpy()):
            place(model, data, qpos[:23], qpos[23:26], qpos[26:])
            blocked += depth(model, data) > OVERLAP
    assert blocked == 0 == env.blocked_starts.item()


def test_of_several_draws_the_first_clear_one_is_taken(make_still, monkeypatch):  # noqa: F811
    """The third draw is clear in environment 0, none in 1 and 2, where the fourth is the farthest."""
    env = make_still(3)
    distances = torch.tensor(
        [[-0.01, -0.03, 0.001], [0.0, -0.02, 0.0], [0.006, -0.01, 0.0], [0.009, -0.001, 0.004]]
        + [[0.02, -0.03, 0.002]] * 20
    )
    draws = []
    draw = env.draw_start
    first_and_others = iter([distances[0], distances[1:].T.flatten()])
    monkeypatch.setattr(env, "draw_start", lambda *args: draws.append(draw(*args)) or draws[-1])
    monkeypatch.setattr(env.clearance, "distance", lambda *args: next(first_and_others))
    env.place_object(torch.ones(3, dtype=torch.bool), env.target, torch.zeros(3, 23))
    others = draws[1].view(3, 23, 7)
    assert torch.equal(env.engine.qpos[:, 23:30], torch.stack([others[0, 1], others[1, 2], others[2, 2]]))
    assert env.blocked_starts.item() == 1  # the third environment's object touches nothing
    assert others[:, :7, :2].abs().max() <= 0.1
    table = others[:, 7:, :2].abs().amax((0, 1))
    assert 0.1 < table[0] < 0.2375 - 0.019
    assert 0.1 < table[1] < 0.2 - 0.019
