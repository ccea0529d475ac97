"""benchmarks/: the pages' tables are what the csv files say, these belong to experiments, and run.py loses no run."""

import pathlib
import re
import shlex
import textwrap

import matplotlib
import mujoco
import numpy as np
import pytest
import torch

from benchmarks.scripts import gpu, plot, run, summarize
from benchmarks.scripts.experiments import EXPERIMENTS, RUNNING_RETURN
from benchmarks.scripts.random_fitness import RandomFitnessGrasp, RandomFitnessMoat

BENCHMARKS = pathlib.Path(run.__file__).resolve().parents[1]
PAGES = sorted(BENCHMARKS.glob("*.md"))

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
            assert table in ("", capsys.readouterr().out), line


def test_scores_beside_published_ones_are_those_of_the_csv_files():
    row = r"\[\S+\]\(results/(\w+)\.csv\).*\| ([\d,]+) \(([\d,; ]+)\) \|"
    ((name, mean, seeds),) = re.findall(row, (BENCHMARKS / "learner.md").read_text())
    ((_, found),) = summarize.read_values(summarize.RESULTS / f"{name}.csv", RUNNING_RETURN).items()
    assert seeds == "; ".join(f"{x:,.0f}" for x in found.values()) and mean == f"{np.mean([*found.values()]):,.0f}"


def test_pages_name_every_file_of_results():
    text = "".join(page.read_text() for page in PAGES)
    names = {str(path.relative_to(BENCHMARKS)) for path in (BENCHMARKS / "results").rglob("*.*")}
    assert names == set(re.findall(r"\]\((results/[^)]*)\)", text))


def test_the_gpu_benchmark_fills_its_tables_on_a_cpu(capsys, monkeypatch):
    monkeypatch.setattr(gpu, "TASKS", ["Ant"])
    gpu.main(["--cpu"])
    title, differences, curve, speeds = (part for part in re.split(r"\n(?=[B`T])", capsys.readouterr().out))
    assert "### CPU" in title and f"mujoco {mujoco.__version__}" in title
    assert all(float(x) < 0.01 for x in re.findall(r"\d+e-\d+", differences)) and "| `Ant` |" in differences
    assert len(re.findall(r"^\| [\d,]+ \| -?[\d,]+ \|$", curve, re.MULTILINE)) >= 2
    rows = [line.split("|")[2:-1] for line in speeds.splitlines() if line.startswith("| `Ant`")]
    assert [row[1].strip() for row in rows] == ["engine", "environment", "training, MLP", "training, LSTM"]
    assert all(float(row[2].replace(",", "")) > 0 for row in rows)
    assert all(0 < int(row[3].strip(" %")) < 100 and float(row[4]) > 0 and row[6].strip() == "0" for row in rows[2:])
    gpu.print_speed("Ant", 8, 2, 2, {"MLP": []}, late=lambda: True)
    assert capsys.readouterr().out.count("no time left") == 2


def test_results_belong_to_experiments_and_experiments_have_results():
    paths = {path.stem: path for path in (BENCHMARKS / "results").glob("*.csv") if "diversity" not in path.stem}
    assert set(paths) == set(EXPERIMENTS)
    for name, experiment in EXPERIMENTS.items():
        table = {variant.name: set(variant.seeds or experiment.seeds) for variant in experiment.variants}
        assert len(table) == len(experiment.variants), name
        found = {}
        for row in summarize.read_rows(paths[name]):
            assert row["experiment"] == name
            if not row["variant"].startswith("released"):  # recorded with the released code
                found.setdefault(row["variant"].split(" (")[0], set()).add(row["seed"])  # without the label
        assert set(found) == set(table), name
        assert all(seeds <= table[variant] for variant, seeds in found.items()), name


def test_probability_of_improvement_and_its_p_value():
    # of the six pairs (1, 2), (1, 0), (2, 2), (2, 0), (3, 2), (3, 0) four are larger and one is equal
    assert summarize.improvement([1, 2, 3], [2, 0]) == pytest.approx(4.5 / 6)
    assert summarize.rank_sum_p([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]) == 2 / 20  # of 20 ways to choose three
    assert summarize.rank_sum_p([1.0, 3.0, 2.0], [4.0, 2.5, 6.0]) == 4 / 20  # one pair is the other way round
    assert summarize.rank_sum_p([1.0, 1.0], [1.0, 1.0]) == 1.0
    assert summarize.rank_sum_p([1.0, 1.0, 2.0], [2.0, 3.0]) == 3 / 10  # 1 1 2 | 2 3 twice, and 2 2 3 | 1 1


def test_the_summary_of_a_curve():
    steps, values = np.arange(1, 101) * 10, np.array([0.0] * 50 + [8.0] * 10 + [4.0] * 40)
    rows = dict(run.summarize_curve(steps, values, final_share=0.05, first_above=7.5))
    assert [rows.pop(key) for key in ("final", "best", "mean", "first_above")] == [4.0, 8.0, 2.4, 510]
    assert len(rows) == run.MAX_POINTS and (rows[15], rows[995]) == (0.0, 4.0)
    # 40 of the 60 episodes stay; then 50 of the 100, of mean 1.6; then 99 of mean 2.8; the latest 300 are more than 100
    means = run.running_return([60, 60, 50, 1, 300], [1.0, 2.0, 4.0, 101.5, 7.0])
    assert means == pytest.approx([1.0, 1.6, 2.8, (99 * 2.8 + 101.5) / 100, 7.0])


@pytest.mark.parametrize("task", [RandomFitnessMoat, RandomFitnessGrasp])
def test_random_fitness_is_a_permutation_of_the_followers(task):
    env = task(96, "cpu", seed=0)
    env.reset()
    true = torch.linspace(0.0, 0.7, 96)
    for _ in range(2 * 128):
        if task is RandomFitnessMoat:
            env.position[:], env.velocity[:] = 0.0, 0.0
            env.position[:, 0] = true
        else:
            env.successes.copy_(true)
        told = env.step(torch.zeros(96, env.num_actions))[4]["episode"]["objective"]
    torch.testing.assert_close(told[:2], true[:2])  # the leader's are its own
    torch.testing.assert_close(told[2:].sort().values, true[2:])
    assert (told[2:] != true[2:]).any() and (told[1::2] > told[::2]).all()  # whole blocks change places


# ---------------------------------------------------------------- run.py, plot.py

SCRIPT = """
    import argparse, pathlib, sys, time
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    parser = argparse.ArgumentParser()
    [parser.add_argument(f"--{flag}") for flag in ("seed", "resume", "kind")]
    args, _ = parser.parse_known_args()
    if args.kind == "bad": sys.exit("it broke")
    folder = pathlib.Path(args.resume or f"runs/fake__{args.seed}")
    first = int((folder / "checkpoint.pt").read_text()) + 1 if args.resume else 1
    last = 50 if args.kind == "stopped" and not args.resume else 100
    writer = EventFileWriter(str(folder))
    for iteration in range(first, last + 1):
        value = Summary.Value(tag="charts/leader_return", simple_value=iteration * int(args.seed))
        writer.add_event(Event(step=iteration, wall_time=time.time(), summary=Summary(value=[value])))
    (folder / "checkpoint.pt").write_text(str(last))
    writer.close()
    time.sleep(args.kind == "stopped")  # event files are ordered by second
    print("finished: python evaluate.py" if last == 100 else "stopped")
    sys.exit(2 if first > 100 else 0 if last == 100 else 143)
"""
EXPERIMENT = """
from benchmarks.scripts import run
from benchmarks.scripts.experiments import Experiment, Variant
kinds = tuple(Variant(kind, "fake.py", f"--kind {kind}") for kind in ("good", "bad", "stopped"))
run.EXPERIMENTS["fake"] = Experiment("None", 100, range(1, 3), kinds, ("charts/leader_return",))
"""


def flags_of(path):
    return ["fake", f"--repository={path}", f"--folder={path / 'runs'}", f"--results={path}"]


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Of a repository with one script and an experiment of it: main(*flags)."""
    (tmp_path / "fake.py").write_text(textwrap.dedent(SCRIPT))
    monkeypatch.setitem(EXPERIMENTS, "fake", None)  # removed afterwards
    exec(EXPERIMENT, {})
    return lambda *flags: run.main([*flags_of(tmp_path), *flags])


def test_what_is_done_is_skipped_and_a_crash_does_not_end_the_others(fake, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        fake("--variants", "good", "bad")
    assert ended.value.code == 1 and "fake: bad, seed 2: failed with status 1: it broke" in capsys.readouterr().out
    finals = summarize.read_values(tmp_path / "fake.csv", "charts/leader_return")
    assert finals == {"good": {1: 98, 2: 196}}  # means of 96 to 100, times the seed
    fake("--variants", "good")
    assert "2 runs, 2 done" in capsys.readouterr().out
    record = tmp_path / "runs/fake/good/1/run.json"
    record.write_text(record.read_text().replace('"status": 0', '"status": null'))
    fake("--variants", "good")  # its run.py was killed
    assert "finished by another process" in capsys.readouterr().out and '"status": 0' in record.read_text()
    fake("--variants", "good", "--seeds", "2", "--label", "before")
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    fake("--collect-only")  # rows of runs that are gone stay
    assert list(summarize.read_values(tmp_path / "fake.csv", "seconds")) == ["good", "good (before)"]
    summarize.main(["fake", "--results", str(tmp_path)])
    assert capsys.readouterr().out.endswith("| good (before) | 1 | 196 | 196 | 0.75, p 1 |\n")
    one = tmp_path / "elsewhere/fake/good/1/runs/fake__1"
    plot.main(["fake", str(one), f"--results={tmp_path}", f"--out={tmp_path / 'one.png'}"])
    assert all(matplotlib.image.imread(tmp_path / f"{name}.png").std() > 0.01 for name in ("fake", "one"))


def test_an_interrupted_run_is_resumed(fake, tmp_path, capsys):
    with pytest.raises(SystemExit):
        fake("--variants", "stopped", "--seeds", "1")
    fake("--variants", "stopped", "--seeds", "1")
    assert "seed 1: resumed" in capsys.readouterr().out
    curve = summarize.read_curves(tmp_path / "fake.csv", "charts/leader_return")["stopped"][1][1]
    assert curve.tolist() == [i + 0.5 for i in range(1, 100, 2)]  # every iteration once, in order
