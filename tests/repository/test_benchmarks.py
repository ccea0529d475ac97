"""benchmarks/: the pages' tables are what the csv files say, commands can be typed, and run.py loses no run."""

import importlib
import math
import os
import pathlib
import re
import shlex
import signal
import sys
import threading
import time
import types

import matplotlib
import mujoco
import numpy as np
import pytest
import torch
import tyro
from torch.utils.tensorboard import SummaryWriter

import epo
import evaluate
import harness
from benchmarks.scripts import collect, experiments, first_agents, gpu, off_policy_ablations, parkour, plot, run
from benchmarks.scripts import simulated_generations, summarize
from benchmarks.scripts.experiments import experiment_names, read_experiment
from benchmarks.scripts.random_fitness import RandomFitnessGrasp, RandomFitnessMoat
from envs.models import parkour_terrain
from envs.tasks import a1_parkour
from tests.envs.helpers import started

BENCHMARKS = pathlib.Path(run.__file__).resolve().parents[1]
PAGES = sorted(BENCHMARKS.glob("*.md"))
CORE = min(os.sched_getaffinity(0))

# ---------------------------------------------------------------- pages and results


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_are_valid_and_a_table_below_one_is_its_output(page, capsys):
    text = page.read_text().replace("\\\n", "")
    for line, table in re.findall(r"^ {4}(python -m benchmarks.*)\n\n?((?:^\|.*\n)*)", text, re.MULTILINE):
        _, _, module, *flags = shlex.split(line, comments=True)
        assert (BENCHMARKS.parent / f"{module.replace('.', '/')}.py").exists()
        if module.endswith("run"):
            run.parse_args(flags)
        if module.endswith("summarize"):
            summarize.main(flags)
            printed = capsys.readouterr().out
            if table:
                assert table == printed, line


def test_scores_beside_published_ones_are_those_of_the_csv_files():
    row = r"\[\S+\]\(results/(\w+)\.csv\).*\| ([\d,]+) \(([\d,; ]+)\) \|"
    ((name, mean, seeds),) = re.findall(row, (BENCHMARKS / "learner.md").read_text())
    numbers = summarize.read_numbers(read_experiment(name))
    ((_, found),) = summarize.select_values(numbers, "charts/leader_return").items()
    assert seeds == "; ".join(f"{x:,.0f}" for x in found.values())
    assert mean == f"{np.mean([*found.values()]):,.0f}"


def test_pages_name_every_file_of_results():
    text = "".join(page.read_text() for page in PAGES)
    names = {str(path.relative_to(BENCHMARKS)) for path in (BENCHMARKS / "results").rglob("*.*")}
    assert names == set(re.findall(r"\]\((results/[^)]*)\)", text))


def table_rows(text, title):
    """The rows of a Markdown table, of which the first line begins with a title: lists of cells."""
    lines = text[text.index(f"| {title} |") :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_gpu_benchmark_fills_its_tables_on_a_cpu(capsys, monkeypatch):
    monkeypatch.setattr(gpu, "TASKS", ["Cartpole", "Ant"])
    monkeypatch.setattr(gpu, "POPULATION", ("epo.py", "--env-id", "Ant", "--num-agents", "4"))
    gpu.main(["--cpu"])
    text = capsys.readouterr().out
    assert f"mujoco {mujoco.__version__}" in text
    trainings = table_rows(text, "training")
    assert [row[0] for row in trainings] == ["`epo.py --env-id Ant --num-agents 4`", "`ppo.py --env-id Ant`"]
    for row in trainings:
        numbers = [float(cell.replace(",", "")) for cell in row[1:]]
        assert numbers[2] == gpu.TinySizes.iterations
        assert all(number > 0 for number in numbers[:7])
        assert numbers[8] == 0  # broken worlds
    speeds = table_rows(text, "task | environments")
    assert [row[0] for row in speeds] == ["`Cartpole`", "`Ant`"]
    assert all(float(row[2].replace(",", "")) > float(row[3].replace(",", "")) > 0 for row in speeds)
    differences = table_rows(text, "task | median of steps")
    assert len(differences) == 2
    assert all(float(row[2]) < 0.01 for row in differences)
    assert len(table_rows(text, "steps | return")) >= 2


def test_the_gpu_benchmark_goes_on_after_failures_and_begins_nothing_too_late(capsys, monkeypatch):
    monkeypatch.setattr(gpu, "TASKS", ["Cartpole", "Ant"])
    monkeypatch.setattr(gpu, "POPULATION", ("epo.py", "--env-id", "NoSuchTask"))
    gpu.print_trainings([gpu.POPULATION], 8, gpu.TinySizes, lambda: 60.0)
    text = capsys.readouterr().out
    assert "`epo.py --env-id NoSuchTask` FAILED: RuntimeError: " in text
    assert len([line for line in text.splitlines() if "NoSuchTask" in line]) == 1
    gpu.print_environments(8, gpu.TinySizes, lambda: 0.0)
    assert capsys.readouterr().out.count("no time left") == 2


def test_every_experiment_has_results_and_every_result_an_experiment():
    csv_files = {path.stem for path in (BENCHMARKS / "results").glob("*.csv") if "diversity" not in path.stem}
    assert csv_files == set(experiment_names())


@pytest.mark.parametrize("name", experiment_names())
def test_commands_have_valid_flags_and_results_are_theirs(name):
    experiment = read_experiment(name)
    for variant in experiment.variants:
        _, script, *flags = variant.command
        if script == "benchmarks/scripts/off_policy_ablations.py":
            script = f"{flags.pop(0)}.py"
            assert flags.pop(0) in off_policy_ablations.ABLATIONS
        tyro.cli(importlib.import_module(script[: -len(".py")]).Args, args=flags)  # exits where one is wrong
    seeds = {variant.name: set(variant.seeds) for variant in experiment.variants}
    assert len(seeds) == len(experiment.variants)
    found = {}
    for of_experiment, variant, seed, *_ in collect.read_csv(experiment):
        assert of_experiment == name
        if not variant.startswith("released"):  # recorded with the released code
            found.setdefault(variant, set()).add(int(seed))
    assert set(found) == set(seeds)
    for variant in found:
        assert found[variant] <= seeds[variant]


def test_probability_of_improvement_and_its_p_value():
    # of the six pairs (1, 2), (1, 0), (2, 2), (2, 0), (3, 2), (3, 0) four are larger and one is equal
    assert summarize.improvement([1, 2, 3], [2, 0]) == pytest.approx(4.5 / 6)
    assert summarize.rank_sum_p([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]) == 2 / 20  # of 20 ways to choose three
    assert summarize.rank_sum_p([1.0, 3.0, 2.0], [4.0, 2.5, 6.0]) == 4 / 20  # one pair is the other way round
    assert summarize.rank_sum_p([1.0, 1.0], [1.0, 1.0]) == 1.0
    assert summarize.rank_sum_p([1.0, 1.0, 2.0], [2.0, 3.0]) == 3 / 10  # 1 1 2 | 2 3 twice, and 2 2 3 | 1 1


@pytest.mark.parametrize("task", [RandomFitnessMoat, RandomFitnessGrasp])
def test_random_fitness_is_a_permutation_of_the_followers(task):
    env = task(96, "cpu", seed=0)
    env.reset()
    true = torch.linspace(0.0, 0.7, 96)
    for _ in range(2 * 128):
        if task is RandomFitnessMoat:
            env.position[:] = 0.0
            env.velocity[:] = 0.0
            env.position[:, 0] = true
        else:
            env.successes.copy_(true)
        told = env.step(torch.zeros(96, env.num_actions))[4]["episode"]["objective"]
    torch.testing.assert_close(told[:2], true[:2])  # the leader's are its own
    torch.testing.assert_close(told[2:].sort().values, true[2:])
    assert (told[2:] != true[2:]).any()
    assert (told[1::2] > told[::2]).all()  # whole blocks change places


def test_a_simulation_sees_that_children_are_judged_unfairly(monkeypatch):
    fair = simulated_generations.child_scores(simulated_generations.simulate(4_000, seed=0))
    assert len(fair) > 80
    assert abs(np.mean(fair)) < 4.0 * np.std(fair) / np.sqrt(len(fair))
    monkeypatch.setattr(harness.FitnessTracker, "restart", lambda tracker: None)  # the score of the replaced one counts
    unfair = simulated_generations.child_scores(simulated_generations.simulate(200, seed=0))
    assert np.mean(unfair) < -1.0


def test_a_simulation_computes_the_chance_of_eq_3():
    rng = np.random.default_rng(1)
    due = []
    for _ in range(400):
        fitness = torch.tensor(rng.geometric(0.5, (64, 384)) - 1.0).mean(1)  # mean score 1
        gap, scale = epo.fitness_spread(fitness, floor=1.0)
        due.append(gap > 0.3 * scale)
    assert simulated_generations.chance_of_generation(384, 1.0) == pytest.approx(np.mean(due), abs=0.1)
    assert simulated_generations.chance_of_generation(16, 1.0) == 1.0


# ---------------------------------------------------------------- run.py, collect.py, plot.py

EXPERIMENT = """
Can a tiny experiment be run?

It has two paragraphs.

seeds: 1-2
score: charts/leader_return
tags: losses/*
first above: -1000

# PPO, good
python ppo.py --env-id Moat --num-envs 96 --total-timesteps 60000 --no-cuda

# PPO, bad
python ppo.py --env-id Moat --num-envs 0 --no-cuda

# SAPG-6
seeds: 3
python sapg.py --env-id Moat --num-agents 6 --num-envs 96 --total-timesteps 1000000 --no-cuda
"""


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """The name of an experiment that lives in tmp_path."""
    monkeypatch.setattr(experiments, "EXPERIMENTS", tmp_path)
    monkeypatch.setattr(experiments, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(experiments, "RESULTS", tmp_path)
    (tmp_path / "tiny.txt").write_text(EXPERIMENT)
    return "tiny"


def run_tiny(*flags):
    run.main(["tiny", "--cores", str(CORE), *flags])


def test_an_experiment_is_read(tiny):
    experiment = read_experiment(tiny)
    assert experiment.score == "charts/leader_return"
    assert experiment.tags == ["losses/*"]
    assert experiment.final_share == 0.05
    assert experiment.first_above == -1000
    assert not experiment.evaluate
    assert [variant.seeds for variant in experiment.variants] == [[1, 2], [1, 2], [3]]
    assert [each.seed for each in experiments.find_runs(experiment)] == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("right, wrong", [("tags:", "tag:"), ("seeds: 3\n", "seed: 3\n"), ("python sapg", "sapg")])
def test_a_mistake_in_an_experiment_is_an_error(tiny, tmp_path, right, wrong):
    (tmp_path / "tiny.txt").write_text(EXPERIMENT.replace(right, wrong))
    with pytest.raises(ValueError):
        read_experiment(tiny)


def test_finished_runs_are_skipped_and_a_failed_one_does_not_end_the_others(tiny, tmp_path, capsys):
    with pytest.raises(SystemExit, match="tiny: PPO, bad, seed 1: status 2"):
        run_tiny("--seeds", "1", "--variants", "PPO, bad", "PPO, good")
    log = tmp_path / "runs/tiny/PPO_good/1/log.txt"
    first = log.read_text()
    run_tiny("--variants", "PPO, good")
    assert log.read_text() == first

    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    before = (tmp_path / "tiny.csv").read_text()
    collect.main(["tiny"])
    assert (tmp_path / "tiny.csv").read_text() == before  # rows of runs that are gone stay
    summarize.main(["tiny", "--value", "first_above"])
    assert "| PPO, good | 2 | 12,288 | 12,288 | |" in capsys.readouterr().out  # where the first episode ends

    folders = [str(path) for path in (tmp_path / "elsewhere").glob("tiny/*/*/runs/*")]
    plot.main(["tiny", *folders, f"--out={tmp_path / 'runs.png'}"])
    for name in ("tiny", "runs"):
        assert matplotlib.image.imread(tmp_path / f"{name}.png").std() > 0.01


def test_a_stopped_run_is_resumed_unless_its_flags_have_changed(tiny, tmp_path, capsys):
    (of_sapg,) = [each for each in experiments.find_runs(read_experiment(tiny)) if each.variant == "SAPG-6"]

    taken_twice = []

    def stop():
        while of_sapg.read_log().count(" steps | ") < 20:  # when the first episodes have ended
            time.sleep(0.1)
        taken_twice.append(run.start(of_sapg, CORE))
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(SystemExit) as stopped:
        run_tiny("--variants", "SAPG-6")
    assert taken_twice == [None]
    assert stopped.value.code == 128 + signal.SIGINT
    assert not of_sapg.is_finished()
    summarize.main(["tiny", "--unfinished"])
    assert "| SAPG-6 | 1 |" in capsys.readouterr().out

    run_tiny("--variants", "SAPG-6")
    assert of_sapg.is_finished()
    (folder,) = of_sapg.folder.glob("runs/*")
    steps, _ = collect.read_curves(folder, ["charts/reward_per_step"])["charts/reward_per_step"]
    assert steps.tolist() == list(range(96 * 16, 1_000_000, 96 * 16))  # every iteration once, in order

    (tmp_path / "tiny.txt").write_text(EXPERIMENT.replace("1000000", "2000000"))
    with pytest.raises(SystemExit, match="other flags"):
        run_tiny("--variants", "SAPG-6")


def test_the_rows_of_a_run(tiny):
    first, *_ = experiments.find_runs(read_experiment(tiny))
    folder = first.folder / "runs/Moat__ppo__1__1"
    writer = SummaryWriter(folder)
    for step, value in enumerate([0.0] * 50 + [8.0] * 10 + [4.0] * 40, 1):
        writer.add_scalar("charts/leader_return", value, 10 * step)
        writer.add_scalar("charts/learning_rate", 3e-4, 10 * step)
        writer.add_scalar("perf/rollout_s", 1.5, 10 * step)
        writer.add_scalar("perf/update_s", 0.5, 10 * step)
    writer.close()
    first.log.write_text("commit abc+: python ppo.py\ncommit abc+: python ppo.py\ncommit def: python ppo.py\n")
    rows = collect.read_run(read_experiment(tiny)._replace(first_above=7.5), first)
    assert rows[:4] == [
        ("seconds", "final", 200),
        ("commit", "final", "abc+ def"),
        ("charts/leader_return", "final", "4"),
        ("charts/leader_return", "first_above", 510),
    ]
    curve = rows[4:-1]
    assert len(curve) == collect.MAX_POINTS
    assert curve[0] == ("charts/leader_return", 15, "0")
    assert curve[-1] == ("charts/leader_return", 995, "4")
    assert rows[-1] == ("charts/learning_rate", "final", "0.0003")


def test_runs_share_a_line_if_they_differ_in_their_seeds_alone():
    names = ["Moat__ppo__1__100", "Moat__ppo__2__200", "Ant__a__b__1__300", "Ant__epo__1__400", "Ant__epo__1__500", "x"]
    paths = [pathlib.Path(name) for name in names]
    assert plot.group_runs(paths) == {
        "Moat": {"ppo (2 seeds)": paths[:2]},
        "Ant": {"a__b": [paths[2]], names[3]: [paths[3]], names[4]: [paths[4]]},
        "x": {"x": [paths[5]]},
    }


def test_without_matplotlib_plot_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit, match="pip install matplotlib"):
        importlib.reload(plot)


# ---------------------------------------------------------------- goals of A1Parkour


def test_values_are_sorted_by_kind_and_level():
    env = started("A1Parkour", 100)
    levels = env.level
    kinds = env.column % 5
    counts = parkour.by_kind_and_level(env, (10 * kinds + levels).float())
    assert counts.shape == (5, 10, 2)
    for kind in range(5):
        for level in range(10):
            assert counts[kind, level].tolist() == [10 * kind + level] * 2
    first, _, stones, *_, mean = parkour.format_levels(counts.mean(2), "{:.1f}").splitlines()
    assert first == "| level | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 | mean |"
    assert stones == "| stones | 0.0 | 1.0 | 2.0 | 3.0 | 4.0 | 5.0 | 6.0 | 7.0 | 8.0 | 9.0 | 4.5 |"
    assert mean.startswith("| mean | 20.0 | 21.0 |")


def drop(env, mask):
    """Put robots below the height at which an episode ends."""
    qpos = env.engine.qpos.clone()
    qpos[:, 2] = -1.0
    env.engine.set_state(mask, qpos, env.engine.qvel)


def test_only_first_episodes_count():
    """Each world's robot is dropped in a step of its own. What follows does not count."""
    env = started("A1Parkour", 3)
    last = torch.tensor([20, 60, 90])
    step = env.step
    steps = iter(range(100))
    rewards = []

    def until_last(action):
        k = next(steps)
        if k == 0:
            env.passed.copy_(torch.tensor([2, 7, 5]))
        drop(env, last == k)
        result = step(action)
        rewards.append(result[1])
        return result

    env.step = until_last
    episodes = parkour.play(env, types.SimpleNamespace(act=lambda obs: torch.zeros(3, 12)))
    assert episodes.goals.tolist() == [2.0, 7.0, 5.0]  # world 0 has passed none in its next episode
    assert episodes.played.sum(0).tolist() == [21, 61, 91]
    rewards = torch.stack(rewards)
    assert (rewards > 0.0).any()
    torch.testing.assert_close(0.02 * episodes.terms.sum(1).clamp(min=0.0), rewards)
    assert torch.equal(episodes.unrewarded, (rewards == 0.0) & episodes.played)
    unrewarded = [(rewards[: n + 1, i] == 0.0).float().mean().item() for i, n in enumerate(last.tolist())]
    assert parkour.shares(episodes, episodes.unrewarded).tolist() == pytest.approx(unrewarded)


def test_a_robot_stands_still_if_it_moves_less_than_10_cm_in_a_second():
    env = started("A1Parkour", 2)
    start = env.engine.qpos[:, 0].clone()
    step = env.step
    steps = iter(range(120))
    speed = torch.tensor([0.09, 0.11])  # m/s

    def glide(action):
        k = next(steps)
        result = step(action)
        qpos = env.engine.qpos.clone()
        qpos[:, 0] = start + 0.02 * (k + 1) * speed
        qpos[:, 1] = 0.0
        env.engine.set_state(torch.tensor([True, True]), qpos, env.engine.qvel)
        if k == 98:  # the next step is the episode's last one
            drop(env, torch.tensor([True, True]))
        return result

    env.step = glide
    episodes = parkour.play(env, types.SimpleNamespace(act=lambda obs: torch.zeros(2, 12)))
    assert episodes.played.sum(0).tolist() == [100, 100]
    assert episodes.still.sum(0).tolist() == [50, 0]  # nobody stands still in the first second


def test_other_courses_are_of_the_same_kind():
    for index in range(5):
        other = parkour.make_other_column(index)
        column = parkour_terrain.make_column(index)
        assert other.kind == column.kind
        assert not np.array_equal(other.goals, column.goals)


def test_terms_are_means_over_the_steps_of_a_mask():
    env = started("A1Parkour", 10)
    terms = torch.rand(4, 14, 10)
    mask = torch.rand(4, 10) < 0.5
    mask[0] = True
    episodes = parkour.Episodes(None, None, None, None, terms)
    means = parkour.mean_terms(env, episodes, mask)
    for kind in range(5):
        counted = [terms[t, :, i] for t in range(4) for i in (kind, kind + 5) if mask[t, i]]
        torch.testing.assert_close(means[:, kind], torch.stack(counted).mean(0))


def test_a_robot_at_half_a_metre_per_second_passes_the_goals_of_the_first_ten_metres(monkeypatch):
    monkeypatch.setattr(a1_parkour, "SPEED_RANGE", (0.5, 0.5))
    env = started("A1Parkour", 50)
    goals = parkour.play_at_commanded_speed(env, draws=2)
    for world, level in enumerate(env.level.tolist()):
        here = (18.0 * level + 1.0, 0.0)
        way = 0.0
        expected = 0
        for goal in parkour_terrain.make_column(world % 40).goals[level].tolist():
            way += math.dist(here, goal)
            expected += way <= 10.0 + 0.2
            here = goal
        assert goals[world].tolist() == [expected, expected]


# ---------------------------------------------------------------- the first agents of a population


@torch.no_grad()
def test_the_first_agents_act_as_in_their_population(tmp_path, capsys):
    population = BENCHMARKS.parent / "policies" / "AllegroKukaRegraspingHeldStartsEPO"
    first = tmp_path / "first_8.pt"
    first_agents.main([str(population), "8", str(first)])
    ids = torch.arange(8)
    outputs = []
    for path in (population, first):
        saved, script = evaluate.load(str(path))
        env = evaluate.make_env(saved, 8, 0, "mujoco", "cpu")
        player = evaluate.Player(evaluate.make_agent(saved, script, env, "cpu"), ids, deterministic=True)
        actions = player.act(torch.linspace(-1.0, 1.0, env.num_obs).repeat(8, 1))
        means = saved["rollout"][0]["episodes"]["means"]
        outputs.append((actions, env.tolerance, means[:, :8]))
    torch.testing.assert_close(outputs[1], outputs[0])
    assert evaluate.num_agents_of(saved) == means.shape[1] == 8
    assert (actions[1:] != actions[:-1]).any(1).all()  # of the same observation, so that each agent has its own

    with pytest.raises(SystemExit):
        first_agents.main([str(first), "9", str(first)])
    assert "9 agents: must be between 1 and 8" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        first_agents.main([str(BENCHMARKS.parent / "policies" / "Ant"), "1", str(first)])
    assert "a policy of ppo.py has no latents" in capsys.readouterr().err
