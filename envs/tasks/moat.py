"""Moat: a toy task without a physics engine. One minute of training shows whether a population helps."""

import torch

from envs.base import VectorEnv

PLATEAU_STARTS = (0.75, 1.45, 2.25, 3.15, 4.15)  # along p0; each plateau is 0.5 wide, with ditches between them
PLATEAU_VALUES = (1.0, 2.0, 4.0, 8.0, 16.0)
PLATEAU_WIDTH = 0.5


def moat_value(position):
    """The value (N,) of a position (N, 4): plateaus along p0 with ditches between them, decaying with |p1..p3|."""
    x = position[:, 0]
    value = x.clamp(-1.0, PLATEAU_STARTS[0])
    for start, height in zip(PLATEAU_STARTS, PLATEAU_VALUES):
        value = torch.where(x >= start, torch.full_like(x, height), value)
        value = torch.where(x > start + PLATEAU_WIDTH, torch.full_like(x, -0.5 * height), value)
    return value * torch.exp(-position[:, 1:].square().sum(1))


class Moat(VectorEnv):
    """A point with inertia moves in 4 dimensions.

    Observation (9): position, 3 x velocity, time. Action (4): push.
    The reward is 0.1 value - 0.01 mean(action^2). Episodes are truncated after exactly 128 steps.
    Objective: max(value, 0) at the last step, which is at most 16.
    """

    num_obs = 9
    num_actions = 4
    max_episode_steps = 128

    def __init__(self, num_envs, device, seed):
        super().__init__(num_envs, device, seed)
        self.position = self.zeros(4)
        self.velocity = self.zeros(4)

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
        """A section along p0 (-1 to 5), and below it the plane of p0 and p1 (-1 to 1, up). The point is red."""
        return draw_moat(self.position[index].cpu()).numpy()


def draw_moat(position):
    """A picture of where the point is, as a (480, 640, 3) uint8 tensor. position (4,).

    The upper part shows the value on the axis p1 = p2 = p3 = 0, with green plateaus and water in the ditches. The
    height of the ball is the value at the point's own position. The lower part shows the same from above, with the
    values at the point's p2 and p3.
    """
    sky = torch.tensor([0.82, 0.90, 0.97])
    water = torch.tensor([0.25, 0.52, 0.82])
    red = torch.tensor([0.85, 0.15, 0.15])
    low = torch.tensor([0.80, 0.82, 0.62])
    high = torch.tensor([0.13, 0.50, 0.22])

    def colours(value, p0):
        share = (value.clamp(0.0, PLATEAU_VALUES[-1]) / PLATEAU_VALUES[-1]).sqrt()[..., None]
        return torch.where(((value < 0.0) & (p0 > PLATEAU_STARTS[0]))[..., None], water, low + share * (high - low))

    def values(p0, p1, rest):
        p2 = rest[0].expand_as(p0)
        p3 = rest[1].expand_as(p0)
        points = torch.stack([p0, p1, p2, p3], -1)
        return moat_value(points.view(-1, 4)).view(p0.shape)

    height, p0 = torch.meshgrid(torch.linspace(20.0, -9.0, 280), torch.linspace(-1.0, 5.0, 640), indexing="ij")
    ground = values(p0, torch.zeros_like(p0), torch.zeros(2))
    ditch = (ground < 0.0) & (p0 > PLATEAU_STARTS[0])
    section = torch.where((height < ground.masked_fill(ditch, 0.0))[..., None], colours(ground, p0), sky)
    section[ditch & (height < ground)] = low
    paint_ball(section, p0, height, position[0], moat_value(position[None])[0] + 0.9, red)

    p1, p0 = torch.meshgrid(torch.linspace(1.0, -1.0, 200), torch.linspace(-1.0, 5.0, 640), indexing="ij")
    plane = colours(values(p0, p1, position[2:]), p0)
    paint_ball(plane, p0, p1, position[0], position[1], red)
    return (torch.cat([section, plane]) * 255.0).byte()


def paint_ball(image, horizontal, vertical, x, y, colour):
    """Paint a disc with a white rim at x, y into an image (H, W, 3) with pixels at horizontal, vertical (H, W)."""
    columns = (horizontal - x) / (horizontal[0, 1] - horizontal[0, 0])
    rows = (vertical - y) / (vertical[1, 0] - vertical[0, 0])
    distance = torch.hypot(columns, rows)
    image[distance < 11.0] = 1.0
    image[distance < 9.0] = colour
