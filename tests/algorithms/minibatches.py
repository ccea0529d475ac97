"""Minibatches that a test makes, and the gradient of minibatch_loss on them.

Every field that minibatch_loss reads is drawn at random, around what the network says now. A row is one step of one
column. It has the minibatch's numbers:

    kind                     "on-policy"; "off-policy": what somebody else did; "awac": what the leader did, to imitate
    learner                  who learns from it
    behaviour                log-probability of the action when it was taken
    mu                       pi_learner,old / pi_owner,old of the action
    advantage, target        normalised; the target is the critic's
    old_value                the critic's output before the update
    old_mean, old_logstd     the learner's policy before the update
  and what the network says now (the first four carry the gradient):
    logprob, mean, logstd, value
    leader_logprob           of the same action by the leader, where CPO Eq. 25 wants it
"""

from types import SimpleNamespace

import torch

import cpo
import ppo
from tests.conftest import DRIFT, parse

SMALL = (
    f"--no-cuda --env-id {DRIFT} --num-envs 16 --num-steps 6 --total-timesteps 192 --hidden-sizes 8 8 --lstm-size 4"
    " --num-minibatches 1 --update-epochs 2 --learning-rate 0.05 --clip-coef 0.05"  # 2 iterations
)
FLAGS = {"ppo": SMALL, "sapg": f"{SMALL} --num-agents 4 --latent-dim 3"}
FLAGS["epo"] = FLAGS["sapg"]
FLAGS["cpo"] = f"{FLAGS['sapg']} --discriminator-sizes 8"
INPUTS = ("obs", "agent_ids", "dones", "lstm_state", "actions")  # of Agent.get_action_and_value


def make_minibatch(script, flags="", same_policy=False):
    """What minibatch_loss takes: args, agent, mb, awac_mb (of cpo.py) and ent_coefs.

    The columns of mb are those of an iteration of one minibatch: each agent's own, then those that it learns from
    others. same_policy: whether the policy is the one that acted, so that all ratios of on-policy rows are 1.
    """
    torch.manual_seed(0)
    args = parse(script, f"{FLAGS[script.__name__]} {flags}")
    num_agents = getattr(args, "num_agents", 1)
    n = args.num_envs // num_agents
    agent = script.Agent(3, 2, args)
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
        agent.actor.weight *= 8.0  # some action means leave +-1.1
        agent.obs_rms.mean.uniform_(-0.5, 0.5)
        agent.obs_rms.var.uniform_(0.5, 2.0)
    num_learners = num_agents if getattr(args, "aggregation", "") == "symmetric" else 1
    num_others = round(getattr(args, "off_policy_ratio", 0.0) * n)  # columns of others for each learner
    own = torch.arange(num_agents).repeat_interleave(n)
    off_policy = torch.arange(num_learners).repeat_interleave(num_others)
    mb = make_columns(args, agent, torch.cat([own, off_policy]))
    if script is not ppo:
        mb["is_offpolicy"] = torch.zeros_like(mb["logprobs"])
        mb["is_offpolicy"][:, len(own) :] = 1.0
        mb["mu"] = torch.ones_like(mb["logprobs"])
        if args.off_policy_mu:
            mb["mu"][:, len(own) :] = (0.3 * torch.randn(args.num_steps, len(off_policy))).exp()
        mb["logprobs"] = mb["logprobs"] - mb["mu"].log()  # ratios are around mu
    if same_policy:
        with torch.no_grad():
            mb["logprobs"] = evaluate(agent, mb)[1]
    imitators = torch.arange(1, num_agents).repeat_interleave(n if getattr(args, "awac_coef", 0.0) else 0)
    awac_mb = make_columns(args, agent, imitators)
    ent_coefs = args.ent_coef + torch.linspace(0.0, getattr(args, "max_ent_coef", 0.0), num_agents)
    return SimpleNamespace(script=script, args=args, agent=agent, mb=mb, awac_mb=awac_mb, ent_coefs=ent_coefs)


def make_columns(args, agent, learners):
    """Columns (M,) of random numbers, for these learners."""
    T = args.num_steps
    M = len(learners)
    columns = {
        "obs": torch.randn(T, M, 3),
        "dones": torch.rand(T, M) < 0.2,
        "lstm_state": torch.randn(1, M, agent.state_size),
        "actions": torch.randn(T, M, 2),
        "advantages": 1.5 * torch.randn(T, M),
        "returns": torch.randn(T, M),
        "logstds": 0.2 * torch.randn(1, M, 2),
    }
    if hasattr(agent, "latents"):
        columns["agent_ids"] = learners[None]
    with torch.no_grad():
        _, logprob, policy, value, _ = evaluate(agent, columns)
    columns["logprobs"] = logprob + 0.1 * torch.randn(T, M)
    columns["means"] = policy.mean + 0.1 * torch.randn(T, M, 2)
    columns["values"] = value + 0.1 * torch.randn(T, M)
    return columns


def evaluate(agent, columns):
    """The network's outputs for columns of a minibatch."""
    return agent.get_action_and_value(*(columns[key] for key in INPUTS if key in columns))


def loss_of_minibatch(made):
    """minibatch_loss of what make_minibatch returned: loss, KL divergence, terms of the log."""
    inputs = [made.agent, made.mb]
    if made.script is cpo:
        inputs.append(made.awac_mb)
    if made.script is not ppo:
        inputs.append(made.ent_coefs)
    return made.script.minibatch_loss(*inputs, made.args)


def rows_of(made):
    """The rows of mb and of awac_mb."""
    rows = []
    for columns in (made.mb, made.awac_mb):
        if not columns["obs"].shape[1]:
            continue
        _, logprob, policy, value, _ = evaluate(made.agent, columns)
        leader_logprob = logprob
        if "agent_ids" in columns:
            with torch.no_grad():
                as_leader = {**columns, "agent_ids": torch.zeros_like(columns["agent_ids"])}
                leader_logprob = evaluate(made.agent, as_leader)[1]
        for t in range(logprob.shape[0]):
            for m in range(logprob.shape[1]):
                kind = "off-policy" if "is_offpolicy" in columns and columns["is_offpolicy"][t, m] else "on-policy"
                rows.append(
                    SimpleNamespace(
                        kind=kind if columns is made.mb else "awac",
                        learner=columns["agent_ids"][0, m].item() if "agent_ids" in columns else 0,
                        behaviour=columns["logprobs"][t, m],
                        mu=columns["mu"][t, m] if "mu" in columns else torch.tensor(1.0),
                        advantage=columns["advantages"][t, m].item(),
                        target=columns["returns"][t, m].item(),
                        old_value=columns["values"][t, m].item(),
                        old_mean=columns["means"][t, m],
                        old_logstd=columns["logstds"][0, m],
                        logprob=logprob[t, m],
                        mean=policy.mean[t, m],
                        logstd=policy.stddev[t, m].log(),
                        value=value[t, m],
                        leader_logprob=leader_logprob[t, m],
                    )
                )
    return rows


def assert_gradients(made, objective, parameters="", agents=None):
    """The gradient of minibatch_loss is that of objective(rows). Returns the rows, to see what was met.

    parameters: only those whose names begin so. agents: only what belongs to these alone, latent and log-std.
    """
    rows = rows_of(made)
    named = dict(made.agent.named_parameters())
    found = gradients(loss_of_minibatch(made)[0], named)
    expected = gradients(objective(rows), named)
    for name in named:
        if agents and name in ("latents", "actor_logstd"):
            assert_close(found[name][agents], expected[name][agents], name)
        elif not agents and name.startswith(parameters):
            assert_close(found[name], expected[name], name)
    return rows


def gradients(loss, named):
    """name -> gradient of the loss; 0 where it does not depend on the parameter."""
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(named.items(), found)}


def assert_close(found, expected, name):
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-9), name
