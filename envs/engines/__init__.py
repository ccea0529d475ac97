"""Physics engines. An engine steps N copies of a model and knows nothing about rewards."""


def make_engine(name, models, num_envs, substeps, bodies, device, *, max_contacts=32, max_constraints=128):
    """The engine called `name` with N = num_envs worlds; world i runs model i modulo their number.

    name: "mujoco" or "warp"; models: functions that return a mujoco.MjSpec; substeps, bodies: see MujocoCpu;
    max_contacts, max_constraints: buffer sizes per world, see MujocoWarp (MuJoCo itself allocates on demand).
    """
    if not isinstance(models, (list, tuple)) or not all(map(callable, models)):
        raise ValueError("models must be a list of functions that return a mujoco.MjSpec")
    if name == "mujoco":
        from envs.engines.mujoco_cpu import MujocoCpu

        return MujocoCpu(models, num_envs, substeps, bodies, device)
    if name == "warp":
        from envs.engines.mujoco_warp import MujocoWarp

        return MujocoWarp(
            models, num_envs, substeps, bodies, device, max_contacts=max_contacts, max_constraints=max_constraints
        )
    raise ValueError(f"engine {name}: must be mujoco or warp, as the task's constructor gets it")
