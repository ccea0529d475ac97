"""What holds for all tasks on a physics engine: control periods, long rollouts, broken worlds, pictures."""

import math

import numpy as np
import pytest
import torch

import envs
from tests.envs.helpers import random_actions, rendered, started

TASKS = [env_id for env_id in envs.TASKS if env_id not in envs.PURE_TORCH and not env_id.endswith("HeldStarts")]
PERIOD = {  # s
    "A1Parkour": 0.02,
    "AllegroHand": 2 * 0.01667,
    "Ant": 0.0166,
    "Anymal": 0.02,
    "Cartpole": 0.0166,
    "Humanoid": 0.0166,
}
OBS_LIMIT = {"Allegro": 10.0, "AllegroHand": 5.0, "Anymal": 5.0, "Franka": 5.0, "Shadow": 5.0}  # the longest prefix
every_task = pytest.mark.parametrize("env_id", TASKS)


@every_task
def test_control_period(env_id, monkeypatch):
    """Sizes: tests/repository/test_repository.py, against the documents' table."""
    monkeypatch.setattr(envs.VectorEnv, "frame_rate", math.nan)  # exported files do not take a default for known
    env = envs.make(env_id, 2)
    period = PERIOD.get(env_id, 0.01667)
    assert env.engine.substeps * env.engine.timestep == pytest.approx(period)
    assert 1 / env.frame_rate == pytest.approx(period, rel=0.01)  # of films, and in exported files


@every_task
def test_a_world_whose_physics_breaks_earns_nothing_and_begins_anew(env_id):
    env = started(env_id, 3)
    second = torch.tensor([False, True, False])
    too_fast = torch.full_like(env.engine.qvel, 1e15)
    env.engine.set_state(second, env.engine.qpos.clone(), too_fast)
    obs, reward, terminated, _, info = env.step(torch.zeros(3, env.num_actions))
    assert torch.equal(terminated, second)
    assert reward[1].item() == 0.0
    assert obs.isfinite().all()
    assert info["final_obs"].isfinite().all()
    assert info["metrics"]["nan_worlds"].item() == 1
    _, _, terminated, _, info = env.step(torch.zeros(3, env.num_actions))
    assert not terminated[1]
    assert info["metrics"]["nan_worlds"].item() == 1


@every_task
def test_a_reset_leaves_the_other_environments_untouched(env_id):
    env = started(env_id, 4)
    mask = torch.tensor([True, False, True, False])
    for action in random_actions(env, 20):
        env.step(action)
    before = env.state_dict()
    obs = env.observe()
    env.reset_where(mask)
    after = env.state_dict()
    began = env.observe()
    assert torch.equal(obs[~mask], began[~mask])
    assert (obs != began)[mask].any(1).all()
    for state, later in ((before, after), (before["engine"], after["engine"])):
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and name != "generator":
                rows = ~mask if value.shape[:1] == (4,) else ...
                assert torch.equal(value[rows], later[name][rows]), name
    env.reset_where(torch.zeros_like(mask))
    assert torch.equal(env.state_dict()["engine"]["state"], after["engine"]["state"])


def play_long(env_id, num_envs, num_steps):
    """Half of the agents do nothing, half act at random: how many episodes each has ended."""
    env = started(env_id, num_envs)
    ends = torch.zeros(num_envs)
    limit = next((x for prefix, x in sorted(OBS_LIMIT.items())[::-1] if env_id.startswith(prefix)), torch.inf)
    for action in random_actions(env, num_steps):
        action[: num_envs // 2] = 0.0
        obs, reward, terminated, truncated, info = env.step(action)
        assert obs.isfinite().all()
        assert reward.isfinite().all()
        assert info["final_obs"].isfinite().all()
        assert obs.abs().max() <= limit
        ends += terminated | truncated
    assert info["metrics"]["nan_worlds"] == 0
    return ends


@pytest.mark.parametrize(
    "env_id", ["A1Parkour", "AllegroHand", "Ant", "Anymal", "FrankaCubeStack", "Humanoid", "ShadowHand"]
)
def test_a_thousand_steps_stay_finite_and_make_no_warning(env_id, tmp_path):
    idle, acting = play_long(env_id, 8, 1000).split(4)
    assert acting.sum() >= 4
    assert (idle.sum() >= 4) != (env_id == "Anymal")  # which stands
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.mujoco_cpu
@pytest.mark.parametrize("env_id", [env_id for env_id in TASKS if "Kuka" in env_id])
def test_two_thousand_steps_of_allegro_kuka_make_no_warning(env_id, tmp_path):
    assert (play_long(env_id, 32, 2000) >= 2).all()
    assert not list(tmp_path.iterdir())


# of the rollout below: mean |joint positions|, mean |velocities|, mean reward, mean |observation|
DIGESTS = {
    "A1Parkour": (5.06952, 0.51471, 0.0036715, 0.07255),
    "AllegroHand": (0.50677, 1.34018, -0.42797, 0.17938),
    "AllegroKukaRegrasping": (0.64616, 0.54958, 0.53305, 0.36477),
    "AllegroKukaReorientation": (0.64897, 0.52179, 0.55751, 0.34322),
    "AllegroKukaThrow": (0.64659, 0.56153, 0.3996, 0.37246),
    "AllegroKukaTwoArmsRegrasping": (0.45513, 0.96933, 0.4069, 0.58176),
    "AllegroKukaTwoArmsReorientation": (0.46159, 1.06256, 0.40759, 0.62666),
    "AllegroKukaTwoArmsReorientationPartition": (0.43324, 0.95264, 0.40759, 0.62666),
    "Ant": (0.39476, 1.5391, 1.00969, 0.37407),
    "Anymal": (0.40113, 0.41768, 0.00816, 0.17029),
    "Cartpole": (0.22672, 1.88369, 0.36652, 1.04825),
    "FrankaCubePush": (0.59645, 0.2343, 0.06065, 0.28692),
    "FrankaCubeStack": (0.5252, 0.16736, 0.00154, 0.29045),
    "Humanoid": (0.27193, 1.58628, 2.27764, 0.237),
    "ShadowHand": (0.45153, 0.59852, -0.03258, 0.38915),
}


@pytest.mark.mujoco_cpu
@pytest.mark.parametrize("env_id", DIGESTS)
def test_a_seeded_rollout_is_what_it_was(env_id):
    """Changes when the physics, the reward or the observation does. Tolerances leave room for other processors."""
    env = started(env_id, 8, seed=7)
    scale = 0.06 if env_id == "A1Parkour" else 0.3  # so that the robot, with 1.2 rad per unit, is not thrown about
    rewards = []
    for action in random_actions(env, 50, seed=7):
        obs, reward, *_ = env.step(scale * action)
        rewards.append(reward)
    digest = [env.engine.qpos.abs().mean(), env.engine.qvel.abs().mean(), torch.stack(rewards).mean(), obs.abs().mean()]
    assert [value.item() for value in digest] == pytest.approx(DIGESTS[env_id], rel=5e-3)


@pytest.mark.parametrize(
    "env_id, least, most",
    [
        ("AllegroHand", 200, 20_000),
        ("AllegroKukaRegrasping", 50, 5_000),
        ("AllegroKukaReorientation", 300, 20_000),
        ("AllegroKukaThrow", 300, 20_000),
        ("FrankaCubePush", 100, 20_000),
    ],
)
def test_a_picture_shows_the_goal_of_its_environment(env_id, least, most):
    env = started(env_id, 2)
    image = rendered(env, 1)
    assert image.shape == (480, 640, 3)
    assert image.dtype == np.uint8
    move_goal(env, torch.tensor([True, False]))
    assert (image == env.render(1)).all()
    move_goal(env, torch.tensor([False, True]))
    assert least < (image != env.render(1)).any(2).sum() < most


def move_goal(env, mask):
    if hasattr(env, "set_goal"):
        env.set_goal(mask)
    else:
        env.goal[mask, :2] *= -1.0
