"""Tables of experiments' csv files: `python -m benchmarks.scripts.summarize moat --versus "PPO, 64 minibatches"`.

A row per variant: seeds, median, worst seed, share of seeds at or above --threshold; P, the probability that a run of
this variant has a larger value than a run of --versus, ties counting half; p of the two-sided rank-sum test, exact.

With --columns "PPO, 4 minibatches" becomes row "PPO" and column "4 minibatches"; there is a column per experiment, size
and tag. A cell has the median, and in brackets P and p over the first row of its column, or with --against EXPERIMENT
over the variant of the same name there.
"""

import argparse
import csv
import re

import numpy as np

from benchmarks.scripts.experiments import RESULTS, experiment_names, read_experiment


def improvement(x, y):
    """P(X > Y) + P(X = Y) / 2 for runs x (R,) and y (S,)."""
    x, y = np.asarray(x, dtype=float)[:, None], np.asarray(y, dtype=float)
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


# ---------------------------------------------------------------- the csv files


def read_rows(path):
    """The numbers of a csv that collect.py wrote, seed as int, value as float."""
    with open(path, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["tag"] != "commit"]
    return [dict(row, seed=int(row["seed"]), value=float(row["value"])) for row in rows]


def read_values(path, tag, step="final"):
    """variant -> {seed: value}, in the order of the file."""
    found = {}
    for row in read_rows(path):
        if row["tag"] == tag and row["step"] == step:
            found.setdefault(row["variant"], {})[row["seed"]] = row["value"]
    return found


def read_curves(path, tag):
    """variant -> {seed: (steps, values)}, arrays, in the order of the file."""
    found = {}
    for row in read_rows(path):
        if row["tag"] == tag and row["step"].isdigit():
            found.setdefault(row["variant"], {}).setdefault(row["seed"], []).append((int(row["step"]), row["value"]))
    return {
        variant: {seed: tuple(np.array(curve).T) for seed, curve in seeds.items()} for variant, seeds in found.items()
    }


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = experiment_names()
    parser.add_argument("experiments", nargs="+", choices=names, metavar="EXPERIMENT", help=", ".join(names))
    parser.add_argument("--tag", nargs="+", help="what is compared (each experiment's score); several with --columns")
    parser.add_argument("--value", default="final", choices=("final", "first_above"), help="see collect.py")
    parser.add_argument("--threshold", type=float, help="a value at or above this is a success")
    parser.add_argument("--variants", nargs="+", help="only these variants")
    parser.add_argument("--versus", help="the variant that the others are compared with (the first)")
    parser.add_argument("--columns", action="store_true", help="a column per experiment, size and tag")
    parser.add_argument("--against", choices=names, metavar="EXPERIMENT", help="with --columns")
    return parser.parse_args(argv)


def main(argv=None):
    args = parse_args(argv)
    sign = -1.0 if args.value == "first_above" else 1.0  # the earlier the better

    names = [*args.experiments, *([args.against] if args.against else [])]
    scores, columns = {}, {name: {} for name in names}  # experiment -> title -> row -> values
    for name in names:
        for tag in args.tag or [read_experiment(name).score]:
            for variant, seeds in read_values(RESULTS / f"{name}.csv", tag, args.value).items():
                if args.variants and variant not in args.variants:
                    continue
                row, _, size = variant.rpartition(", ") if ", " in variant else (variant, "", "")
                title = [name] * (len(args.experiments) > 1) + [size] * bool(size)
                title += [re.sub("charts/|population/", "", tag)] * (len(args.tag or ()) > 1)
                if variant in scores and not args.columns:
                    raise SystemExit(f"{variant} is in several columns: add --columns")
                scores[variant] = np.array(list(seeds.values()))
                columns[name].setdefault(", ".join(title), {})[row] = scores[variant]
    if args.columns:
        chosen = {title: column for name in args.experiments for title, column in columns[name].items()}
        table = column_table(chosen, columns.get(args.against), sign)
    else:
        table = list_table(scores, args.threshold, args.versus or next(iter(scores)), sign)
    head, *rows = ["|" + "".join(f" {cell} |" if cell else " |" for cell in cells) for cells in table]
    print(head, "|-" * len(table[0]) + "|", *rows, sep="\n")


if __name__ == "__main__":
    main()
