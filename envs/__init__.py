"""The vectorised tasks: `envs.make(env_id, num_envs, device, seed, engine)`. See envs/base.py for the contract."""

import difflib
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys

from envs import before_torch  # the first: see there
from envs.base import VectorEnv
from envs.engines import isaacgym

TASKS = {
    "AllegroHand": "envs.tasks.in_hand:AllegroHand",
    "AllegroKukaRegrasping": "envs.tasks.allegro_kuka:AllegroKukaRegrasping",
    "AllegroKukaReorientation": "envs.tasks.allegro_kuka:AllegroKukaReorientation",
    "AllegroKukaThrow": "envs.tasks.allegro_kuka:AllegroKukaThrow",
    "AllegroKukaTwoArmsRegrasping": "envs.tasks.allegro_kuka_two_arms:AllegroKukaTwoArmsRegrasping",
    "AllegroKukaTwoArmsReorientation": "envs.tasks.allegro_kuka_two_arms:AllegroKukaTwoArmsReorientation",
    "AllegroKukaTwoArmsReorientationBarrier": "envs.tasks.allegro_kuka_two_arms:AllegroKukaTwoArmsReorientationBarrier",
    "AllegroKukaTwoArmsReorientationHole": "envs.tasks.allegro_kuka_two_arms:AllegroKukaTwoArmsReorientationHole",
    "AllegroKukaTwoArmsReorientationPartition": "envs.tasks.allegro_kuka_two_arms:AllegroKukaTwoArmsReorientationPartition",
    "Ant": "envs.tasks.locomotion:Ant",
    "Anymal": "envs.tasks.anymal:Anymal",
    "Cartpole": "envs.tasks.cartpole:Cartpole",
    "FrankaCubePush": "envs.tasks.franka_cube:FrankaCubePush",
    "FrankaCubeStack": "envs.tasks.franka_cube:FrankaCubeStack",
    "Humanoid": "envs.tasks.locomotion:Humanoid",
    "Moat": "envs.tasks.moat:Moat",
    "ShadowHand": "envs.tasks.in_hand:ShadowHand",
}
PURE_TORCH = ("Moat",)  # they step themselves
# name -> the package that it needs; not Isaac Gym, which "auto" never means
ENGINES = {"mujoco": "mujoco", "warp": "mujoco_warp"}


def check_env_id(env_id):
    """Raises ValueError (one line) where `env_id` is neither known nor an importable class of your own."""
    known = list(dict.fromkeys([*TASKS, *isaacgym.CONFIGURATIONS]))
    if ":" in env_id:
        find_class(env_id)
    elif env_id not in known:
        nearest = difflib.get_close_matches(env_id, known, n=1, cutoff=0.0)[0]
        raise ValueError(f"did you mean {nearest}? Known: {', '.join(known)}, or package.module:Class")


def find_class(env_id):
    """The class behind an env id: a name of TASKS, or `package.module:Class` for a task of your own.

    Raises ValueError with one line that says what would be valid.
    """
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


def find_engine(engine, env_id, device="cpu"):
    """The engine that `engine` stands for on this task, None where the task steps itself. "auto" is the fastest one.

    env_id: one that `check_env_id` lets pass. Raises ValueError (one line) for an engine that cannot be had.
    """
    if engine == "isaacgym":
        problem = isaacgym.find_problem(env_id)
        if problem:
            raise ValueError(problem)
        return engine
    if ":" not in env_id and env_id not in TASKS:
        raise ValueError("must be isaacgym, no other engine has this task")
    if env_id in PURE_TORCH or ":" in env_id and "engine" not in inspect.signature(find_class(env_id)).parameters:
        if engine == "auto":
            return None
        raise ValueError("must be auto, this task steps itself")
    installed = [name for name, package in ENGINES.items() if importlib.util.find_spec(package)]
    if engine == "auto" and installed:
        engine = "warp" if "warp" in installed and str(device).startswith("cuda") else installed[0]
    if engine in installed:
        if engine == "warp":
            check_versions()
        return engine
    missing = f"needs the package {ENGINES[engine]}, not installed" if engine in ENGINES else "not available"
    if engine == "auto":
        missing = f"needs one of the packages {', '.join(ENGINES.values())}, none is installed"
    raise ValueError(f"{missing}; valid here: {', '.join(['auto'] + installed) if installed else 'none'}")


def check_versions():
    """Raises ValueError (one line) where MuJoCo and MuJoCo Warp are not of one version."""
    ours, theirs = (importlib.metadata.version(name) for name in ("mujoco", "mujoco-warp"))
    if ours.split(".")[:3] != theirs.split(".")[:3]:
        raise ValueError(f"mujoco {ours} and mujoco-warp {theirs} differ: pip install -r requirements-gpu.txt")


def make(env_id, num_envs, device="cpu", seed=1, engine="auto"):
    """Make `num_envs` copies of a task on `device`. Raises ValueError for an unknown id or engine."""
    check_env_id(env_id)
    engine = find_engine(engine, env_id, device)
    if engine == "isaacgym":
        return isaacgym.IsaacGym(env_id, num_envs, device, seed)
    task = find_class(env_id)
    return task(num_envs, device, seed, engine=engine) if engine else task(num_envs, device, seed)
