"""Checkpoints: k iterations, resumed for the rest, are the whole run; what contradicts one is refused in one line."""

import os
import pathlib
import random
import time

import numpy as np
import pytest
import torch

import cpo
import epo
import harness
import pbt
import ppo
import sapg
from tests.conftest import DRIFT, Drift, scalars, the_run
from tests.scripts.conftest import assert_same_state, checkpoint, refused, train

POPULATION = "--num-agents 4 --latent-dim 5 --max-ent-coef 0.1 --diagnostics-interval 3"
OWN = {
    ppo: "",
    sapg: POPULATION,
    cpo: f"{POPULATION} --adversarial-coef 0.1 --discriminator-sizes 8 --reverse-kl-coef 0.1 --awac-coef 0.1",
    epo: f"{POPULATION} --ga-interval 0.1 --ga-warmup 0.1",
    pbt: "--num-agents 4 --pbt-start 1 --pbt-interval 1 --mutation-rate 0.5",
}
TASKS = {DRIFT: (32, 9), "Moat": (32, 32), "Cartpole": (64, 32), "AllegroKukaRegrasping": (8, 32)}
STEPS = 32 * 32  # of an iteration of Moat
NETWORKS = {"mlp": "--no-lstm --hidden-sizes 16", "lstm": "--lstm --lstm-size 8 --hidden-sizes 16"}


def command(script, task="Moat", network="mlp", iterations=8):
    num_envs, num_steps = TASKS[task]  # per iteration
    fixed = f"--no-cuda --env-id {task} --num-envs {num_envs} --num-steps {num_steps} --num-minibatches 2 --seed 5"
    steps = iterations * num_envs * num_steps
    return f"{fixed} --update-epochs 2 {NETWORKS[network]} {OWN[script]} --total-timesteps {steps}"


# ---------------------------------------------------------------- resuming


@pytest.mark.parametrize("script, task, network", [
    *[(script, DRIFT, network) for script in OWN for network in NETWORKS],  # an episode ends in every iteration
    (sapg, "Moat", "mlp"), (cpo, "Cartpole", "mlp"), (epo, "AllegroKukaRegrasping", "mlp"),
])  # fmt: skip
def test_resumed_is_uninterrupted_bit_by_bit(script, task, network):
    """Every script's own state on a small task; that of other tasks is the same for all scripts."""
    train(script, command(script, task, network, iterations=6))
    whole = checkpoint(the_run())
    the_run().rename("whole")
    train(script, command(script, task, network, iterations=3))
    folder, early = the_run(), checkpoint(the_run())
    assert early["iteration"] == 3
    random.seed(99)
    np.random.seed(99)
    torch.manual_seed(99)
    train(script, f"--no-cuda --resume {folder} --total-timesteps {whole['global_step']}")
    assert the_run() == folder  # no new one
    assert_same_state(whole, checkpoint(folder))
    if script is epo and task == DRIFT:  # something to get lost
        early, whole = (saved["state"]["lineage_stats"] for saved in (early, whole))
        assert early["pending"] and early["generation"] and whole["generation"] > 1
    if script is pbt:
        assert 0 < early["state"]["last_copy"] < whole["state"]["last_copy"]


def test_the_checkpoint_at_an_interval_is_the_state_of_then(monkeypatch):
    save, now = harness.Run.checkpoint, [1000.0]

    def a_minute_later(self, *inputs):
        now[0] += 60.0
        save(self, *inputs)

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(harness.Run, "checkpoint", a_minute_later)
    train(ppo, command(ppo) + " --checkpoint-interval 2.5")
    early = checkpoint(the_run(), "checkpoint_previous.pt")
    assert early["iteration"] == 6 and checkpoint(the_run())["iteration"] == 8
    the_run().rename("whole")
    train(ppo, command(ppo, iterations=6))
    assert_same_state(checkpoint(the_run()), early)


def test_resuming_continues_the_log_in_the_same_folder():
    train(ppo, command(ppo, iterations=3))
    folder = the_run()
    saved = (folder / "checkpoint.pt").read_bytes()
    train(ppo, f"--no-cuda --resume {folder} --total-timesteps {5 * STEPS}")
    (folder / "checkpoint.pt").write_bytes(saved)  # as if it had been killed after 5, with a checkpoint of 3
    train(ppo, f"--no-cuda --resume {folder} --total-timesteps {6 * STEPS}")
    assert [e.step for e in scalars(folder, "charts/learning_rate")] == [STEPS * i for i in range(1, 7)]


def test_a_file_is_resumed_beside_it():
    train(ppo, command(ppo, iterations=3))
    pathlib.Path("elsewhere").mkdir()
    os.rename(the_run() / "checkpoint.pt", "elsewhere/mine.pt")
    train(ppo, f"--no-cuda --resume elsewhere/mine.pt --total-timesteps {4 * STEPS}")
    assert checkpoint(pathlib.Path("elsewhere"))["iteration"] == 4


def test_a_run_goes_on_where_there_are_fewer_gpus(monkeypatch):
    train(ppo, command(ppo, iterations=3))
    saved = checkpoint(the_run())
    saved["random"]["cuda"] = [torch.zeros(16, dtype=torch.uint8)] * 3
    torch.save(saved, the_run() / "checkpoint.pt")
    restored = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_rng_state", restored.append)
    assert train(ppo, f"--no-cuda --resume {the_run()} --total-timesteps {4 * STEPS}") == 0 and len(restored) == 1


def test_an_environment_that_cannot_restore_its_episodes_begins_new_ones(monkeypatch):
    monkeypatch.setattr(Drift, "resumes_exactly", False)
    train(epo, command(epo, DRIFT, iterations=3))
    begins, record = [], epo.Fitness.record
    monkeypatch.setattr(epo.Fitness, "record", lambda self, *x: begins.append(x[0].clone()) or record(self, *x))
    train(epo, f"--no-cuda --resume {the_run()} --total-timesteps {4 * 32 * 9}")
    assert len(begins) == 9 and begins[0].all()  # whose scores count for the fitness


def test_a_run_is_not_lost_where_an_environment_changes_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    advance = Drift.advance
    monkeypatch.setattr(Drift, "advance", lambda *x: os.chdir(tmp_path / "elsewhere") or advance(*x))
    assert train(ppo, command(ppo, DRIFT, iterations=2)) == 0
    assert checkpoint(the_run(tmp_path))["iteration"] == 2 and not list((tmp_path / "elsewhere").iterdir())
    begin = Drift.__init__
    monkeypatch.setattr(Drift, "__init__", lambda *x: os.chdir(tmp_path / "elsewhere") or begin(*x))
    os.chdir(tmp_path)
    train(ppo, f"--no-cuda --resume {the_run()} --total-timesteps {3 * 32 * 9}")
    assert checkpoint(the_run(tmp_path))["iteration"] == 3 and not list((tmp_path / "elsewhere").iterdir())


def test_two_runs_never_share_a_folder(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)
    train(ppo, command(ppo, iterations=1))
    first = the_run()
    saved = (first / "checkpoint.pt").read_bytes()
    train(ppo, command(ppo, iterations=2))
    assert sorted(path.name[-10:] for path in first.parent.iterdir()) == ["1700000000", "1700000001"]
    assert (first / "checkpoint.pt").read_bytes() == saved


# ---------------------------------------------------------------- what cannot be resumed


class Payload:
    def __reduce__(self):
        return os.mkdir, ("payload",)


@pytest.mark.parametrize("damage, reason", [
    ("truncated", "cannot be read"), ("code", "cannot be read"), ("missing", "no such file"),
    *[(script, "must be a checkpoint that ppo.py wrote") for script in ("../ppo", "sapg")],
])  # fmt: skip
def test_what_is_no_checkpoint_is_refused_and_runs_no_code(damage, reason, capsys):
    train(ppo, command(ppo, iterations=1))
    path = pathlib.Path("x.pt")
    if damage == "truncated":
        path.write_bytes((the_run() / "checkpoint.pt").read_bytes()[:1000])
    elif damage != "missing":
        changed = {"args": Payload()} if damage == "code" else {"script": damage}
        torch.save({**checkpoint(the_run()), **changed}, path)
    before = sorted(pathlib.Path().rglob("*"))
    line = refused(ppo, "--no-cuda --resume x.pt --total-timesteps 1000000", capsys)
    assert line.startswith("--resume x.pt") and reason in line
    assert sorted(pathlib.Path().rglob("*")) == before


@pytest.mark.parametrize("flags, name", [
    ("--env-id Cartpole", "--env-id Cartpole"), ("--hidden-sizes 32", "--hidden-sizes (32,)"),
    ("--total-timesteps 1024", "--total-timesteps 1024"), ("--learning-rate 1e-5", "--learning-rate 1e-05"),
    ("--gamma 0.5", "--gamma 0.5"), ("--seed 2", "--seed 2"),
])  # fmt: skip
def test_flags_that_contradict_the_checkpoint_are_refused(flags, name, capsys):
    train(ppo, command(ppo, iterations=2))
    data = (the_run() / "checkpoint.pt").read_bytes()
    assert refused(ppo, f"--no-cuda --resume {the_run()} {flags}", capsys).startswith(f"{name}: must be ")
    assert (the_run() / "checkpoint.pt").read_bytes() == data


def test_flags_that_do_not_change_the_training_may_change():
    train(sapg, command(sapg, iterations=2))
    flags = f"--no-cuda --diagnostics-interval 2 --checkpoint-interval 1 --total-timesteps {3 * STEPS}"
    train(sapg, f"--resume {the_run()} {flags}")
    saved = checkpoint(the_run())
    assert saved["iteration"] == 3 and saved["args"]["diagnostics_interval"] == 2


def test_a_flag_that_the_script_no_longer_has_is_named_and_ignored(capsys):
    train(ppo, command(ppo, iterations=2))
    saved = checkpoint(the_run())
    saved["args"]["nan_guard"] = True
    torch.save(saved, the_run() / "checkpoint.pt")
    capsys.readouterr()
    assert train(ppo, f"--no-cuda --resume {the_run()} --total-timesteps {3 * STEPS}") == 0
    line = "--nan-guard of the checkpoint is ignored: ppo.py has no such flag"
    assert capsys.readouterr().out.splitlines()[0] == line


def test_an_optimizers_state_of_another_shape_is_refused():
    """Adam would write beyond the end of a tensor."""
    train(ppo, command(ppo, iterations=1))
    saved = checkpoint(the_run())
    moments = saved["state"]["optimizer"]["state"]
    moments[0], moments[2] = moments[2], moments[0]
    torch.save(saved, the_run() / "checkpoint.pt")
    with pytest.raises(ValueError, match=r"^optimizer's state [02] is \("):
        train(ppo, f"--no-cuda --resume {the_run()} --total-timesteps {2 * STEPS}")


# ---------------------------------------------------------------- numbers that are not finite


@pytest.mark.parametrize("script", OWN, ids=lambda script: script.__name__)
def test_a_reward_that_is_not_a_number_stops_the_run_with_its_name(script, monkeypatch):
    advance, steps = Drift.advance, []

    def rotten(self, action):
        reward, *ends = advance(self, action)
        steps.append(1)
        if len(steps) > 20:  # of 9 in an iteration
            reward[1] = float("nan")
        return reward, *ends

    monkeypatch.setattr(Drift, "advance", rotten)
    with pytest.raises(FloatingPointError, match="^iteration 3: rewards not finite; the last checkpoint is from befo"):
        train(script, f"{command(script, DRIFT)} --checkpoint-interval 1e-9")
    saved = checkpoint(the_run())
    assert saved["iteration"] == 2 and all(x.isfinite().all() for x in saved["state"]["agent"].values())


def test_a_gradient_that_is_not_finite_stops_the_run(monkeypatch):
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: torch.tensor(float("inf")))
    with pytest.raises(FloatingPointError, match="^iteration 1: losses/grad_norm not finite"):
        train(ppo, command(ppo))


def test_rewards_too_small_to_learn_from_are_named(capsys):
    train(ppo, f"{command(ppo)} --reward-scale 1e-4")
    assert "too small to learn from" in capsys.readouterr().err


@pytest.mark.mujoco_cpu
def test_a_broken_world_does_not_reach_the_learner(monkeypatch):
    from envs.engines.mujoco_cpu import MujocoCpu

    step, steps = MujocoCpu.step, []

    def spoiled(self, *args):
        steps.append(1)
        if len(steps) == 20:
            self._state[1, 2] = np.nan
        return step(self, *args)

    monkeypatch.setattr(MujocoCpu, "step", spoiled)
    train(ppo, command(ppo, "Cartpole", iterations=2))
    assert [e.value for e in scalars(the_run(), "charts/nan_worlds")] == [1.0, 1.0]
    assert all(x.isfinite().all() for x in checkpoint(the_run())["state"]["agent"].values())
