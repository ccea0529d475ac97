"""`mjlab:Mjlab-Velocity-Flat-Unitree-Go1`: the tasks of mjlab (arXiv 2601.22074), on MuJoCo Warp, GPU or CPU.

Packages that register tasks of their own with mjlab are found as mjlab finds them, through entry points.
"""

import atexit
import contextlib
import dataclasses
import io

import mjlab.tasks  # noqa: F401, registers them
import torch
import warp
from mjlab.envs import ManagerBasedRlEnv
from mjlab.tasks.registry import list_tasks, load_env_cfg
from mjlab.viewer.offscreen_renderer import OffscreenRenderer

from envs.adapters.adapter import Adapter, check_known, check_observations

warp.config.log_level = warp.LOG_WARNING  # otherwise it prints a line for every kernel that it loads


class Mjlab(Adapter):
    """A task of mjlab in its training configuration. Observations are those of the actor, with their noise.

    The critic's privileged observations are not used: a script's network has one trunk. Actions are in mjlab's units,
    where 1 is the task's action scale; mjlab's own training does not clamp them to [-1, 1]. mjlab draws from torch's
    global generator, which its constructor seeds, and MuJoCo Warp is not deterministic to the last bit.
    """

    engine_name = "mjlab without the critic's privileged observations"
    curriculum = ("control_steps",)  # mjlab widens its commands by their number; terrain levels begin anew

    @staticmethod
    def check(name):
        """Raises ValueError (one line) where mjlab has no task `name`, or one that needs more than its id says."""
        check_known(name, list_tasks())
        config = load_env_cfg(name)
        others = ", ".join(sorted(set(config.observations) - {"actor", "critic"}))
        if others:
            raise ValueError(f"its policy also observes {others}, of which the scripts would see nothing")
        if any(getattr(command, "motion_file", None) == "" for command in config.commands.values()):
            raise ValueError("needs a motion file: register a task of your own that names one")

    def __init__(self, name, num_envs, device, seed):
        super().__init__(num_envs, device, seed)
        config = load_env_cfg(name)
        config.scene.num_envs = num_envs
        config.seed = self.seeds[0]
        config.auto_reset = False  # `reset_where` resets, since staggered clocks end episodes too
        with contextlib.redirect_stdout(io.StringIO()):  # tables of all terms
            self.env = ManagerBasedRlEnv(config, device=str(self.device))
        check_observations(self.env.single_observation_space)
        self.num_obs = self.env.single_observation_space.spaces["actor"].shape[0]
        self.num_actions = self.env.single_action_space.shape[0]
        self.max_episode_steps = self.env.max_episode_length
        self.frame_rate = round(1.0 / self.env.step_dt)
        self.obs = torch.zeros(num_envs, self.num_obs, device=self.device)
        self.control_steps = torch.zeros((), dtype=torch.long)
        self.renderers = {}

    def reset_where(self, mask):
        ids = mask.nonzero().squeeze(1)
        if len(ids):
            self.env.common_step_counter = self.control_steps.item()
            obs = self.env.reset(env_ids=ids)[0]["actor"]
            self.obs = torch.where(mask[:, None], obs, self.obs)  # the others' would have new noise

    def advance(self, action):
        obs, reward, terminated, time_outs, _ = self.env.step(action)
        self.control_steps += 1
        self.obs = obs["actor"].clone()
        if self.env.cfg.is_finite_horizon:  # the end belongs to the task
            terminated = terminated | time_outs
            time_outs = torch.zeros_like(time_outs)
        return reward.clone(), terminated.clone(), time_outs.clone()

    def render(self, index):
        if index not in self.renderers:
            env = self.env
            viewer = dataclasses.replace(env.cfg.viewer, env_idx=index, max_extra_envs=0)
            renderer = OffscreenRenderer(env.sim.mj_model, viewer, env.scene, env.sim.model, env.sim.expanded_fields)
            renderer.initialize()
            atexit.register(renderer.close)  # later its OpenGL context is gone
            self.renderers[index] = renderer
        self.renderers[index].update(self.env.sim.data)
        return self.renderers[index].render()
