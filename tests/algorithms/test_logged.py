"""The numbers of the log, recomputed from what a recorded run did, as docs/algorithms.md defines them.

Small runs in double precision; rows: reference_loss.py. Elsewhere: the instruments on cases known by hand
(test_math.py), which keys there are (tests/scripts/test_scripts.py).
"""

import math
import statistics

import numpy as np
import pytest
import torch

import cpo
import epo
import ppo
import sapg
from tests.algorithms.minibatches import loss_of_minibatch, make_minibatch, rows_of
from tests.algorithms.reference_loss import (
    discriminator_scores,
    evaluate,
    gaussian_kl,
    learning_data,
    owner,
    play,
    updates,
    windows,
)
from tests.algorithms.runs import assert_logged, record
from tests.algorithms.test_equations import LEADER, clip, clipped_surrogate, critic_error, entropy
from tests.algorithms.test_equations import fitness_and_lineage, mean
from tests.algorithms.test_gradients import loss_of
from tests.conftest import TINY_POPULATION, every_population, every_script

pytestmark = pytest.mark.usefixtures("float64")


# ---------------------------------------------------------------- losses


def clip_centre(row, args):
    return row.mu if getattr(args, "off_policy_mu", False) else 1.0


def policy_loss(row, args):
    advantage = row.advantage
    if row.kind == "on-policy" and row.learner != LEADER:
        advantage = advantage - getattr(args, "reverse_kl_coef", 0.0) * (row.logprob - row.leader_logprob)
    return -clipped_surrogate(row, args.clip_coef, clip_centre(row, args), advantage)


def value_loss(row, args):
    return 0.5 * critic_error(row, args.clip_coef if args.clip_vloss else math.inf)


def bounds_loss(row, args):
    return sum((x - clip(x, -1.1, 1.1)) ** 2 for x in row.mean)


def clipped(row, args):
    ratio = (row.logprob - row.behaviour).exp()
    centre = clip_centre(row, args)
    return not centre * (1 - args.clip_coef) <= ratio <= centre * (1 + args.clip_coef)


OF_A_ROW = {
    "policy_loss": policy_loss,
    "value_loss": value_loss,
    "entropy": lambda row, _: entropy(row),
    "bounds_loss": bounds_loss,
    "clipfrac": clipped,
}
LOSS_FLAGS = {
    ppo: "--no-clip-vloss",
    sapg: "--off-policy-mu --off-policy-ratio 3 --off-policy-coef 0.3",
    cpo: "--reverse-kl-coef 0.2 --awac-coef 0.5 --adversarial-coef 0.3",
    epo: "--lstm",
}


@every_script
def test_losses_are_means_over_rows(script):
    """Before coefficients, on- and off-policy rows alike."""
    made = make_minibatch(script, LOSS_FLAGS[script])
    with torch.no_grad():
        rows = [row for row in rows_of(made) if row.kind != "awac"]
        _, _, terms = loss_of_minibatch(made)
    for name, of_a_row in OF_A_ROW.items():
        assert terms[name].item() == pytest.approx(float(mean(of_a_row(row, made.args) for row in rows))), name
    assert 0 < terms["clipfrac"] < 1
    assert terms["bounds_loss"] > 0


def test_awac_loss_is_in_units_of_the_populations_rows():
    """Summed over the followers' rows to imitate, divided by the weight of the others; before --awac-coef."""
    made = make_minibatch(cpo, "--awac-coef 0.5 --off-policy-coef 0.3")
    with torch.no_grad():
        rows = rows_of(made)
        _, _, terms = loss_of_minibatch(made)
    imitated = [row for row in rows if row.kind == "awac"]
    weights = [min(math.exp(row.advantage / made.args.awac_temperature), 100.0) for row in imitated]
    total = sum(weight * row.logprob for weight, row in zip(weights, imitated))
    units = sum({"on-policy": 1.0, "off-policy": 0.3, "awac": 0.0}[row.kind] for row in rows)
    assert terms["awac_loss"].item() == pytest.approx(-total.item() / units)


@every_script
def test_losses_in_the_log_are_means_over_gradient_steps(script):
    """But for the KL divergence, which is that of the last epoch, and the explained variance.

    That is 1 - Var(G - V) / Var(G) with G the GAE return, whatever the critic's target. The norm is of the whole
    gradient before its limit.
    """
    run = play(script, f"{LOSS_FLAGS[script]} --reward-scale 0.1 --critic-n-step 3 --max-grad-norm 0.01")
    for log, window in zip(run.logs, updates(run, loss_of(run.args))):
        steps = [[row for row in rows if row.kind != "awac"] for rows in window.steps]
        expected = {
            f"losses/{name}": mean(mean(of_a_row(row, run.args) for row in rows) for rows in steps)
            for name, of_a_row in OF_A_ROW.items()
        }
        expected["losses/approx_kl"] = window.kls[-1]
        expected["losses/grad_norm"] = mean(window.norms)
        on_policy = [row for (kind, _, _), rows in window.rows.items() if kind == "on-policy" for row in rows]
        returns = [row.gae + row.raw_value for row in on_policy]
        unexplained = statistics.variance(row.gae for row in on_policy)
        expected["losses/explained_variance"] = 1 - unexplained / statistics.variance(returns)
        assert min(window.norms) > 0.01
        assert_logged(log, expected)


# ---------------------------------------------------------------- who acted?


def test_discriminator_on_a_window_it_has_not_learned_from():
    """Cross-entropy and accuracy of D(y | s, a) as it was before, y who acted, s as the network saw it."""
    run = play(cpo, "--adversarial-coef 0.3 --total-timesteps 384")
    for log, window in zip(run.logs, windows(run)):
        log_likes = []
        hits = []
        obs = ((window.obs - window.agent.obs_rms.mean) / window.agent.obs_rms.std).clamp(-5.0, 5.0)
        scores = discriminator_scores(window, obs, window.action)
        for e, acted in window.pairs["on-policy"]:
            for score in scores[:, e]:
                log_likes.append((score[acted].exp() / score.exp().sum()).log())
                hits.append(score.argmax() == acted)
        assert_logged(log, {"losses/discriminator_loss": -mean(log_likes)})
        assert_logged(log, {"population/discriminator_accuracy": mean(hits)})


# ---------------------------------------------------------------- population, before the first gradient step


DIAGNOSED = {sapg: "", cpo: "--adversarial-coef 0.3", epo: "--lstm --ga-threshold 0 --mutation-std 0"}


@every_population
def test_importance_ratios_before_the_first_gradient_step(script):
    """w = pi_leader / pi_behaviour, as the network was that acted: its statistics do not include the rollout yet."""
    run = play(script, f"{DIAGNOSED[script]} --diagnostics-interval 1")
    n = run.args.num_envs // run.args.num_agents
    eps = run.args.clip_coef
    for log, window in zip(run.logs, learning_data(run)):
        with torch.no_grad():
            acted = evaluate(window.agent, window, window.pairs["on-policy"]).logprob
            leader = evaluate(window.agent, window, [(e, LEADER) for e, _ in window.pairs["on-policy"]]).logprob
        log_w = (leader - acted).clamp(-20.0, 20.0)
        w = log_w.exp()
        deviations = [(1 - block).abs().mean() for block in w[:, n:].split(n, 1)]  # of the followers
        used = []
        for (kind, _, _), rows in window.rows.items():
            for row in rows if kind == "off-policy" else ():
                used.append(row.mu < 1 + eps if row.advantage > 0 else row.mu > 1 - eps)
        assert 0 < mean(used) < 1
        assert_logged(
            log,
            {
                "population/is_ratio_deviation": mean(deviations),
                "population/is_log_ratio_median": log_w[:, n:].abs().median(),
                "population/ess_rate": w.sum() ** 2 / w.square().sum() / w.numel(),
                "population/off_policy_used": mean(used),
            },
        )


@every_population
def test_distances_between_agents_before_the_first_gradient_step(script):
    """KL(i || j) on the states that i met in the window's first step, with the memory it had; the latents' spread."""
    run = play(script, f"{DIAGNOSED[script]} --diagnostics-interval 1")
    agents = range(run.args.num_agents)
    for log, window in zip(run.logs, windows(run)):
        kls = {}
        for i in agents:
            met = [e for e, acted in window.pairs["on-policy"] if acted == i]
            with torch.no_grad():
                policies = [evaluate(window.agent, window, [(e, j) for e in met]) for j in agents]
            for j in agents:
                arguments = (x[0] for policy in (policies[i], policies[j]) for x in (policy.mean, policy.logstd))
                kls[i, j] = gaussian_kl(*arguments).mean().item()
        to_leader = [kls[i, LEADER] for i in agents[1:]]
        nearest = [min((kls[i, j], j) for j in agents if j != i)[1] for i in agents[1:]]
        latents = window.agent.latents.T.tolist()
        assert_logged(
            log,
            {
                "population/kl_to_leader": mean(to_leader),
                "population/leader_is_nearest": mean(j == LEADER for j in nearest),
                "population/latent_spread": mean(statistics.pstdev(coordinate) for coordinate in latents),
            },
        )


# ---------------------------------------------------------------- at the end of the iteration


@every_script
def test_noise_rate_and_reward_at_the_end_of_the_iteration(script):
    """The reward is the environment's own, whatever the learner's scale."""
    run = play(script, "--reward-scale 0.1 --kl-threshold 0.003 --total-timesteps 384")
    for log, window in zip(run.logs, windows(run)):
        (group,) = window.after["optimizer"]["param_groups"]
        lr = group["lr"]
        std = [mean(logstd.exp()) for logstd in window.after["agent"]["actor_logstd"]]
        assert lr != run.args.learning_rate
        assert_logged(
            log,
            {
                "charts/action_std": std[LEADER],
                "charts/action_std_max": max(std),
                "charts/learning_rate": lr,
                "charts/reward_per_step": mean(window.reward.flatten()),
            },
        )


@every_population
def test_latent_distance_is_the_followers_mean_to_the_leader(script):
    run = play(script, "--ga-threshold 1e9" if script is epo else "")  # which would change them in between
    for log, state in zip(run.logs, run.states[1:]):
        leader, *followers = state["agent"]["latents"].tolist()
        assert_logged(log, {"population/latent_distance": mean(math.dist(leader, follower) for follower in followers)})


# ---------------------------------------------------------------- episodes


def finished_episodes(run):
    """Iteration by iteration: (agent, (return, length, objective)) of every whole episode that ended."""
    args = run.args
    returns = [0.0] * args.num_envs
    lengths = [0] * args.num_envs
    for k in range(args.num_iterations):
        finished = []
        for step in run.steps[k * args.num_steps :][: args.num_steps]:
            for e in range(args.num_envs):
                returns[e] = returns[e] + step.reward[e].item()
                lengths[e] = lengths[e] + 1
                if step.counts[e]:
                    finished.append((owner(e, args), (returns[e], lengths[e], step.objective[e].item())))
                if step.terminated[e] or step.truncated[e]:
                    returns[e] = 0.0
                    lengths[e] = 0
        yield finished


def means(episodes):
    """Mean return, length and objective; NaN of none."""
    return [mean(column) for column in zip(*episodes)] or [math.nan] * 3


@every_script
def test_episodes_are_those_of_all_agents_in_the_iteration(script):
    run = play(script, "--num-steps 4 --total-timesteps 256 --reward-scale 0.1")  # 4 iterations
    total = 0
    for log, finished in zip(run.logs, finished_episodes(run)):
        total += len(finished)
        of_all = means([episode for _, episode in finished])
        assert_logged(log, dict(zip(["charts/episodic_return", "charts/episodic_length", "charts/objective"], of_all)))
        assert_logged(log, {"charts/episodes": len(finished)})
    assert total > 16


@every_script
def test_episodes_of_each_agent_stand_until_its_next_ones(script):
    """Leader, best, median and worst of the agents that have finished one."""
    run = play(script, "--num-steps 1 --update-epochs 1 --total-timesteps 192")  # 12 iterations of one step
    agents = range(getattr(run.args, "num_agents", 1))
    latest = {i: means([]) for i in agents}
    met = set()
    for log, finished in zip(run.logs, finished_episodes(run)):
        for i in {agent for agent, _ in finished}:
            latest[i] = means([episode for agent, episode in finished if agent == i])
        known = [objective for _, _, objective in latest.values() if not math.isnan(objective)]
        met.add(len(known) / len(agents))
        expected = {"charts/leader_return": latest[LEADER][0], "charts/leader_objective": latest[LEADER][2]}
        expected["charts/best_agent_objective"] = max(known, default=-math.inf)
        if script is not ppo:
            expected["population/objective_worst"] = min(known, default=math.nan)
            expected["population/objective_median"] = statistics.median(known) if known else math.nan
        assert_logged(log, expected)
    assert {0.0, 1.0} <= met


# ---------------------------------------------------------------- evolution


EVOLUTION = f"{TINY_POPULATION} --num-agents 6 --num-elites 2 --ga-threshold 0.4 --update-epochs 1"
EVOLUTION += " --total-timesteps 2592"  # 12 iterations


def test_evolution_both_sides_of_eq_3_and_what_came_of_it():
    run = record(epo, EVOLUTION)
    met = set()
    leads = False  # whether the leader was ever fitter than all followers, which counts for nothing
    generation = 0
    for log, (fitness, judged_share, _, lineage) in zip(run.logs, fitness_and_lineage(run)):
        followers = fitness[1:]
        known = judged_share >= 0.9 and not any(map(math.isnan, followers))
        met.add((known, bool(lineage)))
        gap = max(followers) - min(followers) if known else math.nan
        scale = max(abs(statistics.median(followers)), 0.01) if known else math.nan  # Drift's floor
        assert_logged(log, {"evolution/fitness_gap": gap, "evolution/threshold": 0.4 * scale})
        leads |= known and fitness[0] > max(followers)
        generation += bool(lineage)
        assert_logged(log, {"evolution/fired": bool(lineage), "evolution/replaced": len(lineage)})
        assert_logged(log, {"evolution/generation": generation})
        assert len(lineage) in (0, 3)
    assert met == {(False, False), (True, False), (True, True)}
    assert leads


def test_evolution_what_becomes_of_the_children():
    """Share fitter than whom they replaced, and correlation with their parents; each when next judged."""
    run = record(epo, f"{EVOLUTION} --ga-threshold 0.2")
    pending = {}  # child -> (whom it replaced, parents)
    judged = []  # (child, whom it replaced, parents)
    for log, (fitness, judged_share, _, lineage) in zip(run.logs, fitness_and_lineage(run)):
        relative = [x - mean(fitness[1:]) for x in fitness]
        if judged_share >= 0.9 and not any(map(math.isnan, fitness[1:])):
            judged += [(relative[child], *before) for child, before in pending.items()]
            pending = {child: (relative[child], mean([relative[i], relative[j]])) for child, i, j in lineage}
        success = mean(child > replaced for child, replaced, _ in judged) if judged else math.nan
        assert_logged(log, {"evolution/child_success": success})
        children, _, parents = np.array(judged).reshape(-1, 3).T
        if len(judged) > 2 and children.std() * parents.std() > 0:
            assert_logged(log, {"evolution/heritability": np.corrcoef(children, parents)[0, 1]})
    assert len(judged) > 5
    assert 0 < success < 1
