"""The contract between the learning scripts and every environment: Gymnasium's terms, torch tensors."""

import contextlib
import os
import sys
from typing import Any, Dict, Tuple, Union

import numpy as np
import torch
from torch import Tensor

GOLDEN_RATIO = 0.6180339887498949


class UnsupportedError(ValueError):
    """A task needs what an engine or an adapter does not have; the message is one line."""


@contextlib.contextmanager
def full_precision():
    """Matrix products in float32 even if the learner enables TF32, which would change torques by up to 15 N m."""
    matmul = torch.backends.cuda.matmul
    allowed = matmul.allow_tf32
    matmul.allow_tf32 = False
    try:
        yield
    finally:
        matmul.allow_tf32 = allowed


def process_rank():
    """The rank of this process among torchrun's, and their number. A single process has rank 0 even if RANK is set."""
    num_processes = int(os.environ.get("WORLD_SIZE", 1))
    rank = int(os.environ.get("RANK", 0)) if num_processes > 1 else 0
    return rank, num_processes


def is_constant(value):
    """Whether `value` is a tensor that `VectorEnv.constant` created."""
    return getattr(value, "is_constant", False)


class VectorEnv:
    """N copies of one task, stepped together, with same-step autoreset.

    A checkpoint saves a task without being told what to save. It goes by what the attributes are:

        self.velocity = self.zeros(3)                  saved: every tensor, whether it changes or not
        self.engine = make_engine(...)                 saved: whatever has a state_dict and a load_state_dict
        self.joint_upper = self.constant([1.0, 2.0])   not saved: a tensor that never changes
        self.num_joints = 2                            not saved: numbers, strings, lists, dicts

    So whatever changes while the task is stepped must be a tensor, or an object with these two methods. Constants are
    left out so that a run that is resumed after joint_upper was edited in the code has the new joint limits, not those
    of its checkpoint.

    A task sets `num_obs`, `num_actions` and `max_episode_steps` and implements the methods below the line.
    Shape letters: N num_envs, D num_obs, U num_actions. Every tensor lives on `device`.
    """

    num_obs: int
    num_actions: int
    max_episode_steps: int  # control steps after which an episode is truncated
    fitness_floor = 1.0  # stands in for the followers' median fitness in EPO Eq. 3 where that is smaller
    engine = None  # the engine of envs/engines that steps the physics, if the task uses one
    frame_rate = 60  # control steps per second; this default is for videos alone
    training = False  # set by `envs.make`; without: no staggered clocks, no special starts, a frozen curriculum
    # Printed when the task is trained without a GPU. It says how far such training has got and which task learns more.
    cpu_note = ""
    resumes_exactly = True  # whether `load_state_dict` restores the running episodes
    curriculum: Tuple[str, ...] = ()  # names of the tensors that a curriculum changes; an evaluation copies them

    def __init__(self, num_envs: int, device: Union[str, torch.device], seed: int):
        if num_envs < 1:  # would crash MuJoCo
            raise ValueError(f"num_envs {num_envs}: must be at least 1")
        self.num_envs = num_envs
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.episode_step = torch.zeros(num_envs, dtype=torch.long, device=self.device)  # for truncation
        # Whether the running episode is a first one whose clock did not start at 0.
        # It may end early and is not counted.
        self.shortened = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self.episode_length = torch.zeros(num_envs, dtype=torch.long, device=self.device)
        self.episode_return = torch.zeros(num_envs, device=self.device)
        self.nan_worlds = torch.tensor(0, device=self.device)  # how often a world of the engine has diverged so far

    @property
    def engine_name(self) -> str:
        """What steps the physics, for the log."""
        return self.engine.name if self.engine else "torch"

    @full_precision()
    def reset(self) -> Tensor:
        """Start a new episode everywhere. Returns obs (N, D) float32.

        In `training` the clocks (`episode_step`) start evenly spread over `max_episode_steps`, so that the time limit
        does not end all episodes in the same step (2511.21011). These first episodes are shortened. A task without
        a time limit, whose `max_episode_steps` is sys.maxsize, has no shortened episodes: all its clocks start at 0.
        """
        self._begin_episodes(torch.ones(self.num_envs, dtype=torch.bool, device=self.device))
        if self.training and self.max_episode_steps < sys.maxsize:
            indices = torch.arange(self.num_envs, dtype=torch.float64, device=self.device)
            share = indices * GOLDEN_RATIO % 1.0  # evenly spread over any block of environments, an agent's too
            self.episode_step.copy_((share * self.max_episode_steps).long())
            self.shortened.copy_(self.episode_step > 0)
        return self.observe()

    @full_precision()
    def step(self, action: Tensor) -> Tuple[Tensor, Tensor, Tensor, Tensor, Dict[str, Any]]:
        """Advance one control step; finished environments begin their next episode within the step.

        action: (N, U), clamped to [-1, 1]. Returns obs (N, D) float32, reward (N,) float32, terminated (N,) bool,
        truncated (N,) bool and info with
            final_obs (N, D)   the observation that ended the step, before any reset: equal to obs where not done;
                               where terminated nothing is learned from it, so that it need not be finite
            episode            done (N,) bool; return, length, objective (N,) float32, valid where done; shortened
                               episodes are left out: they are terminated or truncated, but not done
            metrics            the task's scalars, name -> 0-d tensor or float; with an engine also nan_worlds
        A world of the engine that has diverged ends its episode with a reward of 0.
        """
        self.episode_step += 1
        self.episode_length += 1
        # copies: a task may return its own tensors and change them in reset_where
        reward, terminated, truncated = (value.clone() for value in self.advance(action.clamp(-1.0, 1.0)))
        if self.engine:
            broken = self.engine.broken
            reward = reward.masked_fill(broken, 0.0)
            terminated = terminated | broken
            self.nan_worlds = self.nan_worlds + broken.sum()
        truncated = (truncated | (self.episode_step >= self.max_episode_steps)) & ~terminated
        done = terminated | truncated
        self.episode_return += reward
        final_obs = self.observe().clone()
        episode = {
            "done": done & ~self.shortened,
            "return": self.episode_return.clone(),
            "length": self.episode_length.float(),
            "objective": self.objective().clone(),
        }
        self._begin_episodes(done)
        metrics = dict(self.metrics())
        if self.engine:
            metrics["nan_worlds"] = self.nan_worlds
        info = {"final_obs": final_obs, "episode": episode, "metrics": metrics}
        return self.observe(), reward, terminated, truncated, info

    def _begin_episodes(self, mask):
        self.reset_where(mask)
        self.episode_step.masked_fill_(mask, 0)
        self.shortened.masked_fill_(mask, False)
        self.episode_length.masked_fill_(mask, 0)
        self.episode_return.masked_fill_(mask, 0.0)

    def state_dict(self) -> Dict[str, Any]:
        """Everything needed to continue exactly, name -> value.

        These are the attributes that are tensors, without constants; the state of the random generator; and the
        state_dict of every attribute that has one.
        """
        state = {name: tensor.clone() for name, tensor in self._saved_tensors().items()}
        state["generator"] = self.generator.get_state()
        for name, part in self._saved_parts().items():
            state[name] = part.state_dict()
        return state

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Restore in place what `state_dict` returned, except for a generator of another kind of device.

        Raises ValueError where a tensor has another shape, as that of another number of environments has.
        """
        for name, own in self._saved_tensors().items():
            if state[name].shape != own.shape:
                raise ValueError(f"{name} has shape {tuple(state[name].shape)}, must be {tuple(own.shape)}")
            own.copy_(state[name])
        if state["generator"].shape == self.generator.get_state().shape:  # a GPU's differs from a CPU's
            self.generator.set_state(state["generator"])
        for name, part in self._saved_parts().items():
            part.load_state_dict(state[name])

    def _saved_tensors(self):
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, torch.Tensor)}
        return {name: value for name, value in tensors.items() if not is_constant(value)}

    def _saved_parts(self):
        return {name: value for name, value in vars(self).items() if hasattr(value, "state_dict")}

    def __setattr__(self, name, value):
        """Python calls this for `self.name = value`. Raises AttributeError where that overwrites a constant.

        `self.joint_upper = 0.9 * self.joint_upper` would turn it into a tensor that changes, but a new process creates
        it as a constant, which `load_state_dict` does not restore. Only another constant may take its place.
        """
        if is_constant(vars(self).get(name)) and not is_constant(value):
            raise AttributeError(f"{name} is a constant; create what changes with zeros() or tensor()")
        super().__setattr__(name, value)

    def uniform(self, low, high, *shape: int) -> Tensor:
        """Uniform numbers in [low, high) from the environment's own generator, shape (N, *shape).

        low and high: numbers, or tensors that are broadcast to this shape.
        """
        size = (self.num_envs, *shape)
        return low + (high - low) * torch.rand(size, generator=self.generator, device=self.device)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers from the environment's own generator, shape (N, *shape)."""
        return torch.randn(self.num_envs, *shape, generator=self.generator, device=self.device)

    def tensor(self, values: Any) -> Tensor:
        """`values` as a float32 tensor on the environment's device."""
        return torch.as_tensor(values, dtype=torch.float32, device=self.device)

    def constant(self, values: Any, dtype: torch.dtype = torch.float32) -> Tensor:
        """`values` as a tensor that never changes, such as joint limits, and that is therefore not saved."""
        constant = torch.as_tensor(values, dtype=dtype, device=self.device).clone()  # `values` may be state
        constant.is_constant = True
        return constant

    def zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Zeros of shape (N, *shape) on the environment's device."""
        return torch.zeros(self.num_envs, *shape, dtype=dtype, device=self.device)

    # ---------------------------------------------------------------- what a task implements

    def reset_where(self, mask: Tensor) -> None:
        """Begin a new episode in the environments of mask (N,) bool; leave all others untouched."""
        raise NotImplementedError

    def advance(self, action: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        """One control step. action (N, U) in [-1, 1] -> reward (N,), terminated (N,) bool, truncated (N,) bool.

        `truncated` is for the task's own limits; `step` adds the time limit.
        """
        raise NotImplementedError

    def observe(self) -> Tensor:
        """The observation (N, D) float32 of the current state, which it must not change."""
        raise NotImplementedError

    def objective(self) -> Tensor:
        """The task's score and EPO's fitness, (N,) float32, of the episode so far. Default: the raw return.

        Training reads it when an episode ends; `view.py` and `evaluate.py --best` also before.
        """
        return self.episode_return

    def metrics(self) -> Dict[str, Union[float, Tensor]]:
        """The task's own scalars for the log, name -> number or 0-d tensor; of an iteration's last step.

        The names are the same in every step and in every process.
        """
        return {}

    def render(self, index: int) -> np.ndarray:
        """Environment `index` as an (H, W, 3) uint8 image."""
        raise NotImplementedError(f"{type(self).__name__} has no method render")
