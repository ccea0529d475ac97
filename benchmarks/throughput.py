"""Steps per second and memory on this machine: `python benchmarks/throughput.py [--num-envs 1024] [--env-id all]`.

In one run: (a) the engine's step (physics, read-out of poses, checks) and (b) the whole environment around it, under
random actions, resets included; (c) training with an MLP and (d) with the papers' LSTM, split into rollout and update;
(e) EPO with 6 and with 64 agents. Medians over iterations, the first left out. With `--env-id all` (a) and (b) of
every robot task. Prints a Markdown table.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import envs as tasks  # noqa: E402

SMALL = ["--no-lstm", "--hidden-sizes", "256", "128", "64"]


def environment_speed(env_id, num_envs, num_steps):
    """Steps per second of the engine alone and of the whole environment, over the same steps of the same run."""
    envs = tasks.make(env_id, num_envs)
    engine_step, engine_times, times = envs.engine.step, [], []

    def timed(*args):
        start = time.perf_counter()
        engine_step(*args)
        engine_times.append(time.perf_counter() - start)

    envs.engine.step = timed
    envs.reset()
    for _ in range(num_steps):
        action = 2.0 * torch.rand(num_envs, envs.num_actions) - 1.0
        start = time.perf_counter()
        envs.step(action)
        times.append(time.perf_counter() - start)
    return num_envs * num_steps / sum(engine_times), num_envs * num_steps / sum(times)


def training_speed(command, iterations):
    """Runs a script; returns steps per second, rollout and update seconds (medians), and peak memory in GB."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen([sys.executable, *command], cwd=folder, env=env, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"failed: {' '.join(command)}")
        events = EventAccumulator(str(next(pathlib.Path(folder, "runs").iterdir())))
        events.Reload()
        rollout, update = [
            statistics.median([e.value for e in events.Scalars(f"perf/{part}_s")][1:]) for part in ("rollout", "update")
        ]
        steps = events.Scalars("perf/rollout_s")[-1].step / iterations
    return steps / (rollout + update), rollout, update, usage.ru_maxrss / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env-id", default="AllegroKukaRegrasping")
    parser.add_argument("--num-envs", type=int, default=1_024)
    parser.add_argument("--iterations", type=int, default=7)
    args = parser.parse_args()
    n, k = args.num_envs, args.num_envs // 192 * 192  # both 6 and 64 divide 192
    if args.env_id == "all":
        print("| env id | engine, steps/s | environment, steps/s | share |\n|-|-|-|-|")
        for env_id in sorted(tasks.TASKS.keys() - {"Moat"}):  # Moat has no engine
            engine, whole = environment_speed(env_id, n, 150)
            print(f"| `{env_id}` | {engine:,.0f} | {whole:,.0f} | {whole / engine:.0%} |", flush=True)
        return

    engine, whole = environment_speed(args.env_id, n, 450)  # past the first time limit
    print(f"{args.env_id}, {torch.get_num_threads()} torch threads\n")
    print("| what | environments | steps/s | rollout s | update s | peak memory GB |\n|-|-|-|-|-|-|")
    print(f"| (a) engine | {n} | {engine:,.0f} | | | |")
    print(f"| (b) whole environment, {whole / engine:.0%} of (a) | {n} | {whole:,.0f} | | | |", flush=True)
    for name, script, num_envs, flags in (
        ("(c) ppo.py, MLP 256-128-64", "ppo.py", n, SMALL),
        ("(d) ppo.py, the papers' LSTM", "ppo.py", n, []),
        ("(e) epo.py, 6 agents, MLP", "epo.py", k, [*SMALL, "--num-agents", "6"]),
        ("(e) epo.py, 64 agents, MLP", "epo.py", k, [*SMALL, "--num-agents", "64"]),
    ):
        command = [str(ROOT / script), "--env-id", args.env_id, "--num-envs", str(num_envs), *flags]
        command += ["--total-timesteps", str(num_envs * 16 * args.iterations)]
        sps, rollout, update, memory = training_speed(command, args.iterations)
        print(f"| {name} | {num_envs} | {sps:,.0f} | {rollout:.2f} | {update:.2f} | {memory:.2f} |", flush=True)


if __name__ == "__main__":
    main()
