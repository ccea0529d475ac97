"""Steps per second of EnvPool behind its adapter and bare, alternating in one run: the adapter's share is the result.

    python benchmarks/scripts/adapters.py envpool:Hopper-v5 envpool:Ant-v5 --num-envs 64 1024

Both reset what finished by id, right after the step. Each row: medians of all repetitions, with one thread per core
that the process may use (`taskset` chooses). The actions are drawn beforehand, for EnvPool bare in its own units.
"""

import argparse
import os
import statistics
import sys
import time

import torch

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")))

import envs  # noqa: E402


def bare(pool, actions):
    for action in actions:
        _, _, terminated, truncated, _ = pool.step(action)
        ids = (terminated | truncated).nonzero()[0]
        if len(ids):
            pool.reset(ids)


def adapted(env, actions):
    for action in actions:
        env.step(action)


def measure(env_id, num_envs, num_steps, repetitions):
    """Environment steps per second (adapter, bare)."""
    env = envs.make(env_id, num_envs)
    twin = envs.make(env_id, num_envs)
    env.reset()
    twin.pool.reset()
    drawn = 2.0 * torch.rand(num_steps, num_envs, env.num_actions) - 1.0
    seconds = {adapted: [], bare: []}
    for repetition in range(repetitions + 1):  # the first one warms up
        for play, world, actions in ((adapted, env, drawn), (bare, twin.pool, [env.scale(action) for action in drawn])):
            start = time.perf_counter()
            play(world, actions)
            if repetition:
                seconds[play].append(time.perf_counter() - start)
    return [num_steps * num_envs / statistics.median(seconds[play]) for play in (adapted, bare)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env_ids", nargs="+", help="with their prefix envpool:")
    parser.add_argument("--num-envs", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--steps", type=int, default=16_384, help="environment steps per repetition, over all of them")
    parser.add_argument("--repetitions", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print("| environment | threads | environments | adapter, steps/s | EnvPool bare, steps/s | share |\n|-|-|-|-|-|-|")
    for env_id in args.env_ids:
        for num_envs in args.num_envs:
            ours, theirs = measure(env_id, num_envs, max(1, args.steps // num_envs), args.repetitions)
            row = f"{threads} | {num_envs:,} | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.0%}"
            print(f"| `{env_id}` | {row} |", flush=True)


if __name__ == "__main__":
    main()
