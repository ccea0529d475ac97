"""The toys with a fitness that says nothing: what remains of EPO when the genetic algorithm selects at random.

    python epo.py --env-id benchmarks.scripts.random_fitness:RandomFitnessMoat --num-agents 48

`epo.py` takes its fitness from the objectives that the environments report. Here each follower's environments report
the objectives of a randomly drawn follower, drawn anew for every 128 steps. So the followers' fitness has the spread
that it would have, but who survives a generation is left to chance. The leader's environments, and all returns, stay
true: `charts/leader_objective` is comparable with that of the toy itself.
"""

import torch

from envs.tasks.grasp import Grasp
from envs.tasks.moat import Moat


class RandomFitness:
    """Makes a toy's followers report each other's objectives. num_envs: a multiple of NUM_AGENTS, else ValueError.

    A mixin for tasks whose episodes all have max_episode_steps.
    """

    NUM_AGENTS = 48  # must be --num-agents: blocks of num_envs / NUM_AGENTS environments, the first is the leader's

    def __init__(self, num_envs, device, seed):
        super().__init__(num_envs, device, seed)
        if num_envs % self.NUM_AGENTS:
            raise ValueError(f"num_envs {num_envs}: must be a multiple of {self.NUM_AGENTS} agents")
        self.latest = torch.zeros(num_envs, device=self.device)  # true objective of each environment's latest episode
        self.source = torch.arange(num_envs, device=self.device)  # whose objective each environment reports
        self.clock = torch.zeros((), dtype=torch.long, device=self.device)

    def advance(self, action):
        if self.clock % self.max_episode_steps == 0:  # between two drawings every environment ends one episode
            followers = 1 + torch.randperm(self.NUM_AGENTS - 1, generator=self.generator, device=self.device)
            blocks = torch.arange(self.num_envs, device=self.device).view(self.NUM_AGENTS, -1)
            self.source = torch.cat([blocks[:1], blocks[followers]]).flatten()
        self.clock += 1
        return super().advance(action)

    def reset_where(self, mask):
        self.latest = torch.where(mask, super().objective(), self.latest)  # before the episode is lost
        super().reset_where(mask)

    def objective(self):
        """The leader's environments: their own; the followers': the latest of the environment in `source`."""
        n = self.num_envs // self.NUM_AGENTS
        return torch.cat([super().objective()[:n], self.latest[self.source[n:]]])


class RandomFitnessMoat(RandomFitness, Moat):
    """Moat whose followers report each other's objectives."""


class RandomFitnessGrasp(RandomFitness, Grasp):
    """Grasp whose followers report each other's objectives."""
