"""How good each agent of a population is, judged fairly: for EPO's generations and PBT's copies."""

import envs  # noqa: F401, before torch: Isaac Gym must be imported first

import torch
import torch.nn as nn

from harness import distributed

AGENT_SHARE = 0.5  # of an agent's environments that need a score before the agent has a fitness
TOTAL_SHARE = 0.9  # of all compared agents' environments that need a score before the comparison
MAX_WAIT = 20.0  # episodes per environment, after which a comparison does not wait for some that may never end


class FitnessTracker(nn.Module):
    """Each agent's fitness: the mean objective of its environments, each with its latest episode (EPO Algorithm 1).

    Only episodes that began after the last `restart` count, for all agents alike. Otherwise a new agent's first
    episodes to finish, which are its shortest, would compete with the longer ones of others.
    """

    def __init__(self, num_envs, num_agents, device):
        super().__init__()
        self.register_buffer("scores", torch.zeros(num_agents, num_envs // num_agents, device=device))  # (A, n)
        self.register_buffer("episodes", torch.zeros_like(self.scores))  # how many such episodes have finished
        self.register_buffer("fresh", torch.zeros_like(self.scores, dtype=torch.bool))  # whether one is running

    def record(self, begins, episode):
        """One step: begins (N,), where it was an episode's first, and its `info["episode"]`."""
        self.fresh |= begins.view_as(self.fresh)
        finished = episode["done"].view_as(self.fresh) & self.fresh
        self.scores = torch.where(finished, episode["objective"].view_as(self.scores), self.scores)
        self.episodes += finished

    def episodes_per_environment(self):
        """Mean number of such episodes that have finished in an environment."""
        return distributed.average(self.episodes.mean())

    def judged_share(self):
        """Share of each agent's environments that have a score (A,)."""
        return distributed.average((self.episodes > 0).float().mean(1))

    def fitness(self):
        """Mean score (A,); NaN where fewer than half of the agent's environments have one."""
        share = self.judged_share()
        score = distributed.average((self.scores * (self.episodes > 0)).mean(1)) / share
        return torch.where(share >= AGENT_SHARE, score, float("nan"))

    def can_compare(self, fitness, agents, at_least):
        """Whether `agents`, a slice, can be compared: all have a fitness, and 90 % of their environments have a score.

        The first episodes to finish are short, which would favour agents of which few environments are judged. After
        20 episodes per environment, it is enough that `at_least` of the agents have a fitness.
        fitness (A,): what the method of this name returned.
        """
        is_known = fitness[agents].isfinite()
        all_known = is_known.all() & (self.judged_share()[agents].mean() >= TOTAL_SHARE)
        enough_known = (is_known.sum() >= at_least) & (self.episodes_per_environment() >= MAX_WAIT)
        return all_known | enough_known

    def restart(self):
        """From here on only episodes that begin later count."""
        self.episodes.zero_()
        self.fresh.zero_()
