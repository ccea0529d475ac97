"""Exported policies against PyTorch: largest difference, file size, time per action; four scripts, MLP and LSTM.

    python benchmarks/scripts/export.py --env-id AllegroKukaRegrasping

Each script trains one iteration, `evaluate.py --export` writes the leader, and onnxruntime acts on 1,000 observations
recorded while the policy acts on 10 environments for 100 steps; an LSTM's memory goes out and comes in at every step.
Difference: of the actions, in [-1, 1]. Time: median of one observation's action, in microseconds, with one thread.
"""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")))

import cpo  # noqa: E402
import envs  # noqa: E402
import epo  # noqa: E402
import evaluate  # noqa: E402
import ppo  # noqa: E402
import sapg  # noqa: E402

import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402
import torch  # noqa: E402

NUM_ENVS, NUM_STEPS, REPETITIONS = 10, 100, 1000
POPULATION = "--num-agents 4"
SCRIPTS = {ppo: "", sapg: POPULATION, cpo: POPULATION, epo: POPULATION}
NETWORKS = {
    "MLP 256-128-64": "--no-lstm --hidden-sizes 256 128 64",
    "the papers' LSTM": "--lstm --hidden-sizes 768 512 256",
}


def train(script, env_id, flags):
    """One iteration in the working directory. Returns the run's folder."""
    before = set(pathlib.Path().glob("runs/*"))
    script.main(
        f"--env-id {env_id} --no-cuda --num-envs 16 --num-minibatches 1 --total-timesteps 256 --num-steps 16 {flags}"
        .split()
    )  # fmt: skip
    (folder,) = set(pathlib.Path().glob("runs/*")) - before
    return str(folder)


def measure(script, env_id, flags):
    """Largest difference of an action, bytes of the file, microseconds per action."""
    folder = train(script, env_id, flags)
    evaluate.main([folder, "--no-cuda", "--export", "policy.onnx"])
    saved, module = evaluate.load(folder)
    env = envs.make(env_id, NUM_ENVS, "cpu", 0)
    agent = evaluate.make_agent(saved, module, env, "cpu")
    player = evaluate.Player(agent, torch.zeros(NUM_ENVS, dtype=torch.long), deterministic=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession("policy.onnx", options, providers=["CPUExecutionProvider"])
    state, largest, obs = np.zeros((NUM_ENVS, agent.state_size), np.float32), 0.0, env.reset()
    for _ in range(NUM_STEPS):
        inputs = {"obs": obs.numpy(), **({"lstm_state": state} if agent.state_size else {})}
        expected = player.act(obs).clamp(-1.0, 1.0)
        action, *rest = session.run(None, inputs)
        largest = max(largest, float(np.abs(action - expected.numpy()).max()))
        obs, _, terminated, truncated, _ = env.step(expected)
        player.dones = (terminated | truncated)[None]
        if rest:
            state = np.where(player.dones[0, :, None].numpy(), np.float32(0), rest[0])
    inputs, seconds = {name: value[:1] for name, value in inputs.items()}, []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        session.run(None, inputs)
        seconds.append(time.perf_counter() - start)
    return largest, os.path.getsize("policy.onnx"), 1e6 * statistics.median(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-id", default="AllegroKukaRegrasping")
    env_id = parser.parse_args().env_id
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for network, flags in NETWORKS.items():
            for script, population in SCRIPTS.items():
                difference, size, microseconds = measure(script, env_id, f"{flags} {population}")
                rows.append(f"| {script.__name__}.py | {network} | {difference:.1e} | {size:,} | {microseconds:.0f} |")
        os.chdir("/")
    print("\n| script | network | largest difference | bytes | microseconds per action |\n|-|-|-|-|-|", *rows, sep="\n")


if __name__ == "__main__":
    main()
