"""Draw learning curves as PNG files, of runs or of experiments.

    python -m benchmarks.scripts.plot runs/A runs/B [--tag charts/leader_return losses/*] [--out curves.png]
    python -m benchmarks.scripts.plot moat [--tag charts/leader_return]

Runs: a panel per tag, a line per run, against environment steps. An experiment's csv: a panel per variant with the
median over seeds, the band between the quartiles, in grey the first variant's median, and in the last panel every
seed's final value; written to benchmarks/results/EXPERIMENT[-TAG].png. Needs matplotlib (`pip install matplotlib`).
"""

import argparse
import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks.scripts.collect import read_curves  # noqa: E402
from benchmarks.scripts.experiments import RESULTS, experiment_names, read_experiment  # noqa: E402
from benchmarks.scripts.summarize import read_curves as read_csv_curves  # noqa: E402
from benchmarks.scripts.summarize import read_values  # noqa: E402

MAX_COLUMNS = 4
TAGS = ("charts/leader_return", "charts/leader_objective", "charts/reward_per_step")


def panels(count):
    """A figure with `count` axes, and the axes, against environment steps in millions."""
    columns = min(count, MAX_COLUMNS)
    rows = -(-count // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.4 * columns, 2.8 * rows + 1.0), squeeze=False, layout="constrained"
    )
    for axis in axes.flatten()[count:]:
        axis.remove()
    figure.supxlabel("million environment steps", fontsize=9)
    return figure, axes.flatten()[:count]


def save(figure, path):
    figure.savefig(path, dpi=90)
    plt.close(figure)
    print(path)


def thin(steps, values):
    """A curve (K,) as at most 200 means over equal parts, so that noise does not hide it; steps in millions."""
    parts = np.array_split(np.arange(len(values)), min(200, len(values)))
    return [steps[part].mean() / 1e6 for part in parts], [values[part].mean() for part in parts]


def draw_runs(folders, tags, path):
    """The curves that scripts logged in these folders under tags, or patterns of tags, that match."""
    curves = {folder: read_curves(folder, tags) for folder in folders}
    found = list(dict.fromkeys(tag for each in curves.values() for tag in each))
    if not found:
        raise SystemExit(f"no run has logged {' '.join(tags)}")
    figure, axes = panels(len(found))
    for axis, tag in zip(axes, found):
        for i, (folder, each) in enumerate(curves.items()):
            if tag in each:
                axis.plot(*thin(*each[tag]), f"C{i}", lw=1.2)
        axis.set_title(tag, fontsize=8)
    lines = [plt.Line2D([], [], color=f"C{i}") for i in range(len(folders))]
    figure.legend(lines, [folder.name for folder in folders], loc="outside upper left", fontsize=8)
    save(figure, path)


def quartiles(curves):
    """curves: seed -> (steps, values). Returns common steps in millions (K,), quartiles over seeds (3, K)."""
    longest = max((steps for steps, _ in curves.values()), key=len)
    steps = longest[longest <= min(steps[-1] for steps, _ in curves.values())]
    values = np.stack([np.interp(steps, *curve) for curve in curves.values()])
    return steps / 1e6, np.quantile(values, [0.25, 0.5, 0.75], 0)


def draw_experiment(curves, finals, label, path):
    """curves, finals: of `summarize.py`'s read_curves and read_values; label: of the vertical axis."""
    figure, axes = panels(len(curves) + 1)
    reference = None
    for axis, (variant, seeds) in zip(axes, curves.items()):
        steps, (low, median, high) = quartiles(seeds)
        if reference is not None:
            axis.plot(*reference, color="0.6", lw=1.0, ls="--")
        reference = reference or (steps, median)
        axis.fill_between(steps, low, high, alpha=0.3, lw=0)
        axis.plot(steps, median, lw=1.5)
        axis.set_title(f"{variant} (seeds: {len(seeds)})", fontsize=8)
        axis.sharey(axes[0])
    for i, seeds in enumerate(finals.values()):
        axes[-1].plot([i] * len(seeds), list(seeds.values()), "o", ms=4, alpha=0.5)
        axes[-1].plot(i, np.median(list(seeds.values())), "k_", ms=14)
    axes[-1].set_title("final value, every seed", fontsize=8)
    axes[-1].set_xticks(range(len(finals)), finals, rotation=90, fontsize=6)
    axes[0].set_ylabel(label)
    save(figure, path)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = experiment_names()
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"a run's folder, or one of {', '.join(names)}")
    parser.add_argument("--tag", nargs="+", help="what to draw; of an experiment one tag, by default its score")
    parser.add_argument("--out", type=pathlib.Path, default="curves.png", help="the file for runs")
    args = parser.parse_args(argv)
    folders = [pathlib.Path(name) for name in args.names if name not in names]
    missing = [str(folder) for folder in folders if not folder.is_dir()]
    if missing:
        parser.error(f"{' '.join(missing)}: neither a run's folder nor an experiment")
    if folders:
        draw_runs(folders, args.tag or TAGS, args.out)
    for name in [name for name in args.names if name in names]:
        tag = args.tag[0] if args.tag else read_experiment(name).score
        short, path = tag.split("/")[-1], RESULTS / f"{name}.csv"
        picture = RESULTS / (f"{name}-{short}.png" if args.tag else f"{name}.png")
        draw_experiment(read_csv_curves(path, tag), read_values(path, tag), short.replace("_", " "), picture)


if __name__ == "__main__":
    main()
