"""Held starts: where training begins with the object in the hand, what that pays, and what stays the original's."""

from functools import lru_cache

import pytest
import torch

import envs
from envs.models import allegro_kuka_scene as scene
from envs.tasks import allegro_kuka as task

REGRASPING, REORIENTATION = (f"AllegroKuka{name}HeldStarts" for name in ("Regrasping", "Reorientation"))


@lru_cache(maxsize=None)
def found(env_id):
    """The state of 24 environments after the first reset of a training."""
    env = envs.make(env_id, 24, training=True)
    env.reset()
    return env.state_dict()


def make(all_held=True, env_id=REGRASPING):
    """Environments of a training, resumed. `all_held`: all begin held that can, and their clocks at 0.

    Returns them and which have held states (N,) bool.
    """
    env = envs.make(env_id, 24, training=True)
    env.load_state_dict(found(env_id))
    if all_held:
        env.held_share = 1.0
        env.reset()
        env.episode_step.zero_()
    return env, env.held_count > 0


def distance_to_palm(env):
    return (env.engine.body_pos[:, task.OBJECT] - env.palm_centre()).norm(dim=1)


def test_most_objects_have_held_states():
    _, has_some = make()
    assert 0.75 < has_some.float().mean() < 1.0


@pytest.mark.parametrize("env_id", [REGRASPING, REORIENTATION])
def test_an_episode_begins_with_the_object_in_the_hand_in_the_air(env_id):
    env, held = make(env_id=env_id)
    assert torch.equal(env.lifted, held) and not env.engine.qvel[held].any()
    assert (env.engine.body_pos[held, task.OBJECT, 2] > scene.TABLE_TOP + 0.2).all()
    assert (distance_to_palm(env)[held] < 0.16).all()
    for target, states in zip(env.target[held], env.held_target[held]):
        assert (target == states).all(1).any()
    torch.testing.assert_close(env.closest_fingertip, env.fingertip_distance())
    torch.testing.assert_close(env.closest_keypoint, env.keypoint_distance())
    goals = env.goal.clone()
    env.reset()
    assert (env.goal != goals).any(1).all()


def test_what_is_held_stays_held_while_nothing_moves():
    env, held = make()
    for _ in range(60):
        env.engine.step(env.target)
    assert (distance_to_palm(env)[held] < 0.16).float().mean() >= 0.9


def test_nobody_is_paid_for_a_lift_that_did_not_happen():
    env, _ = make()
    high = env.lifted.clone()
    for _ in range(20):
        env.step(torch.zeros(24, 23))
    terms = dict(zip(env.reward_names, env.term_sums.T))
    assert high.any() and not any(terms[name][high].any() for name in ("lift", "lift_bonus", "fingertip"))
    assert terms["keypoint"][high].any() and terms["fingertip"][~high].any()


def test_half_of_the_episodes_begin_held():
    env, has_some = make(all_held=False)
    assert env.held_share == 0.5
    drawn = []
    for _ in range(60):
        env.reset_where(torch.ones(24, dtype=torch.bool))
        drawn.append(~env.engine.qvel.any(1))  # at rest
    share = torch.stack(drawn).float().mean(0)
    assert share[has_some].mean().item() == pytest.approx(0.5, abs=0.05) and not share[~has_some].any()


@pytest.mark.parametrize("env_id", [REGRASPING, REORIENTATION])
def test_an_evaluation_plays_the_original_starts(env_id, capsys):
    ours, original = envs.make(env_id, 8), envs.make(env_id[: -len("HeldStarts")], 8)
    assert torch.equal(ours.reset(), original.reset())
    assert not ours.held_count.any() and capsys.readouterr().out == ""


def test_a_resumed_run_goes_on_exactly(capsys):
    first, _ = make(all_held=False)
    second = envs.make(REGRASPING, 24, seed=5, training=True)
    second.load_state_dict(first.state_dict())
    for step in range(6):
        first.episode_step[step::6] = second.episode_step[step::6] = 10_000  # begin anew
        action = 2.0 * torch.rand(24, 23, generator=torch.Generator().manual_seed(step)) - 1.0
        for a, b in zip(first.step(action)[:4], second.step(action)[:4]):
            assert torch.equal(a, b)
    assert first.lifted.any() and not first.lifted.all()
    second.reset()
    assert torch.equal(first.held_qpos, second.held_qpos) and "held starts" not in capsys.readouterr().out


def test_targets_of_the_hand_are_relative():
    env, held = make()
    before = env.target.clone()
    assert torch.equal(env.next_target(torch.zeros(24, 23)), before)
    moved = env.next_target(torch.full((24, 23), -0.5))
    steps = torch.tensor([10.0 * 0.01667] * 7 + [0.1] * 16)
    torch.testing.assert_close(moved, (before - 0.5 * steps).clamp(env.joint_lower, env.joint_upper))
    env.relative_hand = False
    original = task.relative_targets(before, torch.zeros(24, 23), env.joint_lower, env.joint_upper)
    assert torch.equal(env.next_target(torch.zeros(24, 23)), original)
