"""Vectorised robot tasks: `envs.make(env_id, num_envs, device, seed, engine)`. See envs/base.py for the contract."""

import difflib
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import re
from typing import Any

from envs import import_isaacgym_first  # noqa: F401, must come before anything that imports torch
from envs.adapters import isaacgym
from envs.base import UnsupportedError, VectorEnv  # noqa: F401
from envs.imports import import_module

TASKS = {
    "A1Parkour": "envs.tasks.a1_parkour:A1Parkour",
    "AllegroHand": "envs.tasks.in_hand:AllegroHand",
    "AllegroKukaRegrasping": "envs.tasks.allegro_kuka:AllegroKukaRegrasping",
    "AllegroKukaRegraspingRelativeTargets": (
        "envs.tasks.allegro_kuka_relative_targets:AllegroKukaRegraspingRelativeTargets"
    ),
    "AllegroKukaReorientation": "envs.tasks.allegro_kuka:AllegroKukaReorientation",
    "AllegroKukaThrow": "envs.tasks.allegro_kuka:AllegroKukaThrow",
    "AllegroKukaRegraspingHeldStarts": "envs.tasks.allegro_kuka_held_starts:AllegroKukaRegraspingHeldStarts",
    "AllegroKukaThrowHeldStarts": "envs.tasks.allegro_kuka_held_starts:AllegroKukaThrowHeldStarts",
    "AllegroKukaReorientationHeldStarts": "envs.tasks.allegro_kuka_held_starts:AllegroKukaReorientationHeldStarts",
    "AllegroKukaTwoArmsRegrasping": "envs.tasks.allegro_kuka_two_arms:AllegroKukaTwoArmsRegrasping",
    "AllegroKukaTwoArmsRegraspingHeldStarts": (
        "envs.tasks.allegro_kuka_held_starts:AllegroKukaTwoArmsRegraspingHeldStarts"
    ),
    "AllegroKukaTwoArmsReorientation": "envs.tasks.allegro_kuka_two_arms:AllegroKukaTwoArmsReorientation",
    "AllegroKukaTwoArmsReorientationBarrier": "envs.tasks.allegro_kuka_two_arms:AllegroKukaTwoArmsReorientationBarrier",
    "AllegroKukaTwoArmsReorientationHole": "envs.tasks.allegro_kuka_two_arms:AllegroKukaTwoArmsReorientationHole",
    "AllegroKukaTwoArmsReorientationPartition": (
        "envs.tasks.allegro_kuka_two_arms:AllegroKukaTwoArmsReorientationPartition"
    ),
    "Ant": "envs.tasks.locomotion:Ant",
    "Anymal": "envs.tasks.anymal:Anymal",
    "Cartpole": "envs.tasks.cartpole:Cartpole",
    "FrankaCubePush": "envs.tasks.franka_cube:FrankaCubePush",
    "FrankaCubeStack": "envs.tasks.franka_cube:FrankaCubeStack",
    "Grasp": "envs.tasks.grasp:Grasp",
    "Humanoid": "envs.tasks.locomotion:Humanoid",
    "Moat": "envs.tasks.moat:Moat",
    "ShadowHand": "envs.tasks.in_hand:ShadowHand",
}
PURE_TORCH = ("Grasp", "Moat")  # tasks that need no physics engine
# prefix of an env id, and the package that it needs -> the adapter to other people's environments
ADAPTERS = {
    "envpool": "envs.adapters.envpool:EnvPool",
    "gymnasium": "envs.adapters.gymnasium:Gymnasium",
    "isaaclab": "envs.adapters.isaaclab:IsaacLab",
    "mjlab": "envs.adapters.mjlab:Mjlab",
}
ENGINES = {"mujoco": "mujoco", "warp": "mujoco_warp"}  # engine -> the package it needs


@functools.lru_cache  # an adapter makes an environment to check it
def check_env_id(env_id):
    """Raises ValueError (one line) unless `env_id` is a known task or an importable `package.module:Class`."""
    prefix, _, name = env_id.partition(":")
    if prefix in ADAPTERS:
        find_adapter(prefix).check(name)
    elif ":" in env_id:
        find_class(env_id)
    elif env_id not in TASKS:
        if re.search(r"-v\d+$", env_id):
            raise ValueError(f"did you mean envpool:{env_id} or gymnasium:{env_id}?")
        nearest = difflib.get_close_matches(env_id, TASKS, n=1, cutoff=0.0)[0]
        others = [f"{adapter}:ID" for adapter in ADAPTERS]
        raise ValueError(f"did you mean {nearest}? Known: {', '.join([*TASKS, *others])}, or package.module:Class")


def find_adapter(prefix):
    """The class of ADAPTERS behind a prefix. Raises ValueError (one line) where its package is not installed."""
    if not importlib.util.find_spec(prefix):
        raise ValueError(f"needs the package {prefix}, not installed: pip install -r requirements-{prefix}.txt")
    module, name = ADAPTERS[prefix].split(":")
    return getattr(importlib.import_module(module), name)


def find_class(env_id):
    """The class behind an env id: a name in TASKS, or `package.module:Class` for a custom task."""
    module_name, class_name = TASKS.get(env_id, env_id).split(":", 1)
    module = import_module(module_name)
    if not inspect.isclass(getattr(module, class_name, None)):
        raise ValueError(f"{module_name} has no class {class_name}; must be package.module:Class")
    task = getattr(module, class_name)
    names = [f"{base.__module__}.{base.__name__}" for base in task.__mro__]
    if "gymnasium.core.Env" in names and not issubclass(task, VectorEnv):
        raise ValueError(
            f"{class_name} is a Gymnasium class: register it in {module_name} with gymnasium.register(id=ID, ...), then"
            f" use gymnasium:{module_name}:ID"
        )
    return task


def find_engine(engine, env_id, device="cpu"):
    """Resolves `engine` for a task: "mujoco", "warp", "isaacgym", or None if the task needs no engine.

    "auto" selects the fastest installed one and never Isaac Gym.
    Raises ValueError (one line) if the task is unknown, or the engine is not available here or cannot run the task.
    """
    check_env_id(env_id)
    if engine == "isaacgym":
        problem = isaacgym.find_problem(env_id)
        if problem:
            raise ValueError(problem)
        return engine
    if not needs_engine(env_id):
        if engine == "auto":
            return None
        raise ValueError("must be auto, this task steps itself")
    installed = [name for name, package in ENGINES.items() if importlib.util.find_spec(package)]
    if engine == "auto":
        engine = "warp" if "warp" in installed and str(device).startswith("cuda") else "mujoco"
    if engine not in installed:
        needs = f"needs the package {ENGINES[engine]}, not installed" if engine in ENGINES else "not an engine"
        raise ValueError(f"{needs}; valid here: {', '.join(['auto', *installed])}")
    if engine == "warp":
        check_versions()
    return engine


def needs_engine(env_id):
    """Whether a task runs on a physics engine. A custom task does if its constructor takes the argument `engine`."""
    if env_id.partition(":")[0] in ADAPTERS:
        return False
    if ":" in env_id:
        return takes_engine(find_class(env_id))
    return env_id not in PURE_TORCH


def takes_engine(task):
    """Whether the constructor of a class takes the argument `engine`, or passes it on in **kwargs to one that does."""
    for base in task.__mro__:
        if "__init__" in vars(base):
            parameters = inspect.signature(base.__init__).parameters
            if "engine" in parameters:
                return True
            if all(parameter.kind != parameter.VAR_KEYWORD for parameter in parameters.values()):
                return False
    return False


def check_versions():
    """Raises ValueError (one line) if the versions of MuJoCo and MuJoCo Warp differ."""
    mujoco, warp = (importlib.metadata.version(name) for name in ("mujoco", "mujoco-warp"))
    if mujoco.split(".")[:3] != warp.split(".")[:3]:
        raise ValueError(f"mujoco {mujoco} and mujoco-warp {warp} differ: pip install -e '.[gpu]'")


def make(
    env_id: str,
    num_envs: int,
    device: str = "cpu",
    seed: int = 1,
    engine: str = "auto",
    training: bool = False,
) -> Any:
    """Makes `num_envs` copies of a task on `device`: a VectorEnv, or what the class of a custom task makes.

    Raises ValueError for an unknown id or engine, UnsupportedError (one line) if engine or adapter lack what it needs.

    training: whether first episodes are staggered (see `VectorEnv.reset`; Isaac Gym: not), a curriculum moves on, and
    a task may have starts and ends of its own. Classes that are no VectorEnv ignore it.
    """
    engine = find_engine(engine, env_id, device)
    prefix, _, name = env_id.partition(":")
    if engine == "isaacgym":
        return isaacgym.IsaacGym(env_id, num_envs, device, seed, training)
    if prefix in ADAPTERS:
        env = find_adapter(prefix)(name, num_envs, device, seed)
    else:
        task = find_class(env_id)
        env = task(num_envs, device, seed, engine=engine) if engine else task(num_envs, device, seed)
    if isinstance(env, VectorEnv):
        env.training = training
    return env
