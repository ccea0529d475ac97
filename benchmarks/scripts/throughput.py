"""Steps per second and memory on this machine.

    python -m benchmarks.scripts.throughput [--num-envs 1024] [--env-id all]

On a GPU, with MuJoCo Warp: `--num-envs 4096 8192 16384 24576 49152 --num-agents 6 64 128`.

In one run: (a) the engine's step (physics, read-out of poses, checks) and (b) the whole environment around it, under
random actions, resets included; (c) training with an MLP and (d) with the papers' LSTM, split into rollout and update;
(e) EPO with 6 and with 64 agents. Medians over iterations, the first left out; peak memory is the process's on a CPU,
on a GPU the most that a run took. With `--env-id all` (a) and (b) of every robot task. Prints a Markdown
table.
"""

import argparse
import gc
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Dict, NamedTuple

import torch

import envs
from benchmarks.scripts.collect import read_curves
from benchmarks.scripts.help import HelpFormatter
from envs.terminal import needs_output

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL = ["--no-lstm", "--hidden-sizes", "256", "128", "64", "--update-epochs", "2"]
PAPERS = ["--lstm", "--hidden-sizes", "768", "512", "256", "--num-minibatches", "4", "--update-epochs", "2"]
GRACE = 30.0  # s
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# runs a script and notes how much of the GPU's memory torch held at most
RUN = """import pathlib, runpy, sys, torch
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    pathlib.Path("torch_peak").write_text(str(torch.cuda.max_memory_reserved()))"""


def now():
    """Seconds, after all that the GPU was given to do."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def environment_speed(env_id, num_envs, num_steps):
    """Steps per second of the engine alone and of the whole environment, over the same steps of the same run.

    Waits for the GPU four times per step; training does not.
    """
    env = envs.make(env_id, num_envs, DEVICE)
    engine_step = env.engine.step
    engine_times = []
    times = []

    def timed(*args):
        start = now()
        engine_step(*args)
        engine_times.append(now() - start)

    env.engine.step = timed
    env.reset()
    for _ in range(num_steps):
        action = 2.0 * torch.rand(num_envs, env.num_actions, device=DEVICE) - 1.0
        start = now()
        env.step(action)
        times.append(now() - start)
    return num_envs * num_steps / sum(engine_times), num_envs * num_steps / sum(times)


class Training(NamedTuple):
    """What a run of a script took: seconds are medians over iterations, memory is the peak, curves as read_curves's."""

    first_iteration: float  # s, from the start to the end of the first iteration: imports and compilation are included
    speed: float  # steps per second
    rollout: float  # s
    update: float  # s
    memory: float  # GB: of the process, on a GPU the most that it took there
    torch_memory: float  # GB of a GPU's memory that torch itself held
    curves: Dict[str, tuple]


def train(command, seconds=math.inf):
    """Runs a script, at most so many seconds, after which it stops with a checkpoint as on SIGTERM.

    Its output goes to stderr as it comes, and is in the RuntimeError where it fails or does not finish two iterations.
    If it still runs GRACE seconds after SIGTERM, it is killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]  # where packages are, perhaps
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        output = pathlib.Path(folder, "output.txt")
        start = time.monotonic()
        shown = 0  # characters of the output
        first_iteration = math.nan
        idle = torch.cuda.mem_get_info()[0] if DEVICE == "cuda" else 0  # bytes
        on_gpu = 0
        stopped = False
        with open(output, "w") as file:
            process = subprocess.Popen(
                [sys.executable, "-c", RUN, *command], cwd=folder, env=env, stdout=file, stderr=subprocess.STDOUT
            )
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            elapsed = time.monotonic() - start
            if DEVICE == "cuda":
                on_gpu = max(on_gpu, idle - torch.cuda.mem_get_info()[0])
            text = output.read_text()
            print(text[shown:], end="", file=sys.stderr, flush=True)  # what is known if this is killed
            shown = len(text)
            if math.isnan(first_iteration) and " steps | " in text:
                first_iteration = elapsed
            if elapsed > seconds and not stopped:
                process.terminate()
                stopped = True
            if elapsed > seconds + GRACE:
                process.kill()
            time.sleep(0.1)
        if status and not stopped:
            raise RuntimeError(output.read_text())
        runs = list(pathlib.Path(folder).glob("runs/*"))
        curves = read_curves(runs[0], ["perf/*", "charts/*"]) if runs else {}
        if len(curves.get("perf/rollout_s", [()])[0]) < 2:
            raise RuntimeError(f"fewer than two iterations in {seconds:.0f} s\n{output.read_text()}")
        peak = pathlib.Path(folder, "torch_peak")
        torch_memory = int(peak.read_text()) / 1e9 if peak.exists() else math.nan  # a killed run leaves none
    rollout, update = (statistics.median(curves[f"perf/{part}_s"][1][1:]) for part in ("rollout", "update"))
    steps = curves["perf/rollout_s"][0]
    memory = on_gpu / 1e9 if DEVICE == "cuda" else usage.ru_maxrss / 1e6
    speed = steps[-1] / len(steps) / (rollout + update)
    return Training(first_iteration, speed, rollout, update, memory, torch_memory, curves)


@needs_output()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--env-id", default="AllegroKukaRegrasping", help="the task")
    parser.add_argument("--num-envs", type=int, nargs="+", default=[1_024], help="environments")
    parser.add_argument("--num-agents", type=int, nargs="+", default=[6, 64], help="agents of the populations")
    parser.add_argument("--iterations", type=int, default=7, help="of each run")
    args = parser.parse_args()
    if args.env_id == "all":
        print("| env id | engine, steps/s | environment, steps/s | share |\n|-|-|-|-|")
        for env_id in sorted(envs.TASKS.keys() - set(envs.PURE_TORCH)):
            engine, whole = environment_speed(env_id, args.num_envs[0], 150)
            print(f"| `{env_id}` | {engine:,.0f} | {whole:,.0f} | {whole / engine:.0%} |", flush=True)
        return
    print(f"{args.env_id}, {DEVICE}, {torch.get_num_threads()} torch threads\n")
    print("| what | environments | steps/s | rollout s | update s | peak memory GB |\n|-|-|-|-|-|-|")
    for n in args.num_envs:
        engine, whole = environment_speed(args.env_id, n, 450)  # past the first time limit
        print(f"| (a) engine | {n} | {engine:,.0f} | | | |")
        print(f"| (b) whole environment, {whole / engine:.0%} of (a) | {n} | {whole:,.0f} | | | |", flush=True)
        gc.collect()  # the environment's memory is not training's
        torch.cuda.empty_cache()  # does nothing on a CPU
        runs = [("(c) ppo.py, MLP 256-128-64", "ppo.py", n, SMALL)]
        runs.append(("(d) ppo.py, the papers' LSTM", "ppo.py", n, PAPERS))
        for agents in args.num_agents:
            k = max(1, n // 384) * 384  # 6, 64 and 128 divide 384
            runs.append((f"(e) epo.py, {agents} agents, MLP", "epo.py", k, [*SMALL, "--num-agents", str(agents)]))
        for name, script, num_envs, flags in runs:
            command = [str(ROOT / script), "--env-id", args.env_id, "--num-envs", str(num_envs), *flags]
            command += ["--total-timesteps", str(num_envs * 16 * args.iterations)]
            run = train(command)
            seconds = f"{run.rollout:.2f} | {run.update:.2f}"
            print(f"| {name} | {num_envs} | {run.speed:,.0f} | {seconds} | {run.memory:.2f} |", flush=True)


if __name__ == "__main__":
    main()
