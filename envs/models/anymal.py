"""ANYmal C on flat ground, built from primitive shapes and published numbers: a free base, four legs of three hinges.

Lengths are in m, angles in rad, masses in kg, and inertias in kg m^2 about the centre of mass in body axes. Quaternions
are (w, x, y, z). x points forward, y to the left, and z up. The legs are always in the order LF, LH, RF, RH, each with
hip abduction HAA, hip flexion HFE and knee flexion KFE.
"""

import mujoco
import numpy as np

from envs.models.parts import CONTACT_NET_FORCE, add_position_drive, add_shape, make_walking_spec
from envs.models.visuals import BLACK, GREY, HIDDEN, RED, SILVER, add_camera, add_surroundings, draw

LEGS = ("LF", "LH", "RF", "RH")
JOINT_NAMES = ["%s_%s" % (leg, joint) for leg in LEGS for joint in ("HAA", "HFE", "KFE")]
BASE_BODY = "base"
THIGH_BODIES = ["%s_THIGH" % leg for leg in LEGS]
START_HEIGHT = 0.62  # m, of the base; in the default pose the feet are then 7.7 cm above the ground
DEFAULT_POSE = np.array([0.03, 0.4, -0.8, 0.03, -0.4, 0.8, -0.03, 0.4, -0.8, -0.03, -0.4, 0.8])

STIFFNESS = 85.0  # N m / rad
DAMPING = 2.0  # N m s / rad
EFFORT = 80.0  # N m

CONTROL_PERIOD = 0.02  # s, one control step
SUBSTEPS = 4  # with three, flailing legs penetrate the ground 1.5 times as deep
TIMESTEP = CONTROL_PERIOD / SUBSTEPS
COS = 0.25881905  # of 75 degrees
SIN = 0.96592583

# Of each body: mass, centre of mass, inertia (xx, yy, zz, xy, xz, yz) and shapes. A shape is a sphere (centre, radius),
# a box (centre, half edges) or a capsule (end, end, radius), which replaces the published cylinders. Shapes touch only
# the ground. It is a plane, so only their convex hull matters, and two capsules can replace the base's twelve lower
# shapes.
BASE = (
    26.37319938,
    (-0.0177939, -0.0001782, 0.0085043),
    (0.21671194, 1.7851629, 1.83370072, 0.00922381, 0.05893319, -0.00016378),
    [
        ("capsule", (-0.5245, 0.07, 0), (0.5245, 0.07, 0), 0.09),
        ("capsule", (-0.5245, -0.07, 0), (0.5245, -0.07, 0), 0.09),
        ("capsule", (-0.364, 0, 0.0735), (-0.364, 0, 0.1935), 0.07),
    ],
)
THIGH_SHAPES = [
    ("capsule", (0, 0, 0), (0.08, 0, 0), 0.065),
    ("capsule", (-0.0397, 0, -0.285), (0.1003, 0, -0.285), 0.05),
    ("box", (0.03, 0, -0.141314), (0.03, 0.0375, 0.141314)),
]
# Hip, thigh and shank of LF and RH, then those of LH and RF, which are nearly their mirror images in y.
LEG = [
    (2.781, (0.0566606, -0.015294, -0.0082978),
     (0.003295526, 0.005044349, 0.005726904, -1.038823e-05, 0.0001070622, -0.0003194918),
     [("capsule", (0.0599, 0.04866, 0.0281), (0.0599, -0.07258, -0.04191), 0.05)]),
    (3.071, (0.0308147, 4.65e-05, -0.2456957),
     (0.02956379, 0.02990405, 0.004861085, 4.42919e-05, 0.004142426, 9.447996e-05), THIGH_SHAPES),
    (0.58842, (0.005462, -0.0612528, -0.0806598),
     (0.01016114, 0.00881038, 0.001549784, -5.357133e-05, -2.266043e-05, -0.001819354),
     [("capsule", (0.01305, -0.08795, -0.31024), (0.01305, -0.08795, -0.02773), 0.0175),
      ("sphere", (0.01305, -0.08795, -0.31547), 0.03)]),
]  # fmt: skip
MIRRORED_LEG = [
    (2.781, (0.0567633, 0.015294, -0.0082978),
     (0.003295526, 0.00504617, 0.005728725, -1.100526e-05, -0.0001091211, 0.0003194918),
     [("capsule", (0.0599, -0.04866, 0.0281), (0.0599, 0.07258, -0.04191), 0.05)]),
    (3.071, (0.0308147, 4.65e-05, -0.2456957),
     (0.02956379, 0.02990405, 0.004861085, 4.43959e-05, 0.004142426, 0.000114794), THIGH_SHAPES),
    (0.58842, (0.005462, 0.0612528, -0.0806598),
     (0.01016114, 0.00881038, 0.001549784, 5.357133e-05, -2.266043e-05, 0.001819354),
     [("capsule", (0.01305, 0.08795, -0.31024), (0.01305, 0.08795, -0.02773), 0.0175),
      ("sphere", (0.01305, 0.08795, -0.31547), 0.03)]),
]  # fmt: skip
DARK = (0.20, 0.21, 0.23)
HAA_LIMITS = {"L": (-0.72, 0.49), "R": (-0.49, 0.72)}
OTHER_LIMITS = (-9.42478, 9.42478)
JOINT_LOWER, JOINT_UPPER = np.array([x for leg in LEGS for x in (HAA_LIMITS[leg[0]], OTHER_LIMITS, OTHER_LIMITS)]).T


def build():
    """The robot above the ground, as a mujoco.MjSpec.

    nu is 12, the joint targets in rad. qpos (19) contains position and quaternion of the base and 12 joints. qvel (18)
    contains the base's linear velocity in world axes, its angular velocity in its own axes, and 12 joints. Sensors
    (27): the torques of the drives (12), N m, then the net contact forces (3), N, world axes, on the base and on each
    thigh.
    """
    spec = make_walking_spec(TIMESTEP)
    spec.worldbody.add_geom(
        name="ground", type=mujoco.mjtGeom.mjGEOM_PLANE, size=(0, 0, 1), material="ground", contype=1, conaffinity=0
    )

    base = _add_body(spec.worldbody, BASE_BODY, (0, 0, START_HEIGHT), (1, 0, 0, 0), *BASE)
    base.add_freejoint(name="base")
    add_camera(base, "follow", (1.15, -1.5, 0.45), (0, 0, -0.13), mode=mujoco.mjtCamLight.mjCAMLIGHT_TRACK)
    add_surroundings(spec, follow=base)
    _draw_base(base)
    for leg in LEGS:
        front = 1 if leg[1] == "F" else -1
        left = 1 if leg[0] == "L" else -1
        side = front * left
        hip_quat = (COS, left * SIN, 0, 0) if front == 1 else (0, 0, -left * SIN, COS)
        thigh_quat = (0.1830127, -0.6830127 * side, 0.6830127, 0.1830127 * side)
        frames = [
            ("HIP", "HAA", front, (0.2999 * front, 0.104 * left, 0), hip_quat),
            ("THIGH", "HFE", left, (0.0599, -0.07258159 * side, -0.041905), thigh_quat),
            ("SHANK", "KFE", left, (0.1003, 0, -0.285), (1, 0, 0, 0)),
        ]
        body = base
        for (link, joint, axis, pos, quat), numbers in zip(frames, LEG if side == 1 else MIRRORED_LEG):
            body = _add_body(body, "%s_%s" % (leg, link), pos, quat, *numbers)
            joint = "%s_%s" % (leg, joint)
            i = JOINT_NAMES.index(joint)
            _draw_leg(body, link, side)
            body.add_joint(name=joint, axis=(axis, 0, 0), range=(JOINT_LOWER[i], JOINT_UPPER[i]))
            add_position_drive(spec, joint, STIFFNESS, DAMPING, EFFORT)
            spec.add_sensor(
                type=mujoco.mjtSensor.mjSENS_ACTUATORFRC, objtype=mujoco.mjtObj.mjOBJ_ACTUATOR, objname=joint
            )
    for name in [BASE_BODY, *THIGH_BODIES]:
        sensor = spec.add_sensor(type=mujoco.mjtSensor.mjSENS_CONTACT, objtype=mujoco.mjtObj.mjOBJ_BODY, objname=name)
        sensor.intprm[:3] = CONTACT_NET_FORCE
    return spec


def _add_body(parent, name, pos, quat, mass, com, inertia, shapes):
    body = parent.add_body(name=name, pos=pos, quat=quat, mass=mass, ipos=com, fullinertia=inertia)
    body.explicitinertial = True
    # collides with the ground only; the original has no self-collision either
    look = dict(rgba=(*DARK, 1), contype=0, conaffinity=1)
    for kind, *numbers in shapes:
        geom = add_shape(body, kind, *numbers, **look)
        if kind == "sphere":
            geom.name = name.replace("SHANK", "FOOT")
    return body


def _draw_base(base):
    """Draw the trunk in place of its capsules: red covers on a dark chassis, sensors at both ends, and handles."""
    for geom in base.geoms:
        geom.group = HIDDEN
    draw(base, "box", (0, 0, 0), (0.36, 0.075, 0.085), colour=BLACK)
    draw(base, "box", (0, 0, -0.01), (0.235, 0.145, 0.070), colour=RED)
    draw(base, "box", (0, 0, 0.075), (0.30, 0.115, 0.020), colour=RED)
    draw(base, "box", (0, 0, 0.090), (0.27, 0.075, 0.012), colour=DARK)
    for y in (-0.115, 0.115):
        draw(base, "capsule", (-0.30, y, 0.075), (0.30, y, 0.075), 0.020, colour=RED)
        draw(base, "capsule", (-0.225, y * 1.26, -0.07), (0.225, y * 1.26, -0.07), 0.012, colour=BLACK)
        draw(base, "box", (0, y * 1.265, -0.01), (0.15, 0.002, 0.035), colour=BLACK)
        draw(base, "capsule", (-0.22, 0.55 * y, 0.10), (-0.16, 0.55 * y, 0.145), 0.009, colour=GREY)
        draw(base, "capsule", (0.22, 0.55 * y, 0.10), (0.16, 0.55 * y, 0.145), 0.009, colour=GREY)
        draw(base, "capsule", (-0.16, 0.55 * y, 0.145), (0.16, 0.55 * y, 0.145), 0.009, colour=GREY)
    for end in (-1, 1):
        draw(base, "box", (end * 0.40, 0, 0.035), (0.055, 0.070, 0.055), colour=RED)
        draw(base, "box", (end * 0.41, 0, -0.035), (0.055, 0.062, 0.030), colour=DARK)
        draw(base, "capsule", (end * 0.465, -0.05, 0.025), (end * 0.465, 0.05, 0.025), 0.030, colour=DARK)
        for y in (-0.032, 0, 0.032):
            draw(base, "sphere", (end * 0.490, y, 0.030), 0.010, colour=SILVER)
    draw(base, "cylinder", (-0.364, 0, 0.085), (-0.364, 0, 0.115), 0.060, colour=DARK)
    draw(base, "cylinder", (-0.364, 0, 0.115), (-0.364, 0, 0.175), 0.050, colour=BLACK)
    draw(base, "cylinder", (-0.364, 0, 0.175), (-0.364, 0, 0.190), 0.052, colour=SILVER)


def _draw_leg(body, link, side):
    """Draw the housings of the joints, and the tubes from one joint to the next."""
    if link == "HIP":
        draw(body, "cylinder", (-0.075, 0, 0), (0.045, 0, 0), 0.056, colour=BLACK)
        draw(body, "cylinder", (0.045, 0, 0), (0.055, 0, 0), 0.046, colour=SILVER)
    elif link == "THIGH":
        for geom in body.geoms[2:]:
            geom.group = HIDDEN
        draw(body, "cylinder", (-0.03, 0, 0), (0.090, 0, 0), 0.056, colour=BLACK)
        draw(body, "cylinder", (0.090, 0, 0), (0.097, 0, 0), 0.044, colour=SILVER)
        for x in (0.020, 0.060):
            draw(body, "capsule", (x, 0, 0), (x, 0, -0.285), 0.027, colour=DARK)
        draw(body, "box", (0.040, 0, -0.145), (0.022, 0.031, 0.110), colour=DARK)
        draw(body, "cylinder", (-0.030, 0, -0.285), (0.085, 0, -0.285), 0.048, colour=BLACK)
        draw(body, "cylinder", (-0.038, 0, -0.285), (-0.030, 0, -0.285), 0.038, colour=SILVER)
    else:
        # the published shank stands 88 mm beside the axis of the knee
        y = -0.08795 * side
        draw(body, "cylinder", (-0.015, 0, 0), (0.040, 0, 0), 0.044, colour=GREY)
        draw(body, "capsule", (0.01305, 0, 0), (0.01305, y, -0.0277), 0.024, colour=DARK)
        draw(body, "capsule", (0.01305, y, -0.0277), (0.01305, y, -0.11), 0.022, colour=DARK)
        draw(body, "sphere", (0.01305, y, -0.31547), 0.0302, colour=BLACK)
