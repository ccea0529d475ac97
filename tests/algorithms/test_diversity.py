"""benchmarks/scripts/diversity.py: measures on data whose answers are known; the states are those that are visited."""

import csv
import math

import pytest
import torch

from benchmarks.scripts import diversity
from tests.conftest import TINY, Drift


def gaussian(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def test_one_scale_for_all_runs_and_constants_left_out():
    near, far = gaussian(500, 3), 5.0 + 2.0 * gaussian(500, 3)
    near[:, 1] = far[:, 1] = 0.7
    scaled = diversity.standardise({"near": near, "far": far})
    pooled = torch.cat([scaled["near"], scaled["far"]])
    assert pooled.shape == (1000, 2)
    torch.testing.assert_close(pooled.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(pooled.std(0, unbiased=False), torch.ones(2))
    ratio = scaled["far"].std(0) / scaled["near"].std(0)  # a scale of its own for each would make this 1
    torch.testing.assert_close(ratio, (far.std(0) / near.std(0))[[0, 2]])


def test_pca_of_known_rank_and_of_known_variances():
    errors = diversity.pca_errors(gaussian(400, 3) @ gaussian(3, 10) + 5.0)
    assert errors.shape == (11,) and errors[0] == 1.0
    assert errors[2] > 0.01 and errors[3:].abs().max() < 1e-9
    axes = torch.diag(torch.tensor([2.0, 1.0, 3.0, 1.0]))  # variances in proportion 4 : 1 : 9 : 1
    for scale in (1.0, 100.0):
        errors = diversity.pca_errors(scale * torch.cat([axes, -axes]) + 7.0)
        assert errors.tolist() == pytest.approx([1.0, 6 / 15, 2 / 15, 1 / 15, 0.0])


def test_particle_entropy():
    line = torch.arange(100.0)[:, None]  # neighbours at 1, 1, 2, 2, 3; at the ends further away
    inner = 90 * math.log(3.0)
    ends = 2 * sum(math.log(x) for x in (5, 4, 3, 3, 3))
    assert diversity.particle_entropy(line) == pytest.approx((inner + ends) / 100)
    assert diversity.particle_entropy(10.0 * line) == pytest.approx((inner + ends) / 100 + math.log(10.0))


def test_states_are_those_that_the_trained_policy_visits(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    observe, seen = Drift.observe, []
    monkeypatch.setattr(Drift, "observe", lambda self: seen.append(observe(self)) or seen[-1])
    states = diversity.visited_states("ppo", TINY.split(), 24 * 7)  # all environments, max_episode_steps 7
    expected = torch.cat(seen[-13::2])  # every step observes the end of an episode and then the state
    assert sorted(states.tolist()) == sorted(expected.tolist()) and states.tolist() != expected.tolist()  # shuffled


def test_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    diversity.main(
        "--num-envs 60 --total-timesteps 7680 --hidden-sizes 8 --num-states 256 --seeds 2 --results .".split()
    )
    table = capsys.readouterr().out.split("\n\n")[-1].splitlines()
    assert table[0] == "| | PPO | SAPG-6 | untrained |" and len(table) == 2 + 5
    rows = list(csv.DictReader(open("diversity_Moat.csv")))
    assert len(rows) == 3 * 2 * 5
    variances = [float(row["value"]) for row in rows if row["measure"] == "variance per dimension"]
    assert 0.1 < sum(variances) / 6 <= 1.0001  # all together have variance 1
