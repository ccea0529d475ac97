"""Cartpole: the numbers of the task, by hand."""

import math

import pytest
import torch

from tests.envs.helpers import started


def put(env, position=0.0, velocity=0.0, angle=0.0, angular_velocity=0.0):
    """The same state in every environment."""
    qpos = torch.zeros(env.num_envs, 2)
    qvel = torch.zeros(env.num_envs, 2)
    qpos[:, 0] = position
    qpos[:, 1] = angle
    qvel[:, 0] = velocity
    qvel[:, 1] = angular_velocity
    env.engine.set_state(torch.ones(env.num_envs, dtype=torch.bool), qpos, qvel)


def energy(env):
    """Kinetic + potential energy (N,) of cart (1 kg) and pole (1 kg, centre 0.47 m above the hinge), in J."""
    angle = env.engine.qpos[:, 1].double()
    (velocity, spin) = env.engine.qvel.double().unbind(1)
    kinetic = velocity**2 + 0.5 * (0.083633 + 0.47**2) * spin**2 - 0.47 * angle.cos() * velocity * spin
    return kinetic + 9.81 * 0.47 * angle.cos()


def test_initial_states_fill_their_ranges():
    obs = started("Cartpole", 2000).observe()
    limits = torch.tensor([0.1, 0.25, 0.1, 0.25])
    assert (obs.abs() <= limits).all()
    assert (obs.amax(0) > 0.95 * limits).all()
    assert (obs.amin(0) < -0.95 * limits).all()
    assert (obs.mean(0).abs() < 0.05 * limits).all()
    assert torch.corrcoef(obs.T).fill_diagonal_(0.0).abs().max() < 0.1


@pytest.mark.parametrize("side", [-1.0, 1.0])
@pytest.mark.parametrize(
    "inside, outside",
    [
        (dict(position=2.9, velocity=1.0), dict(position=2.99, velocity=2.0)),
        (dict(angle=1.5, angular_velocity=1.0), dict(angle=1.56, angular_velocity=2.0)),
    ],
)
def test_termination_at_every_limit(side, inside, outside):
    env = started("Cartpole", 2)
    put(env, **{name: side * value for name, value in inside.items()})
    _, reward, terminated, truncated, _ = env.step(torch.zeros(2, 1))
    assert not terminated.any()
    assert not truncated.any()
    assert (reward > -2.0).all()
    put(env, **{name: side * value for name, value in outside.items()})
    obs, reward, terminated, truncated, info = env.step(torch.zeros(2, 1))
    assert terminated.all()
    assert not truncated.any()
    assert (reward == -2.0).all()
    final = info["final_obs"][:, [0, 2]].abs()
    assert ((final[:, 0] > 3.0) | (final[:, 1] > 0.5 * math.pi)).all()
    assert (obs.abs() <= torch.tensor([0.1, 0.25, 0.1, 0.25])).all()  # already the next episode
    assert info["episode"]["done"].all()
    assert (info["episode"]["length"] == 2.0).all()
    assert torch.equal(info["episode"]["objective"], info["episode"]["return"])


def test_force_is_400_newton_along_the_action():
    env = started("Cartpole", 3)
    put(env)
    env.step(torch.tensor([[0.5], [-0.5], [7.0]]))  # the last one is clamped to 1
    velocity, spin = env.engine.qvel.unbind(1)
    # (2 kg) a - 0.47 alpha = F and 0.47 a = (I + 0.47^2) alpha, at angle 0
    inertia = 0.083633 + 0.47**2
    expected = 0.0166 * 200.0 / (2.0 - 0.47**2 / inertia)
    torch.testing.assert_close(velocity, expected * torch.tensor([1.0, -1.0, 2.0]), rtol=0.03, atol=0.0)
    assert spin.sign().tolist() == [1.0, -1.0, 1.0]  # the pole is left behind: positive angle leans to -y


def test_the_pole_turns_at_most_at_8_radians_per_second():
    env = started("Cartpole", 4)
    qvel = torch.tensor([[0.5, 20.0], [-0.5, -20.0], [0.5, 7.0], [12.0, 0.0]])
    env.engine.set_state(torch.ones(4, dtype=torch.bool), torch.zeros(4, 2), qvel)
    obs, reward, terminated, _, _ = env.step(torch.zeros(4, 1))
    angle = env.engine.qpos[:, 1]
    (velocity, spin) = env.engine.qvel.unbind(1)
    assert spin[:2].tolist() == [8.0, -8.0]
    assert 6.5 < spin[2] < 7.5
    assert velocity[3] > 10.0
    assert spin[3].abs() <= 8.0
    assert not terminated.any()
    assert torch.equal(obs[:, 1:], torch.stack([velocity, angle, spin], 1).clamp(-5.0, 5.0))
    expected = 1.0 - angle.square() - 0.01 * velocity.abs() - 0.005 * spin.abs()
    torch.testing.assert_close(reward, expected, rtol=0.0, atol=1e-6)


def test_energy_is_conserved_without_a_force():
    env = started("Cartpole", 16)
    put(env, velocity=0.3, angle=torch.linspace(-1.0, 1.0, 16), angular_velocity=0.5)
    start = energy(env)
    for _ in range(120):  # 2 s; the engine alone, so that fallen poles swing on
        env.engine.step(torch.zeros(16, 1))
    assert env.engine.qpos[:, 1].abs().max() > math.pi  # they did fall
    torch.testing.assert_close(energy(env), start, rtol=1e-4, atol=0.0)
