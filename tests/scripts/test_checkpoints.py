"""Checkpoints: k iterations, resumed for the rest, are the whole run; faults are neither lost nor hidden."""

import os
import pathlib
import pickle
import random
import re
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import cpo
import epo
import harness
import harness.run
import ppo
import sapg
from envs.base import VectorEnv
from harness import checkpoints
from tests.conftest import DRIFT, Drift, scalars, the_run

ROOT = pathlib.Path(__file__).resolve().parents[2]
POPULATION = "--num-agents 4 --latent-dim 5 --max-ent-coef 0.1 --diagnostics-interval 3"
FLAGS = {
    ppo: "",
    sapg: POPULATION,
    cpo: f"{POPULATION} --adversarial-coef 0.1 --discriminator-sizes 8 --reverse-kl-coef 0.1 --awac-coef 0.1",
    epo: f"{POPULATION} --ga-interval 0.1 --ga-warmup 0.1",
}
TASKS = {DRIFT: (32, 9), "Moat": (32, 32), "Cartpole": (64, 32), "AllegroKukaRegrasping": (8, 32)}
STEPS = 32 * 32  # of an iteration of Moat
NETWORKS = {"mlp": "--no-lstm --hidden-sizes 16", "lstm": "--lstm --lstm-size 8 --hidden-sizes 16"}
every_script = pytest.mark.parametrize("script", FLAGS, ids=lambda script: script.__name__)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def command(script, task="Moat", network="mlp", iterations=8):
    num_envs, num_steps = TASKS[task]  # per iteration
    fixed = f"--no-cuda --env-id {task} --num-envs {num_envs} --num-steps {num_steps} --num-minibatches 2 --seed 5"
    steps = iterations * num_envs * num_steps
    return f"{fixed} --update-epochs 2 {NETWORKS[network]} {FLAGS[script]} --total-timesteps {steps}"


def train(script, flags):
    script.main(flags.split())


def checkpoint(folder, name="checkpoint.pt"):
    return torch.load(folder / name, weights_only=True)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) or (a.is_floating_point() and torch.equal(a.nan_to_num(7.7), b.nan_to_num(7.7)))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def assert_same_state(a, b):
    """All that a run is, but for the clock and where it was resumed from."""
    assert a.keys() == b.keys()
    for key in set(a) - {"seconds", "args"}:
        assert same(a[key], b[key]), key
    ignored = {"resume", "checkpoint_interval", "total_timesteps", "num_iterations"}
    assert all(b["args"][key] == value for key, value in a["args"].items() if key not in ignored)


# ---------------------------------------------------------------- resuming


@pytest.mark.parametrize("script, task, network", [
    *[(script, DRIFT, network) for script in FLAGS for network in NETWORKS],  # an episode ends in every iteration
    (sapg, "Moat", "mlp"), (cpo, "Cartpole", "mlp"), (epo, "AllegroKukaRegrasping", "mlp"),
])  # fmt: skip
def test_resumed_is_uninterrupted_bit_by_bit(script, task, network):
    """Every script's own state on a small task; that of other tasks is the same for all scripts."""
    train(script, command(script, task, network, iterations=6))
    whole = checkpoint(the_run())
    the_run().rename("whole")
    train(script, command(script, task, network, iterations=3))
    folder = the_run()
    early = checkpoint(folder)
    assert early["iteration"] == 3
    random.seed(99), np.random.seed(99), torch.manual_seed(99)
    steps = whole["global_step"]
    train(script, f"--no-cuda --resume {folder} --total-timesteps {steps}")
    assert the_run() == folder  # no new one
    assert_same_state(whole, checkpoint(folder))
    if script is epo and task == DRIFT:  # something to get lost
        early, whole = (saved["state"]["lineage_stats"] for saved in (early, whole))
        assert early["pending"] and early["generation"] and whole["generation"] > 1


def test_a_resumed_run_stays_on_its_device(monkeypatch):
    train(ppo, command(ppo, iterations=3))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (24 * 10**9, 24 * 10**9))
    for flags, device in (("", "cpu"), ("--cuda", "cuda"), ("--no-cuda", "cpu")):
        argv = f"--resume {the_run()} --total-timesteps {4 * STEPS} {flags}".split()
        args, saved = harness.parse_args(ppo.Args, {}, argv=argv)
        saved["lock"].close()
        assert args.device == device


def test_episodes_that_begin_anew_after_resuming_count_for_the_fitness(monkeypatch):
    monkeypatch.setattr(Drift, "resumes_exactly", False, raising=False)
    train(epo, command(epo, DRIFT, iterations=3))
    saved = checkpoint(the_run())
    saved["state"]["fitness"]["fresh"][:] = False
    torch.save(saved, the_run() / "checkpoint.pt")
    seen, record = [], epo.Fitness.record
    monkeypatch.setattr(epo.Fitness, "record", lambda self, *x: seen.append(self.fresh.clone()) or record(self, *x))
    train(epo, f"--no-cuda --resume {the_run()} --total-timesteps {4 * 32 * 9}")
    assert len(seen) == 9 and seen[0].all()


def test_the_checkpoint_at_an_interval_is_the_state_of_then():
    train(ppo, command(ppo) + " --checkpoint-interval 3")
    early = checkpoint(the_run(), "checkpoint_previous.pt")
    assert early["iteration"] == 6 and checkpoint(the_run())["iteration"] == 8
    the_run().rename("whole")
    train(ppo, command(ppo, iterations=6))
    assert_same_state(checkpoint(the_run()), early)


def test_resuming_continues_the_log_in_the_same_folder():
    train(ppo, command(ppo, iterations=3))
    folder = the_run()
    saved = (folder / "checkpoint.pt").read_bytes()
    train(ppo, f"--resume {folder} --total-timesteps {5 * STEPS}")
    (folder / "checkpoint.pt").write_bytes(saved)  # as if it had been killed after 5, with a checkpoint of 3
    time.sleep(1.1)  # event files are named by the second
    train(ppo, f"--resume {folder} --total-timesteps {6 * STEPS}")
    assert [e.step for e in scalars(folder, "charts/learning_rate")] == [STEPS * i for i in range(1, 7)]


def test_a_file_is_resumed_beside_it():
    train(ppo, command(ppo, iterations=3))
    pathlib.Path("elsewhere").mkdir()
    os.rename(the_run() / "checkpoint.pt", "elsewhere/mine.pt")
    train(ppo, f"--resume elsewhere/mine.pt --total-timesteps {4 * STEPS}")
    assert checkpoint(pathlib.Path("elsewhere"))["iteration"] == 4


def test_a_run_goes_on_where_there_are_fewer_gpus(monkeypatch):
    """As if written where a run kept the states of three GPUs."""
    train(ppo, command(ppo, iterations=3))
    saved = checkpoint(the_run())
    saved["random"]["cuda"] = [torch.zeros(16, dtype=torch.uint8)] * 3
    saved["seconds"] = 1000.0  # much longer than it has taken
    torch.save(saved, the_run() / "checkpoint.pt")
    restored = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_rng_state", restored.append)
    train(ppo, f"--no-cuda --resume {the_run()} --total-timesteps {4 * STEPS}")
    saved = checkpoint(the_run())
    assert len(restored) == 1 and saved["state"]["optimizer"]["param_groups"][0]["fused"] is True
    assert saved["seconds"] > 1000.0


def test_a_damaged_checkpoint_gives_way_to_the_one_before(capsys):
    train(ppo, command(ppo) + " --checkpoint-interval 3")
    whole, folder = checkpoint(the_run()), the_run()
    path = folder / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:-200])
    train(ppo, f"--resume {folder}")
    assert "checkpoint_previous.pt: checkpoint.pt cannot be read" in capsys.readouterr().err
    assert_same_state(whole, checkpoint(folder))


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "zeros", "pickled", "foreign", "missing", "folder"])
def test_what_cannot_be_resumed_is_refused(damage, capsys):
    train(ppo, command(ppo, iterations=1))
    path = the_run() / "checkpoint.pt"
    data = path.read_bytes()
    path = pathlib.Path("x.pt")
    path.write_bytes(data[: len(data) // 2] if damage == "truncated" else b"")
    if damage == "text":
        path.write_text("broken")
    if damage == "zeros":
        path.write_bytes(data[:1000] + bytes(len(data) - 1000))
    if damage == "pickled":
        torch.save({"script": "ppo", "args": VectorEnv}, path)
    if damage == "foreign":
        torch.save({"weight": torch.zeros(3)}, path)
    if damage in ("missing", "folder"):
        path.unlink()
    if damage == "folder":
        path.mkdir()
    capsys.readouterr()
    before = sorted(pathlib.Path().rglob("*"))
    with pytest.raises(SystemExit) as end:
        train(ppo, f"--resume {path} --total-timesteps 1000000")
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and line.startswith("--resume x.pt: ")
    reasons = dict(foreign="must be a checkpoint of a training script", missing="no such file", folder="checkpoint.pt")
    assert reasons.get(damage, "cannot be read") in line
    assert sorted(pathlib.Path().rglob("*")) == before


@pytest.mark.parametrize("flags, name", [
    ("--env-id Cartpole", "--env-id Cartpole"),
    ("--hidden-sizes 32", "--hidden-sizes (32,)"),
    ("--num-envs 64", "--num-envs 64"),
    ("--learning-rate 0.1", "--learning-rate 0.1"),
    ("--seed 6", "--seed 6"),
    ("--lstm", "--lstm True"),
    ("--total-timesteps 1024", "--total-timesteps 1024"),
])  # fmt: skip
def test_flags_that_contradict_the_checkpoint_are_refused(flags, name, capsys):
    train(ppo, command(ppo, iterations=2))
    data = (the_run() / "checkpoint.pt").read_bytes()
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        train(ppo, f"--resume {the_run()} {flags}")
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and line.startswith(f"{name}: must be ")
    assert (the_run() / "checkpoint.pt").read_bytes() == data


def test_flags_that_do_not_change_the_training_may_change():
    train(sapg, command(sapg, iterations=2))
    flags = f"--no-cuda --diagnostics-interval 2 --checkpoint-interval 1 --total-timesteps {3 * STEPS}"
    train(sapg, f"--resume {the_run()} {flags}")
    saved = checkpoint(the_run())
    assert saved["iteration"] == 3 and saved["args"]["diagnostics_interval"] == 2


def test_a_checkpoint_from_before_the_script_kept_something_is_refused(monkeypatch, capsys):
    train(ppo, command(ppo, iterations=1))
    make = harness.Run.__init__
    more = {"n": torch.zeros(1)}
    monkeypatch.setattr(harness.Run, "__init__", lambda self, args, state, saved: make(self, args, state | more, saved))
    capsys.readouterr()
    with pytest.raises(SystemExit):
        train(ppo, f"--resume {the_run()} --total-timesteps {2 * STEPS}")
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.endswith("checkpoint.pt cannot be read: has no n, which the script has in its state")


def test_another_scripts_checkpoint_is_refused(capsys):
    train(sapg, command(sapg, iterations=1))
    capsys.readouterr()
    with pytest.raises(SystemExit):
        train(epo, f"--resume {the_run()}")
    assert "must be a checkpoint that epo.py wrote" in capsys.readouterr().err


# ---------------------------------------------------------------- kills; other signals: test_faults.py


def start(script, flags):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, str(ROOT / f"{script.__name__}.py"), *flags.split()]
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill_and_resume(kills, seed):
    """SIGKILL at random moments; every time the folder holds a whole checkpoint, at most one interval old."""
    moments, folder = random.Random(seed), None
    for _ in range(kills):
        flags = f"--resume {folder} --total-timesteps 1000000000" if folder else command(ppo, iterations=10**6)
        process = start(ppo, f"{flags} --checkpoint-interval 1")
        process.stdout.readline()  # the first line: it has begun
        first = process.stdout.readline()
        time.sleep(moments.uniform(0.0, 0.3))
        process.kill()
        out, err = process.stdout.read(), process.stderr.read()
        process.wait()
        assert "Traceback" not in err, err
        folder = the_run()
        done = [int(line.split()[0].replace(",", "")) for line in [first, *out.splitlines()] if " steps " in line]
        saved = harness.load_checkpoint(str(folder))
        assert saved["global_step"] >= max(done) - STEPS


def test_a_killed_run_resumes():
    kill_and_resume(2, seed=0)


@pytest.mark.slow
def test_a_run_killed_fifty_times_resumes():
    kill_and_resume(50, seed=1)


# ---------------------------------------------------------------- faults


def test_a_checkpoint_is_replaced_whole_or_not_at_all(monkeypatch, capsys):
    train(ppo, command(ppo, iterations=2))
    folder = the_run()
    data = (folder / "checkpoint.pt").read_bytes()

    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        train(ppo, f"--no-cuda --resume {folder} --total-timesteps {4 * STEPS} --checkpoint-interval 1")
    assert capsys.readouterr().err == "no checkpoint: [Errno 28] No space left on device; training goes on\n"
    assert (folder / "checkpoint.pt").read_bytes() == data and not list(folder.glob("*.tmp"))
    train(ppo, f"--no-cuda --resume {folder} --total-timesteps {4 * STEPS}")
    assert checkpoint(folder)["iteration"] == 4


def test_a_folder_that_vanishes_does_not_stop_training(monkeypatch, capsys):
    write = checkpoints.save_checkpoint
    monkeypatch.setattr(checkpoints, "save_checkpoint", lambda folder, data: write("nowhere/at/all", data))
    train(ppo, command(ppo, iterations=2) + " --checkpoint-interval 1")
    assert capsys.readouterr().err.count("training goes on") == 1  # said once


def test_a_log_that_cannot_be_written_does_not_stop_training(monkeypatch, capsys):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(harness.run.SummaryWriter, "add_scalar", full)
    train(ppo, command(ppo, iterations=2))
    assert capsys.readouterr().err == "no log: [Errno 28] No space left on device; training goes on\n"
    assert checkpoint(the_run())["iteration"] == 2


class Rotten(VectorEnv):
    """After 40 steps a reward is not a number."""

    num_obs, num_actions, max_episode_steps = 2, 1, 10

    def __init__(self, num_envs, device, seed):
        super().__init__(num_envs, device, seed)
        self.steps = torch.tensor(0)

    def reset_where(self, mask):
        pass

    def advance(self, action):
        self.steps = self.steps + 1
        reward = action[:, 0].clone()
        if self.steps > 40:
            reward[1] = float("nan")
        nothing = torch.zeros(self.num_envs, dtype=torch.bool)
        return reward, nothing, nothing

    def observe(self):
        return torch.ones(self.num_envs, 2)


@every_script
def test_a_reward_that_is_not_a_number_stops_the_run(script, capsys):
    flags = f"--no-cuda --env-id {__name__}:Rotten --num-envs 16 --num-steps 16 --num-minibatches 2 --hidden-sizes 8"
    with pytest.raises(SystemExit) as end:
        train(script, f"{flags} {FLAGS[script]} --checkpoint-interval 1 --total-timesteps 1600")
    assert end.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("iteration 3: rewards, losses/policy_loss, losses/value_loss") and "nan_dump.pt" in line
    good = checkpoint(the_run())
    assert good["iteration"] == 2 and all(x.isfinite().all() for x in good["state"]["agent"].values())
    dump = checkpoint(the_run(), "nan_dump.pt")
    assert dump.keys() - {"awac"} == {"args", "iteration", "batch", "agent", "optimizer", "random"}
    assert dump["iteration"] == 3 and dump["agent"].keys() == good["state"]["agent"].keys()
    assert dump["batch"]["advantages"].isnan().any()
    assert ("awac" in dump) == (script is cpo)


def test_a_gradient_that_is_not_finite_stops_the_run(monkeypatch, capsys):
    clip, calls = torch.nn.utils.clip_grad_norm_, []

    def spoil(parameters, *args):
        parameters = list(parameters)
        calls.append(len(calls))
        if len(calls) == 7:  # second iteration, 2 epochs of 2 minibatches
            parameters[0].grad[0] = float("inf")
        return clip(parameters, *args)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", spoil)
    with pytest.raises(SystemExit):
        train(ppo, command(ppo) + " --checkpoint-interval 1")
    assert re.match(r"iteration 2: losses/.*grad_norm", capsys.readouterr().err)
    assert checkpoint(the_run())["iteration"] == 1


def test_the_dump_reproduces_what_was_not_finite(monkeypatch, capsys):
    """A network that overflows: from the dump, the same losses are not finite."""
    make = ppo.Agent

    def overflowing(*args):
        agent = make(*args)
        agent.critic.weight.data *= 1e30
        return agent

    monkeypatch.setattr(ppo, "Agent", overflowing)
    with pytest.raises(SystemExit):
        train(ppo, command(ppo))
    assert "losses/value_loss" in capsys.readouterr().err
    dump = checkpoint(the_run(), "nan_dump.pt")
    args = ppo.Args(**{k: v for k, v in dump["args"].items() if k not in ("device", "num_iterations")})
    agent = make(9, 4, args)
    agent.load_state_dict(dump["agent"])
    batch = dump["batch"]
    inputs = (batch[key] for key in ("obs", "dones", "lstm_state", "actions"))
    value = agent.get_action_and_value(*inputs)[3]
    assert not ((value - batch["returns"]) ** 2).isfinite().all()


def test_a_broken_world_does_not_reach_the_learner(monkeypatch):
    """NaN in a state: the world starts anew, is counted, and training goes on."""
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


def test_checkpoints_hold_nothing_but_tensors_and_numbers():
    train(epo, command(epo))
    with open(the_run() / "checkpoint.pt", "rb") as file:
        with pytest.raises(pickle.UnpicklingError):
            pickle.load(file)  # it is no plain pickle
    saved = checkpoint(the_run())  # and loads with weights_only
    assert saved.keys() == {
        "script", "args", "iteration", "global_step", "seconds", "state", "random", "other_processes"
    }  # fmt: skip
    assert saved["script"] == "epo" and (saved["iteration"], saved["global_step"]) == (8, 8 * STEPS)
