"""The scripts as people run them: what they print, what they write, what they refuse; and that PPO learns."""

import importlib.util
import os
import pathlib
import re
import shutil
from dataclasses import fields

import pytest
import torch

import cpo
import envs
import epo
import evaluate
import export
import pbt
import ppo
import sapg
from harness import hyperparameters
from tests.conftest import TINY, documents, every_script, parse, scalars, the_run, tuned, written
from tests.scripts.conftest import ROOT, start, train

SCRIPTS = {"ppo": ppo, "sapg": sapg, "cpo": cpo, "epo": epo, "pbt": pbt}
POPULATION = {ppo: "", **dict.fromkeys((sapg, cpo, epo, pbt), "--num-agents 4")}
NUMBER = r"-?[\d.]+"
PROGRESS = re.compile(
    rf" *[\d,]+ steps \| (return +{NUMBER} \| objective +{NUMBER}( \(\d+ iterations? ago\))?"
    rf"|no episode of agent 0 yet, reward per step {NUMBER}"
    rf"|leader {NUMBER} \(\d+ (episodes?|iterations? ago)\)(, median {NUMBER})?, best {NUMBER})"
    r"( \| generation \d+)? \| [\d,]+/s \| (\d+ days?, )?\d+:\d\d:\d\d left"
)


def flag(name):
    return "--" + name.replace("_", "-")


# ---------------------------------------------------------------- runs


@every_script
def test_every_row_of_its_table_is_accepted(script):
    for env_id in envs.TASKS:
        args = parse(script, f"--no-cuda --env-id {env_id} --num-envs 8 --num-minibatches 4 {POPULATION[script]}")
        assert args.env_id == env_id and args.num_iterations > 0
        script.Agent(3, 2, args)


@every_script
def test_before_the_first_episode_ends_the_terminal_shows_the_reward_per_step(script, capsys):
    """Drift's episodes end within 7 steps; here an iteration is 2."""
    script.main(f"{TINY} {POPULATION[script]} --num-envs 4 --num-steps 2 --total-timesteps 135 --seed 3".split())
    lines = [line for line in capsys.readouterr().out.splitlines() if " steps " in line]
    assert len(lines) == 16 and all(map(PROGRESS.fullmatch, lines)) and max(map(len, lines)) <= 120
    shown = ["reward per step" in line for line in lines]
    assert shown[0] and not shown[-1] and shown == sorted(shown, reverse=True)  # then returns, for good
    ago = ["ago)" in line for line in lines[sum(shown) :]]
    assert not all(ago) and any(ago) == (script is not pbt)
    rewards = {event.step: event.value for event in scalars(the_run(), "charts/reward_per_step")}
    number = float(re.search(rf"reward per step ({NUMBER})", lines[0]).group(1))
    assert number == pytest.approx(rewards[8], abs=1e-4)


def documented(script):
    """The keys that docs/algorithms.md promises for a script."""
    rows = re.findall(r"^\| (`\w+/.*?) \| (.*) \|$", (ROOT / "docs" / "algorithms.md").read_text(), re.MULTILINE)
    others = {"CPO:": cpo, "EPO:": epo, "EPO,": epo, "PBT:": pbt, "PBT,": pbt}
    keys = [key for cell, meaning in rows if others.get(meaning[:4], script) is script for key in cell.split(", ")]
    keys += [f"pbt/{name}_{end}" for name in pbt.MUTATED for end in ("min", "max") if script is pbt]  # "likewise"
    not_its_own = {ppo: "`population", pbt: "`population/(?!objective)"}.get(script, "none")  # of shared networks
    return {key.strip("`") for key in keys if not re.match(not_its_own, key)}


@pytest.mark.parametrize("script, flags", [
    (ppo, ""), (sapg, ""), (cpo, "--adversarial-coef 0.1 --discriminator-sizes 8"),
    (epo, "--ga-interval 0.1 --ga-warmup 0.1"), (pbt, "--pbt-start 1 --pbt-interval 1"),
], ids=list(SCRIPTS))  # fmt: skip
def test_what_is_logged_is_what_the_documents_say(script, flags, capsys):
    flags += " --no-cuda --env-id Moat --num-envs 64 --num-steps 32 --hidden-sizes 16 --total-timesteps 40960"
    if script not in (ppo, pbt):
        flags += " --diagnostics-interval 4"
    script.main(f"{flags} {POPULATION[script]}".split())
    events, steps = written(the_run()), [64 * 32 * i for i in range(1, 21)]
    tags = {name.replace("/text_summary", "") for group in ("scalars", "images", "histograms", "tensors")
            for name in events.Tags()[group]}  # fmt: skip
    *_, line, _ = capsys.readouterr().out.splitlines()
    keys = {"return": "charts/leader_return", "leader": "charts/leader_objective",
            "median": "population/objective_median", "best": "charts/best_agent_objective"}  # fmt: skip
    words = {ppo: ["return"], pbt: ["median", "best"]}.get(script, ["leader", "median", "best"])
    shown = [float(re.search(rf"{word} +({NUMBER})", line)[1]) for word in words]
    assert shown == pytest.approx([events.Scalars(keys[word])[-1].value for word in words], abs=0.006)
    assert line.endswith(" 0:00:00 left")
    assert tags - {"hyperparameters"} <= documented(script)
    assert documented(script) - tags <= {"evolution/heritability"}  # once three children differ
    for key in events.Tags()["scalars"]:
        logged = [event.step for event in events.Scalars(key)]
        if len(logged) == 5:  # of the diagnostics
            assert logged == steps[3::4], key
        elif "evolution/" not in key:  # once fitness is known
            # after five iterations whole episodes, of 128 steps, have ended in each agent's environments
            assert set(steps[5:]) <= set(logged) <= set(steps), key
    (hyperparameters,) = events.Tensors("hyperparameters/text_summary")
    table = hyperparameters.tensor_proto.string_val[0].decode()
    assert "|env_id|Moat|" in table and "|num_envs|64|" in table and "|num_steps|32|" in table
    if script is epo:
        lineage = events.Tensors("evolution/lineage/text_summary")
        assert sum(event.value for event in events.Scalars("evolution/fired")) == len(lineage) > 0
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
    plain = re.sub(r"[^\w:().]+", " ", text)  # without frame and line breaks
    assert "(default: 8)" in plain[plain.index("update epochs") :][:300]
    assert not list(pathlib.Path().iterdir())


@every_script
@pytest.mark.parametrize("env_id", hyperparameters.CPU)
def test_without_a_gpu_the_output_says_how_to_get_the_tuned_settings_back(script, env_id, capsys):
    flags, sixfold = f"--no-cuda --env-id {env_id}", 2_046 if "Held" in env_id else 1_020
    args, out = parse(script, flags), " ".join(capsys.readouterr().out.split())
    assert (args.num_envs - args.num_envs % 6, tuple(args.hidden_sizes), args.lstm) == (sixfold, (256, 128, 64), False)
    restored = parse(script, f"{flags} {out.split('sized for a CPU; for a GPU: ')[1]}")
    for name, value in tuned(script)[env_id].items():
        blocks = getattr(args, "num_agents", 1)
        assert getattr(restored, name) == (value - value % blocks if name == "num_envs" else value), name
    assert "sized for a CPU" not in capsys.readouterr().out


@every_script
def test_the_resolved_flags_are_printed_and_give_the_same_run(script, capsys):
    args = parse(script, "--no-cuda --env-id AllegroKukaThrow --num-steps 4 --hidden-sizes 8 9 --separate-critic")
    words = capsys.readouterr().out.split("sized for")[0].split()
    assert words[:3] == [f"{script.__name__}.py", "--env-id", "AllegroKukaThrow"]
    assert {"--num-steps", "--separate-critic", "--no-cuda"} <= set(words) and "--gamma" not in words
    assert parse(script, " ".join(words[1:])) == args


@pytest.mark.parametrize("flags, name, value", [("--lstm", "lstm", True), ("--num-envs 2048", "num_envs", 2_048)])
def test_any_flag_given_wins_over_the_defaults_without_a_gpu(flags, name, value):
    plain = vars(parse(epo, "--no-cuda --env-id AllegroKukaRegrasping"))
    args = vars(parse(epo, f"--no-cuda --env-id AllegroKukaRegrasping {flags}"))
    assert args[name] == value != plain[name]
    assert {key for key in args if args[key] != plain[key]} <= {name, "num_iterations"}


@every_script
def test_with_a_gpu_the_papers_row_stands(script, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.set_device", lambda device: None)
    args = parse(script, "--env-id AllegroKukaRegrasping --engine mujoco")
    assert all(getattr(args, name) == value for name, value in tuned(script)["AllegroKukaRegrasping"].items())
    assert args.device == "cuda:0"
    with pytest.raises(SystemExit):
        parse(script, "--env-id AllegroKukaRegrasping --engine mujoco --bf16")
    assert capsys.readouterr().err.startswith("--bf16 True: must be off with --lstm")


# ---------------------------------------------------------------- bad input


MOAT_64 = "--env-id Moat --num-envs 64"
RATIO = "--num-agents 4 --aggregation leader-follower --off-policy-ratio"


@pytest.mark.parametrize("script, flags, name, valid", [  # name: flag and value
    (ppo, "--env-id Moot", "--env-id Moot", "did you mean Moat"),
    (ppo, "--env-id nowhere:Task", "--env-id nowhere:Task", "no module named nowhere; must be in the working"),
    (ppo, "--env-id envs.tasks.moat:Goat", "--env-id envs.tasks.moat:Goat", "must be package.module:Class"),
    (ppo, "--env-id Cartpole --engine isaacgym", "--engine isaacgym", r"needs Python 3\.8, this is 3\."),
    (ppo, "--env-id Cartpole --engine physx", "--engine physx", "valid here: auto, mujoco"),
    (ppo, "--env-id Moat --engine mujoco", "--engine mujoco", "must be auto, this task steps itself"),
    (ppo, "--env-id Moat --num-envs 0", "--num-envs 0", "above 0"),
    (ppo, f"{MOAT_64} --num-minibatches 65", "--num-minibatches 65", "at most the environments"),
    (ppo, f"{MOAT_64} --learning-rate nan", "--learning-rate nan", "at least 0"),
    (sapg, f"{MOAT_64} --num-agents 5", "--num-envs 64", "must be a multiple of 5"),
    (sapg, f"{MOAT_64} --num-agents 0", "--num-agents 0", "above 0"),
    (sapg, f"{MOAT_64} {RATIO} 3.5", "--off-policy-ratio 3.5", r"at most 3\b"),
    (cpo, f"{MOAT_64} {RATIO} 3.5", "--off-policy-ratio 3.5", r"at most 3\b"),
    (cpo, f"{MOAT_64} --num-agents 4 --off-policy-ratio 2", "--off-policy-ratio 2.0", r"at most 1\b"),
    (cpo, f"{MOAT_64} --num-agents 4 --awac-temperature 0", "--awac-temperature 0.0", "above 0"),
    (epo, f"{MOAT_64} {RATIO} 3.5", "--off-policy-ratio 3.5", r"at most 3\b"),
    (epo, f"{MOAT_64} --num-agents 2", "--num-agents 2", "at least 4"),
    (epo, f"{MOAT_64} --num-agents 8 --num-elites 1", "--num-elites 1", "between 2 and 6"),
    (epo, f"{MOAT_64} --num-agents 8 --num-elites 7", "--num-elites 7", "between 2 and 6"),
    (pbt, f"{MOAT_64} --num-agents 8 --num-minibatches 9", "--num-minibatches 9", "at most 8, an agent's environments"),
    (ppo, f"{MOAT_64} --lstm --bf16", "--bf16 True", "off with --lstm.* needs AVX-512"),
], ids=lambda x: x.__name__ if hasattr(x, "__name__") else None)  # fmt: skip
def test_bad_input_is_one_line_before_anything_is_created(script, flags, name, valid, capsys, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert train(script, f"--no-cuda {flags}") == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith(f"{name}: ") and re.search(valid, line), line
    assert script is pbt or captured.out == ""  # pbt.py has made its environments by then
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
    process = start(ppo, flags)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and f"{env_id}: engine {engine}, cpu, " in out, err
    *_, last, farewell = out.splitlines()
    assert PROGRESS.fullmatch(last) and "return" in last and farewell.startswith("finished: python evaluate.py ")
    assert re.fullmatch(rf"{module}-{name}__ppo__1__\d+", the_run().name)


def test_the_documents_commands_run(monkeypatch):
    """Training made small, of what is installed here; then what can be done with a run, on those of epo and sapg."""
    small = "--no-cuda --num-envs 192 --num-steps 2 --num-minibatches 1 --update-epochs 1 --hidden-sizes 8"
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
    assert len(runs) == 3 and len(played) >= 4 and "export" in played
    for name in re.findall(r"(?:python|diff|pip install -r) ([\w/-]+\.\w+)", documents()):
        assert (ROOT / name).is_file() or name == "mine.py", name


# ---------------------------------------------------------------- learning


def test_ppo_balances_the_pole():
    """A random policy's episodes return 2; four seeds ended between 489 and 491 of 500."""
    flags = "--no-cuda --env-id Cartpole --num-envs 128 --num-minibatches 2 --total-timesteps 120_000"
    ppo.main(f"{flags} --learning-rate 1e-3".split())
    returns = [event.value for event in scalars(the_run(), "charts/episodic_return")]
    assert returns[0] < 50.0
    assert sum(returns[-10:]) / 10 > 400.0
