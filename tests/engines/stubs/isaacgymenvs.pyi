"""What the adapter uses of IsaacGymEnvs v1.5.1, for the type check."""

from typing import Any, Dict, Optional, Tuple

from omegaconf import DictConfig
from torch import Tensor

class VecTask:  # isaacgymenvs.tasks.base.vec_task; tasks add the last five, not each of them all
    device: str
    num_actions: int
    reset_buf: Tensor
    progress_buf: Tensor
    @property
    def num_obs(self) -> int: ...
    def step(self, actions: Tensor) -> Tuple[Dict[str, Tensor], Tensor, Tensor, Dict[str, Any]]: ...
    max_episode_length: float
    max_consecutive_successes: int
    initial_tolerance: float
    success_tolerance: float
    successes: Tensor

def make(
    seed: int,
    task: str,
    num_envs: int,
    sim_device: str,
    rl_device: str,
    graphics_device_id: int = ...,
    headless: bool = ...,
    multi_gpu: bool = ...,
    virtual_screen_capture: bool = ...,
    force_render: bool = ...,
    cfg: Optional[DictConfig] = ...,
) -> VecTask: ...
