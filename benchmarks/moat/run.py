"""Run an experiment of benchmarks/README.md on Moat: `python benchmarks/moat/run.py population [--workers 2]`.

Every run is a script of this repository in a subprocess on one thread; its leader's objective, read from TensorBoard,
is appended to {experiment}.csv as rows of name, seed, step, leader_objective, generations. Runs already in the csv are
not repeated.
"""

import argparse
import csv
import os
import pathlib
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RELEASED, PAPER_MU = ["--critic-n-step", "0", "--no-off-policy-mu"], ["--critic-n-step", "0", "--off-policy-mu"]
PAPER_N_STEP = ["--critic-n-step", "3", "--no-off-policy-mu"]
PAPER = ["--critic-n-step", "3", "--off-policy-mu"]
RANDOM = "benchmarks/moat/epo_random_fitness.py"
EXPERIMENTS = {  # name -> (seeds, {label: command})
    "population": (10, {
        "PPO": ["ppo.py"],
        "SAPG-6": ["sapg.py", "--num-agents", "6"],
        "SAPG-48": ["sapg.py", "--num-agents", "48"],
        "CPO-6": ["cpo.py", "--num-agents", "6"],
        "CPO-6 without pull": ["cpo.py", "--num-agents", "6", "--awac-coef", "0"],
        "CPO-48": ["cpo.py", "--num-agents", "48"],
        "EPO-48": ["epo.py", "--num-agents", "48"],
        "EPO-48 random fitness": [RANDOM, "--num-agents", "48"],
    }),
    "mu": (10, {
        "PPO, GAE target": ["ppo.py", "--critic-n-step", "0"],
        "SAPG-6": ["sapg.py", "--num-agents", "6", *PAPER],
        "SAPG-48": ["sapg.py", "--num-agents", "48", *PAPER],
        "EPO-48": ["epo.py", "--num-agents", "48", *PAPER],
        "EPO-48 random fitness": [RANDOM, "--num-agents", "48", *PAPER],
    }),
    "targets": (5, {
        "released": ["sapg.py", "--num-agents", "48", *RELEASED],
        "mu": ["sapg.py", "--num-agents", "48", *PAPER_MU],
        "3-step": ["sapg.py", "--num-agents", "48", *PAPER_N_STEP],
        "both": ["sapg.py", "--num-agents", "48", *PAPER],
    }),
}  # fmt: skip


def run(label, command, seed):
    """One training run -> rows of the csv."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        script, *flags = command
        subprocess.run(
            [sys.executable, str(ROOT / script), "--env-id", "Moat", "--seed", str(seed), *flags],
            cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        events = EventAccumulator(str(next(pathlib.Path(folder, "runs").iterdir())), size_guidance={"scalars": 0})
        events.Reload()
        scalars = events.Scalars("charts/leader_objective")
        fired = {e.step: e.value for e in events.Scalars("evolution/fired")} if "epo" in script else {}
        generations, rows = 0, []
        for e in scalars:
            generations += int(fired.get(e.step, 0))
            rows.append((label, seed, e.step, round(e.value, 4), generations))
    print(label, seed, rows[-1][3], flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--workers", type=int, default=2, help="runs at the same time, one thread each")
    args = parser.parse_args()
    path = HERE / f"{args.experiment}.csv"
    done = set()
    if path.exists():
        with path.open() as file:
            done = {(row["name"], int(row["seed"])) for row in csv.DictReader(file)}
    else:
        path.write_text("name,seed,step,leader_objective,generations\n")
    seeds, commands = EXPERIMENTS[args.experiment]
    todo = [(n, c, s) for s in range(1, seeds + 1) for n, c in commands.items() if (n, s) not in done]
    with ThreadPoolExecutor(args.workers) as pool:
        for future in as_completed([pool.submit(run, *job) for job in todo]):
            with path.open("a", newline="") as file:
                csv.writer(file).writerows(future.result())


if __name__ == "__main__":
    main()
