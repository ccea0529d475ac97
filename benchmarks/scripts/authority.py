"""Do the hands' drives move their joints as the published ones would? `python -m benchmarks.scripts.authority`

Every driven joint of the three hands gets a step of its target, all others keep theirs, without gravity and contacts.
Beside the engine's response stands that of the published drive, an implicit spring and damper with an effort and a
speed limit that moves the joint's inertia as the mass matrix gives it. Draws benchmarks/results/authority.png (needs
matplotlib) and prints how many times as long the joints take for half of the step: median, smallest, largest.
"""

import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import mujoco  # noqa: E402
import numpy as np  # noqa: E402

import envs  # noqa: E402
from envs.terminal import needs_output  # noqa: E402

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"
STEP = 0.2  # rad
SECONDS = 0.4
# stiffness (N m / rad), damping (N m s / rad), effort (N m), armature (kg m^2), speed (rad/s); of ShadowHand's fingers,
# its wrist has 5, 0.5 and its own armature; its efforts are the model's and there is no limit of speed
PUBLISHED = {
    "AllegroKukaRegrasping": (40.0, 5.0, 0.35, 0.0, 6.283),
    "AllegroHand": (3.0, 0.1, 0.5, 0.001, 6.283),
    "ShadowHand": (1.0, 0.1, None, 0.001, np.inf),
}


def published_response(inertia, timestep, steps, target, stiffness, damping, effort, speed):
    """Angles (steps,) rad from rest at 0: what the drive does when solved implicitly, as PhysX does."""
    angle = 0.0
    velocity = 0.0
    angles = []
    for _ in range(steps):
        implicit = inertia / timestep + damping + timestep * stiffness
        after = (inertia * velocity / timestep + stiffness * (target - angle)) / implicit
        force = np.clip(stiffness * (target - angle - timestep * after) - damping * after, -effort, effort)
        velocity = np.clip(velocity + timestep * force / inertia, -speed, speed)
        angle += timestep * velocity
        angles.append(angle)
    return np.array(angles)


def engine_response(model, pose, actuator, joint, target, steps):
    """Angles (steps,) rad of a joint, from its start."""
    data = mujoco.MjData(model)
    data.qpos[: len(pose)] = pose
    data.ctrl[:] = [pose[model.jnt_qposadr[model.actuator_trnid[i, 0]]] for i in range(model.nu)]
    data.ctrl[actuator] += target
    angles = []
    for _ in range(steps):
        mujoco.mj_step(model, data)
        angles.append(data.qpos[model.jnt_qposadr[joint]] - pose[model.jnt_qposadr[joint]])
    return np.array(angles)


def half_time(angles, target, timestep):
    """Seconds until half of the step is covered; inf: never."""
    covered = np.flatnonzero(angles / target >= 0.5)
    return (covered[0] + 1) * timestep if len(covered) else np.inf


@needs_output()
def main():
    figure, axes = plt.subplots(8, 7, figsize=(14, 13), layout="constrained")
    axes = list(axes.flatten())
    ratios = {}
    for env_id, (stiffness, damping, effort, armature, speed) in PUBLISHED.items():
        model = envs.make(env_id, 1, engine="mujoco").engine.models[0]
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT.value
        model.opt.gravity[:] = 0.0
        timestep = model.opt.timestep
        steps = round(SECONDS / model.opt.timestep)
        middle = model.jnt_range.mean(1)
        pose = np.array([middle[j] for j in range(model.njnt) if model.jnt_type[j] == mujoco.mjtJoint.mjJNT_HINGE])
        for actuator in range(7 if "Kuka" in env_id else 0, model.nu):  # the hand's
            joint = model.actuator_trnid[actuator, 0]
            name = model.joint(joint).name
            dof = model.jnt_dofadr[joint]
            data = mujoco.MjData(model)
            mass = np.zeros((model.nv, model.nv))
            data.qpos[: len(pose)] = pose
            mujoco.mj_forward(model, data)
            mujoco.mj_fullM(model, data, mass)
            factor = 5.0 if name.startswith("robot0:WR") or name.startswith("WR") else 1.0
            inertia = mass[dof, dof] - model.dof_armature[dof] + armature * factor
            limit = effort or model.actuator_forcerange[actuator, 1]
            published = published_response(
                inertia, timestep, steps, STEP, factor * stiffness, factor * damping, limit, speed
            )
            here = engine_response(model, pose, actuator, joint, STEP, steps)
            axis = axes.pop(0)
            time = timestep * np.arange(1, steps + 1)
            axis.plot(time, published, "k--", lw=1.0)
            axis.plot(time, here, lw=1.4)
            axis.set_title(f"{env_id[:11]} {name}", fontsize=6)
            axis.tick_params(labelsize=5)
            ratios.setdefault(env_id, []).append(half_time(here, STEP, timestep) / half_time(published, STEP, timestep))
    for axis in axes:
        axis.remove()
    figure.supxlabel("seconds after a step of 0.2 rad; dashed: the published drive", fontsize=8)
    figure.savefig(RESULTS / "authority.png", dpi=70)
    for env_id, values in ratios.items():
        spread = f"{min(values):.2f} to {max(values):.2f}"
        print(f"{env_id}: half of the step takes {np.median(values):.2f} ({spread}) times as long")


if __name__ == "__main__":
    main()
