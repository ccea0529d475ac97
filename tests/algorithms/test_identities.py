"""What must hold between the scripts, and within any run of one, whatever the task."""

import pytest
import torch

import cpo
import epo
import ppo
import sapg
from tests.algorithms.minibatches import make_minibatch
from tests.algorithms.runs import logged, record, train
from tests.conftest import FLAGS, TINY, TINY_POPULATION, every_population, every_script, parse
from tests.scripts.conftest import same

every_network = pytest.mark.parametrize(
    "network", ["", "--lstm", "--separate-critic"], ids=["mlp", "lstm", "separate-critic"]
)
MOAT = (
    "--no-cuda --env-id Moat --num-envs 24 --num-steps 8 --total-timesteps 576 --hidden-sizes 16 16 --lstm-size 8"
    " --num-minibatches 2"  # 3 iterations
)


def assert_same_run(parent, child):
    """The child's checkpoint has all that the parent's has, bit by bit: network, Adam's moments, environments."""
    for name, state in parent["learner"].items():
        assert same(child["learner"][name], state), name
    for name, state in parent["rollout"][0].items():
        assert same(child["rollout"][0][name], state), name


def assert_logs_alike(parent, child):
    """The child logs all that the parent logs, with the same numbers, but for the time it took."""
    assert len(parent) == len(child) > 0
    for expected, found in zip(parent, child):
        for key in expected:
            if not key.startswith("perf/") and key != "charts/SPS":
                assert found[key] == pytest.approx(expected[key], rel=1e-4, abs=1e-6), key


def gradient_steps(saved):
    """How many steps Adam has made for each parameter, which is the same for all."""
    (count,) = {state["step"].item() for state in saved["learner"]["optimizer"]["state"].values()}
    return count


@pytest.mark.parametrize("task", [MOAT, TINY], ids=["moat", "drift"])
@every_network
def test_one_agent_without_latent_is_ppo(task, network):
    one = train(ppo, f"{task} {network}")
    logs = logged()
    other = train(sapg, f"{task} {network} --num-agents 1 --latent-dim 0")
    # equal but for rounding: sapg sums the gradient of the log-std over each agent's columns first
    for name, tensor in one["learner"]["agent"].items():
        assert torch.allclose(other["learner"]["agent"][name], tensor, rtol=1e-5, atol=1e-5), name
    assert torch.allclose(one["rollout"][0]["obs"], other["rollout"][0]["obs"], atol=1e-5)
    assert gradient_steps(one) == gradient_steps(other)
    assert_logs_alike(logs, logged())


@pytest.mark.parametrize("task", [f"{MOAT} --num-agents 4", TINY_POPULATION], ids=["moat", "drift"])
@pytest.mark.parametrize("flags", ["--off-policy-ratio 0", "--off-policy-ratio 1 --bounds-coef 0.1"])
@every_network
@pytest.mark.parametrize(
    "script, without, aggregation",
    [
        (epo, "--ga-threshold 1e9", ""),
        (cpo, "--awac-coef 0", "--aggregation one-follower"),
    ],
)
def test_without_its_own_terms_it_is_sapg(task, flags, network, script, without, aggregation):
    flags = f"{task} {flags} {network} {aggregation}"
    parent = train(sapg, flags)
    logs = logged()
    assert_same_run(parent, train(script, f"{flags} {without}"))
    assert_logs_alike(logs, logged())


def test_imitation_takes_no_further_gradient_steps():
    assert gradient_steps(train(cpo, TINY_POPULATION)) == gradient_steps(train(sapg, TINY_POPULATION)) == 12


def test_imitation_needs_no_more_memory_with_more_agents():
    """Every follower imitates all of the leader's columns; so many rows does the network see at once."""
    widest = {}
    for num_agents in (4, 12):
        n = 24 // num_agents
        flags = f"--num-envs 24 --num-agents {num_agents} --off-policy-ratio 0 --num-minibatches 2"
        made = make_minibatch(cpo, flags)
        rows = []
        made.agent.mlp.register_forward_pre_hook(lambda mlp, inputs: rows.append(inputs[0].shape[:2].numel()))
        never = torch.zeros(6, 24, dtype=torch.bool)
        rewards = torch.zeros(6, 24, num_agents)
        awac = cpo.awac_batch(made.agent, made.mb, rewards, made.mb["obs"], never, never, made.args)
        pairs = list(zip(awac["followers"].tolist(), awac["columns"].tolist()))
        assert sorted(pairs) == [(follower, column) for follower in range(1, num_agents) for column in range(n)]
        widest[num_agents] = max(rows)
    assert widest[12] <= widest[4]


@every_population
def test_looking_at_the_population_changes_nothing(script):
    flags = f"{TINY_POPULATION} --num-agents 12"  # more than the KL matrix shows
    looking = train(script, f"{flags} --diagnostics-interval 1")
    assert_same_run(looking, train(script, f"{flags} --diagnostics-interval 0"))


@every_script
def test_same_seed_same_run_other_seed_other_run(script):
    """The rate is next to nothing, so that what differs is what the runs begin with."""
    flags = f"{FLAGS[script]} --learning-rate 1e-9 --kl-threshold 0"
    first = train(script, f"{flags} --seed 3")
    assert_same_run(first, train(script, f"{flags} --seed 3"))
    other = train(script, f"{flags} --seed 4")
    difference = first["learner"]["agent"]["actor.weight"] - other["learner"]["agent"]["actor.weight"]
    assert (difference.abs() > 1e-4).all()
    assert (first["rollout"][0]["obs"] != other["rollout"][0]["obs"])[:, :2].all()  # the third is the clock


@every_network
@pytest.mark.parametrize(
    "script, off_policy",
    [
        (ppo, ""),
        *[(script, f"--off-policy-ratio {ratio}") for script in (sapg, cpo, epo) for ratio in (0, 1)],
    ],
    ids=lambda x: x if isinstance(x, str) else x.__name__,
)
def test_first_ratio_of_on_policy_rows_is_one(script, off_policy, network):
    """The policy that learns is the policy that acted, from the second iteration on (but for the rounding of --bf16).

    In the first one the normaliser takes in the rollout before, since until then it knows nothing. There is one
    gradient step per iteration, with a clip so narrow that the log shows whose ratio is another.
    """
    flags = f"{FLAGS[script]} {network} {off_policy} --total-timesteps 864"
    run = record(script, f"{flags} --num-minibatches 1 --update-epochs 1 --clip-coef 1e-4")
    assert any(step.terminated.any() for step in run.steps[9:18])
    assert any(step.truncated.any() for step in run.steps[9:18])
    first, *later = [log["losses/clipfrac"] for log in run.logs]
    assert first > 0.1
    assert len(later) == 3
    agents = getattr(run.args, "num_agents", 1)
    off_policy_share = 1 / (agents + 1) if "ratio 1" in off_policy else 0.0  # of the rows
    for share in later:
        assert (share > 0.0) == (off_policy_share > 0.0)
        assert share <= off_policy_share + 1e-6


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "script, flags",
    [
        (ppo, ""),
        (ppo, "--lstm"),
        (sapg, ""),
        (sapg, "--aggregation symmetric"),
        (cpo, "--awac-coef 0.5"),
        (epo, ""),
        (cpo, "--awac-coef 1e6 --vf-coef 0"),  # imitation alone
    ],
    ids=lambda x: x if isinstance(x, str) else x.__name__,
)
def test_every_epoch_divides_the_batch_into_minibatches_anew(script, flags, gradients):
    """Each row once, what cpo's followers imitate too: the mean of the minibatches' gradients is the whole batch's.

    The rate is next to nothing, so that all gradients are taken at one place. The same holds for the logged losses.
    """
    flags = f"{FLAGS[script]} {flags} --total-timesteps 216 --learning-rate 1e-15 --kl-threshold 0 --max-grad-norm 1e9"
    train(script, f"{flags} --num-minibatches 1")
    whole = gradients[0]
    expected = logged()[0]
    gradients.clear()
    train(script, f"{flags} --num-minibatches 3")
    assert len(gradients) == 6
    for epoch in (gradients[:3], gradients[3:]):
        assert (sum(epoch) / 3 - whole).norm() < 1e-9 * whole.norm()
    for i in range(6):
        for j in range(i):
            assert (gradients[i] - gradients[j]).norm() > 1e-3 * whole.norm()
    found = logged()[0]
    for key in expected:
        if key.startswith("losses/") and key != "losses/grad_norm":
            assert found[key] == pytest.approx(expected[key], rel=1e-5, abs=1e-9), key


@pytest.mark.parametrize(
    "script, flags",
    [
        *[(script, "--num-agents 4 --off-policy-ratio 0") for script in (sapg, cpo, epo)],
        *[(script, "--num-agents 1") for script in (sapg, cpo)],
        (sapg, "--num-agents 1 --aggregation symmetric"),
    ],
    ids=lambda x: x if isinstance(x, str) else x.__name__,
)
def test_an_lstm_without_off_policy_columns(script, flags, monkeypatch):
    """Nothing to learn from others is no call of the LSTM, which on a GPU refuses empty input."""
    forward = torch.nn.LSTM.forward

    def refuse_empty(self, x, *args):
        assert x.numel(), "Expected batch size to be greater than 0"
        return forward(self, x, *args)

    monkeypatch.setattr(torch.nn.LSTM, "forward", refuse_empty)
    saved = train(script, f"{TINY_POPULATION} --lstm --diagnostics-interval 1 {flags}")
    assert gradient_steps(saved) == 12


@every_script
def test_actions_are_drawn_as_normal_draws_them(script):
    torch.manual_seed(0)
    args = parse(script, FLAGS[script])
    agent = script.Agent(3, 2, args)
    torch.nn.init.normal_(agent.actor_logstd)
    obs = torch.randn(5, 8, 3)
    dones = torch.zeros(5, 8, dtype=torch.bool)
    state = torch.zeros(1, 8, 0)
    ids = () if script is ppo else (torch.arange(8)[None] % args.num_agents,)
    torch.manual_seed(1)
    action, logprob, policy, _, _ = agent.get_action_and_value(obs, *ids, dones, state)
    torch.manual_seed(1)
    assert torch.equal(action, policy.sample())
    assert torch.allclose(logprob, policy.log_prob(action).sum(-1))
