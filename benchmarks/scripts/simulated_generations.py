"""Are EPO's generations fair, and how often are they chance? `python -m benchmarks.scripts.simulated_generations`.

Plays epo.py's rules with followers that are all equally good, without any training, and prints the three tables of
benchmarks/generations.md.
"""

import argparse
import types

import numpy as np
import torch

import epo
import harness
from benchmarks.scripts.help import HelpFormatter
from envs.terminal import needs_output

AGENTS = 16  # the leader and 15 followers
ENVS_PER_AGENT = 16
NUM_ENVS = AGENTS * ENVS_PER_AGENT
MEAN_LENGTH = 10.0  # steps
SEEDS = 20
FOLLOWERS = slice(epo.LEADER + 1, None)
AS_SOON_AS_JUDGED = types.SimpleNamespace(ga_warmup=0.0, ga_interval=1e-6)

CHECKS = 10_000  # of EPO Eq. 3, for each number of environments and each score
BY_GAP = types.SimpleNamespace(ga_warmup=0.0, ga_interval=0.0, ga_threshold=0.3)


def simulate(steps, seed, endless=0.0, slowness=1.0):
    """Generations among followers whose episodes score their own length, which is geometrically distributed.

    endless: the share of environments that never end an episode. slowness: how many times as long the last agent's
    episodes are, with the same scores.
    Returns, for each generation, the fitness of all agents (A,), and the agent that was replaced.
    """
    rng = np.random.default_rng(seed)
    tracker = harness.FitnessTracker(NUM_ENVS, AGENTS, "cpu")
    never_ends = rng.random(NUM_ENVS) < endless
    factor = np.ones(NUM_ENVS)
    factor[-ENVS_PER_AGENT:] = slowness
    score = rng.geometric(1.0 / MEAN_LENGTH, NUM_ENVS).astype(np.float32)
    steps_left = score * factor
    begins = np.ones(NUM_ENVS, bool)
    generations = []
    for _ in range(steps):
        steps_left -= 1.0
        done = (steps_left <= 0.0) & ~never_ends
        tracker.record(torch.tensor(begins), {"done": torch.tensor(done), "objective": torch.tensor(score)})
        score[done] = rng.geometric(1.0 / MEAN_LENGTH, done.sum())
        steps_left[done] = (score * factor)[done]
        begins = done
        fitness = tracker.fitness()
        if not tracker.can_compare(fitness, FOLLOWERS, at_least=3):
            continue
        gap, scale = epo.fitness_spread(fitness, floor=1.0)
        if epo.generation_is_due(gap, scale, tracker.episodes_per_environment(), len(generations), AS_SOON_AS_JUDGED):
            worst = epo.LEADER + 1 + fitness[FOLLOWERS].nan_to_num(torch.inf).argmin().item()
            generations.append((fitness.numpy(), worst))
            tracker.restart()
    return generations


def child_scores(generations):
    """How much fitter each child was than the followers' mean at the next generation, in their standard deviations."""
    scores = []
    for (_, child), (fitness, _) in zip(generations, generations[1:]):
        followers = fitness[FOLLOWERS]
        scores.append((fitness[child] - np.nanmean(followers)) / np.nanstd(followers))
    return [score for score in scores if np.isfinite(score)]


def format_range(values):
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def print_endless(steps, shares=(0.0, 0.05, 0.09, 0.3)):
    child = "a child minus the followers' mean, in standard deviations"
    print(f"| environments that never end an episode | generations per seed | {child} |")
    print("|-|-|-|")
    for share in shares:
        runs = [simulate(steps, seed, endless=share) for seed in range(SEEDS)]
        scores = [score for run in runs for score in child_scores(run)]
        mean = np.mean(scores)
        error = np.std(scores) / np.sqrt(len(scores))
        print(f"| {share:.0%} | {format_range([len(run) for run in runs])} | {mean:.2f} ± {error:.2f} |")


def print_slow(steps, factors=(4.0, 10.0)):
    print("| length of one follower's episodes | generations per seed | generations in which it took part |")
    print("|-|-|-|")
    for factor in factors:
        runs = [simulate(steps, seed, slowness=factor) for seed in range(SEEDS)]
        took_part = sum(np.isfinite(fitness[-1]) for run in runs for fitness, _ in run)
        total = sum(map(len, runs))
        lengths = format_range([len(run) for run in runs])
        print(f"| {factor:.0f} times the others' | {lengths} | {took_part:,} of {total:,} |")


def chance_of_generation(envs_per_agent, successes, agents=64):
    """The share of checks that meet Eq. 3, where scores (0, 1, 2, ...) are geometric with the mean `successes`."""
    rng = np.random.default_rng(0)
    # the sum of n geometrically distributed numbers
    totals = rng.negative_binomial(envs_per_agent, 1.0 / (1.0 + successes), (CHECKS, agents))
    due = [
        epo.generation_is_due(*epo.fitness_spread(fitness, floor=1.0), 0.0, 0, BY_GAP)
        for fitness in torch.tensor(totals / envs_per_agent)
    ]
    return torch.stack(due).double().mean().item()


def print_chances(envs_per_agent=(16, 128, 384, 800), successes=(0.3, 1.0, 3.0, 10.0)):
    print(f"| environments per agent | {' | '.join(f'mean score {mean:g}' for mean in successes)} |")
    print("|-" * (len(successes) + 1) + "|")
    for n in envs_per_agent:
        print(f"| {n} | {' | '.join(f'{chance_of_generation(n, mean):.2f}' for mean in successes)} |")


@needs_output()
def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--steps", type=int, default=8_000, help="of each simulation")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    print_endless(args.steps)
    print()
    print_slow(args.steps)
    print()
    print_chances()


if __name__ == "__main__":
    main()
