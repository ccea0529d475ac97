"""The toy Grasp by hand: each term of the reward, each rule, where episodes begin and end."""

import pytest
import torch

import envs
from envs.tasks.grasp import POSTURE

STILL = torch.zeros(1, 6)


def placed(hand=(0.0, 0.0, 0.5), fingers=POSTURE, object_=(0.0, 0.0, 0.5), goal=(1.0, 1.0, 1.0), lifted=False):
    """One environment in the middle of an episode, no records yet."""
    env = envs.make("Grasp", 1, "cpu", 1)
    env.reset()
    for tensor, value in ((env.hand, hand), (env.fingers, fingers), (env.object, object_), (env.goal, goal)):
        tensor.copy_(torch.tensor([value]))
    env.lifted.fill_(lifted)
    env.episode_step.zero_()
    return env


def reward(env, action=STILL):
    return env.step(action)[1].item()


# ---------------------------------------------------------------- rules


def test_hand_and_fingers_move_and_stop_at_their_limits():
    env = placed(hand=(0.0, 1.15, 0.05), fingers=(0.0, 0.95, -0.95), object_=(0.9, 0.0, 0.0))
    env.step(torch.tensor([[0.5, 1.0, -1.0, 0.5, 1.0, -1.0]]))
    torch.testing.assert_close(env.hand, torch.tensor([[0.04, 1.2, 0.0]]))
    torch.testing.assert_close(env.fingers, torch.tensor([[0.05, 1.0, -1.0]]))
    env.hand.fill_(-1.15)
    env.step(torch.tensor([[-1.0, 0.0, 1.0, 0.0, 0.0, 0.0]]))
    assert env.hand[0, 0].item() == pytest.approx(-1.2)


@pytest.mark.parametrize(
    "distance, errors, held",
    [
        (0.19, (0.0, 0.0, 0.0), True),
        (0.21, (0.0, 0.0, 0.0), False),
        (0.0, (-0.39, 0.39, 0.39), True),
        (0.0, (-0.41, 0.0, 0.0), False),
        (0.0, (0.0, 0.41, 0.0), False),
        (0.0, (0.0, 0.0, 0.41), False),
    ],
)
def test_an_object_is_held_by_a_near_hand_with_every_finger_in_its_range(distance, errors, held):
    env = placed(hand=(distance, 0.0, 0.5), fingers=[q + error for q, error in zip(POSTURE, errors)])
    obs = env.step(STILL)[0]
    assert env.held.tolist() == [held] == [obs[0, 12].item() == 1.0]
    expected = [distance, 0.0, 0.5] if held else [0.0, 0.0, 0.4]  # with the hand, or falling
    assert env.object[0].tolist() == pytest.approx(expected)


def test_a_held_object_follows_the_hand_and_a_released_one_falls_to_the_ground():
    env = placed(hand=(0.0, 0.0, 0.22), object_=(0.0, 0.0, 0.22))
    env.step(torch.tensor([[1.0, -1.0, 0.25, 0.0, 0.0, 0.0]]))
    assert env.object[0].tolist() == pytest.approx([0.08, -0.08, 0.24]) == env.hand[0].tolist()
    env.fingers.zero_()
    heights = []
    for _ in range(4):
        env.step(STILL)
        heights.append(env.object[0, 2].item())
    assert heights == pytest.approx([0.14, 0.04, 0.0, 0.0], abs=1e-6)
    assert not env.held.any()
    assert env.object[0, :2].tolist() == pytest.approx([0.08, -0.08])


# ---------------------------------------------------------------- reward


def test_only_a_broken_record_of_the_distance_to_the_object_pays():
    env = placed(hand=(0.0, 0.0, 0.0), object_=(0.9, 0.0, 0.0))
    towards, away = (torch.tensor([[x, 0.0, 0.0, 0.0, 0.0, 0.0]]) for x in (1.0, -1.0))
    cost = 0.3 * 0.0005
    paid = [reward(env, action) + cost for action in (towards, towards, away, towards, towards)]
    assert paid == pytest.approx([0.0, 0.3 * 0.08, 0.0, 0.0, 0.3 * 0.08], abs=1e-6)  # the first distance pays nothing


def test_the_first_lift_pays_once_and_ends_the_pay_for_reaching():
    env = placed(hand=(0.0, 0.0, 0.19), object_=(0.0, 0.0, 0.19), goal=(1.0, 1.0, 1.0))
    up = torch.tensor([[0.0, 0.0, 0.25, 0.0, 0.0, 0.0]])
    assert reward(env) == 0.0
    assert not env.lifted.any()
    assert reward(env, up) == pytest.approx(0.3 * (3.0 - 0.0005 * 0.0625))
    assert env.lifted.all()
    env.object.copy_(torch.tensor([[0.5, 0.0, 0.0]]))  # lost on the ground, hand far away
    env.goal.copy_(torch.tensor([[-1.0, 0.0, 0.5]]))
    env.nearest_goal.fill_(0.1)  # nothing to earn there
    env.nearest_hand.fill_(2.0)
    assert reward(env) == 0.0
    assert env.lifted.all()  # nearer to the hand than ever
    env.object.copy_(env.hand)
    assert reward(env) == 0.0  # lifted again


def test_progress_to_the_goal_pays_double_from_the_lift_on():
    env = placed(goal=(0.0, 1.0, 0.5), lifted=True)
    towards = torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0, 0.0]])
    paid = [reward(env, action) for action in (towards, towards, -towards, towards, towards)]
    step = 0.3 * 2.0 * 0.08
    cost = 0.3 * 0.0005
    assert paid == pytest.approx([-cost, step - cost, -cost, -cost, step - cost], abs=1e-6)


def test_a_success_pays_counts_draws_a_goal_and_goes_on():
    env = placed(goal=(0.0, 0.27, 0.5), lifted=True)
    env.nearest_goal.fill_(0.27)
    towards = torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0, 0.0]])
    obs, paid, terminated, truncated, info = env.step(towards)
    assert paid.item() == pytest.approx(0.3 * (5.0 + 2.0 * 0.08 - 0.0005), abs=1e-6)
    assert info["episode"]["objective"].tolist() == [1.0]
    assert not (terminated | truncated).any()
    goal = env.goal[0]
    assert (goal[:2].abs() <= 1.0).all()
    assert 0.4 <= goal[2] <= 1.0
    assert goal[1].item() != pytest.approx(0.27)
    assert env.nearest_goal.isinf().all()
    torch.testing.assert_close(obs[0, 9:12], goal - env.object[0])
    env.goal.copy_(torch.tensor([[0.0, -0.9, 0.5]]))
    assert reward(env) == 0.0  # the new goal's first distance


def test_an_object_at_the_goal_that_was_never_lifted_is_no_success():
    env = placed(hand=(0.0, 0.0, 1.0), object_=(0.0, 0.0, 0.0), goal=(0.0, 0.1, 0.1))
    assert reward(env) == 0.0
    assert env.successes.item() == 0.0


# ---------------------------------------------------------------- episodes


def test_the_observation_by_hand():
    env = placed(hand=(0.1, 0.2, 0.3), fingers=(0.4, -0.5, 0.6), object_=(0.5, 0.5, 0.0), goal=(-1.0, 0.0, 0.5))
    expected = [0.1, 0.2, 0.3, 0.4, -0.5, 0.6, 0.4, 0.3, -0.3, -1.5, -0.5, 0.5, 0.0, 0.5, 0.5, 0.0]
    assert env.observe()[0].tolist() == pytest.approx(expected)


def test_starts():
    env = envs.make("Grasp", 4_000, "cpu", 1)
    env.reset()
    for values, low, high in (
        (env.hand[:, :2], -0.5, 0.5),
        (env.fingers, -0.2, 0.2),
        (env.object[:, :2], -0.6, 0.6),
        (env.goal[:, :2], -1.0, 1.0),
        (env.goal[:, 2:], 0.4, 1.0),
    ):
        span = high - low
        assert values.min() >= low
        assert values.max() <= high
        assert (values.mean(0) - (low + high) / 2).abs().max() < 0.03 * span
        assert (values.std(0) - span / 12**0.5).abs().max() < 0.02 * span
    assert (env.hand[:, 2] == 0.7).all()
    assert (env.object[:, 2] == 0.0).all()
    assert not (env.held | env.lifted).any()
    assert (env.successes == 0.0).all()


def test_an_episode_leaves_nothing_to_the_next():
    env = placed(goal=(0.0, 0.1, 0.5), lifted=True)
    env.episode_step.fill_(127)
    _, _, _, truncated, info = env.step(STILL)
    assert truncated.all()
    assert info["episode"]["objective"].tolist() == [1.0]
    assert info["final_obs"][0, 12] == 1.0
    assert not (env.held | env.lifted).any()
    assert env.successes.tolist() == [0.0]
    assert env.nearest_hand.isinf().all()
    assert env.nearest_goal.isinf().all()
    assert reward(env) == 0.0  # no record to break


@pytest.mark.parametrize("fingers, low, high", [(POSTURE, 10.0, 16.0), ((0.0, 0.0, 0.0), 0.0, 0.0)])
def test_reaching_grasping_and_carrying_by_hand_succeeds(fingers, low, high):
    """A goal is about ten steps away; without the posture there is no success."""
    env = envs.make("Grasp", 256, "cpu", 1)
    env.reset()
    objectives = []
    for step in range(256):
        target = torch.where(env.held[:, None], env.goal, env.object)
        move = torch.cat([(target - env.hand) / 0.08, (torch.tensor(fingers) - env.fingers) / 0.1], 1)
        episode = env.step(move)[4]["episode"]
        if step >= 128:  # whole episodes
            objectives.append(episode["objective"][episode["done"]])
    assert low <= torch.cat(objectives).mean() <= high
