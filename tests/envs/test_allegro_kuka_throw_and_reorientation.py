"""AllegroKukaThrow and AllegroKukaReorientation: what they add to the rules that all tasks of the family share."""

import math

import mujoco
import numpy as np
import pytest
import torch

from envs.models import allegro_kuka_scene as scene
from envs.tasks import allegro_kuka as task
from tests.envs.helpers import started
from tests.envs.test_allegro_kuka import (  # noqa: F401, two fixtures
    TURN_X,
    TURN_Z,
    act,
    make_still,
    nothing_in_the_way,
    put_at_goal,
    put_object,
)

THROW = "AllegroKukaThrow"
REORIENTATION = "AllegroKukaReorientation"
EVERYWHERE = torch.tensor([True])
RIM = torch.tensor([0.0, 0.0, 0.1977 - 0.05])  # middle of the bucket's opening, from the goal


@pytest.fixture
def make_throw(make_still):  # noqa: F811
    return lambda num_envs=3, seed=1: make_still(num_envs, seed, task.AllegroKukaThrow)


@pytest.fixture
def make_reorientation(make_still):  # noqa: F811
    return lambda num_envs=3, seed=1: make_still(num_envs, seed, task.AllegroKukaReorientation)


# -------------------------------------------------------------------- Throw: rules


def test_throw_has_small_objects():
    scales = scene.object_scales(("small",))
    assert scales.shape == (654, 3)
    assert scales[:2].tolist() == [[0.75, 2.5, 0.75], [0.66, 1.25, 2.5]]
    checksum = (scales * np.arange(1, 655)[:, None]).sum(0)  # of the whole order
    assert checksum == pytest.approx((285085.99, 278157.91, 282991.05))
    masses = scales.prod(1) * 0.05
    assert masses.min() == pytest.approx(0.05)
    assert masses.max() == pytest.approx(0.125)
    assert torch.equal(started(THROW, 3).object_scale, torch.tensor(scales[:3]).float())


def test_buckets_stand_on_both_sides(make_throw, nothing_in_the_way):  # noqa: F811
    env = make_throw(4000)
    low = env.goal.abs().amin(0)
    high = env.goal.amax(0)
    assert low[0].item() == pytest.approx(0.5, abs=0.005)
    assert high[0].item() == pytest.approx(0.9, abs=0.005)
    assert env.goal[:, 1].min().item() == pytest.approx(-1.0, abs=0.01)
    assert high[1].item() == pytest.approx(0.7, abs=0.01)
    assert low[2].item() == pytest.approx(0.05, abs=0.005)
    assert high[2].item() == pytest.approx(1.05, abs=0.005)
    assert (env.goal[:, 0] > 0).float().mean().item() == pytest.approx(0.5, abs=0.04)
    assert (env.goal[:, 3:] == torch.tensor([1.0, 0.0, 0.0, 0.0])).all()
    assert torch.equal(env.engine.mocap[:, 0], env.goal)


def test_nothing_pushes_the_object(make_throw):
    env = make_throw(2)
    env.push_probability.fill_(1.0)
    act(env)
    assert env.engine.xfrc is None


def test_five_near_steps_are_a_success_and_move_the_bucket(make_throw):
    env = make_throw(2)
    first = env.goal.clone()
    for step in range(1, 6):
        assert torch.equal(env.goal, first)
        put_at_goal(env, 0)
        _, reward, *_ = act(env)
        assert env.near_steps.tolist() == [step % 5, 0]
        assert reward[0] > 199.9
    assert env.successes.tolist() == [1.0, 0.0]
    assert env.episode_step.tolist() == [0, 5]
    assert env.goal[0, 0].item() != first[0, 0].item()
    assert torch.equal(env.goal[1], first[1])
    assert torch.equal(env.engine.mocap[:, 0], env.goal)
    x, y, z = env.engine.qpos[0, 23:26].tolist()
    assert abs(x) <= 0.1
    assert abs(y) <= 0.1
    assert 0.61 <= z <= 0.72  # on the table again


def test_an_object_in_a_low_bucket_has_not_fallen(make_throw):
    env = make_throw(3)
    env.goal[:, :3] = torch.tensor([0.6, 0.0, 0.05])  # buckets on the ground
    for index, (x, z) in enumerate([(0.65, 0.03), (0.75, 0.03), (0.75, 0.11)]):
        put_object(env, index, [x, 0.0, z])
    _, _, terminated, _, _ = act(env)
    assert terminated.tolist() == [False, True, False]
    assert env.near_steps.tolist() == [1, 0, 0]


def test_throw_has_no_curriculum(make_throw):
    env = make_throw(2)
    env.training = True
    env.finished_successes[:] = torch.tensor([3.0, 9.0])
    env.tolerance_age.fill_(5000)
    for _ in range(2):
        metrics = act(env)[4]["metrics"]
    assert metrics["success_tolerance"].item() == pytest.approx(0.075)
    assert metrics["true_objective"].item() == pytest.approx(7.0)
    assert metrics["true_objective_min"].item() == pytest.approx(4.0)


# -------------------------------------------------------------------- Throw: the bucket


@pytest.fixture(scope="module")
def bucket():
    """Model and data of the scene with the bucket's underside at the origin of an otherwise empty corner."""
    model = scene.build_scene(goal="bucket").compile()
    data = mujoco.MjData(model)
    data.mocap_pos[0] = [3.0, 3.0, 3.05]
    mujoco.mj_forward(model, data)
    return model, data


def distance_to_bucket(bucket, origin, direction):
    """How far a ray flies, m. origin (3,) over the middle of the underside; -1 if it hits nothing."""
    group = np.zeros(1, np.int32)
    body = -1
    far = mujoco.mj_ray(*bucket, np.array([3.0, 3.0, 3.0]) + origin, np.array(direction, float), None, 1, body, group)
    return far if far < 0.5 else -1.0


def test_bucket_has_the_published_sizes(bucket):
    for height, corner in ((0.0099, 0.0705), (0.0537, 0.07817), (0.19, 0.10205)):  # radius to a corner of twelve
        for i in range(12):
            angle = math.radians(30 * i + 15)
            wall = distance_to_bucket(bucket, [0, 0, height + 1e-4], [math.cos(angle), math.sin(angle), 0])
            assert wall == pytest.approx(corner * math.cos(math.radians(15)), abs=2e-4)
    above = [0, 0, -1]
    for x, y in ((0, 0), (0.06, 0), (0, -0.06), (-0.04, 0.04)):
        assert distance_to_bucket(bucket, [x, y, 0.25], above) == pytest.approx(0.25 - 0.0099, abs=1e-4)
    for i in range(12):  # no hole where two walls meet
        x, y = math.cos(math.radians(30 * i)), math.sin(math.radians(30 * i))
        assert distance_to_bucket(bucket, [0, 0, 0.1], [x, y, 0]) == pytest.approx(0.0863, abs=1e-3)
    assert distance_to_bucket(bucket, [0.13, 0, 0.25], above) == -1.0


def in_bucket(env):
    """Whether the object's centre is between the bucket's walls, (N,) bool."""
    x, y, z = (env.engine.body_pos[:, task.OBJECT] - env.goal[:, :3]).unbind(1)
    return (x.square() + y.square() < 0.1**2) & (z > -0.05) & (z < RIM[2])


def deepest_contact(env, index):
    """Of the object, m; negative: it overlaps with something."""
    model = env.engine.models[index]
    state = env.engine.state_dict()
    data = mujoco.MjData(model)
    mujoco.mj_setState(model, data, state["state"][index].numpy(), mujoco.mjtState.mjSTATE_FULLPHYSICS)
    data.mocap_pos[0] = state["mocap"][index, :3]
    data.mocap_quat[0] = state["mocap"][index, 3:]
    mujoco.mj_forward(model, data)
    own = model.body(scene.OBJECT_BODY).id
    return min(c.dist for c in data.contact if own in (model.geom_bodyid[c.geom1], model.geom_bodyid[c.geom2]))


def test_an_object_dropped_into_the_bucket_stays_there_and_lies_still():
    env = started(THROW, 32, seed=3)
    qpos = env.engine.qpos.clone()
    qvel = torch.zeros(32, 29)
    offset = torch.rand(32, 3, generator=torch.Generator().manual_seed(0)) - 0.5
    qpos[:, 23:26] = env.goal[:, :3] + RIM + torch.tensor([0.08, 0.08, 0.04]) * offset + torch.tensor([0.0, 0.0, 0.1])
    env.engine.set_state(EVERYWHERE.expand(32), qpos, qvel)
    for _ in range(240):
        env.engine.step(env.target)
    assert in_bucket(env).all()
    assert (env.keypoint_distance() < 1.5 * 0.075).all()
    assert env.goal[:, 2].min() < 0.15
    assert env.goal[:, 2].max() > 0.9
    assert len(env.goal[:, 0].sign().unique()) == 2
    rest = env.engine.body_pos[:, task.OBJECT].clone()
    for _ in range(60):
        env.engine.step(env.target)
    assert in_bucket(env).all()
    assert (env.engine.body_pos[:, task.OBJECT] - rest).norm(dim=1).max() < 0.002
    assert min(deepest_contact(env, i) for i in range(32)) > -0.002


# -------------------------------------------------------------------- Reorientation: rules


def test_the_farthest_keypoint_counts(make_reorientation):
    env = make_reorientation(4)
    env.keypoint_offsets[:] = torch.tensor(env.keypoint_pattern) * 0.0375 * torch.tensor([1.0, 2.0, 4.0])
    for index, quaternion in enumerate([[1.0, 0, 0, 0], TURN_Z, [0.0, 0, 0, 1.0], TURN_X]):
        put_at_goal(env, index)
        env.goal[index, 3:] = torch.tensor(quaternion)
        env.engine.body_quat[index, 5] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    # corners (1, 2, 4) and so on: 90 degrees about z bring (1, 2, 4) to (-2, 1, 4); 180 degrees to (-1, -2, 4);
    # 90 degrees about x bring (1, 2, -4) to (1, 4, 2)
    expected = [0.0, math.sqrt(10.0), math.sqrt(20.0), math.sqrt(40.0)]
    assert env.keypoint_distance().tolist() == pytest.approx([0.0375 * e for e in expected], abs=1e-6)
    act(env)
    assert env.successes.tolist() == [1.0, 0.0, 0.0, 0.0]  # 0.1125 m is near, 0.1186 m is not


def test_success_leaves_the_object_where_it_is(make_reorientation):
    env = make_reorientation(2)
    first = env.goal.clone()
    put_at_goal(env, 0)
    env.engine.qpos[0, 26:30] = env.engine.body_quat[0, 5] = env.goal[0, 3:]
    env.lifted[:] = True
    env.closest_fingertip[:] = 0.001
    env.episode_step[:] = 100
    qpos = env.engine.qpos.clone()
    qvel = env.engine.qvel.clone()
    _, reward, terminated, truncated, _ = act(env)
    assert not (terminated | truncated).any()
    assert env.successes.tolist() == [1.0, 0.0]
    assert reward[0].item() > 1000.0
    assert env.term_sums[0, task.REWARD_TERMS.index("goal")].item() == 1000.0
    assert torch.equal(env.engine.qpos, qpos)
    assert torch.equal(env.engine.qvel, qvel)
    assert env.lifted.tolist() == [True, True]
    assert torch.allclose(env.closest_fingertip, torch.tensor(0.001))
    assert env.near_steps.tolist() == [0, 0]
    assert env.episode_step.tolist() == [0, 101]
    assert (env.goal[0] != first[0]).all()
    assert torch.equal(env.goal[1], first[1])
    assert torch.equal(env.engine.mocap[:, 0], env.goal)
    assert env.closest_keypoint[0].item() == env.keypoint_distance()[0].item()


def test_an_object_far_from_a_fingertip_is_lost(make_reorientation):
    env = make_reorientation(4)
    env.fingertip_offsets.zero_()
    env.engine.body_pos[:, 1:5] = torch.tensor([0.0, 0.0, 1.0])
    for index, (ring_finger, height) in enumerate([(1.499, 1.0), (1.501, 1.0), (0.5, 0.101), (0.5, 0.099)]):
        put_object(env, index, [0.5, 0.0, height])
        env.engine.body_pos[index, 3] = torch.tensor([0.5, ring_finger, height])
    _, _, terminated, _, _ = act(env)
    assert terminated.tolist() == [False, True, False, True]


def test_nothing_is_lost_at_a_reset():
    env = started(REORIENTATION, 64)
    for _ in range(20):
        env.reset()
        assert env.fingertip_distance().max() < 1.2
