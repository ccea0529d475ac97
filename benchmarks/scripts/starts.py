"""How do held starts begin? `python -m benchmarks.scripts.starts AllegroKukaReorientationHeldStarts`.

Searches for held states, begins one goal in each environment with each kind of start that may be an episode's first,
and prints a Markdown table:

    environments  share of environments that have such a start
    moved         share of goals that are not where they were drawn
    way           from the object to its goal, m: first quartile, median, third quartile
    turn          how far the turn to the goal alone carries the farthest keypoint, in success distances: the same
    no turn       share of goals that need none: the turn carries no keypoint farther than the success distance
    near          share of goals near to which the object begins, so that a hand that keeps still reaches them

Except in Reorientation, the only keypoint is the object's centre, and no goal needs a turn.
"""

import argparse

import torch

import envs
from benchmarks.scripts.help import HelpFormatter
from envs.tasks.allegro_kuka import NEAR_FACTOR, OBJECT
from envs.tasks.allegro_kuka_held_starts import HeldStarts
from envs.terminal import needs_output


def quartiles(values):
    return " ".join(f"{value:.2f}" for value in values.quantile(torch.tensor([0.25, 0.5, 0.75])))


def percent(share):
    return f"{share.float().mean():.0%}"


def measure(env, kind):
    """The cells of a row of the table. kind: index into the task's table of starts."""
    env.reset()
    drawn = env.goal[:, :3].clone()
    possible = env.possible_starts()[:, kind]
    if not possible.any():
        return ["0%", "", "", "", "", ""]
    env.begin_with(possible, torch.full_like(env.kind, kind))
    success_distance = NEAR_FACTOR * env.tolerance
    moved = (env.goal[:, :3] != drawn).any(1)
    way = (env.goal[:, :3] - env.engine.body_pos[:, OBJECT]).norm(dim=1)
    turn = env.turn_distance() / success_distance
    near = env.keypoint_distance() <= success_distance
    return [
        percent(possible),
        percent(moved[possible]),
        quartiles(way[possible]),
        quartiles(turn[possible]),
        percent(turn[possible] <= 1.0),
        percent(near[possible]),
    ]


@needs_output()
def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("env_id", help="a task with held starts")
    parser.add_argument("--num-envs", type=int, default=1024, help="goals of each kind, at most")
    parser.add_argument("--seed", type=int, default=1, help="random seed")
    args = parser.parse_args(argv)
    env = envs.make(args.env_id, args.num_envs, seed=args.seed)
    if not isinstance(env, HeldStarts):
        parser.error(f"{args.env_id}: has no held starts")
    env.find_held_states()
    titles = ["start", "environments", "moved", "way", "turn", "no turn", "near"]
    rows = [[start.name, *measure(env, kind)] for kind, start in enumerate(env.starts) if start.first]
    print(*(f"| {' | '.join(row)} |" for row in [titles, ["-"] * len(titles), *rows]), sep="\n")


if __name__ == "__main__":
    main()
