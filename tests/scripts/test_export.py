"""evaluate.py --export: the ONNX file acts as the network does, says what it is, and refuses what it cannot be."""

import pathlib
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import cpo
import epo
import evaluate
import ppo
import sapg

POPULATION = "--num-agents 4 --latent-dim 5"
FLAGS = {ppo: "", sapg: POPULATION, cpo: POPULATION, epo: POPULATION}
NETWORKS = {
    "mlp": "--no-lstm --hidden-sizes 16",
    "lstm": "--lstm --lstm-size 8 --hidden-sizes 16",
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def train(script, network):
    """Three iterations on Moat; returns the run's folder."""
    flags = "--no-cuda --env-id Moat --num-envs 64 --num-steps 16 --total-timesteps 3072 --num-minibatches 2"
    script.main(f"{flags} {NETWORKS[network]} {FLAGS[script]}".split())
    (folder,) = pathlib.Path("runs").iterdir()
    return folder


def network_of(folder):
    saved, script = evaluate.load(str(folder))
    env = evaluate.make_env(saved, 1, evaluate.Args(run=str(folder)), "cpu")
    return saved, evaluate.make_agent(saved, script, env, "cpu")


@pytest.mark.parametrize("script, network", [
    (ppo, "mlp"), (ppo, "lstm"), (sapg, "mlp"), (cpo, "mlp"), (epo, "lstm")
])  # fmt: skip
def test_the_file_acts_as_the_network(script, network, capsys):
    folder, k = train(script, network), 2 if FLAGS[script] else 0
    evaluate.main(f"{folder} --no-cuda --export policy.onnx --agents {k}".split())
    assert f"policy.onnx: obs{', lstm_state' * (network == 'lstm')} -> action" in capsys.readouterr().out
    _, agent = network_of(folder)
    session = onnxruntime.InferenceSession("policy.onnx")
    generator = torch.Generator().manual_seed(0)
    player = evaluate.Player(agent, torch.full((1000,), k), deterministic=True)
    player.dones = torch.zeros_like(player.dones)
    state = np.zeros((1000, agent.state_size), np.float32)
    for _ in range(3):  # memory goes out and comes in again
        obs = 3.0 * torch.randn(1000, 9, generator=generator)
        expected = player.act(obs).clamp(-1.0, 1.0).numpy()
        inputs = {"obs": obs.numpy(), **({"lstm_state": state} if network == "lstm" else {})}
        action, *rest = session.run(None, inputs)
        state = rest[0] if rest else state
        assert action.shape == (1000, 4) and np.abs(action - expected).max() < 1e-5
    one = {"obs": obs[:1].numpy(), **({"lstm_state": state[:1]} if network == "lstm" else {})}
    assert session.run(None, one)[0].shape == (1, 4)


def test_agents_differ_and_actions_are_clamped():
    folder = train(sapg, "mlp")
    saved, agent = network_of(folder)
    saved["state"]["agent"]["actor.bias"] += torch.tensor([5.0, -5.0, 0.0, 0.0])
    torch.save(saved, folder / "checkpoint.pt")
    actions = []
    for k in (0, 3):
        evaluate.main(f"{folder} --no-cuda --export {k}.onnx --agents {k}".split())
        obs = np.random.default_rng(0).normal(size=(50, 9)).astype(np.float32)
        actions.append(onnxruntime.InferenceSession(f"{k}.onnx").run(None, {"obs": obs})[0])
    assert (actions[0][:, 0] == 1.0).all() and (actions[0][:, 1] == -1.0).all()
    assert np.abs(actions[0] - actions[1]).max() > 1e-3


def test_the_metadata_says_what_it_is():
    folder = train(epo, "mlp")
    evaluate.main(f"{folder} --no-cuda --export policy.onnx".split())
    metadata = {prop.key: prop.value for prop in onnx.load("policy.onnx").metadata_props}
    assert metadata["task"] == "Moat" and metadata["script"] == "epo" and metadata["agent"] == "0"
    assert metadata["steps"] == "3072" and "Observation (9): position" in metadata["observation"]
    assert float(metadata["control_period"]) == pytest.approx(1 / 60)


@pytest.mark.parametrize("flags, line", [
    ("--export policy.pt", "--export policy.pt: must be a path.onnx in a folder that exists"),
    ("--export nowhere/policy.onnx", "--export nowhere/policy.onnx: must be a path.onnx in a folder that exists"),
    ("--export policy.onnx --agents 0 1", "--agents (0, 1): must be one agent with --export"),
    ("--export policy.onnx --agents 4", "--agents 4: must be between 0 and 3"),
])  # fmt: skip
def test_what_cannot_be_exported_is_refused(flags, line, capsys):
    folder = train(sapg, "mlp")
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        evaluate.main(f"{folder} {flags}".split())
    assert end.value.code == 2 and capsys.readouterr().err.splitlines() == [line]
    assert not list(pathlib.Path().glob("policy*"))


@pytest.mark.parametrize("task, period", [("Pendulum-v1", "unknown"), ("Hopper-v5", "0.008")])
def test_an_adapter_s_task_has_no_made_up_metadata(task, period):
    pytest.importorskip("envs.adapters.envpool")  # not envpool itself, which draws only if EGL was loaded before
    ppo.main(
        f"--no-cuda --env-id envpool:{task} --num-envs 4 --num-steps 4 --total-timesteps 16 --num-minibatches 1"
        " --hidden-sizes 8".split()
    )
    (folder,) = pathlib.Path("runs").iterdir()
    evaluate.main(f"{folder} --no-cuda --export policy.onnx".split())
    metadata = {prop.key: prop.value for prop in onnx.load("policy.onnx").metadata_props}
    assert metadata["observation"] == f"of envpool:{task}" and metadata["control_period"] == period


def test_a_file_that_cannot_be_written_is_one_line(capsys):
    folder = train(ppo, "mlp")
    pathlib.Path("policy.onnx").mkdir()
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        evaluate.main(f"{folder} --no-cuda --export policy.onnx".split())
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and line.startswith("--export policy.onnx: ")


def test_without_onnx_one_line_says_what_to_install(monkeypatch, capsys):
    folder = train(ppo, "mlp")
    monkeypatch.setitem(sys.modules, "onnx", None)
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        evaluate.main(f"{folder} --no-cuda --export policy.onnx".split())
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and line.endswith("pip install -r requirements-onnx.txt")
