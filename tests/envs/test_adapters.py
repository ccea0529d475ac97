"""The adapters to other people's environments: the contract, what they absorb, what they refuse, runs.

mjlab is not among the development requirements: its tests run where it is installed, after minutes of compilation.
"""

import importlib.util

import gymnasium
import numpy as np
import pytest
import torch

import cpo
import envs
import epo
import evaluate
import pbt
import ppo
import sapg
from envs.adapters.adapter import Adapter, flatten
from envs.base import VectorEnv
from envs.check import check_env
from tests.conftest import parse, the_run, tuned
from tests.envs import test_contract as contract
from tests.envs.helpers import random_actions
from tests.scripts.conftest import checkpoint

HOPPERS = ["envpool:Hopper-v5", "gymnasium:Hopper-v5"]
GO1 = "mjlab:Mjlab-Velocity-Flat-Unitree-Go1"
TINY = "--no-cuda --num-envs 8 --num-steps 32 --num-minibatches 2 --hidden-sizes 16 16"
needs_mjlab = pytest.mark.skipif(not importlib.util.find_spec("mjlab"), reason="mjlab is not installed")
every_adapter = pytest.mark.parametrize("env_id", [*HOPPERS, pytest.param(GO1, marks=needs_mjlab)])
every_hopper = pytest.mark.parametrize("env_id", HOPPERS)
STAND = torch.tensor([1.25] + [0.0] * 10)  # Hopper: height, 4 angles, 6 velocities, each within 0.005 at the start


def play(env, num_steps, seed=0):
    """Random actions: [(observation before, action, what the step returned), ...]."""
    obs = env.reset()
    history = []
    for action in random_actions(env, num_steps, seed):
        history.append((obs, action, env.step(action)))
        obs = history[-1][2][0]
    return history


# ---------------------------------------------------------------- the contract's own tests


@every_adapter
def test_contract(env_id):
    check_env(envs.make(env_id, 4), 220)
    contract.test_what_was_returned_does_not_change_later(env_id)
    contract.test_the_time_limit_truncates(env_id)
    contract.test_render(env_id)


@every_hopper
def test_contract_where_steps_repeat_exactly(env_id, monkeypatch):
    monkeypatch.setitem(contract.BEGINNINGS, env_id, lambda obs: ((obs - STAND).abs() <= 0.0051).all(-1))
    contract.test_records_of_episodes_and_where_the_next_ones_begin(env_id)
    contract.test_reset_begins_all_episodes_anew(env_id)
    contract.test_seeds(env_id)
    contract.test_actions_are_clamped(env_id)


@every_hopper
def test_neighbouring_seeds_share_no_start(env_id):
    """Both libraries make seed + i of one seed: those of 1 and 2 would differ in a single environment."""
    starts = torch.cat([envs.make(env_id, 8, seed=seed).reset() for seed in (1, 2)])
    assert len(starts.unique(dim=0)) == 16


# ---------------------------------------------------------------- what the adapters absorb


def test_no_dummy_transition_reaches_the_learner(monkeypatch):
    env = envs.make("envpool:Hopper-v5", 8)
    elapsed = []
    step = env.pool.step

    def recorded(action):
        results = step(action)
        elapsed.append(torch.as_tensor(results[4]["elapsed_step"]))
        return results

    monkeypatch.setattr(env.pool, "step", recorded)
    history = play(env, 1_500)
    episodes = [results[4]["episode"] for _, _, results in history]
    lengths = torch.stack([episode["length"] for episode in episodes])
    assert sum(episode["done"].sum().item() for episode in episodes) >= 300
    assert (torch.stack(elapsed) == 0).sum() == 0  # what EnvPool returns for a reset by `step`
    assert torch.equal(torch.stack(elapsed), lengths.int())


@pytest.mark.parametrize("env_id", ["envpool:Pendulum-v1", "gymnasium:Pendulum-v1"])
def test_first_episodes_are_staggered(env_id):
    """At the end of a shortened episode the library knows of no end: cos, sin and velocity begin anew all the same."""
    env = envs.make(env_id, 4, training=True)
    obs = env.reset()
    clock = [0, 123, 47, 170]
    assert env.episode_step.tolist() == clock
    for t in range(1, 601):
        next_obs, _, terminated, truncated, info = env.step(torch.full((4, 1), 0.5))
        ended = [first + t in (200, 400, 600) for first in clock]
        whole = [end and (first == 0 or first + t > 200) for end, first in zip(ended, clock)]
        assert truncated.tolist() == ended
        assert not terminated.any()
        assert info["episode"]["done"].tolist() == whole
        velocity = (obs[:, 2] + 0.75 * obs[:, 1] + 0.15).clamp(-8.0, 8.0)
        assert torch.allclose(info["final_obs"][:, 2], velocity, atol=1e-4)
        assert (next_obs != info["final_obs"]).any(1).tolist() == ended
        assert (next_obs[truncated, 2].abs() <= 1.0).all()  # as an episode begins
        obs = next_obs


def test_of_a_dict_the_state_or_everything():
    obs = {"b": np.ones((2, 3)), "a": np.zeros(2), "inner": {"c": np.full((2, 1, 2), 2.0)}}
    flat = flatten(obs, 2)
    assert flat.dtype == np.float32
    assert flat.tolist() == [[1.0, 1.0, 1.0, 0.0, 2.0, 2.0]] * 2
    for name in ("state", "actor"):
        assert flatten({name: np.ones((2, 2)), "privileged_state": np.zeros((2, 5))}, 2).shape == (2, 2)
    assert envs.make("envpool:Go1JoystickFlatTerrain-v1", 2).num_obs == 48  # with privileged_state 171
    assert envs.make("envpool:CheetahRun-v1", 2).reset().shape == (2, 17)


@pytest.mark.parametrize(
    "low, high", [(-0.4, 0.4), (0.1, 0.7), (-1.0, 1e3), (1 / 3, 2 / 3), (-np.inf, np.inf), (-3.4e38, 3.4e38)]
)
def test_scaled_actions_reach_the_bounds_exactly(low, high):
    env = Adapter(3, "cpu", 1)
    env.set_action_space(gymnasium.spaces.Box(low, high, (2, 1), np.float64))
    if high > 1e30:  # stands for no bound
        low = -1.0
        high = 1.0
    scaled = env.scale(torch.tensor([[-1.0, 1.0], [0.0, 0.5], [1.0, -1.0]]))
    assert env.num_actions == 2
    assert scaled.shape == (3, 2, 1)
    assert scaled.dtype == np.float64
    assert scaled[[0, 2], [0, 1]].tolist() == [[low], [low]]
    assert scaled[[0, 2], [1, 0]].tolist() == [[high], [high]]
    assert np.allclose(scaled[1], [[0.5 * (low + high)], [0.25 * low + 0.75 * high]], rtol=1e-15)


MINE = """
import gymnasium
import numpy as np

class Mine(gymnasium.Env):
    action_space = gymnasium.spaces.Box(0.0, 10.0, (1,))
    observation_space = gymnasium.spaces.Box(-100.0, 100.0, (2,))

    def reset(self, seed=None, options=None):
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.array([self.t, action[0]], np.float32), 1.0, bool(action[0] == 10.0), False, {}

gymnasium.register("Mine-v0", Mine, max_episode_steps=4)
"""


def test_an_environment_that_a_users_package_registers(tmp_path):
    (tmp_path / "my_package.py").write_text(MINE)
    env = envs.make("gymnasium:my_package:Mine-v0", 2)
    assert (env.num_obs, env.num_actions, env.max_episode_steps) == (2, 1, 4)
    assert env.reset().tolist() == [[0.0, 0.0]] * 2
    env.step(torch.tensor([[-1.0], [0.0]]))
    obs, reward, terminated, truncated, info = env.step(torch.tensor([[3.0], [0.0]]))
    assert obs.tolist() == [[0.0, 0.0], [2.0, 5.0]]
    assert info["final_obs"].tolist() == [[2.0, 10.0], [2.0, 5.0]]
    assert terminated.tolist() == [True, False]
    assert not truncated.any()
    assert reward.tolist() == [1.0, 1.0]
    for _ in range(2):
        obs, _, terminated, truncated, info = env.step(torch.zeros(2, 1))
    assert obs.tolist() == [[2.0, 5.0], [0.0, 0.0]]
    assert info["final_obs"].tolist() == [[2.0, 5.0], [4.0, 5.0]]
    assert truncated.tolist() == [False, True]
    assert not terminated.any()
    with pytest.raises(RuntimeError, match="rgb_array"):
        env.render(0)


ODD = """
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Text

class Odd(gymnasium.Env):
    observation_space = Box(-9.0, 9.0, (2,))
    action_space = Box(-1.0, 1.0, (1,))

    def reset(self, seed=None, options=None):
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.t += 1
        return self.observation_space.sample(), 1.0, self.t >= 4, False, {}

class OnlyPromisesToDraw(Odd):
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self):  # takes no render_mode
        pass

class WithoutTime(Odd):
    dt = 0.0

class WithoutEnd(Odd):
    metadata = {"render_modes": None, "render_fps": float("inf")}

class DrawsBadly(Odd):
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode=None):
        if render_mode:
            raise OSError("no screen")

class Image(Odd):
    observation_space = Box(0, 255, (64, 64, 3), np.uint8)

class GreyImage(Odd):
    observation_space = Box(0, 255, (64, 64), np.uint8)

class FloatImage(Odd):
    observation_space = Dict({"camera": Box(0.0, 1.0, (8, 8, 3)), "joints": Box(-9.0, 9.0, (2,))})

class DepthImage(Odd):
    observation_space = Box(0, 4000, (1, 8, 8), np.int32)

class Failing(Odd):
    def __init__(self):
        raise ZeroDivisionError("so many robots\\nshare nothing")

class Table(Odd):
    observation_space = Box(-9.0, 9.0, (1, 2))

class Instruction(Odd):
    observation_space = Dict({"joints": Box(-9.0, 9.0, (2,)), "goal": Dict({"text": Text(8)})})

class ImageBesideState(Odd):
    observation_space = Dict({"state": Odd.observation_space, "camera": Image.observation_space})

class Blind(Odd):
    observation_space = Box(-1.0, 1.0, (0,))

class HalfBounded(Odd):
    action_space = Box(np.array([-3.4e38, -1.0]), np.array([3.4e38, 1.0]), dtype=np.float64)

for kind in [kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, Odd)]:
    gymnasium.register(f"{kind.__name__}-v0", kind)
"""


@pytest.mark.parametrize("name", [
    "OnlyPromisesToDraw", "WithoutTime", "WithoutEnd", "DrawsBadly", "ImageBesideState", "Table",
])  # fmt: skip
def test_odd_environments_that_can_be_learned_from_train(name, tmp_path):
    (tmp_path / "odd.py").write_text(ODD)
    ppo.main(f"--env-id gymnasium:odd:{name}-v0 {TINY} --total-timesteps 256".split())
    assert checkpoint(the_run())["global_step"] == 256
    env = envs.make(f"gymnasium:odd:{name}-v0", 2)
    assert env.num_obs == 2
    assert env.frame_rate == VectorEnv.frame_rate


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "name, what",
    [
        ("Image", "Box(64, 64, 3)"),
        ("GreyImage", "Box(64, 64)"),
        ("FloatImage", "Box(8, 8, 3)"),
        ("DepthImage", "Box(1, 8, 8)"),
        ("Instruction", "Text(1, 8"),
        ("Blind", "observation"),
        ("HalfBounded", "3.4e+38"),
        ("Failing", "ZeroDivisionError: so many robots"),
    ],
)
def test_odd_environments_from_which_nothing_is_learned_are_refused(name, what, tmp_path, capsys):
    (tmp_path / "odd.py").write_text(ODD)
    with pytest.raises(SystemExit) as end:
        ppo.main(f"--env-id gymnasium:odd:{name}-v0 {TINY} --total-timesteps 256".split())
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"--env-id gymnasium:odd:{name}-v0: ")
    assert what in line
    assert not (tmp_path / "runs").exists()


def test_the_cause_of_a_failing_constructor_is_kept(tmp_path):
    (tmp_path / "odd.py").write_text(ODD)
    with pytest.raises(envs.UnsupportedError) as raised:
        envs.make("gymnasium:odd:Failing-v0", 2)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_why_an_environment_is_not_drawn(tmp_path):
    (tmp_path / "odd.py").write_text(ODD)
    with pytest.raises(RuntimeError, match="no screen"):
        envs.make("gymnasium:odd:DrawsBadly-v0", 2).render(0)


@pytest.mark.parametrize(
    "env_id, hint",
    [
        ("envpool:Hoper-v5", "Hopper-v5"),
        ("isaaclab:Isaac-Ant", "pip install -r requirements-isaaclab.txt"),
        ("envpool:CartPole-v1", "Discrete(2)"),
        ("HalfCheetah-v5", "gymnasium:HalfCheetah-v5"),
        ("gymnasium:json:MyEnv-v0", "MyEnv-v0"),
    ],
)
def test_refused(env_id, hint, capsys):
    with pytest.raises(SystemExit) as end:
        ppo.main(["--env-id", env_id])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    start = f"--env-id {env_id}: "
    assert line.startswith(start)
    assert hint in line[len(start) :]


# ---------------------------------------------------------------- runs


@every_adapter
def test_training_resuming_and_evaluating(env_id, capsys, new_process=lambda: None):
    """new_process: called before each program, for what a process has only one of."""
    new_process()
    ppo.main(f"--env-id {env_id} {TINY} --total-timesteps 512".split())
    name = env_id.split(":")[0]
    assert f"{env_id}: engine {name}" in capsys.readouterr().out
    folder = the_run()
    assert checkpoint(folder)["global_step"] == 512
    new_process()
    ppo.main(f"--env-id {env_id} {TINY} --total-timesteps 768 --resume {folder}".split())
    assert checkpoint(folder)["global_step"] == 768
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "anew" in line]
    assert line.startswith(name)
    new_process()
    evaluate.main(f"{folder} --episodes 4 --no-cuda".split())
    assert "| agent, 0 |" in capsys.readouterr().out


@pytest.mark.parametrize("script", [ppo, sapg, cpo, epo, pbt], ids=lambda script: script.__name__)
def test_tuned_rows_are_of_tasks_that_exist(script):
    rows = [env_id for env_id in tuned(script) if env_id.startswith("envpool:")]
    assert rows
    assert all(parse(script, f"--no-cuda --env-id {env_id}").num_iterations > 0 for env_id in rows)
