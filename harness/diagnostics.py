"""How far apart the agents of a population are, what the leader can use of the others' data, and EPO's lineage."""

import math

import numpy as np
import torch
from torch.distributions import kl_divergence

from harness import distributed
from harness.environments import OBJECTIVE

MAX_LOG_RATIO = 20.0  # as in the scripts, which define their own so that each is whole; a test compares them
MAX_SHOWN = 9  # agents in the KL matrix
MAX_STATES = 256  # of each of these, over which its KL divergences are averaged
BLACK_KL = 1e-3  # nats; in the image of the KL matrix smaller ones are black, too
WHITE_KL = 1e2  # nats; larger ones are white, too
SQUARE_SIZE = 24  # pixels of the image per entry of the matrix
INPUTS = ("obs", "agent_ids", "dones", "lstm_state", "actions")  # of Agent.get_action_and_value


@torch.no_grad()
def diagnose(iteration, agent, batch, args):
    """What the leader can use of the followers' data (CPO 7.2) and how far apart the agents are (CPO 7.3).

    batch: that of the update, before its first step. Returns name -> scalar, and the KL matrix as an image, of at most
    MAX_SHOWN agents from the leader to the last follower; nothing unless --diagnostics-interval is due.
    """
    if not args.diagnostics_interval or iteration % args.diagnostics_interval:
        return {}
    leader = agent.leader  # the followers come after it, as in the scripts
    num_columns = args.num_envs // distributed.WORLD_SIZE  # of this process; Run.log averages over all
    on = {key: value[:, :num_columns] for key, value in batch.items()}
    off = {key: value[:, num_columns:] for key, value in batch.items()}
    shown = torch.linspace(0, args.num_agents - 1, min(args.num_agents, MAX_SHOWN)).round().long().tolist()
    kls = kl_matrix(agent, on, shown, args.num_agents)
    as_leader = {**on, "agent_ids": torch.full_like(on["agent_ids"], leader)}
    log_ratios = importance_log_ratios(agent, as_leader, args.num_minibatches)
    values = {
        "population/kl_matrix": kl_image(kls),
        "population/latent_spread": agent.latents.std(0, unbiased=False).mean(),
    }
    if args.num_agents > 1:
        of_followers = log_ratios[:, (leader + 1) * num_columns // args.num_agents :]
        deviation, ess = importance_statistics(log_ratios, args.num_agents)
        nearest = kls.clone().fill_diagonal_(math.inf).argmin(1)  # other agent, of each row
        values.update(
            {
                "population/is_ratio_deviation": deviation[leader + 1 :].mean(),
                "population/is_log_ratio_median": of_followers.abs().median(),
                "population/ess_rate": ess,
                "population/leader_is_nearest": (nearest[leader + 1 :] == leader).float().mean(),
                "population/kl_to_leader": kls[leader + 1 :, leader].mean(),
            }
        )
    if off["obs"].shape[1]:
        ratio = importance_log_ratios(agent, off, args.num_minibatches).exp()
        low = off["mu"] * (1 - args.clip_coef)
        high = off["mu"] * (1 + args.clip_coef)
        used = torch.where(off["advantages"] > 0, ratio < high, ratio > low)  # the clip passes their gradient
        values["population/off_policy_used"] = used.float().mean()
    return values


def importance_log_ratios(agent, rows, num_minibatches):
    """log w = log pi_learner(a, s) - log pi_behaviour(a, s), within +-MAX_LOG_RATIO, (T, C).

    rows: C columns of a batch, whose agent_ids name the learner and whose logprobs are those of the agent that acted.
    With an LSTM the learner starts from the latter's state. num_minibatches: into how many parts the columns are
    divided to save memory.
    """
    minibatches = zip(*(rows[key].chunk(num_minibatches, 1) for key in INPUTS))
    logprobs = torch.cat([agent.get_action_and_value(*inputs)[1] for inputs in minibatches], 1)
    return (logprobs - rows["logprobs"]).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def importance_statistics(log_ratios, num_agents):
    """log_ratios (T, N) of the leader to who acted -> mean |1 - w| of each (A,); ESS / (T N) (CPO Table 2, Eq. 5)."""
    w = log_ratios.double().exp()
    deviation = (1 - w).abs().view(len(w), num_agents, -1).mean((0, 2))
    effective_sample_size = w.sum() ** 2 / w.square().sum()
    return deviation, effective_sample_size / w.numel()


def kl_matrix(agent, rows, agents, num_agents):
    """KL(i || j), i down and j across, for K agents (ids): mean over the first MAX_STATES observations of i."""
    n = rows["obs"].shape[1] // num_agents
    matrix = []
    for i in agents:
        obs, ids, *inputs = (rows[key][:1, i * n : i * n + min(n, MAX_STATES)] for key in INPUTS)
        policies = [agent.get_action_and_value(obs, torch.full_like(ids, j), *inputs)[2] for j in agents]
        own = policies[agents.index(i)]
        matrix.append(torch.stack([kl_divergence(own, other).sum(-1).mean() for other in policies]))
    return torch.stack(matrix)


def kl_image(kls):
    """A KL matrix (K, K) in nats as an image (3, H, W) in shades of grey on a logarithmic scale (CPO Fig. 4)."""
    low = math.log10(BLACK_KL)
    high = math.log10(WHITE_KL)
    shades = (kls.clamp(BLACK_KL, WHITE_KL).log10() - low) / (high - low)
    pixels = shades.repeat_interleave(SQUARE_SIZE, 0).repeat_interleave(SQUARE_SIZE, 1)
    return pixels.expand(3, -1, -1).cpu()


def population_scalars(agent, episodes):
    """The agents' objectives beside the leader's, and how far their latents, if they have any, are from its own."""
    objectives = episodes.means[OBJECTIVE]
    latents = getattr(agent, "latents", torch.zeros(1, 0))
    leader = getattr(agent, "leader", 0)
    return {
        "population/objectives": objectives.tolist(),
        "population/objective_median": objectives.nanquantile(0.5),
        "population/objective_worst": objectives.nanquantile(0.0),
        "population/latent_distance": (latents[leader + 1 :] - latents[leader]).norm(dim=1).mean(),
    }


class LineageStats:
    """What becomes of the genetic algorithm's children. Fitness is relative to the followers' mean at the time."""

    def __init__(self, leader):
        """leader: the agent that takes no part; the followers come after it."""
        self.leader = leader
        self.generation = 0
        self.pending = {}  # child's id -> fitness of the agent it replaced, mean of its parents'
        self.completed = []  # of the last 1,000: (child's fitness, that of the agent it replaced, mean of its parents')

    def complete(self, fitness):
        """The pending children have the first fitness (A,) that a generation may go by; NaN: it is not known."""
        relative = (fitness - fitness[self.leader + 1 :].nanmean()).tolist()
        for child, before in self.pending.items():
            if math.isfinite(relative[child]):
                self.completed.append((relative[child], *before))
        self.completed = self.completed[-1_000:]
        self.pending = {}

    def record(self, lineage, fitness):
        """lineage: [(child, parent, parent), ...]; fitness (A,) that they were selected by. Returns the log's text."""
        relative = fitness - fitness[self.leader + 1 :].nanmean()
        for child, *parents in lineage:
            self.pending[child] = (relative[child].item(), relative[parents].mean().item())
        self.generation += 1
        children = "; ".join(f"{child} <- {i}, {j}" for child, i, j in lineage)
        return f"{self.generation}: {children}; fitness {' '.join(f'{x:.3g}' for x in fitness.tolist())}"

    def scalars(self):
        """Generations so far; share of children fitter than the agent they replaced; correlation with their parents.

        Where fitness is noise the correlation is 0, but the share about 1 - 1 / A: the worst were replaced by chance.
        """
        child, replaced, parents = np.array(self.completed).reshape(-1, 3).T
        spread = len(child) > 2 and child.std() * parents.std() > 0
        fitter = (child > replaced).mean() if len(child) else math.nan
        r = np.corrcoef(child, parents)[0, 1] if spread else math.nan
        return {"evolution/generation": self.generation, "evolution/child_success": fitter, "evolution/heritability": r}

    def state_dict(self):
        return {"generation": self.generation, "pending": self.pending, "completed": self.completed}

    def load_state_dict(self, state):
        self.generation = state["generation"]
        self.pending = state["pending"]
        self.completed = state["completed"]
