"""Checkpoint files: at every moment a whole one, and nothing in it runs code."""

import fcntl
import os
import random
import shutil
import sys

import envs  # noqa: F401, before torch: Isaac Gym must be imported first

import numpy as np
import torch


def refuse(flag, value, reason):
    """End with exit status 2 and one line that names the flag, its value and what would be valid."""
    print(f"{flag} {value}: {reason}", file=sys.stderr)
    sys.exit(2)


def save_checkpoint(path, checkpoint):
    """Write tensors, numbers and strings to `path`, which is replaced in one step; the one before is *_previous.pt."""
    with open(path + ".tmp", "wb") as file:
        torch.save(checkpoint, file)
        file.flush()
        os.fsync(file.fileno())
    if os.path.exists(path):
        shutil.copyfile(path, path[: -len(".pt")] + "_previous.pt")
    os.replace(path + ".tmp", path)


def load_checkpoint(path, flag="--resume"):
    """The checkpoint of a run's folder, or the one in a file; `flag` is refused where there is none."""
    path = os.path.join(path, "checkpoint.pt") if os.path.isdir(path) else path
    if not os.path.isfile(path):
        refuse(flag, path, "no such file")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damage shows as one of a dozen kinds
        refuse(flag, path, f"cannot be read ({error!r:.200}); the one before is checkpoint_previous.pt")


def lock_folder(folder):
    """Lock a run's folder until the returned file is closed. Refuses it if another process trains there."""
    file = open(os.path.join(folder, "lock"), "a")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        refuse("--resume", folder, "another process is training in this folder")
    except OSError as error:  # some network file systems have no locks
        print(f"{folder} is not locked against a second process: {error}", file=sys.stderr)
    return file


def seed_everything(seed):
    """Seed the global generators of Python, numpy and torch; environments have generators of their own."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def random_state():
    """The state of all global random generators, as plain tensors and numbers."""
    name, keys, *rest = np.random.get_state()
    cuda = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []  # of the GPU in use
    numpy = [name, keys.tolist(), *rest]
    return {"python": random.getstate(), "numpy": numpy, "torch": torch.get_rng_state(), "cuda": cuda}


def set_random_state(state):
    random.setstate(state["python"])
    np.random.set_state(tuple(state["numpy"]))
    torch.set_rng_state(state["torch"])
    for cuda in state["cuda"][: torch.cuda.device_count()]:  # there may be none any more
        torch.cuda.set_rng_state(cuda)
