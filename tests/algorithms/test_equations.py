"""Every numbered equation of SAPG, EPO and CPO that the scripts implement, one test each, named after it.

SAPG: arXiv 2407.20230. EPO: arXiv 2503.19037 v3. CPO: arXiv 2603.01741. The expected value is computed in the test, by
a plain loop written from the formula as the paper prints it, all in double precision. The gradient of minibatch_loss
must be that of the formula, summed up row by row (rows: minibatches.py). Equations that are lines within main() are
tested on short runs. Where a default departs from a paper, the test says so and covers both.
"""

import math
import statistics
from types import SimpleNamespace

import pytest
import torch

import cpo
import epo
import ppo
import sapg
from benchmarks.scripts import off_policy_ablations
from harness import diagnostics
from tests.conftest import TINY_POPULATION, Drift, every_population, every_script
from tests.algorithms.test_math import fitness_of
from tests.algorithms.minibatches import assert_gradients, make_minibatch
from tests.algorithms.reference_loss import assert_updates, gae, n_step_targets, offpolicy_advantages, play
from tests.algorithms.runs import record

pytestmark = pytest.mark.usefixtures("float64")

POLICY_ONLY = "--vf-coef 0 --bounds-coef 0"
AS_SAPG = {sapg: "", epo: "", cpo: "--awac-coef 0 --aggregation leader-follower"}  # what all three share
ON_POLICY = {script: f"{flags} --off-policy-ratio 0" for script, flags in AS_SAPG.items()}
ON_POLICY[ppo] = ""
LEADER = 0
AGENTS = 4  # of the minibatches and the runs


def mean(numbers):
    numbers = list(numbers)
    return sum(numbers) / len(numbers)


def clip(x, low, high):
    return max(low, min(x, high))


def clipped_surrogate(row, eps, mu=1.0, advantage=None):
    """min(r A, clip(r, mu (1 - eps), mu (1 + eps)) A)"""
    r = (row.logprob - row.behaviour).exp()
    A = row.advantage if advantage is None else advantage
    return min(r * A, clip(r, mu * (1 - eps), mu * (1 + eps)) * A)


def critic_error(row, eps=math.inf):
    """(V - target)^2; or, with eps, the larger one of this and of the same with V at most eps from its old value."""
    near = row.old_value + clip(row.value - row.old_value, -eps, eps)
    return max((row.value - row.target) ** 2, (near - row.target) ** 2)


def entropy(row):
    """Of a diagonal Gaussian: sum of 1/2 ln(2 pi e sigma^2)."""
    return sum(logstd + 0.5 * math.log(2 * math.pi * math.e) for logstd in row.logstd)


def over_agents(rows, term, weight):
    """Sum over agents of L_on + weight L_off (SAPG, EPO Algorithm 1), each an expectation; per unit of weight."""
    total = 0.0
    weights = 0.0
    for i in range(AGENTS):
        on = [term(row) for row in rows if row.learner == i and row.kind == "on-policy"]
        off = [term(row) for row in rows if row.learner == i and row.kind == "off-policy"]
        total = total + mean(on)
        weights = weights + 1
        if off:
            total = total + weight * mean(off)
            weights = weights + weight
    return total / weights


def cases(rows, eps, with_mu=False):
    """Which sides of the clip were met, to see that nothing went untested: (kind, A > 0, where the ratio is)."""
    met = set()
    for row in rows:
        mu = row.mu if with_mu else 1.0
        r = (row.logprob - row.behaviour).exp()
        where = "below" if r < mu * (1 - eps) else "above" if r > mu * (1 + eps) else "inside"
        met.add((row.kind, bool(row.advantage > 0), where))
    return met


def every_case(*kinds):
    return {(kind, sign, where) for kind in kinds for sign in (True, False) for where in ("below", "inside", "above")}


# ---------------------------------------------------------------- the policy's loss


@every_script
def test_sapg_eq_1_epo_eq_1_policy_gradient(script):
    """SAPG Eq. 1, EPO Eq. 1: grad J = E[grad log pi(a|s) A(s, a)]. minibatch_loss, loss.

    Where pi is pi_old, as before an iteration's first step, the clipped loss of Eq. 2 has this gradient.
    """
    made = make_minibatch(script, f"{POLICY_ONLY} {ON_POLICY[script]}", same_policy=True)
    assert_gradients(made, lambda rows: -mean(row.logprob * row.advantage for row in rows))


@every_script
def test_sapg_eq_2_epo_eq_2_cpo_eq_1_clip(script):
    """SAPG Eq. 2, EPO Eq. 2, CPO Eq. 1: E[min(r A, clip(r, 1 - eps, 1 + eps) A)]. minibatch_loss, pg_loss.

    SAPG prints A outside: min(r, clip(r)) A, which for A < 0 is another function. Ours is EPO's and CPO's.
    """
    made = make_minibatch(script, f"{POLICY_ONLY} {ON_POLICY[script]}")
    eps = made.args.clip_coef
    met = assert_gradients(made, lambda rows: -mean(clipped_surrogate(row, eps) for row in rows))
    assert cases(met, eps) == every_case("on-policy")

    def as_sapg_prints_it(row):
        r = (row.logprob - row.behaviour).exp()
        return min(r, clip(r, 1 - eps, 1 + eps)) * row.advantage

    assert all(as_sapg_prints_it(row) == clipped_surrogate(row, eps) for row in met if row.advantage > 0)
    with pytest.raises(AssertionError):
        assert_gradients(made, lambda rows: -mean(as_sapg_prints_it(row) for row in rows))


@every_population
@pytest.mark.parametrize("with_mu", [True, False], ids=["mu", "released"])
def test_sapg_eq_3_epo_eq_4_off_policy_clip(script, with_mu):
    """SAPG Eq. 3, EPO Eq. 4: E[min(r A, clip(r, mu (1 - eps), mu (1 + eps)) A)], where for data of follower j
    r = pi_leader / pi_j and mu = pi_leader,old / pi_j. offpolicy_batch (mu); minibatch_loss, clipped_ratio.

    The papers' form is --off-policy-mu. Default is the released one, mu = 1 (CPO Eq. 2). On-policy mu is 1 anyway.
    """
    flag = "--off-policy-mu" if with_mu else "--no-off-policy-mu"
    made = make_minibatch(script, f"{POLICY_ONLY} {AS_SAPG[script]} --off-policy-ratio 3 {flag}")
    eps = made.args.clip_coef
    met = assert_gradients(
        made, lambda rows: -mean(clipped_surrogate(row, eps, row.mu if with_mu else 1.0) for row in rows)
    )
    assert cases(met, eps, with_mu) == every_case("on-policy", "off-policy")
    assert all(row.mu == 1.0 for row in met if row.kind == "on-policy")
    assert not script.Args.off_policy_mu


@every_population
@pytest.mark.parametrize("ratio, coef", [(1, 1.0), (1, 0.25), (3, 0.5)])
def test_sapg_eq_4_epo_eq_5_off_policy_weight(script, ratio, coef):
    """SAPG Eq. 4, EPO Eq. 5 and both Algorithms 1: sum of L_on(pi_i), plus lambda L_off(pi_1). minibatch_loss, weight.

    The scripts take one mean over all rows, which is the sum divided by its weights. --off-policy-coef weighs a row:
    with as much data of others as of its own (the papers) it is lambda; with ratio times as much, lambda = coef ratio.
    """
    flags = f"--off-policy-ratio {ratio} --off-policy-coef {coef}"
    made = make_minibatch(script, f"{POLICY_ONLY} {AS_SAPG[script]} {flags}")
    eps = made.args.clip_coef
    assert_gradients(made, lambda rows: -over_agents(rows, lambda row: clipped_surrogate(row, eps), coef * ratio))
    assert (script.Args.off_policy_ratio, script.Args.off_policy_coef) == (1.0, 1.0)  # lambda = 1, SAPG 4.3, EPO B.2


@every_population
def test_sapg_section_4_2_symmetric_aggregation(script):
    """SAPG 4.2: Eq. 4 for every i, with data of all others, as much as its own. minibatch_loss, weight."""
    flags = "--aggregation symmetric --off-policy-coef 0.5"
    made = make_minibatch(script, f"{POLICY_ONLY} {AS_SAPG[script]} {flags}")
    eps = made.args.clip_coef
    met = assert_gradients(made, lambda rows: -over_agents(rows, lambda row: clipped_surrogate(row, eps), 0.5))
    assert {row.learner for row in met if row.kind == "off-policy"} == set(range(AGENTS))


# ---------------------------------------------------------------- the critic


@every_script
def test_sapg_eq_5_epo_eq_6_n_step_target(script):
    """SAPG Eq. 5, EPO Eq. 6: r_t + gamma r_t+1 + gamma^2 r_t+2 + gamma^3 V(s_t+3). n_step_returns.

    The papers do not say what happens where the window or an episode ends: the sum is shorter there.
    """
    r = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    V = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]  # V[t] is that of s_t+1
    rewards = torch.tensor(r)[:, None]
    next_values = torch.tensor(V)[:, None]
    never = torch.zeros(6, 1, dtype=torch.bool)
    targets = script.n_step_returns(rewards, next_values, never, 0.5, 3).flatten().tolist()
    for t in range(4):
        expected = 0.5**3 * V[t + 2]
        for k in range(t, t + 3):
            expected += 0.5 ** (k - t) * r[k]
        assert targets[t] == expected
    assert targets[4:] == [5 + 6 / 2 + 60 / 4, 6 + 60 / 2]  # two steps, one step
    for n in (1, 2, 3, 9):
        targets = script.n_step_returns(rewards, next_values, never, 0.5, n).flatten().tolist()
        assert targets == n_step_targets(r, V, [False] * 6, 0.5, n)

    # step 1 is truncated with V(final_obs) = 20, step 3 terminates
    dones = torch.tensor([False, True, False, True, False, False])[:, None]
    V[3] = 0.0
    targets = script.n_step_returns(rewards, torch.tensor(V)[:, None], dones, 0.5, 3).flatten().tolist()
    assert targets == [1 + 2 / 2 + 20 / 4, 2 + 20 / 2, 3 + 4 / 2, 4.0, 5 + 6 / 2 + 60 / 4, 6 + 60 / 2]


@every_population
def test_sapg_eq_6_epo_eq_8_one_step_target(script):
    """SAPG Eq. 6, EPO Eq. 8: r_t + gamma V_i,old(s'_t+1) with the value of i, who learns. offpolicy_batch.

    Three agents, one environment each; the critic's head says (i + 1) s in units in which V = 10 x + 2.
    """

    class Network:
        value_rms = SimpleNamespace(denormalize=lambda x: 10 * x + 2)
        actor_logstd = torch.tensor([[0.5], [1.5], [2.5]])

        def get_value(self, obs, agent_ids, dones, lstm_state):
            return (agent_ids + 1) * obs[..., 0]

        def get_action_and_value(self, obs, agent_ids, dones, lstm_state, action):
            states = torch.zeros(len(obs), obs.shape[1], 0)
            policy = SimpleNamespace(mean=(agent_ids[..., None] + 5) * obs)
            return action, -0.1 * (agent_ids + 1) * action[..., 0], policy, (agent_ids + 1) * obs[..., 0], states

    s = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    next_s = [[4.0, 5.0, 7.0], [8.0, 9.0, 10.0]]
    a = [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]
    r = [[11.0, 12.0, 13.0], [14.0, 15.0, 16.0]]
    ends = [[False, False, False], [False, False, True]]
    keys = ("values", "advantages", "returns", "means", "logstds", "mu", "is_offpolicy")
    batch = {key: torch.zeros(2, 3) for key in keys}
    batch.update(obs=torch.tensor(s)[..., None], actions=torch.tensor(a)[..., None], lstm_state=torch.zeros(1, 3, 0))
    batch.update(agent_ids=torch.arange(3)[None], dones=torch.zeros(2, 3, dtype=torch.bool))
    batch["logprobs"] = -0.1 * (batch["agent_ids"] + 1) * batch["actions"][..., 0]  # of who acted
    environments = [2, 1, 0]
    learners = [0, 0, 2]
    off = script.offpolicy_batch(
        Network(),
        batch,
        torch.tensor(r)[:, environments],
        torch.tensor(next_s)[..., None],
        torch.tensor(ends),
        torch.tensor(ends),
        torch.tensor(environments),
        torch.tensor(learners),
        SimpleNamespace(gamma=0.5, off_policy_lambda=0.0, off_policy_mu=True),
    )
    for k, (e, i) in enumerate(zip(environments, learners)):
        for t in range(2):
            target = r[t][e] + 0.5 * (0.0 if ends[t][e] else 10 * (i + 1) * next_s[t][e] + 2)
            value = 10 * (i + 1) * s[t][e] + 2
            mu = math.exp(-0.1 * (i + 1) * a[t][e]) / math.exp(-0.1 * (e + 1) * a[t][e])
            assert off["returns"][t, k] == pytest.approx(target)
            assert off["values"][t, k] == (i + 1) * s[t][e]  # in the critic's units
            assert off["advantages"][t, k] == pytest.approx(target - value)  # the same step
            assert off["mu"][t, k] == pytest.approx(mu)
            assert off["means"][t, k].item() == (i + 5) * s[t][e]
            assert off["logstds"][0, k].item() == i + 0.5


def off_policy_case():
    """Random rewards, values, next values, ends and ratios (T, C), with small, large and tiny ratios."""
    generator = torch.Generator().manual_seed(1)
    rewards, values, next_values, log_ratios = torch.randn(4, 12, 40, generator=generator)
    ends = torch.rand(12, 40, generator=generator) < 0.15
    return rewards, values, next_values, ends, (2 * log_ratios).exp()


@every_population
@pytest.mark.parametrize("off_policy_lambda", [0.0, 0.5, 0.95, 1.0])
def test_off_policy_advantages_by_their_sum(script, off_policy_lambda):
    """Ours beyond lambda = 0, which is SAPG Eq. 6, EPO Eq. 8. offpolicy_advantages."""
    case = off_policy_case()
    found = script.offpolicy_advantages(*case, 0.99, off_policy_lambda)
    for column in range(40):
        numbers = [x[:, column].tolist() for x in case]
        expected = offpolicy_advantages(*numbers, 0.99, off_policy_lambda)
        assert found[:, column].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["targets-alone", "advantages-alone", "v-trace-targets"])
def test_ablations_of_off_policy_data(name):
    """benchmarks/scripts/off_policy_ablations.py; V-trace: arXiv 1802.01561, Eq. 1, with rho and c at most 1."""
    case = off_policy_case()
    values = case[1]
    script = SimpleNamespace(offpolicy_advantages=sapg.offpolicy_advantages)

    def offpolicy_batch(args):
        advantages = script.offpolicy_advantages(*case, 0.99, args.off_policy_lambda)
        return {"advantages": advantages, "returns": values + advantages}

    script.offpolicy_batch = offpolicy_batch
    off_policy_ablations.ABLATIONS[name](script)
    found = script.offpolicy_batch(sapg.Args(off_policy_lambda=0.9))
    for column in range(40):
        numbers = [x[:, column].tolist() for x in case]
        far = torch.tensor(offpolicy_advantages(*numbers, 0.99, 0.9))
        near = torch.tensor(offpolicy_advantages(*numbers, 0.99, 0.0))
        advantages = near if name == "targets-alone" else far
        errors = near if name == "advantages-alone" else far
        if name == "v-trace-targets":
            errors = torch.tensor([min(1.0, rho) for rho in numbers[4]]) * far
        assert torch.allclose(found["advantages"][:, column], advantages, atol=1e-5)
        assert torch.allclose(found["returns"][:, column], values[:, column] + errors, atol=1e-5)


@every_population
def test_off_policy_advantages_of_ones_own_data_are_gae(script):
    rewards, values, next_values, ends, ratios = off_policy_case()
    found = script.offpolicy_advantages(rewards, values, next_values, ends, torch.ones_like(ratios), 0.99, 0.95)
    expected = script.compute_gae(rewards, values, next_values, ends, 0.99, 0.95)
    assert torch.allclose(found, expected, atol=1e-6)


@every_population
def test_off_policy_advantages_look_no_further_than_an_action_that_the_learner_would_not_have_taken(script):
    rewards, values, next_values, ends, _ = off_policy_case()
    ratios = torch.full_like(rewards, 1e-9)
    one_step = rewards + 0.99 * next_values - values
    found = script.offpolicy_advantages(rewards, values, next_values, ends, ratios, 0.99, 0.95)
    assert torch.allclose(found, one_step, atol=1e-6)
    ratios[:] = 1.0
    ratios[5] = 1e-9
    found = script.offpolicy_advantages(rewards, values, next_values, ends, ratios, 0.99, 0.95)
    assert torch.allclose(found[4], one_step[4], atol=1e-6)  # its next action is cut off
    on_policy = script.compute_gae(rewards, values, next_values, ends, 0.99, 0.95)
    assert torch.allclose(found[5:], on_policy[5:], atol=1e-6)  # the action itself is given


every_value_loss = pytest.mark.parametrize(
    "clip, clipped", [("--no-clip-vloss", False), ("--clip-vloss", True)], ids=["paper", "default, as released"]
)


@every_script
@every_value_loss
def test_sapg_eq_7_epo_eq_7_critic(script, clip, clipped):
    """SAPG Eq. 7, EPO Eq. 7: E[(V(s) - V_target(s))^2]. minibatch_loss, v_loss.

    Here vf_coef / 2 times that, in normalised units. The default is as released: clipped as the policy is
    (--no-clip-vloss: the papers' plain square).
    """
    assert script.Args.clip_vloss
    made = make_minibatch(script, f"{ON_POLICY[script]} {clip}")
    eps = made.args.clip_coef if clipped else math.inf
    met = assert_gradients(made, lambda rows: 0.5 * 4.0 * mean(critic_error(row, eps) for row in rows), "critic")
    assert made.args.vf_coef == 4.0
    assert any(critic_error(row, eps) != critic_error(row) for row in met) == clipped


@every_population
@every_value_loss
def test_sapg_eq_8_epo_eq_9_off_policy_critic(script, clip, clipped):
    """SAPG Eq. 8, EPO Eq. 9: E over the others' data of (V_1(s) - V_target,off(s))^2. minibatch_loss, v_loss.

    An off-policy row that counts 1e15 times an on-policy one leaves this alone. The default clips as in Eq. 7.
    """
    made = make_minibatch(script, f"{AS_SAPG[script]} {clip} --off-policy-coef 1e15")
    eps = made.args.clip_coef if clipped else math.inf
    met = assert_gradients(
        made, lambda rows: 2.0 * mean(critic_error(row, eps) for row in rows if row.kind == "off-policy"), "critic"
    )
    assert any(critic_error(row, eps) != critic_error(row) for row in met if row.kind == "off-policy") == clipped


@every_population
@every_value_loss
@pytest.mark.parametrize("coef", [1.0, 0.25])
def test_sapg_eq_9_epo_eq_10_critic_weight(script, coef, clip, clipped):
    """SAPG Eq. 9, EPO Eq. 10: L_on^critic + lambda L_off^critic, lambda that of the policy's loss.
    minibatch_loss, weight."""
    made = make_minibatch(script, f"{AS_SAPG[script]} {clip} --off-policy-coef {coef}")
    eps = made.args.clip_coef if clipped else math.inf
    assert_gradients(made, lambda rows: 2.0 * over_agents(rows, lambda row: critic_error(row, eps), coef), "critic")


@every_script
def test_gae_by_its_sum(script):
    """A_t = sum over k of (gamma lambda)^k delta_t+k (arXiv 1506.02438 Eq. 16): the on-policy A above. compute_gae."""
    generator = torch.Generator().manual_seed(0)
    r, V, next_V = torch.randn(3, 10, 1, generator=generator).unbind()
    dones = torch.rand(10, 1, generator=generator) < 0.3
    expected = gae(*[x.flatten().tolist() for x in (r, V, next_V, dones)], 0.99, 0.95)
    assert script.compute_gae(r, V, next_V, dones, 0.99, 0.95).flatten().tolist() == pytest.approx(expected)


# ---------------------------------------------------------------- entropy


@every_population
@pytest.mark.parametrize("form", ["paper", "released"])
def test_sapg_section_4_5_entropy_schedule(script, form):
    """SAPG 4.5: L(pi_i) = L_on(pi_i) + sigma (i - 1) H(pi(a|s)), i = 1 the leader.
    minibatch_loss, ent_coefs and ent_coef.

    --max-ent-coef is the last follower's: sigma (M - 1) as the paper has it; the released code's sigma counts from 0 to
    sigma / 2, whatever M.
    """
    sigma = 0.3
    M = AGENTS
    schedule = {"paper": [sigma * (i - 1) for i in range(1, M + 1)]}
    schedule["released"] = [sigma / 2 * (i - 1) / (M - 1) for i in range(1, M + 1)]
    largest = {"paper": sigma * (M - 1), "released": sigma / 2}[form]
    made = make_minibatch(script, f"{POLICY_ONLY} {AS_SAPG[script]} --max-ent-coef {largest}")
    eps = made.args.clip_coef
    met = assert_gradients(
        made,
        lambda rows: -mean(clipped_surrogate(row, eps) + schedule[form][row.learner] * entropy(row) for row in rows),
    )
    assert {row.learner for row in met} == set(range(M))


# ---------------------------------------------------------------- CPO


def imitation(rows, temperature, i, most=math.inf):
    """Of follower i: -E over the leader's data of log pi_i(a|s) exp(A_i(s, a) / lambda_f)."""
    rows = [row for row in rows if row.kind == "awac" and row.learner == i]
    return -mean(row.logprob * min(math.exp(row.advantage / temperature), most) for row in rows)


def surrogate_of(rows, i, eps, kind="on-policy"):
    return mean(clipped_surrogate(row, eps) for row in rows if row.kind == kind and row.learner == i)


GROUPS = AGENTS + 1  # the script's mean over all rows: each agent's own data, and one follower's for the leader


def test_cpo_eq_2_4_leader():
    """CPO Eq. 2 with the ratios of Eq. 4: PPO's clip on the leader's data plus the same, centred on 1, on follower j's.

    j is drawn anew each iteration, and all of its data is taken. cpo.py: sample_offpolicy_columns;
    minibatch_loss, pg_loss.
    """
    assert cpo.Args.aggregation == "one-follower"
    assert cpo.Args.off_policy_ratio == 1.0
    assert not cpo.Args.off_policy_mu
    agent_ids = torch.arange(AGENTS).repeat_interleave(5)
    drawn = set()
    for _ in range(60):
        columns, learners = cpo.sample_offpolicy_columns(agent_ids, AGENTS, 1.0, "one-follower")
        (j,) = set(agent_ids[columns].tolist())
        assert sorted(columns.tolist()) == list(range(5 * j, 5 * j + 5))
        assert learners.tolist() == [LEADER] * 5
        drawn.add(j)
    assert drawn == {1, 2, 3}

    made = make_minibatch(cpo, POLICY_ONLY)
    eps = made.args.clip_coef

    def leaders_loss(rows):
        return -(surrogate_of(rows, LEADER, eps) + surrogate_of(rows, LEADER, eps, "off-policy")) / GROUPS

    assert_gradients(made, leaders_loss, agents=[LEADER])


def test_cpo_eq_5_effective_sample_size():
    """CPO Eq. 5: ESS = 1 / sum of w~^2, w~ = w / sum of w; as Table 2 divided by the number of samples.

    harness/diagnostics.py: importance_statistics, of the leader's own samples (w = 1) and all followers'. Table 2's
    other column is E|1 - w|.
    """
    w = [[1.0, 1.0, 0.5, 2.0, 0.1, 4.0], [1.0, 1.0, 3.0, 0.25, 1.5, 0.8]]  # (T, N), 3 agents
    total = sum(x for row in w for x in row)
    ess = 1 / sum((x / total) ** 2 for row in w for x in row)
    deviations, rate = diagnostics.importance_statistics(torch.tensor(w).log(), 3)
    assert rate.item() == pytest.approx(ess / 12)
    assert diagnostics.importance_statistics(torch.zeros(4, 6), 3)[1] == 1.0  # on-policy: every sample counts whole
    for k in range(3):
        own = [x for row in w for x in row[2 * k : 2 * k + 2]]
        assert deviations[k].item() == pytest.approx(mean(abs(1 - x) for x in own))


@pytest.mark.parametrize("temperature, clamps", [(2.0, False), (0.2, True)])
def test_cpo_eq_10_imitation(temperature, clamps):
    """CPO Eq. 10: -E over the leader's data of log pi_i(a|s) exp(A_i(s, a) / lambda_f), beside the follower's PPO loss.

    cpo.py: awac_batch (A_i: of the follower's reward, normalised with all rows); minibatch_loss, awac_loss. The paper
    has no limit; here the exponential is at most 100, as released.
    """
    made = make_minibatch(cpo, f"{POLICY_ONLY} --awac-coef 0.7 --awac-temperature {temperature}")
    eps = made.args.clip_coef
    followers = [1, 2, 3]

    def followers_loss(rows):
        total = 0.0
        for i in followers:
            total = total + 0.7 * imitation(rows, temperature, i, most=100.0) - surrogate_of(rows, i, eps)
        return total / GROUPS

    met = assert_gradients(made, followers_loss, agents=followers)
    imitated = [row for row in met if row.kind == "awac"]
    assert {row.learner for row in imitated} == set(followers)
    assert any(math.exp(row.advantage / temperature) > 100 for row in imitated) == clamps


def test_cpo_eq_9_23_24_imitation_leads_to_the_constrained_optimum():
    """CPO Eq. 9: argmax of A_i subject to KL(pi_i || pi_L) <= eps. Its solution is pi* = pi_L exp(A_i / lambda) / Z
    (Eq. 23), and Eq. 10 is Z KL(pi* || pi_i) up to what does not depend on pi_i (Eq. 24).
    cpo.py: minibatch_loss, awac_loss.
    """
    temperature = 2.0
    made = make_minibatch(cpo, f"{POLICY_ONLY} --awac-coef 1e15 --awac-temperature {temperature}")  # this alone

    def kl_to_optimum(rows, i):
        rows = [row for row in rows if row.kind == "awac" and row.learner == i]  # a ~ pi_L: 1 / n each
        likely = [math.exp(row.advantage / temperature) / len(rows) for row in rows]
        Z = sum(likely)
        return Z * sum(p / Z * (math.log(p / Z) - row.logprob) for p, row in zip(likely, rows))

    followers = [1, 2, 3]

    def imitation_alone(rows):
        return 1e15 * sum(kl_to_optimum(rows, i) for i in followers) / GROUPS

    assert_gradients(made, imitation_alone, agents=followers)


def test_cpo_eq_11_total():
    """CPO Eq. 11: L_SAPG + beta sum of L_CPO,i over the followers. cpo.py: minibatch_loss, loss.

    Literally this counts each follower's PPO loss 1 + beta times, since Eq. 10 contains it; here once, as released
    (beta is at most 0.001). GROUPS divides all of it: the imitation is per row of SAPG's.
    """
    beta = 0.5
    temperature = 2.0
    made = make_minibatch(cpo, f"{POLICY_ONLY} --awac-coef {beta} --awac-temperature {temperature}")
    eps = made.args.clip_coef

    def total(rows, again=0.0):
        loss = -surrogate_of(rows, LEADER, eps) - surrogate_of(rows, LEADER, eps, "off-policy")
        for i in (1, 2, 3):
            loss = loss - surrogate_of(rows, i, eps)
            loss = loss + beta * (imitation(rows, temperature, i) - again * surrogate_of(rows, i, eps))
        return loss / GROUPS

    assert_gradients(made, total)
    with pytest.raises(AssertionError):
        assert_gradients(made, lambda rows: total(rows, again=1.0))


def test_cpo_eq_12_discriminator_loss():
    """CPO Eq. 12, left: L_D = -E[log D(y | s, a)], y the agent that acted. Discriminator, discriminator_step.

    One step of plain gradient descent with rate 1 shows the gradient; what is returned is from before it.
    """
    torch.manual_seed(0)
    T = 3
    N = 6
    M = 3
    D = cpo.Discriminator(2, 1, SimpleNamespace(discriminator_sizes=(5,), num_agents=M))
    obs = torch.randn(T, N, 2)
    actions = torch.randn(T, N, 1)
    agent_ids = torch.arange(M).repeat_interleave(2)[None]
    expected = {}
    loss = 0.0
    for t in range(T):
        for e in range(N):
            likes = D.mlp(torch.cat([obs[t, e], actions[t, e]])).exp()
            log_d = (likes[e // 2] / likes.sum()).log()  # soft-max, once
            expected[t, e] = log_d.item()
            loss = loss - log_d / (T * N)
    gradients = torch.autograd.grad(loss, list(D.parameters()))
    before = [p.detach().clone() for p in D.parameters()]
    optimizer = torch.optim.SGD(D.parameters(), lr=1.0)
    log_d, _ = cpo.discriminator_step(D, optimizer, obs, actions, agent_ids, 1)
    for (t, e), value in expected.items():
        assert log_d[t, e, e // 2].item() == pytest.approx(value)
    for p, old, gradient in zip(D.parameters(), before, gradients):
        assert torch.allclose(p, old - gradient)


def test_cpo_eq_12_discriminator_sees_the_window_once():
    """CPO Eq. 12, left, in minibatches: each is one step of gradient descent, together they are the window.

    With steps so small that their order is of no account, four go four times as far as one of the whole window's L_D.
    """
    torch.manual_seed(0)
    D = cpo.Discriminator(2, 1, SimpleNamespace(discriminator_sizes=(5,), num_agents=3))
    obs = torch.randn(3, 12, 2)
    actions = torch.randn(3, 12, 1)
    agent_ids = torch.arange(3).repeat_interleave(4)[None]
    loss = -mean(D(obs[t, e], actions[t, e])[e // 4] for t in range(3) for e in range(12))
    gradients = torch.autograd.grad(loss, list(D.parameters()))
    before = [p.detach().clone() for p in D.parameters()]
    rate = 1e-7
    cpo.discriminator_step(D, torch.optim.SGD(D.parameters(), lr=rate), obs, actions, agent_ids, 4)
    for p, old, gradient in zip(D.parameters(), before, gradients):
        assert torch.allclose((old - p) / rate, 4 * gradient, rtol=1e-4, atol=1e-6)


def test_the_discriminator_goes_on_learning_at_the_rate_that_training_begins_with():
    """Adam's first step moves every parameter by the rate. cpo.py: main()."""
    run = play(cpo, "--adversarial-coef 0.3 --learning-rate 0.009 --total-timesteps 192")
    start, first, second = run.states
    assert second["optimizer"]["param_groups"][0]["lr"] != 0.009  # of the agents, by the KL divergence
    for name, parameter in start["discriminator"].items():
        moved = (first["discriminator"][name] - parameter).abs()
        assert torch.allclose(moved, torch.tensor(0.009), rtol=1e-3), name
    adam = second["discriminator_optimizer"]
    assert adam["param_groups"][0]["lr"] == 0.009
    assert {state["step"].item() for state in adam["state"].values()} == {2}


@pytest.mark.parametrize("target", ["--critic-n-step 3", "--critic-n-step 0"], ids=["3-step", "gae"])
def test_cpo_eq_12_adversarial_reward(target):
    """CPO Eq. 12, right: followers get r + lambda_adv log D(y | s, a), the leader r, off-policy too. cpo.py: main().

    It shows in all advantages and critic targets, the advantages of what a follower imitates among them.
    """
    flags = "--clip-coef 1e6 --awac-coef 0.5 --awac-temperature 2 --bounds-coef 0 --off-policy-coef 0.5"
    run = play(cpo, f"{flags} --adversarial-coef 0.7 {target}")

    def total(rows):  # there is three times as much off-policy data as the leader's own
        loss = over_agents(rows, lambda row: 2.0 * critic_error(row) - clipped_surrogate(row, math.inf), 3 * 0.5)
        return loss + sum(0.5 * imitation(rows, 2.0, i) for i in (1, 2, 3)) / (AGENTS + 3 * 0.5)

    assert_updates(run, total)
    run.args.adversarial_coef = 0.0
    with pytest.raises(AssertionError):
        assert_updates(run, total)  # and it does something


@pytest.mark.parametrize("first", [True, False], ids=["first step", "later steps"])
def test_cpo_eq_25_reverse_kl(first):
    """CPO Eq. 25: -E over follower i's data of r (A_i - lambda_r log(pi_i / pi_L)).
    cpo.py: minibatch_loss, below CPO Eq. 25.

    Here, as released, within PPO's clip: min(r A~, clip(r) A~) with A~ = A_i - lambda_r log(pi_i / pi_L). pi_L is the
    leader now, without gradient. At an iteration's first step, r = 1, and the two have the same gradient. The default
    and all of the paper's experiments have lambda_r = 0.
    """
    assert cpo.Args.reverse_kl_coef == 0.0
    flags = f"{POLICY_ONLY} --awac-coef 0 --reverse-kl-coef 0.3"
    made = make_minibatch(cpo, flags, same_policy=first)
    eps = made.args.clip_coef
    followers = [1, 2, 3]

    def own(rows, i):
        return [row for row in rows if row.kind == "on-policy" and row.learner == i]

    def A(row):
        return row.advantage - 0.3 * (row.logprob - row.leader_logprob)

    def as_printed(rows):
        return -sum(mean((row.logprob - row.behaviour).exp() * A(row) for row in own(rows, i)) for i in followers)

    def clipped(rows):
        return -sum(mean(clipped_surrogate(row, eps, advantage=A(row)) for row in own(rows, i)) for i in followers)

    if first:
        assert_gradients(made, lambda rows: as_printed(rows) / GROUPS, agents=followers)
    assert_gradients(made, lambda rows: clipped(rows) / GROUPS, agents=followers)

    def leaders_loss(rows):
        return -sum(surrogate_of(rows, LEADER, eps, kind) for kind in ("on-policy", "off-policy")) / GROUPS

    assert_gradients(made, leaders_loss, agents=[LEADER])


# ---------------------------------------------------------------- EPO: the genetic algorithm


@pytest.mark.parametrize(
    "followers", [(2, 10, 4), (1, 2, 10, 12), (5, 1, 3, 2, 4), (-2, -10, -4), (-1, 0, 1), (0.5, 0.25, 0.375)]
)
@pytest.mark.parametrize("gamma", [0.3, 0.5, 2.0])
def test_epo_eq_3_when_fitness_has_spread(followers, gamma):
    """EPO Eq. 3: max f_k - min f_k > gamma median f_k, over all but the master. epo.py: fitness_spread.

    At a median of 0 and below this holds for any difference. Here the right side is gamma max(|median|, floor), which
    is the paper's where the median is above the floor.
    """
    floor = 0.5
    difference = max(followers) - min(followers)
    median = statistics.median(followers)
    for master in (-1000, 1000):
        gap, unit = epo.fitness_spread(fitness_of(master, *followers), floor)
        assert gap.item() == difference
        assert unit.item() == (median if median > floor else max(abs(median), floor))
        if median > floor:
            assert bool(gap > gamma * unit) == (difference > gamma * median)


@pytest.mark.parametrize("floor, fires", [(0.01, True), (1e6, False)])
def test_epo_eq_3_has_the_tasks_own_floor(monkeypatch, floor, fires):
    """EPO Eq. 3 at a median near 0: `fitness_floor` is the task's. epo.py: fitness_spread."""
    monkeypatch.setattr(Drift, "fitness_floor", floor)
    assert bool(record(epo, f"{TINY_POPULATION} --total-timesteps 1296 --ga-threshold 0.2").lineages) == fires


@pytest.mark.parametrize(
    "fitness, episodes, generation, flags, due",
    [
        ((9, 2, 2.5, 3), 2.0, 0, dict(), True),
        ((9, 2, 2.5, 3), 1.99, 0, dict(), False),  # warm-up: ">="
        ((9, 2, 2.5, 3), 1.99, 1, dict(), True),  # which is over
        ((9, 2, 2, 3), 2.0, 0, dict(ga_threshold=0.5), False),
        ((9, 1.99, 2, 3), 2.0, 0, dict(ga_threshold=0.5), True),
        ((math.nan, 2, 2.5, 3), 2.0, 0, dict(), True),  # the master's fitness is not waited for
        ((9, 2, 2.5, math.nan, 3), 2.0, 0, dict(), True),  # nor that of a follower which cannot be judged
        ((9, 2, 2, 2), 4.0, 1, dict(ga_interval=4), True),
        ((9, 2, 2, 3), 3.99, 1, dict(ga_interval=4), False),
    ],
)
def test_epo_eq_3_and_when_a_generation_is_due(fitness, episodes, generation, flags, due):
    """EPO Eq. 3: ">", not ">="; or fixed intervals, in which it has no say. epo.py: generation_is_due."""
    args = SimpleNamespace(**{"ga_warmup": 2, "ga_interval": 0, "ga_threshold": 0.3, **flags})
    gap, median = epo.fitness_spread(fitness_of(*fitness), 0.01)
    assert bool(epo.generation_is_due(gap, median, torch.tensor(episodes), generation, args)) == due


def fitness_and_lineage(run):
    """Iteration by iteration, before its rollout: fitness of each agent, NaN while not known, share of the followers'
    environments that have been judged, episodes per environment since the last generation, and the new generation.

    Fitness is the mean over the agent's environments, of their latest episode that began after the last generation;
    known once half of them have one.
    """
    args = run.args
    n = args.num_envs // args.num_agents
    score = [None] * args.num_envs
    whole = [True] * args.num_envs  # whether its running episode began after the generation
    episodes = 0.0
    for k in range(args.num_iterations):
        scores = [[x for x in score[i * n :][:n] if x is not None] for i in range(args.num_agents)]
        fitness = [mean(own) if len(own) >= 0.5 * n else math.nan for own in scores]
        judged = sum(len(own) for own in scores[1:]) / (args.num_envs - n)
        lineage = run.lineages.get(k, [])
        yield fitness, judged, episodes, lineage
        if lineage:
            last = run.steps[k * args.num_steps - 1]
            score = [None] * args.num_envs
            whole = (last.terminated | last.truncated).tolist()
            episodes = 0.0
        for step in run.steps[k * args.num_steps :][: args.num_steps]:
            for e in step.counts.nonzero().flatten().tolist():  # shortened episodes do not
                score[e] = step.objective[e].item() if whole[e] else score[e]
                episodes += whole[e] / args.num_envs
            for e in (step.terminated | step.truncated).nonzero().flatten().tolist():
                whole[e] = True


@pytest.mark.parametrize(
    "flags",
    [
        "--ga-threshold 0",  # as soon as the children have been judged
        "--ga-threshold 0.2",
        "--ga-threshold 0 --ga-warmup 5.01",
        "--ga-threshold 1e9 --ga-interval 2.01",  # Eq. 3 has no say
        "--ga-threshold 0 --ga-interval 6.01",
        "--ga-threshold 1e9",
    ],
)
def test_epo_algorithm_1_lines_8_to_11_when_a_generation_comes(flags):
    """EPO Algorithm 1: fitness of every follower, then Eq. 3, then the new generation, then data. epo.py: main().

    Here in addition every follower's fitness has to be known, nine in ten of their environments have to be judged, and
    a first time has to pass (--ga-warmup). The paper's
    simpler alternative to Eq. 3, fixed intervals, is --ga-interval.
    """
    flags = f"{TINY_POPULATION} --total-timesteps 3456 --num-elites 2 {flags}"  # 16 iterations
    run = record(epo, flags)
    args = run.args
    assert bool(run.lineages) == (args.ga_threshold < 1 or args.ga_interval > 0)
    for iteration, (fitness, judged, episodes, _) in enumerate(fitness_and_lineage(run)):
        followers = fitness[1:]
        warm = episodes >= args.ga_warmup or any(i < iteration for i in run.lineages)
        fires = warm and judged >= 0.9 and not any(map(math.isnan, followers))
        if fires and args.ga_interval:
            fires = episodes >= args.ga_interval
        elif fires:
            unit = max(abs(statistics.median(followers)), 0.01)  # Drift's floor
            fires = max(followers) - min(followers) > args.ga_threshold * unit  # EPO Eq. 3
        assert fires == (iteration in run.lineages)
        if fires:
            ((child, _, _),) = run.lineages[iteration]  # two of the three followers are elites
            assert followers[child - 1] == min(followers)


FITNESS = fitness_of(-100, 3, 1, 5, 2, 4)  # the leader is the worst; with 3 elites: 3, 5, 1, to replace: 4, 2


def evolve(fitness=FITNESS, num_elites=3, crossover="average", mutation_std=0.0, latent_dim=64, seed=0):
    """One generation of 6 agents: rows before, rows after, lineage, the parameter, its optimizer, its old state."""
    torch.manual_seed(seed)
    latents = torch.nn.Parameter(torch.randn(6, latent_dim))
    optimizer = torch.optim.Adam([latents], lr=0.01)
    for _ in range(3):
        latents.grad = torch.randn_like(latents)
        optimizer.step()
    before = latents.detach().clone()
    state = {k: v.clone() for k, v in optimizer.state[latents].items()}
    args = SimpleNamespace(num_agents=6, num_elites=num_elites, crossover=crossover, mutation_std=mutation_std)
    lineage = epo.genetic_algorithm_step(latents, fitness, optimizer, args)
    after = latents.detach().clone()
    result = SimpleNamespace(before=before, after=after, state=state, lineage=lineage)
    result.latents = latents
    result.optimizer = optimizer
    return result


def test_who_is_not_judged_is_neither_a_parent_nor_replaced():
    """Ours: NaN takes no part in a generation. epo.py: genetic_algorithm_step."""
    for seed in range(20):
        run = evolve(fitness_of(-100, 3, math.nan, 5, 2, 4), num_elites=None, seed=seed)
        ((child, *parents),) = run.lineage
        assert child == 4
        assert set(parents) < {1, 3, 5}


@pytest.mark.parametrize("leader", [-100, 100])
@pytest.mark.parametrize("x", [2, 3, None, 4, 5])
def test_epo_algorithm_1_lines_12_to_19_next_generation(leader, x):
    """EPO Algorithm 1: rank, keep the top x, fill up with mutated crossovers (4.1: average), leave the master alone.

    epo.py: genetic_algorithm_step. Whom it draws as parents is taken from what it returns. x unset is K - 2 (B.2).
    """
    f = [leader, 3, 1, 5, 2, 4]
    K = 6
    run = evolve(fitness_of(*f), num_elites=x)
    x = x or K - 2
    phi = run.before.tolist()
    ranked = sorted(range(1, K), key=lambda k: -f[k])  # 12
    X = ranked[:x]  # 13
    Y = {k: phi[k] for k in X}
    for child, i, j in run.lineage:
        assert len(Y) < K - 1
        assert child not in Y  # 14
        assert i in X
        assert j in X
        assert i != j
        Y[child] = [0.5 * (a + b) for a, b in zip(phi[i], phi[j])]  # 15; 16 is the next test's; 17
    assert len(Y) == K - 1
    Y[0] = phi[0]
    assert torch.allclose(run.after, torch.tensor([Y[k] for k in range(K)]))  # 19


def test_epo_algorithm_1_line_15_parents():
    """EPO 4.1: "we then randomly select two agents from X". epo.py: genetic_algorithm_step."""
    counts = {}
    for seed in range(300):
        for _, i, j in evolve(latent_dim=1, seed=seed).lineage:
            counts[i, j] = counts.get((i, j), 0) + 1
    assert sorted(counts) == [(1, 3), (1, 5), (3, 1), (3, 5), (5, 1), (5, 3)]
    assert all(abs(count - 100) < 50 for count in counts.values())  # of 600; 5 standard deviations


def test_epo_algorithm_1_line_16_mutation():
    """EPO Algorithm 1, line 16, and 4.1: phi'' = phi' + eps, eps ~ N(0, sigma^2). epo.py: genetic_algorithm_step.

    The paper does not give sigma; --mutation-std 0.1 is ours.
    """
    crossed, mutated, doubled = [evolve(mutation_std=std, latent_dim=2000) for std in (0.0, 0.1, 0.2)]
    children = [child for child, _, _ in crossed.lineage]
    noise = mutated.after[children] - crossed.after[children]
    assert (noise != 0).float().mean() > 0.99
    assert abs(noise.mean()) < 0.01
    assert abs(noise.std() - 0.1) < 0.01
    assert torch.allclose(doubled.after[children] - crossed.after[children], 2 * noise, atol=1e-5)
    assert abs(torch.corrcoef(noise)[0, 1]) < 0.15  # each child has its own


def test_epo_section_5_3_uniform_crossover():
    """EPO 5.3, uniform crossover: each coordinate from one parent. epo.py: genetic_algorithm_step."""
    run = evolve(crossover="uniform", latent_dim=1000)
    for child, i, j in run.lineage:
        from_i = run.after[child] == run.before[i]
        from_j = run.after[child] == run.before[j]
        assert (from_i ^ from_j).all()
        assert abs(from_i.float().mean() - 0.5) < 0.08  # 5 standard deviations


@pytest.mark.parametrize("shift", [0, -50], ids=["positive", "negative"])
def test_epo_section_5_3_fitness_weighted_crossover(shift):
    """EPO 5.3: parents weighted by fitness. epo.py: genetic_algorithm_step.

    The paper gives no formula. Here it counts from the worst elite's, so that negative returns work.
    """
    seen = set()
    for seed in range(20):
        run = evolve(FITNESS + shift, crossover="fitness_weighted", seed=seed)
        for child, i, j in run.lineage:
            above_worst_elite = {1: 0.0, 3: 2.0, 5: 1.0}  # 3 - 3, 5 - 3, 4 - 3
            weight = above_worst_elite[i] / (above_worst_elite[i] + above_worst_elite[j])
            assert torch.allclose(run.after[child], weight * run.before[i] + (1 - weight) * run.before[j], atol=1e-5)
            seen.add((i, j))
    assert len(seen) == 6


def test_epo_section_5_3_fitness_weighted_crossover_of_equals_is_the_average():
    run = evolve(fitness_of(0, 4, 4, 4, 4, 4), crossover="fitness_weighted")
    for child, i, j in run.lineage:
        assert torch.allclose(run.after[child], (run.before[i] + run.before[j]) / 2, atol=1e-6)


def test_elites_and_leader_stay_as_they_are_whatever_the_crossover():
    for crossover in ("average", "uniform", "fitness_weighted"):
        run = evolve(crossover=crossover, mutation_std=0.1)
        assert [child for child, _, _ in run.lineage] == [4, 2]
        assert torch.equal(run.after[[0, 1, 3, 5]], run.before[[0, 1, 3, 5]])
        assert (run.after[[2, 4]] != run.before[[2, 4]]).all()


def test_adam_state_of_a_child():
    run = evolve(mutation_std=0.1)
    state = run.optimizer.state[run.latents]
    kept = [0, 1, 3, 5]
    for child, i, j in run.lineage:
        assert (state["exp_avg"][child] == 0).all()
        assert torch.allclose(state["exp_avg_sq"][child], (run.state["exp_avg_sq"][i] + run.state["exp_avg_sq"][j]) / 2)
    for key in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(state[key][kept], run.state[key][kept])
    assert torch.equal(state["step"], run.state["step"])


def test_latents_train_on_after_a_generation():
    """The optimizer holds the same parameter as before."""
    run = evolve(mutation_std=0.1)
    run.latents.grad = torch.ones_like(run.latents)
    run.optimizer.step()
    assert (run.latents != run.after).all()
