"""PBT: who copies whom, what a copy is, and agents that each learn as ppo.py's does, with their own hyperparameters."""

import copy
import math
import random
import sys

import pytest
import torch

import epo
import pbt
import ppo
from tests.algorithms.runs import record, train
from tests.conftest import TINY, Drift, the_run, written
from tests.scripts.conftest import assert_same_state, checkpoint, same

AGENTS = f"{TINY} --num-agents 4 --pbt-start 1 --pbt-interval 1"
LONG = f"{AGENTS} --total-timesteps 2592 --mutation-rate 0.5"  # 12 iterations of 216
MOAT = "--no-cuda --env-id Moat --num-envs 24 --num-steps 32 --total-timesteps 7680 --hidden-sizes 16 --lstm-size 8"


@pytest.fixture
def copies(monkeypatch):
    """Of each call of exploit_and_explore: fitness, who copied whom, and all agents before and after it."""
    exploit = pbt.exploit_and_explore
    calls = []

    def state(agent, optimizer):
        groups = [{**x, "params": [optimizer.state[p] for p in x["params"]]} for x in optimizer.param_groups]
        return copy.deepcopy([(network.state_dict(), group) for network, group in zip(agent, groups)])

    def recorded(agent, optimizer, *args):
        before = state(agent, optimizer)
        pairs = exploit(agent, optimizer, *args)
        calls.append((args[0], pairs, before, state(agent, optimizer)))
        return pairs

    monkeypatch.setattr(pbt, "exploit_and_explore", recorded)
    return calls


def learner(saved, k):
    """Network with normalisers, and Adam's moments of agent k of pbt.py, or of ppo.py's only one."""
    agent = saved["learner"]["agent"]
    optimizer = saved["learner"]["optimizer"]
    if saved["script"] == "pbt":
        agent = {name.split(".", 1)[1]: x for name, x in agent.items() if name.split(".")[0] == str(k)}
    return agent, [optimizer["state"][i] for i in optimizer["param_groups"][k]["params"]]


@pytest.mark.parametrize(
    "fitness, worst, best",
    [
        ([3.0, 1.0, 4.0, 1.5, 9.0, 2.0, 6.0, 5.0], {1, 3, 5}, {4, 6, 7}),
        ([2.0], set(), set()),
        ([0.0, 5.0], {0}, {1}),
        ([-1.0, -3.0, -2.0], {1}, {0}),
        ([4.0, 1.0, 2.0, 3.0], {1, 2}, {0, 3}),
    ],
    ids=[8, 1, 2, 3, 4],
)
def test_each_of_the_worst_30_percent_rounded_up_copies_one_of_the_best(fitness, worst, best):
    networks = [torch.nn.Linear(1, 1) for _ in fitness]
    optimizer = torch.optim.Adam([{"params": x.parameters(), **dict.fromkeys(pbt.MUTATED, 0.5)} for x in networks])
    trials = [pbt.exploit_and_explore(networks, optimizer, torch.tensor(fitness), 0.0) for _ in range(60)]
    assert all(sorted(worse for worse, _ in pairs) == sorted(worst) for pairs in trials)
    assert {better for pairs in trials for _, better in pairs} == best


def test_who_is_not_judged_neither_copies_nor_is_copied():
    networks = [torch.nn.Linear(1, 1) for _ in range(5)]
    optimizer = torch.optim.Adam([{"params": x.parameters(), **dict.fromkeys(pbt.MUTATED, 0.5)} for x in networks])
    fitness = torch.tensor([3.0, math.nan, 1.0, 2.0, math.nan])
    assert pbt.exploit_and_explore(networks, optimizer, fitness, 0.0) == [(2, 0)]


@pytest.mark.parametrize(
    "name, value, up, down",
    [
        ("lr", 3e-4, 3.75e-4, 2.4e-4),
        ("kl_threshold", 0.016, 0.02, 0.0128),
        ("clip_coef", 0.2, 0.25, 0.16),
        ("ent_coef", -0.01, -0.0125, -0.008),
        ("ent_coef", 0.0, 0.0, 0.0),
        ("clip_coef", 0.25, 0.3, 0.2),
        ("clip_coef", 0.012, 0.015, 0.01),  # DexPBT: between 0.01 and 0.3
        ("gamma", 0.99, 0.988, 0.991666667),
        ("gae_lambda", 0.95, 0.94, 0.958333333),
        ("gae_lambda", 0.1, 0.0, 0.25),
    ],
)
def test_a_mutation_multiplies_or_divides(name, value, up, down, monkeypatch):
    """By a factor of 1.1 to 1.5, here 1.25; the distances of gamma and lambda from 1 by 1.1 to 1.2, here 1.2."""
    factors = {(1.1, 1.5): 1.25, (1.1, 1.2): 1.2}
    monkeypatch.setattr(random, "uniform", lambda low, high: factors[low, high])
    monkeypatch.setattr(random, "random", lambda: 0.25)
    assert pbt.mutate(name, value, 0.25) == value
    assert {round(pbt.mutate(name, value, 0.26), 9) for _ in range(60)} == {round(up, 9), round(down, 9)}


@pytest.mark.parametrize("rate, different", [(0, 1), (1, 4)])
def test_agent_0_begins_with_the_flags_and_the_others_with_mutations(rate, different):
    saved = train(pbt, f"{AGENTS} --pbt-start 9999 --kl-threshold 0.3 --ent-coef 0.2 --mutation-rate {rate}")
    groups = saved["learner"]["optimizer"]["param_groups"]
    given = dict(kl_threshold=0.3, ent_coef=0.2, gamma=0.99, gae_lambda=0.95, clip_coef=0.05)
    assert {name: groups[0][name] for name in given} == given
    assert all(len({group[name] for group in groups}) == different for name in given)


def test_a_copy_is_a_copy_and_then_goes_its_own_way(copies):
    """Weights, normalisers, Adam's moments, learning rate; of the others nothing changes."""
    saved = train(pbt, f"{LONG} --mutation-rate 0")
    for _, pairs, before, after in copies:
        sources = {**{k: k for k in range(4)}, **dict(pairs)}
        assert not same(*(before[k] for k in pairs[0]))
        assert same(after, [before[k] for k in sources.values()])
    (network, moments), (other, others) = (learner(saved, k) for k in pairs[0])
    assert not any(same(network[name], other[name]) for name in network if "count" not in name)
    assert len(copies) > 2
    assert not any(same(x["exp_avg"], y["exp_avg"]) for x, y in zip(moments, others))


def test_a_copy_does_not_take_over_the_memory_of_the_network_that_it_replaces(copies, monkeypatch):
    """At the first step after a copy, its LSTM states are 0, and those of the others are not."""
    act = pbt.Agent.get_action_and_value
    checked = []

    def recorded(agent, obs, agent_ids, dones, lstm_state, action=None):
        if len(copies) > len(checked):
            remembers = (lstm_state[0] != 0.0).any(1).view(4, -1).all(1)
            copied = {worse for worse, _ in copies[-1][1]}
            assert remembers.tolist() == [k not in copied for k in range(4)]
            checked.append(copied)
        return act(agent, obs, agent_ids, dones, lstm_state, action)

    monkeypatch.setattr(pbt.Agent, "get_action_and_value", recorded)
    train(pbt, f"{LONG} --lstm")
    assert len(checked) > 2


def test_fitness_is_of_the_latest_episodes_that_began_after_the_last_copies(copies):
    steps = record(pbt, f"{LONG} --num-steps 3 --num-envs 44").steps
    last = 0
    began = [0] * 44
    latest = [math.nan] * 44
    for t, step in enumerate(steps, 1):
        for e in range(44):
            if step.counts[e] and began[e] >= last:
                latest[e] = step.objective[e].item()
            if step.terminated[e] or step.truncated[e]:
                began[e] = t
        known = torch.tensor(latest).view(4, 11)
        judged = known.isfinite().sum(1)
        if t % 3 == 0 and t < len(steps) and judged.min() >= 6 and judged.sum() >= 40:  # half of 11, 90 % of 44
            torch.testing.assert_close(copies.pop(0)[0], known.nanmean(1))
            last = t
            latest = [math.nan] * 44
    assert not copies
    assert last


class OneInSixNeverEnds(Drift):
    max_episode_steps = sys.maxsize

    def advance(self, action):
        reward, terminated, _ = super().advance(action)
        ends = (self.episode_step >= 7) & (torch.arange(self.num_envs) % 6 > 0)
        return reward, torch.zeros_like(terminated), ends


@pytest.mark.parametrize(
    "script, flags, key",
    [
        (pbt, "--pbt-start 1 --pbt-interval 1", "pbt/judged_share_min"),
        (epo, "--ga-threshold 0 --ga-warmup 0 --latent-dim 5", "evolution/judged_share_min"),
    ],
    ids=["pbt", "epo"],
)
def test_episodes_that_never_end_stop_neither_copies_nor_generations(script, flags, key):
    """One of six environments never ends its episode. After 168 steps 20 have finished per environment on average."""
    train(script, f"{TINY} --env-id {__name__}:OneInSixNeverEnds --num-agents 4 {flags} --total-timesteps 10368")
    log = written(the_run())
    if script is pbt:
        rounds = len(log.Tensors("pbt/copies/text_summary"))
    else:
        rounds = log.Scalars("evolution/generation")[-1].value
    assert 2 <= rounds <= 3
    assert max(event.value for event in log.Scalars(key)) == pytest.approx(5 / 6)


@pytest.mark.parametrize(
    "flags, expected",
    [
        ("", [432, 864, 1296, 1728, 2160]),
        ("--pbt-start 700 --pbt-interval 500", [864, 1512, 2160]),
        ("--pbt-interval 1500", [1512]),
        ("--pbt-start 648 --pbt-interval 648", [648, 1296, 1944]),
    ],
)
def test_the_schedule_counts_environment_steps(flags, expected):
    """Copies come before the rollout of an iteration. After two iterations every environment has an episode."""
    train(pbt, f"{LONG.replace('--pbt-start 1 --pbt-interval 1', '')} {flags}")
    copies = written(the_run()).Tensors("pbt/copies/text_summary")
    assert [event.step - 216 for event in copies] == expected


def test_the_log_has_the_lowest_and_the_highest_hyperparameter():
    saved = train(pbt, LONG)
    log = written(the_run())
    groups = saved["learner"]["optimizer"]["param_groups"]
    assert len({group["gamma"] for group in groups}) > 1
    for name in pbt.MUTATED:
        values = [group[name] for group in groups]
        assert log.Scalars(f"pbt/{name}_min")[-1].value == pytest.approx(min(values)), name
        assert log.Scalars(f"pbt/{name}_max")[-1].value == pytest.approx(max(values)), name


def test_a_longer_run_starts_to_copy_a_little_later():
    """The schedule has no jump, and at most that of a long run."""
    starts = []
    intervals = []
    for steps in (999_000_000, 1_000_000_000, 100_000_000_000):
        args = pbt.Args(env_id="Moat", total_timesteps=steps)
        pbt.check_args(args)
        starts.append(args.pbt_start)
        intervals.append(args.pbt_interval)
    assert starts == [9_990_000, 10_000_000, 100_000_000]
    assert intervals == [9_990_000, 10_000_000, 20_000_000]


def test_a_longer_resumed_run_keeps_the_schedule():
    train(pbt, f"{TINY} --num-agents 4")
    pbt.main(f"--no-cuda --resume {the_run()} --total-timesteps 1296".split())
    assert (checkpoint(the_run())["args"]["pbt_start"], checkpoint(the_run())["args"]["pbt_interval"]) == (6, 6)


@pytest.mark.parametrize(
    "flags, name, value",
    [
        ("--learning-rate 0.01", "lr", 0.01),
        ("--kl-threshold 0.001", "kl_threshold", 0.001),
        ("--ent-coef 0.3", "ent_coef", 0.3),
        ("--gamma 0.8", "gamma", 0.8),
        ("--critic-n-step 3 --gamma 0.8", "gamma", 0.8),
        ("--gae-lambda 0.5", "gae_lambda", 0.5),
        ("--clip-coef 0.3", "clip_coef", 0.3),
    ],
)
def test_an_agent_learns_from_its_own_data_with_its_own_hyperparameters(flags, name, value, monkeypatch):
    """As if all had them, bit by bit, whatever the others do."""
    monkeypatch.setattr(pbt, "mutate", lambda key, x, rate: value if rate and key == name else x)
    plain = f"{AGENTS} --pbt-start 9999 {flags.rpartition('--')[0]} --mutation-rate"
    mixed = train(pbt, f"{plain} 1")
    alone = train(pbt, f"{plain} 0")
    all_of_them = train(pbt, f"{plain} 0 {flags}")
    assert same(learner(mixed, 0), learner(alone, 0))
    assert not same(learner(alone, 1), learner(all_of_them, 1))
    assert all(same(learner(mixed, k), learner(all_of_them, k)) for k in (1, 2, 3))


def test_every_agents_gradient_is_limited_and_its_noise_bounded(gradients):
    saved = train(pbt, f"{AGENTS} --ent-coef 9 --mutation-rate 0 --max-grad-norm 0.01 --init-std 1.9 --kl-threshold 0")
    norms = [gradient.norm().item() for gradient in gradients]
    assert norms == pytest.approx([0.01] * 4 * 2 * 2 * 3, rel=1e-3)  # agents, epochs, minibatches, iterations
    assert [learner(saved, k)[0]["actor_logstd"].max().item() for k in range(4)] == [pytest.approx(math.log(2.0))] * 4


@pytest.mark.parametrize("flags", [MOAT, f"{MOAT} --lstm --gamma 0.998", f"{TINY} --separate-critic --critic-n-step 3"])
def test_one_agent_is_ppo_bit_by_bit(flags):
    flags = f"{flags} --reward-scale 0.5"
    logs = []
    one = train(pbt, f"{flags} --num-agents 1")
    logs.append(written(the_run()))
    the_run().rename("first")
    other = train(ppo, flags)
    logs.append(written(the_run()))
    assert same(learner(one, 0), learner(other, 0))
    assert one["iteration"] > 2
    for name in ("env", "episodes", "obs", "lstm_state"):
        assert same(one["rollout"][0][name], other["rollout"][0][name]), name
    for key in logs[1].Tags()["scalars"]:
        if not key.startswith("perf/") and key != "charts/SPS":
            values = [[event.value for event in log.Scalars(key)] for log in logs]
            assert values[0] == pytest.approx(values[1], rel=1e-5), key


def test_resumed_between_copies_is_uninterrupted():
    whole = train(pbt, f"{LONG} --num-steps 3 --total-timesteps 1440")
    copies = [event.step for event in written(the_run()).Tensors("pbt/copies/text_summary")]
    assert copies[0] < 1008
    assert copies[-1] > 1008
    train(pbt, f"{LONG} --num-steps 3 --total-timesteps 1008")
    pbt.main(f"--no-cuda --resume {the_run()} --total-timesteps 1440".split())
    assert_same_state(checkpoint(the_run()), whole)
