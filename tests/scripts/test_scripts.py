"""The scripts as people run them: what they print, what they write, what they refuse; and that PPO learns."""

import importlib.util
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch
import torch.distributed.run as torchrun
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import cpo
import envs
import epo
import evaluate
import harness
import ppo
import sapg
from harness import distributed, hyperparameters
from harness.flags import parse_flags
from tests.conftest import TINY as DRIFT_TINY, Drift, documents, parse, the_run, tuned

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = [ppo, sapg, cpo, epo]
TINY = {  # two iterations; the papers' LSTM is switched on and off by NETWORKS
    "Moat": "--env-id Moat --num-envs 64 --total-timesteps 2048",
    "Cartpole": "--env-id Cartpole --num-envs 64 --total-timesteps 2048",
    "AllegroKukaRegrasping": "--env-id AllegroKukaRegrasping --num-envs 8 --num-minibatches 2 --total-timesteps 256",
}
NETWORKS = {"mlp": "--no-lstm --hidden-sizes 16 16", "lstm": "--lstm --lstm-size 16 --hidden-sizes 16"}
POPULATION = {ppo: "", sapg: "--num-agents 4", cpo: "--num-agents 4", epo: "--num-agents 4"}
PROGRESS = re.compile(
    r" *(?P<steps>[\d,]+) steps +(?P<percent>[\d.]+)% \| (return +-?[\d.]+ \| objective +-?[\d.]+"
    r"|reward per step -?[\d.]+) \| +[\d,]+ SPS \| (\d+ days?, )?\d+:\d\d:\d\d left"
)

every_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
every_population = pytest.mark.parametrize("script", [sapg, cpo, epo], ids=lambda script: script.__name__)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(script, flags, **options):
    """The script as a process of its own, in the working directory, on one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / f"{script.__name__}.py"), *flags.split()]
    return subprocess.run(command, env=environment, capture_output=True, text=True, **options)


def written(folder):
    everything = dict.fromkeys(("scalars", "tensors", "images", "histograms"), 0)
    events = EventAccumulator(str(folder), size_guidance=everything)
    events.Reload()
    return events


def flag(name):
    return "--" + name.replace("_", "-")


# ---------------------------------------------------------------- runs


every_script_on_a_task = pytest.mark.parametrize("script, env_id", [
    (ppo, "Moat"), (sapg, "Cartpole"), (cpo, "Moat"), (epo, "AllegroKukaRegrasping")
])  # fmt: skip


@every_script_on_a_task
def test_runs_as_a_process(script, env_id):
    result = run(script, f"--no-cuda {TINY[env_id]} {POPULATION[script]} {NETWORKS['mlp']} --seed 7")
    assert result.returncode == 0, result.stderr
    *defaults, first, line, second_line = result.stdout.splitlines()
    progress = [line, second_line]
    num_envs, engine = 8 if "Kuka" in env_id else 64, "torch" if env_id == "Moat" else "mujoco"
    assert re.fullmatch(rf"{env_id}: engine {engine}, cpu, \d+ threads, {num_envs} environments", first)
    assert len(defaults) == ("Kuka" in env_id)  # that there is no GPU
    lines = [PROGRESS.fullmatch(line) for line in progress]  # one per iteration
    assert [int(line["steps"].replace(",", "")) for line in lines] == [num_envs * 16, num_envs * 32]
    assert [line["percent"] for line in lines] == ["50.0", "100.0"]
    assert re.fullmatch(rf"{env_id}__{script.__name__}__7__\d{{10}}", the_run().name)
    assert "SPS" in result.stdout and "Traceback" not in result.stderr


@pytest.mark.parametrize("device, engine", [("cpu", "mujoco"), ("cuda", "warp"), ("cuda", "mujoco")])
def test_the_first_line_says_that_a_gpu_waits_for_physics_on_the_cpu(device, engine, monkeypatch, capsys):
    monkeypatch.setattr(harness.flags, "make_checked", lambda *_, **__: SimpleNamespace(engine_name=engine))
    monkeypatch.setattr(harness.flags, "check_memory", lambda *_: None)
    args = SimpleNamespace(env_id="Ant", num_envs=8, device=device, seed=1, engine="auto")
    harness.flags.make_env(args)
    assert ("requirements-gpu.txt" in capsys.readouterr().out) == (device == "cuda" and engine == "mujoco")


AS_TUNED = "--no-cuda --env-id {} --num-envs 8 --num-minibatches 4 --total-timesteps 1"


@every_script
def test_every_row_of_its_table_is_accepted(script):
    for env_id in envs.TASKS:
        args = parse(script, f"{AS_TUNED.format(env_id)} {POPULATION[script]}")
        assert (args.env_id, args.num_iterations) == (env_id, 1)


@pytest.mark.parametrize("i, env_id", list(enumerate(sorted(envs.TASKS.keys() - TINY.keys()))))
def test_runs_on_every_task_as_its_table_says(i, env_id):
    """One iteration of 8 environments, all else at the task's own settings; the scripts take turns."""
    script = SCRIPTS[i % 4]
    script.main(f"{AS_TUNED.format(env_id)} {POPULATION[script]}".split())
    assert (the_run() / "checkpoint.pt").exists()


@every_script_on_a_task
def test_runs_with_an_lstm(script, env_id, capsys):
    script.main(f"--no-cuda {TINY[env_id]} {POPULATION[script]} {NETWORKS['lstm']}".split())
    *_, first, line, second_line = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{env_id}: engine") and PROGRESS.fullmatch(line) and PROGRESS.fullmatch(second_line)


def test_an_objective_that_is_not_a_number_is_not_shown(capsys, monkeypatch):
    monkeypatch.setattr(Drift, "objective", lambda self: torch.full((self.num_envs,), math.nan))
    ppo.main(f"{DRIFT_TINY} --total-timesteps 512".split())
    _, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1 and all("reward per step" in line for line in lines)


@every_script
def test_before_the_first_episode_ends_the_terminal_shows_the_reward_per_step(script, capsys):
    """Drift's episodes end within 7 steps; here an iteration is 2."""
    flags = f"{DRIFT_TINY} {POPULATION[script]} --num-envs 4 --num-steps 2 --total-timesteps 128 --seed 3"
    script.main(flags.split())
    out = capsys.readouterr().out
    _, *lines = out.splitlines()
    assert "nan" not in out and all(map(PROGRESS.fullmatch, lines))
    shown = ["reward per step" in line for line in lines]
    assert shown[0] and not shown[-1] and shown == sorted(shown, reverse=True)  # then returns, for good
    events = written(the_run())
    rewards = {event.step: event.value for event in events.Scalars("charts/reward_per_step")}
    for line in lines[: sum(shown)]:
        number = float(re.search(r"reward per step (-?[\d.]+)", line).group(1))
        assert number == pytest.approx(rewards[int(line.split()[0])], abs=1e-4)


CHARTS = "episodic_return episodic_length objective leader_return leader_objective best_agent_objective"
CHARTS += " SPS learning_rate episodes reward_per_step action_std action_std_max"
LOSSES = "policy_loss value_loss entropy approx_kl clipfrac explained_variance bounds_loss grad_norm"
KEYS = {f"charts/{key}" for key in CHARTS.split()} | {f"losses/{key}" for key in LOSSES.split()}
KEYS |= {"perf/rollout_s", "perf/update_s"}
POPULATION_KEYS = {f"population/{key}" for key in ("objective_median", "objective_worst", "latent_distance")}
DIAGNOSTICS = "is_ratio_deviation is_ratio_deviation_max is_log_ratio_median ess_rate leader_is_nearest kl_to_leader"
DIAGNOSTICS += " kl_to_leader_max latent_spread off_policy_used is_ratio_deviation_of_1 is_ratio_deviation_of_3"
DIAGNOSTICS = {f"population/{key}" for key in DIAGNOSTICS.split()}
COUPLING_KEYS = {"losses/awac_loss", "losses/discriminator_loss", "population/discriminator_accuracy"}
EVOLUTION_KEYS = {f"evolution/{key}" for key in ("fired", "replaced", "fitness_gap", "threshold", "child_success")}


@pytest.mark.parametrize("script, keys, flags", [
    (ppo, KEYS, ""),
    (sapg, KEYS | POPULATION_KEYS, ""),
    (cpo, KEYS | POPULATION_KEYS | COUPLING_KEYS, "--adversarial-coef 0.1 --discriminator-sizes 8"),
    (epo, KEYS | POPULATION_KEYS | EVOLUTION_KEYS, "--ga-interval 0.1 --ga-warmup 0.1"),
])  # fmt: skip
def test_what_is_logged(script, keys, flags):
    flags += " --no-cuda --env-id Moat --num-envs 64 --num-steps 32 --hidden-sizes 16 --total-timesteps 40960"
    if script is not ppo:
        flags += " --diagnostics-interval 4"
    script.main(f"{flags} {POPULATION[script]}".split())
    events = written(the_run())
    assert keys <= set(events.Tags()["scalars"])
    steps = [64 * 32 * i for i in range(1, 21)]
    late = ("evolution/fitness_gap", "evolution/threshold", "evolution/child_success")  # once fitness is known
    for key in keys:
        logged = [event.step for event in events.Scalars(key)]
        of_episodes = any(word in key for word in ("episodic", "return", "objective"))
        assert 0 < len(logged) and set(logged) <= set(steps)
        # after five iterations whole episodes, of 128 steps, have ended in each agent's environments
        assert key in late or set(steps[5:] if of_episodes else steps) <= set(logged), key
    if script is not ppo:
        for key in DIAGNOSTICS:
            assert [event.step for event in events.Scalars(key)] == steps[3::4], key
        assert [image.width for image in events.Images("population/kl_matrix")] == [4 * 24] * 5
        histograms = events.Histograms("population/objectives")
        assert {event.step for event in histograms} >= set(steps[5:])
        assert all(event.histogram_value.num == 4 for event in histograms)  # agents
        best = {event.step: event.value for event in events.Scalars("charts/best_agent_objective")}
        assert all(event.histogram_value.max == pytest.approx(best[event.step]) for event in histograms)
    tensors = events.Tags()["tensors"]
    (hyperparameters,) = events.Tensors("hyperparameters/text_summary")
    table = hyperparameters.tensor_proto.string_val[0].decode()
    assert "|env_id|Moat|" in table and "|num_envs|64|" in table and "|num_steps|32|" in table
    if script is epo:
        fired = sum(event.value for event in events.Scalars("evolution/fired"))
        lineage = events.Tensors("evolution/lineage/text_summary")
        assert fired == len(lineage) > 0
        for i, event in enumerate(lineage, 1):
            text = event.tensor_proto.string_val[0].decode()
            assert re.fullmatch(rf"{i}: [1-3] <- [1-3], [1-3]; fitness( [-.e\d]+){{4}}", text)
    else:
        assert not any(key.startswith("evolution") for key in tensors)


def test_a_tasks_metrics_are_logged():
    ppo.main(f"--no-cuda {TINY['AllegroKukaRegrasping']} {NETWORKS['mlp']}".split())
    events = written(the_run())
    assert [event.value for event in events.Scalars("charts/success_tolerance")] == pytest.approx([0.075] * 2)
    assert {"charts/successes", "charts/lifted", "charts/fingertip_distance"} <= set(events.Tags()["scalars"])


@every_script
def test_same_seed_same_log(script):
    for name in ("first", "second"):
        flags = f"--no-cuda {TINY['Moat']} {POPULATION[script]} {NETWORKS['mlp']}"
        script.main(flags.split())
        the_run().rename(name)
    first, second = written("first"), written("second")
    timed = {"charts/SPS", "perf/rollout_s", "perf/update_s"}
    assert first.Tags()["scalars"] == second.Tags()["scalars"]
    for key in set(first.Tags()["scalars"]) - timed:
        assert [e.value for e in first.Scalars(key)] == [e.value for e in second.Scalars(key)], key


# ---------------------------------------------------------------- help and defaults


@every_script
def test_help_lists_every_flag(script, capsys):
    with pytest.raises(SystemExit) as end:
        script.main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    for f in fields(script.Args):
        assert bool(re.search(rf"{flag(f.name)}\b", text)) == f.init, f.name
    assert not list(pathlib.Path().iterdir())


@pytest.mark.parametrize("env_id, epochs", [("Moat", 2), ("Cartpole", 8)])
def test_help_shows_the_defaults_of_the_task(env_id, epochs, capsys):
    with pytest.raises(SystemExit):
        ppo.main(["--env-id", env_id, "--help"])
    text = re.sub(r"[^\w:().]+", " ", capsys.readouterr().out)  # without frame and line breaks
    assert f"mini_epochs) (default: {epochs})" in text


@pytest.mark.parametrize("env_id, num_envs", [("AllegroKukaRegrasping", 1_024), ("Moat", 3_072), ("Cartpole", 512)])
def test_environments_on_a_cpu(env_id, num_envs):
    assert parse(ppo, f"--no-cuda --env-id {env_id}").num_envs == num_envs
    assert parse(sapg, f"--no-cuda --env-id {env_id}").num_envs == num_envs - num_envs % 6  # six equal blocks
    assert parse(epo, f"--no-cuda --env-id {env_id}").num_envs == num_envs


def test_defaults_without_a_gpu(capsys):
    args = parse(epo, "--no-cuda --env-id AllegroKukaRegrasping --num-agents 64")
    assert (args.num_envs, args.lstm, args.hidden_sizes) == (1_024, False, (256, 128, 64))
    assert (args.num_steps, args.num_minibatches, args.total_timesteps) == (16, 16, 60_000_000)
    assert (args.learning_rate, args.clip_coef, args.bounds_coef, args.num_agents) == (1e-4, 0.1, 1e-5, 64)
    (line,) = capsys.readouterr().out.splitlines()
    shown = "1,024 environments, MLP 256-128-64, 60,000,000 steps, about two hours on two idle cores"
    start, back = line.split("; as tuned for a GPU: ")
    assert start == f"no GPU: {shown}"
    restored = parse(epo, f"--no-cuda --env-id AllegroKukaRegrasping --num-agents 64 {back}")
    for name, value in hyperparameters.EPO["AllegroKukaRegrasping"].items():
        assert getattr(restored, name) == value, name
    assert "as tuned" not in capsys.readouterr().out and "--lstm" in back.split()


@every_script
@pytest.mark.parametrize("env_id", hyperparameters.CPU)
def test_the_first_line_says_how_to_get_the_tuned_settings_back(script, env_id, capsys):
    flags = f"--no-cuda --env-id {env_id}"
    num_agents = getattr(parse(script, flags), "num_agents", 1)
    restored = parse(script, f"{flags} {capsys.readouterr().out.strip().split('; as tuned for a GPU: ')[1]}")
    for name, value in tuned(script)[env_id].items():
        assert getattr(restored, name) == (value - value % num_agents if name == "num_envs" else value), name
    assert "as tuned" not in capsys.readouterr().out


@pytest.mark.parametrize("flags, name, value", [
    ("--lstm", "lstm", True), ("--num-envs 2048", "num_envs", 2_048), ("--num-minibatches 3", "num_minibatches", 3),
    ("--hidden-sizes 8", "hidden_sizes", (8,)), ("--total-timesteps 5_000", "total_timesteps", 5_000),
    ("--num-steps 4", "num_steps", 4), ("--learning-rate 0.5", "learning_rate", 0.5),
    ("--separate-critic", "separate_critic", True), ("--update-epochs 9", "update_epochs", 9),
])  # fmt: skip
def test_any_flag_given_wins_over_the_defaults_without_a_gpu(flags, name, value, capsys):
    plain = vars(parse(epo, "--no-cuda --env-id AllegroKukaRegrasping"))
    capsys.readouterr()
    args = vars(parse(epo, f"--no-cuda --env-id AllegroKukaRegrasping {flags}"))
    assert args[name] == value != plain[name]
    assert {key for key in args if args[key] != plain[key]} <= {name, "num_iterations"}
    out = capsys.readouterr().out
    assert ("two hours" in out) == (name == "learning_rate")  # else it is another job


def test_two_hours_are_promised_without_a_discriminator_only(capsys):
    for flags, promised in (("", False), ("--adversarial-coef 0", True)):
        parse(cpo, f"--no-cuda --env-id AllegroHand {flags}")
        assert ("two hours" in capsys.readouterr().out) == promised


@every_script
def test_with_a_gpu_the_papers_row_stands(script, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (24 * 10**9, 24 * 10**9))
    args = parse(script, "--env-id AllegroKukaRegrasping --engine mujoco")
    assert all(getattr(args, name) == value for name, value in tuned(script)["AllegroKukaRegrasping"].items())
    assert args.device == "cuda" and capsys.readouterr().out == ""


def test_the_budget_is_environment_steps_over_all_environments():
    args = parse(ppo, "--no-cuda --env-id Moat --num-envs 100 --num-steps 10 --total-timesteps 5_999")
    assert args.num_iterations == 5


# ---------------------------------------------------------------- bad input


def assert_refused(script, flags, name, value, valid, capsys, created=()):
    """Exit status 2 and one line that names flag, value and what is valid, before anything is created."""
    with pytest.raises(SystemExit) as end:
        script.main(["--no-cuda", *flags.split()])
    captured = capsys.readouterr()
    assert end.value.code == 2 and captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith(f"{name} {value}".strip() + ": ") and re.search(valid, line), line
    assert {path.name for path in pathlib.Path().iterdir()} == set(created)


MOAT_64 = "--env-id Moat --num-envs 64"
BAD = [  # flags, flag named, value named, what is valid
    ("--env-id Moot", "--env-id", "Moot", "did you mean Moat"),
    ("--env-id Allegrokukaregrasping", "--env-id", "Allegrokukaregrasping", "did you mean AllegroKukaRegrasping"),
    ("--env-id nowhere:Task", "--env-id", "nowhere:Task", "must be an importable package.module:Class"),
    ("--env-id envs.tasks.moat:Goat", "--env-id", "envs.tasks.moat:Goat", "must be an importable package.module:Class"),
    ("--env-id os.path:join", "--env-id", "os.path:join", "must be package.module:Class"),
    ("--env-id Cartpole --engine isaacgym", "--engine", "isaacgym", r"needs Python 3\.8, this is 3\."),
    ("--env-id Cartpole --engine physx", "--engine", "physx", "valid here: auto, mujoco"),
    ("--env-id Moat --engine mujoco", "--engine", "mujoco", "must be auto, this task steps itself"),
    ("--env-id Moat --num-envs 0", "--num-envs", "0", "at least 1"),
    ("--env-id Moat --num-envs -5", "--num-envs", "-5", "at least 1"),
    (f"{MOAT_64} --num-minibatches 65", "--num-minibatches", "65", "at most the 64 columns"),
    (f"{MOAT_64} --num-minibatches 0", "--num-minibatches", "0", "at least 1"),
    (f"{MOAT_64} --total-timesteps 0", "--total-timesteps", "0", "at least 1"),
    (f"{MOAT_64} --num-steps 0", "--num-steps", "0", "at least 1"),
    (f"{MOAT_64} --update-epochs 0", "--update-epochs", "0", "at least 1"),
    (f"{MOAT_64} --critic-n-step -1", "--critic-n-step", "-1", "at least 0"),
    (f"{MOAT_64} --seed -1", "--seed", "-1", "at least 0"),
    (f"{MOAT_64} --seed 4294967296", "--seed", "4294967296", r"below 2\*\*32"),
    (f"{MOAT_64} --gamma 1.5", "--gamma", "1.5", "at most 1"),
    (f"{MOAT_64} --gae-lambda 1.01", "--gae-lambda", "1.01", "at most 1"),
    (f"{MOAT_64} --hidden-sizes 64 0", "--hidden-sizes", r"(64, 0)", "at least 1"),
    (f"{MOAT_64} --hidden-sizes", "--hidden-sizes", "()", "one or more widths"),
    (f"{MOAT_64} --lstm --lstm-size 0", "--lstm-size", "0", "at least 1"),
    (f"{MOAT_64} --lstm --separate-critic", "--separate-critic", "True", "with --lstm"),
    (f"{MOAT_64} --checkpoint-interval -1", "--checkpoint-interval", "-1", "at least 0"),
]  # fmt: skip
BAD_POPULATION = [
    (f"{MOAT_64} --num-agents 5", "--num-envs", "64", "must be a multiple of 5: 5 agents"),
    (f"{MOAT_64} --num-agents 65", "--num-envs", "64", "must be a multiple of 65: 65 agents"),
    (f"{MOAT_64} --num-agents 0", "--num-agents", "0", "at least 1"),
    ("--env-id Moat --num-agents 0", "--num-agents", "0", "at least 1"),
    (f"{MOAT_64} --num-agents -4", "--num-agents", "-4", "at least 1"),
    ("--env-id Moat --num-agents -3", "--num-agents", "-3", "at least 1"),
    (f"{MOAT_64} --num-agents 4 --latent-dim -1", "--latent-dim", "-1", "at least 0"),
    (
        f"{MOAT_64} --num-agents 4 --aggregation leader-follower --off-policy-ratio 3.5",
        *("--off-policy-ratio", "3.5", "at most 3\\b"),
    ),
    (f"{MOAT_64} --num-agents 4 --diagnostics-interval -1", "--diagnostics-interval", "-1", "at least 0"),
]
BAD_COUPLING = [
    (f"{MOAT_64} --num-agents 4 --off-policy-ratio 2", "--off-policy-ratio", "2.0", "at most 1\\b"),
    (f"{MOAT_64} --num-agents 4 --awac-temperature 0", "--awac-temperature", "0.0", "greater than 0"),
    (f"{MOAT_64} --num-agents 4 --discriminator-sizes", "--discriminator-sizes", "()", "one or more widths"),
]
BAD_EVOLUTION = [
    (f"{MOAT_64} --num-agents 2", "--num-agents", "2", "at least 4"),
    (f"{MOAT_64} --num-agents 8 --num-elites 1", "--num-elites", "1", "between 2 and 6"),
    (f"{MOAT_64} --num-agents 8 --num-elites 8", "--num-elites", "8", "between 2 and 6"),
    (f"{MOAT_64} --num-agents 8 --num-elites -2", "--num-elites", "-2", "between 2 and 6"),
]


@pytest.mark.parametrize("script, bad", [
    *[(script, (f"{POPULATION[script]} {bad[0]}", *bad[1:])) for script in SCRIPTS for bad in BAD],
    *[(script, bad) for script in (sapg, cpo, epo) for bad in BAD_POPULATION],
    (ppo, ("--env-id Moat --num-envs 1 --num-steps 1 --num-minibatches 1", "--num-steps", "1", "at least 2")),
    *[(cpo, bad) for bad in BAD_COUPLING],
    *[(epo, bad) for bad in BAD_EVOLUTION],
], ids=lambda x: x.__name__ if hasattr(x, "__name__") else " ".join(x[1:3]))  # fmt: skip
def test_bad_input(script, bad, capsys):
    assert_refused(script, *bad, capsys)


@pytest.mark.parametrize("script, name", [
    (script, f.name) for script in SCRIPTS for f in fields(script.Args) if f.type in (float, "float")
], ids=lambda x: x if isinstance(x, str) else x.__name__)  # fmt: skip
def test_no_coefficient_may_be_negative_or_not_a_number(script, name, capsys):
    signed = name == "ent_coef"  # below 0 it is a penalty
    for value in ("nan", "inf") if signed else ("-0.5", "nan", "inf"):
        flags = f"{MOAT_64} {POPULATION[script]} {flag(name)} {value}"
        assert_refused(script, flags, flag(name), value, "finite number" + ", at least 0" * (not signed), capsys)


def test_an_engine_that_is_not_installed(monkeypatch, capsys):
    monkeypatch.setattr(envs.importlib.util, "find_spec", lambda name: None)
    assert_refused(ppo, "--env-id Cartpole --engine mujoco", "--engine", "mujoco", "not installed; valid here:", capsys)


def cannot_write(folder):
    return str(folder / "runs"), "", "must be a folder that can be written to"


@every_script
def test_runs_that_cannot_be_written(script, tmp_path, capsys):
    (tmp_path / "runs").write_text("not a folder")
    assert_refused(script, f"{MOAT_64} {POPULATION[script]}", *cannot_write(tmp_path), capsys, ["runs"])


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(tmp_path, capsys):
    tmp_path.chmod(0o500)
    try:
        assert_refused(ppo, MOAT_64, *cannot_write(tmp_path), capsys)
    finally:
        tmp_path.chmod(0o700)


def test_bad_input_to_a_process():
    result = run(epo, f"{MOAT_64} --num-agents 8 --num-elites 8")
    assert result.returncode == 2 and result.stdout == "" and len(result.stderr.splitlines()) == 1
    assert not list(pathlib.Path().iterdir())


def test_a_misspelt_flag(capsys):
    with pytest.raises(SystemExit) as end:
        epo.main(["--num-agent", "64"])
    assert end.value.code == 2 and "--num-agents" in capsys.readouterr().err
    assert not list(pathlib.Path().iterdir())


# ---------------------------------------------------------------- what README and docs/ promise


def write_own_tasks():
    """Save the documents' custom tasks as they say. Returns module:Class -> source."""
    text = documents()
    adapters = "|".join(envs.ADAPTERS)
    found = {}
    for source, name in re.findall(r"```python\n((?:(?!```).)*?class (\w+)\(VectorEnv\).*?)```", text, re.DOTALL):
        (env_id,) = set(re.findall(rf"--env-id (?!{adapters})(\w+:{name})\b", text))
        pathlib.Path(f"{env_id.split(':')[0]}.py").write_text(source)
        found[env_id] = source
    return found


@pytest.mark.parametrize("env_id, engine, lines", [("reach:Reach", "torch", 30), ("swing:Pendulum", "mujoco", 60)])
def test_the_documents_own_tasks_train(env_id, engine, lines):
    tasks = write_own_tasks()
    assert len(tasks) == 2 and len(tasks[env_id].splitlines()) <= lines
    module, name = env_id.split(":")
    flags = "--engine mujoco" if engine == "mujoco" else ""
    flags += f" --no-cuda --env-id {env_id} --num-envs 32 --num-steps 64 --total-timesteps 8192"
    result = run(ppo, flags)
    assert result.returncode == 0, result.stderr
    first, *progress = result.stdout.splitlines()
    assert first.startswith(f"{env_id}: engine {engine}, cpu, ") and len(progress) == 4
    assert all(map(PROGRESS.fullmatch, progress)) and "return" in progress[-1]  # episodes have ended
    assert re.fullmatch(rf"{module}-{name}__ppo__1__\d+", the_run().name)


def test_the_documents_commands_run(monkeypatch):
    """Training made small, of what is installed here; then what can be done with a run, on those of epo and sapg."""
    small = "--no-cuda --num-envs 192 --num-steps 2 --num-minibatches 1 --update-epochs 1 --hidden-sizes 8"
    write_own_tasks()
    shutil.copytree(ROOT / "policies" / "Ant", "policies/Ant")
    monkeypatch.setattr(envs.find_class("Ant"), "max_episode_steps", 10)  # without a GPU a picture takes 0.3 s
    commands = dict.fromkeys(re.findall(r"python (ppo|sapg|cpo|epo|evaluate)\.py ([^`\n#]*)", documents()))
    modules, runs = {"ppo": ppo, "sapg": sapg, "cpo": cpo, "epo": epo}, {}
    for script, flags in commands:
        adapter = next((name for name in envs.ADAPTERS if f"{name}:" in flags), "torch")
        if script == "evaluate" or "--help" in flags or "--engine" in flags or not importlib.util.find_spec(adapter):
            continue
        if "--resume" in flags:
            flags = flags.replace("runs/RUN", runs[script]) + " --total-timesteps 768"
        else:
            flags += f" {small} --total-timesteps 384"
        modules[script].main(flags.split())
        runs[script] = str(max(pathlib.Path("runs").iterdir(), key=lambda folder: folder.stat().st_mtime_ns))
    played = [flags for script, flags in commands if script == "evaluate"]
    for flags in played:
        evaluate.main([*flags.replace("runs/RUN", runs["sapg"]).split(), "--no-cuda", "--episodes", "2"])
    assert len(runs) == 3 and len(played) >= 5
    assert all(map(os.path.isfile, ("ant.mp4", "out.mp4", "policy.onnx", "policies/MyPolicy/policy.pt")))


def test_the_documents_commands_are_valid():
    """Every command is parsed as the script would; what is not installed here, or made by the reader, is left out."""
    text = documents()
    commands = re.findall(r"python (ppo|sapg|cpo|epo|evaluate)\.py([^`\n#]*)", text)
    assert ("epo", "--env-id AllegroKukaRegrasping --num-agents 64") in [(name, x.strip()) for name, x in commands]
    for script, flags in commands:
        flags = re.sub(r"--engine \w+", "", flags)  # which may not be here
        if script == "evaluate":
            evaluate.tyro.cli(evaluate.Args, args=flags.split())
        elif flags.strip() != "--help" and ":" not in flags and "--resume" not in flags:
            parse({"ppo": ppo, "sapg": sapg, "cpo": cpo, "epo": epo}[script], f"--no-cuda {flags}")
    for name in re.findall(r"(?:python|diff|pip install -r) ([\w/-]+\.\w+)", text):
        assert (ROOT / name).is_file() or name == "mine.py", name


def test_the_documents_torchrun_commands_are_valid(monkeypatch):
    """As above, with the number of processes that torchrun would start."""
    commands = re.findall(r"torchrun (--nproc[^`\n]*|--nnodes[^`\n]*)", documents())
    assert len(commands) >= 4
    for command in commands:
        options = torchrun.get_args_parser().parse_args(command.split())
        script = {"ppo.py": ppo, "sapg.py": sapg, "cpo.py": cpo, "epo.py": epo}[options.training_script]
        monkeypatch.setattr(distributed, "WORLD_SIZE", int(options.nnodes.split(":")[-1]) * int(options.nproc_per_node))
        argv = ["--no-cuda", "--num-envs", "24576", *options.training_script_args]
        args, _ = parse_flags(script.Args, tuned(script), getattr(script, "check_args", None), argv)
        assert args.num_envs == 24_576


@pytest.mark.slow
def test_the_main_job_begins_within_two_minutes():
    """64 agents, as README has it, until the first iteration has been printed."""
    flags = "--no-cuda --env-id AllegroKukaRegrasping --num-agents 64 --total-timesteps 1"
    result = run(epo, flags, timeout=120)
    first, second, progress = result.stdout.splitlines()
    assert first.startswith("no GPU: 1,024 environments") and "1,024 environments" in second
    assert PROGRESS.fullmatch(progress)


# ---------------------------------------------------------------- learning


def test_ppo_balances_the_pole():
    """A random policy's episodes return 2; four seeds ended between 489 and 491 of 500."""
    flags = "--no-cuda --env-id Cartpole --num-envs 128 --num-minibatches 2 --total-timesteps 120_000"
    ppo.main(f"{flags} --learning-rate 1e-3".split())
    returns = [event.value for event in written(the_run()).Scalars("charts/episodic_return")]
    assert returns[0] < 50.0
    assert sum(returns[-10:]) / 10 > 400.0
