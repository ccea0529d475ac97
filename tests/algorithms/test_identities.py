"""What must hold between the scripts, and within any run of one, whatever the task."""

import pytest
import torch

import cpo
import epo
import ppo
import sapg
from tests.conftest import FLAGS, TINY, TINY_POPULATION, every_population, every_script, parse

every_network = pytest.mark.parametrize(
    "network", ["", "--lstm", "--separate-critic"], ids=["mlp", "lstm", "separate-critic"]
)
MOAT = (
    "--no-cuda --env-id Moat --num-envs 24 --num-steps 8 --total-timesteps 576 --hidden-sizes 16 16 --lstm-size 8"
    " --num-minibatches 2"  # 3 iterations
)


def same(a, b):
    """Whether two runs did the same, bit by bit: all parameters and statistics at every minibatch and at the end."""
    pairs = [(a.agent.state_dict(), b.agent.state_dict())]
    for x, y in zip(a.minibatches, b.minibatches):
        pairs += [(x.params, y.params), (x.grads, y.grads), (x.buffers, y.buffers)]
    return len(a.minibatches) == len(b.minibatches) and all(
        x.keys() == y.keys() and all(torch.equal(x[key], y[key]) for key in x) for x, y in pairs
    )


def log_alike(a, b):
    """Whether b logs all that a logs, with the same numbers, but for the time it took."""
    numbers = [{key: value for key, value in row.items() if not key.startswith("perf/")} for row in a.logged]
    return len(a.logged) == len(b.logged) > 0 and all(
        row[key] == pytest.approx(value, rel=1e-4, abs=1e-6, nan_ok=True)
        for expected, row in zip(numbers, b.logged)
        for key, value in expected.items()
    )


def acting_column(run, minibatch, iteration, num_steps):
    """Which environment each column of a minibatch comes from: nobody acts twice alike."""
    actions = torch.stack([step.action for step in run.steps[iteration * num_steps :][:num_steps]])
    matches = (minibatch.action[:, :, None] == actions[:, None]).all(-1).all(0)  # (M, N)
    assert (matches.sum(1) == 1).all()
    return matches.float().argmax(1)


@pytest.mark.parametrize("task", [MOAT, TINY], ids=["moat", "drift"])
@every_network
def test_one_agent_without_latent_is_ppo(train, task, network):
    one = train(ppo, f"{task} {network}")
    other = train(sapg, f"{task} {network} --num-agents 1 --latent-dim 0")
    # equal but for rounding: sapg sums the gradient of the log-std over each agent's columns first
    for x, y in zip(one.minibatches, other.minibatches):
        assert torch.equal(x.action, y.action) or torch.allclose(x.action, y.action, atol=1e-5)
        assert all(torch.allclose(x.params[key], y.params[key], atol=1e-5) for key in x.params)
    assert len(one.minibatches) == len(other.minibatches) > 0
    end, other_end = one.agent.state_dict(), other.agent.state_dict()
    assert all(torch.allclose(end[key], other_end[key], rtol=1e-5, atol=1e-5) for key in end)
    assert log_alike(one, other)


@pytest.mark.parametrize("task", [f"{MOAT} --num-agents 4", TINY_POPULATION], ids=["moat", "drift"])
@pytest.mark.parametrize("flags", ["--off-policy-ratio 0", "--off-policy-ratio 1 --bounds-coef 0.1"])
@every_network
@pytest.mark.parametrize("script, without, aggregation", [
    (epo, "--ga-threshold 1e9", ""), (cpo, "--awac-coef 0", "--aggregation one-follower"),
])  # fmt: skip
def test_without_its_own_terms_it_is_sapg(train, task, flags, network, script, without, aggregation):
    flags = f"{task} {flags} {network} {aggregation}"
    parent, child = train(sapg, flags), train(script, f"{flags} {without}")
    assert same(parent, child)
    assert log_alike(parent, child)


def test_imitation_takes_no_further_gradient_steps_and_no_more_memory_with_more_agents(train, monkeypatch):
    steps, widest, relabel = [], {}, cpo.offpolicy_batch
    for num_agents in (4, 12):
        sizes = []
        recorded = lambda *args, **kwargs: sizes.append(len(args[5])) or relabel(*args, **kwargs)  # noqa: E731
        monkeypatch.setattr(cpo, "offpolicy_batch", recorded)
        flags = f"{TINY_POPULATION} --num-agents {num_agents}"
        imitating = train(cpo, flags)
        assert all(minibatch.awac for minibatch in imitating.minibatches)
        steps.append((len(imitating.minibatches), len(train(sapg, flags).minibatches)))
        widest[num_agents] = max(sizes)
    assert steps == [(12, 12)] * 2
    assert widest[12] <= widest[4]


@every_population
def test_looking_at_the_population_changes_nothing(train, script):
    flags = f"{TINY_POPULATION} --num-agents 12"  # more than the KL matrix shows
    looking = train(script, f"{flags} --diagnostics-interval 1")
    assert same(looking, train(script, f"{flags} --diagnostics-interval 0"))


@every_script
def test_same_seed_same_run_other_seed_other_run(train, script):
    first, again, other = [train(script, f"{FLAGS[script]} --seed {seed}") for seed in (3, 3, 4)]
    assert same(first, again)
    for x, y in zip(first.minibatches, other.minibatches):
        assert not torch.equal(x.params["actor.weight"], y.params["actor.weight"])
    assert not torch.equal(first.steps[0].obs, other.steps[0].obs)


@every_script
@every_network
def test_first_ratio_of_on_policy_rows_is_one(train, script, network):
    """The policy that learns is the policy that acted, from the second iteration on.

    In the first one the normaliser takes in the rollout before, since until then it knows nothing.
    """
    run = train(script, f"{FLAGS[script]} {network} --total-timesteps 864")
    assert any(step.terminated.any() for step in run.steps[9:18])
    assert any(step.truncated.any() for step in run.steps[9:18])
    for iteration in range(4):
        minibatch = run.minibatches[4 * iteration]  # 2 epochs of 2 minibatches
        column = acting_column(run, minibatch, iteration, 9)
        on_policy = minibatch.agent_ids[0] == column // 6 if script is not ppo else column >= 0
        old = torch.stack([step.logprob for step in run.steps[9 * iteration :][:9]])[:, column]
        ratio = (minibatch.logprob - old).exp()
        deviation = (ratio[:, on_policy] - 1).abs().max()
        if iteration == 0:
            assert deviation > 1e-3
        else:
            assert deviation < 1e-5
        if script is not ppo:  # and this is no accident
            assert (ratio[:, ~on_policy] - 1).abs().max() > 0.01


@every_population
@pytest.mark.parametrize("aggregation", ["leader-follower", "one-follower", "symmetric"])
def test_every_row_is_labelled_with_who_learns_from_it(train, script, aggregation):
    run = train(script, f"{TINY_POPULATION} --aggregation {aggregation}")
    for iteration in range(3):
        own = [(c, c // 6) for c in range(24)]
        others = list(zip(*[x.tolist() for x in run.sampled[iteration]]))
        assert len(others) == (24 if aggregation == "symmetric" else 6)
        assert all(c // 6 != learner for c, learner in others)
        assert len({c // 6 for c, _ in others}) > 1 or aggregation == "one-follower"
        for epoch in range(2):
            seen = []
            for minibatch in run.minibatches[4 * iteration + 2 * epoch :][:2]:
                column = acting_column(run, minibatch, iteration, 9)
                seen += zip(column.tolist(), minibatch.agent_ids[0].tolist())
                obs = torch.stack([step.obs for step in run.steps[9 * iteration :][:9]])
                assert torch.equal(minibatch.obs, obs[:, column])
            assert sorted(seen) == sorted(own + others)  # each row once per epoch
            assert seen != sorted(seen)  # shuffled


@every_script
def test_every_epoch_has_an_order_of_its_own(train, script):
    run = train(script, f"{FLAGS[script]} --num-minibatches 3")
    for iteration in range(3):
        orders = []
        for epoch in range(2):
            own = run.minibatches[6 * iteration + 3 * epoch :][:3]
            orders.append([column for mb in own for column in acting_column(run, mb, iteration, 9).tolist()])
        assert sorted(orders[0]) == sorted(orders[1])
        assert orders[0] != orders[1]


def test_every_epoch_imitates_each_row_once_in_an_order_of_its_own(train):
    """CPO Eq. 10: all of the leader's columns by every follower."""
    run = train(cpo, TINY_POPULATION)
    rows = [(column, follower) for follower in (1, 2, 3) for column in range(6)]
    orders = []
    for epoch in range(6):
        order = []
        for minibatch in run.minibatches[2 * epoch :][:2]:
            columns = acting_column(run, minibatch.awac, epoch // 2, 9).tolist()
            order += zip(columns, minibatch.awac.agent_ids[0].tolist())
            assert len(columns) == 9
        assert sorted(order) == sorted(rows)
        assert order != rows
        orders.append(order)
    assert all(orders[i] != orders[j] for i in range(6) for j in range(i))


@pytest.mark.parametrize("script, flags", [
    *[(script, "--num-agents 4 --off-policy-ratio 0") for script in (sapg, cpo, epo)],
    *[(script, "--num-agents 1") for script in (sapg, cpo)], (sapg, "--num-agents 1 --aggregation symmetric"),
], ids=lambda x: x if isinstance(x, str) else x.__name__)  # fmt: skip
def test_an_lstm_without_off_policy_columns(train, script, flags, monkeypatch):
    """Nothing to learn from others is no call of the LSTM, which on a GPU refuses empty input."""
    forward = torch.nn.LSTM.forward

    def refuse_empty(self, x, *args):
        assert x.numel(), "Expected batch size to be greater than 0"
        return forward(self, x, *args)

    monkeypatch.setattr(torch.nn.LSTM, "forward", refuse_empty)
    run = train(script, f"{TINY_POPULATION} --lstm --diagnostics-interval 1 {flags}")
    assert len(run.minibatches) == 12
    assert all(len(columns) == 0 for columns, _ in run.sampled)


def moments(rows):
    """Mean and variance of rows (M, ...), and of one sample of mean 0 and variance 1, which every run begins with."""
    rows = rows.double()
    mean = rows.sum(0) / (len(rows) + 1)
    return mean, (1.0 + rows.square().sum(0)) / (len(rows) + 1) - mean**2


@every_script
def test_normalisers_take_in_each_rollout_once_and_stand_still_while_the_network_learns(train, script):
    """Values before the epochs, whose targets they normalise; observations after them, but for the first rollout."""
    run = train(script, FLAGS[script])
    obs = torch.stack([step.obs for step in run.steps])
    for iteration in range(3):
        own = run.minibatches[4 * iteration : 4 * iteration + 4]
        for minibatch in own:
            for key, value in minibatch.buffers.items():
                assert torch.equal(value, own[0].buffers[key])
        acted = own[0].rollout_buffers
        learned = own[0].buffers
        for buffers, seen in ((acted, 9 * iteration), (learned, max(9 * iteration, 9))):
            mean, var = moments(obs[:seen].flatten(0, 1))
            assert torch.allclose(buffers["obs_rms.mean"], mean, atol=1e-5)
            assert torch.allclose(buffers["obs_rms.var"], var, atol=1e-5)
            assert buffers["obs_rms.count"] == 24 * seen + 1
        assert acted["value_rms.count"] == 2 * 24 * 9 * iteration + 1
        assert learned["value_rms.count"] == 2 * 24 * 9 * (iteration + 1) + 1
    assert run.agent.obs_rms.count == 24 * 27 + 1


@every_script
def test_actions_are_drawn_as_normal_draws_them(script):
    torch.manual_seed(0)
    args = parse(script, FLAGS[script])
    agent = script.Agent(3, 2, args)
    torch.nn.init.normal_(agent.actor_logstd)
    obs, dones, state = torch.randn(5, 8, 3), torch.zeros(5, 8, dtype=torch.bool), torch.zeros(1, 8, 0)
    ids = () if script is ppo else (torch.arange(8)[None] % args.num_agents,)
    torch.manual_seed(1)
    action, logprob, policy, _, _ = agent.get_action_and_value(obs, *ids, dones, state)
    torch.manual_seed(1)
    assert torch.equal(action, policy.sample())
    assert torch.allclose(logprob, policy.log_prob(action).sum(-1))


def test_latents_train_on_after_generations_in_a_run(train):
    run = train(epo, f"{TINY_POPULATION} --ga-threshold 0 --total-timesteps 1728 --num-elites 2")  # 8 iterations
    assert len(run.generations) > 1
    held = run.optimizer.param_groups[0]["params"]
    assert sum(parameter is run.agent.latents for parameter in held) == 1
    assert run.optimizer.state[run.agent.latents]["step"] == len(run.minibatches)  # it never lost its state
    for generation in run.generations:
        assert generation.parameter is run.agent.latents
        first = 4 * generation.iteration  # minibatch
        assert torch.equal(run.minibatches[first].params["latents"], generation.latents)  # acted with the new genomes
        for child, i, j in generation.lineage:
            for k in (child, i, j, 0):
                # three minibatches later: the first may hold none of the child's columns, and it has no momentum
                assert (run.minibatches[first + 3].params["latents"][k] != generation.latents[k]).any()


def test_a_generation_changes_nothing_but_latents(train, monkeypatch):
    """A child keeps the action noise of whom it replaces. The rate is next to nothing, so that nothing else moves."""
    make = epo.Agent

    def with_noise_of_their_own(*args):
        agent = make(*args)
        agent.actor_logstd.data.uniform_(-1.0, 0.5)
        return agent

    monkeypatch.setattr(epo, "Agent", with_noise_of_their_own)
    run = train(epo, f"{TINY_POPULATION} --ga-threshold 0 --num-elites 2 --learning-rate 1e-12 --kl-threshold 0")
    before, after = run.minibatches[0].params, dict(run.agent.named_parameters())
    changed = {name for name in before if not torch.allclose(before[name], after[name], atol=1e-6)}
    assert run.generations
    assert changed == {"latents"}
