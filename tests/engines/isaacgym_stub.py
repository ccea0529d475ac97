"""A stub of Isaac Gym Preview 4 and IsaacGymEnvs 1.5.1, neither of which can be installed here.

When things happen within a step, what is returned and what is overwritten later follow isaacgymenvs/tasks; sizes and
episode lengths follow its configuration. The physics is a point on a line, so that every number can be worked out by
hand: x <- x + 0.25 * a, a the first action. It has fallen below -2. The goals of an episode are at 1, -1, 1, ...
Observations begin with episode / 512, progress / 512, x, goal, a random number drawn at the reset; the rest is 0.
The reward is episode + x, and more at a goal.

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
        env = cfg["env"]
        n, self.num_obs, self.num_actions = env["numEnvs"], env["numObservations"], env["numActions"]
        self.device, self.name, self.max_episode_length = "cpu", cfg["name"], env["episodeLength"]
        self.obs_buf, self.rew_buf = torch.zeros(n, self.num_obs), torch.zeros(n)
        self.reset_buf, self.progress_buf = torch.ones(n, dtype=torch.long), torch.zeros(n, dtype=torch.long)
        self.x, self.draw, self.episode, self.goal = torch.zeros(4, n)
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
        self.draw[ids] = torch.rand(len(ids))  # torch's global generator: the seed given to make is not used
        self.episode[ids] += 1
        self.progress_buf[ids] = 0
        self.reset_buf[ids] = 0

    def compute_observations(self):
        columns = [self.episode / SCALE, self.progress_buf / SCALE, self.x, self.goal, self.draw]
        self.obs_buf[:, :5] = torch.stack(columns, 1)[:, : self.num_obs]

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


HAND = {"maxConsecutiveSuccesses": 0}
KUKA = {"maxConsecutiveSuccesses": 50, "subtask": ""}
TASKS = {  # file of cfg/task -> (class, observations, actions, episode length, more of its section env)
    "AllegroHand": (Hand, 88, 16, 600, HAND),
    "AllegroKuka": (AllegroKuka, None, 23, 600, KUKA),
    "AllegroKukaTwoArmsLSTM": (AllegroKuka, None, 46, 600, {**KUKA, "numArms": 2}),
    "Ant": (VecTask, 60, 8, 1000, {}),
    "Anymal": (Anymal, 48, 12, 2500, {}),
    "Cartpole": (VecTask, 4, 1, 500, {}),
    "FrankaCubeStack": (VecTask, 19, 7, 300, {}),
    "Humanoid": (VecTask, 108, 21, 1000, {}),
    "ShadowHand": (Hand, 211, 20, 600, HAND),
}
SUBTASKS = {"reorientation": {}, "regrasping": {"episodeLength": 300}, "throw": {"episodeLength": 300}}
KUKA_OBSERVATIONS = {(23, True): 117, (23, False): 99, (46, True): 196, (46, False): 169}  # (actions, reorientation?)


def write_packages(folder, env):
    """The packages isaacgym and isaacgymenvs, with a configuration for hydra.

    env: changes to the section `env` of a file of cfg/task, e.g. {"Ant": {"episodeLength": 8}}.
    """
    (folder / "isaacgym").mkdir()
    (folder / "isaacgym" / "__init__.py").write_text("")
    (folder / "isaacgym" / "gymapi.py").write_text(
        "import sys\n"
        "if 'torch' in sys.modules:\n"
        "    raise ImportError('PyTorch was imported before isaacgym modules.\\nPlease import torch after them.')\n"
    )
    cfg = folder / "isaacgymenvs" / "cfg"
    (cfg / "task" / "env").mkdir(parents=True)
    (folder / "isaacgymenvs" / "__init__.py").write_text("from tests.engines.isaacgym_stub import make\n")
    (cfg / "config.yaml").write_text("num_envs: ''\ndefaults: [{task: Ant}, _self_]\n")
    for name, (_, num_obs, num_actions, length, more) in TASKS.items():
        content = {"name": name.replace("LSTM", ""), "defaults": ["_self_"]}
        if "Kuka" in name:
            content["defaults"].append({"env": "reorientation"})
        content["env"] = {"numEnvs": "${...num_envs}", "numObservations": num_obs, "numActions": num_actions}
        content["env"].update({"episodeLength": length, **more, **env.get(name, {})})
        (cfg / "task" / f"{name}.yaml").write_text(json.dumps(content))
    for name, content in SUBTASKS.items():
        shortened = env.get("AllegroKuka", {})
        (cfg / "task" / "env" / f"{name}.yaml").write_text(json.dumps({"subtask": name, **content, **shortened}))


calls = []  # the arguments of every make()


def make(
    seed, task, num_envs, sim_device, rl_device, graphics_device_id=-1, headless=False, multi_gpu=False,
    virtual_screen_capture=False, force_render=True, cfg=None,
):  # fmt: skip
    """isaacgymenvs.make, which ignores task and num_envs if it is given a configuration."""
    calls.append(dict(locals()))
    config = OmegaConf.to_container(cfg.task, resolve=True)
    env = config["env"]
    if env["numObservations"] is None:
        env["numObservations"] = KUKA_OBSERVATIONS[env["numActions"], env["subtask"] == "reorientation"]
    return TASKS[task][0](config)
