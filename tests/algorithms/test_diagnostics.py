"""The discriminator on agents that differ or not, and EPO's lineage, by hand; other instruments: test_logged.py."""

import math
from types import SimpleNamespace

import pytest
import torch

import cpo
from harness import LineageStats

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
