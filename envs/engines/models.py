"""How both engines compile a task's models, and what they refuse."""

import mujoco

from envs.base import UnsupportedError

# Sensors whose readings depend on geoms and materials that the compiler's `discardvisual` takes out of a model. It
# keeps a geom that a sensor names. But a rangefinder sees every geom that has not an invisible material, the distance
# between two bodies counts all their geoms (MuJoCo's documentation of `discardvisual` mentions only the rays), and a
# plugin may read anything.
SENSORS_OF_VISUALS = (
    mujoco.mjtSensor.mjSENS_RANGEFINDER,
    mujoco.mjtSensor.mjSENS_GEOMDIST,
    mujoco.mjtSensor.mjSENS_GEOMNORMAL,
    mujoco.mjtSensor.mjSENS_GEOMFROMTO,
    mujoco.mjtSensor.mjSENS_PLUGIN,
)


def make_physics_spec(build):
    """A copy of the mujoco.MjSpec that `build()` returns, set to compile without what is only drawn.

    Geoms that collide with nothing, materials and textures would slow every step down; the Renderer compiles the model
    with them. They stay in a model that has one of SENSORS_OF_VISUALS, and the physics is the same either way.
    """
    spec = build().copy()
    spec.compiler.discardvisual = not any(sensor.type in SENSORS_OF_VISUALS for sensor in spec.sensors)
    return spec


def check_structure(models):
    """Raises UnsupportedError (one line) unless one engine can simulate all models [mujoco.MjModel, ...].

    They must have one structure and one timestep, and never sleep. MuJoCo 4.0.0 does not check the structure when a
    batch takes fields from another model, and reads or writes outside of them. A world whose clock is behind that of
    the first model after a step counts as broken. Which bodies sleep is not part of MuJoCo's state, so that a step
    would depend on more than state and control.
    """
    if len({model.signature for model in models}) > 1:
        raise UnsupportedError("the models of one engine must have the same structure, these differ")
    if len({model.opt.timestep for model in models}) > 1:
        raise UnsupportedError("the models of one engine must have the same timestep, these differ")
    if any(model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP.value for model in models):
        raise UnsupportedError("the model must not have MuJoCo's flag sleep, whose bookkeeping is not part of a state")


def check_state(engine, qpos, qvel, act):
    """Raises ValueError unless these have the shapes of the engine's own tensors; act is required if it has any."""
    if engine.na > 0 and act is None:
        raise ValueError(f"set_state needs act, the {engine.na} activations of the model's actuators")
    for name, value in (("qpos", qpos), ("qvel", qvel), ("act", act)):
        wanted = getattr(engine, name).shape
        if value is not None and value.shape != wanted:
            raise ValueError(f"{name} has shape {tuple(value.shape)}, must be {tuple(wanted)}")


def find_bodies(model, names):
    """The ids of the bodies called `names`, a list of int. Raises ValueError for mocap bodies."""
    ids = [model.body(name).id for name in names]
    if (model.body_mocapid[model.body_rootid[ids]] >= 0).any():
        raise ValueError("mocap bodies and what is fixed to them cannot be read")
    return ids
