"""Cartpole: a cart of 1 kg on a rail along y, and a pole of 1 kg on a hinge about x that is upright at 0."""

import mujoco

from envs.models.visuals import BLACK, GREY, ORANGE, RED, SILVER, WHITE, add_camera, add_surroundings, draw

CONTROL_PERIOD = 0.0166  # s, one control step
SUBSTEPS = 2
MAX_FORCE = 400.0  # N


def build():
    """The model as a mujoco.MjSpec. nu is 1; qpos and qvel (2) are cart and pole. No collisions and no friction."""
    spec = mujoco.MjSpec()
    spec.option.timestep = CONTROL_PERIOD / SUBSTEPS
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_RK4  # conserves energy; there are no contacts and no damping
    rail = spec.worldbody.add_body(name="rail", pos=[0.0, 0.0, 2.0])
    cart = rail.add_body(name="cart", mass=1.0, inertia=[0.0085417, 0.0066667, 0.0085417], explicitinertial=True)
    cart.add_joint(name="slider", type=mujoco.mjtJoint.mjJNT_SLIDE, axis=[0, 1, 0], range=[-4.0, 4.0], limited=True)
    inertia = dict(ipos=[0.0, 0.0, 0.47], inertia=[0.083633, 0.083467, 0.00043333], explicitinertial=True)
    pole = cart.add_body(name="pole", pos=[0.12, 0.0, 0.0], mass=1.0, **inertia)
    pole.add_joint(name="hinge", type=mujoco.mjtJoint.mjJNT_HINGE, axis=[1, 0, 0])

    motor = spec.add_actuator(name="push", target="slider", trntype=mujoco.mjtTrn.mjTRN_JOINT)
    motor.gear[0] = MAX_FORCE
    motor.ctrlrange = [-1.0, 1.0]
    motor.ctrllimited = True
    _draw(spec, rail, cart, pole)
    return spec


def _draw(spec, rail, cart, pole):
    """Add everything that is visible. All of it is only drawn."""
    world = spec.worldbody
    blue = (0.16, 0.42, 0.85)
    world.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, size=(0, 0, 1), material="ground", contype=0, conaffinity=0)
    add_surroundings(spec, light=(-0.5, 0.35, -1.0), aim=(0, 0, 1.5), span=6.0)
    add_camera(cart, "side", (2.7, 0.9, 0.65), (0, 0.0, 0.28), fovy=40.0, mode=mujoco.mjtCamLight.mjCAMLIGHT_TRACK)

    draw(rail, "cylinder", (0, -4, 0), (0, 4, 0), 0.025, colour=SILVER)
    for i in range(-8, 9):  # a mark every half metre, red where the episode ends
        draw(rail, "cylinder", (0, i / 2 - 0.006, 0), (0, i / 2 + 0.006, 0), 0.034, colour=RED if abs(i) == 6 else GREY)
    for y in range(-4, 5, 2):
        draw(rail, "cylinder", (0, y, -2), (0, y, 0), 0.03, colour=GREY)
        draw(rail, "box", (0, y, -1.98), (0.2, 0.1, 0.02), colour=GREY)
    draw(cart, "box", (0, 0, 0.01), (0.085, 0.125, 0.065), colour=blue)
    draw(cart, "box", (0, 0, -0.055), (0.1, 0.105, 0.02), colour=BLACK)
    draw(cart, "box", (0, 0, 0.078), (0.07, 0.105, 0.012), colour=WHITE)
    for y in (-0.08, 0.08):
        draw(cart, "cylinder", (0.078, y, -0.035), (0.1, y, -0.035), 0.04, colour=BLACK)
        draw(cart, "cylinder", (0.1, y, -0.035), (0.104, y, -0.035), 0.018, colour=SILVER)
    draw(cart, "cylinder", (0.08, 0, 0), (0.11, 0, 0), 0.045, colour=SILVER)
    draw(pole, "capsule", (0, 0, 0), (0, 0, 0.95), 0.022, colour=ORANGE)
    draw(pole, "cylinder", (-0.012, 0, 0), (0.03, 0, 0), 0.038, colour=GREY)
    draw(pole, "sphere", (0, 0, 0.95), 0.045, colour=ORANGE)
