"""What a run should have learned from, number by number: for test_equations and test_gradients.

`learning_data` takes what the environments showed and what the script's own network made of it. All else (advantages,
targets, importance weights, normalisation) is computed here in plain loops, one row at a time: with the statistics of
the rollout, which the network acted by, whereas targets and old values are normalised by those that include the rollout
(and so are a minibatch's observations in the first iteration). A row is one step of one environment as one agent learns
from it:

    kind                     "on-policy"; "off-policy": what somebody else did; "awac": what the leader did, to imitate
    owner, learner           who acted, who learns
    behaviour                log-probability of the action when it was taken
    mu                       pi_learner,old / pi_owner,old of the action
    advantage                normalised over all rows
    target                   of the critic, normalised
    old_value                the critic's output before the update
    old_mean, old_logstd     the learner's policy before the update
  and, in a minibatch, what the network says now (the first four carry the gradient):
    logprob, mean, logstd, value
    leader_logprob           of the same action by the leader, where CPO Eq. 25 wants it
"""

from types import SimpleNamespace

import torch

from tests.conftest import DRIFT

SMALL = (
    f"--no-cuda --env-id {DRIFT} --num-envs 16 --num-steps 6 --total-timesteps 192 --hidden-sizes 8 8 --lstm-size 4"
    " --num-minibatches 2 --update-epochs 2 --learning-rate 0.05 --clip-coef 0.05"  # 2 iterations
)
FLAGS = {"ppo": SMALL, "sapg": f"{SMALL} --num-agents 4 --latent-dim 3"}
FLAGS["epo"] = FLAGS["sapg"]
FLAGS["cpo"] = f"{FLAGS['sapg']} --discriminator-sizes 8"


def gaussian_kl(mean_i, logstd_i, mean_j, logstd_j):
    """KL(i || j), summed over the last dimension."""
    difference = (mean_i - mean_j) ** 2
    return (logstd_j - logstd_i + ((2 * logstd_i).exp() + difference) / (2 * (2 * logstd_j).exp()) - 0.5).sum(-1)


def play(train, script, flags="", frozen=None):
    """A small recorded run, which remembers its script. frozen: a monkeypatch; with it the normalisers stand still."""
    if frozen:
        frozen.setattr(script.RunningMeanStd, "update", lambda *_: None)
    run = train(script, f"{FLAGS[script.__name__]} {flags}")
    run.script, run.frozen = script, bool(frozen)
    return run


def owner(e, args):
    """The agent that acts in environment e: equal blocks in the order of the agents, the leader (0) first."""
    return e // (args.num_envs // getattr(args, "num_agents", 1))


def network(run, minibatch, rollout=False):
    """The script's network as it was at a recorded minibatch; or, of an iteration's first, as it acted before."""
    agent = run.script.Agent(minibatch.obs.shape[-1], minibatch.action.shape[-1], run.args)
    agent.load_state_dict({**minibatch.params, **(minibatch.rollout_buffers if rollout else minibatch.buffers)})
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
    out.mean, out.logstd = policy.mean, policy.stddev.log()
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


def windows(run):
    """Iteration by iteration: what the environments showed, (T, N, ...), and the network that acted."""
    args, count = run.args, run.args.update_epochs * run.args.num_minibatches
    state = torch.zeros(1, args.num_envs, 2 * args.lstm_size if args.lstm else 0)
    begins = torch.ones(1, args.num_envs, dtype=torch.bool)
    for k in range(args.num_iterations):
        steps = run.steps[k * args.num_steps :][: args.num_steps]
        window = SimpleNamespace(**{key: torch.stack([getattr(s, key) for s in steps]) for key in vars(steps[0])})
        window.done = window.terminated | window.truncated
        window.begins = torch.cat([begins, window.done[:-1]])
        window.successor = torch.where(window.done[..., None], window.final_obs, window.next_obs)
        window.state, window.minibatches = state, run.minibatches[k * count :][:count]
        window.agent = network(run, window.minibatches[0], rollout=True)
        window.pairs = {"on-policy": [(e, owner(e, args)) for e in range(args.num_envs)]}
        window.pairs["off-policy"] = list(zip(*[x.tolist() for x in run.sampled[k]])) if run.sampled else []
        followers = range(1, args.num_agents) if getattr(args, "awac_coef", 0.0) else []
        window.pairs["awac"] = [(e, i) for i in followers for e in range(args.num_envs) if owner(e, args) == 0]
        window.discriminator = run.discriminators[k] if run.discriminators else None
        with torch.no_grad():
            state = evaluate(window.agent, window, window.pairs["on-policy"]).states[-1:]
        begins = window.done[-1:]
        yield window


def adversarial_rewards(window, e, i, args):
    """CPO Eq. 12: lambda_adv log D(i | s, a) for each step of follower i in environment e; nothing for the leader."""
    if window.discriminator is None or i == 0:
        return [0.0] * args.num_steps
    obs = ((window.obs[:, e] - window.agent.obs_rms.mean) / window.agent.obs_rms.std).clamp(-5.0, 5.0)
    with torch.no_grad():
        likes = window.discriminator.mlp(torch.cat([obs, window.action[:, e]], -1)).exp()
    return [args.adversarial_coef * (like[i] / like.sum()).log().item() for like in likes]


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
    """A_t = sum over k of gamma^k (product of lambda min(1, ratio) of actions t+1 ... t+k) delta_t+k.

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
    mean, std = 0.0, (1.0 + 1e-5) ** 0.5
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
                dones, ends = window.done[:, e].tolist(), window.terminated[:, e].tolist()
                values = [mean + std * clip(v) for v in old.value[:, p].tolist()]
                next_values = [mean + std * clip(v) for v in successor_values[:, p].tolist()]
                next_values = [0.0 if end else v for v, end in zip(next_values, ends)]
                if kind == "on-policy":
                    rewards = [sum(r) for r in zip(rewards, adversarial_rewards(window, e, learner, args))]
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
                        target=targets[t],
                        old_value=old.value[t, p].item(),
                        old_mean=old.mean[t, p],
                        old_logstd=old.logstd[t, p],
                    )
                    for t in range(args.num_steps)
                ]
        if not run.frozen:
            mean = sum(seen) / (len(seen) + 1)
            std = ((1.0 + sum(x**2 for x in seen)) / (len(seen) + 1) - mean**2 + 1e-5) ** 0.5
        rows = [row for column in window.rows.values() for row in column]
        centre = sum(row.advantage for row in rows) / len(rows)
        spread = (sum((row.advantage - centre) ** 2 for row in rows) / (len(rows) - 1)) ** 0.5
        for row in rows:
            row.advantage = (row.advantage - centre) / (spread + 1e-8)
            row.target = clip((row.target - mean) / std)
        yield window


def minibatch_rows(agent, window, minibatch, args):
    """The rows of a recorded minibatch, with what `agent` makes of them now."""
    rows = []
    for part in (minibatch, minibatch.awac):
        if part is None:
            continue
        environments = (part.action[0][:, None] == window.action[0]).all(-1).float().argmax(1)  # nobody acts alike
        pairs = list(zip(environments.tolist(), part.agent_ids[0].tolist()))
        now = leader = evaluate(agent, window, pairs)
        if getattr(args, "reverse_kl_coef", 0.0):
            with torch.no_grad():
                leader = evaluate(agent, window, [(e, 0) for e, _ in pairs])
        keys = ("logprob", "mean", "logstd", "value")
        says = {key: getattr(now, key).transpose(0, 1).flatten(0, 1).unbind() for key in keys}
        for p, (e, learner) in enumerate(pairs):
            kind = "on-policy" if learner == owner(e, args) else "off-policy" if part is minibatch else "awac"
            for t, row in enumerate(window.rows[kind, e, learner]):
                row = SimpleNamespace(**vars(row), leader_logprob=leader.logprob[t, p])
                for key in keys:
                    setattr(row, key, says[key][p * args.num_steps + t])
                rows.append(row)
    return rows


def assert_gradients(run, objective, parameters="", agents=None, first_only=False):
    """Every recorded gradient is that of objective(rows of the minibatch). Returns all rows, to see what was met.

    parameters: only those whose names begin so. agents: only what belongs to these alone, latent and log-std.
    first_only: only the first minibatch of each iteration.
    """
    met = []
    for window in learning_data(run):
        for minibatch in window.minibatches[: 1 if first_only else None]:
            agent = network(run, minibatch)
            rows = minibatch_rows(agent, window, minibatch, run.args)
            objective(rows).backward()
            for name, parameter in agent.named_parameters():
                found = minibatch.grads[name]
                expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                if agents and name in ("latents", "actor_logstd"):
                    assert_close(found[agents], expected[agents], name)
                elif not agents and name.startswith(parameters):
                    assert_close(found, expected, name)
            met += rows
    return met


def assert_close(found, expected, name):
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-9), name
