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
from envs.rotations import rotate
from envs.tasks.allegro_kuka import NEAR_FACTOR, OBJECT
from envs.tasks.allegro_kuka_held_starts import HeldStarts
from envs.terminal import needs_output


def quartiles(values, decimals):
    return " ".join(f"{value:.{decimals}f}" for value in values.quantile(torch.tensor([0.25, 0.5, 0.75])))


def begin(env, kind):
    """Begin with `kind` (an index) where it is possible. Returns which did (N,) bool, and the goals as drawn (N, 7)."""
    env.reset()
    drawn = env.goal.clone()
    start = env.starts[kind]
    possible = env.held_states.has(start.held) if start.held else env.zeros(dtype=torch.bool).fill_(True)
    env.begin_with(possible, torch.full_like(env.kind, kind))
    return possible, drawn


def measure(env, kind):
    """The cells of a row of the table."""
    possible, drawn = begin(env, kind)
    if not possible.any():
        return ["0%", "", "", "", "", ""]
    success_distance = NEAR_FACTOR * env.tolerance
    way = (env.goal[:, :3] - env.engine.body_pos[:, OBJECT]).norm(dim=1)
    of_object = rotate(env.engine.body_quat[:, None, OBJECT], env.keypoint_offsets)
    of_goal = rotate(env.goal[:, None, 3:], env.keypoint_offsets)
    turn = (of_goal - of_object).norm(dim=2).amax(1) / success_distance
    shares = [(env.goal[:, :3] != drawn[:, :3]).any(1), turn <= 1.0, env.keypoint_distance() <= success_distance]
    moved, no_turn, near = (f"{share[possible].float().mean():.0%}" for share in shares)
    environments = f"{possible.float().mean():.0%}"
    return [environments, moved, quartiles(way[possible], 2), quartiles(turn[possible], 2), no_turn, near]


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
