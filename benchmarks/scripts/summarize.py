"""Tables of experiments' results: `python -m benchmarks.scripts.summarize moat --versus "PPO, 64 minibatches"`.

A row per variant: seeds, median, worst seed, share of seeds at or above --threshold; P, the probability that a run of
this variant has a larger value than a run of --versus, ties counting half; p of the two-sided rank-sum test, exact.

With --columns "PPO, 4 minibatches" becomes row "PPO" and column "4 minibatches"; there is a column per experiment, size
and tag. A cell has the median, and in brackets P and p over the first row of its column, or with --against EXPERIMENT
over the variant of the same name there.
"""

import argparse
import re

import numpy as np

from benchmarks.scripts.collect import read_all, read_csv
from benchmarks.scripts.experiments import experiment_names, read_experiment
from benchmarks.scripts.help import HelpFormatter


def improvement(x, y):
    """P(X > Y) + P(X = Y) / 2 for runs x (R,) and y (S,)."""
    x = np.asarray(x, dtype=float)[:, None]
    y = np.asarray(y, dtype=float)
    return ((x > y) + 0.5 * (x == y)).mean()


def rank_sum_p(x, y):
    """Two-sided p-value of the sum of the ranks of x (R,) among x and y (S,), exact; equal values share their ranks."""
    pooled = np.concatenate([x, y])
    ranks = [2 * int((pooled < value).sum()) + int((pooled == value).sum()) for value in pooled]
    ways = np.zeros((len(x) + 1, sum(ranks) + 1))  # how many choices of so many ranks have this sum
    ways[0, 0] = 1.0
    for rank in ranks:
        ways[1:, rank:] += ways[:-1, :-rank].copy()
    expected = len(x) * sum(ranks) / len(pooled)
    extreme = abs(np.arange(sum(ranks) + 1) - expected) >= abs(sum(ranks[: len(x)]) - expected) - 1e-9
    return ways[-1, extreme].sum() / ways[-1].sum()


# ---------------------------------------------------------------- results


def read_numbers(experiment, unfinished=False):
    """[(variant, seed, tag, step, value), ...]; step is text, see collect.py. unfinished: also of runs under way."""
    rows = read_all(experiment, unfinished=True) if unfinished else read_csv(experiment)
    if not rows:
        raise SystemExit(f"{experiment.name}: no results yet; python -m benchmarks.scripts.run {experiment.name}")
    numbers = []
    for _, variant, seed, tag, step, value in rows:
        if tag != "commit":
            numbers.append((variant, int(seed), tag, str(step), float(value)))
    return numbers


def select_values(numbers, wanted_tag, wanted_step="final"):
    """variant -> {seed: value}, in the order of `numbers`."""
    found = {}
    for variant, seed, tag, step, value in numbers:
        if tag == wanted_tag and step == wanted_step:
            found.setdefault(variant, {})[seed] = value
    return found


def select_curves(numbers, wanted_tag):
    """variant -> {seed: (steps, values)}, arrays, in the order of `numbers`."""
    points = {}
    for variant, seed, tag, step, value in numbers:
        if tag == wanted_tag and step.isdigit():
            points.setdefault(variant, {}).setdefault(seed, []).append((int(step), value))
    return {variant: {seed: tuple(np.array(p).T) for seed, p in seeds.items()} for variant, seeds in points.items()}


# ---------------------------------------------------------------- tables


def number(value):
    decimals = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{decimals}f}"


def comparison(x, y):
    """P and p of runs x (R,) over runs y (S,) as text."""
    p = rank_sum_p(x, y)
    return f"{improvement(x, y):.2f}, p {p:.1g}" if p >= 0.001 else f"{improvement(x, y):.2f}, p < 0.001"


def list_table(scores, threshold, versus, sign):
    """Rows of cells for scores: variant -> (R,). sign: -1 where a smaller value is better."""
    head = ["", "seeds", "median", "worst", *([f"at {threshold:g} or more"] if threshold else []), f"over {versus}"]
    rows = [head]
    for variant, values in scores.items():
        cells = [variant, str(len(values)), number(np.median(values)), number(sign * (sign * values).min())]
        cells += [f"{(values >= threshold).mean():.0%}"] if threshold else []
        rows.append([*cells, "" if variant == versus else comparison(sign * values, sign * scores[versus])])
    return rows


def column_table(columns, others, sign):
    """Rows of cells for columns: title -> {row: (R,)}. others: the same, to compare with; None: with the first row."""
    names = list(dict.fromkeys(name for column in (others or columns).values() for name in column))
    rows = [["", *columns]]
    for name in names:
        cells = [name]
        for title, column in columns.items():
            first = next(iter(column))
            other = others.get(title, {}).get(name) if others else column[first] if name != first else None
            text = number(np.median(column[name])) if name in column else ""
            if text and other is not None:
                text += f" ({comparison(sign * column[name], sign * other)})"
            cells.append(text)
        rows.append(cells)
    return rows


def parse_args(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    names = experiment_names()
    parser.add_argument("experiments", nargs="+", choices=names, metavar="EXPERIMENT", help=", ".join(names))
    parser.add_argument("--tag", nargs="+", help="what is compared (each experiment's score); several with --columns")
    parser.add_argument("--value", default="final", choices=("final", "first_above"), help="see collect.py")
    parser.add_argument("--threshold", type=float, help="a value at or above this is a success")
    parser.add_argument("--variants", nargs="+", help="only these variants")
    parser.add_argument("--versus", help="the variant that the others are compared with (the first)")
    parser.add_argument("--columns", action="store_true", help="a column per experiment, size and tag")
    parser.add_argument("--against", choices=names, metavar="EXPERIMENT", help="with --columns")
    parser.add_argument("--unfinished", action="store_true", help="with runs under way, as far as they have come")
    return parser.parse_args(argv)


def main(argv=None):
    args = parse_args(argv)
    sign = -1.0 if args.value == "first_above" else 1.0  # the earlier the better

    names = [*args.experiments, args.against] if args.against else args.experiments
    scores = {}  # variant -> values
    columns = {}  # experiment -> title of a column -> name of a row -> values
    for name in names:
        experiment = read_experiment(name)
        numbers = read_numbers(experiment, args.unfinished)
        columns[name] = {}
        for tag in args.tag or [experiment.score]:
            for variant, seeds in select_values(numbers, tag, args.value).items():
                if args.variants and variant not in args.variants:
                    continue
                if variant in scores and not args.columns:
                    raise SystemExit(f"{variant} is in several columns: add --columns")
                scores[variant] = np.array(list(seeds.values()))
                row, _, size = variant.rpartition(", ") if ", " in variant else (variant, "", "")
                title = [name] if len(args.experiments) > 1 else []
                title += [size] if size else []
                title += [re.sub("charts/|population/", "", tag)] if len(args.tag or ()) > 1 else []
                columns[name].setdefault(", ".join(title), {})[row] = scores[variant]
    if not scores:
        raise SystemExit("no variant has such a value")
    if args.columns:
        chosen = {title: column for name in args.experiments for title, column in columns[name].items()}
        table = column_table(chosen, columns.get(args.against), sign)
    else:
        table = list_table(scores, args.threshold, args.versus or next(iter(scores)), sign)
    head, *rows = ["|" + "".join(f" {cell} |" if cell else " |" for cell in cells) for cells in table]
    print(head, "|-" * len(table[0]) + "|", *rows, sep="\n")


if __name__ == "__main__":
    main()
