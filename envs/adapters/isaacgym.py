"""The original tasks: IsaacGymEnvs on Isaac Gym Preview 4, behind the contract of envs/base.py.

It has never been run on the real ones, which need Python 3.8 and an NVIDIA GPU. It was written and checked against
IsaacGymEnvs' published source, and a test runs it on a small stub.
"""

import importlib.util
import os
import sys

import numpy as np
import torch

from envs import import_isaacgym_first
from envs.adapters.adapter import Adapter, check_only_simulation

# env id -> overrides of IsaacGymEnvs' configuration. Regrasping has episodes of 400 steps as in SAPG's fork.
CONFIGURATIONS = {
    "AllegroHand": "task=AllegroHand",
    "AllegroKukaRegrasping": "task=AllegroKuka task/env=regrasping task.env.episodeLength=400",
    "AllegroKukaReorientation": "task=AllegroKuka task/env=reorientation",
    "AllegroKukaThrow": "task=AllegroKuka task/env=throw",
    "AllegroKukaTwoArmsRegrasping": "task=AllegroKukaTwoArmsLSTM task/env=regrasping task.env.episodeLength=400",
    "AllegroKukaTwoArmsReorientation": "task=AllegroKukaTwoArmsLSTM task/env=reorientation",
    "Ant": "task=Ant",
    "Anymal": "task=Anymal",
    "Cartpole": "task=Cartpole",
    "FrankaCubePush": "task=FrankaCubePush",  # only in SAPG's fork
    "FrankaCubeStack": "task=FrankaCubeStack",
    "Humanoid": "task=Humanoid",
    "ShadowHand": "task=ShadowHand",
}
# How the ids of tasks begin that reset before the physics of a step and count successes. The others reset after it.
DEXTEROUS = ("AllegroHand", "AllegroKuka", "ShadowHand")
FITNESS_FLOOR = {"Ant": 10.0, "Anymal": 4.0, "Humanoid": 10.0}

SIMULATION = {}  # at most one: (env id, num_envs, device) -> the task


def find_problem(env_id):
    """Why `env_id` cannot run on Isaac Gym here, in one line; "" if it can."""
    if env_id not in CONFIGURATIONS:
        return "Isaac Gym has no such task"
    if sys.version_info[:2] != (3, 8):
        return f"needs Python 3.8, this is {sys.version_info[0]}.{sys.version_info[1]}"
    if tuple(map(int, np.__version__.split(".")[:2])) >= (1, 24):
        return f"needs numpy below 1.24, this is {np.__version__}"
    for package in ("isaacgym", "isaacgymenvs"):
        if not importlib.util.find_spec(package):
            return f"needs the package {package}, not installed"
    if not torch.cuda.is_available():
        return "needs a CUDA GPU, torch finds none"
    if import_isaacgym_first.FAILURE:
        return f"cannot be imported: {import_isaacgym_first.FAILURE.splitlines()[0]}"
    if "isaacgym" not in sys.modules:
        return "must be imported before torch: name it on the command line, --engine isaacgym"
    if not os.path.isfile(os.path.join(config_folder(), "task", f"{task_name(env_id)}.yaml")):
        only = ", SAPG's fork of it has" if env_id == "FrankaCubePush" else ""
        return f"the installed isaacgymenvs has no task {task_name(env_id)}{only}"
    return ""


def task_name(env_id):
    return CONFIGURATIONS[env_id].split()[0].split("=")[1]


def config_folder():
    import isaacgymenvs

    return os.path.join(os.path.dirname(isaacgymenvs.__file__), "cfg")


def make_config(env_id, num_envs):
    """IsaacGymEnvs' configuration of a task. isaacgymenvs.make composes it itself, but without subtasks."""
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(config_folder(), version_base="1.1"):  # as IsaacGymEnvs
        return compose("config", [*CONFIGURATIONS[env_id].split(), f"num_envs={num_envs}"])


class IsaacGym(Adapter):
    """A task of IsaacGymEnvs, with its observation, reward, curriculum and termination.

    IsaacGymEnvs executes a reset within the next step, so the first action of an episode is chosen before its start
    state is observed. In that step, IsaacGymEnvs returns the last observation of the old episode. Its value is needed
    where an episode was truncated, and must not become that of a start. So here the first observation of every episode
    is all zeros instead, as IsaacGymEnvs' very first one is, and its value becomes that of an average start.

    In a task that resets before physics, the first action drives the episode's first step. In a task that resets after
    physics, it has no effect: the step has reward 0, does not end the episode, does not count towards its length and
    leads to the start state, or to zeros if the task resets once more.

    A time-out ends an episode one step before `max_episode_steps`, as in IsaacGymEnvs; a failure in that step is
    treated as a time-out.
    """

    engine_name = "isaacgym"

    def __init__(self, env_id, num_envs, device, seed, training=False):
        super().__init__(num_envs, device, seed)
        self.task = find_simulation(env_id, num_envs, device, seed)
        self.adapts = training  # whether the task may tighten its tolerance
        self.num_obs = int(self.task.num_obs)
        self.num_actions = int(self.task.num_actions)
        self.max_episode_steps = int(self.task.max_episode_length)
        self.fitness_floor = FITNESS_FLOOR.get(env_id, 1.0)
        self.dexterous = env_id.startswith(DEXTEROUS)
        self.obs = torch.zeros(num_envs, self.num_obs, device=self.device)
        self.extras = {}
        if env_id.startswith("AllegroKuka"):
            self.curriculum = ("tolerance",)  # m; named as in envs/tasks
            self.tolerance = torch.tensor(self.task.initial_tolerance, dtype=torch.float64)
        torch.manual_seed(seed)  # IsaacGymEnvs draws from the global generators and does not seed them

    def reset_where(self, mask):
        self.task.reset_buf[mask.to(self.task.device)] = 1
        self.obs = self.obs.masked_fill(mask[:, None], 0.0)

    def advance(self, action):
        if self.curriculum:
            self.task.success_tolerance = self.tolerance.item()
        resetting = self.task.reset_buf.to(self.device).bool()  # executed within this step
        obs_dict, reward, reset, self.extras = self.task.step(action.to(self.task.device))
        obs = obs_dict["obs"].to(self.device)
        reward = reward.to(self.device)
        ends = reset.to(self.device).bool()
        time_outs = self.extras["time_outs"].to(self.device).bool()
        self.episode_step.copy_(self.task.progress_buf)
        if self.curriculum and self.adapts:
            self.tolerance.fill_(self.task.success_tolerance)
        if not self.dexterous:
            obs = obs.masked_fill((resetting & ends)[:, None], 0.0)
            reward = reward.masked_fill(resetting, 0.0)
            ends = ends & ~resetting
            self.episode_length -= resetting.long()
        self.obs = obs
        if self.dexterous and self.task.max_consecutive_successes:  # all goals reached: not a failure
            time_outs = time_outs | (self.successes() >= self.task.max_consecutive_successes)
        return reward, ends & ~time_outs, ends & time_outs

    def successes(self):
        return self.task.successes.to(self.device).float()

    def objective(self):
        if self.dexterous:
            return self.successes()
        return self.episode_return

    def metrics(self):
        """Everything that the task reports, averaged over environments."""
        averages = {}
        for name, value in {**self.extras, **self.extras.get("scalars", {})}.items():
            if name != "time_outs" and not isinstance(value, dict):
                averages[name] = torch.as_tensor(value).float().mean()
        return averages

    def render(self, index):
        raise NotImplementedError("the Isaac Gym adapter cannot render; evaluate the policy on another engine")


def find_simulation(env_id, num_envs, device, seed):
    """The process's only VecTask. Raises UnsupportedError (one line) if a different one exists already."""
    import isaacgymenvs

    key = (env_id, num_envs, str(device))
    check_only_simulation("Isaac Gym", SIMULATION, key)
    gpu = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"  # torchrun's
    if not SIMULATION:
        SIMULATION[key] = isaacgymenvs.make(
            seed=seed,
            task=task_name(env_id),
            num_envs=num_envs,
            sim_device=gpu,
            rl_device=gpu if torch.device(device).type == "cuda" else "cpu",
            headless=True,
            force_render=False,
            cfg=make_config(env_id, num_envs),
        )
    return SIMULATION[key]
