"""In-hand reorientation: the hand's numbers, every term and rule of the task by hand, then with physics."""

import math
import os

import mujoco
import numpy as np
import pytest
import torch

import envs
from envs.models import allegro_hand as robot
from envs.models import in_hand_scene as scene
from envs.tasks import in_hand as task
from envs.rotations import multiply
from tests.envs.helpers import StillEngine

TURN_X = [math.sqrt(0.5), math.sqrt(0.5), 0.0, 0.0]  # 90 degrees about x
TURN_Z = [math.sqrt(0.5), 0.0, 0.0, math.sqrt(0.5)]
START = np.clip(np.zeros(16), robot.JOINT_LOWER, robot.JOINT_UPPER)
# Joint targets (rad) that hold the cube, found by random search.
SHUT = [0.04, 0.58, 0.8, 0.78, 0.0, 1.11, 0.92, 1.18, -0.31, 1.29, 0.86, 0.63, 0.91, 0.98, 0.6, 0.6]
LOWER, UPPER = torch.tensor(robot.JOINT_LOWER).float(), torch.tensor(robot.JOINT_UPPER).float()


def turned(angle, axis=0):
    """Quaternion w, x, y, z of a turn by `angle` (rad) about a world axis."""
    quaternion = [math.cos(angle / 2), 0.0, 0.0, 0.0]
    quaternion[1 + axis] = math.sin(angle / 2)
    return quaternion


# -------------------------------------------------------------------- the hand


@pytest.fixture(scope="module")
def model():
    hand = task.AllegroHand
    return scene.build_scene(
        hand.add_hand, hand.joint_names, (), hand.cube_edge, hand.cube_density, hand.cube_start,
        hand.control_period / hand.substeps,
    ).compile()  # fmt: skip


def start(model, cube=(0.0, 0.0, 5.0, 1.0, 0.0, 0.0, 0.0), pose=START):
    data = mujoco.MjData(model)
    data.qpos[:16] = data.ctrl[:] = pose
    data.qpos[16:] = cube
    mujoco.mj_forward(model, data)
    return data


def run(model, data, seconds):
    for _ in range(round(seconds / model.opt.timestep)):
        mujoco.mj_step(model, data)


def test_joints_drives_and_masses(model):
    assert (model.nq, model.nv, model.nu) == (23, 22, 16)
    assert [model.joint(i).name for i in range(16)] == robot.JOINT_NAMES
    assert robot.JOINT_NAMES[0] == "index_joint_0" and robot.JOINT_NAMES[12] == "thumb_joint_0"
    assert [model.actuator(i).trnid[0] for i in range(16)] == list(range(16))
    finger = [[-0.558489, 0.558489]] + [[-0.279244, 1.727825]] * 3
    thumb = [[0.279244, 1.57075], [-0.331603, 1.151883], [-0.279244, 1.727825], [-0.279244, 1.762731]]
    assert np.allclose(model.jnt_range[:16], finger * 3 + thumb, atol=1e-5)
    assert np.allclose(model.actuator_gainprm[:, 0], 3.0) and np.allclose(model.actuator_biasprm[:, 1:3], (-3.0, -0.1))
    assert np.allclose(model.actuator_forcerange, (-0.5, 0.5)) and np.allclose(model.dof_armature[:16], 0.001)
    assert model.body("allegro_mount").mass == pytest.approx(0.4654)
    assert model.body_mass.sum() == pytest.approx(0.4654 + 3 * 0.143 + 0.1273 + 0.109850, abs=1e-5)


def test_inertias_are_possible(model):
    for inertia in model.body_inertia[1:]:
        assert 2 * inertia.max() <= inertia.sum() * (1 + 1e-6) or inertia.sum() == 0


def test_forward_kinematics(model):
    data = start(model, pose=np.zeros(16))  # positions from the published robot description
    for name, position in (
        ("allegro_mount", (0, 0, 0.5)),
        ("index_link_3", (-0.0532, -0.2242, 0.4879)),
        ("middle_link_3", (0.0000, -0.2268, 0.4877)),
        ("ring_link_3", (0.0531, -0.2242, 0.4879)),
        ("thumb_link_3", (-0.1233, -0.0343, 0.4927)),
    ):
        assert np.allclose(data.body(name).xpos, position, atol=1e-4), name


def test_the_palm_faces_up(model):
    data = start(model)
    before = data.body("middle_link_3").xpos[2]
    data.qpos[5] = 0.5
    mujoco.mj_kinematics(model, data)
    assert data.body("middle_link_3").xpos[2] > before + 0.03  # fingers bend upwards


def test_a_hand_at_rest_stays_at_rest_and_touches_nothing(model):
    rng = np.random.default_rng(0)
    for _ in range(5):
        pose = np.clip(0.2 * rng.uniform(robot.JOINT_LOWER, robot.JOINT_UPPER), robot.JOINT_LOWER, robot.JOINT_UPPER)
        data = start(model, pose=pose)
        assert data.ncon == 0
        run(model, data, 0.8)
        assert np.abs(data.qpos[:16] - pose).max() < 1e-4 and np.abs(data.qvel[:16]).max() < 1e-4


def test_shapes_do_not_overlap_for_want_of_space(model):
    data, rng, counts = start(model), np.random.default_rng(0), {}
    for _ in range(300):
        data.qpos[:16] = rng.uniform(robot.JOINT_LOWER, robot.JOINT_UPPER)
        mujoco.mj_kinematics(model, data)
        mujoco.mj_collision(model, data)
        for pair in {frozenset(model.geom_bodyid[[c.geom1, c.geom2]].tolist()) for c in data.contact}:
            counts[pair] = counts.get(pair, 0) + 1
    assert max(counts.values()) < 0.2 * 300


def test_fingers_pressed_against_each_other_do_not_jitter(model):
    pose = START.copy()
    pose[:12] = [-0.5, 1.3, 0.3, 0.3, 0.0, 1.3, 0.3, 0.3, 0.5, 1.3, 0.3, 0.3]  # index and ring press on the middle
    data = start(model)
    data.ctrl[:] = pose
    run(model, data, 2.0)
    assert data.ncon >= 2 and min(data.contact.dist) > -0.002
    before, speeds = data.qpos[:16].copy(), []
    for _ in range(45):
        mujoco.mj_step(model, data)
        speeds.append(np.abs(data.qvel[:16]).max())
    assert max(speeds) < 0.02 and np.abs(data.qpos[:16] - before).max() < 5e-3


def test_fingers_reach_their_targets_at_a_believable_speed(model):
    data, rng, speeds = start(model), np.random.default_rng(0), []
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT.value
    for _ in range(10):
        before, overshoot = data.qpos[:16].copy(), np.zeros(16)
        goal = data.ctrl[:] = rng.uniform(robot.JOINT_LOWER, robot.JOINT_UPPER)
        for _ in range(90):
            mujoco.mj_step(model, data)
            speeds.append(np.abs(data.qvel[:16]).max())
            overshoot = np.maximum(overshoot, (data.qpos[:16] - goal) * np.sign(goal - before))
        assert overshoot.max() < 0.06 and np.abs(data.qpos[:16] - goal).max() < 0.05
    model.opt.disableflags &= ~mujoco.mjtDisableBit.mjDSBL_CONTACT.value
    assert 4.0 < max(speeds) < 1.2 * robot.HAND_SPEED


# -------------------------------------------------------------------- the cube

FLAT = [[1, 0, 0, 0], TURN_X, TURN_Z, turned(math.pi), turned(0.3, 2), turned(-math.pi / 2, 1)]


@pytest.mark.parametrize("quaternion", FLAT)
def test_a_cube_rests_in_the_hand(model, quaternion):
    data = start(model, [0.0, -0.18, 0.56, *quaternion])
    run(model, data, 1.5)  # it tips over, from the middle finger to the ring finger
    before = data.qpos.copy()
    run(model, data, 2.0)
    assert np.linalg.norm(data.qpos[16:19] - before[16:19]) < 0.0003
    assert np.linalg.norm(data.qpos[16:19] - (0.0, -0.2, 0.52)) < 0.06 and data.ncon >= 3
    assert min(data.contact.dist) > -0.002
    assert np.abs(data.qvel).max() < 0.01 and np.abs(data.qpos[:16] - before[:16]).max() < 0.005


def test_a_grasped_cube_stays_when_the_hand_is_turned_over(model):
    """The reason for the friction cone: three fingers and the thumb hold it, then gravity turns around."""
    data = start(model, [0.0, -0.17, 0.56, 1, 0, 0, 0])
    run(model, data, 0.5)
    data.ctrl[:] = SHUT
    run(model, data, 1.5)
    held = data.qpos[16:19].copy()
    for angle in np.linspace(0.0, math.pi, 60):
        model.opt.gravity[:] = 9.81 * math.sin(angle), 0.0, -9.81 * math.cos(angle)
        run(model, data, 0.03)
    run(model, data, 2.0)
    model.opt.gravity[:] = 0.0, 0.0, -9.81
    assert np.linalg.norm(data.qpos[16:19] - held) < 0.005
    assert min(data.contact.dist) > -0.002


def test_a_cube_that_starts_inside_the_fingers_is_not_shot_off(model):
    rng, deepest = np.random.default_rng(0), 0.0
    for _ in range(60):
        first, second = rng.uniform(-math.pi, math.pi, 2)
        quaternion = np.zeros(4)
        mujoco.mju_mulQuat(quaternion, turned(first), turned(second, 1))
        pose = np.clip(rng.uniform(0.2 * robot.JOINT_LOWER, 0.2 * robot.JOINT_UPPER), robot.JOINT_LOWER, None)
        data = start(model, [*(rng.uniform(-0.01, 0.01, 3) + (0.0, -0.2, 0.56)), *quaternion], pose)
        deepest = min([deepest, *data.contact.dist])
        for _ in range(9):
            mujoco.mj_step(model, data)
            assert np.linalg.norm(data.qvel[16:19]) < 1.5  # m/s; 1.0 by gravity alone
    assert deepest < -0.01


def test_a_flying_cube_keeps_its_energy(model):
    data = start(model, [0.0, 0.0, 3.0, 1.0, 0.0, 0.0, 0.0])
    data.qvel[16:] = [0.5, 0.0, 2.0, 3.0, 2.0, 1.0]
    mass, inertia = 400 * 0.065**3, 400 * 0.065**5 / 6
    assert model.body("cube").mass == pytest.approx(mass) and np.allclose(model.body("cube").inertia, inertia)

    def energy():
        v, w = data.qvel[16:19], data.qvel[19:22]
        return 0.5 * mass * v @ v + mass * 9.81 * data.qpos[18], 0.5 * inertia * w @ w

    before = energy()
    run(model, data, 0.5)
    assert energy() == pytest.approx(before, rel=0.01)


def test_the_goal_touches_nothing(model):
    data = start(model, [0.0, -0.18, 0.56, 1, 0, 0, 0])
    data.mocap_pos[0] = data.qpos[16:19]
    mujoco.mj_forward(model, data)
    goal = model.body("goal").id
    assert data.ncon == 0 and not (model.geom_contype[model.geom_bodyid == goal]).any()


# -------------------------------------------------------------------- reward, term by term


@pytest.fixture
def make_still(monkeypatch):
    monkeypatch.setattr(task, "make_engine", StillEngine)

    def make(num_envs=3, seed=1):
        env = task.AllegroHand(num_envs, "cpu", seed)
        env.reset()
        return env

    return make


def put_cube(env, index, position=(0.0, -0.2, 0.52), off_goal=1.0):
    """The cube at `position`, turned by `off_goal` rad from the goal about the world's y axis."""
    env.engine.body_pos[index, 0] = torch.tensor(position)
    env.engine.body_quat[index, 0] = multiply(torch.tensor(turned(off_goal, 1)), env.goal[index])


def act(env, action=0.0):
    return env.step(torch.full((env.num_envs, 16), action))


def terms(distance=0.05, rotation=1.0, action=(0.0,) * 16):
    values = task.reward_terms(torch.tensor([distance]), torch.tensor([rotation]), torch.tensor([action]))
    return {name: value.item() for name, value in values.items()}


def test_distance_costs():
    assert terms(distance=0.05)["distance"] == pytest.approx(-0.5)


@pytest.mark.parametrize("rotation, expected", [(0.0, 10.0), (0.1, 5.0), (1.9, 0.5), (math.pi, 0.308489)])
def test_rotation_pays(rotation, expected):
    assert terms(rotation=rotation)["rotation"] == pytest.approx(expected, abs=1e-5)


def test_action_costs():
    assert terms(action=[1.0, -0.5] + [0.0] * 14)["action"] == pytest.approx(-0.00025)


@pytest.mark.parametrize("rotation, expected", [(0.0999, 250.0), (0.1001, 0.0)])
def test_success_pays(rotation, expected):
    assert terms(rotation=rotation)["success"] == expected


def test_reward_is_the_sum_of_its_terms(make_still):
    env = make_still(2)
    put_cube(env, 0, (0.0, -0.1, 0.52), 0.4)
    put_cube(env, 1, (0.0, -0.2, 0.52), 0.05)
    _, reward, *_ = act(env, 0.5)
    assert reward.tolist() == pytest.approx([-1.0 + 2.0 - 0.0008, 1 / 0.15 + 250.0 - 0.0008], abs=1e-3)
    assert env.term_sums[0].tolist() == pytest.approx([-1.0, 2.0, -0.0008, 0.0], abs=1e-4)


@pytest.mark.parametrize("angle", [0.0, 0.05, 1.0, 3.0, math.pi, 2 * math.pi - 0.3])
def test_angle_of_a_quaternion_and_its_negative(angle):
    for sign in (1.0, -1.0):
        found = task.angle(sign * torch.tensor(turned(angle, 1))).item()
        assert found == pytest.approx(min(angle, 2 * math.pi - angle), abs=2e-3)


def test_turn_x_then_y():
    expected = np.zeros(4)
    both = task.turn_x_then_y(torch.tensor([0.7]), torch.tensor([-1.1]))
    mujoco.mju_mulQuat(expected, turned(0.7), turned(-1.1, 1))
    assert both[0].tolist() == pytest.approx(expected.tolist(), abs=1e-6)


# -------------------------------------------------------------------- rules


def test_a_success_brings_the_next_goal_at_once_and_leaves_all_else(make_still):
    env = make_still(2)
    put_cube(env, 0, off_goal=0.05)
    put_cube(env, 1, off_goal=0.3)
    goal, qpos = env.goal.clone(), env.engine.qpos.clone()
    obs, _, terminated, truncated, info = act(env)
    assert env.successes.tolist() == [1.0, 0.0] and not (terminated | truncated).any()
    assert (env.goal[0] != goal[0]).any() and torch.equal(env.goal[1], goal[1])
    assert torch.equal(env.engine.qpos, qpos) and env.episode_step.tolist() == [1, 1]
    assert torch.equal(obs[0, 64:68], env.goal[0].roll(-1))  # it is seen already
    put_cube(env, 0, off_goal=-0.05)
    act(env)
    assert env.successes.tolist() == [2.0, 0.0]


def test_objective_counts_the_successes_of_the_episode(make_still):
    env = make_still(2)
    for _ in range(3):
        put_cube(env, 0, off_goal=0.05)
        put_cube(env, 1, off_goal=1.0)
        act(env)
    env.episode_step.fill_(599)
    put_cube(env, 0, off_goal=0.05)
    goal = env.goal.clone()
    *_, truncated, info = act(env)
    assert truncated.all() and info["episode"]["objective"].tolist() == [4.0, 0.0]
    assert torch.equal(info["final_obs"][:, 64:68], goal.roll(-1, 1)) and not env.term_sums.any()
    assert info["metrics"]["successes"].item() == 2.0 and env.successes.tolist() == [0.0, 0.0]
    assert info["metrics"]["consecutive_successes"].item() == pytest.approx(0.2)  # 0.1 of the newest mean


def test_consecutive_successes_average_over_what_finishes(make_still):
    env = make_still(4)
    env.consecutive_successes.fill_(10.0)
    for index in range(4):
        put_cube(env, index)
    act(env)
    assert env.consecutive_successes.item() == 10.0  # nothing finished
    env.successes[:] = torch.tensor([6.0, 2.0, 50.0, 50.0])
    env.episode_step[:2] = 599
    act(env)
    assert env.consecutive_successes.item() == pytest.approx(0.9 * 10.0 + 0.1 * 4.0)


@pytest.mark.parametrize("drop, lost", [(0.239, False), (0.241, True)])
def test_a_lost_cube_terminates(make_still, drop, lost):
    env = make_still(2)
    put_cube(env, 0, (0.0, -0.2, 0.52 - drop))
    put_cube(env, 1)
    _, reward, terminated, truncated, _ = act(env)
    assert terminated.tolist() == [lost, False] and not truncated.any()
    assert reward[0].item() == pytest.approx(-10 * drop + 1 / 1.1, abs=1e-3)  # no penalty for losing it


def test_an_episode_is_600_steps(make_still):
    env = make_still(1)
    put_cube(env, 0)
    env.episode_step.fill_(598)
    assert not act(env)[3].any() and act(env)[3].all()


def test_a_broken_world_earns_nothing_and_ends(make_still):
    env = make_still(2)
    for index in range(2):
        put_cube(env, index, off_goal=0.05)
    env.engine.broken[0] = True
    _, reward, terminated, _, info = act(env)
    assert terminated.tolist() == [True, False] and reward[0] == 0.0 and reward[1] > 250.0
    assert info["metrics"]["nan_worlds"].item() == 1 and info["episode"]["objective"].tolist() == [0.0, 1.0]


def test_actions_are_absolute_targets(make_still):
    env = make_still(1)
    for action, expected in ((-1.0, LOWER), (1.0, UPPER), (0.0, (LOWER + UPPER) / 2), (5.0, UPPER)):
        act(env, action)
        assert torch.allclose(env.engine.ctrl[0], expected, atol=1e-6)


def test_control_rate(make_still):
    env = make_still(1)
    assert env.engine.substeps * env.engine.timestep == pytest.approx(2 * 0.01667)  # 30 Hz


# -------------------------------------------------------------------- resets


def test_reset_distribution(make_still):
    env = make_still(4000)
    joints, low, high = env.engine.qpos[:, :16], (0.2 * LOWER).maximum(LOWER), (0.2 * UPPER).maximum(LOWER)
    assert (joints >= low - 1e-6).all() and (joints <= high + 1e-6).all()
    assert torch.allclose(joints.amin(0), low, atol=0.005) and torch.allclose(joints.amax(0), high, atol=0.005)
    assert (joints[:, 12] == LOWER[12]).float().mean() > 0.8  # thumb joint 0, mostly clamped
    offset = env.engine.qpos[:, 16:19] - torch.tensor([0.0, -0.2, 0.56])
    assert offset.abs().max() <= 0.01 + 1e-6 and offset.std(0).tolist() == pytest.approx([0.01 / 3**0.5] * 3, rel=0.05)
    assert not env.engine.qvel.any()
    for quaternion in (env.engine.qpos[:, 19:], env.goal):
        assert torch.allclose(quaternion.norm(dim=1), torch.ones(4000), atol=1e-5)
        assert (quaternion[:, 0] * quaternion[:, 3] - quaternion[:, 1] * quaternion[:, 2]).abs().max() < 1e-6
        assert torch.allclose(quaternion.square().mean(0), torch.full((4,), 0.25), atol=0.02)
    assert not torch.allclose(env.engine.qpos[:, 19:], env.goal)


def test_reset_where_leaves_the_others_untouched():
    env = envs.make("AllegroHand", 4)
    env.reset()
    for action in random_actions(4, 5):
        env.step(action)
    before, obs = env.state_dict(), env.observe()
    mask = torch.tensor([True, False, True, False])
    env.reset_where(mask)
    after = env.state_dict()
    for name in ("goal", "last_action", "successes", "term_sums"):
        assert torch.equal(before[name][~mask], after[name][~mask]), name
    assert torch.equal(before["engine"]["state"][~mask], after["engine"]["state"][~mask])
    assert torch.equal(obs[~mask], env.observe()[~mask]) and (obs != env.observe())[mask].any(1).all()
    assert not env.last_action[mask].any()


# -------------------------------------------------------------------- with physics


def random_actions(num_envs, num_steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 2.0 * torch.rand(num_steps, num_envs, 16, generator=generator) - 1.0


def test_contract():
    env = envs.make("AllegroHand", 3)
    assert (env.num_obs, env.num_actions, env.max_episode_steps, env.engine_name) == (88, 16, 600, env.engine.name)


def test_observation_layout():
    """Every slice against MuJoCo's own kinematics of the same state."""
    env = envs.make("AllegroHand", 2, seed=3)
    env.reset()
    for action in random_actions(2, 6):
        env.step(action)
    obs = env.observe().double().numpy()
    for i in range(2):
        qpos, qvel = env.engine.qpos[i].double().numpy(), env.engine.qvel[i].double().numpy()
        lower, upper = robot.JOINT_LOWER, robot.JOINT_UPPER
        quaternion, goal = qpos[19:], env.goal[i].double().numpy()
        spin, relative, world = np.zeros(9), np.zeros(4), np.zeros(3)
        mujoco.mju_quat2Mat(spin, quaternion)
        world = spin.reshape(3, 3) @ qvel[19:]  # body axes to world axes
        mujoco.mju_mulQuat(relative, quaternion, goal * [1, -1, -1, -1])
        assert obs[i, :16] == pytest.approx(2 * (qpos[:16] - lower) / (upper - lower) - 1, abs=1e-5)
        assert obs[i, 16:32] == pytest.approx(np.clip(0.2 * qvel[:16], -5, 5), abs=1e-5)
        assert obs[i, 48:51] == pytest.approx(qpos[16:19], abs=1e-6)
        assert obs[i, 51:55] == pytest.approx(np.roll(quaternion, -1), abs=1e-6)
        assert obs[i, 55:58] == pytest.approx(qvel[16:19], abs=1e-4)
        assert obs[i, 58:61] == pytest.approx(0.2 * world, abs=1e-4)
        assert obs[i, 61:64].tolist() == pytest.approx([0.0, -0.2, 0.52])
        assert obs[i, 64:68] == pytest.approx(np.roll(goal, -1), abs=1e-6)
        assert obs[i, 68:72] == pytest.approx(np.roll(relative, -1), abs=1e-5)
        assert obs[i, 72:] == pytest.approx(random_actions(2, 6)[5, i].numpy())


def test_observation_is_clamped():
    env = envs.make("AllegroHand", 1)
    env.reset()
    env.engine.qvel[0, 0] = 100.0
    env.last_action[0, 1] = -7.0
    assert env.observe()[0, 16] == 5.0 and env.observe()[0, 73] == -5.0


def test_joint_forces_are_zeros_unless_switched_on(make_still, monkeypatch):
    """The hand of the original reads sensors that it never enables; ShadowHand's are on."""
    env = make_still(2)
    env.engine.sensors[:, :16], env.engine.sensors[:, 16:] = 0.2, 0.0
    assert torch.equal(env.observe()[:, 32:48], torch.zeros(2, 16))
    monkeypatch.setattr(task.AllegroHand, "joint_force_sensors", True)
    assert (env.observe()[:, 32:48] != 0.0).all() and task.ShadowHand.joint_force_sensors


def test_joint_force_is_the_drive_and_the_limit(make_still, monkeypatch):
    monkeypatch.setattr(task.AllegroHand, "joint_force_sensors", True)
    env = make_still(1)
    env.engine.qpos[0, :3] = torch.stack([LOWER[0], UPPER[1], LOWER[2]])
    env.engine.sensors[0, :3] = torch.tensor([0.1, -0.2, 0.3])
    env.engine.sensors[0, 16:19] = torch.tensor([0.05, 0.02, 0.0])
    assert env.joint_force()[0, :3].tolist() == pytest.approx([0.15, -0.22, 0.3])
    assert env.observe()[0, 32:35].tolist() == pytest.approx([1.5, -2.2, 3.0])


def test_joint_force_is_what_the_sensors_measure(model):
    data = start(model)
    data.qpos[:2] = data.ctrl[:2] = robot.JOINT_LOWER[0] - 1e-4, robot.JOINT_UPPER[1] + 1e-4
    data.qfrc_applied[:2] = -1.0, 1.0  # into their limits
    data.ctrl[4] = 0.5
    mujoco.mj_forward(model, data)
    assert data.ncon == 0 and len(data.sensordata) == 32
    assert data.sensordata[:16] == pytest.approx(data.qfrc_actuator[:16]) and data.sensordata[4] == 0.5
    limit = data.sensordata[16:] * np.sign((robot.JOINT_LOWER + robot.JOINT_UPPER) / 2 - data.qpos[:16])
    assert limit == pytest.approx(data.qfrc_constraint[:16], abs=1e-9) and limit[0] > 0.01 and limit[1] < -0.01


def test_two_thousand_steps_stay_finite(tmp_path, monkeypatch):
    """Half of the agents do nothing, half act at random; MuJoCo warns of nothing."""
    monkeypatch.chdir(tmp_path)  # MuJoCo writes MUJOCO_LOG.TXT where it runs
    env = envs.make("AllegroHand", 8)
    env.reset()
    ends = torch.zeros(8)
    for action in random_actions(8, 2000):
        action[:4] = 0.0
        obs, reward, terminated, truncated, info = env.step(action)
        assert obs.isfinite().all() and reward.isfinite().all() and obs.abs().max() <= 5.0
        ends += terminated | truncated
    assert ends[:4].sum() >= 8 and ends[4:].sum() >= 8 and info["metrics"]["nan_worlds"].item() == 0
    assert not os.path.exists("MUJOCO_LOG.TXT")


MEAN_REWARDS, HEIGHTS = [-0.597, -0.672, -0.717, -0.745], [0.5473, 0.5454, 0.5577, 0.5507]  # of the rollout below


def test_a_seeded_rollout_is_what_it_was():
    """A change of physics shows here. Tolerances leave room for other processors."""
    env = envs.make("AllegroHand", 4, seed=7)
    env.reset()
    rewards = [env.step(0.3 * action)[1] for action in random_actions(4, 50)]
    assert torch.stack(rewards).mean(0).tolist() == pytest.approx(MEAN_REWARDS, abs=0.02)
    assert env.engine.body_pos[:, 0, 2].tolist() == pytest.approx(HEIGHTS, abs=0.002)


def test_render_shows_the_goal_and_its_orientation():
    env = envs.make("AllegroHand", 2)
    env.reset()
    try:
        image = env.render(1)
    except RuntimeError as error:
        pytest.skip(str(error))
    assert image.shape == (480, 640, 3) and image.dtype == np.uint8
    env.goal[1] = multiply(torch.tensor(TURN_X), env.goal[1])
    assert 200 < (image != env.render(1)).any(2).sum() < 20000  # the goal alone
