"""The vectorised tasks: `envs.make(env_id, num_envs, device, seed, engine)`. See envs/base.py for the contract."""

import difflib
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys

import torch

from envs.base import VectorEnv

TASKS = {
    "AllegroHand": "envs.tasks.in_hand:AllegroHand",
    "AllegroKukaRegrasping": "envs.tasks.allegro_kuka:AllegroKukaRegrasping",
    "AllegroKukaReorientation": "envs.tasks.allegro_kuka:AllegroKukaReorientation",
    "AllegroKukaThrow": "envs.tasks.allegro_kuka:AllegroKukaThrow",
    "Ant": "envs.tasks.locomotion:Ant",
    "Anymal": "envs.tasks.anymal:Anymal",
    "Cartpole": "envs.tasks.cartpole:Cartpole",
    "FrankaCubePush": "envs.tasks.franka_cube:FrankaCubePush",
    "FrankaCubeStack": "envs.tasks.franka_cube:FrankaCubeStack",
    "Humanoid": "envs.tasks.locomotion:Humanoid",
    "Moat": "envs.tasks.moat:Moat",
    "ShadowHand": "envs.tasks.in_hand:ShadowHand",
}
ENGINES = {"mujoco": "mujoco", "warp": "mujoco_warp"}  # name -> the package that it needs


def find_class(env_id):
    """The class behind an env id: a name of TASKS, or `package.module:Class` for a task of your own.

    Raises ValueError with one line that says what would be valid.
    """
    if ":" not in env_id and env_id not in TASKS:
        nearest = difflib.get_close_matches(env_id, TASKS, n=1, cutoff=0.0)[0]
        raise ValueError(f"did you mean {nearest}? Known: {', '.join(TASKS)}, or package.module:Class")
    module_name, class_name = TASKS.get(env_id, env_id).split(":", 1)
    if "" not in sys.path:
        sys.path.insert(0, "")  # a task of your own is looked up from the working directory
    try:
        task = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, TypeError) as error:
        raise ValueError(f"{error}; must be an importable package.module:Class")
    if not inspect.isclass(task):
        raise ValueError("not a class; must be package.module:Class")
    return task


def find_engine(engine, device="cpu"):
    """The engine that `engine` stands for: "auto" is the fastest one present. Raises ValueError (one line)."""
    installed = [name for name, package in ENGINES.items() if importlib.util.find_spec(package)]
    if engine == "auto" and installed:
        engine = "warp" if "warp" in installed and torch.device(device).type == "cuda" else "mujoco"
    if engine not in installed:
        missing = f"needs the package {ENGINES[engine]}, not installed" if engine in ENGINES else "not available"
        raise ValueError(f"{missing}; valid here: {', '.join(['auto'] + installed)}")
    if engine == "warp":
        ours, theirs = (importlib.metadata.version(name) for name in ("mujoco", "mujoco-warp"))
        if ours.split(".")[:3] != theirs.split(".")[:3]:
            raise ValueError(f"mujoco {ours} and mujoco-warp {theirs} differ: pip install -r requirements-gpu.txt")
    return engine


def make(env_id, num_envs, device="cpu", seed=1, engine="auto"):
    """Make `num_envs` copies of a task on `device`. Raises ValueError for an unknown id or engine."""
    task = find_class(env_id)
    if "engine" in inspect.signature(task).parameters:
        return task(num_envs, device, seed, engine=find_engine(engine, device))
    return task(num_envs, device, seed)
