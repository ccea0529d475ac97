"""Building blocks of Ant and Humanoid: a plane, links of capsules and spheres, hinges with torque motors, and sensors.

Units are SI and radians, and quaternions are ordered w, x, y, z. Masses and inertias follow from the shapes and the
density. Where shapes of one link overlap, their mass counts twice, as in the published models.
"""

import mujoco

from envs.models.parts import add_shape
from envs.models.visuals import add_camera, add_surroundings

CONTROL_PERIOD = 0.0166  # s, one control step
SUBSTEPS = 2  # as the original; with one, motors at full torque throw the Ant 15 m high; four change nothing
TIMESTEP = CONTROL_PERIOD / SUBSTEPS
# MuJoCo's solimp and solref of contacts and joint limits. Two timesteps are the shortest time constant that it allows.
# An Ant at rest penetrates the ground by 0.15 mm (with the defaults by 1.1 mm), and at full torque joints exceed their
# limits by two thirds as much as with the defaults. Steps take no longer; the solver needs two iterations.
IMPEDANCE = (0.99, 0.99, 0.001, 0.5, 2.0)
RESPONSE = (2.0 * TIMESTEP, 1.0)


def make_scene():
    """A mujoco.MjSpec with the ground at z = 0 and nothing else."""
    spec = mujoco.MjSpec()
    spec.compiler.degree = False
    spec.option.timestep = TIMESTEP
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    # This makes a step a tenth faster: one robot is one island, and a warm start saves the solver no iterations.
    spec.option.disableflags |= mujoco.mjtDisableBit.mjDSBL_ISLAND | mujoco.mjtDisableBit.mjDSBL_WARMSTART
    spec.default.geom.solimp = spec.default.joint.solimp_limit = IMPEDANCE
    spec.default.geom.solref = spec.default.joint.solref_limit = RESPONSE
    spec.worldbody.add_geom(name="ground", type=mujoco.mjtGeom.mjGEOM_PLANE, size=(0, 0, 1), material="ground")
    return spec


def add_root(spec, name, height, camera, target):
    """Add the free body that carries the robot, and return it.

    The sun follows the body, and so does the camera "track". It is at `camera` (3,) m and looks at `target` (3,) m,
    both relative to the body while it is level.
    """
    root = spec.worldbody.add_body(name=name, pos=(0, 0, height))
    root.add_freejoint(name="root")
    add_camera(root, "track", camera, target, mode=mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM)
    add_surroundings(spec, follow=root)
    return root


def add_shapes(body, shapes, density, friction, self_collision, rgba):
    """Add geoms to a body. A shape is a capsule (end, end, radius) or a sphere (centre, radius)."""
    for numbers in shapes:
        kind = "capsule" if len(numbers) == 3 else "sphere"
        geom = add_shape(body, kind, *numbers, density=density, contype=int(self_collision), conaffinity=1, rgba=rgba)
        geom.friction[0] = friction


def add_hinge(spec, body, name, axis, limits, gear, **constants):
    """Add a hinge and a motor of the same name. Its torque is gear (N m) times the control, which is in [-1, 1]."""
    body.add_joint(name=name, type=mujoco.mjtJoint.mjJNT_HINGE, axis=axis, range=limits, **constants)
    motor = spec.add_actuator(name=name, target=name, trntype=mujoco.mjtTrn.mjTRN_JOINT, ctrlrange=(-1, 1))
    motor.gear[0] = gear


def add_wrench_sensor(spec, body):
    """Add a sensor of six numbers: force (N) and torque (N m) of the parent on the body, at its origin, in its axes."""
    body.add_site(name=body.name)
    for kind in (mujoco.mjtSensor.mjSENS_FORCE, mujoco.mjtSensor.mjSENS_TORQUE):
        spec.add_sensor(type=kind, objtype=mujoco.mjtObj.mjOBJ_SITE, objname=body.name)


def add_limit_sensor(spec, joint):
    """Add a sensor of one number: the torque (N m) of the joint's limit."""
    spec.add_sensor(type=mujoco.mjtSensor.mjSENS_JOINTLIMITFRC, objtype=mujoco.mjtObj.mjOBJ_JOINT, objname=joint)
