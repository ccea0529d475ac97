"""What a run should have learned from, number by number: the reference for whole iterations.

`learning_data` takes what the environments showed and what the script's own network made of it. All else (advantages,
targets, importance weights, normalisation) is computed here in plain loops, one row at a time: with the statistics of
the rollout, which the network acted by, whereas targets and old values are normalised by those that include the rollout
(and so are observations in the first iteration's update). Rows are those of minibatches.py. They also have:

    owner            who acted
    raw_value        of the state, in units of reward
    gae              of on-policy rows, the advantage before it is normalised, in the same units

The runs have one minibatch, so that its order is of no account, and the leader learns from all followers' columns.
"""

import math
from types import SimpleNamespace

import torch

from tests.algorithms.minibatches import FLAGS, assert_close
from tests.algorithms.runs import record_states

ALL_OTHERS = "--off-policy-ratio 3 --aggregation"  # of four agents
POPULATION_FLAGS = f"{ALL_OTHERS} leader-follower"


def gaussian_kl(mean_i, logstd_i, mean_j, logstd_j):
    """KL(i || j), summed over the last dimension."""
    difference = (mean_i - mean_j) ** 2
    return (logstd_j - logstd_i + ((2 * logstd_i).exp() + difference) / (2 * (2 * logstd_j).exp()) - 0.5).sum(-1)


def play(script, flags=""):
    """A small recorded run with its states."""
    population = "" if script.__name__ == "ppo" else POPULATION_FLAGS
    return record_states(script, f"{FLAGS[script.__name__]} {population} {flags}")


def owner(e, args):
    """The agent that acts in environment e: equal blocks in the order of the agents, the leader (0) first."""
    return e // (args.num_envs // getattr(args, "num_agents", 1))


def network(run, state):
    """The script's network in a state of the run."""
    agent = run.script.Agent(run.steps[0].obs.shape[-1], run.steps[0].action.shape[-1], run.args)
    agent.load_state_dict(state["agent"])
    return agent


def evaluate(agent, window, pairs):
    """The network over a window for pairs (environment, learner): everything (T, pairs, ...).

    Before the window stands the memory of whoever acted.
    """
    columns, learners = torch.tensor(pairs).T
    ids = (learners[None],) if hasattr(agent, "latents") else ()
    out = SimpleNamespace()
    _, out.logprob, policy, out.value, out.states = agent.get_action_and_value(
        window.obs[:, columns], *ids, window.begins[:, columns], window.state[:, columns], window.action[:, columns]
    )
    out.mean = policy.mean
    out.logstd = policy.stddev.log()
    return out


def evaluate_successors(agent, window, pairs, states):
    """V(s_t+1), s_t+1 seen with the memory after s_t: states (T, pairs, 2H)."""
    columns, learners = torch.tensor(pairs).T
    ids = (learners[None],) if hasattr(agent, "latents") else ()
    same_episode = torch.zeros(1, len(pairs), dtype=torch.bool)
    return torch.cat(
        [
            agent.get_value(window.successor[t : t + 1, columns], *ids, same_episode, states[t : t + 1])
            for t in range(len(states))
        ]
    )


def moments(rows):
    """Mean and variance of rows (M, ...), and of one sample of mean 0 and variance 1, which every run begins with."""
    mean = rows.sum(0) / (len(rows) + 1)
    return mean, (1.0 + rows.square().sum(0)) / (len(rows) + 1) - mean**2


def windows(run):
    """Iteration by iteration: what the environments showed, (T, N, ...), and the network that acted."""
    args = run.args
    state = torch.zeros(1, args.num_envs, 2 * args.lstm_size if args.lstm else 0)
    begins = torch.ones(1, args.num_envs, dtype=torch.bool)
    num_agents = getattr(args, "num_agents", 1)
    for k in range(args.num_iterations):
        steps = run.steps[k * args.num_steps :][: args.num_steps]
        window = SimpleNamespace(**{key: torch.stack([getattr(s, key) for s in steps]) for key in vars(steps[0])})
        window.done = window.terminated | window.truncated
        window.begins = torch.cat([begins, window.done[:-1]])
        window.successor = torch.where(window.done[..., None], window.final_obs, window.next_obs)
        window.state = state
        window.before = run.states[k]
        window.after = run.states[k + 1]
        window.agent = network(run, window.before)
        for child, i, j in run.lineages.get(k, ()):  # EPO: before the rollout, here without mutation
            window.agent.latents.data[child] = (window.agent.latents.data[i] + window.agent.latents.data[j]) / 2
        environments = range(args.num_envs)
        window.pairs = {"on-policy": [(e, owner(e, args)) for e in environments]}
        learners = range(num_agents) if getattr(args, "aggregation", "") == "symmetric" else [0]
        if not getattr(args, "off_policy_ratio", 0.0):
            learners = []
        window.pairs["off-policy"] = [(e, i) for i in learners for e in environments if owner(e, args) != i]
        followers = range(1, num_agents) if getattr(args, "awac_coef", 0.0) else []
        window.pairs["awac"] = [(e, i) for i in followers for e in environments if owner(e, args) == 0]
        with torch.no_grad():
            state = evaluate(window.agent, window, window.pairs["on-policy"]).states[-1:]
        begins = window.done[-1:]
        yield window


def adversarial_rewards(window, e, i, args):
    """CPO Eq. 12: lambda_adv log D(i | s, a) for each step of follower i in environment e; nothing for the leader."""
    if i == 0 or not getattr(args, "adversarial_coef", 0.0):
        return [0.0] * args.num_steps
    obs = ((window.obs[:, e] - window.agent.obs_rms.mean) / window.agent.obs_rms.std).clamp(-5.0, 5.0)
    likes = discriminator_scores(window, obs, window.action[:, e]).exp()
    return [args.adversarial_coef * (like[i] / like.sum()).log().item() for like in likes]


def discriminator_scores(window, obs, action):
    """Before the soft-max, by the discriminator as it was before the window: layers with an ELU between them."""
    weights = window.before["discriminator"]
    layers = sorted({int(name.split(".")[1]) for name in weights})
    x = torch.cat([obs, action], -1)
    for layer in layers:
        x = x @ weights[f"mlp.{layer}.weight"].T + weights[f"mlp.{layer}.bias"]
        if layer != layers[-1]:
            x = torch.where(x > 0, x, x.exp() - 1)
    return x


def gae(rewards, values, next_values, dones, gamma, gae_lambda):
    """A_t = sum over k of (gamma lambda)^k delta_t+k, to the end of the episode or of the window."""
    advantages = [0.0] * len(rewards)
    for t in range(len(rewards)):
        for k in range(t, len(rewards)):
            delta = rewards[k] + gamma * next_values[k] - values[k]
            advantages[t] += (gamma * gae_lambda) ** (k - t) * delta
            if dones[k]:
                break
    return advantages


def offpolicy_advantages(rewards, values, next_values, dones, ratios, gamma, off_policy_lambda):
    """Sum over k of gamma^k (product of lambda min(1, ratio) of actions t+1 ... t+k) delta_t+k.

    The sum ends with the episode or the window. lambda = 0 is one step: SAPG Eq. 6, EPO Eq. 8.
    """
    advantages = [0.0] * len(rewards)
    for t in range(len(rewards)):
        weight = 1.0
        for k in range(t, len(rewards)):
            if k > t:
                weight *= gamma * off_policy_lambda * min(1.0, ratios[k])
            advantages[t] += weight * (rewards[k] + gamma * next_values[k] - values[k])
            if dones[k]:
                break
    return advantages


def n_step_targets(rewards, next_values, dones, gamma, n):
    """SAPG Eq. 5, EPO Eq. 6: r_t + ... + gamma^(n-1) r_t+n-1 + gamma^n V(s_t+n); to the episode's or window's end."""
    targets = [0.0] * len(rewards)
    for t in range(len(rewards)):
        for k in range(t, len(rewards)):
            targets[t] += gamma ** (k - t) * rewards[k]
            if dones[k] or k == t + n - 1 or k == len(rewards) - 1:
                targets[t] += gamma ** (k - t + 1) * next_values[k]
                break
    return targets


def clip(x):
    """Normalised values and targets are within +-5."""
    return max(-5.0, min(x, 5.0))


def learning_data(run):
    """For each iteration its window, with `rows`: (kind, environment, learner) -> [row of step 0, 1, ...]."""
    args = run.args
    seen = []  # by the value statistics, which begin as one sample of mean 0 and variance 1
    mean = 0.0
    std = (1.0 + 1e-5) ** 0.5
    for window in windows(run):
        window.rows = {}
        with torch.no_grad():
            acted = evaluate(window.agent, window, window.pairs["on-policy"])
        for kind, pairs in window.pairs.items():
            if not pairs:
                continue
            with torch.no_grad():
                old = evaluate(window.agent, window, pairs)
                successor_values = evaluate_successors(window.agent, window, pairs, old.states)
            for p, (e, learner) in enumerate(pairs):
                rewards = [args.reward_scale * r for r in window.reward[:, e].tolist()]
                dones = window.done[:, e].tolist()
                ends = window.terminated[:, e].tolist()
                values = [mean + std * clip(v) for v in old.value[:, p].tolist()]
                next_values = [mean + std * clip(v) for v in successor_values[:, p].tolist()]
                next_values = [0.0 if end else v for v, end in zip(next_values, ends)]
                rewards = [sum(r) for r in zip(rewards, adversarial_rewards(window, e, learner, args))]
                if kind == "on-policy":
                    advantages = gae(rewards, values, next_values, dones, args.gamma, args.gae_lambda)
                    targets = [advantage + value for advantage, value in zip(advantages, values)]
                    if args.critic_n_step:
                        targets = n_step_targets(rewards, next_values, dones, args.gamma, args.critic_n_step)
                    seen += values + targets
                else:
                    ratios = (old.logprob[:, p] - acted.logprob[:, e]).exp().tolist()
                    advantages = offpolicy_advantages(
                        rewards, values, next_values, dones, ratios, args.gamma, args.off_policy_lambda
                    )
                    targets = [advantage + value for advantage, value in zip(advantages, values)]
                window.rows[kind, e, learner] = [
                    SimpleNamespace(
                        kind=kind,
                        owner=owner(e, args),
                        learner=learner,
                        behaviour=acted.logprob[t, e],
                        mu=(old.logprob[t, p] - acted.logprob[t, e]).exp(),
                        advantage=advantages[t],
                        gae=advantages[t],
                        raw_value=values[t],
                        target=targets[t],
                        old_value=old.value[t, p].item(),
                        old_mean=old.mean[t, p],
                        old_logstd=old.logstd[t, p],
                    )
                    for t in range(args.num_steps)
                ]
        mean = sum(seen) / (len(seen) + 1)
        variance = (1.0 + sum(x**2 for x in seen)) / (len(seen) + 1) - mean**2
        std = (variance + 1e-5) ** 0.5
        window.value_moments = {"mean": mean, "var": variance, "count": len(seen) + 1}
        rows = [row for column in window.rows.values() for row in column]
        centre = sum(row.advantage for row in rows) / len(rows)
        spread = (sum((row.advantage - centre) ** 2 for row in rows) / (len(rows) - 1)) ** 0.5
        for row in rows:
            row.advantage = (row.advantage - centre) / (spread + 1e-8)
            row.target = clip((row.target - mean) / std)
        yield window


def rows_now(agent, window, args):
    """All rows of a window, with what `agent` makes of them now."""
    rows = []
    for kind, pairs in window.pairs.items():
        if not pairs:
            continue
        now = evaluate(agent, window, pairs)
        leader = now
        if getattr(args, "reverse_kl_coef", 0.0):
            with torch.no_grad():
                leader = evaluate(agent, window, [(e, 0) for e, _ in pairs])
        for p, (e, learner) in enumerate(pairs):
            for t, row in enumerate(window.rows[kind, e, learner]):
                row = SimpleNamespace(**vars(row), leader_logprob=leader.logprob[t, p])
                row.logprob = now.logprob[t, p]
                row.mean = now.mean[t, p]
                row.logstd = now.logstd[t, p]
                row.value = now.value[t, p]
                rows.append(row)
    return rows


def updates(run, loss):
    """Iteration by iteration: its window, with what the update does to the network by the reference.

    loss: function of the rows. The window gets
        steps     for each gradient step its rows, with the network's outputs just before it
        norms     of each step's whole gradient
        kls       mean KL(old policy, policy) over each step's rows but those to imitate
        learned   the network after the update, with its normalisers; optimizer, lr
    """
    args = run.args
    for k, window in enumerate(learning_data(run)):
        agent = network(run, window.before)
        optimizer = torch.optim.Adam(agent.parameters())
        optimizer.load_state_dict(window.before["optimizer"])
        (group,) = optimizer.param_groups
        agent.load_state_dict(window.agent.state_dict())
        for child, i, j in run.lineages.get(k, ()):
            adam = optimizer.state[agent.latents]
            adam["exp_avg"][child] = 0.0
            adam["exp_avg_sq"][child] = (adam["exp_avg_sq"][i] + adam["exp_avg_sq"][j]) / 2
        seen = torch.stack([step.obs for step in run.steps[: (k + 1) * args.num_steps]]).flatten(0, 1)
        if k == 0:
            set_statistics(agent.obs_rms, seen)
        window.steps = []
        window.norms = []
        window.kls = []
        for epoch in range(args.update_epochs):
            rows = rows_now(agent, window, args)
            optimizer.zero_grad()
            loss(rows).backward()
            window.steps.append(rows)
            window.norms.append(torch.nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm).item())
            optimizer.step()
            agent.actor_logstd.data.clamp_(max=math.log(2.0))  # docs/differences.md
            kls = [gaussian_kl(r.old_mean, r.old_logstd, r.mean, r.logstd) for r in rows if r.kind != "awac"]
            window.kls.append((sum(kls) / len(kls)).item())
            if epoch:  # the first KL is measured before any step
                if window.kls[-1] > 2 * args.kl_threshold:
                    group["lr"] = max(group["lr"] / 1.5, 1e-6)
                elif window.kls[-1] < args.kl_threshold / 2:
                    group["lr"] = min(group["lr"] * 1.5, 1e-2)
        set_statistics(agent.obs_rms, seen)
        for name, value in window.value_moments.items():
            getattr(agent.value_rms, name).fill_(value)
        window.learned = agent
        window.optimizer = optimizer
        yield window


def set_statistics(rms, seen):
    """The statistics of all observations seen (M, D)."""
    mean, var = moments(seen)
    rms.mean.copy_(mean)
    rms.var.copy_(var)
    rms.count.fill_(len(seen) + 1)


def assert_updates(run, loss):
    """Every update left what the reference says: network, normalisers, Adam's moments, learning rate.

    Returns all rows, to see what was met.
    """
    met = []
    for window in updates(run, loss):
        expected = window.learned.state_dict()
        found = window.after["agent"]
        assert found.keys() == expected.keys()
        for name in found:
            assert_close(found[name], expected[name], name)
        (group,) = window.after["optimizer"]["param_groups"]
        assert abs(group["lr"] - window.optimizer.param_groups[0]["lr"]) < 1e-12
        for found, expected in zip(
            window.after["optimizer"]["state"].values(), window.optimizer.state_dict()["state"].values()
        ):
            for name in expected:
                assert_close(found[name].double(), expected[name].double(), name)  # the step has a type of its own
        met += [row for rows in window.steps for row in rows]
    return met
