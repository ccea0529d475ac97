"""The scripts as people run them: what they print, what they write, what they refuse; and that PPO learns."""

import importlib.util
import math
import os
import pathlib
import re
import shutil
import sys
import time
from dataclasses import MISSING, dataclass, fields, make_dataclass
from typing import Literal

import mujoco
import pytest
import torch

import cpo
import envs
import epo
import evaluate
import export
import harness
import pbt
import ppo
import sapg
import view
from envs.base import VectorEnv
from envs.engines import make_engine
from harness import hyperparameters
from harness.help import spell_values
from harness.log import Log
from tests.conftest import TINY, Drift, documents, every_script, parse, scalars, the_run, tuned, written
from tests.scripts.conftest import ROOT, checkpoint, refused, start, train

SCRIPTS = {"ppo": ppo, "sapg": sapg, "cpo": cpo, "epo": epo, "pbt": pbt}
POPULATION = {ppo: "", **dict.fromkeys((sapg, cpo, epo, pbt), "--num-agents 4")}


def lines_of(out):
    """The terminal's lines of iterations, and what they say between the steps and the speed."""
    lines = [line for line in out.splitlines() if " steps | " in line]
    for line in lines:
        assert "nan" not in line
    return [line.split(" steps | ")[1].rsplit(" | ", 2)[0] for line in lines]


def flag(name):
    return "--" + name.replace("_", "-")


# ---------------------------------------------------------------- runs


@every_script
def test_every_row_of_its_table_is_accepted(script):
    for env_id in envs.TASKS:
        args = parse(script, f"--no-cuda --env-id {env_id} --num-envs 8 --num-minibatches 4 {POPULATION[script]}")
        assert args.env_id == env_id
        assert args.num_iterations > 0
        script.Agent(3, 2, args)


@pytest.mark.parametrize("script", POPULATION, ids=lambda script: script.__name__)
def test_before_the_first_episode_ends_the_terminal_shows_the_reward_per_step(script, capsys):
    """Drift's episodes end within 7 steps; here an iteration is 2."""
    script.main(f"{TINY} {POPULATION[script]} --num-envs 8 --num-steps 2 --total-timesteps 256 --seed 3".split())
    lines = lines_of(capsys.readouterr().out)
    assert len(lines) == 16
    rewards = scalars(the_run(), "charts/reward_per_step")
    assert f"{rewards[0].value:.3g}" in lines[0]
    waiting = ["no episode" in line for line in lines]
    assert waiting[0]
    assert not waiting[-1]
    assert waiting == sorted(waiting, reverse=True)  # then results, for good
    if script is pbt:
        assert not any("leader" in line for line in lines)


def test_epos_line_says_what_a_generation_waits_for(capsys):
    """The gap and the threshold of Eq. 3, while no generation comes."""
    epo.main(f"{TINY} --num-agents 4 --ga-threshold 1e6 --ga-warmup 0 --total-timesteps 1728".split())
    line = lines_of(capsys.readouterr().out)[-1]
    gap, threshold = (scalars(the_run(), f"evolution/{key}")[-1].value for key in ("fitness_gap", "threshold"))
    assert "gen 0" in line
    assert f"{gap:.2g}" in line
    assert f"{threshold:.2g}" in line


@pytest.fixture
def epos_line(tmp_path, capsys):
    """epos_line(gap): what EPO's terminal shows after an iteration that took an hour."""
    agents = {"charts/leader_objective": 1234.56, "charts/leader_age": 12, "population/objective_median": 1234.56}

    def write(gap):
        log = Log(str(tmp_path), parse(epo, "--no-cuda --env-id Moat --num-agents 64 --total-timesteps 100_000_000"), 0)
        log.clock = [(time.monotonic() - 3600, 0)]
        generation = {"evolution/generation": 123, "evolution/fitness_gap": gap, "evolution/threshold": 12.3}
        numbers = {"charts/reward_per_step": -12.3456, "charts/learning_rate": 3e-4, **agents, **generation}
        capsys.readouterr()
        log.write(45_678_912, {**numbers, "evolution/judged_share": 0.8, "evolution/judged_share_min": 0.4}, {})
        log.close()
        return capsys.readouterr().out.rstrip()

    return write


@pytest.fixture
def log_of_epo(tmp_path, capsys):
    """write(iterations, name=number): so many iterations with these numbers. Returns the lines of standard error."""
    log = Log(str(tmp_path), parse(epo, "--no-cuda --env-id Moat --num-agents 64"), 0)
    numbers = {
        "charts/leader_objective": 1.0,
        "charts/reward_per_step": 1.0,
        "charts/learning_rate": 3e-4,
        "population/objective_median": 1.0,
        "evolution/generation": 0,
        "evolution/fitness_gap": 0.1,
        "evolution/threshold": 0.3,
        "evolution/judged_share": 0.8,
        "evolution/judged_share_min": 0.4,
    }

    def write(iterations, others=(), **changed):
        numbers.update({key.replace("__", "/"): value for key, value in changed.items()})
        for _ in range(iterations):
            log.write(log.clock[-1][1] + 1, numbers, dict(others))
        return capsys.readouterr().err.splitlines()

    yield write
    log.close()


def test_one_line_says_that_the_learning_rate_is_stuck_at_its_minimum(log_of_epo):
    assert log_of_epo(99, charts__learning_rate=1e-6) == []
    assert log_of_epo(1, charts__learning_rate=2e-6) == []
    assert log_of_epo(99, charts__learning_rate=1e-6) == []
    (line,) = log_of_epo(200)
    assert "100 iterations" in line
    assert "--kl-threshold" in line


def test_one_line_says_why_no_generation_comes(log_of_epo):
    (line,) = log_of_epo(600)
    assert "500 iterations" in line
    assert "0.3" in line
    log_of_epo(1, evolution__fitness_gap=1.0)
    assert log_of_epo(499, evolution__fitness_gap=math.nan) == []
    (line,) = log_of_epo(1)
    assert "80%" in line
    assert "40%" in line


def test_no_line_complains_of_the_first_generations_warm_up(log_of_epo):
    assert log_of_epo(600, evolution__fitness_gap=1.0) == []


def test_one_line_says_that_pbt_cannot_judge_an_agent(log_of_epo):
    log_of_epo(1, evolution__fitness_gap=1.0)
    assert log_of_epo(499, pbt__judged_share=0.8, pbt__judged_share_min=0.7) == []
    (line,) = log_of_epo(1)
    assert "80%" in line
    assert "70%" in line


def test_no_line_complains_where_pbt_copies(log_of_epo):
    log_of_epo(1, evolution__fitness_gap=1.0)
    for _ in range(3):
        assert log_of_epo(300, pbt__judged_share=0.8, pbt__judged_share_min=0.1) == []
        log_of_epo(1, others={"pbt/copies": "1 <- 2"})


@pytest.mark.parametrize("gap", [0.123, math.nan])
def test_a_line_has_at_most_120_columns(epos_line, gap):
    assert len(epos_line(gap)) <= 120


def test_epos_line_says_that_the_followers_are_not_judged_yet(epos_line):
    assert "nan" not in epos_line(math.nan)
    assert "judged" in epos_line(math.nan)


def test_the_speed_is_known_where_iterations_take_long(epos_line):
    assert re.search(r"\b12,68\d/s", epos_line(0.123))


def documented(script):
    """The keys that docs/algorithms.md promises for a script."""
    rows = re.findall(r"^\| (`\w+/.*?) \| (.*) \|$", (ROOT / "docs" / "algorithms.md").read_text(), re.MULTILINE)
    others = {"CPO:": cpo, "EPO:": epo, "EPO,": epo, "PBT:": pbt, "PBT,": pbt}
    keys = [key for cell, meaning in rows if others.get(meaning[:4], script) is script for key in cell.split(", ")]
    keys += [f"pbt/{name}_{end}" for name in pbt.MUTATED for end in ("min", "max") if script is pbt]  # "likewise"
    not_its_own = {ppo: "`population", pbt: "`population/(?!objective)"}.get(script, "none")  # of shared networks
    return {key.strip("`") for key in keys if not re.match(not_its_own, key)}


@pytest.mark.parametrize(
    "script, flags",
    [
        (ppo, ""),
        (sapg, ""),
        (cpo, "--adversarial-coef 0.1 --discriminator-sizes 8"),
        (epo, "--ga-interval 0.1 --ga-warmup 0.1"),
        (pbt, "--pbt-start 1 --pbt-interval 1"),
    ],
    ids=list(SCRIPTS),
)
def test_what_is_logged_is_what_the_documents_say(script, flags, capsys):
    flags += " --no-cuda --env-id Moat --num-envs 64 --num-steps 32 --hidden-sizes 16 --total-timesteps 40960"
    if script not in (ppo, pbt):
        flags += " --diagnostics-interval 4"
    script.main(f"{flags} {POPULATION[script]}".split())
    events = written(the_run())
    steps = [64 * 32 * i for i in range(1, 21)]
    groups = [events.Tags()[group] for group in ("scalars", "images", "histograms", "tensors")]
    tags = {name.replace("/text_summary", "") for names in groups for name in names}
    line = lines_of(capsys.readouterr().out)[-1]
    keys = {ppo: ["charts/leader_return", "charts/leader_objective"], pbt: ["population/objective_median"]}
    for key in keys.get(script, ["charts/leader_objective", "population/objective_median"]):
        form = ".2f" if script is ppo else ".4g"
        assert f"{events.Scalars(key)[-1].value:{form}}" in line
    assert tags - {"hyperparameters"} <= documented(script)
    assert documented(script) - tags <= {"evolution/heritability"}  # once three children differ
    for key in events.Tags()["scalars"]:
        logged = [event.step for event in events.Scalars(key)]
        if len(logged) == 5:  # of the diagnostics
            assert logged == steps[3::4], key
        elif "evolution/" not in key:  # once fitness is known
            # after five iterations whole episodes, of 128 steps, have ended in each agent's environments
            assert set(steps[5:]) <= set(logged), key
            assert set(logged) <= set(steps), key
    (hyperparameters,) = events.Tensors("hyperparameters/text_summary")
    table = hyperparameters.tensor_proto.string_val[0].decode()
    for row in ("|env_id|Moat|", "|num_envs|64|", "|num_steps|32|"):
        assert row in table
    if script is epo:
        lineage = events.Tensors("evolution/lineage/text_summary")
        assert len(lineage) > 0
        assert sum(event.value for event in events.Scalars("evolution/fired")) == len(lineage)
        for i, event in enumerate(lineage, 1):
            text = event.tensor_proto.string_val[0].decode()
            assert re.fullmatch(rf"{i}: [1-3] <- [1-3], [1-3]; fitness( [-.e\d]+){{4}}", text)


# ---------------------------------------------------------------- help and defaults


@every_script
def test_help_lists_every_flag_and_the_tasks_defaults(script, capsys):
    assert train(script, "--env-id Cartpole --help") == 0
    text = capsys.readouterr().out
    for f in fields(script.Args):
        assert bool(re.search(rf"{flag(f.name)}\b", text)) == f.init, f.name
    plain = " ".join(text.split())
    epochs = plain[plain.index("--update-epochs") :]
    assert re.search(r"\(default: (.*?)\)", epochs).group(1) == "8"
    sizes = plain[plain.index("--hidden-sizes") :]
    assert re.search(r"\(default: (.*?)\)", sizes).group(1) == "32 32"
    assert not list(pathlib.Path().iterdir())


def test_help_has_the_groups_of_the_source(capsys):
    assert train(epo, "--help") == 0
    blocks = capsys.readouterr().out.split("\n\n")
    groups = {block.split("\n")[0]: re.findall(r"^  (--[\w-]+)", block, re.MULTILINE) for block in blocks}
    assert [name for name, found in groups.items() if found] == ["Experiment", "PPO", "SAPG", "EPO"]
    assert groups["SAPG"][0] == "--num-agents"
    own = {flag(f.name) for f in fields(epo.Args) if f.init} - {flag(f.name) for f in fields(sapg.Args)}
    assert set(groups["EPO"]) == own


@pytest.mark.parametrize("program", [evaluate, export, view], ids=lambda program: program.__name__)
def test_help_of_a_program_lists_every_argument_and_its_default(program, capsys):
    assert train(program, "--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    for f in fields(program.Args):
        if f.default is MISSING:
            assert f" {f.name.upper()} " in text
        else:
            described = text[text.index(f" {flag(f.name)}") :]
            shown = re.search(r"\(default: (.*?)\)", described).group(1)
            assert shown in (str(f.default), flag(f.name), flag(f"no_{f.name}"), "unset", "none")


@pytest.mark.parametrize("program", [epo, evaluate], ids=lambda program: program.__name__)
def test_help_into_a_pipe_that_is_closed(program):
    process = start(program, "--help")
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 0


def test_help_knows_todays_spelling_of_types():
    assert spell_values(int | None) == "INT"
    assert spell_values(Literal[1, 2]) == "{1,2}"


def test_a_default_that_is_rounded_down_says_why(capsys):
    assert parse(epo, "--no-cuda --env-id Moat --num-agents 48").num_envs == 3_072
    assert "3,072" not in capsys.readouterr().out
    assert parse(epo, "--no-cuda --env-id Moat --num-agents 50").num_envs == 3_050
    numbers = [re.findall(r"[\d,]*\d", line) for line in capsys.readouterr().out.splitlines()]
    assert ["3,050", "3,072", "50"] in numbers


class UnknownEnd(Drift):
    """The observation that ends a terminated episode is NaN; no value of it is ever needed."""

    ends = 0

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        UnknownEnd.ends += int(terminated.sum())
        final_obs = torch.where(terminated[:, None], float("nan"), info["final_obs"])
        return obs, reward, terminated, truncated, {**info, "final_obs": final_obs}


@pytest.mark.parametrize("script", POPULATION, ids=lambda script: script.__name__)
def test_the_observation_at_a_termination_may_be_nan(script):
    UnknownEnd.ends = 0
    script.main(f"{TINY} {POPULATION[script]} --env-id {__name__}:UnknownEnd".split())
    assert UnknownEnd.ends > 10
    agent = checkpoint(the_run())["learner"]["agent"]
    assert all(value.isfinite().all() for value in agent.values())


@every_script
@pytest.mark.parametrize("env_id", hyperparameters.CPU)
def test_without_a_gpu_the_output_says_how_to_get_the_tuned_settings_back(script, env_id, capsys):
    flags = f"--no-cuda --env-id {env_id}"
    num_envs = hyperparameters.CPU[env_id]["num_envs"]
    args = parse(script, flags)
    out = " ".join(capsys.readouterr().out.split())
    assert args.num_envs - args.num_envs % 6 == num_envs - num_envs % 6
    assert args.hidden_sizes == (256, 128, 64)
    assert not args.lstm
    restored = parse(script, f"{flags} {out.split('sized for a CPU; for a GPU: ')[1]}")
    for name, value in tuned(script)[env_id].items():
        blocks = getattr(args, "num_agents", 1)
        assert getattr(restored, name) == (value - value % blocks if name == "num_envs" else value), name
    assert "sized for a CPU" not in capsys.readouterr().out


@every_script
def test_the_resolved_flags_are_printed_and_give_the_same_run(script, capsys):
    args = parse(script, "--no-cuda --env-id AllegroKukaThrow --num-steps 4 --hidden-sizes 8 9 --separate-critic")
    words = re.match(r".*(\n    .*)*", capsys.readouterr().out).group().split()  # a line, with those that continue it
    assert words[:3] == [f"{script.__name__}.py", "--env-id", "AllegroKukaThrow"]
    assert {"--num-steps", "--separate-critic", "--no-cuda"} <= set(words)
    assert "--gamma" not in words
    assert parse(script, " ".join(words[1:])) == args


@pytest.mark.parametrize("flags, name, value", [("--lstm", "lstm", True), ("--num-envs 2048", "num_envs", 2_048)])
def test_any_flag_given_wins_over_the_defaults_without_a_gpu(flags, name, value):
    plain = vars(parse(epo, "--no-cuda --env-id AllegroKukaRegrasping"))
    args = vars(parse(epo, f"--no-cuda --env-id AllegroKukaRegrasping {flags}"))
    assert args[name] == value
    assert plain[name] != value
    assert {key for key in args if args[key] != plain[key]} <= {name, "num_iterations"}


@every_script
def test_with_a_gpu_the_papers_row_stands(script, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.set_device", lambda device: None)
    args = parse(script, "--env-id AllegroKukaRegrasping --engine mujoco")
    row = tuned(script)["AllegroKukaRegrasping"]
    assert {name: getattr(args, name) for name in row} == row
    assert args.device == "cuda:0"
    with pytest.raises(SystemExit):
        parse(script, "--env-id AllegroKukaRegrasping --engine mujoco --bf16")
    assert capsys.readouterr().err.startswith("--bf16 True: ")
    monkeypatch.setattr("harness.distributed.LOCAL_RANK", 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(SystemExit):
        parse(script, "--env-id AllegroKukaRegrasping --engine mujoco")
    assert capsys.readouterr().err == "--nproc-per-node 2: must be at most 1, one per GPU\n"


@dataclass
class Fork(ppo.Args):
    """As in a copy of a script, with a flag of its own."""

    log_std_min: float = -5.0


def test_a_flag_of_a_copy_may_have_any_value():
    args, _ = harness.parse_args(Fork, {}, argv=["--no-cuda", "--env-id", "Moat"])
    assert args.log_std_min == -5.0
    args, _ = harness.parse_args(Fork, {}, argv=["--no-cuda", "--env-id", "Moat", "--log-std-min", "-3"])
    assert args.log_std_min == -3.0


def test_a_copy_may_lack_a_flag_for_which_the_task_has_a_value(capsys):
    kept = [(field.name, field.type, field) for field in fields(ppo.Args) if field.name != "update_epochs"]
    Shorter = make_dataclass("Args", kept, namespace={"__module__": "ppo"})
    args, _ = harness.parse_args(Shorter, hyperparameters.PPO, argv="--no-cuda --env-id AllegroKukaRegrasping".split())
    assert not hasattr(args, "update_epochs")
    assert "sized for a CPU; for a GPU: --num-envs 24576" in capsys.readouterr().out


@pytest.mark.parametrize("steps", [999_999_999, 1_999_999_999, 9_999_999_999])
def test_pbts_schedule_has_no_jump_in_the_length_of_the_run(steps):
    shorter, longer = (parse(pbt, f"--no-cuda --env-id Moat --total-timesteps {n}") for n in (steps, steps + 1_000_000))
    assert longer.pbt_start == pytest.approx(shorter.pbt_start, rel=0.01)
    assert longer.pbt_interval == pytest.approx(shorter.pbt_interval, rel=0.01)


# ---------------------------------------------------------------- bad input


MOAT_64 = "--env-id Moat --num-envs 64"
RATIO = "--num-agents 4 --aggregation leader-follower --off-policy-ratio"


@pytest.mark.parametrize(
    "script, flags, name, valid",
    [  # name: flag and value
        (ppo, "--env-id Moot", "--env-id Moot", "Moat"),
        (ppo, "--env-id nowhere:Task", "--env-id nowhere:Task", "nowhere"),
        (ppo, "--env-id ./moat:Moat", "--env-id ./moat:Moat", "package.module:Class"),
        (ppo, f"{MOAT_64} --track", "--track True", "pip install wandb"),
        (ppo, "--env-id envs.tasks.moat:Goat", "--env-id envs.tasks.moat:Goat", "package.module:Class"),
        (ppo, "--env-id gymnasium.core:Env", "--env-id gymnasium.core:Env", "gymnasium:gymnasium.core:ID"),
        (ppo, "--env-id Cartpole --engine isaacgym", "--engine isaacgym", "3.8"),
        (ppo, "--env-id Cartpole --engine physx", "--engine physx", "auto, mujoco"),
        (ppo, "--env-id Moat --engine mujoco", "--engine mujoco", "auto"),
        (ppo, "--env-id Moat --num-envs 0", "--num-envs 0", "above 0"),
        (ppo, f"{MOAT_64} --num-minibatches 65", "--num-minibatches 65", "environments"),
        (ppo, f"{MOAT_64} --learning-rate nan", "--learning-rate nan", "at least 0"),
        (ppo, f"{MOAT_64} --seed {2**32}", f"--seed {2**32}", "below 2^32"),
        (ppo, f"{MOAT_64} --hidden-sizes", "--hidden-sizes ", "at least 1"),
        (ppo, f"{MOAT_64} --hidden-sizes 64 0", "--hidden-sizes 64 0", "at least 1"),
        (cpo, f"{MOAT_64} --discriminator-sizes 0", "--discriminator-sizes 0", "at least 1"),
        (ppo, f"{MOAT_64} --lstm --lstm-size 0", "--lstm-size 0", "above 0"),
        (sapg, f"{MOAT_64} --num-agents 5", "--num-envs 64", "multiple of 5"),
        (sapg, f"{MOAT_64} --num-agents 0", "--num-agents 0", "above 0"),
        (sapg, f"{MOAT_64} {RATIO} 3.5", "--off-policy-ratio 3.5", "at most 3 "),
        (sapg, f"{MOAT_64} --num-agents 32 --off-policy-ratio 0.25", "--off-policy-ratio 0.25", "2 environments"),
        (cpo, f"{MOAT_64} {RATIO} 3.5", "--off-policy-ratio 3.5", "at most 3 "),
        (cpo, f"{MOAT_64} --num-agents 4 --off-policy-ratio 2", "--off-policy-ratio 2.0", "at most 1 "),
        (cpo, f"{MOAT_64} --num-agents 4 --awac-temperature 0", "--awac-temperature 0.0", "above 0"),
        (epo, f"{MOAT_64} {RATIO} 3.5", "--off-policy-ratio 3.5", "at most 3 "),
        (epo, f"{MOAT_64} --num-agents 2", "--num-agents 2", "at least 4"),
        (epo, f"{MOAT_64} --num-agents 8 --num-elites 1", "--num-elites 1", "2 and 6"),
        (epo, f"{MOAT_64} --num-agents 8 --num-elites 7", "--num-elites 7", "2 and 6"),
        (pbt, f"{MOAT_64} --num-agents 8 --num-minibatches 9", "--num-minibatches 9", "at most 8"),
        (ppo, f"{MOAT_64} --lstm --bf16", "--bf16 True", "AVX-512"),
    ],
    ids=lambda x: x.__name__ if hasattr(x, "__name__") else None,
)
def test_bad_input_is_one_line_before_anything_is_created(script, flags, name, valid, capsys, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert train(script, f"--no-cuda --total-timesteps 1 {flags}") == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith(f"{name}: ")
    assert valid in line
    assert captured.out == ""
    assert list(pathlib.Path().iterdir()) == []


def test_a_folders_name_that_is_too_long_is_refused(capsys):
    line = refused(ppo, f"{MOAT_64} --no-cuda --total-timesteps 1 --exp-name {'x' * 300}", capsys)
    assert line.startswith(f"--exp-name {'x' * 300}: ")


def test_a_working_directory_without_room_for_the_folder_of_runs_is_refused(capsys):
    pathlib.Path("runs").touch()
    line = refused(ppo, f"{MOAT_64} --no-cuda --total-timesteps 1", capsys)
    assert line.startswith(f"working directory {pathlib.Path.cwd()}: ")
    assert "runs/Moat__ppo__1__" in line


class Asleep(VectorEnv):
    """A ball that MuJoCo may let sleep."""

    num_obs = 7
    num_actions = 1
    max_episode_steps = 10

    def __init__(self, num_envs, device, seed, engine="mujoco"):
        super().__init__(num_envs, device, seed)

        def build():
            spec = mujoco.MjSpec()
            spec.option.enableflags = mujoco.mjtEnableBit.mjENBL_SLEEP
            ball = spec.worldbody.add_body()
            ball.add_freejoint()
            ball.add_geom(size=[0.1, 0, 0])
            return spec

        self.engine = make_engine(engine, [build], num_envs, 1, [], device)


class Passing(Asleep):
    """Passes the engine on."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


class Choosing(Asleep):
    """Leaves no choice of the engine."""

    def __init__(self, num_envs, device, seed):
        super().__init__(num_envs, device, seed)


@pytest.mark.parametrize("name, takes", [("Asleep", True), ("Passing", True), ("Choosing", False)])
def test_a_task_runs_on_an_engine_if_its_constructor_takes_one(name, takes):
    assert envs.needs_engine(f"{__name__}:{name}") == takes


def test_a_model_that_no_engine_can_restore_is_refused(capsys):
    line = refused(ppo, f"--env-id {__name__}:Asleep --no-cuda --num-envs 4 --num-minibatches 2", capsys)
    assert line.startswith(f"--env-id {__name__}:Asleep: ")
    assert "sleep" in line


# ---------------------------------------------------------------- what README and docs/ promise


@pytest.mark.parametrize(
    "env_id, better",
    [
        ("AllegroKukaRegrasping", "AllegroKukaRegraspingHeldStarts"),
        ("AllegroKukaThrow", "AllegroKukaThrowHeldStarts"),
    ],
)
def test_a_task_that_a_cpu_does_not_learn_says_what_to_train_instead(env_id, better, capsys):
    harness.make_env(parse(ppo, f"--no-cuda --env-id {env_id} --num-envs 4 --num-minibatches 1"))
    assert better in capsys.readouterr().out
    harness.make_env(parse(ppo, f"--no-cuda --env-id {better} --num-envs 4 --num-minibatches 1"))
    assert capsys.readouterr().out.splitlines()[-1].endswith("4 environments")  # nothing to add


def write_own_tasks():
    """Save the documents' custom tasks as they say. Returns their env ids."""
    text = documents()
    adapters = "|".join(envs.ADAPTERS)
    found = set()
    for source, name in re.findall(r"```python\n((?:(?!```).)*?class (\w+)\(VectorEnv\).*?)```", text, re.DOTALL):
        (env_id,) = set(re.findall(rf"--env-id (?!{adapters})(\w+:{name})\b", text))
        pathlib.Path(f"{env_id.split(':')[0]}.py").write_text(source)
        found.add(env_id)
    return found


@pytest.mark.parametrize("env_id, engine", [("reach:Reach", "torch"), ("swing:Pendulum", "mujoco")])
def test_the_documents_own_tasks_train(env_id, engine):
    assert env_id in write_own_tasks()
    module, name = env_id.split(":")
    flags = "--engine mujoco" if engine == "mujoco" else ""
    flags += f" --no-cuda --env-id {env_id} --num-envs 32 --num-steps 64 --total-timesteps 8192"
    process = start(ppo, flags)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert f"{env_id}: engine {engine}, cpu, " in out
    assert "return" in lines_of(out)[-1]
    assert "python -m evaluate " in out.splitlines()[-1]  # evaluate.py is in another folder
    assert re.fullmatch(rf"{module}-{name}__ppo__1__\d+", the_run().name)


def test_the_film_of_the_first_custom_task_shows_its_point():
    write_own_tasks()
    env = envs.make("reach:Reach", 1)
    env.reset()
    env.state[0, :2] = torch.tensor([1.0, -0.5])
    image = env.render(0)
    y, x = (image != 255).any(2).nonzero()
    assert image.shape == (200, 200, 3)
    assert (x.mean(), y.mean()) == (145.0, 77.0)


def test_the_documents_commands_run(monkeypatch):
    """Training made small, of what is installed here; then what can be done with a run, on those of epo and sapg."""
    small = "--no-cuda --num-envs 192 --num-steps 2 --num-minibatches 1 --update-epochs 1"
    write_own_tasks()
    shutil.copytree(ROOT / "policies" / "Ant", "policies/Ant")
    monkeypatch.setattr(envs.find_class("Ant"), "max_episode_steps", 10)  # without a GPU a picture takes 0.3 s
    commands = dict.fromkeys(re.findall(r"python (\w+)\.py ([^`\n#]*)", documents()))
    runs = {}
    for script, flags in commands:
        adapter = next((name for name in envs.ADAPTERS if f"{name}:" in flags), "torch")
        if script not in SCRIPTS or "--help" in flags or "--engine" in flags or not importlib.util.find_spec(adapter):
            continue
        if "--resume" in flags:
            flags = flags.replace("runs/RUN", runs[script]) + " --total-timesteps 768"
        else:
            flags += f" {small} --total-timesteps 384"
            if "--load" not in flags:  # a network that is loaded has the size it has
                flags += " --hidden-sizes 8"
        SCRIPTS[script].main(flags.split())
        runs[script] = str(max(pathlib.Path("runs").iterdir(), key=lambda folder: folder.stat().st_mtime_ns))
    for script, flags in commands:
        words = flags.replace("runs/RUN", runs["sapg"]).split()
        if script == "evaluate":
            evaluate.main([*words, "--no-cuda", "--episodes", "2"])
        elif script == "export":
            export.main(words)
            assert os.path.exists(words[1])
    played = [script for script, _ in commands if script in ("evaluate", "export")]
    assert {"ppo", "sapg", "epo"} <= runs.keys()
    assert set(played) == {"evaluate", "export"}
    assert len(played) >= 4
    for name in re.findall(r"(?:python|diff|pip install -r) ([\w/-]+\.\w+)", documents()):
        assert (ROOT / name).is_file() or name == "mine.py", name


# ---------------------------------------------------------------- learning


def test_ppo_balances_the_pole():
    """A random policy's episodes return 2; four seeds ended between 477 and 495 of 500."""
    flags = "--no-cuda --env-id Cartpole --num-envs 128 --num-minibatches 2 --total-timesteps 200_000"
    ppo.main(f"{flags} --learning-rate 1e-3".split())
    returns = [event.value for event in scalars(the_run(), "charts/episodic_return")]
    assert returns[0] < 50.0
    assert sum(returns[-10:]) / 10 > 400.0
