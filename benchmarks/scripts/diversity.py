"""How diverse are the states that a method visits (SAPG 6.4)? `python benchmarks/scripts/diversity.py --env-id Moat`.

Trains every run of --runs ("NAME=script.py flags"; flags that this tool does not know go to all of them), lets all its
agents play for max_episode_steps control steps, samples the observations and measures how badly a few principal
components (SAPG Fig. 7) and a narrow auto-encoder (SAPG Fig. 8) reconstruct them, and how much room they take
(variance, particle entropy).
Prints a Markdown table, means and standard deviations over seeds; writes OUT.csv and OUT.png.

Needs matplotlib, which is not among the requirements. Shape letters: B states, D observation.
"""

import argparse
import csv
import importlib
import math
import pathlib
import sys
from collections import defaultdict

import numpy as np
import torch
import torch.nn as nn

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import evaluate  # noqa: E402

RUNS = ("PPO=ppo.py", "SAPG-6=sapg.py --num-agents 6", "untrained=ppo.py --learning-rate 0 --kl-threshold 0")
SIZES = (2, 4, 8, 16)  # hidden widths, and the numbers of components in the table


def standardise(runs):
    """Scale name -> states (B, D) by one mean and std, those of all runs together; what never varies is left out."""
    pooled = torch.cat(list(runs.values())).double()
    mean, std = pooled.mean(0), pooled.std(0, unbiased=False)
    varies = std > 1e-6 * (1.0 + mean.abs())  # above float32's rounding
    return {name: ((states - mean) / std)[:, varies].float() for name, states in runs.items()}


def variance_per_dimension(states):
    """The covariance's trace / D: states (B, D) -> float. PCA's error does not know the scale, this is it."""
    return states.var(0, unbiased=False).mean().item()


def pca_errors(states):
    """Share of the variance that the k largest principal components leave, k = 0..D: states (B, D) -> (D + 1,)."""
    centred = (states - states.mean(0)).double()
    variances = torch.linalg.eigvalsh(centred.T @ centred).flip(0).clamp(min=0.0)
    kept = torch.cat([torch.zeros_like(variances[:1]), variances.cumsum(0)])
    return 1.0 - kept / kept[-1]


def mlp_error(states, width, num_steps=2_000, batch_size=512, learning_rate=1e-2, seed=0):
    """Mean squared error, on its training data, of an auto-encoder with one hidden layer: states (B, D) -> float.

    Adam, learning rate linear to 0; the global random generator is left as it was. With a linear output no nonlinearity
    of one layer beats PCA (Bourlard and Kamp 1988): trained to the end this is PCA's error times the variance.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(states.shape[1], width), nn.ELU(), nn.Linear(width, states.shape[1]))
        optimizer = torch.optim.Adam(net.parameters(), lr=learning_rate)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, num_steps)
        for _ in range(num_steps):
            batch = states[torch.randint(len(states), (batch_size,))]
            optimizer.zero_grad()
            (net(batch) - batch).square().mean().backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        return (net(states) - states).square().mean().item()


def particle_entropy(states, k=5):
    """Mean log distance of a state to its k-th nearest neighbour: states (B, D) -> float. It falls as B grows."""
    distances = torch.cdist(states, states, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.kthvalue(k + 1).values.log().mean().item()  # the nearest of all is the state itself


def measure(states):
    """All measures of standardised states (B, D), which stand in random order: rows of measure, size, value."""
    rows = [("variance", 0, variance_per_dimension(states)), ("entropy", 0, particle_entropy(states[:2_048]))]
    rows += [("pca", k, error) for k, error in enumerate(pca_errors(states).tolist())]
    return rows + [("mlp", width, mlp_error(states, width)) for width in SIZES]


def visited_states(script, flags, num_states):
    """Train with a script's main(flags), then play all its agents, sampling actions, as many environments each.

    Returns observations (num_states, D) of max_episode_steps steps, of every step as many, shuffled.
    """
    before = set(pathlib.Path("runs").glob("*"))
    importlib.import_module(script[: -len(".py")].replace("/", ".")).main(flags)
    (folder,) = set(pathlib.Path("runs").glob("*")) - before
    saved, module = evaluate.load(str(folder))
    num_agents, num_envs, seed = saved["args"].get("num_agents", 1), saved["args"]["num_envs"], saved["args"]["seed"]
    env = evaluate.make_env(saved, num_envs, evaluate.Args(run=str(folder), seed=seed), "cpu")
    window, generator = env.max_episode_steps, torch.Generator().manual_seed(0)
    if num_states > window * num_envs:
        raise SystemExit(f"--num-states {num_states}: {script} comes to {window * num_envs} only; more environments")
    agent = evaluate.make_agent(saved, module, env, "cpu")
    player = evaluate.Player(agent, torch.arange(num_agents).repeat_interleave(num_envs // num_agents), False)
    obs, visited = env.reset(), []
    for _ in range(window):
        obs, _, terminated, truncated, _ = env.step(player.act(obs))
        player.dones = (terminated | truncated)[None]
        visited.append(obs[torch.randperm(num_envs, generator=generator)[: math.ceil(num_states / window)]])
    states = torch.cat(visited)
    return states[torch.randperm(len(states), generator=generator)[:num_states]]


def print_table(rows):
    """rows of name, seed, measure, size, value -> a line per measure, a column per name."""
    values = defaultdict(list)
    for name, _, quantity, size, value in rows:
        values[quantity, size, name].append(value)
    names = list(dict.fromkeys(row[0] for row in rows))  # each once, in order
    print(f"\n| | {' | '.join(names)} |\n|-{'|-' * len(names)}|")
    for quantity, size in dict.fromkeys(row[2:4] for row in rows if row[2] != "pca" or row[3] in SIZES):
        columns = [values[quantity, size, name] for name in names]
        print(f"| {quantity} {size or ''} |", *(f"{np.mean(x):.3f} ± {np.std(x, ddof=1):.3f} |" for x in columns))


def draw(rows, title, path):
    """rows of name, seed, measure, size, value -> SAPG's Fig. 7 and 8, and both scales; a line or point per seed."""
    import matplotlib.pyplot as plt  # here, because the measures do without

    plt.switch_backend("Agg")
    axes = plt.subplots(1, 4, figsize=(15, 3.4))[1]
    names, curves = list(dict.fromkeys(row[0] for row in rows)), defaultdict(list)
    for name, seed, quantity, size, value in rows:
        curves[name, seed, quantity].append((size, value))
    for (name, _, quantity), curve in curves.items():
        i, (sizes, values) = names.index(name), zip(*curve)
        axis = axes[("pca", "mlp", "variance", "entropy").index(quantity)]
        axis.plot(sizes if sizes != (0,) else (i,), values, f"C{i}.-", ms=3 if len(sizes) > 1 else 7, lw=0.8)
    axes[0].legend([axes[0].plot([], [], f"C{i}")[0] for i in range(len(names))], names)
    axes[0].set(title=f"{title}: PCA", xlabel="components", ylabel="share of the variance lost", ylim=0)
    axes[1].set(title="MLP auto-encoder", xlabel="hidden width", ylabel="mean squared error", xticks=SIZES, ylim=0)
    places = dict(xticks=range(len(names)), xticklabels=names, xlim=(-0.5, len(names) - 0.5))
    axes[2].set(title="variance per dimension", ylim=0, **places)
    axes[3].set(title="particle entropy", **places)
    plt.tight_layout()
    plt.savefig(path, dpi=80)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--env-id", default="Moat")
    parser.add_argument("--runs", nargs="*", default=RUNS, metavar="NAME=SCRIPT", help=f"none, or as {RUNS} (default)")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each, with seeds 1, 2, ...")
    parser.add_argument("--num-states", type=int, default=8_192, help="observations of each training")
    parser.add_argument("--states", nargs="*", default=(), metavar="NPZ", help="files of --save, to be measured too")
    parser.add_argument("--save", metavar="NPZ", help="write all states to this file")
    parser.add_argument("--out", help="default: benchmarks/results/diversity/ENV_ID")
    args, flags = parser.parse_known_args(argv)
    out = args.out or str(ROOT / "benchmarks" / "results" / "diversity" / args.env_id)
    pathlib.Path(out).parent.mkdir(parents=True, exist_ok=True)
    states = {run: torch.from_numpy(array) for path in args.states for run, array in np.load(path).items()}
    for name, command in (run.split("=", 1) for run in args.runs):
        for seed in range(1, args.seeds + 1):
            script, *all_flags = [*command.split(), *flags, "--env-id", args.env_id, "--seed", str(seed)]
            states[f"{name}:{seed}"] = visited_states(script, all_flags, args.num_states)
    if args.save:
        np.savez_compressed(args.save, **{run: tensor.numpy() for run, tensor in states.items()})
    rows = []
    for run, tensor in standardise(states).items():
        rows += [(*run.rsplit(":", 1), *row) for row in measure(tensor)]
    print_table(rows)
    with open(out + ".csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["name", "seed", "measure", "size", "value"])
        writer.writerows((*row[:4], round(row[4], 5)) for row in rows)
    draw(rows, args.env_id, out + ".png")


if __name__ == "__main__":
    main()
