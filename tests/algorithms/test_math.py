"""What the papers leave to their code: advantages, normalisation, learning rate, who learns what, fitness, tables."""

import math
import re

import pytest
import torch

import cpo
import epo
import pbt
import ppo
import harness
import sapg
from harness.log import MIN_LEARNING_RATE
from tests.algorithms.minibatches import loss_of_minibatch, make_minibatch
from tests.conftest import every_population, every_script, parse, tuned


# ---------------------------------------------------------------- what training begins with


@every_script
@pytest.mark.parametrize("network", ["", "--lstm", "--separate-critic"], ids=["mlp", "lstm", "separate-critic"])
def test_what_a_network_begins_with(script, network):
    """PyTorch's weights without bias, as released; noise of --init-std; latents from N(0, 1)."""
    torch.manual_seed(0)
    args = parse(script, network if script is ppo else f"{network} --num-agents 4 --num-envs 16 --latent-dim 1000")
    agent = script.Agent(3, 2, args)
    layers = [module for module in agent.modules() if isinstance(module, torch.nn.Linear)]
    assert len(layers) == (8 if args.separate_critic else 5)
    for layer in layers:
        most = 1 / math.sqrt(layer.in_features)  # uniform within
        assert 0.8 * most < layer.weight.abs().max() <= most
        assert (layer.bias == 0).all()
    assert (agent.actor_logstd.exp() == 1).all()
    args.init_std = 0.4
    torch.testing.assert_close(script.Agent(3, 2, args).actor_logstd.exp(), torch.full_like(agent.actor_logstd, 0.4))
    if script is not ppo:
        assert agent.latents.shape == (4, 1000)
        assert abs(agent.latents.mean()) < 0.08
        assert abs(agent.latents.std() - 1) < 0.06  # 5 standard deviations
        assert 0.645 < (agent.latents.abs() < 1).float().mean() < 0.72  # 0.683; of a uniform distribution 0.577
        assert abs(torch.corrcoef(agent.latents)[0, 1]) < 0.16  # each agent has its own


# ---------------------------------------------------------------- normalisation and learning rate


@every_script
def test_normalised_numbers_are_within_five(script):
    """Released code: both ways, and with the gradient of a clamp."""
    rms = script.RunningMeanStd()
    rms.mean.fill_(10.0)
    rms.var.fill_(4.0)
    std = (4.0 + 1e-5) ** 0.5
    x = torch.tensor([-1e6, -0.1, 1.0, 19.0, 20.1, 1e6], requires_grad=True)
    assert rms.normalize(x).tolist() == pytest.approx([-5.0, -5.0, -9.0 / std, 9.0 / std, 5.0, 5.0])
    rms.normalize(x).sum().backward()
    assert x.grad.tolist() == pytest.approx([0.0, 0.0, 1 / std, 1 / std, 0.0, 0.0])
    y = torch.tensor([-1e6, -5.1, -4.9, 0.0, 4.9, 5.1])
    expected = [10 + std * z for z in (-5.0, -5.0, -4.9, 0.0, 4.9, 5.0)]
    assert rms.denormalize(y).tolist() == pytest.approx(expected, abs=1e-5)


@every_script
@pytest.mark.parametrize(
    "lr, kl, threshold, expected",
    [
        (3e-4, 0.0321, 0.016, 2e-4),  # above twice the threshold
        (3e-4, 0.0319, 0.016, 3e-4),
        (3e-4, 0.0081, 0.016, 3e-4),
        (3e-4, 0.0079, 0.016, 4.5e-4),  # below half of it
        (1.2e-6, 1.0, 0.016, 1e-6),  # the lower bound
        (9e-3, 0.0, 0.016, 1e-2),  # the upper bound
        (3e-4, 1.0, 0.0, 3e-4),  # 0: constant
        (3e-4, 0.0, 0.0, 3e-4),
    ],
)
def test_adaptive_learning_rate(script, lr, kl, threshold, expected):
    assert script.adapt_learning_rate(lr, kl, threshold) == pytest.approx(expected)


@pytest.mark.parametrize("script", [ppo, sapg, cpo, epo, pbt], ids=lambda script: script.__name__)
def test_the_lowest_learning_rate_is_the_one_that_the_log_warns_of(script):
    lr = 3e-4
    for _ in range(100):
        lr = script.adapt_learning_rate(lr, kl=1.0, threshold=0.016)
    assert lr == MIN_LEARNING_RATE


# ---------------------------------------------------------------- off-policy data


@every_population
@pytest.mark.parametrize("ratio, count", [(0.0, 0), (0.5, 2), (0.7, 3), (1.0, 4), (1.1, 4), (2.25, 9), (5.0, 20)])
def test_leader_learns_from_ratio_times_n_columns_of_followers(script, ratio, count):
    agent_ids = torch.arange(6).repeat_interleave(4)
    columns, learners = script.sample_offpolicy_columns(agent_ids, 6, ratio, "leader-follower")
    assert len(columns) == len(set(columns.tolist())) == count  # without replacement
    assert learners.tolist() == [0] * count
    assert all(4 <= c < 24 for c in columns.tolist())  # never the leader's own


@every_population
def test_symmetric_aggregation_samples_for_everybody(script):
    agent_ids = torch.arange(3).repeat_interleave(4)
    columns, learners = script.sample_offpolicy_columns(agent_ids, 3, 1.0, "symmetric")
    assert learners.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert (agent_ids[columns] != learners).all()
    assert all(len(set(columns[learners == learner].tolist())) == 4 for learner in range(3))


@every_population
def test_sampling_is_uniform_over_all_followers_columns(script):
    torch.manual_seed(0)
    agent_ids = torch.arange(5).repeat_interleave(2)
    counts = torch.zeros(10)
    for _ in range(2000):
        counts[script.sample_offpolicy_columns(agent_ids, 5, 1.0, "leader-follower")[0]] += 1
    assert counts[:2].tolist() == [0, 0]
    assert (counts[2:] / 2000 - 2 / 8).abs().max() < 0.05  # 5 standard deviations


@every_population
def test_the_one_follower_is_drawn_uniformly_and_so_are_its_columns(script):
    torch.manual_seed(0)
    agent_ids = torch.arange(4).repeat_interleave(4)
    counts = torch.zeros(16)
    for _ in range(2000):
        columns, learners = script.sample_offpolicy_columns(agent_ids, 4, 0.5, "one-follower")
        assert len(set(columns.tolist())) == 2
        assert len(set(agent_ids[columns].tolist())) == 1
        assert learners.tolist() == [0, 0]
        counts[columns] += 1
    assert not counts[:4].any()
    assert (counts[4:] / 2000 - 1 / 3 * 2 / 4).abs().max() < 0.042  # 5 standard deviations


# ---------------------------------------------------------------- gradients that stay finite


@every_script
def test_gradients_stay_finite_for_actions_that_were_hardly_possible(script):
    """The ratio has a cap, for an infinite one has a gradient that is not a number; the cap is far above any clip."""
    made = make_minibatch(script, "--off-policy-mu" if script in (sapg, cpo) else "")
    made.mb["logprobs"] = made.mb["logprobs"] - 1000.0
    loss, _, terms = loss_of_minibatch(made)
    loss.backward()
    assert terms["policy_loss"] > 1e6
    assert all(parameter.grad.isfinite().all() for parameter in made.agent.parameters())


@every_population
def test_off_policy_coef_zero_is_finite_without_on_policy_rows(script):
    made = make_minibatch(script, "--off-policy-coef 0")
    only_off_policy = slice(made.args.num_envs, None)
    made.mb = {key: value[:, only_off_policy] for key, value in made.mb.items()}
    assert (made.mb["is_offpolicy"] == 1.0).all()
    loss, _, _ = loss_of_minibatch(made)
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in made.agent.parameters())


# ---------------------------------------------------------------- EPO: fitness


def fitness_of(*numbers):
    return torch.tensor([float(number) for number in numbers])


NOBODY = ()
EVERYBODY = range(6)
NOT_KNOWN = None


def record(fitness, begins, ends, objective):
    """A step in which episodes begin and end in some environments (indices) with these objectives."""
    begins, done = (torch.tensor([i in indices for i in range(fitness.scores.numel())]) for indices in (begins, ends))
    fitness.record(begins, {"done": done, "objective": torch.as_tensor(objective, dtype=torch.float32)})


def per_agent(fitness):
    return [NOT_KNOWN if math.isnan(x) else x for x in fitness.fitness().tolist()]


def test_fitness_is_the_mean_of_each_environments_latest_episode():
    fitness = harness.FitnessTracker(6, 3, "cpu")
    assert per_agent(fitness) == [NOT_KNOWN, NOT_KNOWN, NOT_KNOWN]
    record(fitness, EVERYBODY, (0, 1, 2), [10, 20, 30, 99, 99, 99])
    assert per_agent(fitness) == [15.0, 30.0, NOT_KNOWN]  # half of agent 1's environments have one
    record(fitness, (0, 1, 2), (1, 3, 4, 5), [99, 40, 99, 50, 7, 8])
    assert per_agent(fitness) == [25.0, 40.0, 7.5]  # the latest of environment 1 wins


def test_episodes_that_began_before_the_generation_do_not_count():
    fitness = harness.FitnessTracker(6, 3, "cpu")
    record(fitness, EVERYBODY, EVERYBODY, [1] * 6)
    fitness.restart()
    assert per_agent(fitness) == [NOT_KNOWN] * 3
    assert not fitness.episodes.any()  # of children and all others
    record(fitness, (0, 1, 2), EVERYBODY, [2] * 6)  # the other episodes were running
    assert per_agent(fitness) == [2.0, 2.0, NOT_KNOWN]
    record(fitness, EVERYBODY, (3, 4, 5), [3, 3, 3, 4, 3, 5])
    assert per_agent(fitness) == [2.0, 3.0, 4.0]
    assert fitness.episodes.tolist() == [[1, 1], [1, 1], [1, 1]]


def test_fitness_goes_on_from_its_state():
    fitness = harness.FitnessTracker(6, 3, "cpu")
    copy = harness.FitnessTracker(6, 3, "cpu")
    record(fitness, EVERYBODY, (0, 1, 2), [1, 2, 3, 4, 5, 6])
    copy.load_state_dict(fitness.state_dict())
    for each in (fitness, copy):
        record(each, NOBODY, (2, 3), [7, 7, 7, 8, 7, 7])
        assert per_agent(each) == [1.5, 7.5, NOT_KNOWN]
        assert each.episodes.tolist() == [[1, 1], [2, 1], [0, 0]]


@pytest.mark.parametrize("judged, known", [(4, NOT_KNOWN), (5, 1.0)])
def test_an_agents_fitness_is_known_from_half_of_its_environments_on(judged, known):
    fitness = harness.FitnessTracker(20, 2, "cpu")  # ten environments each
    record(fitness, range(10 + judged), range(10 + judged), [1] * 20)
    assert per_agent(fitness) == [1.0, known]


@pytest.mark.parametrize(
    "judged, episodes, at_least, expected",
    [
        ([0, 10, 10, 10], 1, 3, True),  # agent 0 is not compared
        ([0, 10, 10, 7], 1, 3, True),
        ([10, 10, 10, 6], 1, 3, False),  # 26 of 30 environments, where 27 are needed
        ([10, 10, 10, 4], 1, 2, False),  # agent 3 is not known
        ([0, 10, 10, 4], 34, 2, True),
        ([0, 10, 10, 4], 34, 3, False),
        ([0, 10, 10, 4], 33, 2, False),  # 19.8 episodes per environment, where 20 are needed
    ],
)
def test_when_agents_can_be_compared(judged, episodes, at_least, expected):
    """judged: in how many of an agent's ten environments so many episodes have finished."""
    tracker = harness.FitnessTracker(40, 4, "cpu")
    finished = [10 * k + i for k, count in enumerate(judged) for i in range(count)]
    for _ in range(episodes):
        record(tracker, range(40), finished, [1] * 40)
    assert bool(tracker.can_compare(tracker.fitness(), slice(1, None), at_least)) == expected


class SimulatedEvolution:
    """Rounds of a FitnessTracker whose agents' episodes, of random length, score their own length.

    mean_lengths (A, n): of each environment's episodes.
    """

    def __init__(self, mean_lengths, seed=0):
        self.mean_lengths = mean_lengths
        self.generator = torch.Generator().manual_seed(seed)
        self.tracker = harness.FitnessTracker(mean_lengths.numel(), len(mean_lengths), "cpu")
        self.length = torch.zeros(mean_lengths.numel())
        self.begins = torch.ones(mean_lengths.numel(), dtype=torch.bool)

    def next_fitness(self):
        """Steps until a generation may come; the agents' fitness (A,), by which they are then judged anew."""
        while not self.tracker.can_compare(self.tracker.fitness(), slice(1, None), at_least=3):
            self.length = torch.where(self.begins, 1.0, self.length + 1.0)
            drawn = torch.rand(len(self.length), generator=self.generator)
            ends = drawn < 1.0 / self.mean_lengths.flatten()
            self.tracker.record(self.begins, {"done": ends, "objective": self.length})
            self.begins = ends
        fitness = self.tracker.fitness()
        self.tracker.restart()
        return fitness


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3])
def test_luck_alone_does_not_tell_a_child_from_the_other_followers(share):
    """All followers are equally good, and a share of the environments never ends its episode.

    Where a child alone began anew, its first episodes to finish would be its short ones. Where few environments of
    some follower were enough, they would be those with short episodes.
    """
    relative = []
    for seed in range(60):
        mean_lengths = torch.full((8, 16), 10.0)
        endless = torch.rand(8, 16, generator=torch.Generator().manual_seed(seed)) < share
        mean_lengths[endless] = math.inf
        evolution = SimulatedEvolution(mean_lengths, seed)
        child = 1 + evolution.next_fitness()[1:].nan_to_num(math.inf).argmin()
        fitness = evolution.next_fitness()
        if fitness[child].isfinite():
            relative.append(fitness[child] / fitness[1:].nanmean())
    assert len(relative) > 50
    relative = torch.stack(relative)
    assert (relative.mean() - 1.0).abs() < 3.0 * relative.std() / math.sqrt(len(relative))


def test_a_follower_with_long_episodes_is_waited_for():
    """Where episodes end by failure it is the best one: left out of generations, it would never be a parent."""
    mean_lengths = torch.full((8, 16), 10.0)
    mean_lengths[5] = 40.0
    evolution = SimulatedEvolution(mean_lengths)
    for _ in range(30):
        assert evolution.next_fitness().isfinite()[5]


def test_lineage_counts_from_the_followers_mean():
    stats = epo.harness.LineageStats(epo.LEADER)
    generation, *others = stats.scalars().values()
    assert generation == 0
    assert all(map(math.isnan, others))
    before = torch.tensor([100.0, 1.0, 2.0, 3.0, 6.0])  # followers' mean 3
    text = stats.record([(1, 3, 4), (2, 4, 3)], before)
    numbers = [1, 1, 3, 4, 2, 4, 3, 100, 1, 2, 3, 6]  # generation, children each with its parents, fitness
    assert list(map(int, re.findall(r"\d+", text))) == numbers
    assert sorted(stats.pending) == [1, 2]
    stats.complete(before + torch.tensor([0.0, 12.0, 10.0, 10.0, 8.0]))  # 13, 12, 13, 14: mean 13
    assert stats.completed == [(0.0, -2.0, 1.5), (-1.0, -1.0, 1.5)]
    assert not stats.pending
    scalars = stats.scalars()
    assert scalars["evolution/child_success"] == 0.5  # the second did no better than whom it replaced
    assert math.isnan(scalars["evolution/heritability"])
    assert stats.generation == 1


def test_lineage_leaves_out_whose_fitness_is_not_known():
    stats = epo.harness.LineageStats(epo.LEADER)
    stats.record([(1, 3, 4), (2, 4, 3)], torch.tensor([100.0, 1.0, math.nan, 3.0, 8.0]))  # followers' mean 4
    stats.complete(torch.tensor([100.0, 5.0, math.nan, 1.0, 3.0]))  # mean 3
    assert stats.completed == [(2.0, -3.0, 1.5)]
    assert not stats.pending


# ---------------------------------------------------------------- the papers' tables


def gpu_args(script, env_id):
    """What a machine with a GPU runs without further flags."""
    return script.Args(**tuned(script)[env_id])


@every_script
@pytest.mark.parametrize("task", ["Regrasping", "Throw", "Reorientation", "TwoArmsRegrasping"])
def test_allegro_kuka_has_the_papers_hyperparameters(script, task):
    args = gpu_args(script, f"AllegroKuka{task}")
    assert (args.gamma, args.gae_lambda, args.learning_rate, args.kl_threshold) == (0.99, 0.95, 1e-4, 0.016)
    assert (args.max_grad_norm, args.ent_coef, args.clip_coef, args.vf_coef) == (1.0, 0.0, 0.1, 4.0)
    assert (args.num_steps, args.update_epochs, args.num_minibatches, args.num_envs) == (16, 2, 4, 24_576)
    assert (args.critic_n_step, args.clip_vloss, args.separate_critic) == (0, True, False)
    assert args.lstm
    assert args.lstm_size == 768
    assert tuple(args.hidden_sizes) == (768, 512, 256)
    assert args.bounds_coef == (1e-5 if script is epo else 1e-4)  # EPO B.2; SAPG Table 2
    if script is not ppo:
        assert (args.num_agents, args.latent_dim) == (64 if script is epo else 6, 32)
        assert args.max_ent_coef == {"Reorientation": 0.0025, "TwoArmsRegrasping": 0.001}.get(task, 0.0)
        assert (args.off_policy_ratio, args.off_policy_coef) == (1.0, 1.0)
        assert not args.off_policy_mu  # as released, unlike the papers' text
        assert args.aggregation == ("one-follower" if script is cpo else "leader-follower")
    if script is epo:
        assert (args.ga_threshold, args.crossover, args.num_elites) == (0.3, "average", None)  # None: K - 2


@pytest.mark.parametrize(
    "task, row",
    [
        ("ShadowHand", (0.001, 0.2, 0.01, 0.005, 0.2, 5e-4, 0.016, 5, 8)),
        ("AllegroHand", (0.0005, 0.1, 0.001, 0.0, 0.2, 5e-4, 0.016, 5, 8)),
        ("AllegroKukaRegrasping", (0.001, 0.2, 0.0, 0.0, 0.1, 1e-4, 0.016, 2, 16)),
        ("AllegroKukaThrow", (0.001, 0.1, 0.0, 0.0, 0.1, 1e-4, 0.016, 2, 16)),
        ("AllegroKukaReorientation", (0.001, 0.2, 0.0, 0.005, 0.1, 1e-4, 0.016, 2, 16)),
        ("FrankaCubeStack", (0.0005, 0.1, 0.0, 0.005, 0.2, 5e-4, 0.008, 8, 16)),
        ("Humanoid", (0.001, 0.2, 0.0, 0.002, 0.2, 5e-4, 0.008, 5, 8)),
        ("Anymal", (0.001, 0.2, 0.0, 0.002, 0.2, 3e-4, 0.008, 5, 8)),
    ],
)
def test_cpos_tables_3_to_6(task, row):
    args = gpu_args(cpo, task)
    own = (args.awac_coef, args.awac_temperature, args.adversarial_coef, 2 * args.max_ent_coef, args.clip_coef)
    assert (*own, args.learning_rate, args.kl_threshold, args.update_epochs, args.num_steps) == row
    assert gpu_args(ppo, task).ent_coef == (0.0025 if task == "FrankaCubeStack" else 0.0)


@pytest.mark.parametrize("env_id", ["Anymal", "Humanoid"])
def test_epos_locomotion_is_its_own_table(env_id):
    """EPO B.2; SAPG's and CPO's locomotion has another."""
    args = gpu_args(epo, env_id)
    assert (args.learning_rate, args.kl_threshold, args.clip_coef) == (1e-4, 0.016, 0.1)
    assert (args.num_steps, args.update_epochs, args.num_minibatches, args.bounds_coef) == (16, 2, 4, 1e-5)
    assert tuple(args.hidden_sizes) == (512, 256, 128)
    assert not args.lstm
    assert (args.ga_threshold, args.num_envs, args.gamma, args.gae_lambda) == (0.5, 24_576, 0.99, 0.95)
    for script in (sapg, cpo):
        other = gpu_args(script, env_id)
        assert (other.kl_threshold, other.clip_coef, other.num_steps, other.update_epochs) == (0.008, 0.2, 8, 5)
        assert other.hidden_sizes == (768, 512, 256)
        assert other.bounds_coef == 1e-4


@every_script
def test_parkour_has_epos_locomotion_with_every_script(script):
    """EPO B.2; of SAPG and CPO nothing is published."""
    args = gpu_args(script, "A1Parkour")
    assert (args.learning_rate, args.kl_threshold, args.clip_coef, args.bounds_coef) == (1e-4, 0.016, 0.1, 1e-5)
    assert (args.num_envs, args.num_steps, args.update_epochs, args.num_minibatches) == (24_576, 16, 2, 4)
    assert tuple(args.hidden_sizes) == (512, 256, 128)
    assert not args.lstm
    assert args.init_std == 0.0625  # ours
    if script is epo:
        assert args.ga_threshold == 0.5
