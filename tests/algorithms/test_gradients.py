"""The gradient that a script steps along is that of the papers' loss, written row by row, to the last digits.

Against autograd of that loss under many flags, and against finite differences, which know nothing of autograd. Below
it, the network against its formulas.
"""

import math

import pytest
import torch

import cpo
import epo
import ppo
import sapg
from tests.algorithms.reference_loss import assert_gradients, gaussian_kl, learning_data, minibatch_rows, network, play
from tests.algorithms.test_equations import cases, clip, clipped_surrogate, critic_error, entropy, every_case
from tests.conftest import every_script

pytestmark = pytest.mark.usefixtures("float64")

every_network = pytest.mark.parametrize(
    "network_flag", ["", "--lstm", "--separate-critic"], ids=["mlp", "lstm", "separate-critic"]
)


def loss_of(args):
    """The whole loss as a function of a minibatch's rows."""
    eps, last = args.clip_coef, getattr(args, "num_agents", 1) - 1

    def loss(rows):
        total, weights, awac = 0.0, 0.0, 0.0
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
            loss = loss - bonus * entropy(row)
            loss = loss + args.bounds_coef * sum((m - clip(m, -1.1, 1.1)) ** 2 for m in row.mean)
            weight = args.off_policy_coef if row.kind == "off-policy" else 1.0  # SAPG Eq. 4 and 9
            total, weights = total + weight * loss, weights + weight
        return (total + getattr(args, "awac_coef", 0.0) * awac) / weights  # CPO Eq. 11

    return loss


@pytest.mark.parametrize("script, flags", [
    (ppo, ""),
    (ppo, "--critic-n-step 3 --ent-coef 0.1 --reward-scale 0.1 --bounds-coef 0.5 --learning-rate 0.3"),
    (ppo, "--no-clip-vloss --separate-critic"),
    (ppo, "--lstm --num-minibatches 1 --update-epochs 4"),
    (sapg, "--off-policy-mu --max-ent-coef 0.3"),
    (sapg, "--off-policy-ratio 3 --bounds-coef 0.5 --learning-rate 0.3"),
    (sapg, "--off-policy-ratio 3 --off-policy-lambda 0"),  # SAPG Eq. 6 as it stands
    (sapg, "--off-policy-mu --off-policy-coef 0.5 --critic-n-step 1 --gamma 0.9"),
    (sapg, "--off-policy-mu --aggregation symmetric --off-policy-coef 0.5 --ent-coef -0.1"),
    (sapg, "--lstm --off-policy-mu --off-policy-ratio 2"),
    (sapg, "--lstm --aggregation symmetric"),
    (sapg, "--separate-critic --off-policy-mu --off-policy-ratio 2 --learning-rate 0.3 --bounds-coef 0.5"),
    (sapg, "--no-clip-vloss --lstm --off-policy-ratio 0"),
    (cpo, "--no-clip-vloss --awac-coef 0.5 --bounds-coef 0.5 --learning-rate 0.3"),
    (cpo, "--lstm --awac-coef 0.5 --reverse-kl-coef 0.3 --adversarial-coef 0.05 --seed 2"),
    (cpo, "--lstm --awac-coef 0.5 --off-policy-lambda 0.5"),
    (cpo, "--awac-coef 0.5 --reverse-kl-coef 0.3 --adversarial-coef 0.05 --critic-n-step 3"
          " --reward-scale 0.1 --seed 4"),
    (cpo, "--separate-critic --awac-coef 0.5 --reverse-kl-coef 0.3 --adversarial-coef 0.05"),
    (cpo, "--aggregation symmetric --awac-coef 0.5 --reverse-kl-coef 0.3"),  # of Eq. 25 are on-policy rows alone
    (epo, "--off-policy-mu --off-policy-ratio 3 --ga-threshold 0"),
    (epo, "--no-clip-vloss --separate-critic --max-ent-coef 0.3 --ga-threshold 0"),
    (epo, "--lstm --off-policy-ratio 3 --max-ent-coef 0.3 --bounds-coef 0.5 --learning-rate 0.2 --seed 2"),
], ids=lambda x: x if isinstance(x, str) else x.__name__)  # fmt: skip
def test_every_gradient_of_a_run(train, script, flags):
    run = play(train, script, flags)
    met = assert_gradients(run, loss_of(run.args))
    kinds = {"on-policy", "off-policy"} if getattr(run.args, "off_policy_ratio", 0) else {"on-policy"}
    assert cases([row for row in met if row.kind != "awac"], run.args.clip_coef) == every_case(*kinds)
    if run.args.bounds_coef == 0.5:
        assert any((row.mean > 1.1).any() for row in met)
        assert any((row.mean < -1.1).any() for row in met)
    assert any(row.kind == "awac" for row in met) == (script is cpo)


@pytest.mark.parametrize("script, lstm", [
    (ppo, ""), (sapg, ""), (cpo, ""), (epo, ""), (ppo, "--lstm"), (cpo, "--lstm"), (cpo, "--separate-critic"),
], ids=lambda x: x if isinstance(x, str) else x.__name__)  # fmt: skip
def test_finite_differences(train, script, lstm):
    """Every coordinate of the recorded gradient is (L(theta + h) - L(theta - h)) / 2 h of the loss in plain numbers."""
    flags = "--num-envs 8 --num-steps 4 --total-timesteps 64 --hidden-sizes 3 --lstm-size 2"
    flags += " --ent-coef 0.1 --bounds-coef 0.5"
    if script is not ppo:
        flags += " --latent-dim 2 --max-ent-coef 0.3 --off-policy-mu --off-policy-coef 0.5 --aggregation symmetric"
    if script is cpo:
        flags += " --awac-coef 0.5 --awac-temperature 1 --reverse-kl-coef 0.3 --adversarial-coef 0.5"
    run = play(train, script, f"{flags} {lstm}")
    loss, h = loss_of(run.args), 1e-6
    window = list(learning_data(run))[-1]
    minibatch = window.minibatches[-1]
    agent = network(run, minibatch).requires_grad_(False)
    leader = [row.leader_logprob for row in minibatch_rows(agent, window, minibatch, run.args)]

    def loss_now():
        rows = minibatch_rows(agent, window, minibatch, run.args)
        for row, leader_logprob in zip(rows, leader):
            row.leader_logprob = leader_logprob  # CPO Eq. 25: the leader is given
        return loss(rows).item()

    for name, parameter in agent.named_parameters():
        for found, coordinate in zip(minibatch.grads[name].flatten(), parameter.view(-1).split(1)):
            at = coordinate.clone()
            above = (coordinate.copy_(at + h), loss_now())[1]
            below = (coordinate.copy_(at - h), loss_now())[1]
            coordinate.copy_(at)
            assert found.item() == pytest.approx((above - below) / (2 * h), rel=1e-5, abs=1e-7), name


@every_script
@pytest.mark.parametrize("num_minibatches", [2, 1])
def test_learning_rate_follows_the_kl(train, script, num_minibatches):
    """KL(old || new) of all rows but those that cpo's followers imitate, mean over an epoch's minibatches.

    Old is the learner's policy before the update, off-policy too. An iteration's first minibatch has a KL of 0 (but for
    what the normalisers took in), so that an epoch that has no other leaves the rate alone.
    """
    flags = f"--total-timesteps 480 --learning-rate 0.005 --kl-threshold 0.003 --num-minibatches {num_minibatches}"
    run = play(train, script, flags)
    lr, met, given = run.args.learning_rate, set(), iter(run.kls)
    for window in learning_data(run):
        for epoch in range(run.args.update_epochs):
            kls = []
            for minibatch in window.minibatches[epoch * num_minibatches :][:num_minibatches]:
                assert minibatch.lr == pytest.approx(lr)
                rows = minibatch_rows(network(run, minibatch), window, minibatch, run.args)
                rows = [row for row in rows if row.kind != "awac"]
                total = 0.0
                for row in rows:
                    total += gaussian_kl(row.old_mean, row.old_logstd, row.mean, row.logstd).item()
                kls.append(total / len(rows))
            if epoch == 0 and num_minibatches == 1:
                continue
            kl = sum(kls) / len(kls)
            assert next(given) == pytest.approx(kl, rel=1e-3)
            factor = 1 / 1.5 if kl > 0.006 else 1.5 if kl < 0.0015 else 1.0
            lr, met = min(lr * factor, 1e-2), met | {factor}
    assert len(met) > 1 if num_minibatches == 1 else met == {1 / 1.5, 1.0, 1.5}


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
def test_a_window_at_once_is_the_networks_formulas_step_by_step(train, script, network_flag):
    """Means, log-probabilities, values and memories, with episodes that begin within the window."""
    run = play(train, script, network_flag)
    learned = run.minibatches[-1]  # not the initial parameters
    agent, p = network(run, learned), learned.params
    T, N = 10, 8
    obs, action, begins = torch.randn(T, N, 3), torch.randn(T, N, 2), torch.rand(T, N) < 0.3
    state, learners = torch.randn(1, N, agent.state_size), torch.arange(N) % len(p["actor_logstd"])
    ids = () if script is ppo else (learners[None],)
    with torch.no_grad():
        _, logprob, policy, value, states = agent.get_action_and_value(obs, *ids, begins, state, action)
        assert torch.equal(agent.get_value(obs, *ids, begins, state), value)
    for e in range(N):
        latent = torch.zeros(0) if script is ppo else p["latents"][learners[e]]
        memory = state[0, e].chunk(2) if run.args.lstm else None
        for t in range(T):
            mean, v, memory = plain_step(p, learned.buffers, obs[t, e], latent, memory, begins[t, e])
            assert torch.allclose(policy.mean[t, e], mean)
            assert torch.allclose(value[t, e], v)
            assert torch.allclose(logprob[t, e], log_density(action[t, e], mean, p["actor_logstd"][learners[e]]))
            assert torch.equal(states[t, e], state[0, e]) or torch.allclose(states[t, e], torch.cat(memory))
