"""The contract of envs/base.py on every task and on a task of a user's own; then the numbers of Moat, by hand."""

import gc
import io
import math
import os
import pathlib
import runpy
import subprocess
import sys
import weakref
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import envs
from envs.base import VectorEnv
from envs.check import ContractError, check_env, check_state, may_be_constants
from envs.models import allegro_kuka_scene
from tests.conftest import DRIFT, Drift
from tests.envs.helpers import random_actions, rendered, started

ENV_IDS = [*envs.TASKS, DRIFT]  # DRIFT is package.module:Class
every_env = pytest.mark.parametrize("env_id", ENV_IDS)


def last_are_zero(count):
    return lambda obs: (obs[..., -count:] == 0.0).all(-1)


# Does an observation (..., D) show the beginning of an episode? A new task must say here how one tells.
BEGINNINGS = {
    "A1Parkour": lambda obs: (obs[..., :5] == 0.0).all(-1) & (obs[..., 22:46] == 0.0).all(-1),  # at rest, no action yet
    "AllegroHand": last_are_zero(16),  # no action yet
    **{env_id: last_are_zero(4) for env_id in ENV_IDS if "Kuka" in env_id},  # lifted, clock, successes, last reward
    "Ant": last_are_zero(32),  # no sensors, no action yet
    "Anymal": lambda obs: (obs[..., 36:] == 0.0).all(-1) & (obs[..., :6] == 0.0).all(-1),  # no action yet, base at rest
    "Cartpole": lambda obs: (obs.abs() <= torch.tensor([0.1, 0.25, 0.1, 0.25])).all(-1),
    "FrankaCubePush": lambda obs: (obs[..., 17:] == 0.035).all(-1),  # fingers, which never come back there exactly
    "FrankaCubeStack": lambda obs: (obs[..., 17:] == 0.035).all(-1),
    "Grasp": lambda obs: (obs[..., 2] == 0.7) & (obs[..., 12] == 0.0),  # height of the hand, nothing held
    "Humanoid": last_are_zero(54),  # no sensors, no action yet
    "Moat": lambda obs: (obs[..., 4:8] == 0.0).all(-1) & (obs[..., 8] == -1.0),  # at rest, clock
    "ShadowHand": lambda obs: (obs[..., 48:72] == 0.0).all(-1) & (obs[..., 161:] == 0.0).all(-1),  # forces, last action
    DRIFT: lambda obs: (obs[..., :2].abs() <= 0.5).all(-1) & (obs[..., 2] == 0.0),
}


@lru_cache(maxsize=None)
def episodes(env_id):
    """One random agent for a bit more than an episode: [(obs before, step's five results), ...], all as returned.

    Of our own tasks, whose clock can be set, the last 200 steps of one.
    """
    env = started(env_id, 4)
    obs = env.observe()
    history = []
    num_steps = env.max_episode_steps
    if env_id in envs.TASKS:
        num_steps = min(num_steps, 200)
        env.episode_step += env.max_episode_steps - num_steps
    for action in random_actions(env, num_steps + 20):
        history.append((obs, env.step(action)))
        obs = history[-1][1][0]
    return history


def assert_same(a, b):
    """Whether what two steps returned is the same, bit by bit."""
    for x, y in zip(a[:4], b[:4]):
        assert torch.equal(x, y)
    assert torch.equal(a[4]["final_obs"], b[4]["final_obs"])
    for group in ("episode", "metrics"):
        x = a[4][group]
        y = b[4][group]
        assert x.keys() == y.keys()
        assert all(torch.equal(torch.as_tensor(x[k]), torch.as_tensor(y[k])) for k in x)


# ---------------------------------------------------------------- the contract


@every_env
def test_what_a_user_may_check_too(env_id):
    """Shapes, types, devices, finite numbers, ends, resets, states: envs/check.py."""
    env = envs.make(env_id, 4)
    assert all(isinstance(n, int) and n > 0 for n in (env.num_obs, env.num_actions, env.max_episode_steps))
    assert env.fitness_floor > 0
    assert isinstance(env.engine_name, str)
    check_env(env, 2_000 if env_id in envs.PURE_TORCH else 30)
    check_state(env)


@every_env
def test_records_of_episodes_and_where_the_next_ones_begin(env_id):
    returns = torch.zeros(4)
    lengths = torch.zeros(4)
    finished = 0
    begins = BEGINNINGS[env_id]
    for _, (next_obs, reward, terminated, truncated, info) in episodes(env_id):
        done = terminated | truncated
        episode = info["episode"]
        returns = returns + reward
        lengths = lengths + 1
        assert torch.equal(episode["done"], done)
        assert torch.allclose(episode["return"][done], returns[done], rtol=1e-5, atol=1e-4)
        assert torch.equal(episode["length"][done], lengths[done])
        assert begins(next_obs)[done].all()
        assert not begins(info["final_obs"])[done].any()
        assert all(torch.as_tensor(x).ndim == 0 and math.isfinite(x) for x in info["metrics"].values())
        returns = returns * ~done
        lengths = lengths * ~done
        finished += done.sum()
    assert finished >= 4


@every_env
def test_what_was_returned_does_not_change_later(env_id):
    env = started(env_id, 4)
    returned = [env.observe()]
    copies = [returned[0].clone()]
    for action in random_actions(env, 3):
        obs, reward, terminated, truncated, info = env.step(action)
        new = [obs, reward, terminated, truncated, info["final_obs"], *info["episode"].values()]
        new += [value for value in info["metrics"].values() if isinstance(value, torch.Tensor)]
        returned += new
        copies += [x.clone() for x in new]
    env.load_state_dict(started(env_id, 4, seed=2).state_dict())
    assert all(torch.equal(a, b) for a, b in zip(returned, copies))


class Waits(TorchDispatchMode):
    """Counts what makes the host wait for a GPU, and all operators that launch something: views do not."""

    count = launches = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.launches += not func.is_view
        masks = args[1] if str(func).startswith(("aten.index.", "aten.index_put")) else []
        self.count += any(x is not None and x.dtype == torch.bool for x in masks)
        self.count += str(func).startswith(("aten._local_scalar_dense", "aten.nonzero", "aten.masked_select"))
        return func(*args, **(kwargs or {}))


@every_env
def test_an_environment_that_nobody_holds_is_gone(env_id):
    """At once, before the garbage collector finds it: an engine takes gigabytes of a GPU."""
    gc.disable()
    try:
        env = started(env_id)
        env.step(torch.zeros(2, env.num_actions))
        gone = weakref.ref(env)
        del env
        assert gone() is None
    finally:
        gc.enable()


@every_env
def test_a_step_does_not_wait_for_a_gpu(env_id, monkeypatch):
    """AllegroKuka's asks whether there are successes and resets, since placing an object takes so many operators."""
    env = started(env_id, 4)
    for name in ("step", "set_state", "set_mocap"):  # the engine's own: see tests of engines
        if env.engine:
            monkeypatch.setattr(env.engine, name, lambda *args: None)
    with Waits() as waits:
        env.episode_return[env.episode_return > 0.0] = 0.0
    assert waits.count == 1
    with Waits() as waits:
        env.step(torch.zeros(4, env.num_actions))
    assert waits.count == (2 if env_id.startswith("AllegroKuka") else 0)


@every_env
def test_a_step_launches_few_operators(env_id):
    """Each costs the host of a GPU microseconds, however few environments. An episode ends in half of the steps."""
    env = started(env_id, 64)
    with Waits() as waits:
        for step, action in enumerate(random_actions(env, 12)):
            env.episode_step[0] = step % 2 * env.max_episode_steps
            env.step(action)
    assert waits.launches / 12 <= (500 if env_id.startswith("AllegroKuka") else 300)


def test_the_learners_low_precision_is_not_the_tasks(monkeypatch):
    env = envs.make("Cartpole", 4)
    matmul = torch.backends.cuda.matmul
    seen = []
    observe = env.observe
    monkeypatch.setattr(env, "observe", lambda: seen.append(matmul.allow_tf32) or observe())
    matmul.allow_tf32 = True
    try:
        env.reset()
        env.step(torch.zeros(4, 1))
        assert seen
        assert not any(seen)
        assert matmul.allow_tf32
    finally:
        matmul.allow_tf32 = False


@every_env
def test_final_obs_is_what_would_be_observed_without_the_reset(env_id):
    env = started(env_id, 4)
    action, *before = random_actions(env, 4, seed=1)
    for each in before:
        env.step(each)
    env.episode_step[0] = env.max_episode_steps - 1
    state = env.state_dict()
    step = env.step(action)
    unreset = started(env_id, 4, seed=2)
    unreset.load_state_dict(state)
    unreset._begin_episodes = lambda mask: None
    obs, reward, terminated, truncated, _ = unreset.step(action)
    assert truncated[0] or terminated[0]
    assert torch.equal(step[4]["final_obs"], obs)
    assert not torch.equal(step[0][0], obs[0])
    assert all(torch.equal(a, b) for a, b in zip(step[1:4], (reward, terminated, truncated)))


@every_env
def test_the_time_limit_truncates(env_id):
    env = started(env_id, 4)
    env.episode_step.copy_(env.max_episode_steps - torch.tensor([3, 2, 1, 3]))
    ends = [env.step(torch.zeros(4, env.num_actions))[3].tolist() for _ in range(2)]
    assert ends == [[False, False, True, False], [False, True, False, False]]


def test_termination_goes_before_truncation():
    class Both(VectorEnv):
        num_obs = 1
        num_actions = 1
        max_episode_steps = 2

        def reset_where(self, mask):
            pass

        def observe(self):
            return torch.zeros(self.num_envs, 1)

        def advance(self, action):  # 0: nothing, 1: terminated, 2: truncated, 3: both
            kind = torch.arange(4)
            return torch.ones(4), kind % 2 == 1, kind >= 2

    env = Both(4, "cpu", 1)
    env.reset()
    for terminated, truncated in ([[0, 1, 0, 1], [0, 0, 1, 0]], [[0, 1, 0, 1], [1, 0, 1, 0]]):
        _, _, term, trunc, info = env.step(torch.zeros(4, 1))
        assert (term.tolist(), trunc.tolist()) == (terminated, truncated)
    assert info["episode"]["length"].tolist() == [2.0, 1.0, 1.0, 1.0] == info["episode"]["return"].tolist()
    with pytest.raises(NotImplementedError):
        env.render(0)


@every_env
def test_reset_begins_all_episodes_anew(env_id):
    env = started(env_id, 4)
    first = env.observe().clone()
    for action in random_actions(env, 5):
        env.step(action)
    again = env.reset()
    assert env.episode_length.tolist() == [0] * 4
    assert env.episode_return.tolist() == [0.0] * 4
    assert torch.equal(again, env.observe())
    assert not torch.equal(again, first)
    assert BEGINNINGS[env_id](again).all()


@every_env
def test_seeds(env_id):
    env, twin, other = (started(env_id, 4, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(env.observe(), twin.observe())
    assert (env.observe() != other.observe()).any(1).all()
    assert len(env.observe().unique(dim=0)) == 4  # nor do environments start alike
    torch.manual_seed(0)  # the global generator is not the environment's
    for i, action in enumerate(random_actions(env, 30)):
        if i == 10:
            env.episode_step[2] = twin.episode_step[2] = env.max_episode_steps - 1  # resets draw numbers too
        step = env.step(action)
        torch.rand(1)
        assert_same(step, twin.step(action))


@pytest.mark.parametrize("training", [False, True])
@every_env
def test_state_dict_continues_exactly(env_id, training):
    env = envs.make(env_id, 4, training=training)
    env.reset()
    moves = random_actions(env, 30)
    for action in moves[:10]:
        env.step(action)
    env.episode_step[1] = env.max_episode_steps - 5  # a reset on the way
    file = io.BytesIO()
    torch.save(env.state_dict(), file)
    uninterrupted = [env.step(action) for action in moves[10:]]
    other = envs.make(env_id, 4, seed=2, training=training)
    other.reset()
    other.step(moves[0])
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    for action, step in zip(moves[10:], uninterrupted):
        assert_same(step, other.step(action))
    assert any((step[2] | step[3])[1] for step in uninterrupted)


@every_env
def test_what_is_saved_belongs_to_environments(env_id):
    """Else it is one number, such as a curriculum's. Tables, such as joint limits, are constants."""
    assert may_be_constants(started(env_id, 5)) == []


def test_an_edited_constant_survives_a_resume_and_the_state_is_restored(monkeypatch):
    first = started("AllegroKukaRegrasping", 2)
    limit = first.joint_upper.clone()
    by_an_older_commit = {**first.state_dict(), "joint_upper": limit}
    monkeypatch.setattr(allegro_kuka_scene, "JOINT_UPPER", 0.9 * allegro_kuka_scene.JOINT_UPPER)
    for state in (first.state_dict(), by_an_older_commit):
        second = started("AllegroKukaRegrasping", 2, seed=2)
        second.load_state_dict(state)
        torch.testing.assert_close(second.joint_upper, 0.9 * limit)
        assert torch.equal(second.target, first.target)
        assert torch.equal(second.engine.qpos, first.engine.qpos)
    assert "joint_upper" not in first.state_dict()


def test_a_constant_is_a_copy_and_no_state_takes_its_name():
    env = started(DRIFT, 2)
    env.start = env.constant(env.position)
    start = env.start.clone()
    env.position += 1.0
    assert torch.equal(env.start, start)
    assert "position" in env.state_dict()
    assert "start" not in env.state_dict()
    with pytest.raises(AttributeError, match="^start is a constant"):
        env.start = env.start + 1.0
    env.start = env.constant([1, 2], dtype=torch.long)
    assert env.start.tolist() == [1, 2]


def test_a_state_from_another_kind_of_device_or_of_another_size():
    env = started("Moat", 4)
    other = started("Moat", 4, seed=2)
    other.load_state_dict({**env.state_dict(), "generator": torch.zeros(16, dtype=torch.uint8)})  # as long as a GPU's
    assert torch.equal(other.observe(), env.observe())
    with pytest.raises(ValueError, match=r"^episode_step has shape \(4,\), must be \(1,\)$"):
        started("Moat", 1).load_state_dict(env.state_dict())


@every_env
def test_actions_are_clamped(env_id):
    env = started(env_id, 4)
    twin = started(env_id, 4)
    for action in 3.0 * random_actions(env, 5):
        assert_same(env.step(action), twin.step(action.clamp(-1.0, 1.0)))


@every_env
def test_render(env_id):
    env = started(env_id, 4)
    if type(env).render is VectorEnv.render:
        pytest.skip("draws nothing")
    image = rendered(env, 3)
    assert isinstance(image, np.ndarray)
    image = torch.as_tensor(image)
    assert image.ndim == 3
    assert image.shape[2] == 3
    assert image.dtype == torch.uint8
    assert image.float().std() > 1.0


# ---------------------------------------------------------------- python -m envs.check


class Broken(Drift):
    """Drift with one mistake."""

    def __init__(self, mistake):
        super().__init__(8, "cpu", 1)
        self.mistake = mistake
        self.hidden = [0.0]
        self.scale = self.constant(1.0)
        if mistake == "numpy":
            self.part = SimpleNamespace(state_dict=lambda: {"x": np.zeros(3)}, load_state_dict=lambda state: None)

    def step(self, action):
        if self.mistake == "action":
            action.mul_(0.5)
        obs, reward, terminated, truncated, info = super().step(action)
        if self.mistake == "done":
            info["episode"]["done"][:] = True
        if self.mistake == "final":
            info["final_obs"] += 1.0
        return obs, reward, terminated, truncated | terminated if self.mistake == "both" else truncated, info

    def reset_where(self, mask):
        super().reset_where(torch.ones_like(mask) if self.mistake == "reset" else mask)

    def advance(self, action):
        reward, failed, late = super().advance(action)
        self.hidden[0] += 1.0
        if self.mistake == "reward state":
            reward = reward + self.hidden[0]
        if self.mistake == "constant":
            self.scale *= 0.5
        if self.mistake == "new":
            self.last_action = action.clone()
        return reward / 0.0 if self.mistake == "infinite" else reward, failed, late

    def observe(self):
        obs = super().observe()
        return obs.double() if self.mistake == "double" else obs + self.hidden[0] * (self.mistake == "state")


class Falls(Drift):
    """What it observes outside of its square is not a number."""

    def observe(self):
        return super().observe().masked_fill((self.position.abs() > 1.2).any(1)[:, None], math.nan)


def test_a_terminated_episodes_last_observation_may_be_nan():
    env = Falls(8, "cpu", 1)
    _, finished = check_env(env, 50)
    assert finished > 0


class Late(Drift):
    """Drift whose last observation before the time limit is not a number."""

    def observe(self):
        return super().observe().masked_fill((self.episode_step == 7)[:, None], math.nan)


def test_a_truncated_episodes_last_observation_must_be_a_number():
    with pytest.raises(ContractError, match="final_obs.* not finite"):
        check_env(Late(8, "cpu", 1), 50)


@pytest.mark.parametrize(
    "mistake, message",
    [
        ("action", "changes the action"),
        ("done", "running episode"),
        ("final", "final_obs differs"),
        ("both", "both terminated and truncated"),
        ("double", "observation of reset.. is .torch.float64"),
        ("infinite", "not finite"),
        ("reset", "final_obs differs"),
        ("state", "not all of the"),
        ("reward state", "not all of the"),
        ("constant", "scale changes, but is a constant"),
        ("numpy", "holds a numpy"),
    ],
)
def test_a_mistake_is_found(mistake, message):
    env = Broken(mistake)
    with pytest.raises(ContractError, match=message):
        check_env(env, 50)
        check_state(env)


def test_a_tensor_that_is_first_created_in_a_step_is_found():
    with pytest.raises(ContractError, match="last_action is created in step"):
        check_state(Broken("new"))


def test_a_mistake_is_found_without_asserts(tmp_path):
    (tmp_path / "broken.py").write_text("""
import torch
from envs.base import VectorEnv

class Double(VectorEnv):
    num_obs = 1
    num_actions = 1
    max_episode_steps = 5
    def reset_where(self, mask): pass
    def advance(self, action): return self.zeros(), self.zeros(dtype=torch.bool), self.zeros(dtype=torch.bool)
    def observe(self): return self.zeros(1, dtype=torch.float64)
""")
    command = [sys.executable, "-O", "-m", "envs.check", "broken:Double"]
    root = str(pathlib.Path(envs.__file__).parents[1])
    process = subprocess.run(command, env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True)
    assert process.returncode == 1
    (line,) = process.stderr.splitlines()
    assert line.startswith("broken:Double: the observation of ")


def test_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["check", DRIFT])
    runpy.run_module("envs.check", run_name="__main__")
    assert capsys.readouterr().out.startswith(f"{DRIFT}: ")
    begin = Drift.__init__

    def with_a_table(self, *args):
        begin(self, *args)
        self.table = self.tensor([1.0, 2.0])

    monkeypatch.setattr(Drift, "__init__", with_a_table)
    runpy.run_module("envs.check", run_name="__main__")
    assert capsys.readouterr().out.startswith("table ")  # which is a constant, perhaps
    monkeypatch.setattr(sys, "argv", ["check", "nowhere:Task"])
    with pytest.raises(SystemExit, match="^nowhere:Task: "):
        runpy.run_module("envs.check", run_name="__main__")


# ---------------------------------------------------------------- make


def test_a_task_of_ones_own_is_found_in_the_working_directory_but_hides_no_package(tmp_path, monkeypatch):
    methods = "def __init__(self, *args): self.args = args\n    reset = step = None\n"
    (tmp_path / "found_here.py").write_text(f"import av\nclass Task:\n    {methods}")
    (tmp_path / "av").mkdir()
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert envs.make("found_here:Task", 5, "cpu", 7).args == (5, "cpu", 7)
    assert str(tmp_path) not in sys.modules["av"].__path__
