"""Checkpoints: what is in one, and files that are whole at every moment and hold nothing that runs code.

A checkpoint is a dict of tensors, numbers and strings: version (of this project; not in older ones), script (its name),
args, iteration, global_step, wandb_id, learner (what all processes share), and for each process rollout and random
(what is its own).
"""

import os
import shutil
from contextlib import suppress

import envs  # noqa: F401, before torch: Isaac Gym must be imported first
from envs.check import refused_type

import torch

from harness.errors import refuse


VERSION = "0.2.0"  # as in pyproject.toml and CHANGELOG.md


def state_of(parts):
    """parts: name -> a tensor or an object with a state_dict. Returns name -> its state."""
    return {name: part.clone() if isinstance(part, torch.Tensor) else part.state_dict() for name, part in parts.items()}


def restore(part, state):
    """Put a tensor, in place, or an object with load_state_dict back into a state."""
    if isinstance(part, torch.Tensor):
        part.copy_(state)
    else:
        part.load_state_dict(state)


def save_checkpoint(path, checkpoint):
    """Write a checkpoint to `path`, which is replaced in one step; the one before is kept as *_previous.pt."""
    try:
        with open(path + ".tmp", "wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        if os.path.exists(path):
            shutil.copyfile(path, path[: -len(".pt")] + "_previous.pt")
        os.replace(path + ".tmp", path)
    finally:
        with suppress(FileNotFoundError):  # it is there if something failed; on a full disk, the log needs its space
            os.remove(path + ".tmp")


def policy_file(path):
    """The policy.pt of a folder that export.py wrote; any other path as it is."""
    policy = os.path.join(path, "policy.pt")
    return policy if os.path.isfile(policy) else path


def checkpoint_file(path):
    """The checkpoint.pt of a run's folder, whether or not it is there yet; any other path as it is."""
    return os.path.join(path, "checkpoint.pt") if os.path.isdir(path) else path


def load_network(agent, path):
    """Put the network and normalisers of a run or policy into `agent`. Refused unless all names and shapes fit."""
    state = load_checkpoint(policy_file(path), "--load")["learner"]["agent"]
    own = agent.state_dict()
    for name in [*own, *(state.keys() - own.keys())]:
        there = tuple(state[name].shape) if name in state else "missing"
        here = tuple(own[name].shape) if name in own else "missing"
        if there != here:
            refuse("--load", path, f"its network has other shapes: {name} is {there} there, {here} with these flags")
    agent.load_state_dict(state)


def load_checkpoint(path, flag="--resume"):
    """The checkpoint of a run's folder, or the one in a file. `flag` is refused where there is none."""
    try:
        return read_checkpoint(path)
    except ValueError as error:
        refuse(flag, path, error)


def read_checkpoint(path):
    """The checkpoint of a run's folder, or the one in a file. Raises ValueError (one line) where there is none."""
    file = checkpoint_file(path)
    if not os.path.isfile(file):
        if file == path:
            raise ValueError("no such file or folder")
        if os.path.isfile(os.path.join(path, "policy.pt")):
            raise ValueError("an exported policy, which cannot be resumed; --load begins a new run with it")
        raise ValueError(
            "no checkpoint.pt in this folder yet: a run writes its first after --checkpoint-interval minutes, or when"
            " Ctrl-C stops it"
        )
    try:
        checkpoint = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # damage shows as one of a dozen kinds
        refused = refused_type(error)
        reason = f"it holds a {refused}" if refused else f"{error!r:.200}"
        previous = os.path.join(os.path.dirname(file), "checkpoint_previous.pt")
        hint = f"; the one before is {previous}" if os.path.isfile(previous) and previous != file else ""
        raise ValueError(f"cannot be read ({reason}){hint}") from error
    if not (isinstance(checkpoint, dict) and "args" in checkpoint):
        raise ValueError("is not a checkpoint")
    if "learner" not in checkpoint:
        raise ValueError("was written by version 0.1.0, whose checkpoints have another form")
    return checkpoint
