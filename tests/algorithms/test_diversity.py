"""benchmarks/scripts/diversity.py: measures on data whose answers are known; training is left as it is."""

import csv
import math
from functools import partial

import numpy as np
import pytest
import torch

from benchmarks.scripts import diversity
from tests.conftest import TINY, Drift


def gaussian(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ---------------------------------------------------------------- measures


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


def test_variance_per_dimension():
    states = torch.tensor([[1.0, 10.0], [3.0, 10.0], [1.0, 14.0], [3.0, 14.0]])  # variances 1 and 4
    assert diversity.variance_per_dimension(states) == pytest.approx(2.5)


def test_pca_of_known_rank():
    states = gaussian(400, 3) @ gaussian(3, 10) + 5.0
    errors = diversity.pca_errors(states)
    assert errors.shape == (11,) and errors[0] == 1.0
    assert errors[2] > 0.01 and errors[3:].abs().max() < 1e-9
    assert (errors.diff() <= 0).all()


def test_pca_of_known_variances():
    axes = torch.diag(torch.tensor([2.0, 1.0, 3.0, 1.0]))  # variances in proportion 4 : 1 : 9 : 1
    errors = diversity.pca_errors(torch.cat([axes, -axes]) + 7.0)
    assert errors.tolist() == pytest.approx([1.0, 6 / 15, 2 / 15, 1 / 15, 0.0])


def test_pca_of_isotropic_states_and_of_scaled_ones():
    axes = torch.eye(8)
    errors = diversity.pca_errors(torch.cat([axes, -axes]))
    assert errors.tolist() == pytest.approx([1 - k / 8 for k in range(9)])
    assert diversity.pca_errors(100.0 * torch.cat([axes, -axes])).tolist() == pytest.approx(errors.tolist())


def test_mlp_on_a_line():
    states = gaussian(1000, 1) * torch.tensor([1.0, -1.0, 1.0]) + torch.tensor([0.0, 0.5, 1.0])
    assert diversity.mlp_error(states, 2, num_steps=1000) < 1e-3


def test_mlp_falls_with_width_to_what_pca_leaves():
    states = gaussian(1000, 6) * torch.tensor([2.0, 1.5, 1.0, 0.5, 0.3, 0.2])
    errors = torch.tensor([diversity.mlp_error(states, width, num_steps=1000) for width in (1, 2, 4)])
    least = (diversity.pca_errors(states)[[1, 2, 4]] * diversity.variance_per_dimension(states)).float()
    assert errors[0] > errors[1] > errors[2]
    assert (errors > 0.999 * least).all() and (errors < least + 0.02).all()  # of 1.27 on the whole


def test_mlp_is_repeatable_and_leaves_the_random_generator():
    states, before = gaussian(100, 4), torch.get_rng_state()
    first, again, other = (diversity.mlp_error(states, 2, num_steps=20, seed=seed) for seed in (5, 5, 6))
    assert first == again != other
    assert torch.equal(before, torch.get_rng_state())


def test_particle_entropy():
    line = torch.arange(100.0)[:, None]  # neighbours at 1, 1, 2, 2, 3; at the ends further away
    inner = 90 * math.log(3.0)
    ends = 2 * sum(math.log(x) for x in (5, 4, 3, 3, 3))
    assert diversity.particle_entropy(line) == pytest.approx((inner + ends) / 100)
    assert diversity.particle_entropy(10.0 * line) == pytest.approx((inner + ends) / 100 + math.log(10.0))


# ---------------------------------------------------------------- runs


def test_states_are_those_that_the_trained_policy_visits(in_empty_folder, monkeypatch):
    observe, seen = Drift.observe, []
    monkeypatch.setattr(Drift, "observe", lambda self: seen.append(observe(self)) or seen[-1])
    states = diversity.visited_states("ppo.py", TINY.split(), 24 * 7)  # all environments, max_episode_steps 7
    expected = torch.cat(seen[-13::2])  # every step observes the end of an episode and then the state
    assert sorted(states.tolist()) == sorted(expected.tolist()) and states.tolist() != expected.tolist()  # shuffled


def test_fewer_states_than_asked_for_are_refused(in_empty_folder):
    with pytest.raises(SystemExit, match="--num-states 169: ppo.py comes to 168 only"):
        diversity.visited_states("ppo.py", TINY.split(), 24 * 7 + 1)


def test_command_line(in_empty_folder, monkeypatch, capsys):
    drawn = []
    monkeypatch.setattr(diversity, "draw", lambda *inputs: drawn.append(inputs))
    monkeypatch.setattr(diversity, "mlp_error", partial(diversity.mlp_error, num_steps=10))
    moat = "--env-id Moat --num-envs 60 --total-timesteps 7680 --hidden-sizes 8 --num-states 256"
    runs = ["--runs", "A=ppo.py", "B=sapg.py --num-agents 3 --num-envs 30"]
    diversity.main([*runs, *moat.split(), *"--seeds 2 --save states.npz --out first".split()])
    saved = np.load("states.npz")
    assert sorted(saved) == ["A:1", "A:2", "B:1", "B:2"] and all(saved[name].shape == (256, 9) for name in saved)
    table = capsys.readouterr().out.split("\n\n")[-1].splitlines()
    assert table[0] == "| | A | B |" and len(table) == 2 + 2 + 3 + 4  # Moat has fewer than 16 dimensions
    monkeypatch.setattr(diversity, "ROOT", in_empty_folder)
    diversity.main("--runs --states states.npz".split())
    first = open("first.csv").read()
    assert (in_empty_folder / "benchmarks/results/diversity/Moat.csv").read_text() == first
    rows = list(csv.DictReader(first.splitlines()))
    assert len(rows) == 4 * (2 + 10 + 4)
    volume = [float(row["value"]) for row in rows if row["measure"] == "variance"]
    assert 0.1 < sum(volume) / 4 <= 1.0001  # all together have variance 1
    assert drawn[0][1:] == ("Moat", "first.png") and len(drawn[0][0]) == len(rows)


def test_drawing(in_empty_folder, monkeypatch):
    pytest.importorskip("matplotlib")  # not among the requirements
    monkeypatch.setattr(diversity, "mlp_error", partial(diversity.mlp_error, num_steps=10))
    rows = [(name, "1", *row) for name in "AB" for row in diversity.measure(gaussian(20, 3))]
    diversity.draw(rows, "title", "drawn.png")
    assert (in_empty_folder / "drawn.png").read_bytes().startswith(b"\x89PNG")
