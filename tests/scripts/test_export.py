"""export.py: the ONNX file acts as the network does and says what it is; policies are small files that play."""

import pathlib
import re

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import cpo
import envs
import epo
import evaluate
import export
import pbt
import ppo
import sapg
from tests.conftest import the_run
from tests.scripts.conftest import ROOT, checkpoint, refused

POPULATION = "--num-agents 4 --latent-dim 5"
OWN = {ppo: "", sapg: POPULATION, cpo: POPULATION, epo: POPULATION, pbt: "--num-agents 4"}
NETWORKS = {"mlp": "--no-lstm --hidden-sizes 16 --bf16", "lstm": "--lstm --lstm-size 8 --hidden-sizes 16"}
POLICIES = sorted(ROOT.glob("policies/*/policy.pt"))
every_policy = pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.parent.name)


def train(script, network="mlp", env_id="Moat"):
    """Three iterations; returns the run's folder."""
    flags = f"--no-cuda --env-id {env_id} --num-envs 64 --num-steps 16 --total-timesteps 3072 --num-minibatches 2"
    script.main(f"{flags} {NETWORKS[network]} {OWN[script]}".split())
    return the_run()


def network_of(path):
    saved, script = evaluate.load(str(path))
    env = evaluate.make_env(saved, 2, 1, "auto", "cpu")
    return saved, env, evaluate.make_agent(saved, script, env, "cpu")


# ---------------------------------------------------------------- ONNX


@pytest.mark.parametrize("script, network", [(ppo, "mlp"), (cpo, "lstm"), (pbt, "lstm")])
def test_the_file_acts_as_the_network(script, network, capsys):
    folder = train(script, network)
    k = 2 if OWN[script] else 0
    saved = checkpoint(folder)
    for name, weights in saved["learner"]["agent"].items():
        weights *= 100 if name.endswith("actor.weight") else 1  # some actions are to be clamped
    torch.save(saved, folder / "checkpoint.pt")
    export.main([str(folder), "policy.onnx", "--agent", str(k)])
    assert capsys.readouterr().err == ""
    *_, agent = network_of(folder)
    session = onnxruntime.InferenceSession("policy.onnx")
    assert [each.name for each in session.get_inputs()] == ["obs"] + ["lstm_state"] * (network == "lstm")
    assert [each.name for each in session.get_outputs()] == ["action"] + ["next_lstm_state"] * (network == "lstm")
    generator = torch.Generator().manual_seed(0)
    player = evaluate.Player(agent, torch.full((1000,), k), deterministic=True)
    player.dones = torch.zeros_like(player.dones)
    state = np.zeros((1000, agent.state_size), np.float32)
    for _ in range(3):  # memory goes out and comes in again; float32 also after --bf16
        obs = 3.0 * torch.randn(1000, 9, generator=generator)
        expected = player.act(obs).clamp(-1.0, 1.0).numpy()
        inputs = {"obs": obs.numpy(), **({"lstm_state": state} if network == "lstm" else {})}
        action, *rest = session.run(None, inputs)
        state = rest[0] if rest else state
        assert action.shape == (1000, 4)
        assert np.abs(action - expected).max() < 1e-4
        assert (np.abs(expected) == 1.0).any()
        assert (np.abs(expected) < 1.0).any()
    one = {"obs": obs[:1].numpy(), **({"lstm_state": state[:1]} if network == "lstm" else {})}
    assert session.run(None, one)[0].shape == (1, 4)


def metadata_of(folder):
    export.main([str(folder), "policy.onnx"])
    return {prop.key: prop.value for prop in onnx.load("policy.onnx").metadata_props}


@pytest.mark.parametrize("script, agent", [(epo, "0"), (pbt, "2")])
def test_the_metadata_says_what_it_is(script, agent, monkeypatch):
    monkeypatch.setattr(evaluate, "find_best", lambda *args: 2)
    train(script)
    metadata = metadata_of(the_run())
    assert "Observation (9)" in metadata.pop("observation")
    assert metadata == {
        "task": "Moat",
        "script": script.__name__,
        "agent": agent,
        "steps": "3072",
        "control_period": "unknown",
    }


@pytest.mark.parametrize("task, period", [("Pendulum-v1", "unknown"), ("Hopper-v5", "0.008")])
def test_an_adapters_task_has_no_made_up_metadata(task, period):
    metadata = metadata_of(train(ppo, env_id=f"envpool:{task}"))
    assert metadata["observation"] == f"of envpool:{task}"
    assert metadata["control_period"] == period


@pytest.mark.parametrize(
    "flags, start",
    [
        ("policy.onnx --agent 4", "--agent 4: "),
        ("policies --agent 1", "--agent 1: "),
        ("RUN", "output RUN: "),
        ("nowhere/policy.onnx", "output nowhere/policy.onnx: "),
        ("RUN/checkpoint.pt", "output RUN/checkpoint.pt: "),
    ],
)
def test_bad_input(flags, start, capsys):
    run = str(train(sapg))
    assert refused(export, f"{run} {flags.replace('RUN', run)}", capsys).startswith(start.replace("RUN", run))
    assert not list(pathlib.Path().rglob("policy*"))


# ---------------------------------------------------------------- policies


def test_a_saved_policy_scores_and_exports_as_its_run_and_is_not_resumed(capsys):
    run = str(train(epo, env_id="Grasp"))
    export.main([run, "policies/Mine"])
    size = pathlib.Path("policies/Mine/policy.pt").stat().st_size
    assert size < 0.5 * pathlib.Path(run, "checkpoint.pt").stat().st_size
    capsys.readouterr()
    tables = []
    for folder in (run, "policies/Mine", "policies/Mine/policy.pt"):
        evaluate.main([folder, "--episodes", "3", "--no-cuda"])
        tables.append(capsys.readouterr().out)
    assert tables[1:] == [tables[0]] * 2
    assert "| leader, 0 |" in tables[0]
    export.main(["policies/Mine", "policy.onnx"])
    line = refused(epo, "--no-cuda --resume policies/Mine/policy.pt --total-timesteps 8192", capsys)
    assert line.startswith("--resume policies/Mine/policy.pt: ")
    line = refused(epo, "--no-cuda --resume policies/Mine --total-timesteps 8192", capsys)
    assert "--load" in line


def test_the_curriculum_is_part_of_a_policy():
    saved, env, _ = network_of(train(epo, env_id="Grasp"))
    saved["rollout"][0]["env"]["level"] = torch.tensor(3.5)
    env.curriculum = ("level",)
    export.save_policy("Mine", saved, env)
    assert evaluate.load("Mine")[0]["rollout"][0]["env"] == {"level": 3.5}


@pytest.mark.parametrize("output, path", [("policy.onnx", "policy.onnx"), ("Mine", "Mine/policy.pt")])
def test_a_good_file_is_replaced_whole_or_not_at_all(output, path, monkeypatch):
    run = str(train(ppo))
    path = pathlib.Path(path)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"good")

    def killed(*paths):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        export.main([run, output])
    assert path.read_bytes() == b"good"


@every_policy
def test_a_policy_is_small_holds_nothing_but_the_agents_and_plays(path):
    assert path.stat().st_size < 1_000_000
    saved, env, agent = network_of(path.parent)
    assert saved["learner"].keys() == {"agent"}
    (rollout,) = saved["rollout"]
    assert rollout.keys() == {"episodes", "env"}
    assert saved["random"] == []
    assert saved["args"]["env_id"] in envs.TASKS
    player = evaluate.Player(agent, torch.zeros(2, dtype=torch.long), deterministic=True)
    obs = env.reset()
    for _ in range(3):
        action = player.act(obs)
        obs, reward, terminated, truncated, _ = env.step(action)
        player.dones = (terminated | truncated)[None]
        assert action.shape == (2, env.num_actions)
        assert action.isfinite().all()
        assert reward.isfinite().all()


@pytest.mark.parametrize("name", ["Ant", "Anymal"])
def test_a_policy_earns_at_least_half_of_what_it_did_in_training(name):
    saved, env, agent = network_of(ROOT / "policies" / name)
    player = evaluate.Player(agent, torch.zeros(2, dtype=torch.long), deterministic=True)
    obs = env.reset()
    total = 0.0
    for _ in range(200):
        obs, reward, *_ = env.step(player.act(obs))
        total += reward.mean() / 200
    returns, lengths, _ = saved["rollout"][0]["episodes"]["means"][:, 0]
    assert total > 0.5 * returns / lengths


def test_the_table_lists_every_policy_and_how_it_was_trained():
    text = (ROOT / "policies" / "README.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*`python (\w+)\.py ([^`]+)`", text, re.MULTILINE)
    assert rows
    assert [name for name, *_ in rows] == [path.parent.name for path in POLICIES]
    for name, script, flags in rows:
        saved = checkpoint(ROOT / "policies" / name, "policy.pt")
        words = flags.split()
        assert script == saved["script"]
        for flag, value in zip(words, words[1:]):
            if flag.startswith("--") and not value.startswith("--") and flag != "--hidden-sizes":
                assert str(saved["args"][flag[2:].replace("-", "_")]) == value.replace("_", ""), f"{name}: {flag}"
