"""Runs an experiment: `python -m benchmarks.scripts.run moat [--cores 0 1] [--variants PPO SAPG-6] [--seeds 1 2]`.

Each command of `benchmarks/experiments/moat.txt` is run with each of its seeds on one CPU core, in one thread and in a
folder of its own below `benchmarks/runs/moat/`. Runs that are finished are skipped, those that were interrupted are
resumed, and where one fails the others go on. Ctrl-C stops them with a checkpoint. Several run.py may work on the same
experiment. At the end `collect.py` writes `benchmarks/results/moat.csv`.
"""

import argparse
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

from benchmarks.scripts.collect import collect
from benchmarks.scripts.experiments import ROOT, experiment_names, find_runs, read_experiment
from benchmarks.scripts.help import HelpFormatter


def start(run, core):
    """Start or resume a run on a core. Returns its process, or None where another run.py has taken the run."""
    run.folder.mkdir(parents=True, exist_ok=True)
    with open(run.log, "a") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the script inherits the lock and keeps it while it lives
        except BlockingIOError:
            return None
        if run.is_finished():
            return None
        resume = [f"--resume={path.parent}" for path in run.folder.glob("runs/*/checkpoint.pt")]
        if not resume:  # what stopped before its first checkpoint begins anew
            shutil.rmtree(run.folder / "runs", ignore_errors=True)
            log.truncate(0)
        print(f"commit {commit()}: {shlex.join(run.command)}", file=log, flush=True)
        _, script, *flags = run.command
        process = subprocess.Popen(
            [sys.executable, str(ROOT / script), *flags, *resume],
            cwd=run.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that Ctrl-C reaches it through `execute` alone
            preexec_fn=lambda: pin(core),
        )
    print(f"{run.title}: {'resumed' if resume else 'started'}, see {run.log}", flush=True)
    return process


def commit():
    """The checkout's commit, with a + where it has changes."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
    return subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"


def pin(core):
    """Keep this process on a core, where the system can do that."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def execute(runs, cores):
    """Run what is not finished, one run per core. Returns a line for every run that failed."""
    waiting = [run for run in runs if not run.is_finished()]
    print(f"{len(runs)} runs, {len(runs) - len(waiting)} finished", flush=True)
    running = {}  # core -> run and its process
    failed = []
    signals = []  # that have come
    stopping = False
    handlers = {}
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) != signal.SIG_IGN:  # nohup ignores SIGHUP
            handlers[signum] = signal.signal(signum, lambda signum, frame: signals.append(signum))
    while running or (waiting and not stopping):
        if signals and not stopping:
            stopping = True
            for _, process in running.values():
                process.terminate()
            print("stopping: each run writes a checkpoint after its present iteration", flush=True)
        for core in cores:
            if waiting and core not in running and not stopping:
                run = waiting.pop(0)
                process = start(run, core)
                if process:
                    running[core] = run, process
                else:
                    print(f"{run.title}: another process has taken it", flush=True)
        time.sleep(0.5)
        for core, (run, process) in list(running.items()):
            if process.poll() is not None:
                del running[core]
                print(f"{run.title}: {run.read_log().strip().splitlines()[-1]}", flush=True)
                if not (run.is_finished() or stopping):
                    failed.append(f"{run.title}: status {process.returncode}, see {run.log}")
    for signum, handler in handlers.items():
        signal.signal(signum, handler)
    if stopping:
        sys.exit(128 + signals[0])
    return failed


def parse_args(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    names = experiment_names()
    parser.add_argument("experiment", choices=names, metavar="EXPERIMENT", help=", ".join(names))
    parser.add_argument("--variants", nargs="+", metavar="VARIANT", help="run only these")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="SEED", help="run only these")
    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count())
    parser.add_argument("--cores", nargs="+", type=int, choices=available, default=available, help="CPU cores")
    return parser.parse_args(argv)


def main(argv=None):
    args = parse_args(argv)
    experiment = read_experiment(args.experiment)
    names = [variant.name for variant in experiment.variants]
    for name in args.variants or ():
        if name not in names:
            sys.exit(f"--variants {name}: must be of {', '.join(names)}")
    runs = []
    for run in find_runs(experiment):
        if run.variant in (args.variants or names) and run.seed in (args.seeds or [run.seed]):
            runs.append(run)
    for run in runs:
        if run.has_other_flags():
            sys.exit(f"{run.title}: was begun with other flags; to run it anew, delete {run.folder}")
    try:
        failed = execute(runs, args.cores)
    finally:
        collect(experiment)
    if failed:
        sys.exit("failed:\n  " + "\n  ".join(failed))


if __name__ == "__main__":
    main()
