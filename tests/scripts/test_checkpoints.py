"""Checkpoints: k iterations, resumed for the rest, are the whole run; what contradicts one is refused in one line."""

import os
import pathlib
import random
import re
import shlex
import shutil
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import cpo
import epo
import export
import harness
import pbt
import ppo
import sapg
from harness import hyperparameters
from harness.folder import create_folder
from tests.conftest import DRIFT, Drift, scalars, the_run
from tests.scripts.conftest import ROOT, assert_same_state, checkpoint, refused, train

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


def resume(run, iterations, steps=STEPS):
    return f"--no-cuda --resume {run} --total-timesteps {iterations * steps}"


# ---------------------------------------------------------------- resuming


@pytest.mark.parametrize(
    "script, task, network",
    [
        *[(script, DRIFT, network) for script in OWN for network in NETWORKS],  # an episode ends in every iteration
        (sapg, "Moat", "mlp"),
        (cpo, "Cartpole", "mlp"),
        (epo, "AllegroKukaRegrasping", "mlp"),
    ],
)
def test_resumed_is_uninterrupted_bit_by_bit(script, task, network):
    """Every script's own state on a small task; that of other tasks is the same for all scripts."""
    train(script, command(script, task, network, iterations=6))
    whole = checkpoint(the_run())
    the_run().rename("whole")
    train(script, command(script, task, network, iterations=3))
    folder = the_run()
    early = checkpoint(folder)
    assert early["iteration"] == 3
    random.seed(99)
    np.random.seed(99)
    torch.manual_seed(99)
    train(script, f"--no-cuda --resume {folder} --total-timesteps {whole['global_step']}")
    assert the_run() == folder  # no new one
    assert_same_state(whole, checkpoint(folder))
    if script is epo and task == DRIFT:  # there is something to get lost
        lineage_stats = early["learner"]["lineage_stats"]
        assert lineage_stats["pending"]
        assert 0 < lineage_stats["generation"] < whole["learner"]["lineage_stats"]["generation"]
    if script is pbt:
        assert 0 < early["learner"]["copied_at"] < early["global_step"]


def test_the_checkpoint_at_an_interval_is_the_state_of_then(monkeypatch):
    save = harness.Run.checkpoint
    now = [1000.0]

    def a_minute_later(self, *inputs):
        now[0] += 60.0
        save(self, *inputs)

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(harness.Run, "checkpoint", a_minute_later)
    train(ppo, command(ppo) + " --checkpoint-interval 2.5")
    early = checkpoint(the_run(), "checkpoint_previous.pt")
    assert early["iteration"] == 6
    assert checkpoint(the_run())["iteration"] == 8
    the_run().rename("whole")
    train(ppo, command(ppo, iterations=6))
    assert_same_state(checkpoint(the_run()), early)


def test_resuming_continues_the_log_in_the_same_folder():
    train(ppo, command(ppo, iterations=3))
    folder = the_run()
    saved = (folder / "checkpoint.pt").read_bytes()
    train(ppo, resume(folder, 5))
    (folder / "checkpoint.pt").write_bytes(saved)  # as if it had been killed after 5, with a checkpoint of 3
    train(ppo, resume(folder, 6))
    assert [e.step for e in scalars(folder, "charts/learning_rate")] == [STEPS * i for i in range(1, 7)]


def test_weights_and_biases_continues_the_same_run(monkeypatch):
    """Its id is kept also by a part of the run that it does not see. A sweep chooses the id."""
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    calls = []
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **options: calls.append(options)))
    train(ppo, command(ppo, iterations=1) + " --track")
    folder = the_run()
    train(ppo, resume(folder, 2) + " --no-track")
    train(ppo, resume(folder, 3) + " --track")
    train(ppo, command(ppo, iterations=1) + " --track")
    monkeypatch.setenv("WANDB_RUN_ID", "of_a_sweep")
    train(ppo, command(ppo, iterations=1) + " --track")
    first, resumed, second, swept = (call["id"] for call in calls)
    assert first
    assert resumed == first
    assert checkpoint(folder)["wandb_id"] == first
    assert second != first
    assert swept == "of_a_sweep"
    assert [call["resume"] for call in calls] == ["allow"] * 4


def test_a_file_is_resumed_beside_it():
    train(ppo, command(ppo, iterations=3))
    pathlib.Path("elsewhere").mkdir()
    os.rename(the_run() / "checkpoint.pt", "elsewhere/mine.pt")
    train(ppo, resume("elsewhere/mine.pt", 4))
    assert checkpoint(pathlib.Path("elsewhere"))["iteration"] == 4


def test_a_run_goes_on_where_there_are_fewer_gpus(monkeypatch):
    train(ppo, command(ppo, iterations=3))
    saved = checkpoint(the_run())
    saved["random"][0]["cuda"] = [torch.zeros(16, dtype=torch.uint8)] * 3
    torch.save(saved, the_run() / "checkpoint.pt")
    restored = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_rng_state", restored.append)
    assert train(ppo, resume(the_run(), 4)) == 0
    assert len(restored) == 1


def test_an_environment_that_cannot_restore_its_episodes_begins_new_ones(monkeypatch):
    monkeypatch.setattr(Drift, "resumes_exactly", False)
    train(epo, command(epo, DRIFT, iterations=3))
    record = harness.FitnessTracker.record
    begins = []

    def recorded(self, begun, episode):
        begins.append(begun.clone())
        record(self, begun, episode)

    monkeypatch.setattr(harness.FitnessTracker, "record", recorded)
    train(epo, resume(the_run(), 4, 32 * 9))
    assert len(begins) == 9
    assert begins[0].all()  # the scores of these new episodes count for the fitness


def test_a_run_is_not_lost_where_an_environment_changes_the_working_directory(tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    advance = Drift.advance
    begin = Drift.__init__
    monkeypatch.setattr(Drift, "advance", lambda *inputs: os.chdir(elsewhere) or advance(*inputs))
    assert train(ppo, command(ppo, DRIFT, iterations=2)) == 0
    assert checkpoint(the_run(tmp_path))["iteration"] == 2
    monkeypatch.setattr(Drift, "__init__", lambda *inputs: os.chdir(elsewhere) or begin(*inputs))
    os.chdir(tmp_path)
    train(ppo, resume(the_run(), 3, 32 * 9))
    assert checkpoint(the_run(tmp_path))["iteration"] == 3
    assert list(elsewhere.iterdir()) == []


def test_two_runs_of_one_name_that_begin_in_one_second_have_folders_of_their_own(monkeypatch):
    """Each has chosen a name before either has made its folder."""
    make = os.makedirs
    both = threading.Barrier(2, timeout=60)
    waited = threading.local()
    folders = []

    def make_together(*inputs, **options):
        if not hasattr(waited, "once"):
            waited.once = True
            both.wait()
        make(*inputs, **options)

    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)
    monkeypatch.setattr(os, "makedirs", make_together)
    args = SimpleNamespace(env_id="Moat", exp_name=None, seed=1)
    threads = [threading.Thread(target=lambda: folders.append(create_folder(args, "ppo"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = [f"Moat__ppo__1__{second}" for second in (1_700_000_000, 1_700_000_001)]
    assert sorted(map(os.path.basename, folders)) == names
    assert sorted(os.listdir("runs")) == names


# ---------------------------------------------------------------- a new run from another's network

STILL = "--learning-rate 0 --kl-threshold 0"  # the network stays as it is


@pytest.mark.parametrize("script", OWN, ids=lambda script: script.__name__)
def test_a_new_run_begins_with_the_loaded_network_and_normalisers(script):
    train(script, command(script, iterations=2))
    first = the_run().rename("first")
    new = command(script, iterations=1).replace("--seed 5", f"--seed 6 {STILL}")
    assert train(script, f"{new} --load first") == 0
    before = checkpoint(first)
    after = checkpoint(the_run())
    assert after["global_step"] == STEPS
    weights = {key for key in before["learner"]["agent"] if "_rms" not in key}
    assert all(torch.equal(before["learner"]["agent"][key], after["learner"]["agent"][key]) for key in weights)
    counters = [key for key in before["learner"]["agent"] if key.endswith("obs_rms.count")]  # PBT: one of each agent
    for key in counters:
        seen = after["learner"]["agent"][key] - before["learner"]["agent"][key]
        assert seen == STEPS / len(counters)  # the new run's, on top of the loaded ones


def test_a_policys_folder_and_a_file_are_loaded_too():
    train(ppo, command(ppo, iterations=1))
    run = the_run().rename("first")
    export.main(["first", "policies/Mine"])
    wanted = checkpoint(run)["learner"]["agent"]["actor.weight"]
    for path in ("policies/Mine", "policies/Mine/policy.pt", "first/checkpoint.pt"):
        shutil.rmtree("runs")
        assert train(ppo, f"{command(ppo, iterations=1)} {STILL} --load {path}") == 0
        assert torch.equal(checkpoint(the_run())["learner"]["agent"]["actor.weight"], wanted)


@pytest.mark.parametrize(
    "script, flags, name",
    [
        (ppo, "--hidden-sizes 32", "mlp.0.weight"),
        (ppo, "--env-id Cartpole", "actor_logstd"),
        (ppo, "--separate-critic", "critic_mlp.0.weight"),
        (epo, "--num-agents 8", "latents"),
        (sapg, "", "latents"),
    ],
    ids=["width", "task", "part", "agents", "script"],
)
def test_a_network_of_other_shapes_is_refused(script, flags, name, capsys):
    source = ppo if script is sapg else script
    train(source, command(source, iterations=1))
    the_run().rename("first")
    pathlib.Path("runs").rmdir()
    line = refused(script, f"{command(script, iterations=1)} --load first {flags}", capsys)
    assert line.startswith("--load first: ")
    assert name in line
    assert not pathlib.Path("runs").exists()


def test_what_cannot_be_loaded_is_refused(capsys):
    train(ppo, command(ppo, iterations=1))
    assert refused(ppo, f"{resume(the_run(), 2)} --load first", capsys).startswith("--load first: ")
    assert refused(ppo, f"{command(ppo, iterations=1)} --load nowhere", capsys).startswith("--load nowhere: ")
    assert refused(ppo, f"{command(ppo, iterations=1)} --load ''", capsys).startswith("--load : ")


def test_checkpoints_name_the_version_and_older_ones_are_resumed():
    train(ppo, command(ppo, iterations=1))
    saved = checkpoint(the_run())
    assert f'version = "{saved.pop("version")}"' in (ROOT / "pyproject.toml").read_text()
    torch.save(saved, the_run() / "checkpoint.pt")
    assert train(ppo, resume(the_run(), 2)) == 0


# ---------------------------------------------------------------- what cannot be resumed


class Payload:
    def __reduce__(self):
        return os.mkdir, ("payload",)


@pytest.mark.parametrize("damage", ["truncated", "code", "tensors", "missing", "../ppo", "sapg"])
def test_what_is_no_checkpoint_is_refused_and_runs_no_code(damage, capsys):
    train(ppo, command(ppo, iterations=1))
    path = pathlib.Path("x.pt")
    if damage == "truncated":
        path.write_bytes((the_run() / "checkpoint.pt").read_bytes()[:1000])
    elif damage == "tensors":
        torch.save({"rewards": torch.zeros(3)}, path)
    elif damage == "code":
        torch.save({**checkpoint(the_run()), "args": Payload()}, path)
    elif damage != "missing":
        torch.save({**checkpoint(the_run()), "script": damage}, path)
    before = sorted(pathlib.Path().rglob("*"))
    assert refused(ppo, resume("x.pt", 1_000), capsys).startswith("--resume x.pt: ")
    assert sorted(pathlib.Path().rglob("*")) == before


class HoldsAnArray(Drift):
    def state_dict(self):
        return {**super().state_dict(), "array": np.zeros(3)}


def test_a_run_whose_checkpoints_could_not_be_read_does_not_begin():
    flags = command(ppo, iterations=1).replace("Moat", f"{__name__}:HoldsAnArray")
    with pytest.raises(SystemExit, match="numpy"):
        ppo.main(flags.split())
    assert not list(pathlib.Path().iterdir())


def test_the_printed_command_works_again(capsys):
    """That of a run that is loaded and then resumed, with spaces in its names."""

    def printed():
        return shlex.split(re.match(r"ppo\.py (.*(\n    .*)*)", capsys.readouterr().out)[1])

    train(ppo, command(ppo, iterations=1))
    the_run().rename("a policy")
    capsys.readouterr()
    train(ppo, f"{command(ppo, iterations=1)} --load 'a policy' --exp-name 'second run'")
    flags = printed()
    assert flags[flags.index("--load") + 1] == "a policy"
    assert flags[flags.index("--exp-name") + 1] == "second run"
    assert train(ppo, resume(f"'{the_run()}'", 2)) == 0
    assert train(ppo, shlex.join(printed()).replace(str(2 * STEPS), str(3 * STEPS))) == 0


def test_printed_programs_are_files_here_and_modules_elsewhere(monkeypatch):
    assert harness.run.program("ppo") == "-m ppo"
    monkeypatch.chdir(ROOT)
    assert harness.run.program("ppo") == "ppo.py"


def test_an_empty_name_is_refused(capsys):
    """As of a shell's variable that is not set: a new run in its place would go unnoticed."""
    assert refused(ppo, command(ppo, iterations=1) + " --resume ''", capsys).startswith("--resume : ")
    assert list(pathlib.Path().iterdir()) == []


@pytest.mark.parametrize(
    "flags, name",
    [
        ("--env-id Cartpole", "--env-id Cartpole"),
        ("--hidden-sizes 32", "--hidden-sizes (32,)"),
        ("--total-timesteps 1024", "--total-timesteps 1024"),
        ("--learning-rate 1e-5", "--learning-rate 1e-05"),
        ("--gamma 0.5", "--gamma 0.5"),
        ("--seed 2", "--seed 2"),
    ],
)
def test_flags_that_contradict_the_checkpoint_are_refused(flags, name, capsys):
    train(ppo, command(ppo, iterations=2))
    data = (the_run() / "checkpoint.pt").read_bytes()
    assert refused(ppo, f"--no-cuda --resume {the_run()} {flags}", capsys).startswith(f"{name}: must be ")
    assert (the_run() / "checkpoint.pt").read_bytes() == data


def test_flags_that_do_not_change_the_training_may_change(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace())
    train(sapg, command(sapg, iterations=2))
    changed = dict(
        total_timesteps=3 * STEPS,
        checkpoint_interval=1.0,
        diagnostics_interval=2,
        exp_name="other",
        track=True,
        wandb_project_name="mine",
        capture_video=True,
    )
    flags = f"--no-cuda --resume {the_run()} {harness.flags.spell(changed)}"
    args, _ = harness.parse_args(sapg.Args, hyperparameters.SAPG, sapg.check_args, flags.split())
    assert {name: getattr(args, name) for name in changed} == changed


def test_a_flag_that_the_script_no_longer_has_is_named_and_ignored(capsys):
    train(ppo, command(ppo, iterations=2))
    saved = checkpoint(the_run())
    saved["args"]["nan_guard"] = True
    torch.save(saved, the_run() / "checkpoint.pt")
    capsys.readouterr()
    assert train(ppo, resume(the_run(), 3)) == 0
    assert "--nan-guard" in capsys.readouterr().out.splitlines()[0]


# ---------------------------------------------------------------- numbers that are not finite


def is_finite(agent):
    return all(value.isfinite().all() for value in agent.values())


@pytest.mark.parametrize("script", OWN, ids=lambda script: script.__name__)
def test_a_reward_that_is_not_a_number_stops_the_run_with_its_name(script, monkeypatch):
    advance = Drift.advance
    steps = []

    def rotten(self, action):
        reward, *ends = advance(self, action)
        steps.append(1)
        if len(steps) > 20:  # of 9 in an iteration
            reward[1] = float("nan")
        return reward, *ends

    monkeypatch.setattr(Drift, "advance", rotten)
    with pytest.raises(FloatingPointError, match="^iteration 3: rewards not finite"):
        train(script, f"{command(script, DRIFT)} --checkpoint-interval 1e-9")
    saved = checkpoint(the_run())
    assert saved["iteration"] == 2
    assert is_finite(saved["learner"]["agent"])
    dump = torch.load(the_run() / "nan_dump.pt", weights_only=True)
    assert dump["rewards"][:, 1].isnan().any()
    assert dump["rewards"][:, 0].isfinite().all()
    assert {"observations", "final_obs", "losses/policy_loss"} <= dump.keys()


@pytest.mark.parametrize("script", OWN, ids=lambda script: script.__name__)
def test_a_truncated_episodes_last_observation_that_is_not_a_number_is_named(script, monkeypatch):
    observe = Drift.observe
    monkeypatch.setattr(
        Drift, "observe", lambda env: observe(env).masked_fill((env.episode_step == 7)[:, None], np.nan)
    )
    with pytest.raises(FloatingPointError, match="^iteration 1: final_obs not finite"):
        train(script, command(script, DRIFT))


def test_a_gradient_that_is_not_finite_stops_the_run(monkeypatch):
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: torch.tensor(float("inf")))
    with pytest.raises(FloatingPointError, match="^iteration 1: losses/grad_norm not finite"):
        train(ppo, command(ppo))


def test_rewards_too_small_to_learn_from_are_named(capsys):
    train(ppo, f"{command(ppo, iterations=1)} --reward-scale 1e-4")
    assert "--reward-scale" in capsys.readouterr().err


@pytest.mark.mujoco_cpu
def test_a_broken_world_does_not_reach_the_learner(monkeypatch):
    from envs.engines.mujoco_cpu import MujocoCpu

    step = MujocoCpu.step
    steps = []

    def spoiled(self, *args):
        steps.append(1)
        if len(steps) == 20:
            self._state[1, 2] = np.nan
        return step(self, *args)

    monkeypatch.setattr(MujocoCpu, "step", spoiled)
    train(ppo, command(ppo, "Cartpole", iterations=2))
    assert [e.value for e in scalars(the_run(), "charts/nan_worlds")] == [1.0, 1.0]
    assert is_finite(checkpoint(the_run())["learner"]["agent"])
