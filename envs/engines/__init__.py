"""Who steps the physics. An engine holds N copies of a model and knows nothing of rewards."""


def make_engine(name, models, num_envs, substeps, bodies, device):
    """The engine called `name` ("mujoco") with N = num_envs worlds; world i runs model i modulo their number.

    models: an iterable of mujoco.MjSpec, read once.
    """
    if name == "mujoco":
        from envs.engines.mujoco_cpu import MujocoCpu

        return MujocoCpu(models, num_envs, substeps, bodies, device)
    raise ValueError(f"unknown engine {name}")
