"""The right Allegro hand without an arm: palm up, with fingertip pads and 16 hinge joints.

Frames, limits and shapes are those of the hand on the KUKA arm. Masses, pads and drives are different. Units and
quaternions are as in allegro_kuka.py. Joint order: index 0-3, middle 0-3, ring 0-3, thumb 0-3.
"""

import mujoco
import numpy as np

from envs.models.allegro_kuka import FINGER, FINGER_FRAMES, FINGERS, HAND_SPEED, THUMB
from envs.models.allegro_kuka import JOINT_LOWER as ARM_AND_HAND_LOWER
from envs.models.allegro_kuka import JOINT_NAMES as ARM_AND_HAND_JOINTS
from envs.models.allegro_kuka import JOINT_UPPER as ARM_AND_HAND_UPPER
from envs.models.allegro_visuals import draw_finger_link, draw_palm, paint
from envs.models.parts import add_body, add_position_drive
from envs.models.visuals import GREY, SILVER, draw

JOINT_NAMES = ARM_AND_HAND_JOINTS[7:]
JOINT_LOWER = ARM_AND_HAND_LOWER[7:]
JOINT_UPPER = ARM_AND_HAND_UPPER[7:]
PALM_BODY = "allegro_mount"
BASE_POS = (0.0, 0.0, 0.5)
BASE_QUAT = (0.257551, 0.283045, 0.683330, -0.621782)

STIFFNESS = 3.0  # N m / rad
DAMPING = 0.1  # N m s / rad
EFFORT = 0.5  # N m
ARMATURE = 1e-3  # kg m^2
# MuJoCo has no speed limit. With this damping, a drive at full effort reaches the published one.
JOINT_DAMPING = EFFORT / HAND_SPEED  # N m s / rad

MOUNT_SHIFT = np.array([-0.01643800, 0.0, -0.07100000])  # from the arm's last link to this hand's mount
MOUNT = (
    0.4654,
    (-0.007336, -0.0184136, 0.0721728),
    (0.00051079, 0.00049481, 0.00022201, -7.5671e-06, 2.9659e-05, 7.4446e-05),
    [
        ("cylinder", (0, 0, 0), (0, 0, 0.023), 0.0380),
        ("box", (0.0204, 0.0203, 0.0751), (0.0551, 0.0492, 0.0463), (0, 0.38268, 0.92388, 0)),
    ],
)
# Mass, centre of mass and inertia of links 0-3. Of the published inertias, only that of a finger's link 0 is physically
# possible. The others here are those of the same mass, spread evenly over the link's convex hull. Link 3 carries the
# pad.
FINGER_INERTIALS = [
    (0.0119, (0, 0, 0), (1.0167e-06, 6.4768e-07, 1.0167e-06, 0, 0, 0)),
    (0.065, (0.027, -0.002472, 0), (7.1948e-06, 2.9085e-05, 2.8141e-05, 0, 0, 0)),
    (0.0355, (0.021578, -0.002301, 0), (3.7742e-06, 9.3120e-06, 8.5824e-06, 0, 0, 0)),
    (0.0306, (0.036791, 0.002986, 0), (1.5630e-06, 1.1242e-05, 1.1241e-05, -1.5843e-06, 0, 0)),
]
THUMB_INERTIALS = [
    (0.0176, (0.007905, -0.013210, -0.009660), (4.8681e-06, 3.6031e-06, 4.0085e-06, -1.5742e-07, -8.5735e-08, 0)),
    (0.0119, (0, 0.000993, 0.049737), (7.6257e-07, 1.1617e-06, 1.0467e-06, 0, 0, -7.0744e-08)),
    (0.038, (0.022636, -0.002251, 0), (3.9997e-06, 1.4376e-05, 1.3543e-05, -6.3488e-08, 0, 0)),
    (0.0598, (0.033823, 0.000564, 0), (4.9758e-06, 4.1124e-05, 4.0953e-05, -4.2782e-06, -1.5398e-07, 0)),
]
FINGER_PAD = ("capsule", (0.0394, 0.0021, 0), (0.0560, 0.0074, 0), 0.0069)
THUMB_PAD = ("capsule", (0.0547, 0.0018, 0), (0.0712, 0.0072, 0), 0.0069)

# Pairs of bodies that overlap within the joint limits, but only because the primitives are larger than the real parts.
# MuJoCo itself ignores contacts between a body and its parent, unless the parent is fixed to the world.
EXCLUDED_PAIRS = [(PALM_BODY, "%s_link_%d" % (f, i)) for f in FINGERS for i in (0, 1)] + [(PALM_BODY, "thumb_link_2")]


def add_allegro_hand(spec):
    """Add the hand to a mujoco.MjSpec: a fixed base, 16 joints and 16 position drives."""
    spec.compiler.degree = False
    palm = add_body(spec.worldbody, PALM_BODY, BASE_POS, BASE_QUAT, *MOUNT)
    paint(palm, GREY)
    draw_palm(palm, palm.geoms[1], MOUNT[3][1][1])
    _draw_stand(spec, palm)
    for finger in FINGERS:
        thumb = finger == "thumb"
        links, inertials, pad = (THUMB, THUMB_INERTIALS, THUMB_PAD) if thumb else (FINGER, FINGER_INERTIALS, FINGER_PAD)
        parent = palm
        for i, ((pos, quat, _, _, _, shapes), inertial) in enumerate(zip(links, inertials)):
            if i == 0:
                pos, quat = FINGER_FRAMES[finger]
                pos = MOUNT_SHIFT + pos
            parent = add_body(
                parent, "%s_link_%d" % (finger, i), pos, quat, *inertial, shapes + [pad] if i == 3 else shapes
            )
            draw_finger_link(parent, i, thumb, pad=True)
            joint = "%s_joint_%d" % (finger, i)
            j = JOINT_NAMES.index(joint)
            limits = (JOINT_LOWER[j], JOINT_UPPER[j])
            parent.add_joint(
                name=joint, axis=(0, 0, 1), range=limits, armature=ARMATURE, damping=(JOINT_DAMPING, 0.0, 0.0)
            )
            add_position_drive(spec, joint, STIFFNESS, DAMPING, EFFORT, limits)
    for a, b in EXCLUDED_PAIRS:
        spec.add_exclude(bodyname1=a, bodyname2=b)


def _draw_stand(spec, palm):
    """A post on the ground that holds the hand's mount."""
    draw(palm, "capsule", (0, 0, -0.06), (0, 0, 0), 0.03, colour=SILVER)
    elbow = np.zeros(3)
    mujoco.mju_rotVecQuat(elbow, np.array([0.0, 0.0, -0.06]), np.array(BASE_QUAT))
    elbow += BASE_POS
    draw(spec.worldbody, "capsule", elbow * (1, 1, 0), elbow, 0.03, colour=SILVER)
    draw(spec.worldbody, "cylinder", elbow * (1, 1, 0), elbow * (1, 1, 0.04), 0.11, colour=GREY)
