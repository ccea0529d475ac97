"""`gymnasium:Hopper-v5`, or `gymnasium:my_package:MyEnv-v0` for one that your own package registers when imported."""

import contextlib
import difflib
import math
import numbers
import os
import sys
import traceback
from fractions import Fraction

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import FilterObservation, FlattenObservation

from envs.adapters.adapter import POLICY_OBSERVATIONS, Adapter, check_actions, check_known, check_observations
from envs.base import UnsupportedError
from envs.imports import import_module

OWN = "gymnasium:my_package:MyEnv-v0, where my_package registers MyEnv-v0"


def flat(env):
    """One environment with a flat observation: of a dict the entry of POLICY_OBSERVATIONS, else all entries."""
    spaces = getattr(env.observation_space, "spaces", {})
    for name in POLICY_OBSERVATIONS:
        if name in spaces:
            return FlattenObservation(FilterObservation(env, [name]))
    return FlattenObservation(env)


@contextlib.contextmanager
def construction():
    """Raises UnsupportedError (one line), from its cause, in place of whatever an environment's constructor raises.

    Gymnasium's own errors, and those of missing packages, explain themselves. Others come from somebody's code, so
    that the line also says where they were raised.
    """
    try:
        yield
    except (ImportError, gymnasium.error.Error) as error:
        raise UnsupportedError(first_line(error)) from error
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {first_line(error)} ({place.filename}, line {place.lineno})"
        raise UnsupportedError(f"its constructor fails with {reason}") from error


def first_line(error):
    """The first line of an exception's message, or what it is where it has none."""
    return (str(error) or repr(error)).splitlines()[0]


def make_for_films(name):
    """One environment, the arguments with which it can be drawn, and why there are none ("" where there are).

    Some say in their metadata that they draw, but fail with `render_mode`: they may not take it, or need a package.
    """
    with construction():
        env = gymnasium.make(name)
    if "rgb_array" not in (env.metadata.get("render_modes") or ()):
        return env, {}, 'this environment has no render mode "rgb_array"'
    drawing = {"render_mode": "rgb_array"}
    try:
        with construction():
            drawn = gymnasium.make(name, **drawing)
    except UnsupportedError as error:
        return env, {}, f'with the render mode "rgb_array": {error}'
    env.close()
    return drawn, drawing, ""


def find_frame_rate(env):
    """Control steps per second: of the environment's period `dt` (s), or else its `render_fps`, which may be rounded.

    None where it says neither as a positive number.
    """
    period = getattr(env.unwrapped, "dt", None)
    rate = 1.0 / float(period) if is_positive(period) else env.metadata.get("render_fps")
    if not is_positive(rate):
        return None
    return max(Fraction(float(rate)).limit_denominator(1000), Fraction(1, 1000))


def is_positive(value):
    """Whether a value from somebody's environment is a positive number, and finite."""
    return isinstance(value, numbers.Real) and math.isfinite(value) and value > 0


class Gymnasium(Adapter):
    """Environments of Gymnasium's registry, vectorised by Gymnasium's SyncVectorEnv: one after the other, in-process.

    Its AsyncVectorEnv takes a process per environment, too many for the numbers that are used here, and does not draw
    one alone. Autoreset is off, as staggered clocks end episodes too; `reset_where` resets them in the same step.
    """

    engine_name = "gymnasium"

    @staticmethod
    def check(name):
        """Raises ValueError (one line) where `name` is not registered, or where the scripts cannot learn from it."""
        package, colon, registered = name.rpartition(":")
        if colon:
            import_module(package)
            if registered not in gymnasium.registry:
                own = [known for known, spec in gymnasium.registry.items() if package in str(spec.entry_point)]
                nearest = difflib.get_close_matches(registered, own, n=1, cutoff=0.0)
                did_you_mean = f", did you mean {nearest[0]}?" if nearest else ""
                raise ValueError(f"{package} registers no {registered}{did_you_mean}")
        check_known(registered, gymnasium.registry.keys(), f" For your own: {OWN}")
        with construction():
            env = gymnasium.make(name)
        env.close()
        check_actions(env.action_space)
        check_observations(env.observation_space)
        if flat(env).observation_space.shape is None:
            raise ValueError(f"observations must have a fixed size, this has {env.observation_space}")

    def __init__(self, name, num_envs, device, seed):
        super().__init__(num_envs, device, seed)
        env, drawing, self.no_films = make_for_films(name)
        env.close()
        with construction():
            self.env = gymnasium.make_vec(
                name,
                num_envs,
                vectorization_mode="sync",
                vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED},
                wrappers=[flat],
                **drawing,
            )
        self.set_action_space(self.env.single_action_space)
        self.num_obs = self.env.single_observation_space.shape[0]
        self.max_episode_steps = env.spec.max_episode_steps or sys.maxsize  # without a limit it ends them itself
        rate = find_frame_rate(env)
        if rate is not None:
            self.frame_rate = rate
        self.obs = torch.zeros(num_envs, self.num_obs, device=self.device)

    def reset_where(self, mask):
        if mask.any():
            obs, _ = self.env.reset(seed=self.seeds, options={"reset_mask": mask.cpu().numpy()})
            self.obs = self.tensor(obs)
            self.seeds = None  # from here on each environment goes on with its own random numbers

    def advance(self, action):
        obs, reward, terminated, truncated, _ = self.env.step(self.scale(action))
        self.obs = self.tensor(obs)
        return self.tensor(reward), self.tensor(terminated, torch.bool), self.tensor(truncated, torch.bool)

    def render(self, index):
        """Raises RuntimeError (one line) where the environment cannot be drawn here."""
        if self.no_films:
            raise RuntimeError(self.no_films)
        if not any(name in os.environ for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY")):
            os.environ["MUJOCO_GL"] = "egl"  # Gymnasium would try GLFW, which needs a display
        try:
            return np.ascontiguousarray(self.env.envs[index].render())
        except Exception as error:  # each backend has its own exception type, and so has a missing package
            raise RuntimeError(first_line(error)) from error
