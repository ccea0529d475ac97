"""A1Parkour: every rule of the task by hand. The robot: test_a1.py; the courses: test_parkour_terrain.py."""

import functools
import math

import mujoco
import numpy as np
import pytest
import torch

import envs
from envs.models import a1
from envs.models import parkour_terrain as terrain
from envs.tasks import a1_parkour
from envs.tasks.a1_parkour import A1Parkour, next_level
from tests.envs.helpers import StillEngine, random_actions, started, turn

LEVEL = (1.0, 0.0, 0.0, 0.0)


@pytest.fixture
def still(monkeypatch):
    """From now on the physics stands still."""
    monkeypatch.setattr(a1_parkour, "make_engine", StillEngine)


def put(env, x=None, y=0.0, z=0.3, quat=LEVEL, joints=None, qvel=None):
    """Every environment in this state; x: as it is."""
    num_envs = env.num_envs
    qpos = torch.zeros(num_envs, 19)
    qpos[:, 0] = env.engine.qpos[:, 0] if x is None else torch.as_tensor(x)
    qpos[:, 1] = torch.as_tensor(y)
    qpos[:, 2] = torch.as_tensor(z)
    qpos[:, 3:7] = torch.as_tensor(quat)
    qpos[:, 7:] = torch.tensor(a1.DEFAULT_POSE) if joints is None else joints
    qvel = torch.zeros(num_envs, 18) if qvel is None else qvel
    env.engine.set_state(torch.ones(num_envs, dtype=torch.bool), qpos, qvel)


def stand_still(env):
    return env.step(torch.zeros(env.num_envs, 12))


# ---------------------------------------------------------------- the height scan


def empty_course(model):
    """The data of a model whose robot is not in the way of rays."""
    data = mujoco.MjData(model)
    data.qpos[:3] = (-300.0, 0.0, 0.0)
    mujoco.mj_forward(model, data)
    return data


def ray_heights(model, data, points):
    """Height (m) of the ground at points [(x, y)], by MuJoCo's rays."""
    down = np.array([0.0, 0.0, -1.0])
    return [4.0 - mujoco.mj_ray(model, data, np.array([*point, 4.0]), down, None, 1, -1, None) for point in points]


def test_the_scan_is_what_rays_see():
    """At 1,000 poses, of each point's cell the middle, also over pits and at their edges."""
    rng = np.random.default_rng(0)
    env = started("A1Parkour", 40)
    courses = [(model, empty_course(model)) for model in env.engine.models]
    pits = 0
    for _ in range(25):
        x = rng.uniform(-2.0, 181.0, 40)
        y = rng.uniform(-2.0, 2.0, 40)
        z = rng.uniform(0.0, 1.0, 40)
        yaw = rng.uniform(-math.pi, math.pi, 40)
        quat = np.zeros((40, 4))
        for i in range(40):
            tilt = turn(rng.uniform(-0.5, 0.5), 1)
            mujoco.mju_mulQuat(quat[i], turn(yaw[i], 2), tilt)
        put(env, x, y, z, quat)
        scan = env.observe()[:, 50:182].reshape(40, 12, 11)
        for i in range(40):
            forward = rng.integers(0, 12, 20)
            left = rng.integers(0, 11, 20)
            px = -0.45 + 0.15 * forward
            py = -0.75 + 0.15 * left
            points = [x[i] + px * math.cos(yaw[i]) - py * math.sin(yaw[i])]
            points += [y[i] + px * math.sin(yaw[i]) + py * math.cos(yaw[i])]
            cells = np.stack(points, 1) / 0.05
            certain = (abs(cells - cells.round()) > 2e-3).all(1) & (abs(cells[:, 1]) < 42)  # rounding; inside the map
            middles = 0.05 * (np.floor(cells[certain]) + 0.5)
            ground = np.array(ray_heights(*courses[i], middles))
            pits += (ground < -0.19).sum()
            expected = np.clip(z[i] - 0.3 - ground, -1.0, 1.0)
            assert np.allclose(scan[i, forward[certain], left[certain]], expected, atol=1e-4)
    assert pits > 500


# ---------------------------------------------------------------- the reward


def norm(vector):
    return math.sqrt(sum(float(x) ** 2 for x in vector))


@functools.lru_cache(maxsize=None)
def heights_of(column):
    return terrain.height_map(terrain.make_column(column))


def loop_terms(env, before, i, level):
    """The terms of world i by plain loops from the engine's state after a step. before: what was true before it."""
    qpos, qvel, sensors = (x[i].double().numpy() for x in (env.engine.qpos, env.engine.qvel, env.engine.sensors))
    old_qvel = before["qvel"][i].tolist()
    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, qpos[3:7])
    matrix = matrix.reshape(3, 3)
    goal = terrain.make_column(i % 40).goals[level, before["passed"][i]]
    offset = [goal[0] - qpos[0], goal[1] - qpos[1]]
    command = before["command"][i].item()
    approach = sum(offset[k] * qvel[k] for k in range(2)) / norm(offset)
    angle = math.atan2(offset[1], offset[0]) - math.atan2(matrix[1, 0], matrix[0, 0])
    angle = math.atan2(math.sin(angle), math.cos(angle))
    linear = matrix.T @ qvel[:3]
    gravity = matrix.T @ (0.0, 0.0, -1.0)
    flat = i % 5 == 2
    error = [qpos[7 + j] - a1.DEFAULT_POSE[j] for j in range(12)]
    change = 1.2 * (env.action[i] - before["action"][i])  # rad, of the joint targets
    torque = sensors[:12]
    stumbles = False
    edges = 0
    heights = heights_of(i % 40)
    for foot in range(4):
        force = sensors[39 + 3 * foot : 42 + 3 * foot]
        stumbles = stumbles or norm(force[:2]) > 4.0 * abs(force[2])
        x, y = sensors[51 + 3 * foot], sensors[52 + 3 * foot]
        touches = norm(force) > 2.0 or before["touched"][i, foot].item()
        along = heights[:, min(max(math.floor(y / 0.05) + 44, 0), 87)]
        point = math.floor(x / 0.05 + 0.5) + 100
        walls_up = any(along[k] - along[k - 1] > 0.075 for k in (point, point + 1, point + 2))
        walls_down = any(along[k - 1] - along[k] > 0.075 for k in (point, point - 1, point - 2))
        edges += touches and (walls_up or walls_down)
    return {
        "goal_velocity": 1.5 * min(approach, command) / (command + 1e-5),
        "yaw": 0.5 * math.exp(-abs(angle)),
        "vertical_velocity": -1.0 * linear[2] ** 2 * (1.0 if flat else 0.5),
        "angular_velocity": -0.05 * (qvel[3] ** 2 + qvel[4] ** 2),
        "orientation": -1.0 * (gravity[0] ** 2 + gravity[1] ** 2) if flat else 0.0,
        "joint_acceleration": -2.5e-7 * sum(((qvel[j] - old_qvel[j]) / 0.02) ** 2 for j in range(6, 18)),
        "collision": -10.0 * sum(norm(sensors[12 + 3 * k : 15 + 3 * k]) > 0.1 for k in range(9)),
        "action_rate": -0.1 * norm(change) / 0.25,
        "torque_change": -1e-7 * sum((torque[j] - before["torque"][i, j].item()) ** 2 for j in range(12)),
        "torque": -1e-5 * sum(torque[j] ** 2 for j in range(12)),
        "hip_position": -0.5 * sum(error[j] ** 2 for j in (0, 3, 6, 9)),
        "joint_position": -0.04 * sum(x**2 for x in error),
        "stumble": -1.0 * stumbles,
        "edge": -1.0 * edges if level > 3 else 0.0,
    }


def test_every_term_of_the_reward(monkeypatch):
    """Of 640 states in which robots fly and flail among the obstacles of all levels."""
    env = started("A1Parkour", 80)
    seen = {}
    original = a1_parkour.reward_terms

    def spy(motion):
        seen.update(original(motion))
        return seen

    monkeypatch.setattr(a1_parkour, "reward_terms", spy)
    env.passed.copy_(torch.arange(80) % 7)
    levels = env.level.tolist()
    assert set(levels) == set(range(10))
    goals = env.goals[env.column, env.level, env.passed]
    qvel = torch.zeros(80, 18)
    qvel[:, 0] = 2.0
    # not at the goal itself, where the direction to it is lost in float32, up to 180 m away
    put(env, goals[:, 0, 0] + 0.1, goals[:, 0, 1], 0.35 + env.heights[env.cells(goals)][:, 0], qvel=qvel)
    largest = dict.fromkeys(a1_parkour.REWARD_WEIGHTS, 0.0)
    for step, action in enumerate(random_actions(env, 40)):
        before = {name: getattr(env, name).clone() for name in ("passed", "command", "touched", "action", "torque")}
        before["qvel"] = env.engine.qvel.clone()
        reward, _, _ = env.advance(0.8 * action)
        if step % 5 == 4:
            for i in range(80):
                expected = loop_terms(env, before, i, levels[i])
                ours = [a1_parkour.REWARD_WEIGHTS[name] * seen[name][i].item() for name in expected]
                assert ours == pytest.approx(list(expected.values()), rel=5e-3, abs=2e-5), i  # float32, 180 m away
                total = 0.02 * sum(expected.values())
                assert reward[i].item() == pytest.approx(max(total, 0.0), rel=5e-3, abs=2e-5)
                for name, value in expected.items():
                    largest[name] = max(largest[name], abs(value))
    assert min(largest.values()) > 0.0
    assert list(seen) == list(a1_parkour.REWARD_WEIGHTS)


def test_walking_to_the_goal_at_the_commanded_speed_earns_forty_per_episode(still):
    env = started("A1Parkour", 5)
    qvel = torch.zeros(5, 18)
    qvel[:, 0] = 0.8
    put(env, qvel=qvel)
    _, reward, _, _, _ = stand_still(env)
    assert reward.tolist() == pytest.approx([40 / 1000] * 5, rel=1e-4)
    put(env, quat=turn(math.pi / 2, 2), qvel=qvel)
    _, reward, _, _, _ = stand_still(env)
    assert reward.tolist() == pytest.approx([0.03 + 0.01 * math.exp(-math.pi / 2)] * 5, rel=1e-4)


# ---------------------------------------------------------------- goals


def test_a_goal_is_passed_in_the_sixth_step_near_it(still):
    env = started("A1Parkour", 2)
    goals = torch.tensor(np.stack([terrain.make_column(i).goals[0] for i in range(2)]), dtype=torch.float32)
    near = goals[:, 0] + torch.tensor([[0.19, 0.0], [0.0, 0.21]])
    put(env, near[:, 0], near[:, 1])
    for _ in range(5):
        stand_still(env)
    assert env.passed.tolist() == [0, 0]
    put(env, goals[:, 0, 0] - 1.0)
    stand_still(env)  # the steps so far still count
    put(env, near[:, 0], near[:, 1])
    stand_still(env)
    assert env.passed.tolist() == [1, 0]
    for _ in range(5):
        put(env, goals[:, 1, 0], goals[:, 1, 1])
        stand_still(env)
    assert env.passed.tolist() == [1, 0]
    put(env, goals[:, 1, 0], goals[:, 1, 1])
    stand_still(env)
    assert env.passed.tolist() == [2, 0]


def test_a_base_dragged_along_the_goals_passes_all_eight(still):
    env = started("A1Parkour", 50)
    ended = torch.zeros(50, dtype=torch.long)
    for step in range(1, 49):
        passed = env.passed.tolist()
        goals = [terrain.make_column(i % 40).goals[level, passed[i]] for i, level in enumerate(env.level.tolist())]
        put(env, np.array(goals)[:, 0], np.array(goals)[:, 1])
        _, _, terminated, truncated, info = stand_still(env)
        assert not terminated.any()
        ended += step * truncated
    assert ended.tolist() == [48] * 50
    assert info["episode"]["done"].all()
    assert info["episode"]["objective"].tolist() == [8.0] * 50
    assert env.passed.tolist() == [0] * 50  # the next episode has begun


@pytest.mark.parametrize("training", [True, False])
def test_a_stuck_robot_is_given_up_in_training_alone(still, training):
    """After 200 steps in which it has not come 5 cm nearer to its goal."""
    env = envs.make("A1Parkour", 3, training=training)
    env.reset()
    env.episode_step.zero_()
    goal = terrain.make_column(0).goals[env.level[0].item(), 0]
    put(env, [goal[0] - 2.0, 0.0, 0.0], goal[1])  # the other two do not move until they are given up
    for _ in range(200):
        assert not stand_still(env)[3].any()  # the first of these steps is progress
    put(env, [goal[0] - 1.94, 0.0, 0.0], goal[1])
    _, _, terminated, truncated, _ = stand_still(env)
    assert not terminated.any()
    assert truncated.tolist() == [False, training, training]
    put(env, [goal[0] - 1.90, 18.0, 18.0], goal[1])  # not enough, and the others have begun a new episode
    for _ in range(199):
        assert not stand_still(env)[3].any()
    assert stand_still(env)[3][0].item() == training


def test_a_passed_goal_is_progress(still):
    env = envs.make("A1Parkour", 1, training=True)
    env.reset()
    first, second = terrain.make_column(0).goals[0, :2]
    assert np.linalg.norm(second - first) > 0.5
    put(env, first[0], first[1])
    for _ in range(5):
        stand_still(env)
    assert env.stalled.item() == 4
    stand_still(env)
    assert env.passed.item() == 1
    assert env.stalled.item() == 0
    stand_still(env)
    assert env.stalled.item() == 0  # the way to the next goal counts anew


def test_yaw_errors_are_wrapped(still):
    env = started("A1Parkour", 2)
    goals = np.stack([terrain.make_column(i).goals[0] for i in range(2)])
    env.passed.copy_(torch.tensor([2, 7]))
    env.level.zero_()
    put(env, goals[:, 7, 0] + 1.0, goals[:, 7, 1] + 1.0, quat=turn(3.0, 2))  # goals lie behind, in direction -3/4 pi
    errors = env.observe()[:, 5:7]
    assert errors[1].tolist() == pytest.approx([-0.75 * math.pi - 3.0 + 2.0 * math.pi] * 2, abs=1e-4)
    base = goals[0, 7] + 1.0
    for k in range(2):
        offset = goals[0, 2 + k] - base
        angle = math.atan2(offset[1], offset[0]) - 3.0
        assert errors[0, k].item() == pytest.approx(math.remainder(angle, 2.0 * math.pi), abs=1e-4)


# ---------------------------------------------------------------- the curriculum


def test_levels_rise_fall_and_begin_anew():
    """The way of a whole episode at 0.5 m/s is 10 m."""
    level = torch.tensor([3, 3, 3, 3, 0, 9, 9, 9])
    distance = torch.tensor([8.01, 7.99, 4.01, 3.99, 1.0, 8.01, 8.01, 7.0])
    uniform = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.99, 0.0])
    unfinished = torch.zeros(8, dtype=torch.bool)
    assert next_level(level, unfinished, distance, torch.full((8,), 0.5), uniform).tolist() == [4, 3, 3, 2, 0, 0, 9, 9]
    assert next_level(level, unfinished, distance, torch.full((8,), 0.3), uniform).tolist() == [4, 4, 3, 3, 0, 0, 9, 0]
    # all goals of a short course passed, at any speed
    assert next_level(level, ~unfinished, distance, torch.full((8,), 0.8), uniform).tolist() == [4, 4, 4, 4, 1, 0, 9, 0]


def test_whoever_passes_the_last_level_goes_to_any():
    uniform = torch.linspace(0.0, 0.9999, 1_000)
    finished = torch.ones(1_000, dtype=torch.bool)
    levels = next_level(torch.full((1_000,), 9), finished, torch.full((1_000,), 16.0), torch.tensor(0.8), uniform)
    assert levels.bincount().tolist() == [100] * 10


def test_the_level_changes_in_training_after_whole_episodes(still):
    env = envs.make("A1Parkour", 5, training=True)
    env.reset()
    assert env.level.tolist() == [0] * 5
    assert env.shortened.tolist() == [False, True, True, True, True]
    env.shortened.copy_(torch.tensor([False, False, True, False, False]))
    env.episode_step.fill_(998)
    env.level.copy_(torch.tensor([2, 2, 2, 2, 2]))
    env.command.fill_(0.5)
    put(env, 36.0 + 1.0 + np.array([7.0, 2.0, 9.0, 5.0, 2.0]), [6.0, 0.0, 0.0, 0.0, 0.0])  # one is 9.2 m away
    stand_still(env)
    assert env.level.tolist() == [2] * 5
    _, _, _, truncated, info = stand_still(env)
    assert truncated.all()
    assert env.level.tolist() == [3, 1, 2, 2, 1]
    assert env.engine.qpos[:, 0].tolist() == [55.0, 19.0, 37.0, 37.0, 19.0]
    assert info["metrics"]["terrain_level"].item() == pytest.approx(1.8)
    levels = [info["metrics"][f"level_{kind}"].item() for kind in ("stones", "hurdle", "flat", "step", "gap")]
    assert levels == [3.0, 1.0, 2.0, 2.0, 1.0]
    assert info["episode"]["objective"].tolist() == [16.0] * 5  # all goals of the two levels below
    env.passed[3] = 8
    _, _, _, truncated, _ = stand_still(env)
    assert truncated.tolist() == [False, False, False, True, False]
    assert env.level.tolist() == [3, 1, 2, 3, 1]
    assert "level_stones" not in envs.make("A1Parkour", 4).metrics()  # which would lack gaps


def test_an_evaluation_plays_every_kind_on_every_level(still):
    env = started("A1Parkour", 100)
    pairs = [(i % 5, level) for i, level in enumerate(env.level.tolist())]
    assert sorted(pairs) == sorted([(kind, level) for kind in range(5) for level in range(10)] * 2)
    levels = env.level.clone()
    put(env, env.engine.qpos[:, 0] + 15.0)
    env.episode_step.fill_(999)
    stand_still(env)
    assert torch.equal(env.level, levels)
    assert torch.equal(env.engine.qpos[:, 0], 18.0 * levels + 1.0)


def test_an_evaluation_plays_every_course_and_robot_on_every_level(still):
    """A kind has 8 courses with 5 robots on each."""
    env = started("A1Parkour", 2000)
    robots = {}
    for i, level in enumerate(env.level.tolist()):
        robots.setdefault((i % 5, level), set()).add(i % 200)
    assert len(robots) == 50
    assert all(len(each) == 40 for each in robots.values())
    courses = {(i % 40, level) for i, level in enumerate(env.level[:400].tolist())}
    assert len(courses) == 400


def test_few_worlds_have_all_levels(still):
    """Those of 64 agents with 16 worlds each, as in the search for the best agent."""
    env = started("A1Parkour", 64 * 16)
    for levels in env.level.split(16):
        counts = levels.bincount(minlength=10)
        assert counts.min() >= 1
        assert counts.max() <= 3
        assert 3.75 <= levels.float().mean() <= 5.25


def test_a_world_that_diverged_keeps_its_level(still):
    """The engine puts it to x = 0, far from the start of its level."""
    env = envs.make("A1Parkour", 2, training=True)
    env.reset()
    env.shortened.fill_(False)
    env.level.copy_(torch.tensor([3, 3]))
    put(env, 0.0)
    env.engine.broken.copy_(torch.tensor([True, False]))
    env.episode_step.fill_(999)
    stand_still(env)
    assert env.level.tolist() == [3, 4]


def test_an_agents_worlds_have_all_kinds(still):
    """EPO's 64 agents have 384 of 24,576 worlds each."""
    env = envs.make("A1Parkour", 768)
    for block in env.column.split(384):
        kinds = (block % 5).bincount()
        assert kinds.min() >= 76
        assert len(block.unique()) == 40


def test_an_agents_worlds_in_several_processes_have_all_columns(still, monkeypatch):
    """Of 64 agents with 2,560 worlds in two processes, each has 20 worlds in either of them."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    first = envs.make("A1Parkour", 1280)
    monkeypatch.setenv("RANK", "1")
    second = envs.make("A1Parkour", 1280)
    goals = [env.goals[env.column].view(64, 20, -1) for env in (first, second)]
    for of_agent in torch.cat(goals, 1):
        assert len(of_agent.unique(dim=0)) == 40
    assert not torch.equal(first.robot[:20], second.robot[:20])


# ---------------------------------------------------------------- control, ends, disturbances


def test_actions_are_targets_about_the_default_pose(still):
    env = started("A1Parkour")
    action = torch.linspace(-1, 1, 12).repeat(2, 1)
    env.step(action)
    default = torch.tensor([-0.1, 0.8, -1.5, 0.1, 0.8, -1.5, -0.1, 1.0, -1.5, 0.1, 1.0, -1.5])
    assert torch.allclose(env.engine.ctrl[0], default + 1.2 * action[0])  # the original's limit is 1.2 rad


def test_when_an_episode_terminates(still):
    env = started("A1Parkour", 8)
    quats = [turn(1.49, 0), turn(1.51, 0), turn(-1.51, 0), turn(1.49, 1), turn(1.51, 1), turn(3.0, 2), LEVEL, LEVEL]
    put(env, z=np.array([0.3] * 6 + [-0.24, -0.26]), quat=np.array(quats))
    _, _, terminated, truncated, _ = stand_still(env)
    assert terminated.tolist() == [False, True, True, False, True, False, False, True]
    assert not truncated.any()


def test_pushes_and_commands(still):
    env = started("A1Parkour", 500)
    qvel = torch.full((500, 18), 0.1)
    put(env, qvel=qvel)
    first = env.command.clone()
    assert 0.3 <= first.min() < 0.31
    assert 0.79 < first.max() < 0.8
    env.episode_length.fill_(298)
    stand_still(env)
    assert torch.equal(env.command, first)
    stand_still(env)
    assert (env.command != first).all()
    env.episode_length.fill_(398)
    stand_still(env)
    assert torch.equal(env.engine.qvel, qvel)
    stand_still(env)
    velocity = env.engine.qvel
    assert torch.equal(velocity[:, 2:], qvel[:, 2:])
    assert 0.49 < velocity[:, :2].abs().max() <= 0.5
    assert velocity[:, :2].mean(0).abs().max() < 0.05


def test_a_new_episode_knows_nothing_of_the_one_before(still):
    env = started("A1Parkour", 2)
    names = "action", "torque", "touched", "contact", "passed", "steps_at_goal"
    for name in names:
        getattr(env, name).fill_(1)
    env.reset_where(torch.tensor([True, False]))
    for name in names:
        first, second = getattr(env, name)
        assert not first.any(), name
        assert second.all(), name


def test_the_markers_are_at_the_current_and_the_next_goal(still):
    env = started("A1Parkour", 2)
    env.level.fill_(3)
    env.passed.fill_(2)
    shown = {}
    env.engine.render = lambda index, camera, markers: shown.update(markers)
    env.render(1)
    goals = terrain.make_column(1).goals[3]
    assert shown["goal"][:2].tolist() == pytest.approx(goals[2])
    assert shown["next_goal"][:2].tolist() == pytest.approx(goals[3])
    assert 0.45 - 0.04 <= shown["goal"][2] <= 0.45 + 0.04  # on rough ground


def test_resets(still):
    env = started("A1Parkour", 2_000)
    qpos = env.engine.qpos
    qvel = env.engine.qvel
    assert torch.equal(qpos[:, 0], 18.0 * env.level + 1.0)
    assert torch.equal(qpos[:, 1:7], torch.tensor([0, 0.42, 1, 0, 0, 0]).expand(2_000, 6))
    assert (qvel == 0.0).all()
    shift = qpos[:, 7:] - torch.tensor(a1.DEFAULT_POSE, dtype=torch.float32)
    assert shift[:, 1::3].min() >= -1e-6
    assert shift[:, 1::3].max() == pytest.approx(0.9, abs=0.01)
    assert shift[:, 1::3].mean() == pytest.approx(0.45, abs=0.02)
    assert qpos[:, 9::3].max() == pytest.approx(-0.916298, abs=1e-5)  # the limit of the calves
    assert qpos[:, 7::3].max() == pytest.approx(0.802851, abs=1e-5)  # of the hips


# ---------------------------------------------------------------- the observation


def test_observation(still):
    env = started("A1Parkour", 3)
    joints = torch.tensor(a1.DEFAULT_POSE).float() + torch.arange(12) / 10
    qvel = torch.cat([torch.tensor([1.0, 2.0, 0.5, 4.0, -8.0, 12.0]), torch.arange(12) - 3.0]).expand(3, 18)
    put(env, quat=turn(math.pi / 2, 2), joints=joints, qvel=qvel)  # heading along y
    env.command.copy_(torch.tensor([0.3, 0.5, 0.7]))
    env.action = torch.linspace(-1, 1, 12).repeat(3, 1)
    env.contact[1, 2] = True
    obs = env.observe()
    assert obs.shape == (3, 214)
    assert obs[0, :3].tolist() == [1.0, -2.0, 3.0]
    assert torch.allclose(obs[0, 3:5], torch.zeros(2), atol=1e-6)
    assert obs[:, 7].tolist() == pytest.approx([0.3, 0.5, 0.7])
    assert obs[:, 8:10].tolist() == [[1, 0], [1, 0], [0, 1]]  # columns of stones, hurdles, flat ground
    assert torch.allclose(obs[0, 10:22], torch.arange(12) / 10, atol=1e-6)
    assert torch.allclose(obs[0, 22:34], 0.05 * (torch.arange(12) - 3.0))
    assert torch.equal(obs[0, 34:46], env.action[0])
    assert obs[1, 46:50].tolist() == [-0.5, -0.5, 0.5, -0.5]
    assert torch.allclose(obs[0, 182:185], torch.tensor([4.0, -2.0, 1.0]), atol=1e-5)
    put(env, quat=turn(0.4, 0))
    assert env.observe()[0, 3:5].tolist() == pytest.approx([0.4, 0.0], abs=1e-6)
    put(env, quat=turn(-0.3, 1))
    assert env.observe()[0, 3:5].tolist() == pytest.approx([0.0, -0.3], abs=1e-6)


def test_the_robot_that_is_observed_is_the_one_that_is_simulated():
    env = started("A1Parkour", 201)
    observed = env.observe()[:, 185:].double().numpy()
    for i in (0, 41, 199, 200):
        model = env.engine.models[i % 200]
        base = model.body("base")
        assert base.mass[0] == pytest.approx(4.714 + observed[i, 0], rel=1e-5)
        assert np.allclose(base.ipos - (0.0127283, 0.0021855, 0.0005149), observed[i, 1:4], atol=1e-6)
        assert model.geom("FR_foot").friction[0] == pytest.approx((1.0 + observed[i, 4]) / 2.0, rel=1e-5)
        assert np.allclose(model.actuator_gainprm[:, 0], 40.0 * (1.0 + observed[i, 5:17]), rtol=1e-5)
        assert np.allclose(model.actuator_biasprm[:, 2], -(1.0 + observed[i, 17:29]), rtol=1e-5)
    low = [0.0, -0.2, -0.2, -0.2, 0.6] + [-0.2] * 24
    high = [3.0, 0.2, 0.2, 0.2, 2.0] + [0.2] * 24
    assert (observed >= low).all()
    assert (observed <= high).all()
    width = np.subtract(high, low)
    assert (observed.min(0) < low + 0.05 * width).all()
    assert (observed.max(0) > high - 0.05 * width).all()


def test_feet_in_contact():
    env = started("A1Parkour", 5)
    seen = []
    for _ in range(100):
        obs = stand_still(env)[0]
        seen.append(obs[:, 46:50])
    assert (seen[0] == -0.5).all()  # dropped from 12 cm
    standing = seen[-1] == 0.5
    assert standing[[0, 4]].all()
    assert (standing[1:4].sum(1) >= 3).all()  # on rough ground
    env.engine.sensors.zero_()
    env.engine.step = lambda ctrl: None
    assert torch.equal(stand_still(env)[0][:, 46:50], seen[-1])  # for one step more
    assert (stand_still(env)[0][:, 46:50] == -0.5).all()


def test_the_reward_weights_are_those_of_the_original():
    assert list(a1_parkour.REWARD_WEIGHTS.values()) == [
        1.5, 0.5, -1.0, -0.05, -1.0, -2.5e-7, -10.0, -0.1, -1e-7, -1e-5, -0.5, -0.04, -1.0, -1.0,
    ]  # fmt: skip
    assert A1Parkour.max_episode_steps == 1000
