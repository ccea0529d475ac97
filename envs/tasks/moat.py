"""Moat: a toy task for which one minute of training shows whether a population helps. No physics engine."""

import torch

from envs.base import VectorEnv

PLATEAU_STARTS = (0.75, 1.45, 2.25, 3.15, 4.15)  # along p0; each plateau is 0.5 wide, ditches lie between them
PLATEAU_VALUES = (1.0, 2.0, 4.0, 8.0, 16.0)
PLATEAU_WIDTH = 0.5


def moat_value(position):
    """Value of a position (N, 4) -> (N,): stairs along p0 with a ditch before every step, decaying with |p1..p3|."""
    x = position[:, 0]
    value = x.clamp(-1.0, PLATEAU_STARTS[0])
    for start, height in zip(PLATEAU_STARTS, PLATEAU_VALUES):
        value = torch.where(x >= start, torch.full_like(x, height), value)
        value = torch.where(x > start + PLATEAU_WIDTH, torch.full_like(x, -0.5 * height), value)
    return value * torch.exp(-position[:, 1:].square().sum(1))


class Moat(VectorEnv):
    """A point with inertia in 4 dimensions. Observation (9): position, 3 x velocity, time. Action (4): push.

    Reward 0.1 value - 0.01 mean(action^2). Episodes of exactly 128 steps, truncated.
    Objective: max(value, 0) at the last step, at most 16.
    """

    num_obs, num_actions, max_episode_steps = 9, 4, 128

    def __init__(self, num_envs, device, seed):
        super().__init__(num_envs, device, seed)
        self.position = self.zeros(4)
        self.velocity = self.zeros(4)
        golden = torch.arange(num_envs, dtype=torch.float64, device=self.device) * 0.6180339887498949 % 1.0
        self.phase = (golden * self.max_episode_steps).long()  # evenly spread, also within any block

    def reset(self):
        super().reset()
        self.episode_step.copy_(self.phase)  # so that environments do not reset at the same time
        return self.observe()

    def reset_where(self, mask):
        noise = self.normal(4)
        self.position = torch.where(mask[:, None], 0.1 * noise, self.position)
        self.velocity = torch.where(mask[:, None], torch.zeros_like(noise), self.velocity)

    def advance(self, action):
        self.velocity = 0.85 * self.velocity + 0.02 * action
        self.position = self.position + self.velocity
        reward = 0.1 * moat_value(self.position) - 0.01 * action.square().mean(1)
        never = self.zeros(dtype=torch.bool)
        return reward, never, never

    def observe(self):
        time = 2.0 * self.episode_step[:, None] / self.max_episode_steps - 1.0
        return torch.cat([self.position, 3.0 * self.velocity, time], 1)

    def objective(self):
        return moat_value(self.position).clamp(min=0.0)

    def render(self, index):
        """The plane of p0 (right, -1 to 5) and p1 (up, -1 to 1), brighter for higher values; the point in red."""
        p1, p0 = torch.meshgrid(torch.linspace(1, -1, 120), torch.linspace(-1, 5, 360), indexing="ij")
        plane = torch.stack([p0, p1, torch.zeros_like(p0), torch.zeros_like(p0)], -1).view(-1, 4)
        image = (moat_value(plane).view(120, 360, 1).expand(-1, -1, 3) * 7.0 + 100.0).clamp(0.0, 255.0).byte()
        x, y = self.position[index, :2].tolist()
        near = (p0 - x) ** 2 + (p1 - y) ** 2 < 0.05**2
        image[near] = torch.tensor([255, 0, 0], dtype=torch.uint8)
        return image
