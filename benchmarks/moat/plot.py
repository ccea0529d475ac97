"""Draw a picture of each csv file, and print their tables: `python benchmarks/moat/plot.py`.

Needs matplotlib, which is not among the requirements.
"""

import csv
import pathlib
import statistics
from collections import defaultdict

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent


def main():
    for name in ("population", "mu", "targets"):
        curves = defaultdict(lambda: defaultdict(list))  # label -> seed -> [(step, objective)]
        with (HERE / f"{name}.csv").open() as file:
            for row in csv.DictReader(file):
                curves[row["name"]][int(row["seed"])].append((int(row["step"]), float(row["leader_objective"])))
        figure, axes = plt.subplots(1, len(curves) + 1, figsize=(3.2 * (len(curves) + 1), 3.2), sharey=True)
        print(f"\n{name}\n\n| | seeds | median | minimum | at 12 or more | final objectives |\n|-|-|-|-|-|-|")
        for i, (label, seeds) in enumerate(curves.items()):
            for seed in seeds.values():
                axes[i].plot(*zip(*seed), lw=0.8)
            axes[i].set(title=label, xlabel="environment steps", ylim=(0, 16.5))
            finals = [seed[-1][1] for seed in seeds.values()]
            axes[-1].plot([i] * len(finals), finals, "o", alpha=0.5)
            axes[-1].plot(i, statistics.median(finals), "k_", ms=18)
            share = sum(final >= 12 for final in finals) / len(finals)
            numbers = ", ".join(f"{final:.1f}" for final in finals)
            summary = f"{len(finals)} | {statistics.median(finals):.1f} | {min(finals):.1f} | {share:.0%}"
            print(f"| {label} | {summary} | {numbers} |")
        axes[0].set_ylabel("leader's final value")
        axes[-1].set(title="final, every seed", xticks=range(len(curves)))
        axes[-1].set_xticklabels(curves, rotation=30, ha="right", fontsize=7)
        figure.tight_layout()
        figure.savefig(HERE / f"{name}.png", dpi=110)


if __name__ == "__main__":
    main()
