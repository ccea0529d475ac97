"""benchmarks/scripts/: the statistics on numbers worked out by hand; that runs are skipped, resumed and survived."""

import contextlib
import csv
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import types

import matplotlib
import numpy as np
import pytest
import torch

import envs
from benchmarks.scripts import compare_released, holding, plot, run, summarize
from benchmarks.scripts.experiments import EXPERIMENTS, RUNNING_RETURN, Experiment, Variant
from benchmarks.scripts.point_reach import PointReach
from benchmarks.scripts.random_fitness import RandomFitnessGrasp, RandomFitnessMoat

# ---------------------------------------------------------------- statistics


def test_interquartile_mean():
    assert summarize.interquartile_mean([100, 1, 2, 3, 4, 5, 6, -50]) == (2 + 3 + 4 + 5) / 4
    assert summarize.interquartile_mean([9, 1, 2]) == 4  # int(3 / 4) = 0 are left out
    assert summarize.interquartile_mean([[1, 2, 3, 8], [4, 0, 5, 6]]).tolist() == [2.5, 4.5]


def test_probability_of_improvement():
    # of the six pairs (1, 2), (1, 0), (2, 2), (2, 0), (3, 2), (3, 0) four are larger and one is equal
    assert summarize.probability_of_improvement([1, 2, 3], [2, 0]) == pytest.approx(4.5 / 6)
    assert summarize.probability_of_improvement([1.0], [1.0]) == 0.5
    assert summarize.improvement_interval([([1, 1], [0, 0]), ([0, 0], [1, 1])]) == (0.5, 0.5, 0.5)


def test_the_interval_of_an_improvement_is_of_both_variants_seeds():
    # two resampled seeds of the other variant are both below 1 or both above it with probabilities of 1/4 each
    assert summarize.improvement_interval([([1, 1], [0, 2])]) == (0.5, 0.0, 1.0)
    assert summarize.improvement_interval([([0, 2], [1, 1])]) == (0.5, 0.0, 1.0)


def test_an_interval_holds_95_percent():
    assert summarize.interval(np.arange(1001)) == (25, 975)
    assert summarize.interval([1.0] * 40 + [np.inf] * 60) == (1.0, np.inf)


@pytest.mark.parametrize("seeds, documented", [(3, 0.20), (5, 0.10), (10, 0.06)])
def test_how_often_the_interval_finds_a_difference_where_there_is_none(monkeypatch, seeds, documented):
    """benchmarks/README.md says how often; rounded there, and with a standard error of 1 % here."""
    monkeypatch.setattr(summarize, "RESAMPLES", 1_000)
    generator, runs = np.random.default_rng(0), 1_500
    pairs = generator.random((runs, 2, seeds))
    outside = [not low <= 0.5 <= high for _, low, high in (summarize.improvement_interval([pair]) for pair in pairs)]
    assert np.mean(outside) == pytest.approx(documented, abs=0.005 + 3 * (documented * (1 - documented) / runs) ** 0.5)


def test_the_table_of_improvements_is_of_the_variants_over_the_baseline():
    task = {"base": {1: 0.0, 2: 0.0}, "good": {1: 1.0, 2: 2.0}, "bad": {1: -1.0}}
    other = {"base": {1: 5.0}, "good": {1: 3.0}, "bad": {1: 4.0}}
    found = [summarize.improvement_table(tasks, "base", sign)[2:] for tasks, sign in (
        ([task], 1), ([task], -1), ([task, other], 1),
    )]  # fmt: skip
    line = "| {0} | {1} ({1} to {1}) | {2} |".format  # 2 of 6 ways to divide four runs, 1 of 3
    assert found[0] == [line("good", "1.00", "0.33"), line("bad", "0.00", "0.33")]
    assert found[1] == [line("good", "0.00", "0.33"), line("bad", "1.00", "0.33")]
    assert found[2] == [line("good", "0.50", ""), line("bad", "0.00", "")]  # of two tasks no p-value


def test_pooled_variants_meet_the_same_resampled_baseline():
    # the resampled baselines are (0, 0), (0, 2), (2, 2), against which both variants win, draw and lose together
    assert summarize.pooled_improvement_interval([[1, 1], [1, 1]], [0, 2]) == (0.5, 0.0, 1.0)
    assert summarize.pooled_improvement_interval([[1, 1], [3, 3]], [0, 2]) == (0.75, 0.5, 1.0)


def test_pooled_on_the_command_line(tmp_path, capsys):
    values = {("a", 1): 1, ("a", 2): 1, ("b", 1): 3, ("b", 2): 3, ("c", 1): 2, ("c", 2): 2}
    lines = [f"moat,{name},{seed},charts/leader_objective,final,{value}" for (name, seed), value in values.items()]
    (tmp_path / "moat.csv").write_text("\n".join([",".join(run.COLUMNS), *lines]) + "\n")
    summarize.main(["moat", "--versus", "c", "--pooled", "a", "b", "--results", str(tmp_path)])
    assert capsys.readouterr().out.endswith("pooled: 0.50 (0.50 to 0.50)\n")
    with pytest.raises(SystemExit):
        summarize.main(["moat", "--pooled", "d", "--results", str(tmp_path)])
    assert "--pooled d: must be variants" in capsys.readouterr().err


def test_the_rank_sum_test_counts_permutations():
    assert summarize.rank_sum_p([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]) == 2 / 20
    assert summarize.rank_sum_p([1.0, 3.0, 2.0], [4.0, 2.5, 6.0]) == 4 / 20  # one pair is the other way round
    assert summarize.rank_sum_p([1.0, 1.0], [1.0, 1.0]) == 1.0


def test_the_worst_seed_is_the_one_that_is_late():
    early = {"a": {1: 10.0, 2: 30.0}}
    assert summarize.scores_table(early)[-1].split(" | ")[-2] == "10"
    assert summarize.scores_table(early, sign=-1)[-1].split(" | ")[-2] == "30"


def test_share_at_least_counts_equal_scores():
    assert summarize.share_at_least([11.9, 12.0, 15.0, 0.0], 12) == 0.5


def test_bootstrap_interval_of_a_mean_of_two():
    # two scores, nothing left out: the resampled means are 0, 0.5, 1 with probabilities 1/4, 1/2, 1/4
    iqm, low, high = summarize.interquartile_mean_interval([np.array([0.0, 1.0])])
    assert (iqm, low, high) == (0.5, 0.0, 1.0)
    means = summarize.interquartile_mean(summarize.resample([0.0, 1.0], np.random.default_rng(0)))
    assert np.mean(means == 0.5) == pytest.approx(0.5, abs=4 * (0.25 / summarize.RESAMPLES) ** 0.5)


def test_bootstrap_stays_within_each_task():
    # each task's seeds agree, so resampling within a task changes nothing; mixing the tasks would
    assert summarize.interquartile_mean_interval([np.array([1.0, 1.0]), np.array([5.0, 5.0])]) == (3.0, 3.0, 3.0)


def test_summary_of_a_curve():
    steps, values = np.arange(1, 101) * 10, np.array([0.0] * 50 + [8.0] * 10 + [4.0] * 40)
    rows = dict(run.summarize_curve(steps, values, final_share=0.05, first_above=7.5))
    curve = [(step, value) for step, value in rows.items() if not isinstance(step, str)]
    assert (rows["final"], rows["best"], rows["mean"], rows["first_above"]) == (4.0, 8.0, 2.4, 510)
    assert len(curve) == run.MAX_POINTS and curve[0] == (15, 0.0) and curve[-1] == (995, 4.0)
    assert dict(run.summarize_curve(steps, values, 0.05, first_above=9))["first_above"] == float("inf")
    assert run.summarize_curve(steps[:1], values[:1], 0.05) == [("final", 0), ("best", 0), ("mean", 0), (10, 0)]


def test_running_return_over_100_episodes():
    counts, returns = [60, 60, 50, 1, 300], [1.0, 2.0, 4.0, 101.5, 7.0]
    means = run.running_return(counts, returns)
    # 40 of the 60 stay; then 50 of the 100, of mean 1.6; then 99 of mean 2.8; the latest 300 are more than 100
    assert means == pytest.approx([1.0, 1.6, 2.8, (99 * 2.8 + 101.5) / 100, 7.0])


def test_the_table_of_experiments():
    for name, experiment in EXPERIMENTS.items():
        names = [variant.name for variant in experiment.variants]
        assert len(set(names)) == len(names), name
        for variant in experiment.variants:
            flags = (experiment.flags + " " + variant.flags).split()
            options = [flag for flag in flags if flag.startswith("--")]
            assert len(set(options)) == len(options), f"{name}, {variant.name}: a flag is given twice"
            assert (run.ROOT / variant.script).exists()


# ---------------------------------------------------------------- tasks


def test_point_reach_counts_successes_and_goes_on():
    env = PointReach(4, "cpu", seed=0)
    env.reset()
    env.position.zero_(), env.velocity.zero_()
    env.goal.copy_(torch.tensor([0.3, 0.0, 0.0, 0.0]))
    env.goal[1] = 0.0
    env.position[2, 0] = 2.01
    action = torch.zeros(4, 4)
    action[0, 0] = 1.0
    goals = env.goal.clone()
    obs, reward, terminated, truncated, info = env.step(action)
    assert terminated.tolist() == [False, False, True, False] and not truncated.any()
    assert info["episode"]["objective"].tolist() == [0, 1, 0, 0]
    assert not torch.equal(env.goal[1], goals[1]) and torch.equal(env.goal[[0, 3]], goals[[0, 3]])
    torch.testing.assert_close(obs[1], torch.cat([torch.zeros(8), env.goal[1]]))
    assert env.velocity[0].tolist() == pytest.approx([0.1, 0, 0, 0])
    distance = 0.3 - 0.25 * 0.1
    assert reward[0].item() == pytest.approx(0.5 * (1 - np.tanh(2 * distance)) - 0.01)
    assert reward[1].item() == pytest.approx(5.5)
    env.episode_step.fill_(99)
    assert env.step(action)[3].all()


def test_random_fitness_moat_reports_a_permutation_of_the_followers():
    env = RandomFitnessMoat(96, "cpu", seed=0)
    env.reset()
    for cycle in range(3):
        env.position[:, 1:] = 0.0
        for _ in range(128):
            env.velocity.zero_()
            env.position[:, 0] = torch.linspace(0.0, 0.7, 96)  # true objectives, all different
            before, info = env.latest.clone(), env.step(torch.zeros(96, 4))[4]
        true, told = torch.linspace(0.0, 0.7, 96), info["episode"]["objective"]
        assert info["episode"]["done"].all()
        torch.testing.assert_close(told[:2], true[:2])  # the leader's are its own
        if cycle:
            torch.testing.assert_close(told[2:].sort().values, before[2:].sort().values)
            assert (told[2:] != before[2:]).any()
            assert (told.view(48, 2)[1:, 1] - told.view(48, 2)[1:, 0]).min() > 0  # whole blocks change places


def test_random_fitness_grasp_reports_a_permutation_of_the_followers():
    env = RandomFitnessGrasp(96, "cpu", seed=0)
    env.reset()
    env.episode_step.zero_()
    true = torch.arange(96.0)
    for _ in range(2 * 128):
        env.successes.copy_(true)
        told = env.step(torch.zeros(96, 6))[4]["episode"]["objective"]
    assert torch.equal(told[:2], true[:2]) and torch.equal(told[2:].sort().values, true[2:])
    assert torch.equal(told[3::2] - told[2::2], torch.ones(47)) and (told[2:] != true[2:]).any()


@pytest.mark.parametrize("task", [RandomFitnessMoat, RandomFitnessGrasp])
def test_random_fitness_refuses_other_numbers_of_environments(task):
    with pytest.raises(ValueError, match="multiple of 48"):
        task(50, "cpu", seed=0)


# ---------------------------------------------------------------- run.py

SCRIPT = """
    import argparse, pathlib, shutil, signal, sys, time
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    parser = argparse.ArgumentParser()
    for flag in ("env-id", "total-timesteps", "seed", "resume", "kind"):
        parser.add_argument("--" + flag)
    parser.add_argument("--no-cuda", action="store_true")
    args = parser.parse_args()
    if args.kind == "crash":
        sys.exit("it broke")
    folder = pathlib.Path(args.resume or f"runs/fake__{args.seed}")
    first = int((folder / "iteration.txt").read_text()) + 1 if args.resume else 1
    writer, stop = EventFileWriter(str(folder)), []
    writer.add_event(Event(step=first, session_log=SessionLog(status=SessionLog.START)))
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    for iteration in range(first, 101):
        if args.kind == "slow" and not args.resume:
            time.sleep(0.05)
        values = {"charts/leader_return": iteration * int(args.seed), "charts/episodes": iteration % 2}
        if iteration % 2:
            values["charts/episodic_return"] = iteration * int(args.seed)
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        writer.add_event(Event(step=iteration, wall_time=time.time(), summary=summary))
        print(f"{iteration} steps {iteration}%", flush=True)
        if stop or iteration == 100:
            (folder / "iteration.txt").write_text(str(iteration))
            checkpoint = pathlib.Path(__file__).with_name("stopped.pt" if stop else "complete.pt")
            shutil.copy(checkpoint, folder / "checkpoint.pt")  # to import torch takes seconds
        if stop:
            break
    writer.close()
    sys.exit(143 if stop else 0)
"""
FAKE = Experiment(
    env_id="None",
    total_timesteps=100,
    seeds=range(1, 3),
    tags=("charts/leader_return",),
    variants=(Variant("good", "fake.py"), Variant("crashes", "fake.py", "--kind crash"),
              Variant("slow", "fake.py", "--kind slow")),
)  # fmt: skip


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A repository with one script and an experiment of it; returns main(*flags)."""
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "fake.py").write_text(textwrap.dedent(SCRIPT))
    for name, iteration in (("stopped.pt", 1), ("complete.pt", 100)):
        checkpoint = {"iteration": iteration, "args": {"num_iterations": 100}}
        torch.save(checkpoint, tmp_path / "repository" / name)
    monkeypatch.setitem(run.EXPERIMENTS, "fake", FAKE)

    def main(*flags):
        folders = ["--repository", tmp_path / "repository", "--folder", tmp_path / "runs", "--results", tmp_path]
        run.main(["fake", *map(str, folders), *flags])

    return main


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_what_is_done_is_skipped_and_a_crash_does_not_end_the_others(fake, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        fake("--variants", "good", "crashes")
    assert ended.value.code == 1
    out = capsys.readouterr().out
    assert "fake: crashes, seed 2: failed with status 1: it broke" in out and "good, seed 2: done" in out
    found = [row for row in rows(tmp_path / "fake.csv") if row["step"] == "final" and row["tag"] in FAKE.tags]
    finals = {(row["variant"], row["seed"]): row["value"] for row in found}
    assert finals == {("good", "1"): "98", ("good", "2"): "196"}  # means of 96 to 100, times the seed
    log = tmp_path / "runs" / "fake" / "good" / "1" / "log.txt"
    written = log.stat().st_mtime_ns
    fake("--variants", "good")
    assert "2 runs, 2 done" in capsys.readouterr().out and log.stat().st_mtime_ns == written


EVALUATE = """
    import sys
    assert sys.argv[1].endswith("fake__2") and "--no-cuda" in sys.argv
    print("| agent | actions | return | objective | length |", "|-|-|-|-|-|", sep="\\n")
    for agent, sampled, mean in (("leader, 0", -1.5, 12.0), ("best, 1", 99.0, 99.0)):
        print(f"| {agent} | sampled | {sampled:.2f} ± 0.25 | 3.00 ± 0.00 | 7 |")
        print(f"| {agent} | mean | {mean:.2f} ± 0.25 | 4.00 ± 0.00 | 7 |")
"""


def test_the_running_return_and_the_evaluation_are_collected(fake, tmp_path, monkeypatch):
    (tmp_path / "repository" / "evaluate.py").write_text(textwrap.dedent(EVALUATE))
    scored = dataclasses.replace(FAKE, tags=(RUNNING_RETURN,), final_share=0, evaluate=True)
    monkeypatch.setitem(run.EXPERIMENTS, "fake", scored)
    fake("--variants", "good", "--seeds", "2")
    (tmp_path / "repository" / "evaluate.py").write_text("exit(1)")
    fake("--variants", "good", "--seeds", "2")  # what has been evaluated is not evaluated again
    found = {(row["tag"], row["step"]): row["value"] for row in summarize.read_rows(tmp_path / "fake.csv")}
    assert found["evaluation/sampled", "final"] == -1.5 and found["evaluation/mean", "final"] == 12
    assert found["evaluation/sampled_objective", "final"] == 3 and found["evaluation/mean_objective", "final"] == 4
    assert found[RUNNING_RETURN, "final"] == found[RUNNING_RETURN, "best"] == 100  # twice the mean of 1, 3, ..., 99


def test_what_cannot_be_evaluated_or_read_is_left_out_and_the_others_are_kept(fake, tmp_path, monkeypatch, capsys):
    (tmp_path / "repository" / "evaluate.py").write_text(textwrap.dedent(EVALUATE))  # of seed 2 alone
    monkeypatch.setitem(run.EXPERIMENTS, "fake", dataclasses.replace(FAKE, evaluate=True))
    fake("--variants", "good")
    assert "CalledProcessError" in capsys.readouterr().out
    assert {row["seed"] for row in rows(tmp_path / "fake.csv")} == {"2"}
    before = (tmp_path / "fake.csv").read_text()
    (tmp_path / "runs" / "fake" / "good" / "1" / "run.json").write_text("{")
    fake("--collect-only")
    assert "JSONDecodeError" in capsys.readouterr().out and (tmp_path / "fake.csv").read_text() == before


def test_a_damaged_record_and_a_missing_core_are_reported_run_by_run(fake, tmp_path, capsys):
    core = min(os.sched_getaffinity(0))
    fake("--variants", "good", "--seeds", "1")
    (tmp_path / "runs" / "fake" / "good" / "1" / "run.json").write_text("{")
    with pytest.raises(SystemExit):
        fake("--variants", "good", "--cores", str(core))
    out = capsys.readouterr().out
    assert re.search("good, seed 1: cannot be read: JSONDecodeError.*; to run it anew, delete", out)
    assert "good, seed 2: done" in out
    with pytest.raises(SystemExit):
        fake("--variants", "slow", "--cores", "4095", str(core))
    out = capsys.readouterr().out
    assert "slow, seed 1: Exception occurred in preexec_fn" in out and "slow, seed 2: Exception" in out


def test_an_error_of_our_own_leaves_no_run_alone(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "REPORT_INTERVAL", 0.0)
    monkeypatch.setattr(run, "time_left", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fake("--variants", "slow", "--seeds", "1")
    record = json.loads((tmp_path / "runs" / "fake" / "slow" / "1" / "run.json").read_text())
    assert record["status"] in (143, -signal.SIGTERM)  # stopped by us, not lost


def test_a_run_may_have_several_cores(fake, tmp_path):
    cores = sorted(os.sched_getaffinity(0))
    (tmp_path / "repository" / "fake.py").write_text(
        "import os\nprint(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])\n"
    )
    with contextlib.suppress(SystemExit):
        fake("--variants", "good", "--cores", *map(str, cores), "--cores-per-run", str(len(cores)))
    printed = (tmp_path / "runs" / "fake" / "good" / "1" / "log.txt").read_text()
    assert printed.startswith(f"{cores} {len(cores)}")


def test_the_time_left():
    def at(kind, whole, share):
        return types.SimpleNamespace(kind=kind, progress=lambda: (share, whole))

    assert run.time_left([at("a", None, 0.0)], [at("a", None, 0.0)], {}, 1) is None
    # 10 s are known of a; of b what a running one predicts, 40 s; of c the mean of both
    waiting, seconds = [at("a", None, 0.0), at("b", None, 0.0)], {"a": [8.0, 12.0]}
    assert run.time_left(waiting, [at("b", 40.0, 0.25)], seconds, 1) == 10 + 40 + 30
    assert run.time_left(waiting, [at("b", 40.0, 0.25)], seconds, 4) == 40  # no less than the longest
    assert run.time_left([], [at("a", None, 0.0)], seconds, 1) == 10
    assert run.time_left([at("c", None, 0.0)], [at("b", 40.0, 0.5)], seconds, 1) == pytest.approx(20 + 20)
    assert seconds == {"a": [8.0, 12.0]}


def test_the_csv_says_which_commit_and_takes_no_run_with_other_flags(fake, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "commit", lambda repository: "0123abcd")
    fake("--variants", "good", "--seeds", "1", "--label", "other checkout")
    found = [row["value"] for row in rows(tmp_path / "fake.csv") if row["tag"] == "commit"]
    assert found == ["0123abcd"]
    (tmp_path / "fake.csv").unlink()
    monkeypatch.setitem(run.EXPERIMENTS, "fake", dataclasses.replace(FAKE, flags="--more"))
    fake("--collect-only")
    assert "left out, its flags" in capsys.readouterr().out and not (tmp_path / "fake.csv").exists()


def test_a_variant_may_have_its_own_number_of_steps(tmp_path):
    args = run.parse_args(["point_reach", "--folder", str(tmp_path)])
    for variant, steps in ((Variant("all", "fake.py"), "100"), (Variant("fewer", "fake.py", total_timesteps=7), "7")):
        command = run.Run("fake", FAKE, variant, 1, args).command
        assert command[command.index("--total-timesteps") + 1] == steps


def test_an_interrupted_run_writes_a_checkpoint_and_is_resumed(fake, tmp_path, capsys):
    child = textwrap.dedent(f"""
        from benchmarks.scripts import run
        from tests_fake import FAKE
        run.EXPERIMENTS["fake"] = FAKE
        run.main({["fake", "--repository", str(tmp_path / "repository"), "--folder", str(tmp_path / "runs"),
                   "--results", str(tmp_path), "--variants", "slow", "--seeds", "1"]})
    """)
    (tmp_path / "tests_fake.py").write_text(
        "from benchmarks.scripts.experiments import Experiment, Variant\n"
        "FAKE = Experiment(env_id='None', total_timesteps=100, seeds=range(1, 3), tags=('charts/leader_return',),\n"
        "                  variants=(Variant('slow', 'fake.py', '--kind slow'),))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(run.ROOT), str(tmp_path)])}
    process = subprocess.Popen([sys.executable, "-c", child], env=environment, stdout=subprocess.PIPE, text=True)
    folder = tmp_path / "runs" / "fake" / "slow" / "1"
    deadline = time.time() + 60
    while not ((folder / "log.txt").exists() and "3 steps" in (folder / "log.txt").read_text()):
        assert time.time() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert "no finished runs" in process.communicate(timeout=60)[0] and process.returncode == 128 + signal.SIGTERM
    stopped = json.loads((folder / "run.json").read_text())
    assert stopped["status"] == 143 and (folder / "runs" / "fake__1" / "checkpoint.pt").exists()

    fake("--variants", "slow", "--seeds", "1")
    assert "seed 1: resumed" in capsys.readouterr().out
    assert json.loads((folder / "run.json").read_text())["seconds"] > stopped["seconds"]
    curve = [float(row["value"]) for row in rows(tmp_path / "fake.csv") if row["step"].isdigit()]
    assert curve == [i + 0.5 for i in range(1, 100, 2)]  # every iteration once, in order


def test_a_run_that_stopped_after_its_last_iteration_is_done(fake, tmp_path, capsys):
    fake("--variants", "good", "--seeds", "1")
    path = tmp_path / "runs" / "fake" / "good" / "1" / "run.json"
    path.write_text(path.read_text().replace('"status": 0', '"status": -15'))
    capsys.readouterr()
    fake("--variants", "good", "--seeds", "1")
    assert "1 runs, 1 done" in capsys.readouterr().out


def test_two_checkouts_stand_beside_each_other(fake, tmp_path):
    fake("--variants", "good")
    fake("--variants", "good", "--seeds", "2", "--label", "before")
    assert list(summarize.read_values(tmp_path / "fake.csv", "charts/leader_return")) == ["good", "good (before)"]
    assert list(summarize.read_values(tmp_path / "fake.csv", "seconds")["good (before)"]) == [2]


def test_rows_of_deleted_runs_stay(fake, tmp_path):
    fake("--variants", "good")
    before = (tmp_path / "fake.csv").read_text()
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    fake("--collect-only")
    assert (tmp_path / "fake.csv").read_text() == before


def test_a_run_that_was_begun_with_other_flags_is_reported(fake, tmp_path, capsys):
    fake("--variants", "good", "--seeds", "1")
    path = tmp_path / "runs" / "fake" / "good" / "1" / "run.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "command": [*record["command"], "--kind", "other"]}))
    with pytest.raises(SystemExit):
        fake("--variants", "good", "--seeds", "1")
    assert "begun with other flags" in capsys.readouterr().out


# ---------------------------------------------------------------- tables and plots


def test_tables_and_plots(fake, tmp_path, capsys):
    fake("--variants", "good")
    fake("--variants", "good", "--label", "before")
    capsys.readouterr()
    summarize.main(["fake", "--results", str(tmp_path), "--threshold", "100"])
    out = capsys.readouterr().out
    assert "| good | 2 | 147 | 147 (98 to 196) | 50% | 98 | 98, 196 |" in out
    assert "| good (before) | 0.50 (" in out
    summarize.main(["fake", "--results", str(tmp_path), "--value", "best"])
    assert "or more" not in capsys.readouterr().out
    plot.main(["fake", "--results", str(tmp_path)])
    assert matplotlib.image.imread(tmp_path / "fake.png").std() > 0.01


def test_quartiles_at_the_steps_that_all_seeds_have():
    curves = {seed: (np.arange(5 - (seed == 1)), seed * np.ones(5 - (seed == 1))) for seed in (1, 2, 3)}
    steps, quartiles = plot.quartiles(curves)
    assert steps.tolist() == [0, 1, 2, 3] and quartiles[:, 0].tolist() == [1.5, 2.0, 2.5]


def test_comparison_with_the_released_code(tmp_path, capsys):
    released = (run.ROOT / "benchmarks" / "results" / "released_point_reach.csv").read_text()
    (tmp_path / "released_point_reach.csv").write_text(released)
    (tmp_path / "point_reach.csv").write_text(released.replace("released PPO", "PPO").replace("released SAPG", "SAPG"))
    compare_released.main(["--results", str(tmp_path)])
    table = {line.split("|")[1].strip(): line.split("|")[2:5] for line in capsys.readouterr().out.splitlines()}
    assert [cell.strip() for cell in table["released PPO"][:2]] == ["4", "38"]
    assert [cell.strip() for cell in table["released SAPG-4"][:2]] == ["6", "45.5"]
    assert table["PPO"] == table["released PPO"]
    assert (tmp_path / "point_reach_released.png").exists()


def test_in_phase_tasks_ignore_staggering():
    env = envs.make("benchmarks.scripts.in_phase:AllegroHand", 2, training=True)
    env.reset()
    assert not env.episode_step.any()


def test_the_index_names_what_was_not_run():
    index = (run.BENCHMARKS / "README.md").read_text()
    (sentence,) = re.findall(r"Defined, but not run yet: (.*?)\.\n", index, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", sentence)) == {
        name for name in EXPERIMENTS if not (run.BENCHMARKS / "results" / f"{name}.csv").exists()
    }


class Scripted:
    """Four AllegroKuka episodes: the cube is held, thrown, left alone, and put on the goal, which then moves.

    In the step in which an episode ends, and after it, the environment shows an episode in which all is different.
    """

    num_envs, ends, tolerance = 4, torch.tensor([50, 6, 4, 5]), torch.tensor(0.02)
    successes = torch.tensor([2.0, 0.0, 0.0, 1.0])
    object_size = torch.tensor([0.05, 0.05, 0.30]).expand(4, 3)
    term_sums = torch.arange(8.0).view(4, 2)

    def zeros(self, dtype=torch.float32):
        return torch.zeros(4, dtype=dtype)

    def reset(self):
        self.step_count = 0
        return torch.zeros(4, 1)

    def step(self, action):
        self.step_count += 1
        self.first = self.step_count < self.ends  # still in the first episode
        last, again = self.step_count == self.ends, self.step_count == self.ends + 2
        lost = torch.tensor([False, True, False, False])
        self.finished_successes = self.successes + 7.0 * ~(self.first | last)
        self.finished_term_sums = self.term_sums + 7.0 * ~(self.first | last)[:, None]
        self.done = last | again
        episode = {"done": self.done, "length": torch.where(last, self.ends, 2).float()}
        return torch.zeros(4, 1), torch.zeros(4), self.done & (lost | again), last & ~lost, {"episode": episode}

    def up(self):
        t = self.step_count
        return torch.tensor([5 <= t < 45, t >= 2, False, False]) | ~self.first

    def fingertips(self):
        """3 mm from the tip of the cube, which points along x; or 5 cm from its side."""
        t, near = self.step_count, self.engine.body_pos[:, -1] + torch.tensor([0.153, 0.0, 0.0])
        far = self.engine.body_pos[:, -1] + torch.tensor([0.0, 0.0, 0.075])
        is_near = torch.tensor([t != 20, t < 3, False, False]) | ~self.first
        return torch.stack([torch.where(is_near[:, None], near, far), far], 1)

    def keypoint_distance(self):
        return torch.where(torch.tensor([self.step_count == 30, False, False, False]) | ~self.first, 0.025, 0.5)

    @property
    def engine(self):
        engine = types.SimpleNamespace(body_pos=torch.zeros(4, 2, 3), body_linvel=torch.zeros(4, 2, 3))
        engine.body_quat = torch.tensor([0.5, 0.5, 0.5, 0.5]).expand(4, 2, 4)  # its z axis along x
        engine.body_pos[:, -1, 2] = -holding.LIFT_OFFSET + torch.where(self.up(), 0.3, 0.0)
        engine.body_linvel[:, -1, 0] = torch.where(self.first, torch.tensor([0.5, 4.0, 9.0, 9.0]), 20.0)
        return engine


def test_what_a_policy_does_with_the_object():
    env, remembered = Scripted(), []

    class Player:
        dones = None

        def act(self, obs):
            remembered.append(self.dones is None or self.dones[0].equal(env.done))

    seen, terms = holding.play(env, Player())
    assert all(remembered) and len(remembered) == 50
    assert {name: value.tolist() for name, value in seen.items()} == {
        "reached": [1, 1, 0, 0], "lifted": [1, 1, 0, 0], "longest": [24, 1, 0, 0], "at goal": [1, 0, 0, 1],
        "speed": [0.5, 4, 0, 0], "lost": [0, 1, 0, 0], "length": [50, 6, 4, 5], "successes": [2, 0, 0, 1],
    }  # fmt: skip
    assert terms.equal(env.term_sums)
