"""The Panda arm, its controller and the cubes: published numbers, MuJoCo's own dynamics, and physics to be believed."""

import math

import mujoco
import numpy as np
import pytest
import torch

import envs
from envs.models import franka as robot
from envs.tasks import franka_cube as task
from envs.rotations import conjugate, multiply
from tests.envs.helpers import data_of, started, touching

TABLE_TOP = 1.025
OPEN = 1.0
SHUT = -1.0


@pytest.fixture(scope="module")
def model():
    return robot.build_scene(second_cube=True).compile()


def start(model, pose=robot.DEFAULT_POSE, cube_a=(0.0, 1.0, 0.025), cube_b=(0.0, 2.0, 0.035)):
    """Data with the robot in `pose` and the cubes, upright, by default on the ground out of the way."""
    data = mujoco.MjData(model)
    data.qpos[:] = [*pose, *cube_a, 1, 0, 0, 0, *cube_b, 1, 0, 0, 0]
    data.ctrl[7:] = pose[7:]
    mujoco.mj_forward(model, data)
    return data


def random_poses(number):
    return np.random.default_rng(0).uniform(robot.JOINT_LOWER, robot.JOINT_UPPER, (number, 9))


# -------------------------------------------------------------------- the robot


def test_joint_order_limits_and_masses(model):
    assert (model.nq, model.nv, model.nu) == (23, 21, 9)
    names = ["panda_joint%d" % i for i in range(1, 8)] + ["panda_finger_joint1", "panda_finger_joint2"]
    assert [model.joint(i).name for i in range(11)] == names + ["cube_a", "cube_b"]
    assert [model.actuator(i).trnid[0] for i in range(9)] == list(range(9))
    lower = [-2.8973, -1.7628, -2.8973, -3.0718, -2.8973, -0.0175, -2.8973, 0, 0]
    upper = [2.8973, 1.7628, 2.8973, -0.0698, 2.8973, 3.7525, 2.8973, 0.04, 0.04]
    assert np.allclose(model.jnt_range[:9], np.stack([lower, upper], 1))
    assert model.jnt_limited[:9].all()
    assert model.actuator_ctrlrange[:7, 1].tolist() == [87, 87, 87, 87, 12, 12, 12]
    masses = [2.996539, 2.975171, 3.004303, 2.328452, 2.37399, 3.419229, 1.435421, 1.155058, 0.02266, 0.02266]
    assert [model.body(name).mass[0] for name in ["panda_link0", *robot.LINK_BODIES]] == pytest.approx(masses, abs=1e-6)
    assert model.body("cube_a").mass[0] == pytest.approx(0.125)
    assert model.body("cube_b").mass[0] == pytest.approx(0.343)


def test_forward_kinematics(model):
    data = start(model)
    grip = data.body("panda_grip_site")
    down = grip.xmat.reshape(3, 3)[:, 2]
    assert np.allclose(grip.xpos, (0.008003, 0, 1.218114), atol=2e-6)
    assert np.allclose(grip.xpos - 0.1025 * down, (-0.00501, 0, 1.319785), atol=2e-6)  # the hand
    assert abs(grip.xquat @ [0, 0.997975, 0, 0.063607]) == pytest.approx(1, abs=1e-6)
    for side, name in ((-1, "panda_leftfinger_tip"), (1, "panda_rightfinger_tip")):
        assert np.allclose(data.body(name).xpos, (0.008003, side * 0.0365, 1.218114), atol=2e-6)


def test_scene(model):
    def box(name):
        geom = model.geom(name)
        return (geom.pos - geom.size).tolist(), (geom.pos + geom.size).tolist()

    assert box("table") == (pytest.approx([-0.6, -0.6, 0.975]), pytest.approx([0.6, 0.6, 1.025]))
    assert box("stand") == (pytest.approx([-0.6, -0.1, 1.025]), pytest.approx([-0.4, 0.1, 1.125]))
    assert model.geom("cube_a").size.tolist() == [0.025] * 3
    assert model.geom("cube_b").size.tolist() == [0.035] * 3
    assert (model.geom_friction[:, 0] == 1.0).all()
    push = robot.build_scene(second_cube=False).compile()
    assert (push.nq, push.nv, push.nu) == (16, 15, 9)
    assert push.body("goal").mocapid[0] == 0
    assert push.geom_contype[push.body("goal").geomadr[0]] == 0


def test_nothing_touches_at_the_default_pose(model):
    assert all(pair in ({"world", "cube_a"}, {"world", "cube_b"}) for pair in touching(model, start(model)))


def test_fingers_close_and_open_at_their_published_speed(model):
    data = start(model)
    speeds = []
    for target, reached in ((0.0, 0.002), (0.04, 0.038)):
        data.ctrl[7:] = target
        for _ in range(84):
            mujoco.mj_step(model, data)
            speeds.append(np.abs(data.qvel[7:9]).max())
        assert np.abs(data.qpos[7:9] - reached).max() < 0.002
    assert 0.15 < max(speeds) < 0.2


# -------------------------------------------------------------------- the controller


def make_controller():
    return envs.make("FrankaCubePush", 1).controller


def measured(model, poses):
    """Poses of the links (n, 9, 3 and 4), float32, and MuJoCo's Jacobian (n, 6, 7) and mass matrix (n, 7, 7)."""
    positions = []
    quaternions = []
    jacobians = []
    masses = []
    for pose in poses:
        data = start(model, pose)
        positions.append([data.body(name).xpos.copy() for name in robot.LINK_BODIES])
        quaternions.append([data.body(name).xquat.copy() for name in robot.LINK_BODIES])
        grip = data.body(robot.GRIP_BODY)
        jacobian = np.zeros((6, model.nv))
        mass = np.zeros((model.nv, model.nv))
        hand = grip.xpos - 0.1025 * grip.xmat.reshape(3, 3)[:, 2]
        mujoco.mj_jac(model, data, jacobian[:3], jacobian[3:], hand, grip.id)
        mujoco.mj_fullM(model, data, mass)
        jacobians.append(jacobian[:, :7])
        masses.append(mass[:7, :7])
    links = [torch.tensor(np.array(x), dtype=torch.float32) for x in (positions, quaternions)]
    return (*links, np.array(jacobians), np.array(masses))


def test_jacobian_and_mass_matrix_are_mujocos(model):
    link_pos, link_quat, jacobian, mass = measured(model, random_poses(50))
    ours_jacobian, ours_mass = make_controller().dynamics(link_pos, link_quat)
    assert np.abs(ours_jacobian.numpy() - jacobian).max() < 2e-6
    assert np.abs(ours_mass.numpy() - mass).max() < 2e-5
    assert np.abs(ours_mass.numpy() / mass - 1)[:, range(7), range(7)].max() < 1e-4


def test_torque_is_the_published_formula(model):
    """tau = J' L (150 dx - 2 sqrt(150) v) + (1 - J' L J M^-1) M (10 (rest - q) - 2 sqrt(10) q'), L = (J M^-1 J')^-1."""
    rng = np.random.default_rng(1)
    poses = np.tile(robot.DEFAULT_POSE, (20, 1))
    poses[:, :7] += rng.uniform(-0.25, 0.25, (20, 7))
    poses[0, 6] -= 2.0 * math.pi  # the same pose: the way back is the shorter one
    link_pos, link_quat, jacobian, mass = measured(model, poses)
    step = rng.normal(0, 0.01, (20, 6))
    velocity = rng.normal(0, 0.05, (20, 6))
    joint_vel = rng.normal(0, 0.2, (20, 7))
    expected = []
    for q, qd, dx, v, j, m in zip(poses[:, :7], joint_vel, step, velocity, jacobian, mass):
        inverse = np.linalg.inv(m)
        hand_mass = np.linalg.inv(j @ inverse @ j.T)
        error = (robot.DEFAULT_POSE[:7] - q + np.pi) % (2 * np.pi) - np.pi
        posture = 10 * error - 2 * np.sqrt(10) * qd
        torque = j.T @ hand_mass @ (150 * dx - 2 * np.sqrt(150) * v)
        torque += (np.eye(7) - j.T @ hand_mass @ j @ inverse) @ m @ posture
        assert (np.abs(qd + 0.01667 * inverse @ torque) < robot.ARM_SPEED).all()  # no limit is met
        expected.append(torque)
    assert (np.abs(expected) < robot.ARM_EFFORT).all()
    assert np.abs(expected).max() > 10
    state = [torch.tensor(x, dtype=torch.float32) for x in (step, velocity, poses[:, :7], joint_vel)]
    torque = make_controller().torque(*state, link_pos, link_quat).numpy()
    assert np.abs(torque - expected).max() < 0.005 * np.abs(expected).max()


def test_no_torque_drives_a_joint_beyond_its_speed(model):
    """The torque would bring each joint, by the end of the step, to what is asked or to its limit."""
    poses = np.tile(robot.DEFAULT_POSE, (3, 1))
    link_pos, link_quat, jacobian, mass = measured(model, poses)
    zeros = torch.zeros(3, 6)
    joint_pos = torch.tensor(poses[:, :7]).float()
    joint_vel = torch.zeros(3, 7)
    step = torch.zeros(3, 6)
    step[0, 5] = 0.3  # the hand turns by the last joint, most of all: 45 rad/s^2, 0.75 rad/s within a step
    step[1, 5] = 0.3
    joint_vel[1, 6] = -2.5
    joint_vel[2, 6] = 2.8  # already too fast
    torque = make_controller().torque(step, zeros, joint_pos, joint_vel, link_pos, link_quat).double().numpy()
    after = joint_vel.numpy() + 0.01667 * np.linalg.solve(mass, torque[..., None])[..., 0]
    assert (jacobian[0] @ after[0])[5] == pytest.approx(0.75, rel=0.01)
    assert after[1, 6] == pytest.approx(-2.61, abs=1e-3)
    assert after[2, 6] == pytest.approx(2.61, abs=1e-3)
    assert (np.abs(after) < robot.ARM_SPEED + 1e-3).all()


def test_torques_are_limited_and_finite_where_the_arm_is_straight(model):
    pose = np.zeros((1, 9))
    link_pos, link_quat, jacobian, mass = measured(model, pose)
    assert np.linalg.eigvalsh(jacobian[0] @ np.linalg.inv(mass[0]) @ jacobian[0].T)[0] < 1e-3
    zeros = torch.zeros(1, 7)
    limits = torch.tensor([[87.0] * 4 + [12.0] * 3])
    for i in range(6):
        torque = make_controller().torque(torch.eye(6)[i : i + 1], zeros[:, :6], zeros, zeros, link_pos, link_quat)
        assert torque.isfinite().all()
        assert (torque.abs() <= limits).all()


# -------------------------------------------------------------------- scripts that act as a policy would


def pointing_down(yaw):
    """Quaternions (N, 4) of a hand that points down, its fingers' axis turned by yaw (N,) rad from y."""
    return torch.stack([0 * yaw, (yaw / 2).cos(), (yaw / 2).sin(), 0 * yaw], 1)


def toward(env, position, quaternion, gripper):
    """The action that leads the grip site to a pose: what is left of the way, 0.1 m and 0.5 rad per unit."""
    now = env.engine.body_quat[:, task.GRIP]
    turn = multiply(quaternion, conjugate(now))
    turn = 2.0 * turn[:, 1:] * turn[:, :1].sign()
    move = (position - env.engine.body_pos[:, task.GRIP]) / 0.1
    return torch.cat([move, turn / 0.5, torch.full((env.num_envs, 1), gripper)], 1)


def endless(num_envs, cube_a, cube_b, yaw_a):
    """FrankaCubeStack that never resets, the arm at its default pose and the cubes (N, 2) where they are told."""
    env = started("FrankaCubeStack", num_envs)
    env._begin_episodes = lambda mask: None
    qpos = torch.zeros(num_envs, 23)
    qpos[:, :9] = env.joint_default
    qpos[:, 9:11] = cube_a
    qpos[:, 11] = TABLE_TOP + 0.025
    qpos[:, 16:18] = cube_b
    qpos[:, 18] = TABLE_TOP + 0.035
    qpos[:, 12] = (yaw_a / 2).cos()
    qpos[:, 15] = (yaw_a / 2).sin()
    qpos[:, 19] = 1.0
    env.engine.set_state(torch.ones(num_envs, dtype=torch.bool), qpos, torch.zeros(num_envs, 21))
    return env


def far_apart(num_envs=4):
    generator = torch.Generator().manual_seed(0)
    cube_a = 0.2 * torch.rand(num_envs, 2, generator=generator) - torch.tensor([0.1, 0.25])
    yaw = 1.57 * torch.rand(num_envs, generator=generator) - 0.785
    return endless(num_envs, cube_a, torch.tensor([[0.0, 0.2]] * num_envs), yaw), yaw


def go(env, position, quaternion, gripper, num_steps):
    for _ in range(num_steps):
        step = env.step(toward(env, position, quaternion, gripper))
    return step


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("way", [0.1, -0.1])
def test_the_hand_goes_ten_centimetres_along_each_axis(axis, way):
    env = endless(1, torch.tensor([[0.3, 0.3]]), torch.tensor([[0.3, -0.3]]), torch.zeros(1))
    before = env.engine.body_pos[:, task.GRIP].clone()
    quaternion = env.engine.body_quat[:, task.GRIP].clone()
    goal = before.clone()
    goal[0, axis] += way
    go(env, goal, quaternion, OPEN, 60)
    assert (env.engine.body_pos[:, task.GRIP] - goal).norm() < 0.001  # 1 mm within a second
    assert (env.engine.body_quat[:, task.GRIP] * quaternion).sum().abs() > math.cos(0.01 / 2)
    assert env.engine.body_linvel[:, task.GRIP].norm() < 0.001


def deepest_contact(env, index, *bodies):
    """The deepest penetration (m) between the robot's fingers and the bodies in one world."""
    model, data = data_of(env, index)
    return min([c.dist for c in data.contact if model.body(model.geom_bodyid[c.geom2]).name in bodies], default=0.0)


@pytest.fixture(scope="module")
def held():
    """Four cubes turned at random, grasped through the task's actions and lifted by 15 cm. Returns also poses."""
    env, yaw = far_apart()
    cube = env.cube()[:, :3].clone()
    down = pointing_down(yaw)
    up = torch.tensor([0.0, 0.0, 0.15])
    go(env, cube + up, down, OPEN, 90)
    go(env, cube, down, OPEN, 60)
    assert (env.cube()[:, :3] - cube).norm(dim=1).max() < 0.001  # not touched yet
    go(env, cube, down, SHUT, 30)
    assert min(deepest_contact(env, i, "cube_a") for i in range(4)) > -0.002
    go(env, cube + up, down, SHUT, 60)
    return env, cube + up, down, env.state_dict()


def test_a_grasped_cube_is_lifted_and_held(held):
    env, position, down, state = held
    env.load_state_dict(state)
    assert (env.cube()[:, 2] > TABLE_TOP + 0.025 + 0.14).all()
    before = env.cube()[:, :3] - env.engine.body_pos[:, task.GRIP]
    go(env, position, down, SHUT, 120)  # 2 s
    slip = (env.cube()[:, :3] - env.engine.body_pos[:, task.GRIP] - before).norm(dim=1)
    assert slip.max() < 0.0001  # 0.26 mm with impratio 1
    assert min(deepest_contact(env, i, "cube_a") for i in range(4)) > -0.002


def test_a_cube_that_is_set_on_the_other_stays_and_counts(held):
    env, _, down, state = held
    env.load_state_dict(state)
    top = env.target() + torch.tensor([0.0, 0.0, 0.06])
    up = torch.tensor([0.0, 0.0, 0.1])
    go(env, top + up, down, SHUT, 100)
    _, reward, terminated, _, _ = go(env, top, down, SHUT, 60)
    assert not terminated.any()
    assert (reward > 3.0).all()
    assert (reward < 3.6).all()  # there, but not let go
    go(env, top, down, OPEN, 20)
    _, reward, terminated, _, info = go(env, top + up, down, OPEN, 40)
    assert terminated.all()
    assert reward.tolist() == [16.0] * 4
    assert info["metrics"]["success_rate"].item() == 1.0
    before = env.engine.qpos[:, 9:].clone()
    go(env, top + up, down, OPEN, 120)  # 2 s
    assert (env.engine.qpos[:, 9:] - before).abs().max() < 1e-4
    assert min(deepest_contact(env, i, "cube_a", "cube_b") for i in range(4)) > -0.0005


def test_a_cube_that_is_carried_to_its_goal_counts():
    """Two centimetres above the table: that is not yet lifted."""
    env = started("FrankaCubePush", 4)
    yaw = 2.0 * torch.atan2(env.cube()[:, 6], env.cube()[:, 3])
    cube = env.cube()[:, :3].clone()
    down = pointing_down(yaw)
    go(env, cube + torch.tensor([0.0, 0.0, 0.1]), down, OPEN, 80)
    go(env, cube, down, OPEN, 50)
    go(env, cube, down, SHUT, 20)
    finished = torch.zeros(4)
    for _ in range(100):
        action = toward(env, env.goal + torch.tensor([0.0, 0.0, 0.02]), down, SHUT)
        _, reward, terminated, _, _ = env.step(action)
        finished += terminated * (reward > 4.0 * 50) * (finished == 0)
    assert finished.tolist() == [1.0] * 4


def test_no_cube_is_shot_off_by_a_reset():
    env = started("FrankaCubeStack", 1000)
    before = env.engine.qpos[:, 9:].clone()
    for _ in range(6):
        env.step(torch.zeros(1000, 7))
        assert env.engine.qvel[:, 9:12].norm(dim=1).max() < 1.0
    assert ((env.engine.qpos[:, 9:] - before).abs().amax(1) > 0.001).float().mean() < 0.01
