"""A stub of isaaclab 3.0.0, which fetches its robots at run time: signatures and the order of a step are the wheel's.

The physics is a point on a line: x <- x + 0.25 * a, a the first action. It has fallen below -2, and from 1 on it
counts as a success. The reward is x. Observations: policy (x, number of the episode; in the manager-based task with a
history of two), proprio (steps since the episode began, difficulty), and critic, which no actor gets.
"""

import contextlib
import copy
import math
from types import SimpleNamespace

import gymnasium
import torch
from gymnasium.spaces import Box, Dict

def write_packages(folder):
    for name in ("isaaclab/__init__.py", "isaaclab/app.py", "isaaclab_tasks/__init__.py", "isaaclab_tasks/utils.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("from tests.envs.isaaclab_stub import *\n")


def make_config():
    adr = SimpleNamespace(func=DifficultyScheduler, params={"max_difficulty": 10})
    return SimpleNamespace(
        scene=SimpleNamespace(num_envs=4096), sim=SimpleNamespace(device="cuda:0", dt=1 / 120), decimation=4, seed=None,
        episode_length_s=0.4, compute_final_obs=False, curriculum=SimpleNamespace(adr=adr),
    )  # fmt: skip


def resolve_task_config(task_name, agent_cfg_entry_point, play_mode=False, overrides=None):
    assert overrides is not None  # else those in sys.argv
    kwargs = gymnasium.spec(task_name).kwargs
    return kwargs["env_cfg_entry_point"](), kwargs[agent_cfg_entry_point]


@contextlib.contextmanager
def launch_simulation(cfg, launcher_args=None):
    yield


class ObservationManager:
    """`compute` shows of a history what was recorded, and records only if it is told to."""

    def __init__(self, cfg, env):
        self.env, self.history = env, torch.full((env.num_envs, 2, 2), math.nan)

    def reset(self, env_ids=None):
        self.history[env_ids] = math.nan

    def compute(self, update_history=False):
        groups = self.env.observations()
        if update_history:
            newest = groups["policy"][:, None]
            older = torch.where(self.history[:, 1:].isnan(), newest, self.history[:, 1:])
            self.history = torch.cat([older, newest], 1)
        return {**groups, "policy": self.history.flatten(1).clone()}


class RewardManager:
    def __init__(self, cfg, env):
        self.active_terms, succeeded = ["success"], torch.zeros(env.num_envs, dtype=torch.bool)
        self.env, self.terms = env, {"success": SimpleNamespace(func=SimpleNamespace(succeeded=succeeded))}

    def get_term_cfg(self, term_name):
        return self.terms[term_name]

    def reset(self, env_ids=None):
        self.get_term_cfg("success").func.succeeded[env_ids] = False
        return {"Episode_Reward/success": self.env.x[env_ids].mean()}

    def compute(self, dt):
        self.get_term_cfg("success").func.succeeded |= self.env.x >= 1.0
        return self.env.x.clone()


class DifficultyScheduler:
    def __init__(self, cfg, env):
        self.current_difficulties, self.difficulty_frac = torch.zeros(env.num_envs), 0.0

    def get_state(self):
        return self.current_difficulties

    def set_state(self, state):
        self.current_difficulties = state.clone()


class CurriculumManager:
    def __init__(self, cfg, env):
        self.cfg, self.env = copy.deepcopy(cfg), env
        self.cfg.adr.func = self.cfg.adr.func(self.cfg.adr, env)

    def compute(self, env_ids=None):
        adr, succeeded = self.cfg.adr.func, self.env.reward_manager.get_term_cfg("success").func.succeeded
        level = adr.current_difficulties[env_ids] + 2.0 * succeeded[env_ids] - 1.0
        adr.current_difficulties[env_ids] = level.clamp(0.0, self.cfg.adr.params["max_difficulty"])
        adr.difficulty_frac = (adr.current_difficulties.mean() / self.cfg.adr.params["max_difficulty"]).item()


class StubEnv(gymnasium.Env):
    def start(self, cfg, **groups):
        self.cfg, self.num_envs, self.extras = cfg, cfg.scene.num_envs, {}
        torch.manual_seed(cfg.seed)
        self.step_dt, self.common_step_counter = cfg.sim.dt * cfg.decimation, 0
        self.episode_length_buf = torch.zeros(self.num_envs, device=cfg.sim.device, dtype=torch.long)
        self.x, self.episode = torch.zeros(2, self.num_envs)
        boxes = {name: Box(-math.inf, math.inf, (size,)) for name, size in groups.items()}
        self.single_observation_space, self.single_action_space = Dict(boxes), Box(-math.inf, math.inf, (3,))

    @property
    def max_episode_length(self):
        return round(self.cfg.episode_length_s / self.step_dt)

    def move(self, action):
        assert action.shape == (self.num_envs, 3) and action.dtype == torch.float32
        self.x = self.x + 0.25 * action[:, 0]
        self.episode_length_buf += 1
        self.common_step_counter += 1
        return self.x < -2.0

    def begin(self, env_ids):
        self.x[env_ids] = 0.2 * torch.rand_like(self.x[env_ids])
        self.episode[env_ids] += 1.0
        self.episode_length_buf[env_ids] = 0


class ManagerBasedRLEnv(StubEnv):
    def __init__(self, cfg, render_mode=None, **kwargs):
        self.start(cfg, policy=4, proprio=2, critic=3)
        self.observation_manager, self.reward_manager = ObservationManager(None, self), RewardManager(None, self)
        self.curriculum_manager = CurriculumManager(cfg.curriculum, self)

    def observations(self):
        proprio = [self.episode_length_buf, self.curriculum_manager.cfg.adr.func.current_difficulties]
        groups = {"policy": [self.x, self.episode], "proprio": proprio, "critic": [self.x] * 3}
        return {name: torch.stack(values, 1) for name, values in groups.items()}

    def reset(self, env_ids=slice(None), *, seed=None, options=None):
        self._reset_idx(env_ids)
        return self.observation_manager.compute(update_history=True), self.extras

    def step(self, action):
        terminated, reward = self.move(action), self.reward_manager.compute(self.step_dt)
        time_outs = self.episode_length_buf >= self.max_episode_length
        reset_env_ids = (terminated | time_outs).nonzero().squeeze(-1).int()
        if len(reset_env_ids) > 0:
            if self.cfg.compute_final_obs:
                self.extras["final_obs"] = self.observation_manager.compute()
            self._reset_idx(reset_env_ids)
        return self.observation_manager.compute(update_history=True), reward, terminated, time_outs, self.extras

    def _reset_idx(self, env_ids):
        self.curriculum_manager.compute(env_ids)
        self.extras["log"] = self.reward_manager.reset(env_ids)
        self.observation_manager.reset(env_ids)
        self.begin(env_ids)


class DirectRLEnv(StubEnv):
    """Like an in-hand task: it counts `successes` and times out a step early. Its terminations are one buffer."""

    def __init__(self, cfg, render_mode=None, **kwargs):
        self.start(cfg, policy=3, critic=3)
        self.reset_terminated, self.successes = torch.zeros(self.num_envs, dtype=torch.bool), torch.zeros(self.num_envs)

    def _get_observations(self):
        return dict.fromkeys(("policy", "critic"), torch.stack([self.x, self.episode, self.episode_length_buf], 1))

    def reset(self, seed=None, options=None):
        self._reset_idx(torch.arange(self.num_envs))
        return self._get_observations(), self.extras

    def step(self, action):
        self.reset_terminated[:] = self.move(action)
        self.successes += self.x >= 1.0
        time_outs, reward = self.episode_length_buf >= self.max_episode_length - 1, self.x.clone()
        reset_env_ids = (self.reset_terminated | time_outs).nonzero().squeeze(-1).int()
        if len(reset_env_ids) > 0:
            if self.cfg.compute_final_obs:
                self.extras["final_obs"] = self._get_observations()
            self._reset_idx(reset_env_ids)
        return self._get_observations(), reward, self.reset_terminated, time_outs, self.extras

    def _reset_idx(self, env_ids):
        self.begin(env_ids)
        self.successes[env_ids] = 0.0


for env, obs_groups in ((ManagerBasedRLEnv, {"actor": ["policy", "proprio"]}), (DirectRLEnv, None)):
    kwargs = {"env_cfg_entry_point": make_config, "rsl_rl_cfg_entry_point": SimpleNamespace(obs_groups=obs_groups)}
    gymnasium.register(f"Isaac-{env.__name__}", env, disable_env_checker=True, kwargs=kwargs)
