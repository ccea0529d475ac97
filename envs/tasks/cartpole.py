"""Cartpole: balance a pole on a cart that is pushed along a rail. The smallest task with a physics engine."""

import math

import torch

from envs.base import VectorEnv
from envs.engines import make_engine
from envs.models import cartpole as robot

MAX_POSITION = 3.0  # m, of the cart
MAX_ANGLE = 0.5 * math.pi  # rad, of the pole
MAX_POLE_SPEED = 8.0  # rad/s, the original's limit; MuJoCo has no speed limits
OBS_LIMIT = 5.0


class Cartpole(VectorEnv):
    """Balance a pole on a cart.

    Observation (4), clamped to +-5: cart position (m) and velocity, pole angle (rad) and velocity. Action (1): force /
    400 N.
    The reward is 1 - angle^2 - 0.01 |cart velocity| - 0.005 |pole velocity|. The episode terminates with a reward of -2
    when |position| exceeds 3 or |angle| exceeds pi/2. Objective: the return.
    """

    num_obs = 4
    num_actions = 1
    max_episode_steps = 500
    frame_rate = 60

    def __init__(self, num_envs, device, seed, engine="mujoco"):
        super().__init__(num_envs, device, seed)
        self.engine = make_engine(engine, [robot.build], num_envs, robot.SUBSTEPS, [], self.device)

    def reset_where(self, mask):
        self.engine.set_state(mask, self.uniform(-0.1, 0.1, 2), self.uniform(-0.25, 0.25, 2))

    def advance(self, action):
        self.engine.step(action)
        qpos = self.engine.qpos
        qvel = self.engine.qvel
        capped = torch.stack([qvel[:, 0], qvel[:, 1].clamp(-MAX_POLE_SPEED, MAX_POLE_SPEED)], 1)
        self.engine.set_state((capped != qvel).any(1) & ~self.engine.broken, qpos, capped)
        position, angle = self.engine.qpos.unbind(1)
        velocity, angular_velocity = self.engine.qvel.unbind(1)
        terminated = (position.abs() > MAX_POSITION) | (angle.abs() > MAX_ANGLE)
        reward = 1.0 - angle.square() - 0.01 * velocity.abs() - 0.005 * angular_velocity.abs()
        reward = torch.where(terminated, torch.full_like(reward, -2.0), reward)
        return reward, terminated, torch.zeros_like(terminated)

    def observe(self):
        qpos = self.engine.qpos
        qvel = self.engine.qvel
        return torch.stack([qpos[:, 0], qvel[:, 0], qpos[:, 1], qvel[:, 1]], 1).clamp(-OBS_LIMIT, OBS_LIMIT)

    def render(self, index):
        return self.engine.render(index, camera="side")
