"""The right Shadow hand, built from primitive shapes and published numbers: 24 hinge joints, of which 20 are driven.

Lengths are in m, angles in rad, masses in kg, and inertias in kg m^2. The joints are always in this order: wrist WRJ1
and WRJ0, then first finger, middle finger, ring finger, little finger and thumb (FF, MF, RF, LF, TH), each from base to
tip, that is, with decreasing numbers. At zero, the fingers point along z of the palm body. They bend towards its -y.
"""

import numpy as np

from envs.models.parts import add_position_drive, add_shape
from envs.models.visuals import BLACK, GREY, HIDDEN, SILVER, WHITE, draw

BASE_POS = (0, 0, 0.5)
BASE_QUAT = (0, 0, -1, 1)  # not normalised; the fingers point along -y of the world, the palm up
FINGERTIP_BODIES = ["ffdistal", "mfdistal", "rfdistal", "lfdistal", "thdistal"]
X = (1, 0, 0)
Y = (0, 1, 0)

# Of each body: name, parent, position in the parent, mass and centre of mass; of its joint: name, axis, limits and
# effort limit (N m; None: no drive); then shapes. A shape is a capsule (end, end, radius) or a box (centre, half edges)
# in body axes. At zero, all frames except the thumb's are parallel. The forearm is fixed to the world, and a capsule
# replaces its mesh.
FOREARM = (
    "forearm",
    (0, 0.01, 0),
    4.0,
    (0.001, -0.002, 0.29),
    0.01,
    [("capsule", (0, 0.01, 0.085), (0, 0.01, 0.189), 0.0675)],
)
BODIES = [
    ("wrist", "forearm", (0, 0, 0.256), 0.3, (0.003, 0, 0.016), "WRJ1", Y, (-0.489, 0.14), 4.785,
     [("capsule", (0, 0.01, 0), (0, -0.01, 0), 0.015)]),
    ("palm", "wrist", (0, 0, 0.034), 0.3, (0.006, 0, 0.036), "WRJ0", X, (-0.698, 0.489), 2.175,
     [("box", (0.011, 0, 0.038), (0.032, 0.0111, 0.049)), ("box", (-0.032, 0, 0.014), (0.011, 0.0111, 0.025))]),

    ("ffknuckle", "palm", (0.033, 0, 0.095), 0.008, (0, 0, 0), "FFJ3", Y, (-0.349, 0.349), 0.9, []),
    ("ffproximal", "ffknuckle", (0, 0, 0), 0.014, (0, 0, 0.023), "FFJ2", X, (0, 1.571), 0.9,
     [("capsule", (0, 0, 0), (0, 0, 0.045), 0.01)]),
    ("ffmiddle", "ffproximal", (0, 0, 0.045), 0.012, (0, 0, 0.011), "FFJ1", X, (0, 1.571), 0.7245,
     [("capsule", (0, 0, 0), (0, 0, 0.025), 0.00805)]),
    ("ffdistal", "ffmiddle", (0, 0, 0.025), 0.01, (0, 0, 0.015), "FFJ0", X, (0, 1.571), None,
     [("capsule", (0, 0, 0), (0, 0, 0.024), 0.00705)]),

    ("mfknuckle", "palm", (0.011, 0, 0.099), 0.008, (0, 0, 0), "MFJ3", Y, (-0.349, 0.349), 0.9, []),
    ("mfproximal", "mfknuckle", (0, 0, 0), 0.014, (0, 0, 0.023), "MFJ2", X, (0, 1.571), 0.9,
     [("capsule", (0, 0, 0), (0, 0, 0.045), 0.01)]),
    ("mfmiddle", "mfproximal", (0, 0, 0.045), 0.012, (0, 0, 0.012), "MFJ1", X, (0, 1.571), 0.7245,
     [("capsule", (0, 0, 0), (0, 0, 0.025), 0.00805)]),
    ("mfdistal", "mfmiddle", (0, 0, 0.025), 0.01, (0, 0, 0.015), "MFJ0", X, (0, 1.571), None,
     [("capsule", (0, 0, 0), (0, 0, 0.024), 0.00705)]),

    ("rfknuckle", "palm", (-0.011, 0, 0.095), 0.008, (0, 0, 0), "RFJ3", Y, (-0.349, 0.349), 0.9, []),
    ("rfproximal", "rfknuckle", (0, 0, 0), 0.014, (0, 0, 0.023), "RFJ2", X, (0, 1.571), 0.9,
     [("capsule", (0, 0, 0), (0, 0, 0.045), 0.01)]),
    ("rfmiddle", "rfproximal", (0, 0, 0.045), 0.012, (0, 0, 0.012), "RFJ1", X, (0, 1.571), 0.7245,
     [("capsule", (0, 0, 0), (0, 0, 0.025), 0.00805)]),
    ("rfdistal", "rfmiddle", (0, 0, 0.025), 0.01, (0, 0, 0.015), "RFJ0", X, (0, 1.571), None,
     [("capsule", (0, 0, 0), (0, 0, 0.024), 0.00705)]),

    ("lfmetacarpal", "palm", (-0.017, 0, 0.044), 0.075, (-0.014, 0.001, 0.014),
     "LFJ4", (0.5709766, 0, 0.8209663), (0, 0.785), 0.9, [("box", (-0.0165, 0, 0.01), (0.0095, 0.0111, 0.025))]),
    ("lfknuckle", "lfmetacarpal", (-0.017, 0, 0.044), 0.008, (0, 0, 0), "LFJ3", Y, (-0.349, 0.349), 0.9, []),
    ("lfproximal", "lfknuckle", (0, 0, 0), 0.014, (0, 0, 0.023), "LFJ2", X, (0, 1.571), 0.9,
     [("capsule", (0, 0, 0), (0, 0, 0.045), 0.01)]),
    ("lfmiddle", "lfproximal", (0, 0, 0.045), 0.012, (0, 0, 0.012), "LFJ1", X, (0, 1.571), 0.7245,
     [("capsule", (0, 0, 0), (0, 0, 0.025), 0.00805)]),
    ("lfdistal", "lfmiddle", (0, 0, 0.025), 0.01, (0, 0, 0.015), "LFJ0", X, (0, 1.571), None,
     [("capsule", (0, 0, 0), (0, 0, 0.024), 0.00705)]),

    ("thbase", "palm", (0.034, -0.009, 0.029), 0.01, (0, 0, 0), "THJ4", (0, 0, -1), (-1.047, 1.047), 2.3722, []),
    ("thproximal", "thbase", (0, 0, 0), 0.016, (0, 0, 0.017), "THJ3", X, (0, 1.222), 1.45,
     [("capsule", (0, 0, 0), (0, 0, 0.038), 0.013)]),
    ("thhub", "thproximal", (0, 0, 0.038), 0.002, (0, 0, 0), "THJ2", X, (-0.209, 0.209), 0.99, []),
    ("thmiddle", "thhub", (0, 0, 0), 0.016, (0, 0, 0.016), "THJ1", Y, (-0.524, 0.524), 0.99,
     [("capsule", (0, 0, 0), (0, 0, 0.032), 0.011)]),
    ("thdistal", "thmiddle", (0, 0, 0.032), 0.016, (0, 0, 0.016), "THJ0", Y, (-1.571, 0), 0.81,
     [("capsule", (0, 0, 0), (0, 0, 0.026), 0.00918)]),
]  # fmt: skip
THUMB_QUAT = (0.9239557, 0, 0.3824995, 0)  # of thbase in the palm

JOINT_NAMES = [body[5] for body in BODIES]
JOINT_LOWER, JOINT_UPPER = np.array([body[7] for body in BODIES]).T
DRIVEN = [i for i, body in enumerate(BODIES) if body[8] is not None]  # the 20 joints that have drives

# Stiffness (N m / rad), damping (N m s / rad) and armature of a joint, and inertia of its body about every axis. The
# published friction of 0.001 is left out, because it is PhysX's load-dependent coefficient and not a torque.
WRIST = (5.0, 0.5, 0.005, 1e-3)
FINGER = (1.0, 0.1, 0.001, 1e-5)

# A tendon couples the last two joints of each finger: |0.00705 q0 - 0.00805 q1| <= 1 mm. So q0, which has no drive,
# follows q1 with a slack of 0.14 rad. The published spring beyond the slack, 30 N m / rad at q0, would oscillate at 170
# rad/s, which is too fast for a substep of 8 ms. MuJoCo's softer limit replaces it. With it, q0 exceeds the slack by up
# to 0.06 rad, and at rest by 0.006 rad. The published damping, 0.1 N m s / rad at q0, also acts within the slack.
TENDON_ARMS = (0.00705, -0.00805)  # m / rad
TENDON_SLACK = 0.001  # m
TENDON_DAMPING = 0.1 / TENDON_ARMS[0] ** 2  # N s / m
COUPLED = [("FFJ0", "FFJ1"), ("MFJ0", "MFJ1"), ("RFJ0", "RFJ1"), ("LFJ0", "LFJ1")]  # q0, q1

# The parts of the hand that collide with each other, without friction. All parts collide with the cube.
TOUCHING_PAIRS = [
    ("palm", "thdistal"), ("ffproximal", "mfproximal"), ("mfproximal", "rfproximal"), ("rfproximal", "lfproximal"),
    ("ffproximal", "thdistal"), ("mfproximal", "thdistal"), ("ffmiddle", "thdistal"), ("ffdistal", "thdistal"),
    ("mfdistal", "thdistal"), ("rfdistal", "thdistal"), ("lfdistal", "thdistal"), ("ffdistal", "mfdistal"),
    ("mfdistal", "rfdistal"), ("mfdistal", "lfdistal"), ("rfdistal", "lfdistal"), ("rfmiddle", "lfmiddle"),
    ("rfmiddle", "lfdistal"), ("rfdistal", "lfmiddle"),
]  # fmt: skip


def add_shadow_hand(spec):
    """Add the hand to a mujoco.MjSpec: a fixed base, 24 joints and 20 position drives."""
    spec.compiler.degree = False
    mount = spec.worldbody.add_body(name="mount", pos=BASE_POS, quat=BASE_QUAT, mass=0.1, inertia=(1e-3, 1e-3, 1e-3))
    bodies = {"forearm": _add_body(mount, *FOREARM)}
    for name, parent, place, mass, com, joint, axis, limits, effort, shapes in BODIES:
        stiffness, damping, armature, inertia = WRIST if joint.startswith("WR") else FINGER
        body = _add_body(bodies[parent], name, place, mass, com, inertia, shapes)
        bodies[name] = body
        body.add_joint(name=joint, axis=axis, range=limits, armature=armature, damping=(damping, 0.0, 0.0))
        if effort is not None:
            add_position_drive(spec, joint, stiffness, 0.0, effort, limits)  # the joint itself is damped
    bodies["thbase"].quat = THUMB_QUAT
    _draw_details(spec, bodies)

    for joints in COUPLED:
        tendon = spec.add_tendon(name=joints[0], limited=True, range=(-TENDON_SLACK, TENDON_SLACK))
        tendon.damping = (TENDON_DAMPING, 0.0, 0.0)
        for joint, arm in zip(joints, TENDON_ARMS):
            tendon.wrap_joint(joint, arm)
    for first, second in TOUCHING_PAIRS:
        spec.add_pair(geomname1=first, geomname2=second, condim=1)


def _add_body(parent, name, pos, mass, com, inertia, shapes):
    # gravcomp, because in the task no gravity acts on the hand
    body = parent.add_body(name=name, pos=pos, mass=mass, ipos=com, inertia=[inertia] * 3, gravcomp=1)
    body.explicitinertial = True
    # conaffinity 0, so that parts of the hand collide only as listed in TOUCHING_PAIRS
    look = dict(contype=1, conaffinity=0, rgba=(0.3, 0.3, 0.33, 1))
    for i, (kind, *numbers) in enumerate(shapes):
        add_shape(body, kind, *numbers, name=name if i == 0 else "", **look)
    return body


def _draw_details(spec, bodies):
    """Draw the stand, the ends of the forearm, a rounded palm in place of its boxes, the joints and the fingertips."""
    y = BASE_POS[1] - 0.11
    z = BASE_POS[2]
    draw(spec.worldbody, "cylinder", (0, y, 0), (0, y, z - 0.03), 0.035, colour=GREY)
    draw(spec.worldbody, "cylinder", (0, y, 0), (0, y, 0.02), 0.13, colour=GREY)
    forearm = bodies["forearm"]
    forearm.geoms[0].rgba = (*BLACK, 1)
    draw(forearm, "cylinder", (0, 0.01, 0.0), (0, 0.01, 0.085), 0.0675, colour=BLACK)
    draw(forearm, "cylinder", (0, 0.01, -0.012), (0, 0.01, 0.0), 0.06, colour=SILVER)
    for low, high, radius, colour in (
        (0.075, 0.085, 0.0685, SILVER),
        (0.180, 0.190, 0.0685, SILVER),
        (0.19, 0.235, 0.05, GREY),
        (0.23, 0.262, 0.033, SILVER),
    ):
        y = 0.01 if radius > 0.06 else 0.0
        draw(forearm, "cylinder", (0, y, low), (0, y, high), radius, colour=colour)
    draw(bodies["wrist"], "capsule", (-0.02, 0, 0), (0.02, 0, 0), 0.016, colour=GREY)
    draw(bodies["wrist"], "capsule", (0, 0, 0), (0, 0, 0.034), 0.016, colour=SILVER)

    palm = bodies["palm"]
    side = bodies["lfmetacarpal"]
    for geom in (*palm.geoms, *side.geoms):
        geom.group = HIDDEN
    draw(palm, "capsule", (-0.026, 0, 0.002), (0.026, 0, -0.004), 0.014, colour=BLACK)
    draw(palm, "box", (0.006, 0, 0.044), (0.030, 0.0105, 0.044), colour=BLACK)
    for x, top in ((0.033, 0.082), (0.011, 0.086), (-0.011, 0.082), (-0.024, 0.045)):
        draw(palm, "capsule", (0.8 * x, 0, 0.0), (x, 0, top), 0.0122, colour=BLACK)
    draw(side, "capsule", (-0.017, 0, -0.02), (-0.017, 0, 0.033), 0.0118, colour=BLACK)
    draw(palm, "ellipsoid", (0.026, -0.008, 0.024), (0.017, 0.012, 0.026), colour=BLACK)
    draw(palm, "box", (0.006, -0.0112, 0.052), (0.026, 0.0012, 0.030), colour=GREY)

    for finger in ("ff", "mf", "rf", "lf"):
        for link, radius in (("proximal", 0.0106), ("middle", 0.0092), ("distal", 0.0078)):
            half = radius + 0.0008
            draw(bodies[finger + link], "cylinder", (-half, 0, 0), (half, 0, 0), 0.9 * radius, colour=SILVER)
        draw(bodies[finger + "distal"], "capsule", (0, 0, 0.011), (0, 0, 0.024), 0.0073, colour=WHITE)
    draw(bodies["thproximal"], "sphere", (0, 0, 0), 0.0145, colour=SILVER)
    draw(bodies["thmiddle"], "cylinder", (0, -0.0125, 0), (0, 0.0125, 0), 0.0105, colour=SILVER)
    draw(bodies["thdistal"], "cylinder", (0, -0.0112, 0), (0, 0.0112, 0), 0.0095, colour=SILVER)
    draw(bodies["thdistal"], "capsule", (0, 0, 0.014), (0, 0, 0.026), 0.0094, colour=WHITE)
