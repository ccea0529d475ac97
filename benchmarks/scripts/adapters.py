"""Steps per second of EnvPool behind its adapter and bare, taking turns in one run: the adapter's share is the result.

    python benchmarks/scripts/adapters.py envpool:Hopper-v5 envpool:Ant-v5 --num-envs 64 1024

All reset what finished by id, right after the step. Each row: medians of all repetitions, of the shares too, with one
thread per core that the process may use (`taskset` chooses). The actions are drawn beforehand, for EnvPool bare in its
own units.
"Interrupted" is EnvPool bare with ten torch operations on the observations between its steps, whose own time is
subtracted: EnvPool's step is slower after them, and no learner can do without them.
"""

import argparse
import os
import statistics
import sys
import time

import torch

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")))

import envs  # noqa: E402


def adapted(env, actions):
    """Seconds for all actions."""
    start = time.perf_counter()
    for action in actions:
        env.step(action)
    return time.perf_counter() - start


def bare(pool, actions, operations=0):
    """The same, without the torch operations."""
    start, between = time.perf_counter(), 0.0
    for action in actions:
        obs, _, terminated, truncated, _ = pool.step(action)
        ids = (terminated | truncated).nonzero()[0]
        if len(ids):
            pool.reset(ids)
        if operations:
            pause = time.perf_counter()
            x = torch.as_tensor(obs, dtype=torch.float32)
            for _ in range(operations):
                x = 0.5 * x
            between += time.perf_counter() - pause
    return time.perf_counter() - start - between


def interrupted(pool, actions):
    return bare(pool, actions, operations=10)


def measure(env_id, num_envs, num_steps, repetitions):
    """Medians: steps per second of adapter, bare and interrupted; shares of bare's for adapter and interrupted."""
    env, twin = envs.make(env_id, num_envs), envs.make(env_id, num_envs)
    env.reset()
    twin.pool.reset()
    drawn = 2.0 * torch.rand(num_steps, num_envs, env.num_actions) - 1.0
    scaled = [env.scale(action) for action in drawn]
    plays = ((adapted, env, drawn), (bare, twin.pool, scaled), (interrupted, twin.pool, scaled))
    seconds = [[play(world, actions) for play, world, actions in plays] for _ in range(repetitions + 1)]
    median = statistics.median
    ours, theirs, slowed = zip(*seconds[1:])  # the first repetition warms up
    speeds = [num_steps * num_envs / median(each) for each in (ours, theirs, slowed)]
    return speeds, [median(b / a for a, b in zip(each, theirs)) for each in (ours, slowed)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env_ids", nargs="+", help="with their prefix envpool:")
    parser.add_argument("--num-envs", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--steps", type=int, default=16_384, help="environment steps per repetition, over all of them")
    parser.add_argument("--repetitions", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print("| environment | threads | environments | bare, steps/s | adapter | share | interrupted | share |")
    print("|-|-|-|-|-|-|-|-|")
    for env_id in args.env_ids:
        for num_envs in args.num_envs:
            (ours, theirs, slowed), shares = measure(
                env_id, num_envs, max(1, args.steps // num_envs), args.repetitions
            )
            speeds = f"{theirs:,.0f} | {ours:,.0f} | {shares[0]:.0%} | {slowed:,.0f} | {shares[1]:.0%}"
            row = f"{threads} | {num_envs:,} | {speeds}"
            print(f"| `{env_id}` | {row} |", flush=True)


if __name__ == "__main__":
    main()
