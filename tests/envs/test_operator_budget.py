"""How many operators a control step launches: on a GPU each costs the host microseconds, however few environments."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import envs


class Launches(TorchDispatchMode):
    """Counts torch's operators, but not views, which launch nothing."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("env_id", envs.TASKS)
def test_a_control_step_launches_few_operators(env_id):
    """Averaged over steps with random actions, in half of which an episode ends."""
    env, num_steps = envs.make(env_id, 64), 12
    env.reset()
    generator, ends = torch.Generator().manual_seed(0), 0
    launches = Launches()
    for step in range(num_steps):
        if step % 2:
            env.episode_step[0] = env.max_episode_steps
        action = 2.0 * torch.rand(64, env.num_actions, generator=generator) - 1.0
        with launches:
            _, _, terminated, truncated, _ = env.step(action)
        ends += (terminated | truncated).any().item()
    assert ends >= num_steps / 2
    assert launches.count / num_steps <= (500 if env_id.startswith("AllegroKuka") else 300)
