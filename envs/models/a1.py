"""Unitree A1, built from primitive shapes and published numbers: a free base, four legs of three hinges.

Lengths are in m, angles in rad, masses in kg, and inertias in kg m^2 about the centre of mass in body axes. x points
forward, y to the left, and z up. The legs are always in the order FR, FL, RR, RL, each with hip, thigh and calf. The
numbers are those of the robot description that Extreme Parkour uses (https://arxiv.org/abs/2309.14341), in which the
trunk's shape reaches farther forward than the robot's, so that it covers a camera, and the hips do not collide.
"""

from typing import NamedTuple, Tuple

import mujoco
import numpy as np

from envs.models.parts import CONTACT_NET_FORCE, add_position_drive, add_shape, make_walking_spec
from envs.models.visuals import BLACK, GREY, HIDDEN, ORANGE, SILVER, WHITE, add_camera, add_surroundings, draw

LEGS = ("FR", "FL", "RR", "RL")
JOINT_NAMES = ["%s_%s_joint" % (leg, joint) for leg in LEGS for joint in ("hip", "thigh", "calf")]
BASE_BODY = "base"
FOOT_GEOMS = ["%s_foot" % leg for leg in LEGS]
FOOT_RADIUS = 0.02
START_HEIGHT = 0.42  # m, of the base; in the default pose the feet are then 12 cm above the ground
DEFAULT_POSE = np.array([-0.1, 0.8, -1.5, 0.1, 0.8, -1.5, -0.1, 1.0, -1.5, 0.1, 1.0, -1.5])
JOINT_LOWER = np.tile([-0.802851455917, -1.0471975512, -2.69653369433], 4)
JOINT_UPPER = np.tile([0.802851455917, 4.18879020479, -0.916297857297], 4)

STIFFNESS = 40.0  # N m / rad
DAMPING = 1.0  # N m s / rad
EFFORT = np.tile([20.0, 30.0, 30.0], 4)  # N m
ARMATURE = 0.005  # kg m^2; ours

CONTROL_PERIOD = 0.02  # s, one control step
SUBSTEPS = 4
TIMESTEP = CONTROL_PERIOD / SUBSTEPS
TOUCHES_ALL = 1  # contype of what collides with all shapes of the robot
TOUCHES_FEET = 2  # with its feet only

# Slices of the model's sensors. Contact forces, N, are those of the robot on the ground, in world axes.
TORQUES = slice(0, 12)  # of the drives, N m
BODY_FORCES = slice(12, 39)  # of the base, the thighs, and the calves without feet: 9 x 3
FOOT_FORCES = slice(39, 51)  # of the feet: 4 x 3
FOOT_POSITIONS = slice(51, 63)  # centres of the feet in world axes, m: 4 x 3

# Mass, centre of mass, inertia (xx, yy, zz, xy, xz, yz) of the base and of the links of FL. The other legs are mirror
# images.
BASE = (
    4.714,
    (0.0127283, 0.0021855, 0.0005149),
    (0.01693993504, 0.05667919031, 0.06481376782, 8.387417594e-05, 0.000597672445, 2.5132874448e-05),
)
HIP = (0.696, (-0.003311, 0.000635, 3.1e-05), (0.000469246, 0.00080749, 0.000552929, -9.409e-06, -3.42e-07, -4.66e-07))
THIGH = (
    1.013,
    (-0.003237, -0.022327, -0.027326),
    (0.005529065, 0.005139339, 0.001367788, 4.825e-06, 0.000343869, 2.2448e-05),
)
CALF = (0.226, (0.0047266, 0.0, -0.1319753), (0.00338556645, 0.00340344139, 4.38509375e-05, 0.0, -0.00016742735, 0.0))
BASE_SHAPE = (0.1, 0.0, 0.0), (0.19, 0.097, 0.057)  # of a box: centre, half edges
THIGH_SHAPE = (0.0, 0.0, -0.1), (0.017, 0.01225, 0.1)
CALF_SHAPE = (0.0, 0.0, -0.1), (0.008, 0.008, 0.1)
HIP_POSITION = (0.183, 0.047, 0.0)
THIGH_POSITION = (0.0, 0.08505, 0.0)
CALF_POSITION = FOOT_POSITION = (0.0, 0.0, -0.2)


class Dynamics(NamedTuple):
    """What differs between robots."""

    added_mass: float = 0.0  # kg, at the base's centre of mass
    com_shift: Tuple[float, float, float] = (0.0, 0.0, 0.0)  # m, of the base's centre of mass
    friction: float = 1.0  # of all shapes; the ground has 1, and a contact has the mean of both
    stiffness: Tuple[float, ...] = (1.0,) * 12  # factor on STIFFNESS
    damping: Tuple[float, ...] = (1.0,) * 12  # factor on DAMPING


NOMINAL = Dynamics()


def build(dynamics=NOMINAL):
    """The robot without any ground, as a mujoco.MjSpec.

    nu is 12, the joint targets in rad. qpos (19) contains position and quaternion of the base and 12 joints. qvel (18)
    contains the base's linear velocity in world axes, its angular velocity in its own axes, and 12 joints. Sensors
    (63): see the slices above. The robot does not collide with itself. What it shall collide with needs the contype
    TOUCHES_ALL, or TOUCHES_FEET.
    """
    spec = make_walking_spec(TIMESTEP)
    mass, com, inertia = BASE
    shifted = np.add(com, dynamics.com_shift)
    base = _add_body(spec.worldbody, BASE_BODY, (0, 0, START_HEIGHT), mass + dynamics.added_mass, shifted, inertia)
    base.add_freejoint(name="base")
    add_camera(base, "follow", (-0.9, -1.9, 0.9), (0.35, 0.0, -0.1), mode=mujoco.mjtCamLight.mjCAMLIGHT_TRACK)
    add_surroundings(spec, follow=base)
    _add_box(base, BASE_BODY, BASE_SHAPE, dynamics)
    _draw_base(base)
    for leg in LEGS:
        front = 1 if leg[0] == "F" else -1
        left = 1 if leg[1] == "L" else -1
        hip = _add_link(base, "%s_hip" % leg, HIP_POSITION, HIP, (front, left, 1))
        thigh = _add_link(hip, "%s_thigh" % leg, THIGH_POSITION, THIGH, (1, left, 1))
        calf = _add_link(thigh, "%s_calf" % leg, CALF_POSITION, CALF, (1, 1, 1))
        _add_box(thigh, thigh.name, THIGH_SHAPE, dynamics)
        _add_box(calf, calf.name, CALF_SHAPE, dynamics)
        _add_geom(
            calf,
            "%s_foot" % leg,
            dynamics,
            "sphere",
            FOOT_POSITION,
            FOOT_RADIUS,
            conaffinity=TOUCHES_ALL | TOUCHES_FEET,
            rgba=(*BLACK, 1),
        )
        _draw_leg(hip, thigh, calf, left)
    for i, name in enumerate(JOINT_NAMES):
        joint = spec.joint(name)
        joint.axis = (1, 0, 0) if "hip" in name else (0, 1, 0)
        joint.range = (JOINT_LOWER[i], JOINT_UPPER[i])
        joint.armature = ARMATURE
        add_position_drive(spec, name, STIFFNESS * dynamics.stiffness[i], DAMPING * dynamics.damping[i], EFFORT[i])
    _add_sensors(spec)
    return spec


def _add_sensors(spec):
    sensor_type = mujoco.mjtSensor
    geom = mujoco.mjtObj.mjOBJ_GEOM
    for name in JOINT_NAMES:
        spec.add_sensor(type=sensor_type.mjSENS_ACTUATORFRC, objtype=mujoco.mjtObj.mjOBJ_ACTUATOR, objname=name)
    links = [BASE_BODY, *("%s_thigh" % leg for leg in LEGS), *("%s_calf" % leg for leg in LEGS)]
    for name in [*links, *FOOT_GEOMS]:
        sensor = spec.add_sensor(type=sensor_type.mjSENS_CONTACT, objtype=geom, objname=name)
        sensor.intprm[:3] = CONTACT_NET_FORCE
    for name in FOOT_GEOMS:
        spec.add_sensor(type=sensor_type.mjSENS_FRAMEPOS, objtype=geom, objname=name)


def _add_link(parent, name, pos, numbers, signs):
    """A link with a hinge. numbers: mass, centre of mass and inertia of FL's; signs (3,): of its axes, to mirror it."""
    mass, com, (xx, yy, zz, xy, xz, yz) = numbers
    x, y, z = signs
    inertia = (xx, yy, zz, x * y * xy, x * z * xz, y * z * yz)
    body = _add_body(parent, name, np.multiply(pos, signs), mass, np.multiply(com, signs), inertia)
    body.add_joint(name="%s_joint" % name)
    return body


def _add_body(parent, name, pos, mass, com, inertia):
    body = parent.add_body(name=name, pos=pos, mass=mass, ipos=com, fullinertia=inertia)
    body.explicitinertial = True
    return body


def _add_box(body, name, shape, dynamics):
    _add_geom(body, name, dynamics, "box", *shape, conaffinity=TOUCHES_ALL, group=HIDDEN)


def _add_geom(body, name, dynamics, kind, *numbers, **options):
    # MuJoCo takes the friction of the shape with the higher priority, PhysX the mean of both.
    friction = ((1.0 + dynamics.friction) / 2.0, 0.005, 0.0001)
    add_shape(body, kind, *numbers, name=name, contype=0, priority=1, friction=friction, **options)


def _draw_base(base):
    """Draw a trunk with a head, white covers and a camera, in place of the box."""
    draw(base, "box", (0.0, 0, 0.0), (0.165, 0.055, 0.045), colour=BLACK)
    draw(base, "box", (0.0, 0, 0.046), (0.15, 0.050, 0.010), colour=SILVER)
    for y in (-0.062, 0.062):
        draw(base, "capsule", (-0.12, y, 0.0), (0.12, y, 0.0), 0.034, colour=SILVER)
        draw(base, "box", (0.0, y * 1.5, 0.0), (0.06, 0.004, 0.014), colour=ORANGE)
    draw(base, "box", (0.225, 0, 0.010), (0.045, 0.058, 0.040), colour=WHITE)
    draw(base, "box", (0.268, 0, 0.010), (0.006, 0.050, 0.026), colour=BLACK)
    for y in (-0.025, 0.025):
        draw(base, "sphere", (0.274, y, 0.012), 0.011, colour=SILVER)
    draw(base, "box", (-0.175, 0, 0.0), (0.015, 0.045, 0.035), colour=GREY)


def _draw_leg(hip, thigh, calf, left):
    """Draw the motors at the joints, and the links between them. left: 1 for a left leg, -1 for a right one."""
    draw(hip, "cylinder", (-0.035, 0, 0), (0.035, 0, 0), 0.044, colour=BLACK)
    draw(hip, "cylinder", (0, left * 0.035, 0), (0, left * 0.075, 0), 0.044, colour=SILVER)
    draw(thigh, "cylinder", (0, left * -0.012, 0), (0, left * 0.024, 0), 0.044, colour=BLACK)
    draw(thigh, "cylinder", (0, left * 0.024, 0), (0, left * 0.029, 0), 0.034, colour=ORANGE)
    draw(thigh, "capsule", (0.008, 0, -0.02), (0.002, 0, -0.19), 0.020, colour=WHITE)
    draw(thigh, "capsule", (-0.012, 0, -0.02), (-0.004, 0, -0.17), 0.016, colour=WHITE)
    draw(calf, "cylinder", (0, -0.016, 0), (0, 0.016, 0), 0.021, colour=BLACK)
    draw(calf, "capsule", (0, 0, -0.01), (0.004, 0, -0.11), 0.012, colour=BLACK)
    draw(calf, "capsule", (0.004, 0, -0.11), (0, 0, -0.19), 0.010, colour=GREY)
