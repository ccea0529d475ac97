"""What one GPU makes of this project, in six minutes: `python -m benchmarks.scripts.gpu > gpu.md`.

The most important comes first: that the papers' command runs at all, then two other tasks, how fast engine and
environment are, whether MuJoCo Warp agrees with MuJoCo, a training of Ant, and fewer environments. Every line is
printed when it is known, so that what was measured survives if the machine is taken away. A failure prints its first
and its last line, and the next measurement follows; the whole output of what failed goes to stderr. Markdown. Without a
GPU, or with `--cpu`, all sizes are tiny: a test of this script.
"""

import argparse
import gc
import importlib.metadata
import importlib.util
import statistics
import sys
import time
import traceback

import torch

import envs
from benchmarks.scripts import throughput
from benchmarks.scripts.help import HelpFormatter
from benchmarks.scripts.throughput import ROOT
from envs.terminal import needs_output

TASKS = ("AllegroKukaRegrasping", "AllegroHand", "Ant")
POPULATION = ("epo.py", "--env-id", "AllegroKukaRegrasping", "--num-agents", "64")  # the papers' command
NUM_STEPS = 16  # of a window, in every task's tuned settings


class Sizes:
    """What is measured on a GPU."""

    num_envs = 24_576
    fewer_envs = 4_096
    iterations = 5
    engine_steps = 100
    compared_worlds = 16
    compared_steps = 50
    curve_seconds = 90
    curve_flags = ("--total-timesteps", str(10**10))  # so that time alone ends it
    flags = ()


class TinySizes:
    """What a CPU can do in a test."""

    num_envs = 128
    fewer_envs = 64
    iterations = 2
    engine_steps = 4
    compared_worlds = 2
    compared_steps = 2
    curve_seconds = 300
    curve_flags = ("--num-envs", "64", "--total-timesteps", "20480")
    flags = ("--no-cuda", "--num-minibatches", "2", "--hidden-sizes", "16")


def report(line):
    print(line, flush=True)


def print_failure(what, error):
    """One line with the first and the last line of what went wrong; all of it goes to stderr."""
    lines = str(error).strip().splitlines() or [repr(error)]
    ends = lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"
    report(f"\n{what} FAILED: {type(error).__name__}: {ends:.400}\n")
    print(f"{what}:", *traceback.format_exception(type(error), error, error.__traceback__), file=sys.stderr, flush=True)


def print_training(script_and_flags, num_envs, sizes, seconds_left):
    """Trains for a few iterations: time to the end of the first, in which kernels are compiled, speed and memory."""
    script, *flags = script_and_flags
    command = [str(ROOT / script), *flags, "--num-envs", str(num_envs), *sizes.flags]
    command += ["--total-timesteps", str(num_envs * NUM_STEPS * sizes.iterations)]
    run = throughput.train(command, seconds_left)
    broken = run.curves["charts/nan_worlds"][1][-1] if "charts/nan_worlds" in run.curves else 0
    iterations = len(run.curves["perf/rollout_s"][0])
    report(
        f"| `{' '.join(script_and_flags)}` | {num_envs:,} | {run.first_iteration:.0f} | {iterations} | "
        f"{run.speed:,.0f} | {run.rollout:.2f} | {run.update:.2f} | {run.memory:.2f} | {run.torch_memory:.2f} | "
        f"{broken:.0f} |"
    )


def print_trainings(commands, num_envs, sizes, seconds_left):
    report(
        "\n| training | environments | first iteration after, s | iterations | steps/s | rollout, s | update, s "
        "| peak memory, GB | of it torch, GB | broken worlds |\n|-|-|-|-|-|-|-|-|-|-|"
    )
    for command in commands:
        attempt(f"`{' '.join(command)}`", seconds_left, print_training, command, num_envs, sizes, seconds_left())


def print_environments(num_envs, sizes, seconds_left):
    report("\n| task | environments | engine alone, steps/s | whole environment, steps/s |\n|-|-|-|-|")
    for env_id in TASKS:
        attempt(f"`{env_id}`", seconds_left, print_environment, env_id, num_envs, sizes)


def print_environment(env_id, num_envs, sizes):
    try:
        engine, whole = throughput.environment_speed(env_id, num_envs, sizes.engine_steps)
    finally:
        gc.collect()  # the environment's memory is not what is measured next
        torch.cuda.empty_cache()  # does nothing on a CPU
    report(f"| `{env_id}` | {num_envs:,} | {engine:,.0f} | {whole:,.0f} |")


def compare_engines(env_id, num_envs, num_steps, other):
    """Largest difference of an observation after each control step that MuJoCo and `other` begin in the same state.

    As many steps before, on MuJoCo alone, bring things into contact.
    """
    ours = envs.make(env_id, num_envs, "cpu", 1, "mujoco")
    theirs = envs.make(env_id, num_envs, throughput.DEVICE, 1, other)
    for env in (ours, theirs):
        env.reset()
    generator = torch.Generator().manual_seed(0)
    differences = []
    action = torch.zeros(num_envs, ours.num_actions)
    for step in range(2 * num_steps):
        action = 0.9 * action + 0.3 * torch.randn(action.shape, generator=generator)
        compared = step >= num_steps
        if compared:
            if env_id.startswith("AllegroKuka"):  # pushes, since two devices draw other numbers
                ours.push_probability.zero_()
                ours.push_force.zero_()
            theirs.load_state_dict(ours.state_dict())
            found = theirs.step(action.to(theirs.device))[4]["final_obs"].cpu()
        expected = ours.step(action)[4]["final_obs"]
        if compared:
            differences.append((found - expected).abs().max().item())
    return differences


def print_comparison(env_id, sizes, other):
    differences = compare_engines(env_id, sizes.compared_worlds, sizes.compared_steps, other)
    report(f"| `{env_id}` | {statistics.median(differences):.0e} | {max(differences):.0e} |")


def print_curve(sizes, seconds_left):
    """Ten points of the return of Ant, trained with its tuned settings until the time is over."""
    command = [str(ROOT / "ppo.py"), "--env-id", "Ant", *sizes.curve_flags, *sizes.flags]
    run = throughput.train(command, min(sizes.curve_seconds, seconds_left))
    points = list(zip(*run.curves["charts/episodic_return"]))
    for step, value in points[:: -max(1, len(points) // 10)][::-1]:  # with the last
        report(f"| {step:,} | {value:,.0f} |")


def attempt(what, seconds_left, measure, *args):
    """Measure and print something, unless the time is over; a failure is printed and costs nothing else."""
    if seconds_left() <= 0.0:
        report(f"\n{what}: no time left\n")
        return
    try:
        measure(*args)
    except (Exception, SystemExit) as error:  # such as too little memory; the rest is worth having
        print_failure(what, error)


@needs_output()
def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="tiny sizes on the CPU, even if there is a GPU")
    parser.add_argument("--minutes", type=float, default=6.0, help="after which nothing is begun and training stops")
    args = parser.parse_args(argv)
    if args.cpu:
        throughput.DEVICE = "cpu"
    gpu = throughput.DEVICE == "cuda"
    sizes = Sizes if gpu else TinySizes
    end = time.monotonic() + 60.0 * args.minutes

    def seconds_left():
        return end - time.monotonic()

    packages = ("torch", "mujoco", "mujoco-warp", "warp-lang")
    installed = [name for name in packages if importlib.util.find_spec(name.replace("-lang", "").replace("-", "_"))]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in installed)
    report(f"### {torch.cuda.get_device_name() if gpu else 'CPU'}\n\n{versions}")

    ppo = [("ppo.py", "--env-id", env_id) for env_id in TASKS]
    print_trainings([POPULATION, *ppo[1:]], sizes.num_envs, sizes, seconds_left)
    print_environments(sizes.num_envs, sizes, seconds_left)

    worlds = f"{sizes.compared_worlds} worlds, {sizes.compared_steps} control steps"
    report(f"\nBoth engines from the same state, {worlds}: difference of an observation.\n")
    report("| task | median of steps | largest |\n|-|-|-|")
    other = "warp" if "mujoco-warp" in installed else "mujoco"
    for env_id in TASKS:
        attempt(f"`{env_id}`", seconds_left, print_comparison, env_id, sizes, other)

    report(f"\n`ppo.py --env-id Ant` for {sizes.curve_seconds} s:\n\n| steps | return |\n|-|-|")
    attempt("training", seconds_left, print_curve, sizes, seconds_left())

    print_trainings([ppo[0], POPULATION], sizes.fewer_envs, sizes, seconds_left)
    print_environments(sizes.fewer_envs, sizes, seconds_left)


if __name__ == "__main__":
    main()
