"""Held starts: where goals of a training begin with the object in the hand, what that pays, and what stays."""

from functools import lru_cache

import pytest
import torch

import envs
from envs.models import allegro_kuka_scene as scene
from envs.tasks import allegro_kuka as task
from envs.tasks.allegro_kuka_held_starts import HIGH, KINDS, LOW, OPEN

REGRASPING, REORIENTATION = (f"AllegroKuka{name}HeldStarts" for name in ("Regrasping", "Reorientation"))
EVERYWHERE = torch.ones(24, dtype=torch.bool)


@lru_cache(maxsize=None)
def found(env_id):
    """The state of 24 environments after the first reset of a training."""
    env = envs.make(env_id, 24, training=True)
    env.reset()
    return env.state_dict()


def make(kind=None, env_id=REGRASPING):
    """Environments of a training, resumed, and which have held states; with `kind` these begin so, clocks at 0."""
    env = envs.make(env_id, 24, training=True)
    env.load_state_dict(found(env_id))
    if kind is not None:
        env.held_share = 1.0
        env.held_count = torch.where(torch.tensor(KINDS) == kind, env.held_count, 0)
        env.reset()
        while (others := env.held_count.any(1) & ~env.from_hand).any():  # another kind was drawn
            env.reset_where(others)
        env.episode_step.zero_()
    return env, env.held_count.any(1)


def test_most_objects_have_held_states():
    env, _ = make()
    share = (env.held_count > 0).float().mean(0)
    assert (0.6 < share).all() and (share < 1.0).all() and (env.held_count <= env.held_qpos.shape[2]).all()


@pytest.mark.parametrize("env_id", [REGRASPING, REORIENTATION])
@pytest.mark.parametrize("kind", KINDS)
def test_a_goal_begins_with_the_object_in_the_hand(kind, env_id):
    env, held = make(kind, env_id)
    assert torch.equal(env.from_hand, held) and not env.engine.qvel[held].any()
    assert (env.palm_distance()[held] < (0.19 if kind == OPEN else 0.16)).all()
    assert (env.gap()[held] < 0.01).all() if kind == OPEN else (env.gap()[held] > -0.005).all()
    for target, states in zip(env.target[held], env.held_target[held]):
        assert (target == states.flatten(0, 1)).all(1).any()
    torch.testing.assert_close(env.closest_fingertip, env.fingertip_distance())
    torch.testing.assert_close(env.closest_keypoint, env.keypoint_distance())


def test_what_is_held_high_is_lifted_and_its_goal_nearer():
    env, _ = make(HIGH)
    drawn = []
    env.draw_goal = lambda: drawn.append(type(env).draw_goal(env)) or drawn[-1]
    env.reset_where(EVERYWHERE)
    held = env.from_hand
    assert torch.equal(env.lifted, held) and (env.engine.body_pos[held, task.OBJECT, 2] > scene.TABLE_TOP + 0.2).all()
    way, whole = (goal[held, :3] - env.engine.body_pos[held, task.OBJECT] for goal in (env.goal, drawn[-1]))
    share = way.norm(dim=1) / whole.norm(dim=1)
    torch.testing.assert_close(way, share[:, None] * whole)
    assert 0.0 < share.min() < 0.5 < share.max() < 1.0
    assert torch.equal(env.goal[~held], drawn[-1][~held])


@pytest.mark.parametrize("kind", [HIGH, LOW])
def test_what_is_held_stays_held_while_nothing_moves(kind):
    env, held = make(kind)
    for _ in range(60):
        env.engine.step(env.target)
    assert (env.palm_distance()[held] < 0.16).float().mean() >= 0.9


def test_nobody_is_paid_for_a_lift_that_did_not_happen():
    env, high = make(HIGH)
    for _ in range(20):
        env.step(torch.zeros(24, 23))
    terms = dict(zip(env.reward_names, env.term_sums.T))
    assert high.any() and not any(terms[name][high].any() for name in ("lift", "lift_bonus", "fingertip"))
    assert terms["keypoint"][high].any() and terms["fingertip"][~high].any()


@pytest.mark.parametrize("begin", ["reset_where", "begin_next_goal"])
def test_most_goals_begin_held(begin):
    env, _ = make()
    drawn = []
    for _ in range(100):
        getattr(env, begin)(EVERYWHERE)
        drawn.append(env.from_hand)
    expected = 0.9 * (env.held_count > 0).float().mean(1)
    torch.testing.assert_close(torch.stack(drawn).float().mean(0), expected, atol=0.15, rtol=0.0)


def test_an_episode_ends_where_the_object_leaves_the_hand_that_it_began_in():
    env, held = make(HIGH)
    qpos = env.engine.qpos.clone()
    qpos[:, 23:26] = env.palm_centre() + torch.tensor([0.0, 0.0, 0.5])
    env.engine.set_state(EVERYWHERE, qpos, torch.zeros_like(env.engine.qvel))
    assert torch.equal(env.step(torch.zeros(24, 23))[2], held)


@pytest.mark.parametrize("env_id", [REGRASPING, REORIENTATION])
def test_an_evaluation_plays_the_original_starts(env_id, capsys):
    ours, original = envs.make(env_id, 8), envs.make(env_id[: -len("HeldStarts")], 8)
    assert torch.equal(ours.reset(), original.reset())
    assert not ours.held_count.any() and capsys.readouterr().out == ""


def test_a_resumed_run_goes_on_exactly(capsys):
    first, _ = make()
    second = envs.make(REGRASPING, 24, seed=5, training=True)
    second.load_state_dict(first.state_dict())
    for step in range(6):
        first.episode_step[step::6] = second.episode_step[step::6] = 10_000  # begin anew
        action = 2.0 * torch.rand(24, 23, generator=torch.Generator().manual_seed(step)) - 1.0
        for a, b in zip(first.step(action)[:4], second.step(action)[:4]):
            assert torch.equal(a, b)
    assert first.from_hand.any() and not first.from_hand.all()
    second.reset()
    assert torch.equal(first.held_qpos, second.held_qpos) and "held starts" not in capsys.readouterr().out


def test_targets_of_the_hand_are_relative():
    env, _ = make(HIGH)
    before = env.target.clone()
    assert torch.equal(env.next_target(torch.zeros(24, 23)), before)
    moved = env.next_target(torch.full((24, 23), -0.5))
    steps = torch.tensor([10.0 * 0.01667] * 7 + [0.1] * 16)
    torch.testing.assert_close(moved, (before - 0.5 * steps).clamp(env.joint_lower, env.joint_upper))
    env.relative_hand = False
    original = task.relative_targets(before, torch.zeros(24, 23), env.joint_lower, env.joint_upper)
    assert torch.equal(env.next_target(torch.zeros(24, 23)), original)
