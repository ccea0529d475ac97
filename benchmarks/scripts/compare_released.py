"""PointReach: our learning curves beside those of the released SAPG code, from the csv files in benchmarks/results/.

    python benchmarks/scripts/run.py point_reach
    python benchmarks/scripts/compare_released.py

Prints, per variant, the first iteration with a leader return above 30 (median over seeds) and each seed's mean over
iterations 281 to 300; writes point_reach_released.png. released_point_reach.csv was recorded with the released code,
unmodified, on this task and at these settings: PPO seeds 0 to 3, SAPG with 4 agents (leader-follower) seeds 0 to 5.
Needs matplotlib, which is not among the requirements.
"""

import argparse
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.scripts.experiments import POINT_REACH_STEPS  # noqa: E402
from benchmarks.scripts.plot import quartiles  # noqa: E402
from benchmarks.scripts.summarize import RESULTS, read_curves, read_values  # noqa: E402

TAG = "charts/leader_return"
RELEASED = {"released PPO": "PPO", "released SAPG-4": "SAPG-4"}  # -> the variants of ours that it is compared with


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    args = parser.parse_args(argv)
    paths = [args.results / name for name in ("released_point_reach.csv", "point_reach.csv")]
    for path in paths:
        if not path.exists():
            parser.error(f"{path}: does not exist; see --help")
    first, final, curves = {}, {}, {}
    for path in paths:
        first.update(read_values(path, TAG, "first_above"))
        final.update(read_values(path, TAG))
        curves.update(read_curves(path, TAG))
    print("| | seeds | first iteration above 30, median | iterations 281-300: minimum | every seed |")
    print("|-|-|-|-|-|")
    for variant, seeds in final.items():
        iterations = [step / POINT_REACH_STEPS for step in first[variant].values()]
        values = list(seeds.values())
        every = ", ".join(f"{value:.1f}" for value in values)
        print(f"| {variant} | {len(values)} | {np.median(iterations):g} | {min(values):.1f} | {every} |")

    figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True)
    for axis, (released, ours) in zip(axes, RELEASED.items()):
        for variant, seeds in curves.items():
            if variant.split(",")[0].split(" (")[0] not in (released, ours):
                continue
            steps, (low, median, high) = quartiles(seeds)
            (line,) = axis.plot(steps / POINT_REACH_STEPS, median, label=f"{variant} (seeds: {len(seeds)})")
            axis.fill_between(steps / POINT_REACH_STEPS, low, high, alpha=0.2, lw=0, color=line.get_color())
        axis.set(title=f"PointReach, {ours}", xlabel="iteration")
        axis.legend(fontsize=8)
    axes[0].set_ylabel("leader's return: median and quartiles")
    figure.tight_layout()
    figure.savefig(args.results / "point_reach_released.png", dpi=90)
    plt.close(figure)


if __name__ == "__main__":
    main()
