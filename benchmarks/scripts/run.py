"""Run experiments of `experiments.py`: `python -m benchmarks.scripts.run moat [--cores 0 1] [--variants ...]`.

Each run is one script of this repository on one CPU core, or on more (--cores-per-run). What is done is skipped, what
was interrupted is resumed, a run that fails is reported and the others go on; Ctrl-C, SIGTERM and SIGHUP stop the runs
with a checkpoint. Afterwards RESULTS/EXPERIMENT.csv holds what the finished runs logged, in the columns experiment,
variant, seed, tag, step, value:

    step a number       a curve, thinned to at most 50 means over equal parts (only the experiment's `tags`)
    step "final"        mean over the last 5 % of the curve's points (or the experiment's `final_share`)
    step "best"         the largest mean over so many successive points
    step "mean"         mean over the whole curve
    step "first_above"  value: the first step at which the score exceeds the experiment's `first_above`, inf: never
    tag "seconds"       how long the run took
    tag "commit"        of the checkout whose script was run, with a + where it had changes; all that a resumed run had
    tag "return_over_100_episodes"  the mean return of about the latest 100 episodes, as rl_games counts them
    tag "evaluation/sampled", "evaluation/mean"  evaluate.py's mean return over 100 episodes (with `evaluate`)
    tag "evaluation/sampled_objective", "evaluation/mean_objective"  the same of the objective

Runs that are in the csv and not in the working folder stay in the csv. To run the scripts of another checkout and to
tell them apart: `--repository ../old-checkout --label before`.
"""

import argparse
import contextlib
import csv
import fcntl
import fnmatch
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from datetime import timedelta

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks.scripts.experiments import EXPERIMENTS, RUNNING_RETURN

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLUMNS = ("experiment", "variant", "seed", "tag", "step", "value")
MAX_POINTS = 50  # of a curve in the csv
REPORT_INTERVAL = 60.0  # seconds between two progress lines


class Run:
    """One training run. Its folder: log.txt, run.json (command, commit, seconds, exit status), the script's runs/."""

    def __init__(self, name, experiment, variant, seed, args):
        self.variant, self.seed = variant.name + (f" ({args.label})" if args.label else ""), seed
        self.title = f"{name}: {self.variant}, seed {seed}"
        slug = re.sub(r"[^\w.-]+", "_", self.variant).strip("_")
        self.folder = args.folder.resolve() / name / slug / str(seed)
        self.repository = args.repository.resolve()
        self.command = command(experiment, variant, seed)
        self.record = {"experiment": name, "variant": self.variant, "seed": seed, "command": self.command}
        self.record.update(commit=None, seconds=0.0, status=None)
        if (self.folder / "run.json").exists():
            self.record.update(json.loads((self.folder / "run.json").read_text()))

    @property
    def done(self):
        return self.record["status"] == 0 and self.record["command"] == self.command

    def start(self, cores):
        """Start or resume the script on `cores` (None: anywhere). Raises RuntimeError where that cannot be done."""
        if self.record["command"] != self.command:
            raise RuntimeError(f"begun with other flags; to run it anew, delete {self.folder}")
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = open(self.folder / "lock", "w")  # the script inherits it: held as long as the script lives
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise RuntimeError("is being run by another process")
        if (self.folder / "run.json").exists():  # what another process has done since
            self.record.update(json.loads((self.folder / "run.json").read_text()))
        if self.done or (self.folder / "log.txt").exists() and self.last_line().startswith("finished: "):
            self.record["status"] = 0  # also where that process was killed
            self.write()
            lock.close()
            raise RuntimeError("was finished by another process")
        resume = []
        for previous in (self.folder / "runs").glob("*"):
            if (previous / "checkpoint.pt").exists():
                resume = ["--resume", str(previous)]
            else:
                shutil.rmtree(previous)  # interrupted before its first checkpoint
        if not resume:
            self.record.update(commit=None, seconds=0.0)
        commits = [*(self.record["commit"] or "").split(), *commit(self.repository)]
        self.record["commit"] = " ".join(dict.fromkeys(commits)) or None
        threads = str(len(cores or [0]))
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONPATH": str(ROOT)}
        script, *flags = self.command
        self.cores, self.began, self.resumed = cores, time.time(), bool(resume)
        self.write()
        with lock, open(self.folder / "log.txt", "a" if resume else "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(self.repository / script), *flags, *resume],
                cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                pass_fds=[lock.fileno()], start_new_session=True,  # Ctrl-C reaches it once, through us
                preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None,
            )  # fmt: skip

    def finish(self):
        """Record how the process ended."""
        self.record.update(status=self.process.returncode, seconds=self.record["seconds"] + time.time() - self.began)
        self.write()

    def write(self):
        temporary = self.folder / "run.json.tmp"
        temporary.write_text(json.dumps(self.record, indent=1) + "\n")
        temporary.replace(self.folder / "run.json")

    def last_line(self):
        lines = (self.folder / "log.txt").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


def command(experiment, variant, seed):
    """The script of a run and its flags."""
    total_timesteps = variant.total_timesteps or experiment.total_timesteps
    flags = f"--env-id {variant.env_id or experiment.env_id} --total-timesteps {total_timesteps}"
    flags += f" --seed {seed} --no-cuda {experiment.flags} {variant.flags}"
    return [variant.script, *flags.split()]


def commit(repository):
    """The commit of a checkout, with a + where it has changes, in a list; an empty list where it is no checkout."""
    git = ["git", "-C", str(repository)]
    found = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    changes = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True).stdout
    return [] if found.returncode else [found.stdout.strip() + ("+" if changes.strip() else "")]


def execute(runs, places):
    """Run what is not done, one run in each of `places`, sets of cores. Returns the titles of the runs that failed."""
    waiting, running, failed, free = [run for run in runs if not run.done], [], [], list(places)
    stopping, reported = [], time.time()
    print(f"{len(runs)} runs, {len(runs) - len(waiting)} done", flush=True)

    def stop(signum, frame):
        if stopping and signum == signal.SIGHUP:  # which a closing terminal may send twice
            return
        stopping.append(signum)
        for run in running:
            run.process.terminate()
        with contextlib.suppress(OSError, RuntimeError):  # the terminal may be gone, or printing just now
            print("stopping: each run writes a checkpoint after its present iteration", flush=True)

    signals = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    handlers = {signum: signal.signal(signum, stop) for signum in signals}
    try:
        while running or (waiting and not stopping):
            while waiting and free and not stopping:
                run = waiting.pop(0)
                try:
                    run.start(free[0])
                except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # no such core, for one
                    if not run.done:
                        failed.append(run.title)
                    print(f"{run.title}: {error}", flush=True)
                    continue
                free.pop(0)
                running.append(run)
                if stopping:  # the signal came while it started
                    run.process.terminate()
                print(f"{run.title}: {'resumed' if run.resumed else 'started'}", flush=True)
            time.sleep(0.2)
            for run in [run for run in running if run.process.poll() is not None]:
                run.finish()
                running.remove(run)
                free.append(run.cores)
                if run.done:
                    print(f"{run.title}: done in {timedelta(seconds=round(run.record['seconds']))}", flush=True)
                elif not stopping:
                    failed.append(run.title)
                    print(f"{run.title}: failed with status {run.record['status']}: {run.last_line()}", flush=True)
            if time.time() - reported >= REPORT_INTERVAL and running:
                reported = time.time()
                print(f"{len(waiting)} runs wait,", *(f"{run.title}: {run.last_line()}" for run in running), flush=True)
    finally:
        for run in running if not stopping else ():  # whatever happened, none is left alone
            run.process.terminate()
        for run in running:
            run.process.wait()
            run.finish()
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
    if stopping:
        sys.exit(128 + stopping[0])
    return failed


# ---------------------------------------------------------------- collecting


def running_return(counts, returns, size=100):
    """The mean return of about the latest `size` episodes after each iteration (K,), as rl_games' meter has it.

    counts, returns (K,): episodes that finished in the iteration, at least 1, and their mean return. New episodes take
    the place of as many average ones, so that older ones fade.
    """
    held, mean, means = 0, 0.0, []
    for count, value in zip(np.minimum(counts, size), returns):
        kept = min(size - count, held)
        held = kept + count
        mean = (kept * mean + count * value) / held
        means.append(mean)
    return np.array(means)


def evaluate(folder, repository):
    """evaluate.py's mean return and objective over 100 episodes of the first agent: tag of the csv -> value."""
    path, (run,) = folder / "evaluation.txt", (folder / "runs").iterdir()
    if not path.exists():
        command = [sys.executable, str(repository / "evaluate.py"), str(run), "--no-cuda"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, check=True)
        path.write_text(done.stdout)
    found = re.findall(r"^\| \w+, \d+ \| (\w+) \| (\S+) ± \S+ \| (\S+) ±", path.read_text(), re.MULTILINE)[:2]
    columns = ((1, ""), (2, "_objective"))
    return {f"evaluation/{row[0]}{suffix}": float(row[i]) for i, suffix in columns for row in found}


def read_curves(run, patterns):
    """The scalars that a script logged in its folder under tags that match: tag -> (steps, values)."""
    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    logged, curves = events.Tags()["scalars"], {}
    for pattern in patterns:
        for tag in fnmatch.filter(logged, pattern):
            scalars = events.Scalars(tag)
            curves[tag] = np.array([e.step for e in scalars]), np.array([e.value for e in scalars])
    return curves


def summarize_curve(steps, values, final_share, first_above=None):
    """[(step, value), ...] of the csv for one curve, steps and values (K,), K >= 1; see the top of this file."""
    window = max(1, round(final_share * len(values)))
    means = np.convolve(values, np.ones(window) / window, "valid")
    rows = [("final", values[-window:].mean()), ("best", means.max()), ("mean", values.mean())]
    if first_above is not None:
        above = steps[values > first_above]
        rows.append(("first_above", above[0] if len(above) else math.inf))
    parts = np.array_split(np.arange(len(values)), min(MAX_POINTS, len(values)))
    return rows + [(round(steps[part].mean()), values[part].mean()) for part in parts]


def collect_run(experiment, record, folder, repository):
    """The rows of one finished run, without experiment, variant and seed: [(tag, step, value), ...]."""
    rows = [("seconds", "final", round(record["seconds"])), ("commit", "final", record["commit"])]
    if experiment.evaluate:
        rows += [(tag, "final", mean) for tag, mean in evaluate(folder, repository).items()]
    (run,) = (folder / "runs").iterdir()
    thinned = read_curves(run, experiment.tags)
    if RUNNING_RETURN in experiment.tags:
        found = read_curves(run, ("charts/episodes", "charts/episodic_return"))
        counts, (steps, returns) = dict(zip(*found["charts/episodes"])), found["charts/episodic_return"]
        thinned[RUNNING_RETURN] = steps, running_return([counts[step] for step in steps], returns)
    for tag, curve in {**thinned, **read_curves(run, experiment.finals)}.items():
        first_above = experiment.first_above if tag == experiment.tags[0] else None
        summary = summarize_curve(*curve, experiment.final_share, first_above)
        rows += [(tag, step, f"{value:.6g}") for step, value in summary if tag in thinned or isinstance(step, str)]
    return rows


def collect(name, folder, results, repository):
    """Write RESULTS/NAME.csv from the finished runs below `folder`. Returns its path, None where there are none.

    Runs whose flags are not those of the table are left out.
    """
    experiment, path, rows = EXPERIMENTS[name], results / f"{name}.csv", {}
    if path.exists():
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                rows.setdefault((row["variant"], int(row["seed"])), []).append([row[key] for key in COLUMNS])
    for record_path in sorted((folder / name).glob("*/*/run.json")):
        record = json.loads(record_path.read_text())
        key = record["variant"], record["seed"]
        variants = [each for each in experiment.variants if f"{key[0]} (".startswith(f"{each.name} (")]  # (label)
        if record["status"] != 0:
            continue
        if record["command"] not in [command(experiment, each, key[1]) for each in variants]:
            print(f"{record_path.parent}: left out, its flags are not those of a variant of {name}")
            continue
        try:
            found = collect_run(experiment, record, record_path.parent, repository)
        except (KeyError, OSError, ValueError, subprocess.CalledProcessError) as error:  # the others are worth having
            print(f"{record_path.parent}: cannot be collected: {error}")
            continue
        rows[key] = [[name, *key, *row] for row in found]
    if not rows:
        return None
    order = [variant.name for variant in experiment.variants]
    results.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for key in sorted(rows, key=lambda key: (order.index(key[0]) if key[0] in order else len(order), *key)):
            writer.writerows(rows[key])
    temporary.replace(path)
    return path


def parse_args(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ", ".join(EXPERIMENTS)
    parser.add_argument("experiments", nargs="+", choices=EXPERIMENTS, metavar="EXPERIMENT", help=names)
    parser.add_argument("--variants", nargs="+", help="only these variants")
    parser.add_argument("--seeds", nargs="+", type=int, help="only these seeds of the table")
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    parser.add_argument("--cores", nargs="+", type=int, default=cores, help="CPU cores to pin runs to (all)")
    parser.add_argument("--cores-per-run", type=int, default=1, help="each run has so many of them, and threads (1)")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "benchmarks" / "runs", help="of the runs")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "benchmarks" / "results", help="of csv files")
    parser.add_argument("--repository", type=pathlib.Path, default=ROOT, help="the checkout whose scripts are run")
    parser.add_argument("--label", default="", help="appended to the variants' names, to tell checkouts apart")
    parser.add_argument("--collect-only", action="store_true", help="run nothing, write the csv files")
    args = parser.parse_args(argv)
    if args.cores and not 1 <= args.cores_per_run <= len(args.cores):
        parser.error(f"--cores-per-run {args.cores_per_run}: must be between 1 and {len(args.cores)}, the --cores")
    known = {variant.name for name in args.experiments for variant in EXPERIMENTS[name].variants}
    if args.variants and not set(args.variants) <= known:
        parser.error(f"--variants: must be of {', '.join(sorted(known))}")
    return args


def main(argv=None):
    args = parse_args(argv)
    runs, failed, k = [], [], args.cores_per_run
    for name in args.experiments:
        experiment = EXPERIMENTS[name]
        variants = [v for v in experiment.variants if not args.variants or v.name in args.variants]
        seeds = sorted({seed for v in variants for seed in v.seeds or experiment.seeds})
        for seed in args.seeds or seeds:  # seed by seed, so that unfinished experiments can be looked at
            runs += [Run(name, experiment, v, seed, args) for v in variants if seed in (v.seeds or experiment.seeds)]
    try:
        if not args.collect_only:
            places = [set(args.cores[i : i + k]) for i in range(0, len(args.cores) - k + 1, k)]
            failed = execute(runs, places or [None])
    finally:
        for name in args.experiments:
            print(collect(name, args.folder, args.results, args.repository) or f"{name}: no finished runs", flush=True)
    if failed:
        print("failed:", *failed, sep="\n  ")
        sys.exit(1)


if __name__ == "__main__":
    main()
