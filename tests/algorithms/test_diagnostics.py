"""EPO's lineage by hand; other instruments: test_logged.py."""

import math

import pytest
import torch

from harness import LineageStats

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
