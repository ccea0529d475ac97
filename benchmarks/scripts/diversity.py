"""How diverse are the states that a method visits (SAPG 6.4)? `python -m benchmarks.scripts.diversity --env-id Moat`.

Trains PPO, SAPG with six agents, and PPO that does not learn; flags that this tool does not know go to all of them.
Lets all agents play for max_episode_steps steps, samples the observations and measures how much of their variance a few
principal components leave (SAPG Fig. 7) and how much room they take (variance, particle entropy). Prints a Markdown
table, means and standard deviations over seeds; writes benchmarks/results/diversity_ENV_ID.csv.

SAPG's Fig. 8, an auto-encoder with one hidden layer and a linear output, cannot beat the principal components (Bourlard
and Kamp 1988): it is left out. Shape letters: B states, D observation.
"""

import argparse
import csv
import importlib
import math
import pathlib
import statistics

import torch

import evaluate
from benchmarks.scripts.help import HelpFormatter
from envs.terminal import needs_output, plus_minus

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"
RUNS = {
    "PPO": ["ppo"],
    "SAPG-6": ["sapg", "--num-agents", "6"],
    "untrained": ["ppo", "--learning-rate", "0", "--kl-threshold", "0"],
}
COMPONENTS = (2, 4, 8)


def standardise(runs):
    """Scale name -> states (B, D) by one mean and std, those of all runs together; what never varies is left out."""
    pooled = torch.cat(list(runs.values())).double()
    mean = pooled.mean(0)
    std = pooled.std(0, unbiased=False)
    varies = std > 1e-6 * (1.0 + mean.abs())  # above float32's rounding
    return {name: ((states - mean) / std)[:, varies].float() for name, states in runs.items()}


def pca_errors(states):
    """Share of the variance that the k largest principal components leave, k = 0..D: states (B, D) -> (D + 1,)."""
    centred = (states - states.mean(0)).double()
    variances = torch.linalg.eigvalsh(centred.T @ centred).flip(0).clamp(min=0.0)
    kept = torch.cat([torch.zeros_like(variances[:1]), variances.cumsum(0)])
    return 1.0 - kept / kept[-1]


def particle_entropy(states, k=5):
    """Mean log distance of a state to its k-th nearest neighbour: states (B, D) -> float. It falls as B grows."""
    distances = torch.cdist(states, states, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.kthvalue(k + 1).values.log().mean().item()  # the nearest of all is the state itself


def measure(states):
    """Measures of standardised states (B, D), which stand in random order: name -> value."""
    errors = pca_errors(states)
    return {
        "variance per dimension": states.var(0, unbiased=False).mean().item(),
        "particle entropy": particle_entropy(states[:2_048]),
        **{f"left by {k} components": errors[k].item() for k in COMPONENTS},
    }


def visited_states(script, flags, num_states):
    """Train with a script's main(flags), then play all its agents, sampling actions, as many environments each.

    Returns observations (num_states, D) of max_episode_steps steps, of every step as many, shuffled.
    """
    before = set(pathlib.Path("runs").glob("*"))
    importlib.import_module(script).main(flags)
    (folder,) = set(pathlib.Path("runs").glob("*")) - before
    saved, module = evaluate.load(str(folder))
    num_agents = saved["args"].get("num_agents", 1)
    num_envs = saved["args"]["num_envs"]
    seed = saved["args"]["seed"]
    env = evaluate.make_env(saved, num_envs, seed, "auto", "cpu")
    window = env.max_episode_steps
    generator = torch.Generator().manual_seed(0)
    agent = evaluate.make_agent(saved, module, env, "cpu")
    player = evaluate.Player(agent, torch.arange(num_agents).repeat_interleave(num_envs // num_agents), False)
    obs = env.reset()
    visited = []
    for _ in range(window):
        obs, _, terminated, truncated, _ = env.step(player.act(obs))
        player.dones = (terminated | truncated)[None]
        visited.append(obs[torch.randperm(num_envs, generator=generator)[: math.ceil(num_states / window)]])
    states = torch.cat(visited)
    return states[torch.randperm(len(states), generator=generator)[:num_states]]


@needs_output()
def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--env-id", default="Moat", help="the task")
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each, with seeds 1, 2, ...")
    parser.add_argument("--num-states", type=int, default=8_192, help="observations of each training")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="the folder of the table")
    args, flags = parser.parse_known_args(argv)
    states = {}
    for name, (script, *own) in RUNS.items():
        for seed in range(1, args.seeds + 1):
            all_flags = ["--no-cuda", "--env-id", args.env_id, "--seed", str(seed), *own, *flags]
            states[name, seed] = visited_states(script, all_flags, args.num_states)
    measured = {run: measure(scaled) for run, scaled in standardise(states).items()}
    with open(args.results / f"diversity_{args.env_id}.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["name", "seed", "measure", "value"])
        writer.writerows((*run, key, f"{x:.5g}") for run, values in measured.items() for key, x in values.items())
    print(f"\n| | {' | '.join(RUNS)} |\n|-{'|-' * len(RUNS)}|")
    for key in next(iter(measured.values())):
        print(f"| {key} |", end="")
        for name in RUNS:
            values = [each[key] for run, each in measured.items() if run[0] == name]
            spread = statistics.stdev(values) if args.seeds > 1 else 0.0
            print(f" {statistics.mean(values):.2f} {plus_minus()} {spread:.2f} |", end="")
        print()


if __name__ == "__main__":
    main()
