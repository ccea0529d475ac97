"""The scenes of the AllegroKuka tasks: one or two KUKA arms with Allegro hands, a table, a free box, and the goal."""

import itertools
from typing import NamedTuple, Optional, Tuple

import mujoco
import numpy as np

from envs.models.allegro_kuka import (  # noqa: F401, tasks import the robot's numbers from here
    ARM_LEAD,
    DEFAULT_POSE,
    FINGERTIP_BODIES,
    FINGERTIP_OFFSETS,
    JOINT_LOWER,
    JOINT_NAMES,
    JOINT_UPPER,
    PALM_BODY,
    PALM_OFFSET,
    add_allegro_kuka,
)
from envs.models.visuals import (
    GOAL,
    GREY,
    RED,
    WHITE,
    WOOD,
    add_camera,
    add_surroundings,
    draw,
    draw_faces,
    draw_goal_box,
)

CONTROL_PERIOD = 0.01667  # s, one control step
SUBSTEPS = 2  # four do not make grasps firmer
TIMESTEP = CONTROL_PERIOD / SUBSTEPS

CONTACT_IMPEDANCE = (0.99, 0.99, 0.001, 0.5, 2.0)  # MuJoCo's solimp; it halves how deep objects penetrate
# MuJoCo's solref: time constant (s) and damping ratio. The ratio is for objects that are caught deep inside the hand.
# When they overlap by more than 4 cm, a damping ratio of 1 ejects one object in ten at 4 to 80 m/s, and 1.5 ejects one
# in a hundred at 4 m/s. With 1.5, grasps do not slip more, but a hard squeeze penetrates 1.5 times as deep.
CONTACT_RESPONSE = (0.02, 1.5)

TABLE_POS = (0.0, 0.0, 0.38)
TABLE_TOP = 0.53  # m


class Layout(NamedTuple):
    """Where the robots stand and their default pose. Lengths are in m, angles in rad."""

    prefixes: Tuple[str, ...]  # of the names of each robot's bodies and joints
    positions: Tuple[Tuple[float, float, float], ...]  # of their bases
    yaws: Tuple[float, ...]
    pose: np.ndarray  # (23,) default of each robot
    table_size: Tuple[float, float, float]  # full edges
    camera: tuple  # position and target (3,) m, vertical field of view in degrees


ONE_ARM = Layout(
    prefixes=("",),
    positions=((0.0, 0.8, 0.0),),
    yaws=(0.0,),
    pose=DEFAULT_POSE,
    table_size=(0.475, 0.4, 0.3),
    camera=((1.35, -0.85, 1.02), (0.0, 0.3, 0.6), 38.0),
)
TWO_ARMS = Layout(
    prefixes=("arm0_", "arm1_"),
    positions=((-1.1, 0.0, 0.0), (1.1, 0.0, 0.0)),
    yaws=(np.pi / 2, -np.pi / 2),
    pose=np.concatenate([DEFAULT_POSE[:3], [1.6], DEFAULT_POSE[4:]]),
    table_size=(1.1, 0.4, 0.3),
    camera=((0.6, -2.5, 1.5), (0.0, 0.0, 0.6), 41.0),
)


class Obstacle(NamedTuple):
    """An upright board across the middle of the table, in the plane x = 0. Lengths in m, heights above the table."""

    width: float  # along y
    height: float
    opening: Optional[Tuple[float, float, float]] = None  # width, lower edge and upper edge
    loose: bool = False  # whether it stands freely instead of being fixed
    thickness: float = 0.02


OBSTACLE_BODY = "obstacle"
OBSTACLE_DENSITY = 400.0  # kg / m^3, a light wood
OBJECT_BODY = "object"
GOAL_BODY = "goal"
OBJECT_BASE_SIZE = 0.05  # m, edge of the box with scale 1
OBJECT_DENSITY = 400.0  # kg / m^3
OBJECT_START = (0.0, 0.0, 0.63)
GOAL_RADIUS = 0.01875  # m

# The bucket of Throw, an open frustum with twelve walls. Heights (m) are above its underside, radii (m) to the inner
# corners.
BUCKET_SIDES = 12
BUCKET_FLOOR = 0.0099
BUCKET_FLOOR_RADIUS = 0.0705
BUCKET_RIM = 0.1977
BUCKET_RIM_RADIUS = 0.1034
BUCKET_RIM_OUTER_RADIUS = 0.12
BUCKET_WALL = 0.0142  # at 4 m/s 1.5 % of thrown objects pass through it, at 7 m/s 24 %; 3 cm would halve that
BUCKET_FLOOR_DEPTH = 0.04  # four times the original's, downwards: an object may fall 4 cm in a substep
BUCKET_GOAL = 0.05  # height of the goal above the underside
BUCKET_POST = 1.1  # m, longer than the bucket is ever high; the rest is below the ground


def object_scales(families=("small", "big", "sticks")):
    """Scales (boxes, 3) of the task's boxes along x, y and z, in multiples of OBJECT_BASE_SIZE.

    A family has all boxes with the given edges (in percent) whose volume is within limits. All three families together
    have 947 boxes (938 distinct ones), and "small" has 654. World i uses row i modulo the number of boxes. The order is
    that of the published task: sorted by name, then shuffled once.
    """
    small = [100, 50, 66, 75, 90, 110, 125, 150, 175, 200, 250, 300]
    big = [100, 125, 150, 200, 250, 300, 350]
    sticks = [100, 50, 75, 200, 300, 400, 500, 600]
    named = []
    for family, edges, low, high in (("small", small, 1.0, 2.5), ("big", big, 2.5, 15.0), ("sticks", sticks, 2.5, 6.0)):
        if family not in families:
            continue
        boxes = []
        for box in itertools.product(edges, repeat=3):
            shortest, middle, longest = sorted(box)
            plate = family != "small" and 3 * shortest <= middle
            stubby = family == "sticks" and longest <= 3 * middle
            if low <= np.prod(box) / 1e6 <= high and not plate and not stubby:
                boxes.append(box)
        named += [("%03d_cube_%d_%d_%d" % ((i,) + box), box) for i, box in enumerate(boxes)]
    scales = np.array([box for _, box in sorted(named)]) / 100.0
    np.random.default_rng(42).shuffle(scales)
    return scales


def build_scene(object_scale=(1.0, 1.0, 1.0), goal="ball", layout=ONE_ARM, obstacle=None):
    """The scene with a box of the given scale (3,), as a mujoco.MjSpec.

    goal: what the mocap body GOAL_BODY is: a "ball" or a "copy" of the object, which are only drawn, or a "bucket".
    obstacle: an Obstacle or None.
    nu is 23 per robot. qpos contains the joints of the robots, then the object's position (3) and quaternion (4, wxyz).
    qvel contains the velocities of the joints, then the linear (world axes) and angular (body axes) velocity of the
    object. The coordinates of a loose obstacle follow those of the object.
    """
    spec = mujoco.MjSpec()
    spec.option.timestep = TIMESTEP
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    # This is an upper limit; the average is two. A hand that crushes an object needs 34 iterations. When the solver was
    # stopped after 20, the remaining forces threw the object at 10 m/s; the converged ones moved it at 0.8 m/s.
    spec.option.iterations = 100
    # With MuJoCo's defaults, a cube that is held in the air for 2 s is lost. It slips by 3 mm with an elliptic cone, by
    # 0.3 mm if impratio is also 10, and by 0.06 mm if contacts are also stiffer. None of this makes steps slower.
    spec.option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    spec.option.impratio = 10.0
    spec.default.geom.solimp = CONTACT_IMPEDANCE
    spec.default.geom.solref = CONTACT_RESPONSE
    add_surroundings(spec, aim=(0.0, 0.3, 0.4), span=4.0)

    world = spec.worldbody
    world.add_geom(name="ground", type=mujoco.mjtGeom.mjGEOM_PLANE, size=(0, 0, 1), material="ground")
    world.add_geom(
        name="table",
        type=mujoco.mjtGeom.mjGEOM_BOX,
        pos=TABLE_POS,
        size=np.array(layout.table_size) / 2,
        rgba=(*WOOD, 1),
    )
    width, depth, thickness = layout.table_size
    for side in (-1, 1):  # only drawn: the table floats, like the original's
        foot = np.array(TABLE_POS) + (side * 0.36 * width, 0, -TABLE_POS[2])
        top = TABLE_POS[2] - thickness / 2
        draw(world, "box", foot + (0, 0, top / 2), (0.025, 0.4 * depth, top / 2), colour=GREY)
        draw(world, "box", foot + (0, 0, 0.01), (0.045, 0.47 * depth, 0.01), colour=GREY)
    for pos, yaw, prefix in zip(layout.positions, layout.yaws, layout.prefixes):
        add_allegro_kuka(spec, pos, yaw, prefix)

    body = world.add_body(name=OBJECT_BODY, pos=OBJECT_START)
    body.add_freejoint(name="object")  # not damped, because the damping of a free joint would also slow down a fall
    half_edges = 0.5 * OBJECT_BASE_SIZE * np.asarray(object_scale)
    body.add_geom(
        name="object", type=mujoco.mjtGeom.mjGEOM_BOX, size=half_edges, density=OBJECT_DENSITY, rgba=(*WHITE, 1)
    )
    draw_faces(body, half_edges)
    if obstacle:
        _add_obstacle(world, obstacle)
    _add_goal(world.add_body(name=GOAL_BODY, mocap=True), goal, half_edges)
    if goal == "bucket":  # it may stand far away on either side
        for side, name in ((1, "overview_right"), (-1, "overview_left")):
            add_camera(world, name, (-1.0 * side, -2.7, 1.55), (0.36 * side, 0.0, 0.56), fovy=39.0)
    else:
        add_camera(world, "overview", *layout.camera)
    return spec


def _add_obstacle(world, obstacle):
    """Add the board: one box or, around an opening, up to four."""
    width = obstacle.width
    height = obstacle.height
    panels = [(-width / 2, width / 2, 0.0, height)]  # from y to y, from z to z
    if obstacle.opening:
        opening, low, high = obstacle.opening
        panels = [
            (-width / 2, width / 2, 0.0, low),
            (-width / 2, width / 2, high, height),
            (-width / 2, -opening / 2, low, high),
            (opening / 2, width / 2, low, high),
        ]
        panels = [panel for panel in panels if panel[0] < panel[1]]
    body = world.add_body(name=OBSTACLE_BODY, pos=(0.0, 0.0, TABLE_TOP))
    if obstacle.loose:
        body.add_freejoint(name=OBSTACLE_BODY)
    for left, right, bottom, top in panels:
        body.add_geom(
            type=mujoco.mjtGeom.mjGEOM_BOX,
            pos=(0.0, (left + right) / 2, (bottom + top) / 2),
            size=(obstacle.thickness / 2, (right - left) / 2, (top - bottom) / 2),
            density=OBSTACLE_DENSITY,
            rgba=(0.55, 0.6, 0.75, 0.6),
        )


def _add_goal(body, goal, half_edges):
    """Add the marker at the goal, whose position is the origin of `body`. half_edges (3,) m of the object."""
    if goal == "bucket":
        _add_bucket(body)
    elif goal == "ball":
        draw(body, "sphere", (0, 0, 0), GOAL_RADIUS, colour=GOAL).castshadow = False
    else:
        draw_goal_box(body, half_edges)


def _add_bucket(body):
    """Add twelve solid walls and a solid floor. The inner faces of the walls have exactly the published dimensions."""
    per_radius = np.cos(np.pi / BUCKET_SIDES)  # ratio of a polygon's inradius to its circumradius
    low = BUCKET_FLOOR_RADIUS * per_radius
    high = BUCKET_RIM_RADIUS * per_radius
    slant = np.arctan2(high - low, BUCKET_RIM - BUCKET_FLOOR)
    cos = np.cos(slant)
    sin = np.sin(slant)
    length = BUCKET_RIM / cos
    width = 2.0 * BUCKET_RIM_OUTER_RADIUS * np.sin(np.pi / BUCKET_SIDES)
    # the wall's centre, from its inner upper edge, in the plane of the axis and the wall's middle
    radius = high - length / 2 * sin + BUCKET_WALL / 2 * cos
    height = BUCKET_RIM - length / 2 * cos - BUCKET_WALL / 2 * sin
    rgba = (*RED, 0.5)  # transparent, to show what is in it
    for angle in 2.0 * np.pi * (np.arange(BUCKET_SIDES) + 0.5) / BUCKET_SIDES:
        x = np.cos(angle)
        y = np.sin(angle)
        body.add_geom(
            type=mujoco.mjtGeom.mjGEOM_BOX,
            pos=(radius * x, radius * y, height - BUCKET_GOAL),
            xyaxes=(cos * x, cos * y, -sin, -y, x, 0.0),
            size=(BUCKET_WALL / 2, width / 2, length / 2),
            rgba=rgba,
        )
    # Two crossed boxes, because MuJoCo finds too few contacts between a cylinder and a box for the box to lie still.
    for x, y in ((low, low * 2 / 3), (low * 2 / 3, low)):
        body.add_geom(
            type=mujoco.mjtGeom.mjGEOM_BOX,
            pos=(0, 0, BUCKET_FLOOR - BUCKET_FLOOR_DEPTH / 2 - BUCKET_GOAL),
            size=(x, y, BUCKET_FLOOR_DEPTH / 2),
            rgba=rgba,
        )
    underside = BUCKET_FLOOR - BUCKET_FLOOR_DEPTH - BUCKET_GOAL  # the bucket floats, like the original's
    draw(body, "cylinder", (0, 0, underside), (0, 0, underside - BUCKET_POST), 0.02, colour=GREY)
