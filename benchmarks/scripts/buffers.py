"""How full MuJoCo Warp's buffers get: `python -m benchmarks.scripts.buffers [--env-id all] [--steps 2000]`.

Plays random actions and, where `policies/` has one, the mean actions of a trained policy, on MuJoCo Warp's CPU device.
Prints Markdown: for each task the most contacts (or pairs of shapes that may touch), averaged over the worlds, which
share that buffer, and the most rows of constraints in any world. In brackets: the size of the buffer. The buffer for
pairs with a cylinder or a height field, whose use cannot be read, has three quarters of its usual size here, so that
all tasks that get through have a margin. GB: of all arrays of the engine with the papers' 24,576 worlds, computed from
those of 1,024. The last column is a lower bound of what a GPU takes to compile the kernels of a first start.
"""

import argparse
import dataclasses
import multiprocessing
import tempfile
import time

import torch
import warp as wp

import envs
import evaluate
from benchmarks.scripts.experiments import ROOT
from benchmarks.scripts.help import HelpFormatter
from envs.engines import mujoco_warp, warp_kernels
from envs.terminal import needs_output

PAPERS_WORLDS = 24_576


def array_bytes(part):
    """Bytes of the Warp arrays in a dataclass and its parts."""
    if isinstance(part, wp.array):
        return part.capacity
    if dataclasses.is_dataclass(part):
        return sum(array_bytes(getattr(part, field.name)) for field in dataclasses.fields(part))
    return 0


def memory(env_id):
    """Bytes of the engine with PAPERS_WORLDS worlds: its model has one row per object, its data one per world."""
    worlds = 1_024  # more than there are objects
    engine = envs.make(env_id, worlds, "cpu", 1, "warp").engine
    return array_bytes(engine._model) + array_bytes(engine._data) * PAPERS_WORLDS // worlds


def random_actions(env):
    """Actions that are smooth in time, so that robots go somewhere: a function from observations to actions."""
    action = torch.zeros(env.num_envs, env.num_actions)

    def act(obs):
        action.mul_(0.9).add_(torch.randn_like(action), alpha=0.4)
        return action

    return act


def trained_actions(env, path):
    """The mean actions of the leader of a trained policy."""
    saved, script = evaluate.load(str(path))
    agent = evaluate.make_agent(saved, script, env, "cpu")
    _, leader = evaluate.default_player(saved, script, 1, "mujoco", "cpu")
    player = evaluate.Player(agent, torch.full((env.num_envs,), leader), deterministic=True)
    return player.act


def measure(env, act, steps):
    """Most contacts per world and most constraint rows of a world. RuntimeError: a buffer was too small."""
    obs = env.reset()
    env.engine._new_counts.zero_()  # largest so far, of another play
    for _ in range(steps):
        obs, _, _, _, _ = env.step(act(obs))
    counts = env.engine._new_counts.tolist()
    worlds = max(env.num_envs, mujoco_warp.MIN_WORLDS_OF_BUFFERS)
    return counts[warp_kernels.CONTACTS] / worlds, counts[warp_kernels.CONSTRAINTS]


def print_rows(env_id, num_envs, steps):
    """The table's rows of one task, in a process of its own whose kernels nobody has compiled."""
    mujoco_warp.MAX_CCD = 3 * mujoco_warp.MAX_CCD // 4
    with tempfile.TemporaryDirectory() as cache:
        wp.config.kernel_cache_dir = cache
        start = time.monotonic()
        env = envs.make(env_id, num_envs, "cpu", 1, "warp")
        env.reset()
        env.step(torch.zeros(env.num_envs, env.num_actions))
        compiled = time.monotonic() - start
        gigabytes = memory(env_id) / 1e9
        plays = {"random": random_actions(env)}
        policy = ROOT / "policies" / env_id
        if policy.exists():
            plays["trained"] = trained_actions(env, policy)
        for name, act in plays.items():
            contacts, rows = measure(env, act, steps)
            engine = env.engine
            print(
                f"| `{env_id}` | {name} | {contacts:.1f} ({engine.max_contacts}) | {rows} ({engine.max_constraints}) "
                f"| {gigabytes:.2f} | {compiled:.0f} |",
                flush=True,
            )


@needs_output()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--env-id", default="all", help="a task, or all tasks")
    parser.add_argument("--num-envs", type=int, default=16, help="environments")
    parser.add_argument("--steps", type=int, default=2_000, help="control steps")
    args = parser.parse_args()
    tasks = sorted(envs.TASKS.keys() - set(envs.PURE_TORCH)) if args.env_id == "all" else [args.env_id]
    print(f"{args.num_envs} worlds, {args.steps:,} control steps\n")
    print("| task | actions | contacts | rows of constraints | GB | compiled after, s |\n|-|-|-|-|-|-|", flush=True)
    for env_id in tasks:
        rows = multiprocessing.get_context("spawn").Process(target=print_rows, args=(env_id, args.num_envs, args.steps))
        rows.start()
        rows.join()


if __name__ == "__main__":
    main()
