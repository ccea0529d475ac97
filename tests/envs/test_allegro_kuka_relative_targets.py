"""Relative hand targets: what an action does, what is observed, and that nothing else differs from the original."""

import pytest
import torch

import envs
from tests.envs.helpers import random_actions, started

RELATIVE = "AllegroKukaRegraspingRelativeTargets"
ENV_IDS = [
    RELATIVE,
    "AllegroKukaRegraspingHeldStarts",
    "AllegroKukaReorientationHeldStarts",
    "AllegroKukaTwoArmsRegraspingHeldStarts",
]


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_targets_are_relative_to_the_last_ones(env_id):
    env = started(env_id, 4)
    joints = env.num_joints
    env.target = env.target.lerp((env.joint_lower + env.joint_upper) / 2.0, 0.5)
    assert torch.equal(env.next_target(torch.zeros(4, joints)), env.target)
    step = torch.tensor(([5.0 * 0.01667] * 7 + [0.05] * 16) * env.num_robots)
    torch.testing.assert_close(env.next_target(torch.full((4, joints), -0.5)), env.target - step)
    env.target = env.joint_upper.expand(4, joints).clone()
    assert torch.equal(env.next_target(torch.ones(4, joints)), env.target)


def test_the_observation_ends_with_how_far_targets_are_ahead():
    env = started(RELATIVE, 4)
    for action in random_actions(env, 5):
        obs = env.step(action)[0]
    assert torch.equal(obs[:, -23:], env.target - env.engine.qpos[:, :23])
    assert obs[:, -23:].abs().max() > 0.1


@pytest.mark.parametrize("training", [False, True])
def test_starts_and_all_else_are_the_originals(training):
    """A target that moves by the same angle has the same effect."""
    env = envs.make(RELATIVE, 4, training=training)
    original = envs.make("AllegroKukaRegrasping", 4, training=training)
    assert torch.equal(env.reset()[:, :-23], original.reset())
    assert torch.equal(env.episode_step, original.episode_step)
    span = env.joint_upper - env.joint_lower
    for action in 0.1 * random_actions(env, 10):
        target = env.next_target(action)
        absolute = 2.0 * (target - env.joint_lower) / span - 1.0
        absolute[:, :7] = action[:, :7]
        obs, reward, terminated, truncated, _ = env.step(action)
        expected = original.step(absolute)
        torch.testing.assert_close(env.target, original.target)
        torch.testing.assert_close(obs[:, :-23], expected[0], atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(reward, expected[1], atol=1e-3, rtol=1e-3)
        assert torch.equal(terminated, expected[2])
        assert torch.equal(truncated, expected[3])
