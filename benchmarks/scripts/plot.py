"""Draw an experiment's csv: `python benchmarks/scripts/plot.py moat` writes benchmarks/results/moat.png.

One panel per variant: the median over seeds, the band between the quartiles, in grey the first variant's median. The
last panel shows every seed's final value and their median. Needs matplotlib, which is not among the requirements.
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

from benchmarks.scripts.experiments import EXPERIMENTS  # noqa: E402
from benchmarks.scripts.summarize import RESULTS, read_curves, read_values  # noqa: E402

MAX_COLUMNS = 6


def quartiles(curves):
    """curves: seed -> (steps, values). Returns steps (K,) and the quartiles over seeds (3, K), at the common steps."""
    longest = max((steps for steps, _ in curves.values()), key=len)
    steps = longest[longest <= min(steps[-1] for steps, _ in curves.values())]
    values = np.stack([np.interp(steps, *curve) for curve in curves.values()])
    return steps, np.quantile(values, [0.25, 0.5, 0.75], 0)


def draw(curves, finals, label, path):
    """curves, finals: of `read_curves` and `read_values`; label: of the vertical axis; path: the PNG to write."""
    columns = min(len(curves) + 1, MAX_COLUMNS)
    rows = -(-(len(curves) + 1) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.4 * columns, 2.8 * rows + 1.0), sharey=True, squeeze=False)
    axes, reference = axes.flatten(), None
    for axis, (variant, seeds) in zip(axes, curves.items()):
        steps, (low, median, high) = quartiles(seeds)
        if reference is not None:
            axis.plot(*reference, color="0.6", lw=1.0, ls="--")
        reference = reference or (steps, median)
        axis.fill_between(steps, low, high, alpha=0.3, lw=0)
        axis.plot(steps, median, lw=1.5)
        axis.set_title(f"{variant} (seeds: {len(seeds)})", fontsize=8)
        axis.set_xlabel("environment steps", fontsize=8)
    last = axes[len(curves)]
    for i, seeds in enumerate(finals.values()):
        last.plot([i] * len(seeds), list(seeds.values()), "o", ms=4, alpha=0.5)
        last.plot(i, np.median(list(seeds.values())), "k_", ms=14)
    last.set_title("final value, every seed", fontsize=8)
    last.set_xticks(range(len(finals)), finals, rotation=90, fontsize=6)
    for axis in axes[len(curves) + 1 :]:
        axis.remove()
    for axis in axes[::columns]:
        axis.set_ylabel(label)
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    plt.close(figure)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ", ".join(EXPERIMENTS)
    parser.add_argument("experiments", nargs="+", choices=EXPERIMENTS, metavar="EXPERIMENT", help=names)
    parser.add_argument("--tag", help="what to draw (the experiment's first tag)")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    args = parser.parse_args(argv)
    for name in args.experiments:
        tag, path = args.tag or EXPERIMENTS[name].tags[0], args.results / f"{name}.csv"
        if not path.exists():
            parser.error(f"{path}: does not exist; python benchmarks/scripts/run.py {name}")
        suffix = "-" + tag.split("/")[-1] if args.tag else ""
        curves = read_curves(path, tag)
        if not curves:
            parser.error(f"{path}: has no curve of {tag}")
        label = tag.split("/")[-1].replace("_", " ")
        draw(curves, read_values(path, tag), label, path.with_name(f"{name}{suffix}.png"))


if __name__ == "__main__":
    main()
