"""The gradient that a script steps along is that of the papers' loss, written row by row, to the last digits.

minibatch_loss on minibatches that the tests make, against autograd of that loss under many flags, and against finite
differences, which know nothing of autograd. Whole updates of short runs, by their checkpoints. Below it, the network
against its formulas.
"""

import math

import pytest
import torch

import cpo
import epo
import ppo
import sapg
from tests.algorithms.minibatches import (
    FLAGS,
    assert_gradients,
    gradients,
    loss_of_minibatch,
    make_minibatch,
    rows_of,
)
from tests.algorithms.reference_loss import assert_updates, gaussian_kl, play
from tests.algorithms.runs import record
from tests.algorithms.test_equations import cases, clip, clipped_surrogate, critic_error, entropy, every_case
from tests.conftest import every_script

pytestmark = pytest.mark.usefixtures("float64")

every_network = pytest.mark.parametrize(
    "network_flag", ["", "--lstm", "--separate-critic"], ids=["mlp", "lstm", "separate-critic"]
)


def loss_of(args):
    """The whole loss as a function of a minibatch's rows."""
    eps = args.clip_coef
    last = getattr(args, "num_agents", 1) - 1

    def loss(rows):
        total = 0.0
        weights = 0.0
        awac = 0.0
        for row in rows:
            if row.kind == "awac":  # CPO Eq. 10
                awac = awac - row.logprob * min(math.exp(row.advantage / args.awac_temperature), 100.0)
                continue
            advantage = row.advantage
            if row.kind == "on-policy" and row.learner > 0:  # CPO Eq. 25
                advantage = advantage - getattr(args, "reverse_kl_coef", 0.0) * (row.logprob - row.leader_logprob)
            mu = row.mu if getattr(args, "off_policy_mu", False) else 1.0
            loss = -clipped_surrogate(row, eps, mu, advantage)  # SAPG Eq. 2 and 3
            vf_eps = eps if args.clip_vloss else math.inf
            loss = loss + args.vf_coef * 0.5 * critic_error(row, vf_eps)  # SAPG Eq. 7 and 8
            bonus = args.ent_coef + (args.max_ent_coef * row.learner / last if last else 0.0)  # SAPG 4.5
            if row.kind == "on-policy":
                loss = loss - bonus * entropy(row)
            loss = loss + args.bounds_coef * sum((m - clip(m, -1.1, 1.1)) ** 2 for m in row.mean)
            weight = args.off_policy_coef if row.kind == "off-policy" else 1.0  # SAPG Eq. 4 and 9
            total = total + weight * loss
            weights = weights + weight
        return (total + getattr(args, "awac_coef", 0.0) * awac) / weights  # CPO Eq. 11

    return loss


@pytest.mark.parametrize(
    "script, flags",
    [
        (ppo, ""),
        (ppo, "--ent-coef 0.1 --bounds-coef 0.5"),
        (ppo, "--no-clip-vloss --separate-critic"),
        (ppo, "--lstm"),
        (sapg, "--off-policy-mu --max-ent-coef 0.3"),
        (sapg, "--off-policy-ratio 3 --bounds-coef 0.5"),
        (sapg, "--off-policy-mu --aggregation symmetric --off-policy-coef 0.5 --ent-coef -0.1"),
        (sapg, "--lstm --off-policy-mu --off-policy-ratio 2"),
        (sapg, "--separate-critic --off-policy-mu --off-policy-ratio 2 --bounds-coef 0.5"),
        (sapg, "--no-clip-vloss --lstm --off-policy-ratio 0"),
        (cpo, "--no-clip-vloss --awac-coef 0.5 --bounds-coef 0.5"),
        (cpo, "--lstm --awac-coef 0.5 --reverse-kl-coef 0.3 --ent-coef 0.1"),
        (cpo, "--separate-critic --awac-coef 0.5 --reverse-kl-coef 0.3"),
        (cpo, "--aggregation symmetric --awac-coef 0.5 --reverse-kl-coef 0.3"),  # of Eq. 25 are on-policy rows alone
        (epo, "--off-policy-mu --off-policy-ratio 3"),
        (epo, "--no-clip-vloss --separate-critic --max-ent-coef 0.3"),
        (epo, "--lstm --off-policy-ratio 3 --max-ent-coef 0.3 --ent-coef 0.1 --bounds-coef 0.5"),
    ],
    ids=lambda x: x if isinstance(x, str) else x.__name__,
)
def test_gradient_of_minibatch_loss(script, flags):
    made = make_minibatch(script, flags)
    met = assert_gradients(made, loss_of(made.args))
    kinds = {"on-policy", "off-policy"} if getattr(made.args, "off_policy_ratio", 0) else {"on-policy"}
    with_mu = getattr(made.args, "off_policy_mu", False)
    assert cases([row for row in met if row.kind != "awac"], made.args.clip_coef, with_mu) == every_case(*kinds)
    assert any((row.mean > 1.1).any() for row in met)
    assert any((row.mean < -1.1).any() for row in met)
    assert any(row.kind == "awac" for row in met) == (script is cpo)


@pytest.mark.parametrize(
    "script, flags",
    [
        (ppo, "--critic-n-step 3 --ent-coef 0.1 --reward-scale 0.1 --max-grad-norm 0.3"),
        (ppo, "--lstm --update-epochs 4 --kl-threshold 0.002"),
        (sapg, "--off-policy-mu --max-ent-coef 0.3"),
        (sapg, "--off-policy-lambda 0"),  # SAPG Eq. 6 as it stands
        (sapg, "--off-policy-mu --off-policy-coef 0.5 --critic-n-step 1 --gamma 0.9"),
        (sapg, "--lstm --aggregation symmetric --off-policy-coef 0.5"),
        (sapg, "--off-policy-ratio 0 --separate-critic"),
        (cpo, "--lstm --awac-coef 0.5 --reverse-kl-coef 0.3 --adversarial-coef 0.05"),
        (cpo, "--awac-coef 0.5 --off-policy-lambda 0.5"),
        (cpo, "--awac-coef 0.5 --adversarial-coef 0.5 --critic-n-step 3 --reward-scale 0.1"),
        (epo, "--ga-threshold 1e9 --kl-threshold 0.003"),
        (epo, "--lstm --ga-threshold 0 --mutation-std 0 --num-elites 2 --total-timesteps 768"),
    ],
    ids=lambda x: x if isinstance(x, str) else x.__name__,
)
def test_every_update_of_a_run(script, flags):
    """All that comes before the loss and after it: advantages, targets, labels, Adam, normalisers, learning rate."""
    run = play(script, flags)
    met = assert_updates(run, loss_of(run.args))
    kinds = {"on-policy", "off-policy"} if getattr(run.args, "off_policy_ratio", 0) else {"on-policy"}
    assert {row.kind for row in met} - {"awac"} == kinds
    assert bool(run.lineages) == ("--mutation-std 0" in flags)


@pytest.mark.parametrize(
    "script, lstm",
    [
        (ppo, ""),
        (sapg, ""),
        (cpo, ""),
        (epo, ""),
        (ppo, "--lstm"),
        (cpo, "--lstm"),
        (cpo, "--separate-critic"),
    ],
    ids=lambda x: x if isinstance(x, str) else x.__name__,
)
def test_finite_differences(script, lstm):
    """Every coordinate of the gradient is (L(theta + h) - L(theta - h)) / 2 h of the loss in plain numbers."""
    flags = "--num-envs 8 --num-steps 4 --hidden-sizes 3 --lstm-size 2 --ent-coef 0.1 --bounds-coef 0.5"
    if script is not ppo:
        flags += " --latent-dim 2 --max-ent-coef 0.3 --off-policy-mu --off-policy-coef 0.5 --aggregation symmetric"
    if script is cpo:
        flags += " --awac-coef 0.5 --awac-temperature 1 --reverse-kl-coef 0.3"
    made = make_minibatch(script, f"{flags} {lstm}")
    loss = loss_of(made.args)
    h = 1e-6
    named = dict(made.agent.named_parameters())
    found = gradients(loss_of_minibatch(made)[0], named)
    leader = [row.leader_logprob for row in rows_of(made)]

    @torch.no_grad()
    def loss_now():
        rows = rows_of(made)
        for row, leader_logprob in zip(rows, leader):
            row.leader_logprob = leader_logprob  # CPO Eq. 25: the leader is given
        return loss(rows).item()

    for name, parameter in named.items():
        for gradient, coordinate in zip(found[name].flatten(), parameter.data.view(-1).split(1)):
            at = coordinate.clone()
            coordinate.copy_(at + h)
            above = loss_now()
            coordinate.copy_(at - h)
            below = loss_now()
            coordinate.copy_(at)
            assert gradient.item() == pytest.approx((above - below) / (2 * h), rel=1e-5, abs=1e-7), name


@every_script
def test_kl_is_from_the_old_policy_to_the_new_one(script):
    """Of the learner, off-policy too; mean over all rows but those that cpo's followers imitate."""
    made = make_minibatch(script)
    rows = [row for row in rows_of(made) if row.kind != "awac"]
    kls = [gaussian_kl(row.old_mean, row.old_logstd, row.mean, row.logstd).item() for row in rows]
    _, kl, _ = loss_of_minibatch(made)
    assert kl.item() == pytest.approx(sum(kls) / len(kls))


@every_script
@pytest.mark.parametrize("epochs, num_minibatches", [(2, 1), (1, 2)])
def test_learning_rate_follows_the_kl(script, epochs, num_minibatches):
    """Once per epoch, by the KL divergence that the log shows of the last one.

    An iteration's first minibatch has a KL of 0 (but for what the normalisers took in), so that an epoch that has no
    other leaves the rate alone.
    """
    flags = "--total-timesteps 960 --learning-rate 0.005 --kl-threshold 0.0002"
    flags += f" --num-minibatches {num_minibatches} --update-epochs {epochs}"
    lr = 0.005
    met = set()
    for log in record(script, f"{FLAGS[script.__name__]} {flags}").logs:
        kl = log["losses/approx_kl"]
        factor = 1 / 1.5 if kl > 0.0004 else 1.5 if kl < 0.0001 else 1.0
        lr = min(lr * factor, 1e-2)
        assert log["charts/learning_rate"] == pytest.approx(lr)
        met.add(factor)
    assert len(met) > 1


# ---------------------------------------------------------------- the network


def plain_step(p, stats, obs, latent, memory, begins):
    """The network's formulas for one step of one environment: action mean (U,), normalised value, memory (h, c)."""
    x = torch.cat([((obs - stats["obs_rms.mean"]) / (stats["obs_rms.var"] + 1e-5).sqrt()).clamp(-5.0, 5.0), latent])
    if memory is not None:
        h, c = (torch.zeros_like(m) if begins else m for m in memory)  # an episode begins with an empty memory
        gates = p["lstm.weight_ih_l0"] @ x + p["lstm.bias_ih_l0"] + p["lstm.weight_hh_l0"] @ h + p["lstm.bias_hh_l0"]
        i, f, g, o = gates.chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        x = (h - h.mean()) / (h.var(unbiased=False) + 1e-5).sqrt() * p["layer_norm.weight"] + p["layer_norm.bias"]
        memory = h, c
    features = {}
    for mlp in ("mlp", "critic_mlp" if "critic_mlp.0.weight" in p else "mlp"):
        features[mlp] = x
        for layer in (f"{mlp}.0", f"{mlp}.2"):
            y = p[f"{layer}.weight"] @ features[mlp] + p[f"{layer}.bias"]
            features[mlp] = torch.where(y > 0, y, y.exp() - 1)  # ELU
    mean = p["actor.weight"] @ features["mlp"] + p["actor.bias"]
    return mean, (p["critic.weight"] @ features[mlp] + p["critic.bias"])[0], memory


def log_density(action, mean, logstd):
    """Of a diagonal Gaussian, coordinate by coordinate."""
    return sum(
        -0.5 * ((a - m) / s.exp()) ** 2 - s - 0.5 * math.log(2 * math.pi) for a, m, s in zip(action, mean, logstd)
    )


@every_script
@every_network
def test_a_window_at_once_is_the_networks_formulas_step_by_step(script, network_flag):
    """Means, log-probabilities, values and memories, with episodes that begin within the window."""
    made = make_minibatch(script, network_flag)
    agent = made.agent
    p = dict(agent.named_parameters())
    stats = dict(agent.named_buffers())
    T = 10
    N = 8
    obs = torch.randn(T, N, 3)
    action = torch.randn(T, N, 2)
    begins = torch.rand(T, N) < 0.3
    state = torch.randn(1, N, agent.state_size)
    learners = torch.arange(N) % len(p["actor_logstd"])
    ids = () if script is ppo else (learners[None],)
    with torch.no_grad():
        _, logprob, policy, value, states = agent.get_action_and_value(obs, *ids, begins, state, action)
        assert torch.equal(agent.get_value(obs, *ids, begins, state), value)
    for e in range(N):
        latent = torch.zeros(0) if script is ppo else p["latents"][learners[e]]
        memory = state[0, e].chunk(2) if made.args.lstm else None
        for t in range(T):
            mean, v, memory = plain_step(p, stats, obs[t, e], latent, memory, begins[t, e])
            assert torch.allclose(policy.mean[t, e], mean)
            assert torch.allclose(value[t, e], v)
            assert torch.allclose(logprob[t, e], log_density(action[t, e], mean, p["actor_logstd"][learners[e]]))
            assert torch.equal(states[t, e], state[0, e]) or torch.allclose(states[t, e], torch.cat(memory))
