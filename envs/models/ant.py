"""Ant: a ball with four legs of two links each and 8 hinges with torque motors, built from published numbers (0.91 kg).

Lengths are in m, angles in rad. Joint order: hip and ankle of the front left, front right, left back and right back
leg.
"""

import numpy as np

from envs.models.walker import add_hinge, add_root, add_shapes, add_wrench_sensor, make_scene
from envs.models.visuals import BLACK, ORANGE, WHITE, draw

START_HEIGHT = 0.44  # m, of the torso
GEAR = [15.0] * 8  # N m
HIP_LIMIT = np.deg2rad(40)
ANKLE_LIMITS = np.deg2rad([30, 100])
DENSITY = 5.0
FRICTION = 1.5
DAMPING = 0.1  # N m s / rad, of every joint
ARMATURE = 0.01  # kg m^2, of every joint

# Of each leg: the quadrant that it points into, the sign of its ankle's angles, and the ankle's axis
# fmt: off
LEGS = [
    ("front_left",  ( 1,  1),  1, (-1, 1, 0)),
    ("front_right", (-1,  1), -1, ( 1, 1, 0)),
    ("left_back",   (-1, -1), -1, (-1, 1, 0)),
    ("right_back",  ( 1, -1),  1, ( 1, 1, 0)),
]
# fmt: on
FOOT_BODIES = [name + "_foot" for name, *_ in LEGS]
JOINT_NAMES = ["%s_%d" % (joint, i) for i in range(1, 5) for joint in ("hip", "ankle")]
JOINT_LOWER, JOINT_UPPER, DEFAULT_POSE = np.array(
    [
        limits
        for _, _, sign, _ in LEGS
        for limits in ((-HIP_LIMIT, HIP_LIMIT, 0.0), (*sorted(sign * ANKLE_LIMITS), sign * ANKLE_LIMITS[0]))
    ]
).T


def build():
    """The robot on the ground, as a mujoco.MjSpec. Its parts do not collide with each other.

    nu is 8. qpos (15) contains the torso's position (3) and quaternion (4), then the joints. qvel (14) contains the
    torso's linear (world axes) and angular (body axes) velocity, then the joints' velocities. Sensors (24): force and
    torque at each foot.
    """
    spec = make_scene()
    kind = dict(density=DENSITY, friction=FRICTION, self_collision=False, rgba=(*ORANGE, 1))
    torso = add_root(spec, "torso", START_HEIGHT, camera=(1.5, -1.9, 1.0), target=(0, 0, -0.12))
    add_shapes(torso, [((0, 0, 0), 0.25)], **kind)
    for i, (name, (x, y), _, ankle_axis) in enumerate(LEGS):
        knee = (0.2 * x, 0.2 * y, 0)
        tip = (0.4 * x, 0.4 * y, 0)
        leg = torso.add_body(name=name + "_leg", pos=knee)
        foot = leg.add_body(name=name + "_foot", pos=knee)
        for body, end in ((torso, knee), (leg, knee), (foot, tip)):
            add_shapes(body, [((0, 0, 0), end, 0.08)], **kind)
        for body, axis, j in ((leg, (0, 0, 1), 2 * i), (foot, ankle_axis, 2 * i + 1)):
            limits = (JOINT_LOWER[j], JOINT_UPPER[j])
            add_hinge(spec, body, JOINT_NAMES[j], axis, limits, GEAR[j], damping=(DAMPING, 0, 0), armature=ARMATURE)
        add_wrench_sensor(spec, foot)
        draw(leg, "sphere", (0, 0, 0), 0.092, colour=BLACK)
        draw(foot, "sphere", (0, 0, 0), 0.092, colour=BLACK)
        draw(foot, "capsule", (0.86 * tip[0], 0.86 * tip[1], 0), tip, 0.0815, colour=BLACK)
    draw(torso, "ellipsoid", (0, 0, 0.06), (0.235, 0.235, 0.205), colour=BLACK)
    for y in (-0.09, 0.09):  # eyes, which look forward
        draw(torso, "sphere", (0.215, y, 0.09), 0.045, colour=WHITE)
        draw(torso, "sphere", (0.248, y, 0.095), 0.02, colour=BLACK)
    return spec
