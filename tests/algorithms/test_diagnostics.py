"""The instruments that the papers analyse populations with, on cases whose answer is known by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch.distributions import Normal

import cpo
from harness import LineageStats, diagnostics

STD = torch.tensor([1.0, 2.0, 1.0])  # of the three agents below
MEAN = torch.tensor([0.0, 0.0, 3.0])


class ThreeAgents:
    """Agent k acts N(obs * (1 + k) + MEAN[k], STD[k]) in one dimension."""

    latents = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 6.0]])

    def get_action_and_value(self, obs, agent_ids, dones, lstm_state, action):
        ids = agent_ids.expand(obs.shape[:2])[..., None]
        policy = Normal(obs * (1 + ids) + MEAN[ids], STD[ids])
        return action, policy.log_prob(action).sum(-1), policy, None, None


def make_batch(obs, actions, advantages, off=()):
    """Rows of ThreeAgents (T, N) acting in blocks; off: columns that the leader learns from too."""
    columns = [*range(obs.shape[1]), *off]
    num_own, agents = obs.shape[1], torch.arange(3).repeat_interleave(obs.shape[1] // 3)
    batch = {
        "obs": obs[:, columns, None],
        "actions": actions[:, columns, None],
        "advantages": advantages[:, columns],
        "dones": torch.zeros(len(obs), len(columns), dtype=torch.bool),
        "lstm_state": torch.zeros(1, len(columns), 0),
        "mu": torch.ones(len(obs), len(columns)),
    }
    acted = agents[columns][None]
    logprobs = ThreeAgents().get_action_and_value(batch["obs"], acted, None, None, batch["actions"])[1]
    acted = acted.clone()
    acted[:, num_own:] = 0
    return {**batch, "logprobs": logprobs, "agent_ids": acted}


def args(num_envs, num_agents=3):
    counts = dict(num_envs=num_envs, num_agents=num_agents, num_minibatches=4)  # which leaves unequal minibatches
    return SimpleNamespace(**counts, clip_coef=0.2, diagnostics_interval=5)


def test_diagnose_when_it_is_due():
    batch = make_batch(*torch.zeros(3, 1, 6))
    due = [bool(diagnostics.diagnose(iteration, ThreeAgents(), batch, args(6))) for iteration in range(1, 11)]
    assert due == [iteration in (5, 10) for iteration in range(1, 11)]
    never = SimpleNamespace(**{**vars(args(6)), "diagnostics_interval": 0})
    assert not any(diagnostics.diagnose(iteration, ThreeAgents(), batch, never) for iteration in range(1, 11))


def test_a_single_huge_weight_is_all_there_is():
    log_w = torch.full((10, 6), -20.0)
    log_w[3, 4] = 20.0
    assert diagnostics.importance_statistics(log_w, 3)[1] == pytest.approx(1 / 60)


def kl(mean_i, std_i, mean_j, std_j):
    return math.log(std_j / std_i) + (std_i**2 + (mean_i - mean_j) ** 2) / (2 * std_j**2) - 0.5


def test_kl_matrix_of_gaussians_on_the_states_of_the_row():
    obs = torch.tensor([[1.0, 2.0, -1.0, 0.5, 0.0, 3.0]])  # two states each
    matrix = diagnostics.kl_matrix(ThreeAgents(), make_batch(obs, obs, obs), [0, 1, 2], 3)
    for i in range(3):
        for j in range(3):
            states = obs[0, 2 * i : 2 * i + 2].tolist()
            means = [(x * (1 + i) + MEAN[i].item(), x * (1 + j) + MEAN[j].item()) for x in states]
            expected = sum(kl(a, STD[i].item(), b, STD[j].item()) for a, b in means) / 2
            assert matrix[i, j].item() == pytest.approx(expected, abs=1e-5)
    assert (matrix.diagonal() == 0).all()


def test_kl_matrix_of_some_agents_only():
    obs = torch.tensor([[1.0, 2.0, -1.0, 0.5, 0.0, 3.0]])
    rows = make_batch(obs, obs, obs)
    every = diagnostics.kl_matrix(ThreeAgents(), rows, [0, 1, 2], 3)
    assert torch.equal(diagnostics.kl_matrix(ThreeAgents(), rows, [0, 2], 3), every[[0, 2]][:, [0, 2]])


def test_diagnose_on_known_rows():
    obs = torch.zeros(1, 6)
    actions = torch.tensor([[0.5, -0.5, 0.0, 1.0, 3.0, 2.0]])
    advantages = torch.tensor([[1.0, 1.0, 1.0, -1.0, 1.0, -1.0]])
    batch = make_batch(obs, actions, advantages, off=[2, 3, 4, 5])
    scalars = diagnostics.diagnose(5, ThreeAgents(), batch, args(6))

    def density(x, k):
        return math.exp(-(((x - MEAN[k].item()) / STD[k].item()) ** 2) / 2) / STD[k].item()

    w = [density(x, 0) / density(x, 1 + i // 2) for i, x in enumerate(actions[0, 2:].tolist())]
    assert scalars["population/is_ratio_deviation"] == pytest.approx(sum(abs(1 - x) for x in w) / 4)
    assert scalars["population/ess_rate"] == pytest.approx((2 + sum(w)) ** 2 / (2 + sum(x * x for x in w)) / 6)
    used = [(x < 1.2) if a > 0 else (x > 0.8) for x, a in zip(w, [1, -1, 1, -1])]
    assert sum(used) == 2 and scalars["population/off_policy_used"] == 0.5
    assert scalars["population/leader_is_nearest"] == 0.5  # agent 2 is nearer to the wide agent 1
    assert scalars["population/kl_to_leader"] == pytest.approx((kl(0, 2, 0, 1) + kl(3, 1, 0, 1)) / 2)
    image = scalars["population/kl_matrix"]  # black 1e-3 to white 100 nats, on a log scale
    assert image.shape == (3, 72, 72) and image[0, 12, 36].item() == pytest.approx((math.log10(kl(0, 1, 0, 2)) + 3) / 5)
    assert scalars["population/latent_spread"] == pytest.approx((math.sqrt(2) + math.sqrt(8)) / 2)


# ---------------------------------------------------------------- CPO: who acted?


def accuracy_on_unseen_rows(shift, num_agents=4, windows=60):
    """A discriminator's accuracy on the next window of agents whose actions differ by `shift` each."""
    torch.manual_seed(0)
    settings = SimpleNamespace(discriminator_sizes=(32,), num_agents=num_agents)
    discriminator = cpo.Discriminator(3, 2, settings)
    optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-2)
    ids = torch.arange(num_agents).repeat_interleave(64)[None]
    for _ in range(windows):
        obs = torch.randn(8, 64 * num_agents, 3)
        actions = torch.randn(8, 64 * num_agents, 2) + shift * ids[..., None]
        log_d, accuracy = cpo.discriminator_step(discriminator, optimizer, obs, actions, ids, 4)
    assert log_d.shape == obs.shape[:2] and (log_d <= 0).all()
    return accuracy.item(), log_d.mean().item()


def test_discriminator_cannot_tell_identical_agents_apart():
    accuracy, log_d = accuracy_on_unseen_rows(0.0)
    assert accuracy == pytest.approx(0.25, abs=0.04)  # 2,048 rows: standard error 0.01
    assert log_d == pytest.approx(-math.log(4), abs=0.05)


def test_discriminator_tells_different_agents_apart():
    accuracy, log_d = accuracy_on_unseen_rows(3.0)
    assert accuracy > 0.9 and log_d > -0.3


# ---------------------------------------------------------------- EPO: lineage


def test_lineage_counts_from_the_followers_mean():
    stats = LineageStats()
    generation, *others = stats.scalars().values()
    assert generation == 0 and all(map(math.isnan, others))
    before = torch.tensor([100.0, 1.0, 2.0, 3.0, 6.0])  # followers' mean 3
    text = stats.record([(1, 3, 4), (2, 4, 3)], before)
    assert text == "1: 1 <- 3, 4; 2 <- 4, 3; fitness 100 1 2 3 6" and sorted(stats.pending) == [1, 2]
    stats.complete(before + torch.tensor([0.0, 12.0, 10.0, math.nan, 8.0]))  # not known yet
    assert not stats.completed and stats.pending
    stats.complete(before + torch.tensor([0.0, 12.0, 10.0, 10.0, 8.0]))  # 13, 12, 13, 14: mean 13
    assert stats.completed == [(0.0, -2.0, 1.5), (-1.0, -1.0, 1.5)] and not stats.pending
    scalars = stats.scalars()
    assert scalars["evolution/child_success"] == 0.5  # the second did no better than whom it replaced
    assert math.isnan(scalars["evolution/heritability"]) and stats.generation == 1


def test_lineage_goes_on_from_its_state():
    stats, copy = LineageStats(), LineageStats()
    fitness = torch.tensor([100.0, 1.0, 2.0, 3.0, 6.0])
    stats.record([(1, 3, 4)], fitness)
    stats.complete(fitness)
    stats.record([(2, 3, 4)], fitness)
    copy.load_state_dict(stats.state_dict())
    assert (copy.generation, copy.pending, copy.completed) == (2, stats.pending, stats.completed)
    assert copy.pending and copy.completed and stats.record([], fitness) == copy.record([], fitness)


@pytest.mark.parametrize("inherited, low, high", [(0.0, -0.15, 0.15), (1.0, 0.9, 1.0)])
def test_heritability(inherited, low, high):
    """Of fitness that is noise, 0; of fitness that children have from their parents, near 1."""
    torch.manual_seed(0)
    stats = LineageStats()
    for generation in range(400):
        fitness = torch.randn(9) + generation  # all get better and better: no heredity
        i, j = (1 + torch.randperm(8)[:2]).tolist()
        child = min(set(range(1, 9)) - {i, j})
        stats.record([(child, i, j)], fitness)
        later = torch.randn(9) + generation + 5.0
        own = (fitness[i] + fitness[j]) / 2 - fitness[1:].mean()
        if inherited:
            later = torch.full((9,), generation + 5.0)
            later[child] += own
        stats.complete(later)
    assert low <= stats.scalars()["evolution/heritability"] <= high
