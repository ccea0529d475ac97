"""What a run should have learned from, number by number: for test_equations and test_gradients.

`learning_data` takes what the environments showed and what the script's own network made of it. All else (advantages,
targets, importance weights, normalisation) is computed here in plain loops, one row at a time. A row is one step of
one environment, as one agent learns from it:

    owner, learner         who acted there and who learns from it; off_policy: these are two
    behaviour              log-probability of the action when it was taken
    mu                     pi_learner,old / pi_owner,old of the action
    advantage              normalised over all rows
    target, old_value      of the critic, in the normalised units that it learns in
    old_mean, old_logstd   of the learner's policy before the update
  and, in a minibatch, of the network that learns (these carry the gradient):
    logprob, mean, logstd, value
"""

from types import SimpleNamespace

import torch


def owner(e, args):
    """The agent that acts in environment e: equal blocks in the order of the agents, the leader (0) first."""
    return e // (args.num_envs // getattr(args, "num_agents", 1))


def network(script, args, minibatch):
    """The script's network as it was at a recorded minibatch."""
    agent = script.Agent(minibatch.obs.shape[-1], minibatch.action.shape[-1], args)
    agent.load_state_dict({**minibatch.params, **minibatch.buffers})
    return agent


def evaluate(agent, window, pairs):
    """The network over a window for pairs (environment, learner): everything (T, pairs, ...).

    Before the window stands the memory of whoever acted; V(s_t+1) follows the memory after s_t.
    """
    columns, learners = torch.tensor(pairs).T
    ids = (learners[None],) if hasattr(agent, "latents") else ()
    out = SimpleNamespace()
    _, out.logprob, policy, out.value, out.states = agent.get_action_and_value(
        window.obs[:, columns], *ids, window.begins[:, columns], window.state[:, columns], window.action[:, columns]
    )
    out.mean, out.logstd = policy.mean, policy.stddev.log()
    no_beginning = torch.zeros(1, len(pairs), dtype=torch.bool)
    out.next_value = torch.cat([
        agent.get_value(window.successor[t : t + 1, columns], *ids, no_beginning, out.states[t : t + 1])
        for t in range(len(window.obs))
    ])  # fmt: skip
    return out


def windows(script, run, args):
    """Iteration by iteration: what the environments showed, (T, N, ...), and the network that acted."""
    state = torch.zeros(1, args.num_envs, 2 * args.lstm_size if args.lstm else 0)
    begins = torch.ones(1, args.num_envs, dtype=torch.bool)
    count = args.update_epochs * args.num_minibatches
    for k in range(args.num_iterations):
        steps = run.steps[k * args.num_steps :][: args.num_steps]
        window = SimpleNamespace(**{key: torch.stack([getattr(s, key) for s in steps]) for key in vars(steps[0])})
        window.done = window.terminated | window.truncated
        window.begins = torch.cat([begins, window.done[:-1]])
        window.successor = torch.where(window.done[..., None], window.final_obs, window.next_obs)
        window.state, window.minibatches = state, run.minibatches[k * count :][:count]
        window.agent = network(script, args, window.minibatches[0])
        window.own = [(e, owner(e, args)) for e in range(args.num_envs)]
        window.sampled = list(zip(*[x.tolist() for x in run.sampled[k]])) if run.sampled else []
        with torch.no_grad():
            state = evaluate(window.agent, window, window.own).states[-1:]
        begins = window.done[-1:]
        yield window


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


def learning_data(script, run, args):
    """For each iteration its window, with `rows`: (environment, learner) -> [row of step 0, 1, ...]."""
    seen = []  # by the value statistics, which begin as one sample of mean 0 and variance 1
    mean, std = 0.0, (1.0 + 1e-5) ** 0.5
    for window in windows(script, run, args):
        pairs = window.own + window.sampled
        with torch.no_grad():
            old = evaluate(window.agent, window, pairs)
        window.rows = {}
        for p, (e, learner) in enumerate(pairs):
            rewards = [args.reward_scale * r for r in window.reward[:, e].tolist()]
            dones, terminated = window.done[:, e].tolist(), window.terminated[:, e].tolist()
            values = [mean + std * v for v in old.value[:, p].tolist()]
            next_values = [0.0 if end else mean + std * v for v, end in zip(old.next_value[:, p].tolist(), terminated)]
            off_policy = learner != owner(e, args)
            if off_policy:  # SAPG Eq. 6, EPO Eq. 8: one step
                targets = [r + args.gamma * v for r, v in zip(rewards, next_values)]
                advantages = [target - value for target, value in zip(targets, values)]
            else:
                advantages = gae(rewards, values, next_values, dones, args.gamma, args.gae_lambda)
                targets = [advantage + value for advantage, value in zip(advantages, values)]
                if args.critic_n_step:
                    targets = n_step_targets(rewards, next_values, dones, args.gamma, args.critic_n_step)
                seen += values + targets
            window.rows[e, learner] = [
                SimpleNamespace(
                    owner=owner(e, args), learner=learner, off_policy=off_policy,
                    advantage=advantages[t], target=targets[t], old_value=values[t],
                    behaviour=old.logprob[t, e], mu=(old.logprob[t, p] - old.logprob[t, e]).exp(),
                    old_mean=old.mean[t, p], old_logstd=old.logstd[t, p],
                ) for t in range(args.num_steps)
            ]  # fmt: skip
        mean = sum(seen) / (len(seen) + 1)
        std = ((1.0 + sum(x**2 for x in seen)) / (len(seen) + 1) - mean**2 + 1e-5) ** 0.5
        rows = [row for column in window.rows.values() for row in column]
        centre = sum(row.advantage for row in rows) / len(rows)
        spread = (sum((row.advantage - centre) ** 2 for row in rows) / (len(rows) - 1)) ** 0.5
        for row in rows:
            row.advantage = (row.advantage - centre) / (spread + 1e-8)
            row.target, row.old_value = (row.target - mean) / std, (row.old_value - mean) / std
        yield window


def minibatch_rows(agent, window, minibatch):
    """The rows of a recorded minibatch, with what `agent` makes of them now."""
    environments = (minibatch.action[0][:, None] == window.action[0]).all(-1).float().argmax(1)  # nobody acts alike
    pairs = list(zip(environments.tolist(), minibatch.agent_ids[0].tolist()))
    new, rows = evaluate(agent, window, pairs), []
    for p, pair in enumerate(pairs):
        for t, row in enumerate(window.rows[pair]):
            now = dict(logprob=new.logprob[t, p], mean=new.mean[t, p], logstd=new.logstd[t, p], value=new.value[t, p])
            rows.append(SimpleNamespace(**vars(row), **now))
    return rows


def assert_gradients(script, run, args, objective, parameters="", data=None):
    """Every recorded gradient is that of objective(rows of the minibatch); returns all rows, to see what was met.

    parameters: only those whose names begin so.
    """
    met = []
    for window in data or learning_data(script, run, args):
        for minibatch in window.minibatches:
            agent = network(script, args, minibatch)
            rows = minibatch_rows(agent, window, minibatch)
            objective(rows).backward()
            for name, parameter in agent.named_parameters():
                if name.startswith(parameters):
                    expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                    assert torch.allclose(minibatch.grads[name], expected, rtol=1e-6, atol=1e-9), name
            met += rows
    return met
