"""A stand-in for NVIDIA's Isaac Gym Preview 4 and IsaacGymEnvs 1.5.1, for tests on machines that have neither.

`install(monkeypatch)` makes `import isaacgym`, `import isaacgymenvs` and `import hydra, omegaconf` find the fakes below
for the length of a test. Names, signatures, dtypes, shapes and the order of things within a step are the real ones;
the physics is a point on a line, so that every number can be worked out by hand. This file imports without torch,
because the real package refuses to be imported after it (see `refuse_torch`).

What every task does (isaacgymenvs/tasks/base/vec_task.py)
    step(actions)   1. clamp actions to +-clip_actions (infinite in the AllegroKuka tasks)
                    2. pre_physics_step   3. physics   4. post_physics_step
                    5. timeout_buf = (progress_buf >= max_episode_length - 1) & (reset_buf != 0)
                    6. obs = obs_buf clamped to +-clip_obs
                    returns obs_dict {"obs": (N, D) float32}, rew (N) float32, reset flags (N) int64, extras
                    extras["time_outs"] is (N) bool. A fall in the last step of an episode also counts as a time-out.
    reset()         returns obs_buf clamped and resets NOTHING: all zeros before the first step, later the last ones.
    reset_done()    runs reset_idx on the flagged environments at once; obs_buf keeps the old observations. Returns
                    (obs_dict, ids). TypeError in the two hands, whose reset_idx takes two arguments, as in reality.
    start           every flag is up, every counter 0: the first step executes the first reset.
    aliases         obs_dict and extras are the same dict at every step, and where both devices are one, the returned
                    rew and flags ARE rew_buf and reset_buf: the next step overwrites them. obs is a new one.
                    The AllegroKuka tasks replace the tensor progress_buf at every step, the others write in place.
    states          the AllegroKuka tasks declare num_states = num_obs; obs_dict["states"] is all zeros.
    seed            make() takes a seed and does not use it: tasks draw from torch's global generator.
    spaces          observation_space, action_space, state_space: shape, low, high, dtype.

The point. Position x starts at 0. Physics: x <- x + 0.25 * a, a = the first action after the clamp. It has fallen
where x < -2. Observation, first columns (the rest is 0; Cartpole has only the first four; AllegroKuka's last: below)
    0  episode / 512           1, 2, 3, ...: one more at every execution of a reset
    1  progress_buf / 512      before a success clears it
    2  x
    3  goal                    +1 for the episode's 1st, 3rd, ... goal, -1 for the others; 0 in tasks without goals
    4  a number from U(0, 1)   drawn at every reset, touches nothing else
    5  successes / 512         before this step's
All are clamped with the rest: x shows 5 for x = 6 where clip_obs is 5.

Group one: reset flags are executed at the start of the next step, BEFORE the action is applied
    The flags at t+1 come with obs (episode + 1, progress 1, x = 0.25 * a): the action chosen on seeing the last
    observation of the old episode is the first action of the new one. The first step shows episode 1, progress 1.
    Without event the flag and time_outs are up when progress = L - 1, L - 1 steps after the last such flag.
    BallBalance       reward = episode + x; done at a fall. The action of a resetting step is discarded: x = 0.
    AllegroHand, ShadowHand
                      success where |x - goal| <= 0.1: reward + 250, successes + 1, a new goal at the start of the
                      next step (x and progress_buf stay). reward = episode + x (+ 250). Done at a fall.
                      extras["consecutive_successes"] is a 0-d tensor: where any environment is done, it becomes
                      0.1 * (successes of the done ones) / (number done) + 0.9 * itself. No "successes" in extras: read
                      the attribute `successes` (N) float32, which the next step clears where it resets.
    AllegroKuka*      near where |x - goal| <= 1.5 * success_tolerance (0.075 at first). near_goal_steps counts near
                      steps, also interrupted ones, since the goal was set. At success_steps of them: successes + 1,
                      progress_buf = 0 in the SAME step, after the observation and before the time-out check, no flag.
                      The next step first sets the new goal; Regrasping and Throw also put x back to 0 then.
                      Done at a fall, at the episode's 50th success (no time-out: progress_buf is 0), or by time.
                      reward = episode + x + [near] * 1000 / success_steps. Last column: 0.01 * reward. obs_buf is
                      clamped in place to +-10. Attributes: successes, prev_episode_successes (both (N) float32;
                      the reset copies the one to the other), reset_goal_buf, success_tolerance, true_objective (N).
                      extras: "successes" = mean of prev_episode_successes (0-d), "true_objective" (N), its _mean, _min
                      and _max (0-d), "rewards_episode" and "episode_cumulative" {"bonus_rew": (N)},
                      "scalars" {"success_tolerance": float}, as it was at the latest reset of any environment.
                      Tolerance curriculum: as in the real one, before the observation.
Group two: reset flags are executed in the next step AFTER physics
    Ant, Humanoid, Anymal, FrankaCubeStack, Cartpole
                      At t+1 the action moves the finished state once more and that is thrown away: obs is
                      (episode + 1, progress 0, x = 0) and reward = episode + 1. The first step shows episode 1,
                      progress 0. Without event flags come L steps apart; the first one in step L.
                      reward = episode + x; at a fall Ant and Cartpole give -2, Humanoid -1 instead. Done at a fall.
                      Ant: extras["true_objective"] = velocity (squeezed: 0-d for one environment) = 0.25 * a, 0 on the
                      resetting step.
    Anymal            looks for a fall in the contacts of the last physics step, which on the resetting step are still
                      those of the fallen state: the flag is up at t and, if x + 0.25 * a < -2 still, at t+1 too, and
                      t+2 resets once more. Its reset_idx sets reset_buf to 1, as the real one does.

Names. make(task=...) takes a file of isaacgymenvs/cfg/task: AllegroHand, AllegroKuka, AllegroKukaLSTM,
AllegroKukaTwoArmsLSTM, Ant, Anymal, BallBalance, Cartpole, FrankaCubeStack, Humanoid, ShadowHand. Another name is
hydra's MissingConfigException. The AllegroKuka files mean Reorientation. Another subtask needs
`with initialize(...): cfg = compose("config", ["task=AllegroKuka", "task/env=regrasping", "num_envs=8"])`
and make(cfg=cfg, ...), which then ignores its own arguments task and num_envs. initialize, initialize_config_dir and
initialize_config_module raise ValueError inside one another, as make(cfg=None) does inside them.

Devices. Without CUDA every device becomes "cpu" (what was asked for is in `calls`), otherwise they stay as given. The
AllegroKuka tasks split sim_device at ":", so "cuda" is an IndexError there as in reality; "cpu" passes here, for tests.

Not modelled: domain randomisation, viewer, gymapi, several simulations being impossible in one process, the sapg fork
(its per-environment extras["successes"], FrankaCubePush, 400 steps of Regrasping).
"""

import ast
import contextlib
import copy
import importlib
import importlib.machinery
import inspect
import random
import sys
from types import SimpleNamespace

import numpy as np


class _Torch:
    """The module torch, imported on first use."""

    def __getattr__(self, name):
        return getattr(importlib.import_module("torch"), name)


torch = _Torch()
STEP, FALL, SCALE = 0.25, -2.0, 512.0
PACKAGES = ("isaacgym", "isaacgymenvs", "hydra", "omegaconf")

# ---------------------------------------------------------------- tasks


class Box:
    """The part of gym.spaces.Box that is read."""

    def __init__(self, low, high):
        self.low, self.high = low.astype(np.float32), high.astype(np.float32)
        self.shape, self.dtype = low.shape, self.low.dtype


class VecTask:
    def __init__(
        self, cfg, rl_device, sim_device, graphics_device_id, headless, virtual_screen_capture=False, force_render=False
    ):
        env = cfg["env"]
        self.cfg, self.headless, self.graphics_device_id = cfg, headless, graphics_device_id
        self.virtual_screen_capture, self.force_render = virtual_screen_capture, force_render
        self.device_type, _, index = sim_device.partition(":")
        self.device_id = int(index or 0)
        self.device = usable(f"cuda:{self.device_id}" if self.device_type in ("cuda", "gpu") else "cpu")
        self.rl_device = usable(rl_device)
        self.max_episode_length = self.episode_length(cfg)
        self.num_environments, self.num_agents = env["numEnvs"], 1
        self.num_observations, self.num_actions = env["numObservations"], env["numActions"]
        self.num_states = env.get("numStates", 0)
        self.clip_obs, self.clip_actions = env.get("clipObservations", np.inf), env.get("clipActions", np.inf)
        self.control_freq_inv, self.dt = env.get("controlFrequencyInv", 1), cfg["sim"]["dt"]
        self.obs_space = Box(np.full(self.num_observations, -np.inf), np.full(self.num_observations, np.inf))
        self.state_space = Box(np.full(self.num_states, -np.inf), np.full(self.num_states, np.inf))
        self.act_space = Box(-np.ones(self.num_actions), np.ones(self.num_actions))
        self.total_train_env_frames = self.control_steps = 0
        self.viewer = None if headless else object()
        n, device = self.num_environments, self.device
        self.obs_buf = torch.zeros((n, self.num_observations), device=device)
        self.states_buf = torch.zeros((n, self.num_states), device=device)
        self.rew_buf = torch.zeros(n, device=device)
        self.reset_buf = torch.ones(n, device=device, dtype=torch.long)
        self.timeout_buf = torch.zeros(n, device=device, dtype=torch.long)
        self.progress_buf = torch.zeros(n, device=device, dtype=torch.long)
        self.randomize_buf = torch.zeros(n, device=device, dtype=torch.long)
        self.extras, self.obs_dict = {}, {}
        self.position, self.velocity, self.draw, self.episode, self.goal = torch.zeros((5, n), device=device)
        self.successes = torch.zeros(n, device=device)

    observation_space = property(lambda self: self.obs_space)
    action_space = property(lambda self: self.act_space)
    num_envs = property(lambda self: self.num_environments)
    num_acts = property(lambda self: self.num_actions)
    num_obs = property(lambda self: self.num_observations)

    @staticmethod
    def episode_length(cfg):
        return cfg["env"]["episodeLength"]

    def step(self, actions):
        self.pre_physics_step(torch.clamp(actions, -self.clip_actions, self.clip_actions))
        self.velocity[:] = STEP * self.actions[:, 0]
        self.position += self.velocity
        self.post_physics_step()
        self.control_steps += 1
        self.timeout_buf = (self.progress_buf >= self.max_episode_length - 1) & (self.reset_buf != 0)
        self.extras["time_outs"] = self.timeout_buf.to(self.rl_device)
        self.reset()
        return self.obs_dict, self.rew_buf.to(self.rl_device), self.reset_buf.to(self.rl_device), self.extras

    def reset(self):
        self.obs_dict["obs"] = torch.clamp(self.obs_buf, -self.clip_obs, self.clip_obs).to(self.rl_device)
        if self.num_states > 0:
            self.obs_dict["states"] = self.get_state()
        return self.obs_dict

    def reset_done(self):
        done_env_ids = self.reset_buf.nonzero(as_tuple=False).flatten()
        if len(done_env_ids) > 0:
            self.reset_idx(done_env_ids)
        return self.reset(), done_env_ids

    def reset_idx(self, env_ids):
        self.position[env_ids] = self.velocity[env_ids] = 0.0
        self.draw[env_ids] = torch.rand(len(env_ids), device=self.device)
        self.episode[env_ids] += 1
        self.progress_buf[env_ids] = 0
        self.reset_buf[env_ids] = 0

    def reset_flagged(self):
        env_ids = self.reset_buf.nonzero(as_tuple=False).flatten()
        if len(env_ids) > 0:
            self.reset_idx(env_ids)
        return env_ids

    def compute_observations(self):
        columns = [self.episode / SCALE, self.progress_buf / SCALE, self.position, self.goal, self.draw]
        columns = torch.stack([*columns, self.successes / SCALE], 1)[:, : self.num_obs]
        self.obs_buf[:, : columns.shape[1]] = columns

    def ended(self, *conditions):
        """reset_buf with the conditions and the time limit added."""
        for condition in (*conditions, self.progress_buf >= self.max_episode_length - 1):
            self.reset_buf[:] = torch.where(condition, torch.ones_like(self.reset_buf), self.reset_buf)

    def zero_actions(self):
        return torch.zeros([self.num_envs, self.num_actions], dtype=torch.float32, device=self.rl_device)

    def get_state(self):
        return torch.clamp(self.states_buf, -self.clip_obs, self.clip_obs).to(self.rl_device)

    def set_train_info(self, env_frames, *args, **kwargs):
        self.total_train_env_frames = env_frames

    def get_env_state(self):
        return None

    def set_env_state(self, env_state):
        pass

    def render(self, mode="rgb_array"):
        if self.viewer and self.virtual_screen_capture and mode == "rgb_array":
            return np.zeros((768, 1027, 3), np.uint8)


class GroupTwo(VecTask):
    """Ant and the like: a pending reset is executed after physics."""

    def pre_physics_step(self, actions):
        self.actions = actions.clone().to(self.device)

    def post_physics_step(self):
        self.progress_buf += 1
        self.randomize_buf += 1
        self.contact = self.position < FALL
        self.reset_flagged()
        self.compute_observations()
        self.compute_reward()

    def compute_reward(self):
        fallen = self.position < FALL
        self.rew_buf[:] = self.episode + self.position
        if "deathCost" in self.cfg["env"]:
            self.rew_buf[fallen] = self.cfg["env"]["deathCost"]
        self.ended(fallen)


class Ant(GroupTwo):
    def compute_reward(self):
        super().compute_reward()
        self.extras["true_objective"] = self.velocity.squeeze()


class Anymal(GroupTwo):
    @staticmethod
    def episode_length(cfg):
        return int(cfg["env"]["learn"]["episodeLength_s"] / cfg["sim"]["dt"] + 0.5)

    def reset_idx(self, env_ids):
        super().reset_idx(env_ids)
        self.reset_buf[env_ids] = 1

    def compute_reward(self):
        self.rew_buf[:] = self.episode + self.position
        self.reset_buf[:] = self.contact | (self.progress_buf >= self.max_episode_length - 1)


class BallBalance(VecTask):
    """A pending reset is executed before the action, which is then discarded."""

    @staticmethod
    def episode_length(cfg):
        return cfg["env"]["maxEpisodeLength"]

    def pre_physics_step(self, actions):
        env_ids = self.reset_flagged()
        self.actions = actions.clone().to(self.device)
        self.actions[env_ids] = 0.0

    def post_physics_step(self):
        self.progress_buf += 1
        self.compute_observations()
        self.rew_buf[:] = self.episode + self.position
        self.ended(self.position < FALL)


class Goals(VecTask):
    """What the tasks with goals share: the goals of an episode are +1, -1, +1, ..."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.reset_goal_buf = self.reset_buf.clone()
        self.goal_index = torch.zeros_like(self.progress_buf)

    def reset_target_pose(self, env_ids):
        self.goal_index[env_ids] += 1
        self.goal[env_ids] = 2.0 * (self.goal_index[env_ids] % 2) - 1.0
        self.reset_goal_buf[env_ids] = 0

    def start_episode(self, env_ids):
        self.goal_index[env_ids] = 0
        self.reset_target_pose(env_ids)
        VecTask.reset_idx(self, env_ids)


class Hand(Goals):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.max_consecutive_successes = self.cfg["env"]["maxConsecutiveSuccesses"]
        self.consecutive_successes = torch.zeros(1, device=self.device)

    def reset_idx(self, env_ids, goal_env_ids):
        self.start_episode(env_ids)
        self.successes[env_ids] = 0

    def pre_physics_step(self, actions):
        env_ids = self.reset_buf.nonzero(as_tuple=False).squeeze(-1)
        goal_env_ids = self.reset_goal_buf.nonzero(as_tuple=False).squeeze(-1)
        self.reset_target_pose(goal_env_ids)
        if len(env_ids) > 0:
            self.reset_idx(env_ids, goal_env_ids)
        self.actions = actions.clone().to(self.device)

    def post_physics_step(self):
        self.progress_buf += 1
        self.randomize_buf += 1
        self.compute_observations()
        reached = (self.position - self.goal).abs() <= self.cfg["env"]["successTolerance"]
        self.reset_goal_buf[:] = torch.where(reached, torch.ones_like(self.reset_goal_buf), self.reset_goal_buf)
        self.successes += self.reset_goal_buf
        self.rew_buf[:] = self.episode + self.position + 250.0 * self.reset_goal_buf
        self.ended(self.position < FALL)
        if self.reset_buf.any():
            finished = (self.successes * self.reset_buf).sum() / self.reset_buf.sum()
            self.consecutive_successes[:] = 0.1 * finished + 0.9 * self.consecutive_successes
        self.extras["consecutive_successes"] = self.consecutive_successes.mean()


class AllegroKuka(Goals):
    def __init__(self, cfg, rl_device, sim_device, *args, **kwargs):
        env = cfg["env"]
        if sim_device != "cpu":
            int(sim_device.split(":")[1])  # the real task reads the index so
        env["numStates"] = env["numObservations"]
        super().__init__(cfg, rl_device, sim_device, *args, **kwargs)
        self.initial_tolerance = self.success_tolerance = env["successTolerance"]
        self.target_tolerance = env["targetSuccessTolerance"]
        self.success_steps, self.max_consecutive_successes = env["successSteps"], env["maxConsecutiveSuccesses"]
        self.frame_since_restart = self.last_curriculum_update = 0
        self.near_goal_steps = torch.zeros(self.num_envs, dtype=torch.int, device=self.device)
        self.prev_episode_successes = torch.zeros_like(self.successes)
        self.true_objective, self.prev_episode_true_objective = torch.zeros_like(self.successes).repeat(2, 1)
        self.rewards_episode = {"bonus_rew": torch.zeros_like(self.successes)}

    def get_env_state(self):
        return dict(success_tolerance=self.success_tolerance)

    def set_env_state(self, env_state):
        if env_state is not None:
            self.success_tolerance = env_state["success_tolerance"]

    def reset_target_pose(self, env_ids):
        super().reset_target_pose(env_ids)
        self.near_goal_steps[env_ids] = 0
        if self.cfg["env"]["subtask"] != "reorientation":
            self.position[env_ids] = 0.0

    def reset_idx(self, env_ids):
        self.start_episode(env_ids)
        self.prev_episode_successes[env_ids] = self.successes[env_ids]
        self.successes[env_ids] = 0
        self.prev_episode_true_objective[env_ids] = self.true_objective[env_ids]
        self.true_objective[env_ids] = 0
        self.rewards_episode["bonus_rew"][env_ids] = 0
        self.extras["scalars"] = {"success_tolerance": self.success_tolerance}

    def pre_physics_step(self, actions):
        self.actions = actions.clone().to(self.device)
        self.reset_target_pose(self.reset_goal_buf.nonzero(as_tuple=False).squeeze(-1))
        self.reset_flagged()

    def post_physics_step(self):
        self.frame_since_restart += 1
        self.progress_buf += 1
        self.randomize_buf += 1
        self.narrow_tolerance()
        self.compute_observations()
        self.compute_kuka_reward()
        self.obs_buf[:, -1] = 0.01 * self.rew_buf
        self.obs_buf.clamp_(-self.cfg["env"]["clampAbsObservations"], self.cfg["env"]["clampAbsObservations"])

    def narrow_tolerance(self):
        due = self.frame_since_restart - self.last_curriculum_update >= self.cfg["env"]["toleranceCurriculumInterval"]
        if due and self.prev_episode_successes.mean() >= 3.0:
            narrower = self.success_tolerance * self.cfg["env"]["toleranceCurriculumIncrement"]
            self.success_tolerance = max(min(narrower, self.initial_tolerance), self.target_tolerance)
            self.last_curriculum_update = self.frame_since_restart

    def compute_kuka_reward(self):
        near = (self.position - self.goal).abs() <= 1.5 * self.success_tolerance
        self.near_goal_steps += near
        success = self.near_goal_steps >= self.success_steps
        self.successes += success
        self.reset_goal_buf[:] = success
        bonus = near * (self.cfg["env"]["reachGoalBonus"] / self.success_steps)
        self.rew_buf[:] = self.episode + self.position + bonus
        self.progress_buf = torch.where(success, torch.zeros_like(self.progress_buf), self.progress_buf)
        self.ended(self.position < FALL, self.successes >= self.max_consecutive_successes)
        self.rewards_episode["bonus_rew"] += bonus
        span = self.initial_tolerance - self.target_tolerance
        curriculum = (self.initial_tolerance - self.success_tolerance) / span if span > 0 else 1.0
        worth = 0.01 if self.success_tolerance > self.target_tolerance else 1.0
        self.true_objective = worth * self.successes + curriculum
        self.extras["successes"] = self.prev_episode_successes.mean()
        self.extras["true_objective"] = self.true_objective
        for name in ("mean", "min", "max"):
            self.extras[f"true_objective_{name}"] = getattr(self.true_objective, name)()
        self.extras["rewards_episode"], self.extras["episode_cumulative"] = self.rewards_episode, {"bonus_rew": bonus}


def usable(device):
    return device if torch.cuda.is_available() else "cpu"


# ---------------------------------------------------------------- configuration

HAND = {"episodeLength": 600, "successTolerance": 0.1, "maxConsecutiveSuccesses": 0}
FIVE, ONE = {"clipObservations": 5.0}, {"clipActions": 1.0}
KUKA = {
    "episodeLength": 600, "successSteps": 1, "successTolerance": 0.075, "targetSuccessTolerance": 0.01,
    "toleranceCurriculumIncrement": 0.9, "toleranceCurriculumInterval": 3000, "maxConsecutiveSuccesses": 50,
    "reachGoalBonus": 1000.0, "clampAbsObservations": 10.0, "subtask": "reorientation",
}  # fmt: skip
SUBTASKS = {
    "reorientation": {"subtask": "reorientation"},
    "regrasping": {"subtask": "regrasping", "episodeLength": 300, "successSteps": 30},
    "throw": {"subtask": "throw", "episodeLength": 300, "successSteps": 5, "targetSuccessTolerance": 0.075},
}
TASK_MAP = {
    "AllegroHand": Hand, "AllegroKuka": AllegroKuka, "AllegroKukaTwoArms": AllegroKuka, "Ant": Ant, "Anymal": Anymal,
    "BallBalance": BallBalance, "Cartpole": GroupTwo, "FrankaCubeStack": GroupTwo, "Humanoid": GroupTwo,
    "ShadowHand": Hand,
}  # fmt: skip
# file of cfg/task: (name, observations, actions, environments, dt, the rest of env)
FILES = {
    "AllegroHand": ("AllegroHand", 88, 16, 16384, 0.01667, {**HAND, **FIVE, **ONE, "controlFrequencyInv": 2}),
    "AllegroKuka": ("AllegroKuka", None, 23, 8192, 0.01667, KUKA),
    "AllegroKukaLSTM": ("AllegroKuka", None, 23, 8192, 0.01667, KUKA),
    "AllegroKukaTwoArmsLSTM": ("AllegroKukaTwoArms", None, 46, 8192, 0.01667, {**KUKA, "numArms": 2}),
    "Ant": ("Ant", 60, 8, 4096, 0.0166, {"episodeLength": 1000, "deathCost": -2.0, **ONE}),
    "Anymal": ("Anymal", 48, 12, 4096, 0.02, {"learn": {"episodeLength_s": 50}, **FIVE, **ONE}),
    "BallBalance": ("BallBalance", 24, 3, 4096, 0.01, {"maxEpisodeLength": 500, **FIVE, **ONE}),
    "Cartpole": ("Cartpole", 4, 1, 512, 0.0166, {"episodeLength": 500, "deathCost": -2.0, **FIVE, **ONE}),
    "FrankaCubeStack": ("FrankaCubeStack", 19, 7, 8192, 0.01667, {"episodeLength": 300, **FIVE, **ONE}),
    "Humanoid": ("Humanoid", 108, 21, 4096, 0.0166, {"episodeLength": 1000, "deathCost": -1.0, **ONE}),
    "ShadowHand": ("ShadowHand", 211, 20, 16384, 0.01667, {**HAND, **FIVE, **ONE}),
}
KUKA_OBSERVATIONS = {(23, True): 117, (23, False): 99, (46, True): 196, (46, False): 169}  # (actions, reorientation?)
ROOT = {
    "num_envs": "", "seed": 42, "torch_deterministic": False, "physics_engine": "physx", "pipeline": "gpu",
    "sim_device": "cuda:0", "rl_device": "cuda:0", "graphics_device_id": 0, "multi_gpu": False, "headless": False,
    "force_render": True, "capture_video": False, "test": False, "checkpoint": "", "train": "", "pbt": "no_pbt",
}  # fmt: skip


class DictConfig(dict):
    """omegaconf's, as far as needed: keys are attributes too."""

    def __init__(self, content):
        nested = {key: DictConfig(value) for key, value in content.items() if isinstance(value, dict)}
        super().__init__({**content, **nested})

    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(name)
        return self[name]

    __setattr__ = dict.__setitem__

    def __deepcopy__(self, memo):
        return DictConfig({key: copy.deepcopy(value, memo) for key, value in self.items()})


def omegaconf_to_dict(config):
    return {key: omegaconf_to_dict(value) if isinstance(value, DictConfig) else value for key, value in config.items()}


class ConfigCompositionException(Exception):
    pass


class MissingConfigException(OSError, ConfigCompositionException):
    pass


class FakeIsaacGym:
    """One installation: the functions of the fake modules and what was done with them.

    calls: the arguments of every make(), in order (dicts). tasks: what they returned.
    torch_first: whether torch was in sys.modules when isaacgym was first imported; None as long as it was not.
    """

    def __init__(self, env, refuse_torch):
        self.env, self.refuse_torch = env or {}, refuse_torch
        self.calls, self.tasks, self.torch_first, self.initialized = [], [], None, False

    # hydra

    def initialize(self, config_path=None, job_name=None, version_base=None, **path):
        if self.initialized:
            raise ValueError("GlobalHydra is already initialized, call GlobalHydra.instance().clear() to re-initialize")
        self.initialized = True

        @contextlib.contextmanager
        def until_exit():
            try:
                yield
            finally:
                self.initialized = False

        return until_exit()

    def clear(self):
        self.initialized = False

    def compose(self, config_name=None, overrides=(), return_hydra_config=False, strict=None):
        if not self.initialized:
            raise AssertionError("GlobalHydra is not initialized, use @hydra.main() or an initialize method first")
        given = dict(override.lstrip("+").split("=", 1) for override in overrides)
        config = DictConfig(copy.deepcopy(ROOT))
        config.task = self.task_config(given.pop("task", "Ant"), given.pop("task/env", None))
        for key, text in given.items():
            *parents, last = key.split(".")
            node = config
            for parent in parents:
                node = node.get(parent, {})
            if last not in node:
                raise ConfigCompositionException(f"Could not override '{key}'.")
            node[last] = literal(text)
        config.task.env.numEnvs = config.task.env.numEnvs if config.num_envs == "" else config.num_envs
        config.task.sim.use_gpu_pipeline = config.pipeline == "gpu"
        return config

    def task_config(self, file, subtask):
        if file not in FILES:
            raise MissingConfigException(f"In 'config': Could not find 'task/{file}'")
        name, observations, actions, environments, dt, rest = copy.deepcopy(FILES[file])
        env = {"numEnvs": environments, **rest}
        if "subtask" in env:
            if subtask is not None and subtask not in SUBTASKS:
                raise MissingConfigException(f"In 'task/{file}': Could not find 'task/env/{subtask}'")
            env.update(SUBTASKS[subtask or "reorientation"])
            observations = KUKA_OBSERVATIONS[actions, env["subtask"] == "reorientation"]
        elif subtask is not None:
            raise ConfigCompositionException(f"Could not override 'task/env'. No match in the defaults list of {file}.")
        env.update({"numObservations": observations, "numActions": actions}, **self.env.get(name, {}))
        sim = {"dt": dt, "substeps": 1 if name == "BallBalance" else 2, "use_gpu_pipeline": True}
        task = {"randomize": False}
        return DictConfig({"name": name, "physics_engine": "physx", "env": env, "sim": sim, "task": task})

    # isaacgymenvs

    def make(
        self, seed, task, num_envs, sim_device, rl_device, graphics_device_id=-1, headless=False, multi_gpu=False,
        virtual_screen_capture=False, force_render=True, cfg=None,
    ):  # fmt: skip
        self.calls.append({key: value for key, value in locals().items() if key != "self"})
        importlib.import_module("isaacgym.gymapi")
        if cfg is None:
            with self.initialize(config_path="./cfg"):
                config = omegaconf_to_dict(self.compose("config", [f"task={task}"]).task)
            config["env"]["numEnvs"] = num_envs
        else:
            config = omegaconf_to_dict(cfg.task)
        if config["name"] == "AllegroKukaTwoArms" and config["env"]["subtask"] == "throw":
            raise ValueError("Unknown subtask=throw")
        self.tasks.append(
            TASK_MAP[config["name"]](
                config, rl_device, sim_device, graphics_device_id, headless, virtual_screen_capture, force_render
            )
        )
        return self.tasks[-1]

    def on_import_of_isaacgym(self):
        torch_first = "torch" in sys.modules
        self.torch_first = torch_first if self.torch_first is None else self.torch_first
        if torch_first and self.refuse_torch:
            raise ImportError(
                "PyTorch was imported before isaacgym modules.  Please import torch after isaacgym modules."
            )

    def modules(self):
        """What the fake modules hold: dotted name -> content, or a function to call at the import."""
        initialize = dict.fromkeys(("initialize", "initialize_config_dir", "initialize_config_module"), self.initialize)
        errors = {error.__name__: error for error in (MissingConfigException, ConfigCompositionException)}
        instance = SimpleNamespace(clear=self.clear, is_initialized=lambda: self.initialized)
        conf = SimpleNamespace(
            create=DictConfig, to_container=lambda cfg, resolve=False: omegaconf_to_dict(cfg),
            register_new_resolver=lambda name, resolver, **options: None, set_struct=lambda cfg, value: None,
        )  # fmt: skip
        make = lambda *args, **kwargs: self.make(*args, **kwargs)  # noqa: E731, a plain function like the real one
        make.__signature__ = inspect.signature(self.make)
        return {
            "isaacgym": self.on_import_of_isaacgym,
            "isaacgym.gymapi": dict(SIM_FLEX=0, SIM_PHYSX=1),
            "isaacgym.gymtorch": {},
            "isaacgym.gymutil": {},
            "isaacgym.torch_utils": {},
            "isaacgymenvs": dict(make=make),
            "isaacgymenvs.tasks": dict(isaacgym_task_map=TASK_MAP),
            "isaacgymenvs.utils": {},
            "isaacgymenvs.utils.reformat": dict(omegaconf_to_dict=omegaconf_to_dict),
            "isaacgymenvs.utils.utils": dict(set_seed=set_seed),
            "hydra": dict(initialize, compose=self.compose),
            "hydra.errors": errors,
            "hydra.core": {},
            "hydra.core.global_hydra": dict(GlobalHydra=SimpleNamespace(instance=lambda: instance)),
            "hydra.core.hydra_config": dict(HydraConfig=SimpleNamespace(initialized=lambda: False)),
            "omegaconf": dict(DictConfig=DictConfig, OmegaConf=conf),
        }


def literal(text):
    try:
        return ast.literal_eval({"true": "True", "false": "False"}.get(text, text))
    except (ValueError, SyntaxError):
        return text


def set_seed(seed, torch_deterministic=False, rank=0):
    """isaacgymenvs.utils.utils.set_seed without its settings of cuDNN."""
    seed = random.randrange(10000) if seed == -1 else seed + rank
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return seed


class Finder:
    """Finds the fake modules; the packages hold nothing else."""

    def __init__(self, modules):
        self.contents = modules

    def find_spec(self, name, path=None, target=None):
        if name in self.contents:
            return importlib.machinery.ModuleSpec(name, self, origin="stand-in", is_package=True)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        content = self.contents[module.__name__]
        if callable(content):
            content()
        else:
            vars(module).update(content)


def install(monkeypatch=None, env=None, refuse_torch=False):
    """Put the fake isaacgym, isaacgymenvs, hydra and omegaconf where `import` and `find_spec` find them.

    monkeypatch: takes everything back at the test's end; None: they stay, for a process of their own.
    env: changes to the env section of a task's configuration, by its name, e.g. {"Ant": {"episodeLength": 8}},
        {"Anymal": {"learn": {"episodeLength_s": 0.16}}}, {"AllegroKuka": {"successSteps": 2}}: short episodes.
    refuse_torch: importing isaacgym after torch raises ImportError, as in reality; otherwise it is only recorded.
    """
    standin = FakeIsaacGym(env, refuse_torch)
    finder = Finder(standin.modules())
    present = {name for name in sys.modules if name.split(".")[0] in PACKAGES}
    if monkeypatch is None:
        sys.meta_path.insert(0, finder)
    else:
        monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
        for name in present | set(finder.contents):
            monkeypatch.setitem(sys.modules, name, None)  # what it finds here is what it puts back
        present |= set(finder.contents)
    for name in present:
        del sys.modules[name]
    return standin
