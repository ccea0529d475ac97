"""A KUKA iiwa 7 arm with a right Allegro hand (23 hinge joints), built from primitive shapes and published numbers.

Lengths are in m, angles in rad, masses in kg, and inertias in kg m^2 about the centre of mass in body axes. Quaternions
are (w, x, y, z) and need not be normalised. The joints are always in the order arm 1-7, index 0-3, middle 0-3, ring
0-3, thumb 0-3.
"""

import numpy as np

from envs.models.allegro_visuals import draw_arm_link, draw_base, draw_finger_link, draw_palm
from envs.models.parts import add_body, add_position_drive

FINGERS = ("index", "middle", "ring", "thumb")
JOINT_NAMES = ["iiwa7_joint_%d" % i for i in range(1, 8)] + ["%s_joint_%d" % (f, i) for f in FINGERS for i in range(4)]
PALM_BODY = "iiwa7_link_7"
PALM_OFFSET = np.array([0.0, -0.02, 0.16])  # centre of the palm in the frame of PALM_BODY
FINGERTIP_BODIES = ["%s_link_3" % f for f in FINGERS]
FINGERTIP_OFFSETS = np.array([[0.05, 0.005, 0.0]] * 3 + [[0.06, 0.005, 0.0]])  # fingertip points in their frames
# Zero is below the lower limit of thumb joint 0, so a reset has to clamp the pose.
DEFAULT_POSE = np.array([-1.571, 1.571, 0.0, 1.376, 0.0, 1.485, 2.358] + [0.0] * 16)

STIFFNESS = 40.0  # N m / rad, published for every joint
DAMPING = 5.0  # N m s / rad, published for every joint
ARM_EFFORT = 300.0  # N m
HAND_EFFORT = 0.35  # N m
ARM_SPEED = 10.0  # rad / s, published limit
# How far (rad) an arm's drive may aim beyond the joint's angle. At that distance its stiffness pulls as hard as its
# damping brakes at ARM_SPEED. MuJoCo has no speed limit. Without this bound, arms reached 48 rad/s when targets jumped.
ARM_LEAD = DAMPING * ARM_SPEED / STIFFNESS
HAND_SPEED = 6.283  # rad / s, published limit
# These are weaker than published. At its effort limit, PhysX integrates a drive implicitly, but MuJoCo explicitly. On
# the light finger links, a drive as strong as published then rattles at full effort: it moves by 0.026 rad whether its
# target is 0.01 or 0.08 rad away, and the hand drops what it holds once the target trembles by 0.01 rad. An explicit
# damping must stay below twice the armature divided by the time step, 0.48. The ratio of stiffness and damping is the
# published one, so that a free finger moves as it would with the published drives.
HAND_STIFFNESS = 0.08 * STIFFNESS
HAND_DAMPING = 0.08 * DAMPING
# Without armature, fingers come to rest 0.1 rad away from their targets.
HAND_ARMATURE = 2e-3  # kg m^2
# MuJoCo has no speed limit. With this damping, a drive at full effort reaches HAND_SPEED.
HAND_JOINT_DAMPING = HAND_EFFORT / HAND_SPEED  # N m s / rad

TURN_FORWARD = (1, 1, 0, 0)  # +90 degrees about x
TURN_BACK = (0, 0, 1, 1)  # the same, then 180 degrees about z

# Of each body: frame in the parent (position, quaternion), mass, centre of mass, inertia (xx, yy, zz, xy, xz, yz) and
# shapes. A shape is a capsule or cylinder (end, end, radius) or a box (centre, half edges, quaternion) in body axes.
# The moving finger links are capsules. Boxes fit the hulls better, but a step in a grasp would take a third longer.
BASE = (5.0, (-0.1, 0, 0.07), (0.05, 0.06, 0.03, 0, 0, 0), [("cylinder", (-0.017, 0, 0), (-0.017, 0, 0.1575), 0.097)])
ARM = [
    ((0, 0, 0.15), (1, 0, 0, 0), 3.4525, (0, -0.03, 0.12), (0.02183, 0.007703, 0.02083, 0, 0, -0.003887),
     [("capsule", (0, -0.0087, 0.0488), (0, -0.0440, 0.1840), 0.0696)]),
    ((0, 0, 0.19), TURN_BACK, 3.4821, (0.0003, 0.059, 0.042), (0.02076, 0.02179, 0.00779, 0, -0.003626, 0),
     [("capsule", (0, 0.0065, 0.0436), (0, 0.1396, 0.0094), 0.0698)]),
    ((0, 0.21, 0), TURN_BACK, 4.05623, (0, 0.03, 0.13), (0.03204, 0.00972, 0.03042, 0, 0, 0.006227),
     [("capsule", (0, 0.0061, 0.0196), (0, 0.0434, 0.1815), 0.0708)]),
    ((0, 0, 0.19), TURN_FORWARD, 3.4822, (0, 0.067, 0.034), (0.02178, 0.02075, 0.007785, 0, 0, -0.003625),
     [("capsule", (0, 0.0065, 0.0436), (0, 0.1396, 0.0094), 0.0698)]),
    ((0, 0.21, 0), TURN_BACK, 2.1633, (0.0001, 0.021, 0.076), (0.01287, 0.005708, 0.01112, 0, 0, -0.003946),
     [("capsule", (0.0029, -0.0028, 0.0074), (-0.0038, 0.0529, 0.1440), 0.0621)]),
    ((0, 0.0607, 0.19), TURN_FORWARD, 2.3466, (0, 0.0006, 0.0004), (0.006509, 0.006259, 0.004527, 0, 0, 0.00031891),
     [("capsule", (0, -0.0214, 0.0645), (0, 0.0313, 0.0544), 0.0653)]),
    # The last link carries the flange, the mount and the palm.
    ((0, 0.081, 0.0607), TURN_BACK, 3.6944, (0.0009241, -0.0023196, 0.0368971),
     (0.022554853, 0.022432845, 0.0042538202, 0.00065371471, -0.00039250319, 0.0009851978),
     [("cylinder", (0, 0.0012, 0), (0, 0.0012, 0.0660), 0.0518), ("cylinder", (0, 0, 0.071), (0, 0, 0.094), 0.0380),
      ("box", (0.0368, 0.0203, 0.1461), (0.0551, 0.0492, 0.0463), (0, 0.38268, 0.92388, 0))]),
]  # fmt: skip
ARM_LIMITS = [2.96705972839, 2.09439510239] * 3 + [3.05432619099]  # symmetric

PALM_BOX = ARM[6][5][2][1]  # its centre
# Frame of a finger's first joint in the palm body.
FINGER_FRAMES = {
    "index": ((0.04189129, -0.03832195, 0.20329024), (0.38231938, -0.01672932, 0.04033248, -0.922998)),
    "middle": ((0.01000282, -0.00643349, 0.20559754), (0.38268336, -3.743e-05, 3.464e-05, -0.92387956)),
    "ring": ((-0.02188613, 0.02545549, 0.20329024), (0.38231891, 0.01665453, -0.04026327, -0.92300257)),
    "thumb": ((0.03482618, -0.00551769, 0.11511191), (0.01669116, 0.38229784, -0.92300911, -0.04029819)),
}
# As in ARM. The published inertias of links 1-3 are physically impossible (negative, or violating the triangle
# inequality). The ones here are those of the same mass, spread evenly over the link's convex hull.
FINGER = [
    (None, None, 0.005, (0, 0, 0), (5.1458e-05, 5.1458e-05, 6.125e-05, 0, 0, 0),
     [("box", (-0.0009, 0, -0.0050), (0.0089, 0.0135, 0.0107), (1, 0, 0, 0))]),
    ((0, 0, 0), (0.49995367, -0.50004633, -0.49997684, -0.50002316), 0.125164, (0.027, -0.002472, 0),
     (1.3854e-05, 5.6006e-05, 5.4188e-05, 0, 0, 0), [("capsule", (0.0032, -0.0022, 0), (0.0503, -0.0022, 0), 0.0148)]),
    ((0.054, 0, 0), (1, 0, 0, 0), 0.131691, (0.021578, -0.002301, 0),
     (1.4001e-05, 3.4544e-05, 3.1837e-05, 0, 0, 0), [("capsule", (0.0076, -0.0021, 0), (0.0347, -0.0021, 0), 0.0147)]),
    ((0.0384, 0, 0), (1, 0, 0, 0), 0.0211922, (0.01282, -0.000762, 0),
     (1.7304e-06, 3.8862e-06, 3.2677e-06, -6.3e-08, 0, 0),
     [("capsule", (0.0040, -0.0007, 0), (0.0232, -0.0007, 0), 0.0131)]),
]  # fmt: skip
FINGER_LIMITS = [(-0.558488888889, 0.558488888889)] + [(-0.279244444444, 1.727825)] * 3
THUMB = [
    (None, None, 0.1, (0, 0, 0), (5.1458e-05, 5.1458e-05, 6.125e-05, 0, 0, 0),
     [("box", (0.0088, -0.0148, -0.0098), (0.0162, 0.0228, 0.0192), (1, 0, 0, 0))]),
    ((0.005, 0, 0), (0.70712316, 0.7070904, 0, 0), 0.1, (0, 0, 0), (5.1458e-05, 5.1458e-05, 6.125e-05, 0, 0, 0),
     [("box", (0, 0.0008, 0.0503), (0.0135, 0.0090, 0.0106), (1, 0, 0, 0))]),
    ((0, 0, 0.0554), (3.276e-05, 0.70712316, -3.276e-05, 0.7070904), 0.1, (0, 0, 0),
     (5.1458e-05, 5.1458e-05, 6.125e-05, 0, 0, 0), [("capsule", (0.0029, -0.0022, 0), (0.0440, -0.0022, 0), 0.0146)]),
    ((0.0514, 0, 0), (1, 0, 0, 0), 0.1, (0, 0, 0), (5.1458e-05, 5.1458e-05, 6.125e-05, 0, 0, 0),
     [("capsule", (0.0010, -0.0012, 0), (0.0368, -0.0012, 0), 0.0143)]),
]  # fmt: skip
THUMB_LIMITS = [
    (0.279244444444, 1.57075),
    (-0.331602777778, 1.15188333333),
    (-0.279244444444, 1.727825),
    (-0.279244444444, 1.76273055556),
]

JOINT_LOWER, JOINT_UPPER = np.array([(-x, x) for x in ARM_LIMITS] + FINGER_LIMITS * 3 + THUMB_LIMITS).T

# Pairs of bodies that overlap within the joint limits, but only because the primitives are larger than the real parts.
# MuJoCo itself ignores contacts between a body and its parent, unless the parent is fixed to the world.
EXCLUDED_PAIRS = [("iiwa7_base", "iiwa7_link_1"), ("iiwa7_link_5", "iiwa7_link_7")]
EXCLUDED_PAIRS += [(PALM_BODY, "%s_link_1" % f) for f in FINGERS] + [(PALM_BODY, "thumb_link_2")]


def add_allegro_kuka(spec, pos, yaw=0.0, prefix=""):
    """Add the robot to a spec: a fixed base, 23 joints and 23 position drives.

    spec: mujoco.MjSpec, changed in place. The base stands at `pos` (m), rotated by `yaw` (rad) about z. All names begin
    with `prefix`, so that one spec can hold several robots.
    """
    spec.compiler.degree = False
    links = [("iiwa7_link_%d" % i, link) for i, link in enumerate(ARM, start=1)]
    for finger in FINGERS:
        links += [("%s_link_%d" % (finger, i), x) for i, x in enumerate(THUMB if finger == "thumb" else FINGER)]
    base_quat = (np.cos(yaw / 2), 0, 0, np.sin(yaw / 2))
    base = add_body(spec.worldbody, prefix + "iiwa7_base", pos, base_quat, *BASE)
    draw_base(base)
    parent = base
    bodies = {}
    for i, (name, (frame_pos, frame_quat, mass, com, inertia, shapes)) in enumerate(links):
        if name.endswith("link_0"):  # a finger's first link is attached to the palm
            parent = bodies[PALM_BODY]
            frame_pos, frame_quat = FINGER_FRAMES[name[: -len("_link_0")]]
        body = add_body(parent, prefix + name, frame_pos, frame_quat, mass, com, inertia, shapes)
        bodies[name] = body
        arm = i < len(ARM)
        if arm:
            draw_arm_link(body, i + 1)
            if name == PALM_BODY:
                draw_palm(body, body.geoms[2], PALM_BOX)
        else:
            draw_finger_link(body, (i - len(ARM)) % 4, thumb=name.startswith("thumb"))
        joint = prefix + JOINT_NAMES[i]
        limits = (JOINT_LOWER[i], JOINT_UPPER[i])
        body.add_joint(
            name=joint,
            axis=(0, 0, 1),
            range=limits,
            armature=0.0 if arm else HAND_ARMATURE,
            damping=(0.0 if arm else HAND_JOINT_DAMPING, 0.0, 0.0),
        )
        drive = (STIFFNESS, DAMPING, ARM_EFFORT) if arm else (HAND_STIFFNESS, HAND_DAMPING, HAND_EFFORT)
        add_position_drive(spec, joint, *drive, limits)
        parent = body
    for a, b in EXCLUDED_PAIRS:
        spec.add_exclude(bodyname1=prefix + a, bodyname2=prefix + b)
