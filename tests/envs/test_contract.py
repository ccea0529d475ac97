"""The contract of envs/base.py on every task and on a task of a user's own; then the numbers of Moat, by hand."""

import importlib
import io
import math
import sys
from functools import lru_cache

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import envs
from tests.conftest import DRIFT, Drift
from envs.base import VectorEnv
from harness import checkpoints
from envs.tasks.moat import moat_value

ENV_IDS = [*envs.TASKS, DRIFT]  # DRIFT is package.module:Class
every_env = pytest.mark.parametrize("env_id", ENV_IDS)

# Does an observation (..., D) show the beginning of an episode? A new task must say here how one tells.
BEGINNINGS = {
    "AllegroHand": lambda obs: (obs[..., 72:] == 0.0).all(-1),  # no action yet
    "AllegroKukaRegrasping": lambda obs: (obs[..., 95:] == 0.0).all(-1),  # lifted, clock, successes, last reward
    "AllegroKukaRegraspingHeldStarts": lambda obs: (obs[..., 95:] == 0.0).all(-1),
    "AllegroKukaReorientation": lambda obs: (obs[..., 113:] == 0.0).all(-1),  # the same entries
    "AllegroKukaReorientationHeldStarts": lambda obs: (obs[..., 113:] == 0.0).all(-1),
    "AllegroKukaThrow": lambda obs: (obs[..., 95:] == 0.0).all(-1),
    "AllegroKukaTwoArmsRegrasping": lambda obs: (obs[..., 165:] == 0.0).all(-1),
    "AllegroKukaTwoArmsReorientation": lambda obs: (obs[..., 192:] == 0.0).all(-1),
    "AllegroKukaTwoArmsReorientationBarrier": lambda obs: (obs[..., 192:] == 0.0).all(-1),
    "AllegroKukaTwoArmsReorientationHole": lambda obs: (obs[..., 192:] == 0.0).all(-1),
    "AllegroKukaTwoArmsReorientationPartition": lambda obs: (obs[..., 192:] == 0.0).all(-1),
    "Ant": lambda obs: (obs[..., 28:] == 0.0).all(-1),  # no sensors, no action yet
    "Anymal": lambda obs: (obs[..., 36:] == 0.0).all(-1) & (obs[..., :6] == 0.0).all(-1),  # no action yet, base at rest
    "Cartpole": lambda obs: (obs.abs() <= torch.tensor([0.1, 0.25, 0.1, 0.25])).all(-1),
    "FrankaCubePush": lambda obs: (obs[..., 17:] == 0.035).all(-1),  # fingers, which never come back there exactly
    "FrankaCubeStack": lambda obs: (obs[..., 17:] == 0.035).all(-1),
    "Grasp": lambda obs: (obs[..., 2] == 0.7) & (obs[..., 12] == 0.0),  # height of the hand, nothing held
    "Humanoid": lambda obs: (obs[..., 54:] == 0.0).all(-1),  # no sensors, no action yet
    "Moat": lambda obs: (obs[..., 4:8] == 0.0).all(-1) & (obs[..., 8] == -1.0),  # at rest, clock
    "ShadowHand": lambda obs: (obs[..., 48:72] == 0.0).all(-1) & (obs[..., 161:] == 0.0).all(-1),  # forces, last action
    DRIFT: lambda obs: (obs[..., :2].abs() <= 0.5).all(-1) & (obs[..., 2] == 0.0),
}


def actions(env, num_steps, seed=0, spread=1.0):
    """Uniform actions (num_steps, N, U) in [-spread, spread]."""
    size = (num_steps, env.num_envs, env.num_actions)
    return spread * (2.0 * torch.rand(size, generator=torch.Generator().manual_seed(seed)) - 1.0)


def started(env_id, num_envs=4, seed=1):
    env = envs.make(env_id, num_envs, "cpu", seed)
    return env, env.reset()


@lru_cache(maxsize=None)
def episodes(env_id):
    """One random agent for a bit more than an episode: [(obs before, step's five results), ...], all as returned.

    Of our own tasks, whose clock can be set, the last 200 steps of one.
    """
    env, obs = started(env_id)
    history, num_steps = [], env.max_episode_steps
    if env_id in envs.TASKS:
        num_steps = min(num_steps, 200)
        env.episode_step += env.max_episode_steps - num_steps
    for action in actions(env, num_steps + 20):
        history.append((obs, env.step(action)))
        obs = history[-1][1][0]
    return history


def assert_same(a, b):
    """Whether what two steps returned is the same, bit by bit."""
    for x, y in zip(a[:4], b[:4]):
        assert torch.equal(x, y)
    assert torch.equal(a[4]["final_obs"], b[4]["final_obs"])
    for group in ("episode", "metrics"):
        x, y = a[4][group], b[4][group]
        assert x.keys() == y.keys() and all(torch.equal(torch.as_tensor(x[k]), torch.as_tensor(y[k])) for k in x)


# ---------------------------------------------------------------- the contract


@every_env
def test_shapes_and_types(env_id):
    env, first = started(env_id)
    assert env.num_envs == 4 and env.device == torch.device("cpu")
    assert all(isinstance(n, int) and n > 0 for n in (env.num_obs, env.num_actions, env.max_episode_steps))
    assert env.fitness_floor > 0 and isinstance(env.engine_name, str)
    obs, reward, terminated, truncated, info = env.step(torch.zeros(4, env.num_actions))
    assert info.keys() == {"final_obs", "episode", "metrics"}
    episode = info["episode"]
    assert episode.keys() == {"done", "return", "length", "objective"}
    for x in (first, obs, info["final_obs"]):
        assert x.shape == (4, env.num_obs) and x.dtype == torch.float32 and x.device == env.device
    for x in (reward, episode["return"], episode["length"], episode["objective"]):
        assert x.shape == (4,) and x.dtype == torch.float32 and x.device == env.device
    for x in (terminated, truncated, episode["done"]):
        assert x.shape == (4,) and x.dtype == torch.bool and x.device == env.device


@every_env
def test_metrics_are_scalars(env_id):
    for _, (*_, info) in episodes(env_id):
        for name, value in info["metrics"].items():
            assert isinstance(name, str) and torch.as_tensor(value).ndim == 0 and math.isfinite(value)


@every_env
def test_what_was_returned_does_not_change_later(env_id):
    env, obs = started(env_id)
    returned, copies = [obs], [obs.clone()]
    for action in actions(env, 3):
        before = action.clone()
        obs, reward, terminated, truncated, info = env.step(action)
        assert torch.equal(action, before)
        new = [obs, reward, terminated, truncated, info["final_obs"], *info["episode"].values()]
        new += [value for value in info["metrics"].values() if isinstance(value, torch.Tensor)]
        returned += new
        copies += [x.clone() for x in new]
    env.load_state_dict(started(env_id, seed=2)[0].state_dict())
    assert all(torch.equal(a, b) for a, b in zip(returned, copies))


class Waits(TorchDispatchMode):
    """Counts what makes the host wait for a GPU."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        masks = args[1] if str(func).startswith(("aten.index.", "aten.index_put")) else []
        self.count += any(x is not None and x.dtype == torch.bool for x in masks)
        self.count += str(func).startswith(("aten._local_scalar_dense", "aten.nonzero", "aten.masked_select"))
        return func(*args, **(kwargs or {}))


@every_env
def test_a_step_does_not_wait_for_a_gpu(env_id, monkeypatch):
    """AllegroKuka's asks whether there are successes and resets, since placing an object takes so many operators."""
    env, _ = started(env_id)
    for name in ("step", "set_state", "set_mocap"):  # the engine's own: see tests of engines
        if env.engine:
            monkeypatch.setattr(env.engine, name, lambda *args: None)
    with Waits() as waits:
        env.episode_return[env.episode_return > 0.0] = 0.0
    assert waits.count == 1
    with Waits() as waits:
        env.step(torch.zeros(4, env.num_actions))
    assert waits.count == (2 if env_id.startswith("AllegroKuka") else 0)


class OnMeta:
    """An engine on torch's device meta, where tensors have shapes but no data."""

    def __init__(self, engine):
        self.name = engine.name
        for name in ("qpos", "qvel", "sensors", "body_pos", "body_quat", "body_linvel", "body_angvel", "broken"):
            setattr(self, name, getattr(engine, name).to("meta"))

    def step(self, ctrl, xfrc=None):
        assert ctrl.is_meta and (xfrc is None or xfrc.is_meta)

    def set_state(self, mask, qpos, qvel):
        assert mask.is_meta and qpos.is_meta and qvel.is_meta

    def set_mocap(self, mask, pose):
        assert mask.is_meta and pose.is_meta


class NoGenerator:
    """The device meta has none; None stands for the global one."""

    def __init__(self, device):
        pass

    def manual_seed(self, seed):
        return None


@pytest.mark.parametrize("env_id", envs.TASKS)
def test_everything_is_on_the_device(env_id, monkeypatch):
    """A tensor made on the CPU by mistake cannot be combined with tensors on the device meta."""
    if env_id not in envs.PURE_TORCH:
        modules = [importlib.import_module(parent.__module__) for parent in envs.find_class(env_id).__mro__]
        module = next(module for module in modules if hasattr(module, "make_engine"))
        make = module.make_engine
        monkeypatch.setattr(module, "make_engine", lambda *args, **sizes: OnMeta(make(*args[:5], "cpu", **sizes)))
    monkeypatch.setattr(torch, "Generator", NoGenerator)
    monkeypatch.setattr("envs.base.DEVICES", ("meta",))
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda value: True)  # no data: every mask is taken for full
    monkeypatch.setattr(torch.Tensor, "nonzero", lambda mask: torch.arange(len(mask), device=mask.device)[:, None])
    env = envs.make(env_id, 4, "meta")
    env.reset()
    *results, info = env.step(torch.zeros(4, env.num_actions, device="meta"))
    results += [info["final_obs"], *info["episode"].values(), *info["metrics"].values()]
    assert all(x.is_meta for x in results + list(vars(env).values()) if isinstance(x, torch.Tensor))


def test_the_learners_low_precision_is_not_the_tasks(monkeypatch):
    env, matmul, seen = envs.make("Cartpole", 4), torch.backends.cuda.matmul, []
    observe = env.observe
    monkeypatch.setattr(env, "observe", lambda: seen.append(matmul.allow_tf32) or observe())
    matmul.allow_tf32 = True
    try:
        env.reset()
        env.step(torch.zeros(4, 1))
        assert seen and not any(seen) and matmul.allow_tf32
    finally:
        matmul.allow_tf32 = False


def test_a_state_from_another_kind_of_device():
    env, _ = started("Moat")
    state = {**env.state_dict(), "generator": torch.zeros(16, dtype=torch.uint8)}  # as long as a GPU's
    other, _ = started("Moat", seed=2)
    other.load_state_dict(state)
    assert torch.equal(other.observe(), env.observe())


@every_env
def test_episode_records_are_sums_and_counts(env_id):
    returns, lengths, finished = torch.zeros(4), torch.zeros(4), 0
    for _, (_, reward, terminated, truncated, info) in episodes(env_id):
        done = terminated | truncated
        assert torch.equal(info["episode"]["done"], done)
        returns, lengths = returns + reward, lengths + 1
        assert torch.allclose(info["episode"]["return"][done], returns[done], rtol=1e-5, atol=1e-4)
        assert torch.equal(info["episode"]["length"][done], lengths[done])
        assert info["episode"]["objective"][done].isfinite().all()
        returns, lengths = returns * ~done, lengths * ~done
        finished += done.sum()
    assert finished >= 4


@every_env
def test_a_finished_environment_begins_its_next_episode_within_the_step(env_id):
    begins = BEGINNINGS[env_id]
    for obs, (next_obs, _, terminated, truncated, info) in episodes(env_id):
        done = terminated | truncated
        assert not (terminated & truncated).any()
        assert begins(next_obs)[done].all()
        assert not begins(info["final_obs"])[done].any()
        assert torch.equal(next_obs[~done], info["final_obs"][~done])


@every_env
def test_final_obs_is_what_would_be_observed_without_the_reset(env_id):
    env, _ = started(env_id)
    for action in actions(env, 3, seed=1):
        env.step(action)
    env.episode_step[0] = env.max_episode_steps - 1
    state = env.state_dict()
    step = env.step(actions(env, 1)[0])
    unreset, _ = started(env_id, seed=2)
    unreset.load_state_dict(state)
    unreset._begin_episodes = lambda mask: None
    obs, reward, terminated, truncated, _ = unreset.step(actions(env, 1)[0])
    assert truncated[0] or terminated[0]
    assert torch.equal(step[4]["final_obs"], obs) and not torch.equal(step[0][0], obs[0])
    assert all(torch.equal(a, b) for a, b in zip(step[1:4], (reward, terminated, truncated)))


class InPlaceDrift(Drift):
    """Returns its own tensors, and changes them in place at a reset."""

    def __init__(self, num_envs, device, seed):
        super().__init__(num_envs, device, seed)
        self.seen, self.score, self.reward = torch.zeros(num_envs, 3), torch.zeros(num_envs), torch.zeros(num_envs)
        self.failed, self.late = torch.zeros(2, num_envs, dtype=torch.bool)

    def reset_where(self, mask):
        self.position[mask] = self.uniform(-0.5, 0.5, 2)[mask]
        for tensor in (self.seen, self.score, self.reward, self.failed):
            tensor[mask] = 0

    def advance(self, action):
        reward, failed, _ = super().advance(action)
        self.reward[:], self.failed[:] = reward, failed
        return self.reward, self.failed, self.late

    def observe(self):
        self.seen[:] = super().observe()
        return self.seen

    def objective(self):
        self.score[:] = super().objective()
        return self.score


def test_a_task_may_return_its_own_tensors():
    env, other = Drift(16, "cpu", 1), InPlaceDrift(16, "cpu", 1)
    assert torch.equal(env.reset(), other.reset())
    ended = 0
    for action in actions(env, 30):
        step, other_step = env.step(action), other.step(action)
        assert_same(step, other_step)
        ended += step[4]["episode"]["done"].sum()
    assert ended > 16


@every_env
def test_the_time_limit_truncates(env_id):
    env, _ = started(env_id)
    env.episode_step.copy_(env.max_episode_steps - torch.tensor([3, 2, 1, 3]))
    ends = [env.step(torch.zeros(4, env.num_actions))[3].tolist() for _ in range(2)]
    assert ends == [[False, False, True, False], [False, True, False, False]]


def test_termination_goes_before_truncation():
    class Both(VectorEnv):
        num_obs, num_actions, max_episode_steps = 1, 1, 2

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
    env, first = started(env_id)
    for action in actions(env, 5):
        env.step(action)
    again = env.reset()
    assert env.episode_length.tolist() == [0] * 4 and env.episode_return.tolist() == [0.0] * 4
    assert torch.equal(again, env.observe()) and not torch.equal(again, first)
    assert BEGINNINGS[env_id](again).all()


@every_env
def test_seeds(env_id):
    env, obs = started(env_id, seed=3)
    twin, twin_obs = started(env_id, seed=3)
    _, other_obs = started(env_id, seed=4)
    assert torch.equal(obs, twin_obs) and (obs != other_obs).any(1).all()
    assert len(obs.unique(dim=0)) == 4  # nor do environments start alike
    torch.manual_seed(0)  # the global generator is not the environment's
    for i, action in enumerate(actions(env, 30)):
        if i == 10:
            env.episode_step[2] = twin.episode_step[2] = env.max_episode_steps - 1  # resets draw numbers too
        step = env.step(action)
        torch.rand(1)
        assert_same(step, twin.step(action))


@every_env
def test_state_dict_continues_exactly(env_id):
    env, _ = started(env_id)
    moves = actions(env, 30)
    for action in moves[:10]:
        env.step(action)
    env.episode_step[1] = env.max_episode_steps - 5  # a reset on the way
    file = io.BytesIO()
    torch.save(env.state_dict(), file)
    uninterrupted = [env.step(action) for action in moves[10:]]
    other, _ = started(env_id, seed=2)
    other.step(moves[0])
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    for action, step in zip(moves[10:], uninterrupted):
        assert_same(step, other.step(action))
    assert any(step[4]["episode"]["done"][1] for step in uninterrupted)


def test_a_tasks_own_numbers_are_in_its_state():
    env, copy = (Drift(2, "cpu", seed) for seed in (1, 2))
    for each, price in ((env, 1.0), (copy, 2.0)):
        each.level, each.generation, each.angle, each.total, each.price = 0, 0, np.float64(0.5), 0, price
        each.reset()
    env.level, env.angle = 0.5, np.clip(2.0, 0.0, 1.0)
    env.total += torch.tensor(7)
    copy.load_state_dict(checkpoints.decode(checkpoints.encode(env.state_dict())))
    # what has not changed since the constructor is a constant of the task, which may be edited
    assert (copy.level, copy.generation, copy.angle, copy.total, copy.price) == (0.5, 0, 1.0, 7, 2.0)
    again = Drift(2, "cpu", 3)
    again.level = 0
    again.load_state_dict(copy.state_dict())
    assert again.level == 0.5
    with pytest.raises(ValueError, match="^level is 'high', must be a number$"):
        copy.load_state_dict({**env.state_dict(), "level": "high"})


@every_env
def test_everything_stays_finite(env_id):
    """Half of the agents do nothing, half act at random."""
    env, obs = started(env_id, num_envs=8)
    assert obs.isfinite().all()
    for action in actions(env, 2_000 if env_id in envs.PURE_TORCH else 220):
        action[:4] = 0.0
        obs, reward, _, _, info = env.step(action)
        assert obs.isfinite().all() and reward.isfinite().all() and info["final_obs"].isfinite().all()
        assert all(info["episode"][key].isfinite().all() for key in ("return", "length", "objective"))
        assert info["metrics"].get("nan_worlds", 0) == 0


@every_env
def test_actions_are_clamped(env_id):
    env, _ = started(env_id)
    twin, _ = started(env_id)
    for action in actions(env, 5, spread=3.0):
        assert_same(env.step(action), twin.step(action.clamp(-1.0, 1.0)))
    big, one = torch.full((4, env.num_actions), 2.0), torch.ones(4, env.num_actions)
    assert_same(env.step(big), twin.step(one))


@every_env
def test_render(env_id):
    env, _ = started(env_id)
    if type(env).render is VectorEnv.render:
        pytest.skip("draws nothing")
    try:
        image = torch.as_tensor(env.render(3))
    except RuntimeError as error:  # no OpenGL here
        pytest.skip(str(error))
    assert image.ndim == 3 and image.shape[2] == 3 and image.dtype == torch.uint8 and image.float().std() > 1.0


# ---------------------------------------------------------------- make


@pytest.mark.parametrize("wrong, nearest", [
    ("Moot", "Moat"), ("CartPole", "Cartpole"), ("AllegroKukaRegrasp", "AllegroKukaRegrasping")
])  # fmt: skip
def test_unknown_id_suggests_the_nearest(wrong, nearest):
    with pytest.raises(ValueError, match=f"did you mean {nearest}\\?") as error:
        envs.make(wrong, 1)
    assert all(name in str(error.value) for name in envs.TASKS) and "\n" not in str(error.value)


@pytest.mark.parametrize("wrong", ["nowhere:Task", "envs.tasks.moat:Goat", "moat:"])
def test_unknown_class(wrong):
    with pytest.raises(ValueError, match="importable package.module:Class"):
        envs.make(wrong, 1)


def test_a_task_of_ones_own_is_found_in_the_working_directory(tmp_path, monkeypatch):
    methods = "def __init__(self, *args): self.args = args\n    reset = step = None\n"
    (tmp_path / "found_here.py").write_text(f"class Task:\n    {methods}")
    monkeypatch.chdir(tmp_path)
    assert envs.make("found_here:Task", 5, "cpu", 7).args == (5, "cpu", 7)


def test_unknown_engine():
    with pytest.raises(ValueError, match="valid here: auto, mujoco"):
        envs.make("Cartpole", 1, engine="physx")


def test_device_that_does_not_exist():
    missing = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(ValueError, match=f"device {missing}: there are {torch.cuda.device_count()} CUDA devices"):
        envs.make("Cartpole", 1, missing)


@pytest.mark.parametrize("device", ["gpu", "mps", ""])
def test_device_of_a_kind_that_does_not_exist(device):
    with pytest.raises(ValueError, match=f"^device {device}: must be cpu, cuda or cuda:N$"):
        envs.make("Cartpole", 1, device)


@every_env
@pytest.mark.parametrize("num_envs", [0, -1])
def test_too_few_environments(env_id, num_envs):
    with pytest.raises(ValueError, match=f"^num_envs {num_envs}: must be at least 1$"):
        envs.make(env_id, num_envs)


def test_engine_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(envs.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="needs the package mujoco, not installed"):
        envs.make("Cartpole", 1, engine="mujoco")


# ---------------------------------------------------------------- Moat, by hand


@pytest.mark.parametrize("x, value", [
    (-3.0, -1.0), (-1.0, -1.0), (-0.4, -0.4), (0.0, 0.0), (0.5, 0.5), (0.74, 0.74),  # before the first plateau
    (0.75, 1.0), (1.0, 1.0), (1.25, 1.0), (1.26, -0.5), (1.44, -0.5),  # each: first edge, plateau, last edge, ditch
    (1.45, 2.0), (1.7, 2.0), (1.95, 2.0), (1.96, -1.0), (2.24, -1.0),
    (2.25, 4.0), (2.5, 4.0), (2.75, 4.0), (2.76, -2.0), (3.14, -2.0),
    (3.15, 8.0), (3.4, 8.0), (3.65, 8.0), (3.66, -4.0), (4.14, -4.0),
    (4.15, 16.0), (4.4, 16.0), (4.65, 16.0), (4.66, -8.0), (100.0, -8.0),
])  # fmt: skip
def test_moat_value(x, value):
    on_axis = torch.tensor([[x, 0.0, 0.0, 0.0]])
    off_axis = torch.tensor([[x, 0.3, -0.2, 0.6], [x, -0.6, 0.2, 0.3]])  # 0.09 + 0.04 + 0.36 = 0.49
    assert moat_value(on_axis).item() == pytest.approx(value)
    assert moat_value(off_axis).tolist() == pytest.approx([value * math.exp(-0.49)] * 2)


def test_moat_two_steps_by_hand():
    env, _ = started("Moat", num_envs=2)
    env.position.copy_(torch.tensor([[0.1, -0.2, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]))
    env.velocity.copy_(torch.tensor([[0.1, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]))
    env.episode_step.copy_(torch.tensor([40, 30]))
    action = torch.tensor([[1.0, -0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    # first step: v = 0.85 * 0.1 + 0.02 = 0.105 and -0.01; p = 0.205 and -0.21; 2 * 41 / 128 - 1 = -0.359375
    obs, reward, _, _, _ = env.step(action)
    assert obs[0].tolist() == pytest.approx([0.205, -0.21, 0, 0, 0.315, -0.03, 0, 0, -0.359375])
    value = 0.205 * math.exp(-0.21**2)
    assert reward.tolist() == pytest.approx([0.1 * value - 0.01 * 1.25 / 4, 0.1])
    # second step: v = 0.85 * 0.105 + 0.02 = 0.10925 and 0.85 * -0.01 - 0.01 = -0.0185; p = 0.31425 and -0.2285
    obs, reward, _, _, info = env.step(action)
    assert obs[0].tolist() == pytest.approx([0.31425, -0.2285, 0, 0, 0.32775, -0.0555, 0, 0, -0.34375])
    value = 0.31425 * math.exp(-0.2285**2)
    assert reward[0].item() == pytest.approx(0.1 * value - 0.01 * 1.25 / 4)
    assert info["episode"]["objective"].tolist() == pytest.approx([value, 1.0])


def test_moat_objective_is_the_final_value_and_not_negative():
    env, _ = started("Moat", num_envs=3)
    env.position.copy_(torch.tensor([[4.3, 0, 0, 0], [5.0, 0, 0, 0], [3.2, 0.5, 0, 0]]))
    env.velocity.zero_()
    env.episode_step.fill_(127)
    _, _, _, truncated, info = env.step(torch.zeros(3, 4))
    assert truncated.all()
    assert info["episode"]["objective"].tolist() == pytest.approx([16.0, 0.0, 8.0 * math.exp(-0.25)])


def test_moat_starts():
    env, obs = started("Moat", num_envs=4_000)
    position = obs[:, :4]
    assert position.mean(0).abs().max() < 0.01 and (position.std(0) - 0.1).abs().max() < 0.005
    assert (obs[:, 4:8] == 0.0).all()
    assert (obs[:, 8] == -1.0).all()


# ---------------------------------------------------------------- staggered first episodes


def staggered(env_id, num_envs):
    env = envs.make(env_id, num_envs, training=True)
    return env, env.reset()


@pytest.mark.parametrize("env_id", [env_id for env_id in ENV_IDS if not env_id.endswith("HeldStarts")])
def test_staggering_changes_nothing_but_the_clock(env_id):
    env, _ = staggered(env_id, 4)
    state, in_phase = env.state_dict(), started(env_id)[0].state_dict()
    clock, shortened = state.pop("episode_step"), state.pop("shortened")
    assert clock.tolist() == [int(share * env.max_episode_steps) for share in (0.0, 0.618034, 0.236068, 0.854102)]
    assert shortened.tolist() == [False, True, True, True]
    assert not in_phase.pop("episode_step").any() and not in_phase.pop("shortened").any()
    torch.testing.assert_close(state, in_phase, rtol=0.0, atol=0.0)


def test_without_a_time_limit_no_first_episode_is_shortened(monkeypatch):
    monkeypatch.setattr(envs.find_class("Moat"), "max_episode_steps", sys.maxsize)
    env, _ = staggered("Moat", 4)
    assert not env.shortened.any() and not env.episode_step.any()


def test_shortened_episodes_end_and_do_not_count():
    env, obs = staggered("Moat", 96)
    clock, lengths, counted = env.episode_step.clone(), [[] for _ in range(96)], [[] for _ in range(96)]
    assert torch.equal(obs[:, 8], 2.0 * clock / 128 - 1.0)
    for _ in range(3 * 128):
        _, _, terminated, truncated, info = env.step(torch.zeros(96, 4))
        assert not terminated.any()
        for found, mask in ((lengths, truncated), (counted, info["episode"]["done"])):
            for i in mask.nonzero().flatten().tolist():
                found[i].append(int(info["episode"]["length"][i]))
    for i in range(96):
        assert lengths[i] == [128 - clock[i], 128, 128] and counted[i] == lengths[i][clock[i] > 0 :]
    env.reset()
    assert torch.equal(env.episode_step, clock) and torch.equal(env.shortened, clock > 0)


def test_shortened_episodes_do_not_count_when_they_fail():
    env, _ = staggered(DRIFT, 4)
    env.position[:] = 2.0
    _, _, terminated, _, info = env.step(torch.zeros(4, 2))
    assert terminated.all() and info["episode"]["done"].tolist() == [True, False, False, False]
    env.position[:] = 2.0
    assert env.step(torch.zeros(4, 2))[4]["episode"]["done"].all()


def test_a_state_within_shortened_episodes_continues_exactly():
    env, other = staggered("Moat", 96)[0], started("Moat", 96)[0]
    moves = actions(env, 200)
    for action in moves[:50]:
        env.step(action)
    other.load_state_dict(env.state_dict())
    for action in moves[50:]:
        assert_same(env.step(action), other.step(action))


@pytest.mark.parametrize("env_id", ["AllegroHand", "AllegroKukaRegrasping", "FrankaCubePush"])
def test_the_task_s_own_statistics_leave_shortened_episodes_out(env_id):
    env, _ = staggered(env_id, 4)
    env.episode_step[:] = env.max_episode_steps - 1
    _, _, terminated, truncated, info = env.step(actions(env, 1)[0])
    assert (terminated | truncated).all()
    assert env.finished_term_sums.any(1).tolist() == [True, False, False, False] == info["episode"]["done"].tolist()


@pytest.mark.parametrize("num_envs, num_agents", [(3_072, 1), (3_072, 6), (3_072, 48), (1_024, 64), (64, 1)])
def test_clocks_are_spread_evenly_over_every_block(num_envs, num_agents):
    phase = staggered("Moat", num_envs)[0].episode_step
    assert phase.min() >= 0 and phase.max() < 128
    n = num_envs // num_agents
    for first in {0, 1, n // 2, num_envs - n} | {k * n for k in range(num_agents)}:  # the agents' blocks and others
        block = phase[first : first + n].sort().values
        if len(block) < n:
            continue
        gaps = torch.cat([block[1:], block[:1] + 128]) - block
        assert gaps.max() <= 2.7 * 128 / n + 1  # at most 1 + golden ratio times the even gap, in whole steps
        quarters = (block // 32).bincount(minlength=4)
        assert (quarters - n / 4).abs().max() <= 2
