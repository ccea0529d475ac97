"""Which obstacles does a policy pass, and on which levels? `python -m benchmarks.scripts.parkour runs/RUN`.

Plays --episodes whole episodes of A1Parkour of each kind on each level, with mean actions (--sampled: with sampled
ones), and prints three Markdown tables: the goals passed, of 8; the share of episodes in which all 8 were passed; and
the share of an episode's steps without a reward, because the costs were at least as large as the gains.
"""

import argparse

import torch

import evaluate
from benchmarks.scripts.help import HelpFormatter
from envs.models.parkour_terrain import KINDS, NUM_GOALS, NUM_LEVELS
from envs.terminal import needs_output


def play(env, player):
    """The first episode of every world: goals passed and the share of steps whose reward was 0, each (N,)."""
    rewards = []
    step = env.step

    def recorded_step(action):
        result = step(action)
        rewards.append(result[1])
        return result

    env.step = recorded_step
    _, lengths, goals = evaluate.play(env, player)
    of_first_episode = torch.arange(len(rewards))[:, None] < lengths  # (steps, N)
    unrewarded = (torch.stack(rewards) == 0.0) & of_first_episode
    return goals, unrewarded.sum(0) / lengths


def by_kind_and_level(env, values):
    """The values (N,) of an evaluation's worlds as (kinds, levels, episodes).

    N must be a multiple of 50, the number of kinds times that of levels.
    """
    cell = env.column % len(KINDS) * NUM_LEVELS + env.evaluation_level
    return values[cell.argsort(stable=True)].view(len(KINDS), NUM_LEVELS, -1)


def format_table(values, pattern):
    """A Markdown table of values (kinds, levels), with means at the right and below."""
    values = torch.cat([values, values.mean(1, keepdim=True)], 1)
    values = torch.cat([values, values.mean(0, keepdim=True)])
    lines = [f"| level | {' | '.join(map(str, range(NUM_LEVELS)))} | mean |", "|-" * (NUM_LEVELS + 2) + "|"]
    for name, row in zip([*KINDS, "mean"], values.tolist()):
        lines.append(f"| {name} | {' | '.join(pattern.format(value) for value in row)} |")
    return "\n".join(lines)


@needs_output()
def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("run", help="a run's folder, a checkpoint file, or a folder of policies/")
    parser.add_argument("--episodes", type=int, default=8, help="of each kind on each level")
    parser.add_argument("--agent", type=int, default=0, help="the agent that acts")
    parser.add_argument("--sampled", action="store_true", help="sample actions instead of taking their mean")
    parser.add_argument("--seed", type=int, default=1_000_000, help="random seed")
    args = parser.parse_args(argv)
    saved, script = evaluate.load(args.run)
    num_envs = args.episodes * len(KINDS) * NUM_LEVELS
    env = evaluate.make_env(saved, num_envs, args.seed, "mujoco", "cpu")
    ids = torch.full((num_envs,), args.agent)
    player = evaluate.Player(evaluate.make_agent(saved, script, env, "cpu"), ids, deterministic=not args.sampled)
    torch.manual_seed(args.seed)
    goals, unrewarded = (by_kind_and_level(env, values) for values in play(env, player))
    actions = "sampled" if args.sampled else "mean"
    print(f"{saved['script']}.py, {saved['global_step']:,} steps, agent {args.agent}, {actions} actions\n")
    print(f"goals passed of {NUM_GOALS}:\n\n{format_table(goals.mean(2), '{:.1f}')}\n")
    print(f"episodes with all goals:\n\n{format_table((goals == NUM_GOALS).float().mean(2), '{:.0%}')}\n")
    print(f"steps without a reward:\n\n{format_table(unrewarded.mean(2), '{:.0%}')}")


if __name__ == "__main__":
    main()
