"""A Franka Panda arm with its two-finger gripper and the table of the cube tasks, built from primitive shapes.

Lengths are in m, angles in rad, masses in kg, and inertias in kg m^2 about the centre of mass in body axes. Quaternions
are (w, x, y, z) and need not be normalised. The joints are always in the order arm 1-7, left finger, right finger.
"""

import itertools

import mujoco
import numpy as np

from envs.models.parts import add_body, add_position_drive
from envs.models.visuals import BLACK, GREY, SILVER, WHITE, WOOD, add_camera, add_surroundings
from envs.models.visuals import GOAL as GOAL_COLOUR
from envs.models.visuals import draw, draw_faces, draw_goal_box

NUM_ARM = 7
NUM_JOINTS = 9
LINK_BODIES = ["panda_link%d" % i for i in range(1, 8)] + ["panda_leftfinger", "panda_rightfinger"]
GRIP_BODY = "panda_grip_site"  # a frame of the last link, between the finger tips, 0.1025 m in front of the hand's
TIP_BODIES = ["panda_leftfinger_tip", "panda_rightfinger_tip"]  # frames of the fingers, the centres of their pads
HAND_OFFSET = 0.107  # m, of the hand along the axis of joint 7
GRIP_OFFSET = 0.2095  # m, of the grip site along the same axis
TIP_OFFSET = (0.0015, 0.0441)  # m along y (mirrored on the right) and z of a finger
DEFAULT_POSE = np.array([0.0, 0.1963, 0.0, -2.618, 0.0, 2.9416, 0.7854, 0.035, 0.035])

ARM_EFFORT = np.array([87.0, 87.0, 87.0, 87.0, 12.0, 12.0, 12.0])  # N m; the arm is driven by torques
ARM_SPEED = np.array([2.175, 2.175, 2.175, 2.175, 2.61, 2.61, 2.61])  # rad / s, published limits
# MuJoCo has no speed limit. The controller respects the published one, but does not know about contacts. The last joint
# carries only 0.003 kg m^2, and a finger that touches the table spins it at 14 rad/s. With this armature, which is
# usual for this arm in MuJoCo, random actions exceed 10 rad/s in 0.06 % of the steps. Without it they do so in 2.5 %,
# and some arms diverge.
ARM_ARMATURE = 0.1  # kg m^2
FINGER_STIFFNESS = 5000.0  # N / m, of the fingers' position drives
FINGER_DAMPING = 100.0  # N s / m
FINGER_EFFORT = 200.0  # N
FINGER_OPEN = 0.04  # m
FINGER_SPEED = 0.2  # m / s, published limit
# Without armature, the drive would push a finger of 23 g through the cube and through its own limits, because MuJoCo
# integrates the drive's damping implicitly but computes contacts without it. With this armature, a finger squeezes with
# 127 N and stays in place, and a finger that closes on one side pushes the cube to 0.3 m/s; with half of it, to 1.0
# m/s. The joint damping replaces the missing speed limit: at full effort a finger reaches FINGER_SPEED, instead of 1.0
# m/s.
FINGER_ARMATURE = 2.0  # kg
FINGER_JOINT_DAMPING = FINGER_EFFORT / FINGER_SPEED - FINGER_DAMPING  # N s / m

TURN_FORWARD = (1, 1, 0, 0)  # +-90 degrees about x
TURN_BACK = (1, -1, 0, 0)
TURN_HAND = (0.92387953, 0, 0, -0.38268343)  # -45 degrees about z: from the last link to the hand

# Of each body: frame in the parent (position, quaternion), mass, centre of mass, inertia (xx, yy, zz, xy, xz, yz) and
# shapes. A shape is a capsule or cylinder (end, end, radius) or a box (centre, half edges, quaternion) in body axes.
# The robot description has no masses. These are the masses of the links' convex hulls at 1000 kg / m^3.
BASE = (
    2.99653899,
    (-0.029191, -0.000879, 0.056603),
    (0.0090523094, 0.0116919671, 0.0120720375, -5.82758e-05, -0.0013781114, -1.25598e-06),
    [("cylinder", (-0.02581, -0.00102, 0), (-0.02738, -0.00097, 0.13908), 0.08554)],
)
LINKS = [
    ((0, 0, 0.333), (1, 0, 0, 0), 2.97517142, (1.2e-05, -0.031264, -0.069372),
     (0.0176213202, 0.0152621397, 0.007120174, 3.46943e-07, 1.10156e-06, 0.0034393413),
     [("capsule", (0.00076, -0.00656, -0.14136), (-0.00266, -0.05274, -0.00427), 0.06441)]),
    ((0, 0, 0), TURN_BACK, 3.00430321, (-1.3e-05, -0.070322, 0.031178),
     (0.0180149851, 0.0071949151, 0.015632778, -2.0446e-06, -6.91767e-07, -0.003496028),
     [("capsule", (0.00013, -0.14066, 0.0072), (-0.00063, -0.00589, 0.05407), 0.06481)]),
    ((0, -0.316, 0), TURN_FORWARD, 2.32845158, (0.04435, 0.024933, -0.038138),
     (0.0074088021, 0.0089365211, 0.0074884251, -0.0014425952, -0.002464395, -0.0013308132),
     [("capsule", (0.08103, 0.04767, -0.00332), (0.01039, 0.00508, -0.07184), 0.06226)]),
    ((0.0825, 0, 0), TURN_FORWARD, 2.3739896, (-0.038553, 0.03953, 0.024716),
     (0.007723328, 0.0076439107, 0.0092857557, 0.0025614259, -0.0014699732, 0.0013848228),
     [("capsule", (-0.00508, 0.00454, 0.04555), (-0.07278, 0.07609, 0.00402), 0.06341)]),
    ((-0.0825, 0.384, 0), TURN_BACK, 3.41922874, (-6.4e-05, 0.038411, -0.10997),
     (0.0298399843, 0.0271283975, 0.0077308758, -9.37223e-06, -3.97632e-05, -0.0058659925),
     [("capsule", (0.00033, 0.00959, -0.2161), (-0.00061, 0.06897, -0.00463), 0.06061)]),
    ((0, 0, 0), TURN_FORWARD, 1.43542113, (0.05101, 0.006927, 0.006167),
     (0.0023201994, 0.0035415132, 0.0043162657, -0.0001624482, 0.0002945802, 2.88862e-05),
     [("capsule", (0.00829, -0.00099, 0.00915), (0.07944, 0.02477, 0.00198), 0.05441)]),
    # The last link carries the hand.
    ((0.088, 0, 0), TURN_FORWARD, 1.15505752, (0.0037329, 0.0037347, 0.1109147),
     (0.0026439862, 0.0026446216, 0.0029213445, -0.0011252338, 0.0001079019, 0.000107686),
     [("box", (0.01368, 0.01396, 0.07817), (0.0582, 0.03847, 0.02613), (0.92658, 0, 0, 0.3761)),
      ("box", (-0.0007, -0.0009, 0.13293), (0.02292, 0.09897, 0.03978), TURN_HAND)]),
    # The pad protrudes from the finger by half a millimetre and makes the contacts.
    ((0, 0, 0.1654), TURN_HAND, 0.02265974, (-2.13e-05, 0.011648, 0.0243872),
     (6.07776e-06, 5.75733e-06, 1.76271e-06, -3.77e-09, 6.759e-09, 8.25856e-07),
     [("box", (0, 0.01221, 0.02628), (0.01001, 0.01135, 0.02627), (1, 0, 0, 0)),
      ("box", (0, 0.0015, 0.0441), (0.0065, 0.002, 0.0065), (1, 0, 0, 0))]),
    ((0, 0, 0.1654), TURN_HAND, 0.02265974, (2.13e-05, -0.011648, 0.0243872),
     (6.07776e-06, 5.75733e-06, 1.76271e-06, -3.77e-09, -6.759e-09, -8.25856e-07),
     [("box", (0, -0.01221, 0.02628), (0.01001, 0.01135, 0.02627), (1, 0, 0, 0)),
      ("box", (0, -0.0015, 0.0441), (0.0065, 0.002, 0.0065), (1, 0, 0, 0))]),
]  # fmt: skip
JOINT_LIMITS = [
    (-2.8973, 2.8973),
    (-1.7628, 1.7628),
    (-2.8973, 2.8973),
    (-3.0718, -0.0698),
    (-2.8973, 2.8973),
    (-0.0175, 3.7525),
    (-2.8973, 2.8973),
    (0.0, FINGER_OPEN),
    (0.0, FINGER_OPEN),
]
JOINT_LOWER, JOINT_UPPER = np.array(JOINT_LIMITS).T
LINK_MASS = np.array([link[2] for link in LINKS])  # (9,)
LINK_COM = np.array([link[3] for link in LINKS])  # (9, 3)
LINK_INERTIA = np.array([link[4] for link in LINKS])[:, [[0, 3, 4], [3, 1, 5], [4, 5, 2]]]  # (9, 3, 3)

# Only drawn: cylinders (end, end, radius, colour) that close the gaps at the joints, and their caps.
ARM_DETAILS = [
    [((0, 0, -0.196), (0, 0, -0.188), 0.0700, GREY)],
    [
        ((0, 0, -0.105), (0, 0, 0.105), 0.0625, WHITE),
        ((0, 0, -0.119), (0, 0, 0.121), 0.0500, SILVER),
        ((0, -0.006, 0.02), (0, -0.18, 0.01), 0.0600, WHITE),
    ],
    [((0, 0, -0.150), (0, 0, -0.050), 0.0600, WHITE), ((0, 0, -0.128), (0, 0, -0.122), 0.0635, GREY)],
    [((0, 0, -0.100), (0, 0, 0.100), 0.0610, WHITE), ((0, 0, -0.114), (0, 0, 0.112), 0.0480, SILVER)],
    [((0, 0, -0.300), (0, 0.008, -0.200), 0.0560, WHITE), ((0, 0, -0.262), (0, 0, -0.256), 0.0620, GREY)],
    [((0, 0, -0.110), (0, 0, 0.055), 0.0530, WHITE), ((0, 0, -0.133), (0, 0, 0.063), 0.0420, SILVER)],
    [((0, 0, -0.050), (0, 0, 0.100), 0.0450, WHITE), ((0, 0, 0.060), (0, 0, 0.066), 0.0470, GREY)],
]

# Pairs of bodies that overlap only because the primitives are larger than the real parts. MuJoCo itself ignores
# contacts between a body and its parent, unless the parent is fixed to the world. The fingers need no contact with each
# other, because the joint limits stop them where they would meet.
EXCLUDED_PAIRS = [("panda_link0", "panda_link1"), ("panda_link5", "panda_link7")]
EXCLUDED_PAIRS += [("panda_leftfinger", "panda_rightfinger")]

CONTROL_PERIOD = 0.01667  # s, one control step
SUBSTEPS = 2  # as the original
TIMESTEP = CONTROL_PERIOD / SUBSTEPS
# MuJoCo's solimp. With its default of 0.9, the fingers penetrate a cube by 5 mm; with 0.99, by 1 mm.
CONTACT_IMPEDANCE = (0.99, 0.99, 0.001, 0.5, 2.0)

ROBOT_POS = (-0.45, 0.0, 1.125)
TABLE_POS = (0.0, 0.0, 1.0)  # m
TABLE_SIZE = (1.2, 1.2, 0.05)  # full edges, m
STAND_POS = (-0.5, 0.0, 1.075)
STAND_SIZE = (0.2, 0.2, 0.1)
TABLE_TOP = TABLE_POS[2] + TABLE_SIZE[2] / 2.0
CUBE_A = "cube_a"
CUBE_B = "cube_b"
GOAL = "goal"
SIZE_A = 0.05  # m, of an edge
SIZE_B = 0.07  # m
CUBE_DENSITY = 1000.0  # kg / m^3


def add_franka(spec, pos):
    """Add the robot to a spec: a fixed base at `pos` (m) and 9 joints.

    The controls are 7 torques (N m) and 2 finger positions (m). spec: mujoco.MjSpec, changed in place.
    """
    spec.compiler.degree = False
    parent = add_body(spec.worldbody, "panda_link0", pos, (1, 0, 0, 0), *BASE, (*WHITE, 1))
    draw(parent, "cylinder", (-0.02, 0, 0), (-0.02, 0, 0.012), 0.105, colour=GREY)
    for i in range(NUM_ARM):
        parent = add_body(parent, LINK_BODIES[i], *LINKS[i], (*WHITE, 1))
        joint = "panda_joint%d" % (i + 1)
        parent.add_joint(name=joint, axis=(0, 0, 1), range=JOINT_LIMITS[i], armature=ARM_ARMATURE)
        motor = spec.add_actuator(name=joint, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        motor.ctrlrange = (-ARM_EFFORT[i], ARM_EFFORT[i])
        for first, second, radius, colour in ARM_DETAILS[i]:
            draw(parent, "cylinder", first, second, radius, colour=colour)
    for geom in parent.geoms[:2]:
        geom.rgba = (*WHITE, 1)
    parent.add_body(name=GRIP_BODY, pos=(0, 0, GRIP_OFFSET), quat=TURN_HAND)
    for i, side in ((7, 1), (8, -1)):
        finger = add_body(parent, LINK_BODIES[i], *LINKS[i], (*WHITE, 1))
        finger.geoms[0].rgba = (*SILVER, 1)
        finger.geoms[1].rgba = (*BLACK, 1)
        finger.add_body(name=TIP_BODIES[i - 7], pos=(0, side * TIP_OFFSET[0], TIP_OFFSET[1]))
        joint = "panda_finger_joint%d" % (i - 6)
        limits = JOINT_LIMITS[i]
        finger.add_joint(
            name=joint,
            type=mujoco.mjtJoint.mjJNT_SLIDE,
            axis=(0, side, 0),
            range=limits,
            armature=FINGER_ARMATURE,
            damping=(FINGER_JOINT_DAMPING, 0.0, 0.0),
        )
        add_position_drive(spec, joint, FINGER_STIFFNESS, FINGER_DAMPING, FINGER_EFFORT, limits)
    for a, b in EXCLUDED_PAIRS:
        spec.add_exclude(bodyname1=a, bodyname2=b)


def build_scene(second_cube):
    """The robot on its stand behind a table with cube A, and cube B or a marker of the goal, as a mujoco.MjSpec.

    nu is 9. qpos contains the robot's 9 joints, then position (3) and quaternion (4, wxyz) of each cube. qvel contains
    the 9 joints' velocities, then the linear (world axes) and angular (body axes) velocity of each cube.
    """
    spec = mujoco.MjSpec()
    spec.option.timestep = TIMESTEP
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.iterations = 20  # an upper limit, for the worst world of a batch
    # With a pyramidal cone, a held cube slips by 10 mm in 2 s and is lost when it is swung. With an elliptic cone it
    # slips by 0.3 mm, and by 0.03 mm if impratio is also 10. None of this makes steps slower.
    spec.option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    spec.option.impratio = 10.0
    spec.default.geom.solimp = CONTACT_IMPEDANCE
    add_surroundings(spec, aim=TABLE_POS, span=5.0)

    world = spec.worldbody
    box = mujoco.mjtGeom.mjGEOM_BOX
    world.add_geom(name="ground", type=mujoco.mjtGeom.mjGEOM_PLANE, size=(0, 0, 1), material="ground")
    world.add_geom(name="table", type=box, pos=TABLE_POS, size=np.array(TABLE_SIZE) / 2, rgba=(*WOOD, 1))
    world.add_geom(name="stand", type=box, pos=STAND_POS, size=np.array(STAND_SIZE) / 2, rgba=(*GREY, 1))
    for x, y in itertools.product((-0.53, 0.53), repeat=2):  # only drawn: the table floats, like the original's
        draw(world, "box", (x, y, 0.4875), (0.035, 0.035, 0.4875), colour=GREY)
    add_franka(spec, ROBOT_POS)
    _add_cube(spec, CUBE_A, SIZE_A, (0.0, -0.15))
    if second_cube:
        _add_cube(spec, CUBE_B, SIZE_B, (0.0, 0.15))
    else:  # only drawn, at the place that is given when rendering
        goal = world.add_body(name=GOAL, mocap=True, pos=(0, 0.15, TABLE_TOP + SIZE_A / 2))
        draw_goal_box(goal, [SIZE_A / 2] * 3)
        rim = 0.7 * SIZE_A
        for x, y in ((rim, 0), (-rim, 0), (0, rim), (0, -rim)):  # a frame on the table around the goal
            size = (0.003 if x else rim + 0.003, 0.003 if y else rim + 0.003, 0.0008)
            draw(goal, "box", (x, y, -SIZE_A / 2), size, colour=GOAL_COLOUR)
    add_camera(world, "overview", (1.15, -1.0, 1.75), (-0.15, 0.0, 1.38), fovy=36.0)
    return spec


def _add_cube(spec, name, size, xy):
    cube = spec.worldbody.add_body(name=name, pos=(*xy, TABLE_TOP + size / 2))
    cube.add_freejoint(name=name)
    cube.add_geom(
        name=name, type=mujoco.mjtGeom.mjGEOM_BOX, size=[size / 2] * 3, density=CUBE_DENSITY, rgba=(*WHITE, 1)
    )
    draw_faces(cube, [size / 2] * 3)
