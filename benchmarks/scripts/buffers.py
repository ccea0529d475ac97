"""How full MuJoCo Warp's buffers get: `python -m benchmarks.scripts.buffers [--env-id all] [--steps 2000]`.

Plays random actions and, where `policies/` has one, the mean actions of a trained policy, on MuJoCo Warp's CPU device.
Prints Markdown: for each task the most contacts (or pairs of shapes that may touch), averaged over the worlds, which
share that buffer, and the most rows of constraints in any world. In brackets: the size of the buffer. The buffer for
pairs with a cylinder, whose use cannot be read, has half its usual size here, so that all tasks that get through have
a margin of two. The last column is a lower bound of what a GPU takes to compile the kernels of a first start.
"""

import argparse
import time

import torch

import envs
import evaluate
from benchmarks.scripts.experiments import ROOT
from benchmarks.scripts.help import HelpFormatter
from envs.engines import mujoco_warp, warp_kernels
from envs.terminal import needs_output


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
    for _ in range(steps):
        obs, _, _, _, _ = env.step(act(obs))
    counts = env.engine._new_counts.tolist()
    worlds = max(env.num_envs, mujoco_warp.MIN_WORLDS_OF_BUFFERS)
    return counts[warp_kernels.CONTACTS] / worlds, counts[warp_kernels.CONSTRAINTS]


@needs_output()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--env-id", default="all", help="a task, or all tasks")
    parser.add_argument("--num-envs", type=int, default=16, help="environments")
    parser.add_argument("--steps", type=int, default=2_000, help="control steps")
    args = parser.parse_args()
    tasks = sorted(envs.TASKS.keys() - set(envs.PURE_TORCH)) if args.env_id == "all" else [args.env_id]
    print(f"{args.num_envs} worlds, {args.steps:,} control steps\n")
    mujoco_warp.MAX_CCD //= 2
    print("| task | actions | contacts | rows of constraints | kernels compiled after, s |\n|-|-|-|-|-|", flush=True)
    for env_id in tasks:
        start = time.monotonic()
        env = envs.make(env_id, args.num_envs, "cpu", 1, "warp")
        env.reset()
        env.step(torch.zeros(env.num_envs, env.num_actions))
        compiled = time.monotonic() - start
        plays = {"random": random_actions(env)}
        policy = ROOT / "policies" / env_id
        if policy.exists():
            plays["trained"] = trained_actions(env, policy)
        for name, act in plays.items():
            contacts, rows = measure(env, act, args.steps)
            engine = env.engine
            print(
                f"| `{env_id}` | {name} | {contacts:.1f} ({engine.max_contacts}) | {rows} ({engine.max_constraints}) "
                f"| {compiled:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
