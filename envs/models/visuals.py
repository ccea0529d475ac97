"""Everything that is only drawn: sky, light, ground, and shapes without mass and collisions. Engines leave it out."""

import itertools

import mujoco
import numpy as np

from envs.models.parts import add_shape

HORIZON = (0.88, 0.91, 0.94)
# of the faces at +x, -x, +y, -y, +z, -z of an object whose orientation matters
FACE_COLOURS = (
    (0.86, 0.22, 0.20),
    (0.20, 0.62, 0.35),
    (0.16, 0.42, 0.85),
    (0.97, 0.77, 0.16),
    (0.95, 0.50, 0.12),
    (0.52, 0.30, 0.70),
)
WHITE = (0.93, 0.93, 0.94)
SILVER = (0.76, 0.78, 0.80)
GREY = (0.42, 0.44, 0.47)
BLACK = (0.13, 0.13, 0.15)
ORANGE = (0.95, 0.45, 0.10)
RED = (0.78, 0.13, 0.14)
WOOD = (0.86, 0.74, 0.58)
GOAL = (0.15, 0.75, 0.35)
HIDDEN = 3  # a geom group that is not drawn, for solid shapes in whose place better looking ones are drawn


def draw(body, shape, *numbers, colour, alpha=1.0):
    """Add a shape that is only drawn to a body and return the geom. shape, numbers: see `add_shape`."""
    return add_shape(
        body,
        shape,
        *numbers,
        rgba=(*colour, alpha),
        contype=0,
        conaffinity=0,
        mass=0,
        group=1,
        castshadow=alpha == 1.0,
    )


def draw_faces(body, half_edges, frame=0.18, alpha=1.0):
    """Draw a differently coloured patch on each face of a box at the body's origin.

    half_edges (3,) m; frame: width of the margin around a patch, relative to the shortest half edge.
    """
    margin = frame * min(half_edges)
    thickness = 0.0006
    for face, colour in enumerate(FACE_COLOURS):
        axis = face // 2
        sign = 1.0 - 2.0 * (face % 2)
        centre = np.zeros(3)
        size = np.asarray(half_edges) - margin
        centre[axis] = sign * half_edges[axis]
        size[axis] = thickness
        draw(body, "box", centre, size, colour=colour, alpha=alpha)


def draw_goal_box(body, half_edges):
    """Draw a transparent box with the same colours as `draw_faces`."""
    draw_faces(body, half_edges, frame=0.04, alpha=0.6)
    corners = np.array(list(itertools.product((-1.0, 1.0), repeat=3)))
    for first, second in itertools.combinations(corners, 2):
        if np.abs(second - first).sum() == 2.0:  # neighbours
            edge = draw(body, "capsule", first * half_edges, second * half_edges, 0.05 * min(half_edges), colour=WHITE)
            edge.castshadow = False


def add_surroundings(spec, light=(0.4, 0.5, -1.0), aim=(0, 0, 0), follow=None, span=5.0):
    """Add a sky, soft sunlight and the material "ground" for a plane.

    light (3,): the direction in which the sun shines; aim (3,) m and span m: centre and half width of the region that
    casts shadows; follow: a walking body that the centre follows, or None.
    """
    texture = mujoco.mjtTexture
    spec.add_texture(
        name="sky",
        type=texture.mjTEXTURE_SKYBOX,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
        width=256,
        height=1536,
        rgb1=(0.45, 0.63, 0.85),
        rgb2=(1.0, 1.0, 1.0),
    )
    spec.add_texture(
        name="tiles",
        type=texture.mjTEXTURE_2D,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER,
        width=512,
        height=512,
        rgb1=(0.87, 0.88, 0.89),
        rgb2=(0.78, 0.80, 0.83),
        mark=mujoco.mjtMark.mjMARK_EDGE,
        markrgb=(0.95, 0.96, 0.97),
    )
    ground = spec.add_material(name="ground", texrepeat=(2, 2), texuniform=True)
    ground.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "tiles"

    visual = spec.visual
    visual.rgba.haze = (*HORIZON, 1)
    visual.headlight.ambient = (0.35, 0.35, 0.37)
    visual.headlight.diffuse = (0.3, 0.3, 0.3)
    visual.headlight.specular = (0.1, 0.1, 0.1)
    visual.quality.shadowsize = 2048
    visual.quality.offsamples = 4
    visual.map.znear = 0.01
    visual.map.zfar = 60.0
    spec.stat.extent = 1.0  # the unit of lengths in `visual.map`
    visual.map.shadowclip = span
    visual.global_.offwidth = 640
    visual.global_.offheight = 480
    sun = (follow or spec.worldbody).add_light(
        name="sun",
        type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
        dir=light,
        castshadow=True,
        pos=np.asarray(aim) - 4.0 * np.asarray(light),
        diffuse=(0.55, 0.54, 0.52),
        specular=(0.25, 0.25, 0.25),
    )
    if follow:
        sun.mode = mujoco.mjtCamLight.mjCAMLIGHT_TRACK


def add_camera(body, name, position, target, fovy=40.0, **options):
    """Add a camera at `position` (3,) m that looks at `target` (3,) m with a level horizon. fovy: vertical, degrees."""
    x, y, z = np.asarray(target, float) - position
    return body.add_camera(
        name=name, pos=position, xyaxes=(y, -x, 0, -x * z, -y * z, x * x + y * y), fovy=fovy, **options
    )
