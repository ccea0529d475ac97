"""Cartpole: a cart of 1 kg on a rail along y, a pole of 1 kg hinged about x, upright at 0."""

import mujoco

from envs.models.parts import add_sky

CONTROL_PERIOD = 0.0166  # s, one control step
SUBSTEPS = 2
MAX_FORCE = 400.0  # N


def build():
    """The model as a mujoco.MjSpec. nu = 1; qpos and qvel (2) are cart and pole. Nothing collides, no friction."""
    spec = mujoco.MjSpec()
    spec.option.timestep = CONTROL_PERIOD / SUBSTEPS
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_RK4  # no contacts, no damping: keeps the energy
    box = dict(type=mujoco.mjtGeom.mjGEOM_BOX, contype=0, conaffinity=0)

    rail = spec.worldbody.add_body(name="rail", pos=[0.0, 0.0, 2.0])
    rail.add_geom(size=[0.015, 4.0, 0.015], rgba=[0.5, 0.5, 0.5, 1.0], **box)
    cart = rail.add_body(name="cart", mass=1.0, inertia=[0.0085417, 0.0066667, 0.0085417], explicitinertial=True)
    cart.add_joint(name="slider", type=mujoco.mjtJoint.mjJNT_SLIDE, axis=[0, 1, 0], range=[-4.0, 4.0], limited=True)
    cart.add_geom(size=[0.1, 0.125, 0.1], rgba=[0.2, 0.4, 0.8, 1.0], **box)
    inertia = dict(ipos=[0.0, 0.0, 0.47], inertia=[0.083633, 0.083467, 0.00043333], explicitinertial=True)
    pole = cart.add_body(name="pole", pos=[0.12, 0.0, 0.0], mass=1.0, **inertia)
    pole.add_joint(name="hinge", type=mujoco.mjtJoint.mjJNT_HINGE, axis=[1, 0, 0])
    pole.add_geom(pos=[0.0, 0.0, 0.47], size=[0.02, 0.03, 0.5], rgba=[0.9, 0.5, 0.2, 1.0], **box)

    motor = spec.add_actuator(name="push", target="slider", trntype=mujoco.mjtTrn.mjTRN_JOINT)
    motor.gear[0] = MAX_FORCE
    motor.ctrlrange, motor.ctrllimited = [-1.0, 1.0], True
    add_sky(spec)
    spec.worldbody.add_light(pos=[3.0, 0.0, 6.0], dir=[-0.5, 0.0, -1.0])
    spec.worldbody.add_camera(name="side", pos=[8.0, 0.0, 2.0], xyaxes=[0, 1, 0, 0, 0, 1])
    return spec
