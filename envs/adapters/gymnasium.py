"""`gymnasium:Hopper-v5`, or `gymnasium:my_package:MyEnv-v0` for one that your own package registers when imported."""

import difflib
import os
import sys
from fractions import Fraction

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import FilterObservation, FlattenObservation

from envs.adapters.adapter import POLICY_OBSERVATIONS, Adapter, check_actions, check_known, check_observations
from envs.imports import import_module

OWN = "gymnasium:my_package:MyEnv-v0, where my_package registers MyEnv-v0"


def flat(env):
    """One environment with a flat observation: of a dict the entry of POLICY_OBSERVATIONS, else all entries."""
    spaces = getattr(env.observation_space, "spaces", {})
    for name in POLICY_OBSERVATIONS:
        if name in spaces:
            return FlattenObservation(FilterObservation(env, [name]))
    return FlattenObservation(env)


def make_for_films(name):
    """One environment, and the arguments with which it can be drawn: none where it offers no such mode.

    Some say in their metadata that they draw, but take no argument `render_mode`.
    """
    env = gymnasium.make(name)
    if "rgb_array" not in env.metadata.get("render_modes", []):
        return env, {}
    drawing = {"render_mode": "rgb_array"}
    try:
        return gymnasium.make(name, **drawing), drawing
    except TypeError as error:
        if "render_mode" not in str(error):
            raise
    return env, {}


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
        try:
            env = gymnasium.make(name)
        except (ImportError, gymnasium.error.Error) as error:  # an old version, or another package is missing
            raise ValueError((str(error) or repr(error)).splitlines()[0]) from error
        env.close()
        check_actions(env.action_space)
        check_observations(env.observation_space)
        if flat(env).observation_space.shape is None:
            raise ValueError(f"observations must have a fixed size, this has {env.observation_space}")

    def __init__(self, name, num_envs, device, seed):
        super().__init__(num_envs, device, seed)
        env, drawing = make_for_films(name)
        env.close()
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
        period = getattr(env.unwrapped, "dt", None)  # s
        if isinstance(period, float) and period > 0.0:
            rate = 1.0 / period
        else:
            rate = env.metadata.get("render_fps") or 0.0  # rounded, if there is one
        if rate > 0.0:
            self.frame_rate = max(Fraction(rate).limit_denominator(1000), Fraction(1, 1000))
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
        if self.env.render_mode != "rgb_array":
            raise RuntimeError('this environment has no render mode "rgb_array"')
        if not any(name in os.environ for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY")):
            os.environ["MUJOCO_GL"] = "egl"  # Gymnasium would try GLFW, which needs a display
        try:
            return np.ascontiguousarray(self.env.envs[index].render())
        except Exception as error:  # each backend has its own exception type, and so has a missing package
            raise RuntimeError((str(error) or repr(error)).splitlines()[0]) from error
