"""Collects the finished runs of an experiment in its csv file: `python -m benchmarks.scripts.collect moat`.

`run.py` does that at its end. The file is `benchmarks/results/moat.csv`; its rows of runs that are not below
`benchmarks/runs/` stay. The columns are experiment, variant, seed, tag, step, value:

    step a number       a curve, thinned to at most 50 means over equal parts: of the experiment's score and tags
    step "final"        the mean over the last 5 % of a curve (or its `final share`), of these tags and those in FINALS
    step "first_above"  the first step at which the score exceeded the experiment's `first above`, inf: never
    tag "seconds"       how long rollouts and updates took
    tag "commit"        the commit that was run, with a + where there were changes; all of a resumed run's
    tag "evaluation/*"  mean return and objective of evaluate.py's 100 episodes, with sampled and with mean actions
"""

import argparse
import csv
import fnmatch
import math
import re
import subprocess
import sys

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks.scripts.experiments import ROOT, experiment_names, find_runs, read_experiment
from benchmarks.scripts.help import HelpFormatter

COLUMNS = ("experiment", "variant", "seed", "tag", "step", "value")
FINALS = (
    "charts/leader_return",
    "charts/leader_objective",
    "charts/best_agent_objective",
    "charts/reward_per_step",
    "charts/action_std",
    "charts/learning_rate",
    "losses/approx_kl",
    "losses/clipfrac",
    "population/objective_median",
    "population/ess_rate",
    "population/off_policy_used",
    "evolution/fired",
)
TIMES = ("perf/rollout_s", "perf/update_s")
MAX_POINTS = 50  # of a curve


def read_curves(folder, patterns):
    """The scalars that a script logged in its folder under tags that match: tag -> (steps, values), arrays (K,)."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    curves = {}
    for pattern in patterns:
        for tag in fnmatch.filter(events.Tags()["scalars"], pattern):
            scalars = events.Scalars(tag)
            curves[tag] = np.array([scalar.step for scalar in scalars]), np.array([scalar.value for scalar in scalars])
    return curves


def evaluate(run, folder):
    """Means of 100 episodes of the leader: [(tag, "final", value), ...]."""
    path = run.folder / "evaluation.txt"
    if not path.exists():
        command = [sys.executable, str(ROOT / "evaluate.py"), str(folder), "--no-cuda"]
        path.write_text(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    # the columns of its table are agent, actions, return, objective and length; the leader has the first two rows
    table = re.findall(r"^\| .+ \| (\w+) \| (\S+) (?:±|\+-) \S+ \| (\S+) (?:±|\+-) ", path.read_text(), re.MULTILINE)
    rows = []
    for actions, episodic_return, objective in table[:2]:
        rows.append((f"evaluation/{actions}", "final", episodic_return))
        rows.append((f"evaluation/{actions}_objective", "final", objective))
    return rows


def read_run(experiment, run):
    """The rows of a run, without experiment, variant and seed: [(tag, step, value), ...]."""
    (folder,) = run.folder.glob("runs/*")
    thinned = [experiment.score, *experiment.tags]
    curves = read_curves(folder, [*thinned, *FINALS, *TIMES])
    seconds = sum(curves.pop(tag)[1].sum() for tag in TIMES if tag in curves)
    commits = dict.fromkeys(commit for commit, _ in run.starts())
    rows = [("seconds", "final", round(seconds)), ("commit", "final", " ".join(commits))]
    if experiment.evaluate and run.is_finished():
        rows += evaluate(run, folder)
    for tag, (steps, values) in curves.items():
        last = max(1, round(experiment.final_share * len(values)))
        rows.append((tag, "final", f"{values[-last:].mean():.6g}"))
        if tag == experiment.score and experiment.first_above is not None:
            above = steps[values > experiment.first_above]
            rows.append((tag, "first_above", above[0] if len(above) else math.inf))
        if any(fnmatch.fnmatch(tag, pattern) for pattern in thinned):
            for part in np.array_split(np.arange(len(values)), min(MAX_POINTS, len(values))):
                rows.append((tag, round(steps[part].mean()), f"{values[part].mean():.6g}"))
    return rows


def read_csv(experiment):
    """The rows that have been collected, as lists of text."""
    if not experiment.csv.exists():
        return []
    with experiment.csv.open(newline="") as file:
        return list(csv.reader(file))[1:]


def read_all(experiment, unfinished=False):
    """The rows that have been collected, those of finished runs and, if asked for, those of runs under way."""
    rows = {}
    for row in read_csv(experiment):
        _, variant, seed, *_ = row
        rows.setdefault((variant, int(seed)), []).append(row)
    for run in find_runs(experiment):
        has_begun = any(run.folder.glob("runs/*/events*")) and not run.has_other_flags()
        if run.is_finished() or (unfinished and has_begun):
            key = run.variant, run.seed
            rows[key] = [[experiment.name, *key, *row] for row in read_run(experiment, run)]
    order = [variant.name for variant in experiment.variants]
    keys = sorted(rows, key=lambda key: (order.index(key[0]) if key[0] in order else len(order), *key))
    return [row for key in keys for row in rows[key]]


def collect(experiment):
    """Write its csv."""
    rows = read_all(experiment)
    if not rows:
        print(f"{experiment.name}: no finished runs")
        return
    temporary = experiment.csv.with_suffix(".tmp")
    with temporary.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    temporary.replace(experiment.csv)
    print(experiment.csv)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    names = experiment_names()
    parser.add_argument("experiment", choices=names, metavar="EXPERIMENT", help=", ".join(names))
    collect(read_experiment(parser.parse_args(argv).experiment))


if __name__ == "__main__":
    main()
