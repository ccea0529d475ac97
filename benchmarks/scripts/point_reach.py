"""PointReach: the toy on which the learning curves of the released SAPG code were recorded. Pure torch, no engine.

To train on it: `python ppo.py --env-id benchmarks.scripts.point_reach:PointReach`.
"""

import torch

from envs.base import VectorEnv

GOAL_RADIUS = 0.15
ARENA = 2.0  # |position| above this is a failure


class PointReach(VectorEnv):
    """A point mass in 4 dimensions that visits one goal after another.

    Observation (12): position, velocity, goal - position. Action (4): acceleration.
    velocity <- 0.9 velocity + 0.1 action, position <- position + 0.25 velocity.
    Reward 0.5 (1 - tanh(2 d)) - 0.01 |action|^2 + 5 [d < 0.15], with d the distance to the goal after the move.
    A success draws a new goal within the step and the episode goes on. Objective: successes in the episode.
    """

    num_obs = 12
    num_actions = 4
    max_episode_steps = 100

    def __init__(self, num_envs, device, seed):
        super().__init__(num_envs, device, seed)
        self.position = torch.zeros(num_envs, 4, device=self.device)
        self.velocity = torch.zeros(num_envs, 4, device=self.device)
        self.goal = torch.zeros(num_envs, 4, device=self.device)
        self.successes = torch.zeros(num_envs, device=self.device)

    def reset_where(self, mask):
        position = self.uniform(-1.0, 1.0, 4)
        goal = self.uniform(-1.0, 1.0, 4)
        self.position = torch.where(mask[:, None], position, self.position)
        self.goal = torch.where(mask[:, None], goal, self.goal)
        self.velocity = torch.where(mask[:, None], torch.zeros_like(self.velocity), self.velocity)
        self.successes.masked_fill_(mask, 0.0)

    def advance(self, action):
        self.velocity = 0.9 * self.velocity + 0.1 * action
        self.position = self.position + 0.25 * self.velocity
        distance = (self.goal - self.position).norm(dim=1)
        success = distance < GOAL_RADIUS
        reward = 0.5 * (1.0 - torch.tanh(2.0 * distance)) - 0.01 * action.square().sum(1) + 5.0 * success
        self.successes += success
        self.goal = torch.where(success[:, None], self.uniform(-1.0, 1.0, 4), self.goal)
        failure = (self.position.abs() > ARENA).any(1)
        return reward, failure, torch.zeros_like(failure)

    def observe(self):
        return torch.cat([self.position, self.velocity, self.goal - self.position], 1)

    def objective(self):
        return self.successes.clone()
