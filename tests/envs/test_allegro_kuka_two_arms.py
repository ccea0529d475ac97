"""AllegroKuka with two arms: what differs from one arm, and with scripted hands and objects what can be done."""

import mujoco
import numpy as np
import pytest
import torch

import envs
from envs.models import allegro_kuka as robot
from envs.models import allegro_kuka_scene as scene
from envs.tasks import allegro_kuka as task
from tests.envs.helpers import data_of, started, touching
from tests.envs.test_allegro_kuka import rewards
from tests.envs.test_allegro_kuka_grasp import GRASP, LIFT, RESTING_HEIGHT, follow

REGRASPING = "AllegroKukaTwoArmsRegrasping"
REORIENTATION = "AllegroKukaTwoArmsReorientation"
PARTITION, HOLE, BARRIER = (REORIENTATION + name for name in ("Partition", "Hole", "Barrier"))
START = np.tile(np.clip(scene.TWO_ARMS.pose, scene.JOINT_LOWER, scene.JOINT_UPPER), 2)
# The left arm (rad) with its middle fingertip at x = 0, 0.34 m over the table.
REACH = [-1.618, 1.189, -0.462, 0.245, -0.021, 0.244, 2.558]
ARMS = (0, 1)


# -------------------------------------------------------------------- rules


def test_robots_face_each_other():
    model = scene.build_scene(layout=scene.TWO_ARMS).compile()
    data = mujoco.MjData(model)
    data.qpos[:46] = np.tile(scene.TWO_ARMS.pose, 2)
    mujoco.mj_forward(model, data)
    assert scene.TWO_ARMS.pose.tolist()[:7] == [-1.571, 1.571, 0.0, 1.6, 0.0, 1.485, 2.358]
    left, right = (data.body(f"arm{arm}_iiwa7_link_7").xpos for arm in ARMS)
    assert left == pytest.approx([-0.631132, -9.5e-05, 0.749028], abs=1e-5)
    assert right == pytest.approx(left * (-1, -1, 1), abs=1e-5)
    assert model.geom("table").size == pytest.approx([0.55, 0.2, 0.15])
    assert data.geom("table").xpos == pytest.approx([0.0, 0.0, 0.38])


def test_all_targets_are_absolute():
    env = started(REGRASPING, 1)
    lower, upper = (torch.tensor(np.tile(x, 2)).float() for x in (scene.JOINT_LOWER, scene.JOINT_UPPER))
    for share in (0.0, 0.25, 1.0):
        env.step(torch.full((1, 46), 2.0 * share - 1.0))
        assert torch.allclose(env.target[0], (1.0 - share) * lower + share * upper, atol=1e-6)


@pytest.mark.parametrize("joint", range(task.NUM_ARM))
def test_a_joint_of_an_arm_keeps_to_its_speed_limit(joint):
    """Driven alone from its start to either end of its range. Without ARM_LEAD the last one reaches 38 rad/s."""
    env = started(REGRASPING, 2)
    pose = 2.0 * (env.engine.qpos[:, :46] - env.joint_lower) / (env.joint_upper - env.joint_lower) - 1.0
    pose[:, joint] = torch.tensor([-1.0, 1.0])
    for _ in range(60):
        env.step(pose)
        assert env.engine.qvel[:, joint].abs().max() < robot.ARM_SPEED


def test_starts_lie_on_both_sides():
    env = started(REGRASPING, 1)
    size = env.object_size.expand(4000, 3)
    for draws, reach, depth in (((1, 0), 0.1, 0.1), ((0, 1), 0.18, 0.18)):
        x, y, z = env.draw_start(size, *draws)[:, :3].unbind(1)
        assert (x > 0).float().mean().item() == pytest.approx(0.5, abs=0.04)
        for low, values in ((0.35 - reach, x.abs()), (-depth, y)):
            assert values.min().item() == pytest.approx(low, abs=0.005)
        assert x.abs().max().item() == pytest.approx(0.35 + reach, abs=0.005)
        assert z.min() >= 0.61
        assert y.max().item() == pytest.approx(depth, abs=0.005)


@pytest.mark.parametrize("env_id", [REGRASPING, REORIENTATION])
def test_goals_lie_on_both_sides(env_id):
    env = started(env_id, 1)
    env.num_envs = 4000
    goal = env.draw_goal()
    x, y, z = goal[:, :3].unbind(1)
    assert (x > 0).float().mean().item() == pytest.approx(0.5, abs=0.04)
    for values, low, high in ((x.abs(), 0.55, 0.95), (y, -0.5, 0.5), (z, 0.68, 1.05)):
        assert values.min().item() == pytest.approx(low, abs=0.005)
        assert values.max().item() == pytest.approx(high, abs=0.005)
    assert (goal[:, 3] == 1.0).all() == (env_id == REGRASPING)


def test_objects_start_clear_of_both_robots():
    env = started(REGRASPING, 64)
    assert env.blocked_starts.item() == 0
    for i in range(64):
        model, data = data_of(env, i)
        own = model.geom("object").id
        assert not any(own in (c.geom1, c.geom2) and c.dist < -0.001 for c in data.contact)


def test_fingertips_of_both_hands_pay_also_once_lifted():
    closer = dict(fingertip_distance=[0.5] * 7 + [0.4], closest_fingertip=[0.5] * 8)
    for state in (dict(), dict(lifted=True), dict(height=0.75)):
        assert rewards(**closer, **state, fingertips_once_lifted=True)["fingertip"] == pytest.approx(5.0)
    assert rewards(**closer, lifted=True)["fingertip"] == 0.0
    env = started(REGRASPING, 2)
    env.lifted[:] = True
    env.closest_keypoint[:] = 0.0
    env.closest_fingertip[:] = env.fingertip_distance() + 0.1
    env.engine.qvel[:, :46] = 5.0  # speed costs nothing
    env.engine.step = lambda *args: None
    _, reward, *_, info = env.step(torch.zeros(2, 46))
    assert reward.tolist() == pytest.approx([8 * 5.0] * 2)
    assert "reward_arm_speed" not in info["metrics"]


def test_nothing_is_lost_for_being_far_from_a_hand():
    env = started(REORIENTATION, 3)
    far = torch.full((3, 8), 2.0)
    env.engine.body_pos[:, task.OBJECT, 2] = torch.tensor([0.5, 0.101, 0.099])
    assert env.lost(torch.zeros(3, dtype=torch.bool), far).tolist() == [False, False, True]
    assert started("AllegroKukaReorientation", 3).lost(torch.zeros(3, dtype=torch.bool), far[:, :4]).all()


@pytest.mark.parametrize("env_id, stays", [(REGRASPING, False), (REORIENTATION, True)])
def test_a_success_moves_the_object_in_regrasping_alone(env_id, stays):
    env = started(env_id, 2)
    env.tolerance.fill_(1e9)
    env.near_steps[0] = env.success_steps - 1
    env.near_steps[1] = -5
    before = env.engine.qpos[:, 46:49].clone()
    obs, reward, *_ = env.step(torch.zeros(2, 46))
    after = env.engine.qpos[:, 46:53].clone()
    moved = (after[:, :2] - before[:, :2]).norm(dim=1)
    assert (moved[0] < 0.01) == stays
    assert moved[1] < 0.01
    assert env.successes.tolist() == [1.0, 0.0]
    assert env.near_steps[0].item() == 0
    assert (reward > 1000.0 / env.success_steps - 1e-3).all()
    env.engine.step(env.target)
    moved = (env.engine.qpos[:, 46:48] - after[:, :2]).norm(dim=1)
    assert moved.max() < 0.05  # neither jumps afterwards
    assert (env.engine.qvel[0, 46:48].abs().max() < 1e-3) or stays


# -------------------------------------------------------------------- obstacles


def build(env_id, scale=(1.0, 1.0, 1.0)):
    task_class = envs.find_class(env_id)
    return scene.build_scene(scale, "copy", scene.TWO_ARMS, task_class.obstacle).compile()


def hits(model, y, z):
    """Whether a ray along x, at the height z over the table, meets the obstacle."""
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    geom = np.zeros(1, np.int32)
    far = mujoco.mj_ray(model, data, np.array([-0.2, y, 0.53 + z]), np.array([1.0, 0, 0]), None, 1, -1, geom)
    return 0 <= far < 0.25 and model.body(model.geom_bodyid[geom[0]]).name == scene.OBSTACLE_BODY


@pytest.mark.parametrize(
    "env_id, inside, outside",
    [
        (PARTITION, [(0.0, 0.01), (0.19, 0.39), (-0.19, 0.01)], [(0.21, 0.1), (0.0, 0.41)]),
        (HOLE, [(0.0, 0.03), (0.19, 0.26), (-0.19, 0.48), (0.0, 1.46)], [(0.19, 0.28), (-0.19, 0.46), (0.21, 0.1)]),
        (BARRIER, [(0.0, 0.01), (0.11, 0.49), (-0.11, 0.01)], [(0.13, 0.1), (0.0, 0.51)]),
    ],
)
def test_shape_of_the_obstacles(env_id, inside, outside):
    model = build(env_id)
    assert all(hits(model, *point) for point in inside)
    assert not any(hits(model, *point) for point in outside)


def test_every_object_fits_through_the_hole():
    shortest, middle, _ = np.sort(0.05 * scene.object_scales(), axis=1).T
    width, low, high = envs.find_class(HOLE).obstacle.opening
    assert np.hypot(shortest, middle).max() < min(width, high - low)  # turned about its long axis in any way


def test_the_partition_stands_until_a_hand_pushes_it_over():
    """The left arm reaches forward; the board falls to the other side, and a reset puts it up again."""
    env = started(PARTITION, 2)
    qpos = env.engine.qpos.clone()
    qvel = torch.zeros_like(env.engine.qvel)
    qpos[:, :46] = torch.tensor(START)
    qpos[:, 46:49] = torch.tensor([-0.3, 0.15, 0.7])
    env.engine.set_state(torch.tensor([True, True]), qpos, qvel)
    ctrl = qpos[:, :46].clone()
    for step in range(240):
        share = min(1.0, step / 60)
        ctrl[0, :7] = qpos[0, :7] + share * (torch.tensor(REACH) - qpos[0, :7])
        env.engine.step(ctrl)
    upright = 1.0 - 2.0 * (env.engine.qpos[:, 57:59]).square().sum(1)  # of its axis that pointed upwards
    assert upright[0].abs() < 0.1
    assert env.engine.qpos[0, 53] > 0.0
    assert upright[1] > 0.999
    assert env.engine.qpos[1, 53:55].abs().max() < 1e-3
    env.reset_where(torch.tensor([True, False]))
    assert torch.allclose(env.engine.qpos[0, 53:60], torch.tensor([0.0, 0.0, 0.53, 1.0, 0.0, 0.0, 0.0]))


# -------------------------------------------------------------------- scripted hands


@pytest.mark.parametrize("arm", ARMS)
def test_each_hand_lifts_a_cube(arm):
    """The grasp of one arm, in front of either robot; the other one stays where it is."""
    model = scene.build_scene(layout=scene.TWO_ARMS).compile()
    data = mujoco.MjData(model)
    side = (-1.0, 1.0)[arm]
    data.qpos[:46] = data.ctrl[:] = START
    data.qpos[46:] = [side * 0.3, 0.0, RESTING_HEIGHT, 1, 0, 0, 0]
    other = list(START[:23])
    script = [(t, list(goal) + other if arm == 0 else other + list(goal)) for t, goal in GRASP + LIFT]
    follow(model, data, script)
    assert data.body("object").xpos[2] > RESTING_HEIGHT + 0.2
    names = set().union(*touching(model, data))
    assert names == {"object", *(f"arm{arm}_{f}_link_3" for f in ("index", "middle", "thumb"))}
    assert max(-c.dist for c in data.contact) < 1e-3
    assert np.abs(data.qpos[:46] - data.ctrl)[23 * (1 - arm) :][:23].max() < 1e-3  # the other one
