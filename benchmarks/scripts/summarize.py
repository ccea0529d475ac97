"""Tables of an experiment's csv: `python benchmarks/scripts/summarize.py moat [--versus "PPO, 16 minibatches"]`.

Per variant the median, the inter-quartile mean with a bootstrap interval over seeds, the share of seeds at or above
the experiment's threshold and every seed's value; then each variant's probability of improvement over one of them.
Definitions: Agarwal et al. 2021 (arXiv 2108.13264). Several experiments count as several tasks: a table each, and
one probability of improvement over all of them. `--value best`, `mean`, `first_above` in place of `final`: see run.py.
`--pooled VARIANT ...` adds the mean of these variants' probabilities; `--versus` says over which.
"""

import argparse
import csv
import itertools
import pathlib
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.scripts.experiments import EXPERIMENTS  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
RESAMPLES = 5_000
CONFIDENCE = 0.95
FEW = 6  # seeds; with so many or fewer on both sides a test by all permutations is made too


def interquartile_mean(scores):
    """Mean of the middle half of scores (R,): int(R / 4) are left out at either end. Also of (..., R), per row."""
    scores = np.sort(np.asarray(scores, dtype=float), -1)
    count = scores.shape[-1] // 4
    return scores[..., count : scores.shape[-1] - count].mean(-1)


def probability_of_improvement(x, y):
    """P(X > Y) + P(X = Y) / 2 for runs x (..., R) and y (..., S) of two algorithms on one task."""
    x, y = np.asarray(x, dtype=float)[..., :, None], np.asarray(y, dtype=float)[..., None, :]
    return ((x > y) + 0.5 * (x == y)).mean((-2, -1))


def resample(scores, generator):
    """Bootstrap: scores (R,) -> (RESAMPLES, R), drawn with replacement."""
    return generator.choice(np.asarray(scores, dtype=float), (RESAMPLES, len(scores)))


def interval(statistics):
    """The CONFIDENCE percentile interval of a bootstrapped statistic (RESAMPLES,): low, high."""
    quantiles = [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]
    return tuple(np.quantile(statistics, quantiles, method="nearest"))  # finite where some are inf: "first_above"


def interquartile_mean_interval(tasks, seed=0):
    """IQM of all runs of all tasks, a list of scores (R,), and its interval; seeds are resampled within each task."""
    generator = np.random.default_rng(seed)
    resampled = np.concatenate([resample(scores, generator) for scores in tasks], -1)
    return (interquartile_mean(np.concatenate(tasks)), *interval(interquartile_mean(resampled)))


def improvement_interval(pairs, seed=0):
    """Probability of improvement, mean over tasks [(x (R,), y (S,)), ...], and its interval."""
    generator = np.random.default_rng(seed)
    resampled = [probability_of_improvement(resample(x, generator), resample(y, generator)) for x, y in pairs]
    return (np.mean([probability_of_improvement(x, y) for x, y in pairs]), *interval(np.mean(resampled, 0)))


def pooled_improvement_interval(variants, y, seed=0):
    """Probability of improvement over y (S,), mean over variants [x (R,), ...] of the same task, and its interval."""
    generator = np.random.default_rng(seed)
    resampled_y = resample(y, generator)
    resampled = [probability_of_improvement(resample(x, generator), resampled_y) for x in variants]
    return (np.mean([probability_of_improvement(x, y) for x in variants]), *interval(np.mean(resampled, 0)))


def rank_sum_p(x, y):
    """p-value of x (R,), y (S,) coming from one distribution: two-sided exact permutation test of P(X > Y)."""
    pooled, count = np.concatenate([x, y]), len(x)
    observed = abs(probability_of_improvement(x, y) - 0.5)
    extreme = []
    for chosen in itertools.combinations(range(len(pooled)), count):
        rest = np.delete(pooled, chosen)
        extreme.append(abs(probability_of_improvement(pooled[list(chosen)], rest) - 0.5) >= observed - 1e-9)
    return float(np.mean(extreme))


def share_at_least(scores, threshold):
    """Share of scores (R,) at or above threshold."""
    return float((np.asarray(scores) >= threshold).mean())


# ---------------------------------------------------------------- the csv files


def read_rows(path):
    """The numbers of a csv that run.py wrote, seed as int, value as float."""
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


def scores_table(values, threshold=None, sign=1):
    """Markdown lines for values: variant -> {seed: value}. sign: -1 where a smaller value is better."""
    head = ["", "seeds", "median", f"IQM ({CONFIDENCE:.0%} interval)"]
    head += [f"at {threshold:g} or more"] if threshold is not None else []
    head += ["worst", "every seed"]
    lines = ["| " + " | ".join(head) + " |", "|-" * len(head) + "|"]
    for variant, seeds in values.items():
        scores = np.array(list(seeds.values()))
        iqm, low, high = interquartile_mean_interval([scores])
        cells = [variant, str(len(scores)), f"{np.median(scores):.4g}", f"{iqm:.4g} ({low:.4g} to {high:.4g})"]
        cells += [f"{share_at_least(scores, threshold):.0%}"] if threshold is not None else []
        cells += [f"{sign * (sign * scores).min():.4g}", ", ".join(f"{score:.4g}" for score in scores)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def improvement_table(experiments, baseline, sign=1):
    """Markdown lines; experiments: a list of variant -> {seed: value}, one per task, all of which have the baseline.

    sign: -1 where a smaller value is better. With few seeds the interval is too narrow, hence the p-value.
    """
    lines = [f"| | probability of improvement over {baseline} ({CONFIDENCE:.0%} interval) | p |", "|-|-|-|"]
    for variant in experiments[0]:
        if variant == baseline or not all(variant in values for values in experiments):
            continue
        pairs = [
            tuple(sign * np.array(list(values[name].values())) for name in (variant, baseline))
            for values in experiments
        ]
        exact = len(pairs) == 1 and max(map(len, pairs[0])) <= FEW
        p = f"{rank_sum_p(*pairs[0]):.2g}" if exact else ""
        lines.append("| {} | {:.2f} ({:.2f} to {:.2f}) | {} |".format(variant, *improvement_interval(pairs), p))
    return lines


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ", ".join(EXPERIMENTS)
    parser.add_argument("experiments", nargs="+", choices=EXPERIMENTS, metavar="EXPERIMENT", help=names)
    parser.add_argument("--tag", help="the score (the experiment's first tag)")
    parser.add_argument("--value", default="final", choices=("final", "best", "mean", "first_above"))
    parser.add_argument("--threshold", type=float, help="of a success (the experiment's, for its final score)")
    parser.add_argument("--versus", help="the variant that the others are compared with (the first)")
    parser.add_argument("--pooled", nargs="+", default=(), metavar="VARIANT", help="variants of a single experiment")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    args = parser.parse_args(argv)
    tables, sign = [], -1 if args.value == "first_above" else 1
    for name in args.experiments:
        experiment, path = EXPERIMENTS[name], args.results / f"{name}.csv"
        if not path.exists():
            parser.error(f"{path}: does not exist; python benchmarks/scripts/run.py {name}")
        tag = args.tag or experiment.tags[0]
        values = read_values(path, tag, args.value)
        if not values:
            parser.error(f"{path}: has no {args.value} of {tag}")
        threshold = args.threshold
        if threshold is None and tag == experiment.tags[0] and args.value == "final":
            threshold = experiment.threshold
        print(f"\n{name}: {args.value} {tag}\n", *scores_table(values, threshold, sign), sep="\n")
        tables.append(values)
    baseline = args.versus or next(iter(tables[0]))
    if not all(baseline in values for values in tables):
        parser.error(f"--versus {baseline}: must be a variant of every experiment")
    print("", *improvement_table(tables, baseline, sign), sep="\n")
    if args.pooled:
        unknown = [name for name in args.pooled if name not in tables[0]]
        if unknown or len(tables) > 1:
            parser.error(f"--pooled {' '.join(unknown)}: must be variants of a single experiment")
        scores = {name: sign * np.array(list(seeds.values())) for name, seeds in tables[0].items()}
        found = pooled_improvement_interval([scores[name] for name in args.pooled], scores[baseline])
        print("\npooled: {:.2f} ({:.2f} to {:.2f})".format(*found))


if __name__ == "__main__":
    main()
