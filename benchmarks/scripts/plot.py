"""Draw learning curves as PNG files, of runs or of experiments. Needs matplotlib.

    python -m benchmarks.scripts.plot runs/* [--tag charts/leader_return losses/*] [--out curves.png]
    python -m benchmarks.scripts.plot moat [--tag charts/leader_return] [--variants PPO EPO] [--out curves.png]

Runs: a row of panels per task and a panel per tag. Runs of the same script, or --exp-name, with different seeds are one
line, their median, with a band between the quartiles; each of several with the same seed has a line of its own.

An experiment's csv: a panel per variant with the same line and band, in grey the first variant's median, and in the
last panel every seed's final value; written to benchmarks/results/EXPERIMENT[-TAG].png unless --out says where.
"""

import argparse
import math
import pathlib
import re

import numpy as np

try:
    from matplotlib.figure import Figure
except ModuleNotFoundError:
    raise SystemExit("plot.py draws with matplotlib, which is not installed: pip install matplotlib") from None

from benchmarks.scripts.collect import read_curves
from benchmarks.scripts.experiments import experiment_names, read_experiment
from benchmarks.scripts.help import HelpFormatter
from benchmarks.scripts.summarize import read_numbers, select_curves, select_values

MAX_COLUMNS = 4
MAX_POINTS = 200  # of a run's curve, so that noise does not hide it
TAGS = ("charts/leader_return", "charts/leader_objective", "charts/reward_per_step")


def panels(rows, columns):
    """A figure with rows x columns axes, against environment steps in millions; and the axes (rows, columns)."""
    figure = Figure(figsize=(3.4 * columns, 2.8 * rows + 1.0), layout="constrained")
    figure.supxlabel("million environment steps", fontsize=9)
    return figure, figure.subplots(rows, columns, squeeze=False)


def save(figure, path):
    figure.savefig(path, dpi=90)
    print(path)


def thin(steps, values):
    """A curve (K,) as means over at most MAX_POINTS equal parts."""
    parts = np.array_split(np.arange(len(values)), min(MAX_POINTS, len(values)))
    return np.array([steps[part].mean() for part in parts]), np.array([values[part].mean() for part in parts])


def quartiles(curves):
    """curves: [(steps, values), ...]. Returns the longest one's steps in millions (K,), quartiles at these (3, K).

    Where a curve has not begun yet, or has ended, the quartiles are those of the others.
    """
    steps = max((steps for steps, _ in curves), key=len)
    values = [np.interp(steps, *curve, left=np.nan, right=np.nan) for curve in curves]
    return steps / 1e6, np.nanquantile(values, [0.25, 0.5, 0.75], 0)


def draw_median(axis, curves, label=None):
    """The median of curves, and a band between their quartiles. Returns the median's steps and values."""
    steps, (low, median, high) = quartiles(curves)
    (line,) = axis.plot(steps, median, lw=1.5, label=label)
    axis.fill_between(steps, low, high, facecolor=line.get_color(), alpha=0.3, lw=0)
    return steps, median


# ---------------------------------------------------------------- runs


def group_runs(folders):
    """Task -> label of a line -> the folders of its runs. A folder's name is {task}__{exp name}__{seed}__{time}."""
    groups = {}
    seeds = {}
    for folder in folders:
        found = re.fullmatch(r"(.+?)__(.+)__(\d+)__\d+", folder.name)
        task, name, seed = found.groups() if found else (folder.name, folder.name, None)  # renamed
        groups.setdefault(task, {}).setdefault(name, []).append(folder)
        seeds.setdefault((task, name), []).append(seed)
    lines = {}
    for task, names in groups.items():
        lines[task] = {}
        for name, members in names.items():
            if len(set(seeds[task, name])) == len(members):
                label = f"{name} ({len(members)} seeds)" if len(members) > 1 else name
                lines[task][label] = members
            else:  # these differ in something else, such as a flag
                lines[task].update({folder.name: [folder] for folder in members})
    return lines


def draw_runs(folders, tags, path):
    """The curves that scripts logged in these folders under tags, or patterns of tags, that match."""
    curves = {folder: read_curves(folder, tags) for folder in folders}
    found = list(dict.fromkeys(tag for each in curves.values() for tag in each))
    if not found:
        raise SystemExit(f"no run has logged {' '.join(tags)}")
    tasks = group_runs(folder for folder in folders if curves[folder])
    figure, axes = panels(len(tasks), len(found))
    for row, (task, lines) in zip(axes, tasks.items()):
        for axis, tag in zip(row, found):
            for label, members in lines.items():
                logged = [thin(*curves[folder][tag]) for folder in members if tag in curves[folder]]
                if logged:
                    draw_median(axis, logged, label)
                else:
                    axis.plot([], label=label)  # its colour is the same in every panel
            axis.set_title(f"{task}\n{tag}", fontsize=8)
        row[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7)
    save(figure, path)


# ---------------------------------------------------------------- experiments


def draw_experiment(curves, finals, label, path):
    """curves, finals: of `summarize.py`'s select_curves and select_values; label: of the vertical axis."""
    count = len(curves) + 1
    rows = math.ceil(count / MAX_COLUMNS)
    columns = math.ceil(count / rows)
    figure, axes = panels(rows, columns)
    axes = axes.flatten()
    for axis in axes[count:]:
        axis.remove()
    reference = None
    for axis, (variant, seeds) in zip(axes, curves.items()):
        if reference is not None:
            axis.plot(*reference, color="0.6", lw=1.0, ls="--")
        median = draw_median(axis, list(seeds.values()))
        reference = reference or median
        axis.set_title(f"{variant} (seeds: {len(seeds)})", fontsize=8)
        axis.sharey(axes[0])
    last = axes[count - 1]
    for i, seeds in enumerate(finals.values()):
        last.plot([i] * len(seeds), list(seeds.values()), "o", ms=4, alpha=0.5)
        last.plot(i, np.median(list(seeds.values())), "k_", ms=14)
    last.set_title("final value, every seed", fontsize=8)
    last.set_xticks(range(len(finals)), finals, rotation=90, fontsize=6)
    axes[0].set_ylabel(label)
    save(figure, path)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    names = experiment_names()
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"a run's folder, or one of {', '.join(names)}")
    parser.add_argument("--tag", nargs="+", help="what to draw; of an experiment one tag, by default its score")
    parser.add_argument("--variants", nargs="+", help="which variants of an experiment; by default all")
    parser.add_argument("--out", type=pathlib.Path, help="the picture; by default of runs curves.png")
    args = parser.parse_args(argv)
    folders = [pathlib.Path(name) for name in args.names if name not in names]
    missing = [str(folder) for folder in folders if not folder.is_dir()]
    if missing:
        parser.error(f"{' '.join(missing)}: neither a run's folder nor an experiment")
    if folders:
        draw_runs(folders, args.tag or TAGS, args.out or "curves.png")
    for name in [name for name in args.names if name in names]:
        experiment = read_experiment(name)
        numbers = read_numbers(experiment)
        tag = args.tag[0] if args.tag else experiment.score
        short = tag.split("/")[-1]
        picture = experiment.csv.with_name(f"{name}-{short}.png" if args.tag else f"{name}.png")
        if args.out and not folders:  # with runs, --out is their picture
            picture = args.out
        curves = select_curves(numbers, tag)
        finals = select_values(numbers, tag)
        for variant in args.variants or ():
            if variant not in curves:
                parser.error(f"{name} has no variant {variant}, it has {'; '.join(curves)}")
        if args.variants:
            curves = {variant: curves[variant] for variant in args.variants}
            finals = {variant: finals[variant] for variant in args.variants}
        draw_experiment(curves, finals, short.replace("_", " "), picture)


if __name__ == "__main__":
    main()
