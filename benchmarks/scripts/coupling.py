"""CPO's claim (its Table 2 and Fig. 4): coupled followers produce data that the leader can use.

    python benchmarks/scripts/coupling.py Moat --seeds 3 --num-agents 6 --total-timesteps 6000000

Trains sapg.py and cpo.py at four temperatures and writes benchmarks/results/coupling/{env_id}.csv, .png (KL matrices
over time, rows from, columns to, the first is the leader; white: nearest) and a Markdown table: means over the last
eleven evaluations, one every fifth iteration. Flags that this tool does not know go to the scripts. Runs already in the
csv are not repeated.
Needs matplotlib, which is not among the requirements.
"""

import argparse
import csv
import io
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor, as_completed

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
CPO = ["cpo.py", "--adversarial-coef", "0"]  # as in CPO 7.2
VARIANTS = {
    "SAPG": ["sapg.py"],
    "CPO, no pull": [*CPO, "--awac-coef", "0"],
    **{f"CPO({x})": [*CPO, "--awac-temperature", x] for x in ("0.5", "0.2", "0.1", "0.05")},
}
KEYS = {  # column of the table -> what is logged
    "IS deviation": "population/is_ratio_deviation",
    "median abs log ratio": "population/is_log_ratio_median",
    "ESS rate": "population/ess_rate",
    "used": "population/off_policy_used",
    "KL to leader": "population/kl_to_leader",
    "leader nearest": "population/leader_is_nearest",
    "leader's objective": "charts/leader_objective",
    "leader's return": "charts/leader_return",
}
TEMPERATURES = [variant for variant in VARIANTS if "(" in variant]
DRAWN, MOMENTS, EVALUATIONS = ("SAPG", "CPO(0.2)"), 6, 11


def run(variant, seed, flags):
    """One training run -> rows of the csv, and the KL matrices as encoded images at evenly spaced moments."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        script, *own = VARIANTS[variant]
        command = [sys.executable, str(ROOT / script), "--seed", str(seed), "--diagnostics-interval", "5"]
        subprocess.run([*command, *own, *flags], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
        sizes = {"scalars": 0, "images": 0}
        events = EventAccumulator(str(next(pathlib.Path(folder, "runs").iterdir())), size_guidance=sizes)
        events.Reload()
        steps = {e.step for e in events.Scalars(KEYS["ESS rate"])}
        rows = []
        for name, key in KEYS.items():
            values = [e for e in events.Scalars(key) if e.step in steps]
            rows += [(variant, seed, name, e.step, f"{e.value:.5g}") for e in values]
        images = events.Images("population/kl_matrix")
        moments = [round((i + 1) * len(images) / MOMENTS) - 1 for i in range(MOMENTS)]
    print(variant, seed, *rows[-1][2:], flush=True)
    return rows, [(images[i].step, images[i].encoded_image_string) for i in moments]


def draw(path, drawn):
    """drawn: variant -> [(step, encoded image)]."""
    figure, axes = plt.subplots(len(drawn), MOMENTS, figsize=(1.7 * MOMENTS, 2.0 * len(drawn)), squeeze=False)
    for row, (variant, images) in zip(axes, drawn.items()):
        for axis, (step, image) in zip(row, images):
            axis.imshow(plt.imread(io.BytesIO(image)))
            axis.set(title=f"{variant}, {step / 1e6:.2g} M", xticks=[], yticks=[])
            axis.title.set_fontsize(8)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def table(path, variants):
    """Means over the last evaluations and all seeds, as Markdown, and the steps of the last evaluation."""
    values, last = defaultdict(list), 0
    with path.open() as file:
        for row in csv.DictReader(file):
            values[row["variant"], row["seed"], row["key"]].append(float(row["value"]))
            last = max(last, int(row["step"]))
    seeds = sorted({seed for _, seed, _ in values})
    print(f"\n{path.stem}, at {last:,} steps, {len(seeds)} seeds\n")
    print(f"| | {' | '.join(KEYS)} |\n|-|{'-|' * len(KEYS)}")
    for variant in variants:
        means = []
        for key in KEYS:
            found = [statistics.mean(x[-EVALUATIONS:]) for (v, _, k), x in values.items() if (v, k) == (variant, key)]
            means.append(f"{statistics.mean(found):.3g}")
        print(f"| {variant} | {' | '.join(means)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env_id")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--awac-coef", default="0.001", help="beta; any but 0.001: the four temperatures only")
    parser.add_argument("--workers", type=int, default=1, help="runs at the same time, one thread each")
    args, flags = parser.parse_known_args()
    usual, variants = args.awac_coef == "0.001", list(VARIANTS)
    if not usual:
        variants = TEMPERATURES
        for variant in variants:
            VARIANTS[variant] += ["--awac-coef", args.awac_coef]
    name = args.env_id + ("" if usual else f"-beta{args.awac_coef}")
    path = ROOT / "benchmarks" / "results" / "coupling" / f"{name}.csv"
    path.parent.mkdir(exist_ok=True)
    done = set()
    if path.exists():
        with path.open() as file:
            done = {(row["variant"], int(row["seed"])) for row in csv.DictReader(file)}
    else:
        path.write_text("variant,seed,key,step,value\n")
    jobs = [(v, s) for s in range(1, args.seeds + 1) for v in variants if (v, s) not in done]
    flags, drawn = ["--env-id", args.env_id, *flags], {}
    with ThreadPoolExecutor(args.workers) as pool:
        futures = {pool.submit(run, *job, flags): job for job in jobs}
        for future in as_completed(futures):
            rows, images = future.result()
            with path.open("a", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(rows)
            variant, seed = futures[future]
            if seed == 1 and variant in DRAWN:
                drawn[variant] = images
                draw(path.with_suffix(".png"), drawn)
    table(path, variants)


if __name__ == "__main__":
    main()
