"""The toy Moat by hand, and how first episodes are staggered, which it shows best."""

import math
import sys

import pytest
import torch

import envs
from envs.tasks.moat import moat_value
from tests.conftest import DRIFT
from tests.envs.helpers import random_actions, started
from tests.envs.test_contract import ENV_IDS


@pytest.mark.parametrize("x, value", [
    (-3.0, -1.0), (-1.0, -1.0), (-0.4, -0.4), (0.0, 0.0), (0.5, 0.5), (0.74, 0.74),  # before the first plateau
    (0.75, 1.0), (1.0, 1.0), (1.25, 1.0), (1.26, -0.5), (1.44, -0.5),  # each: first edge, plateau, last edge, ditch
    (1.45, 2.0), (1.7, 2.0), (1.95, 2.0), (1.96, -1.0), (2.24, -1.0),
    (2.25, 4.0), (2.5, 4.0), (2.75, 4.0), (2.76, -2.0), (3.14, -2.0),
    (3.15, 8.0), (3.4, 8.0), (3.65, 8.0), (3.66, -4.0), (4.14, -4.0),
    (4.15, 16.0), (4.4, 16.0), (4.65, 16.0), (4.66, -8.0), (100.0, -8.0),
])  # fmt: skip
def test_moat_value(x, value):
    on_axis = torch.tensor([[x, 0.0, 0.0, 0.0]])
    off_axis = torch.tensor([[x, 0.3, -0.2, 0.6], [x, -0.6, 0.2, 0.3]])  # 0.09 + 0.04 + 0.36 = 0.49
    assert moat_value(on_axis).item() == pytest.approx(value)
    assert moat_value(off_axis).tolist() == pytest.approx([value * math.exp(-0.49)] * 2)


def test_moat_two_steps_by_hand():
    env = started("Moat", 2)
    env.position.copy_(torch.tensor([[0.1, -0.2, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]))
    env.velocity.copy_(torch.tensor([[0.1, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]))
    env.episode_step.copy_(torch.tensor([40, 30]))
    action = torch.tensor([[1.0, -0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    # first step: v = 0.85 * 0.1 + 0.02 = 0.105 and -0.01; p = 0.205 and -0.21; 2 * 41 / 128 - 1 = -0.359375
    obs, reward, _, _, _ = env.step(action)
    assert obs[0].tolist() == pytest.approx([0.205, -0.21, 0, 0, 0.315, -0.03, 0, 0, -0.359375])
    value = 0.205 * math.exp(-(0.21**2))
    assert reward.tolist() == pytest.approx([0.1 * value - 0.01 * 1.25 / 4, 0.1])
    # second step: v = 0.85 * 0.105 + 0.02 = 0.10925 and 0.85 * -0.01 - 0.01 = -0.0185; p = 0.31425 and -0.2285
    obs, reward, _, _, info = env.step(action)
    assert obs[0].tolist() == pytest.approx([0.31425, -0.2285, 0, 0, 0.32775, -0.0555, 0, 0, -0.34375])
    value = 0.31425 * math.exp(-(0.2285**2))
    assert reward[0].item() == pytest.approx(0.1 * value - 0.01 * 1.25 / 4)
    assert info["episode"]["objective"].tolist() == pytest.approx([value, 1.0])


def test_moat_objective_is_the_final_value_and_not_negative():
    env = started("Moat", 3)
    env.position.copy_(torch.tensor([[4.3, 0, 0, 0], [5.0, 0, 0, 0], [3.2, 0.5, 0, 0]]))
    env.velocity.zero_()
    env.episode_step.fill_(127)
    _, _, _, truncated, info = env.step(torch.zeros(3, 4))
    assert truncated.all()
    assert info["episode"]["objective"].tolist() == pytest.approx([16.0, 0.0, 8.0 * math.exp(-0.25)])


def test_moat_starts():
    obs = started("Moat", 4_000).observe()
    position = obs[:, :4]
    assert position.mean(0).abs().max() < 0.01
    assert (position.std(0) - 0.1).abs().max() < 0.005
    assert (obs[:, 4:8] == 0.0).all()
    assert (obs[:, 8] == -1.0).all()


# ---------------------------------------------------------------- staggered first episodes


def staggered(env_id, num_envs):
    env = envs.make(env_id, num_envs, training=True)
    return env, env.reset()


TRAINING_STARTS_ELSEWHERE = ("HeldStarts", "A1Parkour")


@pytest.mark.parametrize("env_id", [env_id for env_id in ENV_IDS if not env_id.endswith(TRAINING_STARTS_ELSEWHERE)])
def test_staggering_changes_nothing_but_the_clock(env_id):
    env, _ = staggered(env_id, 4)
    state = env.state_dict()
    in_phase = started(env_id, 4).state_dict()
    clock = state.pop("episode_step")
    shortened = state.pop("shortened")
    assert clock.tolist() == [int(share * env.max_episode_steps) for share in (0.0, 0.618034, 0.236068, 0.854102)]
    assert shortened.tolist() == [False, True, True, True]
    assert not in_phase.pop("episode_step").any()
    assert not in_phase.pop("shortened").any()
    torch.testing.assert_close(state, in_phase, rtol=0.0, atol=0.0)


def test_without_a_time_limit_no_first_episode_is_shortened(monkeypatch):
    monkeypatch.setattr(envs.find_class("Moat"), "max_episode_steps", sys.maxsize)
    env, _ = staggered("Moat", 4)
    assert not env.shortened.any()
    assert not env.episode_step.any()


def test_shortened_episodes_end_and_do_not_count():
    env, obs = staggered("Moat", 96)
    clock = env.episode_step.clone()
    lengths = [[] for _ in range(96)]
    counted = [[] for _ in range(96)]
    assert torch.equal(obs[:, 8], 2.0 * clock / 128 - 1.0)
    for _ in range(3 * 128):
        _, _, terminated, truncated, info = env.step(torch.zeros(96, 4))
        assert not terminated.any()
        for found, mask in ((lengths, truncated), (counted, info["episode"]["done"])):
            for i in mask.nonzero().flatten().tolist():
                found[i].append(int(info["episode"]["length"][i]))
    for i in range(96):
        assert lengths[i] == [128 - clock[i], 128, 128]
        assert counted[i] == lengths[i][clock[i] > 0 :]
    env.reset()
    assert torch.equal(env.episode_step, clock)
    assert torch.equal(env.shortened, clock > 0)


def test_shortened_episodes_do_not_count_when_they_fail():
    env, _ = staggered(DRIFT, 4)
    env.position[:] = 2.0
    _, _, terminated, _, info = env.step(torch.zeros(4, 2))
    assert terminated.all()
    assert info["episode"]["done"].tolist() == [True, False, False, False]
    env.position[:] = 2.0
    assert env.step(torch.zeros(4, 2))[4]["episode"]["done"].all()


@pytest.mark.parametrize("env_id", ["AllegroHand", "AllegroKukaRegrasping", "FrankaCubePush"])
def test_the_task_s_own_statistics_leave_shortened_episodes_out(env_id):
    env, _ = staggered(env_id, 4)
    env.episode_step[:] = env.max_episode_steps - 1
    _, _, terminated, truncated, info = env.step(random_actions(env, 1)[0])
    assert (terminated | truncated).all()
    assert env.finished_term_means.any(1).tolist() == [True, False, False, False] == info["episode"]["done"].tolist()


@pytest.mark.parametrize("env_id", ["AllegroHand", "AllegroKukaRegrasping", "FrankaCubePush"])
def test_the_logged_terms_of_the_reward_are_means_per_step(env_id):
    env = envs.make(env_id, 4)
    env.reset()
    env.episode_step[:] = env.max_episode_steps - 3
    for action in random_actions(env, 3):
        info = env.step(action)[4]
    terms = sum(value for name, value in info["metrics"].items() if name.startswith("reward_"))
    torch.testing.assert_close(terms, (info["episode"]["return"] / 3.0).mean())


@pytest.mark.parametrize("num_envs, num_agents", [(3_072, 1), (3_072, 6), (3_072, 48), (1_024, 64), (64, 1)])
def test_clocks_are_spread_evenly_over_every_block(num_envs, num_agents):
    phase = staggered("Moat", num_envs)[0].episode_step
    assert phase.min() >= 0
    assert phase.max() < 128
    n = num_envs // num_agents
    for first in {0, 1, n // 2, num_envs - n} | {k * n for k in range(num_agents)}:  # the agents' blocks and others
        block = phase[first : first + n].sort().values
        if len(block) < n:
            continue
        gaps = torch.cat([block[1:], block[:1] + 128]) - block
        assert gaps.max() <= 2.7 * 128 / n + 1  # at most 1 + golden ratio times the even gap, in whole steps
        quarters = (block // 32).bincount(minlength=4)
        assert (quarters - n / 4).abs().max() <= 2
