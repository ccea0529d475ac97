"""The global random generators: seeded, saved and restored. Environments have generators of their own."""

import random

import envs  # noqa: F401, before torch: Isaac Gym must be imported first

import numpy as np
import torch


def seed_everything(seed):
    """Seed the global generators of Python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def random_state():
    """The state of all global generators, as plain tensors and numbers."""
    name, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": [name, keys.tolist(), *rest],
        "torch": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else [],  # of the GPU in use
    }


def set_random_state(state):
    """Restore what `random_state` returned; a GPU's generator only where there is a GPU."""
    random.setstate(state["python"])
    np.random.set_state(tuple(state["numpy"]))
    torch.set_rng_state(state["torch"])
    for cuda in state["cuda"][: torch.cuda.device_count()]:
        torch.cuda.set_rng_state(cuda)
