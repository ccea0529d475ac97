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

from envs import import_module
from envs.adapters.adapter import Adapter, check_actions, check_known

OWN = "gymnasium:my_package:MyEnv-v0, where my_package registers MyEnv-v0"


def flat(env):
    """One environment with a flat observation: of a dict "state" or "actor" where there is one, else all entries."""
    name = next((name for name in ("state", "actor") if name in getattr(env.observation_space, "spaces", {})), None)
    return FlattenObservation(FilterObservation(env, [name]) if name else env)


class Gymnasium(Adapter):
    """Environments of Gymnasium's registry, vectorised by Gymnasium's SyncVectorEnv: one after the other, in-process.

    Its AsyncVectorEnv takes a process per environment, too many for the numbers that are used here, and does not draw
    one alone. Autoreset is off, as staggered clocks end episodes too; `reset_where` resets them in the same step.
    """

    engine_name = "gymnasium"

    @staticmethod
    def check(name):
        """Raises ValueError (one line) where `name` is not registered, or has actions that are not continuous."""
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
        except (ImportError, gymnasium.error.Error) as error:  # old versions, and what needs another package
            raise ValueError((str(error) or repr(error)).splitlines()[0])
        env.close()
        check_actions(env.action_space)
        if flat(env).observation_space.shape is None:
            raise ValueError(f"observations must have a fixed size, this has {env.observation_space}")

    def __init__(self, name, num_envs, device, seed):
        super().__init__(num_envs, device, seed)
        env = gymnasium.make(name)
        env.close()
        drawing = {"render_mode": "rgb_array"} if "rgb_array" in env.metadata.get("render_modes", []) else {}
        no_autoreset = {"autoreset_mode": AutoresetMode.DISABLED}
        self.env = gymnasium.make_vec(
            name, num_envs, vectorization_mode="sync", vector_kwargs=no_autoreset, wrappers=[flat], **drawing
        )
        self.set_action_space(self.env.single_action_space)
        self.num_obs = self.env.single_observation_space.shape[0]
        self.max_episode_steps = env.spec.max_episode_steps or sys.maxsize  # none: it ends its episodes itself
        period = getattr(env.unwrapped, "dt", None)  # s
        rate = 1.0 / period if isinstance(period, float) else env.metadata.get("render_fps")  # the latter is rounded
        if rate:
            self.frame_rate = max(Fraction(rate).limit_denominator(1000), Fraction(1, 1000))
        self.obs = torch.zeros(num_envs, self.num_obs, device=self.device)

    def reset_where(self, mask):
        if mask.any():
            obs, _ = self.env.reset(seed=self.seeds, options={"reset_mask": mask.cpu().numpy()})
            self.obs, self.seeds = self.tensor(obs), None  # from here on each goes on with its own random numbers

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
        except Exception as error:  # each backend fails with a kind of its own, and so does a missing package
            raise RuntimeError((str(error) or repr(error)).splitlines()[0])
