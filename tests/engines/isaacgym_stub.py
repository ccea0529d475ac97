"""A stub of Isaac Gym Preview 4 and IsaacGymEnvs 1.5.1, neither of which can be installed here.

When things happen within a step, what is returned and what is overwritten later follow isaacgymenvs/tasks; episode
lengths follow its configuration. The physics is a point on a line, so that every number can be worked out by hand:
x <- x + 0.25 * a, a the only action. It has fallen below -2. The goals of an episode are at 1, -1, 1, ...
An observation is episode / 512, progress / 512, x, goal; the reward is episode + x, and more at a goal.

Dexterous tasks execute a pending reset before the action, so the action chosen on seeing the last observation of an
episode moves the next one. The others execute it after physics, so that action is lost: progress and x are 0.
"""

import json

import torch
from omegaconf import OmegaConf

SCALE = 512.0


class VecTask:
    """A task that resets after physics. The first step executes the first reset; reset() resets nothing."""

    def __init__(self, cfg):
        n, self.max_episode_length = cfg["env"]["numEnvs"], cfg["env"]["episodeLength"]
        self.device, self.num_obs, self.num_actions = "cpu", 4, 1
        self.obs_buf, self.rew_buf = torch.zeros(n, self.num_obs), torch.zeros(n)
        self.reset_buf, self.progress_buf = torch.ones(n, dtype=torch.long), torch.zeros(n, dtype=torch.long)
        self.x, self.episode, self.goal = torch.zeros(3, n)
        self.obs_dict, self.extras = {}, {}  # the same two at every step

    def step(self, actions):
        self.actions = actions.clone()
        self.pre_physics_step()
        self.x += 0.25 * self.actions[:, 0]
        self.progress_buf += 1
        self.post_physics_step()
        # a fall in the last step is a time-out too
        self.extras["time_outs"] = (self.progress_buf >= self.max_episode_length - 1) & (self.reset_buf != 0)
        self.obs_dict["obs"] = self.obs_buf.clone()
        return self.obs_dict, self.rew_buf, self.reset_buf, self.extras  # rew_buf is overwritten by the next step

    def pre_physics_step(self):
        pass

    def post_physics_step(self):
        self.fallen = self.x < -2.0  # for Anymal: contacts are those of the last physics step
        self.reset_pending()
        self.compute_observations()
        self.rew_buf[:] = self.episode + self.x
        self.check_termination()

    def reset_pending(self):
        ids = self.reset_buf.nonzero().flatten()
        if len(ids) > 0:
            self.reset_idx(ids)

    def reset_idx(self, ids):
        self.x[ids] = 0.0
        self.episode[ids] += 1
        self.progress_buf[ids] = 0
        self.reset_buf[ids] = 0

    def compute_observations(self):
        self.obs_buf[:] = torch.stack([self.episode / SCALE, self.progress_buf / SCALE, self.x, self.goal], 1)

    def check_termination(self):
        ends = (self.x < -2.0) | (self.progress_buf >= self.max_episode_length - 1)
        self.reset_buf[:] = torch.where(ends, torch.ones_like(self.reset_buf), self.reset_buf)


class Anymal(VecTask):
    """Resets a second time where it fell: the flag after a reset still sees the fallen state's contacts."""

    def check_termination(self):
        self.reset_buf[:] = self.fallen | (self.progress_buf >= self.max_episode_length - 1)


class Hand(VecTask):
    """Resets before physics. A success counts, and the next step sets a new goal."""

    def __init__(self, cfg):
        super().__init__(cfg)
        self.max_consecutive_successes = cfg["env"]["maxConsecutiveSuccesses"]
        self.successes, self.reached = torch.zeros_like(self.x), torch.ones_like(self.x, dtype=torch.bool)

    def reset_idx(self, ids):
        super().reset_idx(ids)
        self.successes[ids] = 0
        self.goal[ids] = 1.0

    def pre_physics_step(self):
        self.goal = torch.where(self.reached, -self.goal, self.goal)
        self.reset_pending()

    def post_physics_step(self):
        self.compute_observations()
        self.reached = (self.x - self.goal).abs() <= 0.1
        self.successes += self.reached
        self.rew_buf[:] = self.episode + self.x + 250.0 * self.reached
        self.extras["consecutive_successes"] = self.successes.mean()
        self.check_termination()


class AllegroKuka(Hand):
    """A success restarts the clock in the same step, and the last one ends the episode without a time-out."""

    def __init__(self, cfg):
        super().__init__(cfg)
        self.initial_tolerance = self.success_tolerance = 0.075

    def post_physics_step(self):
        super().post_physics_step()
        self.progress_buf = torch.where(self.reached, torch.zeros_like(self.progress_buf), self.progress_buf)
        last = self.successes >= self.max_consecutive_successes
        self.reset_buf[:] = (self.x < -2.0) | last | (self.progress_buf >= self.max_episode_length - 1)
        if self.reached.any():
            self.success_tolerance *= 0.9  # the real one needs three successes on average, every 3,000 steps
        self.extras["scalars"] = {"success_tolerance": self.success_tolerance}
        self.extras["rewards_episode"] = {"bonus_rew": 250.0 * self.reached}
        self.extras["true_objective"] = self.successes.clone()


TASKS = {  # file of cfg/task -> (class, episode length)
    "AllegroHand": (Hand, 600),
    "AllegroKuka": (AllegroKuka, 600),
    "AllegroKukaTwoArmsLSTM": (AllegroKuka, 600),
    "Ant": (VecTask, 1000),
    "Anymal": (Anymal, 2500),
    "Cartpole": (VecTask, 500),
    "FrankaCubeStack": (VecTask, 300),
    "Humanoid": (VecTask, 1000),
    "ShadowHand": (Hand, 600),
}
SUBTASKS = {"reorientation": {}, "regrasping": {"episodeLength": 300}, "throw": {"episodeLength": 300}}


def write_packages(folder, env):
    """The packages isaacgym and isaacgymenvs, with a configuration for hydra.

    env: changes to the section `env` of a file of cfg/task, e.g. {"Ant": {"episodeLength": 8}}.
    """
    cfg = folder / "isaacgymenvs" / "cfg"
    (cfg / "task" / "env").mkdir(parents=True)
    (folder / "isaacgym").mkdir()
    (folder / "isaacgym" / "gymapi.py").touch()
    (folder / "isaacgymenvs" / "__init__.py").write_text("from tests.engines.isaacgym_stub import make\n")
    (cfg / "config.yaml").write_text("num_envs: ''\ndefaults: [{task: Ant}, _self_]\n")
    for name, (_, length) in TASKS.items():
        content = {"name": name.replace("LSTM", ""), "defaults": ["_self_"]}
        if "Kuka" in name:
            content["defaults"].append({"env": "reorientation"})
        content["env"] = {"numEnvs": "${...num_envs}", "episodeLength": length}
        content["env"].update({"maxConsecutiveSuccesses": 50 if "Kuka" in name else 0, **env.get(name, {})})
        (cfg / "task" / f"{name}.yaml").write_text(json.dumps(content))
    for name, content in SUBTASKS.items():
        shortened = env.get("AllegroKuka", {})
        (cfg / "task" / "env" / f"{name}.yaml").write_text(json.dumps({"subtask": name, **content, **shortened}))


calls = []  # the arguments of every make()


def make(seed, task, num_envs, sim_device, rl_device, headless, force_render, cfg):
    """isaacgymenvs.make, which ignores task and num_envs if it is given a configuration."""
    calls.append(dict(locals()))
    return TASKS[task][0](OmegaConf.to_container(cfg.task, resolve=True))
