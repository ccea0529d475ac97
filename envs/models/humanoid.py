"""Humanoid: a body of capsules with 21 hinges that have springs, dampers and torque motors (40.8 kg).

It is built from published numbers. Lengths are in m, and angles in the tables are in degrees. The joints are always in
the order of the table.
"""

import numpy as np

from envs.models.walker import add_hinge, add_limit_sensor, add_root, add_shapes, add_wrench_sensor, make_scene
from envs.models.visuals import BLACK, WHITE, draw

START_HEIGHT = 1.34  # m, of the torso
DENSITY = 1000.0
FRICTION = 1.0
TILT = (1, 0, -0.002, 0)  # of the two lower parts of the trunk
FOOT_BODIES = ["right_foot", "left_foot"]
SKIN = (0.90, 0.71, 0.55)
SHIRT = (0.20, 0.45, 0.75)
TROUSERS = (0.25, 0.28, 0.36)

# Of each link: parent, position in the parent, and shapes as add_shapes takes them
# fmt: off
LINKS = {
    "head":            ("torso",           (0, 0, 0.19),         [((0, 0, 0), 0.09)]),
    "lower_waist":     ("torso",           (-0.01, 0, -0.26),    [((0, 0.06, 0), (0, -0.06, 0), 0.06)]),
    "pelvis":          ("lower_waist",     (0, 0, -0.165),       [((-0.02, 0.07, 0), (-0.02, -0.07, 0), 0.09)]),
    "right_thigh":     ("pelvis",          (0, -0.1, -0.04),     [((0, 0, 0), (0, 0.01, -0.34), 0.06)]),
    "right_shin":      ("right_thigh",     (0, 0.01, -0.403),    [((0, 0, 0), (0, 0, -0.3), 0.049)]),
    "right_foot":      ("right_shin",      (0, 0, -0.39),        [((-0.07, -0.02, 0), (0.14, -0.04, 0), 0.027),
                                                                  ((-0.07, 0, 0), (0.14, 0.02, 0), 0.027)]),
    "left_thigh":      ("pelvis",          (0, 0.1, -0.04),      [((0, 0, 0), (0, -0.01, -0.34), 0.06)]),
    "left_shin":       ("left_thigh",      (0, -0.01, -0.403),   [((0, 0, 0), (0, 0, -0.3), 0.049)]),
    "left_foot":       ("left_shin",       (0, 0, -0.39),        [((-0.07, 0.02, 0), (0.14, 0.04, 0), 0.027),
                                                                  ((-0.07, 0, 0), (0.14, -0.02, 0), 0.027)]),
    "right_upper_arm": ("torso",           (0, -0.17, 0.06),     [((0, 0, 0), (0.16, -0.16, -0.16), 0.04)]),
    "right_lower_arm": ("right_upper_arm", (0.18, -0.18, -0.18), [((0.01, 0.01, 0.01), (0.17, 0.17, 0.17), 0.031)]),
    "right_hand":      ("right_lower_arm", (0.18, 0.18, 0.18),   [((0, 0, 0), 0.04)]),
    "left_upper_arm":  ("torso",           (0, 0.17, 0.06),      [((0, 0, 0), (0.16, 0.16, -0.16), 0.04)]),
    "left_lower_arm":  ("left_upper_arm",  (0.18, 0.18, -0.18),  [((0.01, -0.01, 0.01), (0.17, -0.17, 0.17), 0.031)]),
    "left_hand":       ("left_lower_arm",  (0.18, -0.18, 0.18),  [((0, 0, 0), 0.04)]),
}
TORSO = [((0, 0.07, 0), (0, -0.07, 0), 0.07), ((-0.01, 0.06, -0.12), (-0.01, -0.06, -0.12), 0.06)]

# Of each joint: link, height of the anchor in it, axis, limits, spring (N m / rad), damper (N m s / rad), armature
# (kg m^2) and gear (N m)
JOINTS = {
    "abdomen_z":       ("lower_waist",     0.065, (0, 0, 1),    (-45, 45),  20, 5,   0.02,  67.5),
    "abdomen_y":       ("lower_waist",     0.065, (0, 1, 0),    (-75, 30),  20, 5,   0.01,  67.5),
    "abdomen_x":       ("pelvis",          0.1,   (1, 0, 0),    (-35, 35),  10, 5,   0.01,  67.5),
    "right_hip_x":     ("right_thigh",     0,     (1, 0, 0),    (-45, 15),  10, 5,   0.01,  45),
    "right_hip_z":     ("right_thigh",     0,     (0, 0, 1),    (-60, 35),  10, 5,   0.01,  45),
    "right_hip_y":     ("right_thigh",     0,     (0, 1, 0),    (-120, 45), 20, 5,   0.01,  135),
    "right_knee":      ("right_shin",      0.02,  (0, -1, 0),   (-160, 2),  5,  0.1, 0.007, 90),
    "right_ankle_y":   ("right_foot",      0.08,  (0, 1, 0),    (-50, 50),  2,  1,   0.006, 22.5),
    "right_ankle_x":   ("right_foot",      0.08,  (1, 0, 0.5),  (-50, 50),  2,  1,   0.006, 22.5),
    "left_hip_x":      ("left_thigh",      0,     (-1, 0, 0),   (-45, 15),  10, 5,   0.01,  45),
    "left_hip_z":      ("left_thigh",      0,     (0, 0, -1),   (-60, 35),  10, 5,   0.01,  45),
    "left_hip_y":      ("left_thigh",      0,     (0, 1, 0),    (-120, 45), 20, 5,   0.01,  135),
    "left_knee":       ("left_shin",       0.02,  (0, -1, 0),   (-160, 2),  5,  0.1, 0.007, 90),
    "left_ankle_y":    ("left_foot",       0.08,  (0, 1, 0),    (-50, 50),  2,  1,   0.006, 22.5),
    "left_ankle_x":    ("left_foot",       0.08,  (1, 0, 0.5),  (-50, 50),  2,  1,   0.006, 22.5),
    "right_shoulder1": ("right_upper_arm", 0,     (2, 1, 1),    (-90, 70),  10, 5,   0.01,  67.5),
    "right_shoulder2": ("right_upper_arm", 0,     (0, -1, 1),   (-90, 70),  10, 5,   0.01,  67.5),
    "right_elbow":     ("right_lower_arm", 0,     (0, -1, 1),   (-90, 50),  2,  1,   0.006, 45),
    "left_shoulder1":  ("left_upper_arm",  0,     (-2, 1, -1),  (-90, 70),  10, 5,   0.01,  67.5),
    "left_shoulder2":  ("left_upper_arm",  0,     (0, -1, -1),  (-90, 70),  10, 5,   0.01,  67.5),
    "left_elbow":      ("left_lower_arm",  0,     (0, -1, -1),  (-90, 50),  2,  1,   0.006, 45),
}
# fmt: on
JOINT_NAMES = list(JOINTS)
JOINT_LOWER, JOINT_UPPER = np.deg2rad([limits for _, _, _, limits, *_ in JOINTS.values()]).T
DEFAULT_POSE = np.zeros(len(JOINTS))
GEAR = [gear for *_, gear in JOINTS.values()]


def build():
    """The robot on the ground, as a mujoco.MjSpec. Its parts collide with each other.

    nu is 21. qpos (28) contains the torso's position (3) and quaternion (4), then the joints. qvel (27) contains the
    torso's linear (world axes) and angular (body axes) velocity, then the joints' velocities. Sensors (33): force and
    torque at the right and the left foot, then the torques of the joint limits.
    """
    spec = make_scene()
    kind = dict(density=DENSITY, friction=FRICTION, self_collision=True, rgba=(*SKIN, 1))
    bodies = {"torso": add_root(spec, "torso", START_HEIGHT, camera=(1.9, -2.1, 0.2), target=(0, 0, -0.28))}
    add_shapes(bodies["torso"], TORSO, **kind)
    for name, (parent, pos, shapes) in LINKS.items():
        quat = TILT if name in ("lower_waist", "pelvis") else (1, 0, 0, 0)
        bodies[name] = bodies[parent].add_body(name=name, pos=pos, quat=quat)
        add_shapes(bodies[name], shapes, **kind)
    for name, (link, height, axis, limits, stiffness, damping, armature, gear) in JOINTS.items():
        add_hinge(
            spec,
            bodies[link],
            name,
            axis,
            np.deg2rad(limits),
            gear,
            pos=(0, 0, height),
            stiffness=(stiffness, 0, 0),
            damping=(damping, 0, 0),
            armature=armature,
        )
    _draw_details(bodies)
    for name in FOOT_BODIES:
        add_wrench_sensor(spec, bodies[name])
    for name in JOINTS:
        add_limit_sensor(spec, name)
    return spec


def _draw_details(bodies):
    """Draw clothes, a face that shows the forward direction, and shapes that close gaps between the links."""
    for name, colour in (("torso", SHIRT), ("lower_waist", SHIRT), ("pelvis", TROUSERS)):
        for geom in bodies[name].geoms:
            geom.rgba = (*colour, 1)
    torso = bodies["torso"]
    head = bodies["head"]
    draw(torso, "capsule", (0, 0, 0.05), (0, 0, 0.12), 0.045, colour=SKIN)
    draw(torso, "ellipsoid", (-0.005, 0, -0.04), (0.075, 0.125, 0.13), colour=SHIRT)
    draw(torso, "ellipsoid", (-0.012, 0, -0.19), (0.058, 0.105, 0.10), colour=SHIRT)
    draw(bodies["lower_waist"], "ellipsoid", (-0.005, 0, -0.08), (0.066, 0.115, 0.10), colour=SHIRT)
    draw(head, "ellipsoid", (-0.012, 0, 0.022), (0.086, 0.092, 0.082), colour=(0.30, 0.20, 0.13))
    for y in (-0.033, 0.033):
        draw(head, "sphere", (0.076, y, 0.012), 0.018, colour=WHITE)
        draw(head, "sphere", (0.089, y, 0.012), 0.009, colour=BLACK)
    for side, sign in (("right", -1), ("left", 1)):
        draw(torso, "sphere", (0, sign * 0.15, 0.05), 0.055, colour=SHIRT)
        draw(bodies[side + "_thigh"], "capsule", (0, 0, 0), (0, -0.007 * sign, -0.24), 0.0615, colour=TROUSERS)
        draw(bodies[side + "_thigh"], "capsule", (0, -0.01 * sign, -0.34), (0, -0.01 * sign, -0.40), 0.050, colour=SKIN)
        draw(bodies[side + "_shin"], "capsule", (0, 0, -0.28), (0, 0, -0.375), 0.036, colour=SKIN)
        arm = bodies[side + "_lower_arm"]
        draw(bodies[side + "_upper_arm"], "sphere", (0.175, 0.175 * sign, -0.175), 0.038, colour=SKIN)
        draw(bodies[side + "_upper_arm"], "capsule", (0, 0, 0), (0.06, 0.06 * sign, -0.06), 0.043, colour=SHIRT)
        draw(arm, "capsule", (0.16, -0.16 * sign, 0.16), (0.18, -0.18 * sign, 0.18), 0.028, colour=SKIN)
        for geom in bodies[side + "_foot"].geoms:
            geom.rgba = (*BLACK, 1)
