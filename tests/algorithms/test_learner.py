"""How the learner is kept steady: its critic, its action noise; what bfloat16 rounds; how much work a step is."""

import itertools
import math

import pytest
import torch

import cpo
import ppo
from envs.base import VectorEnv
from envs.tasks.moat import Moat
from tests.algorithms.runs import logged, train
from tests.conftest import FLAGS, every_script, parse
from tests.envs.test_contract import Waits


# ---------------------------------------------------------------- critic


@every_script
@pytest.mark.parametrize("separate", [True, False])
def test_a_separate_critic_shares_nothing_with_the_policy(script, separate):
    flags = f"{FLAGS[script]} {'--separate-critic' if separate else ''} {'' if script is ppo else '--latent-dim 0'}"
    args = parse(script, flags)
    agent = script.Agent(3, 2, args)
    obs = torch.randn(4, 6, 3)
    dones = torch.zeros(4, 6, dtype=torch.bool)
    state = torch.zeros(1, 6, 0)
    ids = () if script is ppo else (torch.zeros(1, 6, dtype=torch.long),)
    moved = {}
    for loss in ("value", "policy"):
        agent.zero_grad()
        _, logprob, _, value, _ = agent.get_action_and_value(obs, *ids, dones, state, torch.ones(4, 6, 2))
        (value.square() if loss == "value" else logprob).mean().backward()
        moved[loss] = {
            name.split(".")[0] for name, p in agent.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0
        }
    critics = {"critic", "critic_mlp"} if separate else {"critic", "mlp"}
    assert moved == {"value": critics, "policy": {"actor", "actor_logstd", "mlp"}}


@every_script
@pytest.mark.parametrize("network", ["", "--lstm --lstm-size 8", "--separate-critic"])
def test_bf16_rounds_what_has_gradients_and_nothing_else(script, network):
    if "--lstm" in network and torch.backends.cpu.get_cpu_capability() == "AVX2":
        pytest.skip("PyTorch has no bfloat16 LSTM for this CPU")
    outputs = {}
    ids = () if script is ppo else (torch.zeros(1, 6, dtype=torch.long),)
    for gradients, flag in itertools.product((False, True), ("--bf16", "--no-bf16")):
        torch.manual_seed(0)
        agent = script.Agent(3, 2, parse(script, f"{FLAGS[script]} {network} {flag}"))
        inputs = torch.randn(4, 6, 3), *ids, torch.zeros(4, 6, dtype=torch.bool), torch.zeros(1, 6, agent.state_size)
        with torch.set_grad_enabled(gradients):
            _, logprob, policy, value, _ = agent.get_action_and_value(*inputs, torch.ones(4, 6, 2))
        outputs[gradients, flag] = torch.stack([logprob, *policy.mean.unbind(-1), value])  # of one type
    assert torch.equal(outputs[False, "--bf16"], outputs[False, "--no-bf16"])
    error = (outputs[True, "--bf16"] - outputs[True, "--no-bf16"]).abs().amax((1, 2))
    assert outputs[True, "--bf16"].dtype == torch.float32
    assert (error > 1e-5).all()
    assert (error < 2e-2).all()


# ---------------------------------------------------------------- action noise


@every_script
def test_the_action_noise_stays_below_its_bound(script):
    """A huge entropy bonus drives it there."""
    saved = train(script, f"{FLAGS[script]} --ent-coef 100 --learning-rate 0.5 --kl-threshold 0")
    logstd = saved["learner"]["agent"]["actor_logstd"]
    assert logstd.max().item() == pytest.approx(math.log(2.0))  # docs/differences.md
    log = logged()[-1]
    assert log["charts/action_std_max"] == pytest.approx(2.0)
    assert log["charts/action_std"] == pytest.approx(logstd[0].exp().mean().item())


@every_script
def test_the_action_noise_comes_back_from_its_bound(script):
    """The parameter is set back, not clamped in the forward pass: that would have no gradient above the bound."""
    population = "" if script is ppo else "--max-ent-coef 0"
    saved = train(script, f"{FLAGS[script]} {population} --init-std 4 --kl-threshold 0")
    assert (saved["learner"]["agent"]["actor_logstd"] < math.log(2.0) - 0.01).any()


# ---------------------------------------------------------------- operators


@every_script
@pytest.mark.parametrize("network", ["--no-lstm", "--lstm --lstm-size 8"])
def test_a_rollout_step_and_a_minibatch_launch_few_operators(script, network, monkeypatch):
    """Beside the environment's own; no episode ends. Each costs the host of a GPU microseconds (docs/engines.md).

    An LSTM adds about 15 per step of a minibatch, forwards and backwards, and so does each further pass of cpo.py.
    """
    step = VectorEnv.step
    clip = torch.nn.utils.clip_grad_norm_
    before = []
    after = []
    minibatches = []

    def counted_step(*args):
        before.append(waits.launches)
        results = step(*args)
        after.append(waits.launches)
        return results

    def counted_clip(*args):
        minibatches.append(waits.launches)
        return clip(*args)

    monkeypatch.setattr(Moat, "max_episode_steps", 1_000_000)
    monkeypatch.setattr(VectorEnv, "step", counted_step)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", counted_clip)
    flags = f"--no-cuda --env-id Moat --num-envs 64 --num-steps 16 --num-minibatches 4 --update-epochs 1 {network}"
    population = "" if script is ppo else "--num-agents 4 --diagnostics-interval 0"
    with Waits() as waits:
        script.main(f"{flags} {population} --total-timesteps 1024 --hidden-sizes 8 8 8".split())
    assert len(after) == 16
    assert len(minibatches) == 4
    assert max(b - a for a, b in zip(after, before[1:])) <= 75
    _, second, third, _ = minibatches  # Adam makes its moments in the first
    passes = 2 if script is cpo else 1
    lstm = 16 * 20 * passes if "--lstm " in network else 0
    assert third - second <= 200 + 100 * passes + lstm
    assert waits.count < 9  # none in each of 16 steps
