"""Which obstacles does a policy pass, and on which levels? `python -m benchmarks.scripts.parkour runs/RUN`.

Plays --episodes whole episodes of A1Parkour of each kind on each level, with mean actions (--sampled: with sampled
ones). 40 of them meet all courses and robots. --other-courses: on courses that training does not have.

Prints Markdown tables. By kind and level, they give the goals passed, of 8, the shares of episodes with all goals, of
steps without a reward, because the costs were at least as large as the gains, and of steps in which the robot stands
still: it has moved less than 10 cm in the last second. Two tables say how far the time limit lets a robot come that
keeps exactly to the commanded speed. The last two give the terms of the reward, by kind, while robots move and while
they stand still.
"""

import argparse
from typing import NamedTuple
from unittest import mock

import torch
from torch import Tensor

import evaluate
from benchmarks.scripts.help import HelpFormatter
from envs.models import a1, parkour_terrain
from envs.models.parkour_terrain import KINDS, NUM_COLUMNS, NUM_GOALS, NUM_LEVELS, make_column
from envs.tasks import a1_parkour
from envs.terminal import needs_output

SECOND = round(1.0 / a1.CONTROL_PERIOD)  # control steps
STILL = 0.1  # m in a second


def make_other_column(index):
    """A Column of the same kind as column `index`, which training does not have."""
    return make_column(NUM_COLUMNS + index)


class Episodes(NamedTuple):
    """What happened in the first episode of every world, in T steps. The masks are false after its end."""

    goals: Tensor  # (N,), passed
    played: Tensor  # (T, N) bool, whether a step belongs to the episode
    unrewarded: Tensor  # (T, N) bool
    still: Tensor  # (T, N) bool
    terms: Tensor  # (T, K, N), of the reward, per second


def play(env, player):
    """Play the first episode of every world: Episodes."""
    rewards = []
    terms = []
    positions = []  # before each step
    step = env.step
    reward_terms = a1_parkour.reward_terms

    def recorded_step(action):
        positions.append(env.engine.qpos[:, :2].clone())
        result = step(action)
        rewards.append(result[1])
        return result

    def recorded_terms(motion):
        values = reward_terms(motion)
        terms.append(torch.stack([weight * values[name] for name, weight in a1_parkour.REWARD_WEIGHTS.items()]))
        return values

    with mock.patch.object(env, "step", recorded_step), mock.patch.object(a1_parkour, "reward_terms", recorded_terms):
        _, lengths, goals = evaluate.play(env, player)
    played = torch.arange(len(rewards))[:, None] < lengths
    positions = torch.stack(positions)
    unrewarded = torch.stack(rewards) == 0.0
    still = torch.zeros_like(played)
    still[SECOND:] = (positions[SECOND:] - positions[:-SECOND]).norm(dim=2) < STILL
    return Episodes(goals, played, unrewarded & played, still & played, torch.stack(terms))


def play_at_commanded_speed(env, draws=1000):
    """Goals (N, draws) that a robot would pass if it kept exactly to its commanded speed, straight from goal to goal.

    Every world's course is walked `draws` times, with new commands each time.
    """
    goals = env.goals[env.column, env.level, :NUM_GOALS, 0]  # (N, 8, 2) m
    start = torch.stack([env.start_x(), env.zeros()], 1)
    sections = torch.cat([start[:, None], goals], 1).diff(dim=1).norm(dim=2)  # (N, 8) m
    needed = sections.cumsum(1) - a1_parkour.GOAL_RADIUS
    periods = torch.arange(env.max_episode_steps).split(a1_parkour.COMMAND_PERIOD)
    seconds = a1.CONTROL_PERIOD * torch.tensor([float(len(period)) for period in periods])
    speeds = a1_parkour.draw_command(torch.rand(env.num_envs, draws, len(periods)))  # m/s
    distance = speeds @ seconds  # (N, draws) m
    return (distance[:, :, None] >= needed[:, None]).sum(2)


def by_kind_and_level(env, values):
    """The values (N, ...) of an evaluation's worlds as (kinds, levels, values).

    N must be a multiple of 50, the number of kinds times that of levels.
    """
    cell = env.column % len(KINDS) * NUM_LEVELS + env.evaluation_level
    return values[cell.argsort(stable=True)].reshape(len(KINDS), NUM_LEVELS, -1)


def finished(goals):
    """The share (kinds, levels) of the episodes (kinds, levels, episodes) with all goals."""
    return (goals == NUM_GOALS).float().mean(2)


def shares(episodes, mask):
    """The share (N,) of each episode's steps in which mask (T, N) is true."""
    return mask.sum(0) / episodes.played.sum(0)


def mean_terms(env, episodes, mask):
    """The mean (K, kinds) of the terms of the reward over the steps in which mask (T, N) is true."""
    means = []
    for kind in range(len(KINDS)):
        worlds = env.column % len(KINDS) == kind
        of_kind = episodes.terms[:, :, worlds].movedim(1, 2)  # (T, n, K)
        means.append(of_kind[mask[:, worlds]].mean(0))
    return torch.stack(means, 1)


def format_table(corner, rows, columns, values, pattern):
    """A Markdown table of values (rows, columns)."""
    lines = [f"| {corner} | {' | '.join(map(str, columns))} |", "|-" * (len(columns) + 1) + "|"]
    for name, row in zip(rows, values.tolist()):
        lines.append(f"| {name} | {' | '.join(pattern.format(value) for value in row)} |")
    return "\n".join(lines)


def format_levels(values, pattern):
    """A Markdown table of values (kinds, levels), with means at the right and below."""
    values = torch.cat([values, values.mean(1, keepdim=True)], 1)
    values = torch.cat([values, values.mean(0, keepdim=True)])
    return format_table("level", [*KINDS, "mean"], [*range(NUM_LEVELS), "mean"], values, pattern)


@needs_output()
def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("run", help="a run's folder, a checkpoint file, or a folder of policies/")
    parser.add_argument("--episodes", type=int, default=8, help="of each kind on each level")
    parser.add_argument("--agent", type=int, default=0, help="the agent that acts")
    parser.add_argument("--sampled", action="store_true", help="sample actions instead of taking their mean")
    parser.add_argument("--seed", type=int, default=1_000_000, help="random seed")
    parser.add_argument("--other-courses", action="store_true", help="courses that training does not have")
    args = parser.parse_args(argv)
    saved, script = evaluate.load(args.run)
    num_envs = args.episodes * len(KINDS) * NUM_LEVELS
    column_maker = make_other_column if args.other_courses else make_column
    with mock.patch.object(parkour_terrain, "make_column", column_maker):
        env = evaluate.make_env(saved, num_envs, args.seed, "mujoco", "cpu")
    ids = torch.full((num_envs,), args.agent)
    player = evaluate.Player(evaluate.make_agent(saved, script, env, "cpu"), ids, deterministic=not args.sampled)
    evaluate.seed_noise(args.seed)
    episodes = play(env, player)
    goals = by_kind_and_level(env, episodes.goals)
    unrewarded = by_kind_and_level(env, shares(episodes, episodes.unrewarded)).mean(2)
    still = by_kind_and_level(env, shares(episodes, episodes.still)).mean(2)
    possible = by_kind_and_level(env, play_at_commanded_speed(env))
    actions = "sampled" if args.sampled else "mean"
    courses = ", other courses" if args.other_courses else ""
    print(f"{saved['script']}.py, {saved['global_step']:,} steps, agent {args.agent}, {actions} actions{courses}")
    for title, values, pattern in (
        (f"goals passed of {NUM_GOALS}", goals.mean(2), "{:.1f}"),
        ("episodes with all goals", finished(goals), "{:.0%}"),
        ("steps without a reward", unrewarded, "{:.0%}"),
        ("steps in which the robot stands still", still, "{:.0%}"),
        ("goals at exactly the commanded speed", possible.float().mean(2), "{:.1f}"),
        ("episodes with all goals at exactly the commanded speed", finished(possible), "{:.0%}"),
    ):
        print(f"\n{title}:\n\n{format_levels(values, pattern)}")
    for title, mask in (("moves", episodes.played & ~episodes.still), ("stands still", episodes.still)):
        table = format_table("term", a1_parkour.REWARD_WEIGHTS, KINDS, mean_terms(env, episodes, mask), "{:.2f}")
        print(f"\nreward per second while the robot {title}:\n\n{table}")


if __name__ == "__main__":
    main()
