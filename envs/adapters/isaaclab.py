"""`isaaclab:Isaac-Reorient-KukaAllegro`: the tasks of Isaac Lab 3.

It has never been run on the real one. It was written and checked against the source of isaaclab 3.0.0, and a test runs
it on a small stub.
"""

import gymnasium
import isaaclab_tasks  # noqa: F401, registers them
import numpy as np
import torch
from isaaclab.app import launch_simulation
from isaaclab_tasks.utils import resolve_task_config

from envs.adapters.adapter import Adapter, check_actions, check_known, check_observations, check_only_simulation

PPO = "rsl_rl_cfg_entry_point"  # in a task's registration: Isaac Lab's own PPO, which says what the actor observes
SIMULATION = {}  # at most one: (task, number of environments, device) -> environment, groups, simulation


class IsaacLab(Adapter):
    """A task in its training configuration. Observations: all groups of the actor, with their noise and history.

    Actions without bounds are in the task's units, clamped to [-1, 1], which Isaac Lab's training does not do. Isaac
    Lab resets within its step. It does not add an episode's last step to histories, so that of a group with a history
    the final observation is the one before. The objective is the goals reached by a hand, the success of KukaAllegro
    and other tasks with a reward called success, else the return.
    """

    engine_name = "isaaclab"
    curriculum = ("control_steps", "difficulty")  # KukaAllegro's difficulty: in [0, 1], averaged over environments

    @staticmethod
    def check(name):
        """Raises ValueError (one line) where Isaac Lab has no task `name` for RSL-RL."""
        known = [task for task, spec in gymnasium.registry.items() if PPO in spec.kwargs]
        check_known(name, known, " Only tasks that RSL-RL can train are known.")

    def __init__(self, name, num_envs, device, seed):
        super().__init__(num_envs, device, seed)
        kind = name, num_envs, str(self.device)
        check_only_simulation("Isaac Lab", SIMULATION, kind)
        if not SIMULATION:
            config, ppo = resolve_task_config(name, PPO, overrides=[])
            config.scene.num_envs = num_envs
            config.sim.device = str(self.device)
            config.seed = self.seeds[0]
            config.compute_final_obs = True
            simulation = launch_simulation(config, {"visualizer": []})
            simulation.__enter__()  # until the process ends
            groups = ppo.obs_groups["actor"] if isinstance(ppo.obs_groups, dict) else ["policy"]
            SIMULATION[kind] = (gymnasium.make(name, cfg=config).unwrapped, groups, simulation)
        self.env, self.groups, _ = SIMULATION[kind]
        check_actions(self.env.single_action_space)
        for group in self.groups:
            check_observations(self.env.single_observation_space[group])
        self.set_action_space(self.env.single_action_space)
        self.num_obs = sum(int(np.prod(self.env.single_observation_space[group].shape)) for group in self.groups)
        self.max_episode_steps = self.env.max_episode_length
        self.frame_rate = round(1.0 / self.env.step_dt)
        self.control_steps = torch.tensor(0)
        self.difficulty = torch.tensor(torch.nan, dtype=torch.float64)
        # KukaAllegro's curriculum, if the task has it: adaptive domain randomisation
        manager = getattr(self.env, "curriculum_manager", None)
        self.adr = getattr(getattr(manager, "cfg", None), "adr", None)
        self.env._reset_idx = self.score_and_reset

    def flatten(self, obs):
        """The actor's groups of Isaac Lab's observations, (N, D) float32."""
        return torch.cat([obs[group].flatten(1).float() for group in self.groups], 1)

    def score_and_reset(self, env_ids):
        """In the place of the task's `_reset_idx`: the last time that the successes of ending episodes can be read."""
        score = getattr(self.env, "successes", None)  # (N,) of a hand
        rewards = getattr(self.env, "reward_manager", None)
        if rewards is not None and "success" in rewards.active_terms:
            score = getattr(rewards.get_term_cfg("success").func, "succeeded", None)
        self.score = None if score is None else score.float().clone()
        if self.adr and not self.difficulty.isnan():
            # Give the environments the mean difficulty that is known here, which may be a checkpoint's or rank 0's.
            level = self.adr.func.get_state()
            most = self.adr.params["max_difficulty"]
            level = (level + self.difficulty.item() * most - level.mean()).clamp(0.0, most)
            # A reset of all environments, without successes, lowers the difficulty by one: make up for it.
            self.adr.func.set_state(level + self.beginning)
        type(self.env)._reset_idx(self.env, env_ids)
        if self.adr and (self.training or self.difficulty.isnan()):  # an evaluation keeps the difficulty
            self.difficulty.fill_(self.adr.func.difficulty_frac)

    def reset(self):
        self.beginning = True
        self.next_obs = self.flatten(self.env.reset(seed=self.seeds[0])[0])
        self.beginning = False
        super().reset()
        self.env.episode_length_buf.copy_(self.episode_step)  # staggered in training
        return self.obs

    def reset_where(self, mask):
        self.obs = self.next_obs  # the same as before where nothing ended

    def advance(self, action):
        self.env.common_step_counter = self.control_steps.item()
        obs, reward, terminated, time_outs, extras = self.env.step(self.to_bounds(action).float())
        self.control_steps += 1
        ended = terminated | time_outs
        self.next_obs = self.flatten(obs)
        self.obs = torch.where(ended[:, None], self.flatten(extras.get("final_obs", obs)), self.next_obs)
        # Isaac Lab alone ends episodes, so the clock stays below the limit.
        self.episode_step.copy_(self.env.episode_length_buf.clamp(max=self.max_episode_steps - 1))
        return reward, terminated, time_outs

    def objective(self):
        return self.episode_return if self.score is None else self.score

    def metrics(self):
        return dict(self.env.extras.get("log", {}))
