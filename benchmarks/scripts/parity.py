"""How far MuJoCo Warp is from MuJoCo on the same tasks: `python benchmarks/scripts/parity.py [ENV_ID...]`, on a CPU.

Both engines start from the same states, reached by random motion, and get the same actions. "one step": before each of
the 50 control steps Warp's state is set to MuJoCo's. "free": it is not, so that differences grow, in contacts
chaotically. Differences of the observation (in its own units, mostly normalised) over worlds and entries: median of the
steps' largest, and largest; of the reward, relative to its standard deviation. Prints a Markdown table.
"""

import argparse
import pathlib
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import envs  # noqa: E402

NUM_ENVS, WARM_UP, STEPS = 16, 60, 50


def differences(env_id, free):
    """Largest difference per step of the observation (STEPS,), of the reward, and whether dones were the same."""
    ours, theirs = (envs.make(env_id, NUM_ENVS, "cpu", 1, engine) for engine in ("mujoco", "warp"))
    ours.reset(), theirs.reset()
    generator = torch.Generator().manual_seed(0)
    action = torch.zeros(NUM_ENVS, ours.num_actions)
    of_obs, of_reward, same, rewards = [], [], True, []
    for step in range(WARM_UP + STEPS):
        action = 0.9 * action + 0.3 * torch.randn(action.shape, generator=generator)
        if step == WARM_UP or step > WARM_UP and not free:
            theirs.load_state_dict(ours.state_dict())
        obs, reward, terminated, truncated, info = ours.step(action)
        if step >= WARM_UP:
            _, their_reward, their_terminated, their_truncated, their_info = theirs.step(action)
            of_obs.append((info["final_obs"] - their_info["final_obs"]).abs().max())
            of_reward.append((reward - their_reward).abs().max())
            rewards.append(reward)
            same &= torch.equal(terminated, their_terminated) and torch.equal(truncated, their_truncated)
    return torch.stack(of_obs), torch.stack(of_reward) / torch.stack(rewards).std(), same


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env_ids", nargs="*", default=[name for name in envs.TASKS if name not in envs.PURE_TORCH])
    torch.set_num_threads(1)
    print("| env id | obs, one step: median | largest | reward, largest | same ends | obs, free: after 10 | after 50 |")
    print("|-|-|-|-|-|-|-|")
    for env_id in parser.parse_args().env_ids:
        obs, reward, same = differences(env_id, free=False)
        free, *_ = differences(env_id, free=True)
        print(
            f"| {env_id} | {obs.median():.1e} | {obs.max():.1e} | {reward.max():.1e} | {'yes' if same else 'no'} | "
            f"{free[:10].max():.1e} | {free.max():.1e} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
