"""What one GPU makes of this project, in about ten minutes: `python -m benchmarks.scripts.gpu > gpu.md`.

First whether MuJoCo Warp agrees with MuJoCo, then three minutes of training Ant, then speed and memory of the engine,
the environment and training with an MLP and with the papers' LSTM. What there is no time left for is listed. Prints
Markdown with the name of the card. Without a GPU, or with `--cpu`, all sizes are tiny: a test of this script.
"""

import argparse
import gc
import importlib.metadata
import importlib.util
import statistics
import time

import torch

import envs
from benchmarks.scripts import throughput
from benchmarks.scripts.throughput import PAPERS, ROOT, SMALL

SECONDS = 540  # after which nothing is begun
TASKS = ("AllegroKukaRegrasping", "AllegroHand", "Ant")
COLUMNS = "| task | environments | what | steps/s | rollout | peak memory, GB | of it torch, GB | broken worlds |"


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


def print_speed(env_id, num_envs, num_steps, iterations, models, late):
    """Rows of the table for one task and number of environments. late() says whether the time is used up."""
    start = f"| `{env_id}` | {num_envs:,} |"
    if late():
        print(f"{start} no time left for the engine | | | | | |")
    else:
        try:
            engine, whole = throughput.environment_speed(env_id, num_envs, num_steps)
        except Exception as error:  # such as too many worlds for this GPU; the rest is worth having
            print(f"{start} {error!r:.200} | | | | | |", flush=True)
            return
        finally:
            gc.collect()  # the environment's memory is not training's
            torch.cuda.empty_cache()  # does nothing on a CPU
        print(f"{start} engine | {engine:,.0f} | | | | |")
        print(f"{start} environment | {whole:,.0f} | | | | |", flush=True)
    for name, flags in models.items():
        if late():
            print(f"{start} no time left for {name} | | | | | |")
            continue
        command = [str(ROOT / "ppo.py"), "--env-id", env_id, "--num-envs", str(num_envs), *flags]
        command += ["--num-steps", "16", "--total-timesteps", str(num_envs * 16 * iterations)]
        try:
            run = throughput.train(command)
        except (Exception, SystemExit) as error:  # such as too little memory
            print(f"{start} training, {name}: {error!r:.200} | | | | | |", flush=True)
            continue
        rollout = run.rollout / (run.rollout + run.update)
        broken = run.curves["charts/nan_worlds"][1][-1]
        memory = f"{run.memory:.2f} | {run.torch_memory:.2f} | {broken:.0f}"
        print(f"{start} training, {name} | {run.speed:,.0f} | {rollout:.0%} | {memory} |", flush=True)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="tiny sizes on the CPU, even if there is a GPU")
    if parser.parse_args(argv).cpu:
        throughput.DEVICE = "cpu"
    begin = time.monotonic()
    gpu = throughput.DEVICE == "cuda"
    if gpu:
        card = torch.cuda.get_device_name()
        worlds = 16
        steps = 50
        seconds = 180
        curve = []
        sizes = (24_576, 4_096)
        iterations = 5
        models = {"MLP": SMALL, "LSTM": PAPERS}
    else:
        card = "CPU"
        worlds = 2
        steps = 2
        seconds = 15
        sizes = (8,)
        iterations = 2
        tiny = ["--no-cuda", "--num-minibatches", "2", "--hidden-sizes", "16"]
        curve = [*tiny, "--num-envs", "8"]
        models = {"MLP": [*tiny, "--no-lstm"], "LSTM": [*tiny, "--lstm"]}
    packages = ("torch", "mujoco", "mujoco-warp", "warp-lang")
    installed = [name for name in packages if importlib.util.find_spec(name.replace("-lang", "").replace("-", "_"))]
    print(f"### {card}\n\n{', '.join(f'{name} {importlib.metadata.version(name)}' for name in installed)}\n")

    print(f"Both engines from the same state, {worlds} worlds, {steps} control steps: difference of an observation.\n")
    print("| task | median of steps | largest |\n|-|-|-|")
    other = "warp" if "mujoco-warp" in installed else "mujoco"
    for env_id in TASKS:
        try:
            differences = compare_engines(env_id, worlds, steps, other)
        except Exception as error:
            print(f"| `{env_id}` | {error!r:.200} | |", flush=True)
            continue
        print(f"| `{env_id}` | {statistics.median(differences):.0e} | {max(differences):.0e} |", flush=True)

    print(f"\n`ppo.py --env-id Ant`, stopped after {seconds} s:\n\n| steps | return |\n|-|-|")
    command = [str(ROOT / "ppo.py"), "--env-id", "Ant", "--total-timesteps", str(10**10), *curve]
    try:
        points = list(zip(*throughput.train(command, seconds).curves["charts/episodic_return"]))
        for step, value in points[:: -max(1, len(points) // 10)][::-1]:  # with the last
            print(f"| {step:,} | {value:,.0f} |", flush=True)
    except (Exception, SystemExit) as error:
        print(f"| {error!r:.200} | |", flush=True)

    print(f"\nTraining is `ppo.py`; rollout is its share of an iteration.\n\n{COLUMNS}\n|-|-|-|-|-|-|-|-|")
    for num_envs in sizes:
        for env_id in TASKS:
            print_speed(env_id, num_envs, 2 * steps, iterations, models, lambda: time.monotonic() - begin > SECONDS)


if __name__ == "__main__":
    main()
