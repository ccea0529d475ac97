"""A small stub of isaaclab 3.0.0, which fetches its robots at run time, and of its registration of tasks.

What `step` returns and in which order things happen within it are those of isaaclab/envs/direct_rl_env.py. The physics
is a point on a line that the first action moves. It has fallen below -2, and above 1 it counts a success.
"""

import contextlib
import math
from types import SimpleNamespace

import gymnasium
import torch
from gymnasium.spaces import Box, Dict


class DirectRLEnv(gymnasium.Env):
    step_dt = 1 / 30  # s
    max_episode_length = 12  # steps

    def __init__(self, cfg, render_mode=None, **kwargs):
        self.cfg = cfg
        self.num_envs = cfg.scene.num_envs
        self.single_observation_space = Dict({"policy": Box(-math.inf, math.inf, (2,))})
        self.single_action_space = Box(-math.inf, math.inf, (3,))
        self.common_step_counter = 0
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long)
        self.x = torch.zeros(self.num_envs)
        self.successes = torch.zeros(self.num_envs)
        self.extras = {}

    def _get_observations(self):
        return {"policy": torch.stack([self.x, self.episode_length_buf.float()], 1)}

    def _reset_idx(self, env_ids):
        self.x[env_ids] = 0.0
        self.successes[env_ids] = 0.0
        self.episode_length_buf[env_ids] = 0
        self.extras["log"] = {"x": self.x.mean()}

    def reset(self, seed=None, options=None):
        self._reset_idx(torch.arange(self.num_envs))
        return self._get_observations(), self.extras

    def step(self, action):
        self.x = self.x + 0.25 * action[:, 0]
        self.episode_length_buf += 1
        self.common_step_counter += 1
        terminated = self.x < -2.0
        time_outs = self.episode_length_buf >= self.max_episode_length - 1
        self.successes += self.x > 1.0
        reward = self.x.clone()
        env_ids = (terminated | time_outs).nonzero().squeeze(-1)
        if len(env_ids) > 0:
            if self.cfg.compute_final_obs:
                self.extras["final_obs"] = self._get_observations()
            self._reset_idx(env_ids)
        return self._get_observations(), reward, terminated, time_outs, self.extras


def resolve_task_config(task_name, agent_cfg_entry_point, play_mode=False, overrides=None):
    cfg = SimpleNamespace(scene=SimpleNamespace(), sim=SimpleNamespace())
    return cfg, SimpleNamespace(obs_groups={"actor": ["policy"]})


@contextlib.contextmanager
def launch_simulation(cfg, launcher_args=None):
    yield


class WithCamera(DirectRLEnv):
    def __init__(self, cfg, render_mode=None, **kwargs):
        super().__init__(cfg)
        self.single_observation_space = Dict({"policy": Box(0.0, 1.0, (8, 8, 3))})


gymnasium.register("Isaac-Stub", DirectRLEnv, disable_env_checker=True, kwargs={"rsl_rl_cfg_entry_point": None})
gymnasium.register("Isaac-Camera", WithCamera, disable_env_checker=True, kwargs={"rsl_rl_cfg_entry_point": None})
