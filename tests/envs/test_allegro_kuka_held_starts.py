"""Held starts: where goals of a training begin with the object in the hand, what that pays, and what stays."""

from functools import lru_cache

import pytest
import torch

import envs
from envs.models import allegro_kuka_scene as scene
from envs.tasks import allegro_kuka as task
from envs.tasks.allegro_kuka_held_starts import AJAR, FAR, HIGH, HOME, LOW, NEAR, NEXT, OPEN, ORIGINAL, PATIENCE

REGRASPING, REORIENTATION = (f"AllegroKuka{name}HeldStarts" for name in ("Regrasping", "Reorientation"))
EVERYWHERE = torch.ones(24, dtype=torch.bool)
AT_FIRST, AFTER_A_SUCCESS = [0.25805, 0.0, 0.0, 0.0, 0.0], [0.0, 0.08602, 0.0172, 0.01645, 0.01116]  # weights


@lru_cache(maxsize=None)
def found(env_id):
    """The state of 24 environments that have searched."""
    env = envs.make(env_id, 24, training=True)
    env.find_held_states()
    return env.state_dict()


def make(kind=HIGH, env_id=REGRASPING):
    """Environments of a training, resumed, that begin with `kind`, clocks at 0, and which (24,) have such states."""
    env = envs.make(env_id, 24, training=True)
    env.load_state_dict(found(env_id))
    env.reset()
    has_some = env.held_count[:, kind] > 0
    env.begin_with(EVERYWHERE, torch.where(has_some, kind, ORIGINAL))
    env.episode_step.zero_()
    return env, has_some


def test_the_first_step_searches_and_is_the_same_without_a_search():
    env, unsearched = (envs.make(REGRASPING, 24, training=True) for _ in range(2))
    unsearched.searched = True
    for each in (env, unsearched):
        each.reset()
        each.push = lambda: None  # random
    assert all(map(torch.equal, *(each.step(torch.full((24, 23), 0.5))[1:4] for each in (env, unsearched))))
    assert env.held_count.any() and not unsearched.held_count.any()


def test_most_objects_have_held_states_and_the_first_time_limits_are_spread():
    env, _ = make()
    assert torch.equal(env.reset(), env.observe())  # which sees the clock
    assert env.episode_step.max() < PATIENCE and len(env.episode_step.unique()) == 24 and env.shortened.sum() == 23
    assert env.held_count.any(0).all() and env.held_count.any(1).float().mean() > 0.8 and env.held_count.max() <= 4


@pytest.mark.parametrize("env_id", [REGRASPING, REORIENTATION])
@pytest.mark.parametrize("kind", range(ORIGINAL))
def test_a_goal_begins_with_the_object_in_the_hand_or_beneath_it(kind, env_id):
    env, held = make(kind, env_id)
    assert torch.equal(env.kind, torch.where(held, kind, ORIGINAL)) and not env.engine.qvel[held].any()
    reach = 0.16 if kind <= LOW else 0.19 if kind <= OPEN else 0.4
    assert (env.palm_distance()[held] < reach).all()
    assert (env.gap()[held] < 0.01).all() if kind > AJAR else (env.gap()[held] > -0.005).all()
    assert (env.target[held, None] == env.held_target[held, kind]).all(2).any(1).all()
    ahead = env.observe()[held, -23:].abs().amax(1)
    place = (env.engine.body_pos[:, task.OBJECT] - env.object_start)[held]
    assert kind != OPEN or (ahead > 0.05).float().mean() > 0.5
    assert kind < NEAR or ahead.max() < 0.3  # at rest
    assert kind < FAR or (place[:, :2].abs() < env.start_range[:2] + 0.02).all()
    torch.testing.assert_close(env.observe()[:, -23:], env.target - env.engine.qpos[:, :23])
    assert (env.lifted[held] == (kind == HIGH)).all()
    torch.testing.assert_close(env.closest_fingertip, env.fingertip_distance())
    torch.testing.assert_close(env.closest_keypoint, env.keypoint_distance())
    assert not env.step(torch.zeros(24, 23))[2].any()


def test_after_a_success_the_hand_is_on_its_way_back():
    env, _ = make(HIGH)
    env.engine.set_state(EVERYWHERE, env.engine.qpos, torch.ones_like(env.engine.qvel))
    before, start, kind = env.engine.qpos.clone(), env.draw_pose(), torch.arange(24) % 4 + HOME
    env.target, env.draw_pose = before[:, :23] + 0.1, lambda: start
    env.begin_with(EVERYWHERE, kind)
    way, rest = before[:, :23] - start, env.engine.qpos[:, :23] - start
    share = (rest * way).sum(1, True) / way.square().sum(1, True)
    torch.testing.assert_close(rest, share * way)
    torch.testing.assert_close(env.engine.qvel[:, :23], share.expand(-1, 23))
    torch.testing.assert_close(env.target, start + share * (way + 0.1))
    assert torch.equal((3.0 * share[:, 0] + 1e-4).long(), kind - HOME) and not env.lifted[kind < NEXT].any()
    assert torch.equal(env.engine.qpos[kind == NEXT], before[kind == NEXT])
    torch.testing.assert_close(env.closest_fingertip, env.fingertip_distance())
    torch.testing.assert_close(env.closest_keypoint, env.keypoint_distance())


def test_what_is_held_high_is_lifted_and_its_goal_nearer():
    env, held = make(HIGH)
    env.training, drawn = False, []
    env.draw_goal = lambda: drawn.append(type(env).draw_goal(env)) or drawn[-1]
    env.set_goal(EVERYWHERE)
    env.begin_with(held, torch.full_like(env.kind, HIGH))
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
    assert terms["keypoint"][high].any() and terms["lift"][~high].any() and terms["fingertip"][~high].any()


@pytest.mark.parametrize("begin, later", [("reset_where", AT_FIRST), ("begin_next_goal", AFTER_A_SUCCESS)])
def test_goals_begin_most_with_starts_within_reach(begin, later):
    env, _ = make()
    env.held_count[:] = torch.arange(ORIGINAL) > HIGH
    solved, drawn = torch.tensor([0.0, 0.3, 0.1, 0.0, 0.9, 0.9, 0.9, 0.9, 0.2, 0.2, 0.2, 0.25, 0.3]), []
    for _ in range(200):
        env.solved_share.copy_(solved)
        env.successes.fill_(1.0)
        getattr(env, begin)(EVERYWHERE)
        drawn.append(env.kind)
    weight = torch.tensor([0.0, 0.07443, 0.07217, 0.01, *[9e-05] * 4, *later])  # (p + 0.01) (1 - p)^4
    share = torch.cat(drawn).bincount(minlength=13) / 4_800.0
    torch.testing.assert_close(share, weight / weight.sum(), atol=0.03, rtol=0.0)
    assert share[3] > 0.01  # never solved, and tried


def test_a_success_counts_for_the_kind_that_its_goal_began_with():
    env, held = make(LOW)
    env.shortened.fill_(False)
    env.episode_length.fill_(1)
    env.near_steps.fill_(30)
    env.begin_next_goal(held)
    expected = torch.full((13,), 0.5)
    expected[LOW] += 0.5 * held.sum() / (held.sum() + 500.0)
    torch.testing.assert_close(env.solved_share, expected)
    env.kind.fill_(FAR)
    env.near_steps.fill_(29)
    env.shortened[12:] = True
    env.reset_where(EVERYWHERE)
    expected[FAR] -= 0.5 * 12 / 512.0
    torch.testing.assert_close(env.solved_share, expected)


def test_an_episode_ends_where_the_object_leaves_the_hand_that_it_began_in_or_nothing_comes_of_it():
    env, held = make(HIGH)
    env.episode_step[:6] = PATIENCE - 1
    env.closest_fingertip[6:12, 0] -= 0.3  # one finger alone
    qpos = env.engine.qpos.clone()
    qpos[12:, 23:26] = (env.palm_centre() + torch.tensor([0.0, 0.0, 0.5]))[12:]
    env.engine.set_state(EVERYWHERE, qpos, torch.zeros_like(env.engine.qvel))
    _, _, terminated, truncated, _ = env.step(torch.zeros(24, 23))
    assert truncated.sum() == truncated[:6].sum() == 6
    assert torch.equal(terminated, held & (torch.arange(24) >= 12)) and terminated.any()


@pytest.mark.parametrize("env_id", [REGRASPING, REORIENTATION])
def test_an_evaluation_plays_the_original_starts(env_id, capsys):
    ours, original = envs.make(env_id, 8), envs.make(env_id[: -len("HeldStarts")], 8)
    assert torch.equal(ours.reset()[:, :-23], original.reset())
    assert not ours.held_count.any() and capsys.readouterr().out == ""
    env, _ = make(LOW, env_id)
    env.training, before = False, env.kind
    env.begin_next_goal(EVERYWHERE)
    assert torch.equal(env.kind, before) and not env.lost(env.lifted, env.closest_fingertip + 1.0).any()


def test_a_resumed_run_goes_on_exactly(capsys):
    first, _ = make()
    second = envs.make(REGRASPING, 24, seed=5, training=True)
    second.reset()
    second.load_state_dict(first.state_dict())
    capsys.readouterr()
    for step in range(6):
        first.episode_step[step::6] = second.episode_step[step::6] = 10_000  # begin anew
        action = 2.0 * torch.rand(24, 23, generator=torch.Generator().manual_seed(step)) - 1.0
        for a, b in zip(first.step(action)[:4], second.step(action)[:4]):
            assert torch.equal(a, b)
    assert 0 < (first.kind < ORIGINAL).sum() < 24 and capsys.readouterr().out == ""
