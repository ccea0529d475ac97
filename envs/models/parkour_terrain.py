"""The courses of A1Parkour: columns of ten tiles, one tile per level, each with six obstacles and eight goals.

The dimensions are those of Extreme Parkour (https://arxiv.org/abs/2309.14341). x is the running direction and y points
to the left; a column begins at x = 0 and its middle is y = 0. Everything but rough ground is a box, whose edges lie on
a grid of cells, so that physics, height map, edges and goals follow from the same boxes.

Extreme Parkour sets heights at points of this grid and makes a mesh of them, with walls where neighbours differ much.
A wall stands at the last high point, so that n high points in a row are only n - 1 cells long, and n low ones n + 1.

The ground of columns without pits is rough for the feet: a height field, which is the same in all of these columns,
because the worlds of an engine must share its data. The other shapes of the robot meet even ground below it.
"""

import functools
import math
from typing import List, NamedTuple, Optional, Tuple

import mujoco
import numpy as np

from envs.models import a1
from envs.models.visuals import ORANGE, draw

KINDS = ("stones", "hurdle", "flat", "step", "gap")
NUM_LEVELS = 10
NUM_OBSTACLES = 6
NUM_GOALS = 8
NUM_COLUMNS = 40  # column c has the kind c % 5
CELL = 0.05  # m
# Lengths in cells
TILE_LENGTH = 360
PLATFORM = 50  # without obstacles, at the beginning of a tile
BORDER = 100  # of ground before the first and behind the last tile
HALF_WIDTH = 80  # of ground and pits; who goes farther to the side falls
FIELD_HALF_WIDTH = 44  # of the height map, which ends 20 cm beside the tile of Extreme Parkour
FIELD_LENGTH = 2 * BORDER + NUM_LEVELS * TILE_LENGTH

START = 1.0  # m, x of the robot's start in its tile
STONE_THICKNESS = 0.1  # m; ours: the stones of Extreme Parkour reach down to the floor of the pit
GROUND_THICKNESS = 1.5  # m
ROUGH_KINDS = ("hurdle", "flat", "step")  # without pits
ROUGHNESS = 0.04  # m, how far the ground rises and falls; Extreme Parkour draws 0.02 to 0.06 for each tile
EDGE_HEIGHT = 0.075  # m; a lower step between two cells is no edge
UNUSED_HEIGHT = -100.0  # m, of boxes that a column does not need

# How many boxes of each part a column has, in this order
NUM_GROUNDS = NUM_LEVELS + 1
NUM_FLOORS = NUM_LEVELS
NUM_BOXES = NUM_GROUNDS + NUM_FLOORS + NUM_LEVELS * NUM_OBSTACLES
GOAL = "goal"  # a mocap body that is only drawn
NEXT_GOAL = "next_goal"  # a mocap body that is only drawn, too
MARKER_HEIGHT = 0.45  # m, of their balls over the ground


class Box(NamedTuple):
    """A box whose top is even, or inclined sideways."""

    x: Tuple[int, int]  # cells, from and to
    y: Tuple[int, int]
    bottom: float  # m
    top: float  # m, at the middle
    slope: float = 0.0  # how much the top rises per metre of y


class Tile(NamedTuple):
    """A tile that begins at x = 0."""

    pit: Optional[Tuple[int, int, float]]  # from and to (cells), depth (m)
    obstacles: List[Box]
    goals: List[Tuple[int, int]]  # x, y in cells


class Column(NamedTuple):
    kind: str
    boxes: List[Optional[Box]]  # (NUM_BOXES,), None where the column does not need one
    goals: np.ndarray  # (NUM_LEVELS, NUM_GOALS, 2) m


def make_tile(kind, level, rng):
    """A Tile of one of KINDS at a level from 0 to 9. Draws from rng, a numpy.random.Generator."""
    return TILES[kind](level / (NUM_LEVELS - 1), rng)


def _cells(length):
    return round(length / CELL)


def _draw(rng, low, high):
    """A random whole number of cells from low to high, both in m. As in the original, `high` is never drawn."""
    return int(rng.integers(_cells(low), _cells(high)))


def _box_range(centre, num_points):
    """From and to of a box, in cells, for num_points points that the original raises about the point `centre`.

    With half = num_points // 2, these are the points from centre - half to centre + half - 1.
    """
    half = num_points // 2
    return centre - half, centre + half - 1


def _make_stones(difficulty, rng):
    """Stones beside each other over a pit, inclined towards the middle line, the last one longer and steeper."""
    depth = rng.uniform(0.2, 1.0)
    length = 4 * round(rng.uniform(0.9 - 0.3 * difficulty, 1.0 - 0.2 * difficulty) / (4 * CELL))
    width = _cells(1.0)
    last_length = _cells(1.6)

    def draw_spacing():
        return length + _draw(rng, -0.1, 0.1 + 0.3 * difficulty)

    x = PLATFORM + length // 2 - draw_spacing()
    side = int(rng.choice([-1, 1]))
    goals = [(PLATFORM - length // 2, 0)]
    stones = []
    for i in range(NUM_OBSTACLES):
        last = i == NUM_OBSTACLES - 1
        x += draw_spacing() + (last_length // 4 if last else 0)
        y = side * _draw(rng, 0.2, 0.3 + 0.1 * difficulty)
        rise = 0.1 + 0.15 * difficulty if last else 0.25 * difficulty  # m, of the outer edge over the middle
        slope = side * rise / ((width - 1) * CELL / 2)
        x_range = _box_range(x, last_length if last else length)
        stones.append(Box(x_range, _box_range(y, width), -STONE_THICKNESS, 0.0, slope))
        goals.append((x, y))
        side = -side
    goals.append((x + 2 * draw_spacing(), 0))
    return Tile((PLATFORM - 1, x + last_length // 2 + 1, depth), stones, goals)


def _make_hurdles(difficulty, rng):
    """Walls to climb or jump over. A goal lies before each."""
    thickness = _cells(0.1 + 0.3 * difficulty)
    half_width = _cells(rng.uniform(0.4, 0.8))
    centres, goals = _place_obstacles(rng, 1.2, 2.2)
    hurdles = []
    for x, y in centres:
        height = rng.uniform(0.1 + 0.1 * difficulty, 0.15 + 0.25 * difficulty)
        hurdles.append(Box(_box_range(x, thickness), _box_range(y, 2 * half_width), -0.1, height))
    return Tile(None, hurdles, goals)


def _make_flat(difficulty, rng):
    """Even ground. The goals lie as between hurdles."""
    _, goals = _place_obstacles(rng, 1.5, 2.4)
    return Tile(None, [], goals)


def _place_obstacles(rng, low, high):
    """Centres of obstacles that are `low` to `high` m apart, and goals halfway to them: lists of (x, y) in cells."""
    x = PLATFORM
    centres = []
    goals = [(PLATFORM - 1, 0)]
    for _ in range(NUM_OBSTACLES):
        spacing = _draw(rng, low, high)
        y = _draw(rng, -0.4, 0.4)
        x += spacing
        centres.append((x, y))
        goals.append((x - spacing // 2, y))
    goals.append(_last_goal(x + _draw(rng, low, high)))
    return centres, goals


def _last_goal(x):
    """The goal (x, 0) behind the last obstacle, moved back onto the tile if need be."""
    return (x if x <= TILE_LENGTH else TILE_LENGTH - 9), 0


def _make_steps(difficulty, rng):
    """Three steps up and three down."""
    height = 0.1 + 0.35 * difficulty
    half_width = _cells(rng.uniform(0.5, 1.0))

    def draw_length():
        return _draw(rng, 0.3 + height, 1.5 + height)

    x = PLATFORM
    begin = PLATFORM
    goals = [(PLATFORM - _cells(1.0), 0)]
    steps = []
    storeys = (1, 2, 3, 3, 2, 1, 0)  # of the steps, and of the ground behind them
    for storey, next_storey in zip(storeys, storeys[1:]):
        length = draw_length()
        y = _draw(rng, -0.4, 0.4)
        x += length
        # A wall up stands at the first point of the next step, and a wall down at the last point of this one
        end = x if next_storey > storey else x - 1
        steps.append(Box((begin, end), _box_range(y, 2 * half_width), -0.1, storey * height))
        begin = end
        goals.append((x - length // 2, y))
    goals.append(_last_goal(x + draw_length()))
    return Tile(None, steps, goals)


def _make_gaps(difficulty, rng):
    """Strips of ground with gaps between them and a pit beside them. A goal lies before each gap."""
    depth = rng.uniform(0.2, 1.0)
    gap = _cells(0.1 + 0.7 * difficulty)
    half_width = _cells(rng.uniform(0.6, 1.2))

    def draw_spacing():
        return gap + _draw(rng, 0.8, 1.5)

    x = PLATFORM
    begin = PLATFORM - 1  # of a strip, in cells
    goals = [(PLATFORM - 1, 0)]
    strips = []
    for _ in range(NUM_OBSTACLES):
        spacing = draw_spacing()
        x += spacing
        y = _draw(rng, -0.4, 0.4)
        strips.append(Box((begin, x - gap // 2 - 1), _box_range(y, 2 * half_width), -GROUND_THICKNESS, 0.0))
        goals.append((x - spacing // 2, y))
        begin = x + gap // 2
    goals.append(_last_goal(x + draw_spacing()))
    return Tile((PLATFORM - 1, begin, depth), strips, goals)


TILES = dict(zip(KINDS, (_make_stones, _make_hurdles, _make_flat, _make_steps, _make_gaps)))


@functools.lru_cache(maxsize=None)
def make_column(index):
    """The Column `index`. It is always the same: every run meets the same courses, 0 to NUM_COLUMNS - 1."""
    kind = KINDS[index % len(KINDS)]
    rng = np.random.default_rng(index)
    top = -ROUGHNESS if kind in ROUGH_KINDS else 0.0
    across = (-HALF_WIDTH, HALF_WIDTH)
    grounds = []
    floors = []
    obstacles = []
    goals = []
    begin = -BORDER
    for level in range(NUM_LEVELS):
        tile = make_tile(kind, level, rng)
        origin = level * TILE_LENGTH
        # A piece of ground reaches from the end of the pit before it to its tile's pit, or to its tile's end
        pit_begin, pit_end, depth = tile.pit or (TILE_LENGTH, TILE_LENGTH, 0.0)
        grounds.append(Box((begin, origin + pit_begin), across, -GROUND_THICKNESS, top))
        begin = origin + pit_end
        if tile.pit:
            floors.append(Box((origin + pit_begin, begin), across, -depth - GROUND_THICKNESS, -depth))
        for box in tile.obstacles:
            obstacles.append(box._replace(x=(origin + box.x[0], origin + box.x[1])))
        goals.append([(origin + x, y) for x, y in tile.goals])
    grounds.append(Box((begin, NUM_LEVELS * TILE_LENGTH + BORDER), across, -GROUND_THICKNESS, top))
    boxes = [
        *grounds,
        *floors,
        *[None] * (NUM_FLOORS - len(floors)),
        *obstacles,
        *[None] * (NUM_LEVELS * NUM_OBSTACLES - len(obstacles)),
    ]
    return Column(kind, boxes, CELL * np.array(goals))


# ---------------------------------------------------------------- the height map


def height_map(column):
    """Height (m) of a Column's ground at the middle of each cell, (FIELD_LENGTH, 2 * FIELD_HALF_WIDTH) float32.

    The cell at index (i, j) begins at x = (i - BORDER) * CELL, y = (j - FIELD_HALF_WIDTH) * CELL.
    """
    heights = np.full((FIELD_LENGTH, 2 * FIELD_HALF_WIDTH), -np.inf, np.float32)
    y = CELL * (np.arange(2 * FIELD_HALF_WIDTH) + 0.5 - FIELD_HALF_WIDTH)
    for box in column.boxes:
        if box is not None:
            rows = slice(box.x[0] + BORDER, box.x[1] + BORDER)
            heights[rows] = np.maximum(heights[rows], _profile(box, y))
    if column.kind in ROUGH_KINDS:
        beside = HALF_WIDTH - FIELD_HALF_WIDTH
        heights = np.maximum(heights, rough_ground()[:, beside:-beside])
    return heights


def _profile(box, y):
    """Height (m) of a box seen from above at y (m), -inf beside it."""
    begin = CELL * box.y[0]
    end = CELL * box.y[1]
    middle = (begin + end) / 2
    half_width = (end - begin) / 2
    top = np.where(abs(y - middle) < half_width, box.top + box.slope * (y - middle), -np.inf)
    if box.slope == 0.0:
        return top
    # the side of an inclined box that faces up
    beyond = np.sign(box.slope) * (y - middle) - half_width
    overhang = (box.top - box.bottom) * math.sin(math.atan(abs(box.slope)))
    side = box.top + abs(box.slope) * half_width - beyond / abs(box.slope)
    return np.where((beyond >= 0.0) & (beyond < overhang), side, top)


@functools.lru_cache(maxsize=None)
def rough_points():
    """Height (m) of the rough ground at every second cell in x and y, (FIELD_LENGTH / 2, HALF_WIDTH) float32."""
    rng = np.random.default_rng(0)
    return rng.uniform(-ROUGHNESS, ROUGHNESS, (FIELD_LENGTH // 2, HALF_WIDTH)).astype(np.float32)


def rough_ground():
    """Height (m) of the rough ground at the middle of each cell, (FIELD_LENGTH, 2 * HALF_WIDTH) float32.

    Between its points lie triangles. MuJoCo divides a square along the diagonal on which x and y rise together.
    """
    points = rough_points()
    ground = np.full((FIELD_LENGTH, 2 * HALF_WIDTH), -ROUGHNESS, np.float32)
    ground[::2, ::2] = points
    ground[1:-1:2, ::2] = (points[:-1] + points[1:]) / 2
    ground[::2, 1:-1:2] = (points[:, :-1] + points[:, 1:]) / 2
    ground[1:-1:2, 1:-1:2] = (points[:-1, :-1] + points[1:, 1:]) / 2
    return ground


def edge_map(heights):
    """Whether there is an edge across the running direction near the beginning of each cell of a height map, as bool.

    As in the original, an edge extends half a cell from a wall of more than EDGE_HEIGHT on its high side, and 2.5 cells
    on its low side. Here the point nearest to a foot counts, so these are the wall and the two points below it.
    """
    rise = np.diff(heights, axis=0)  # rise[i], from cell i to i + 1, is a wall at point i + 1
    below_wall = np.zeros(heights.shape, bool)  # the point before a wall up, or behind a wall down
    below_wall[:-1] |= rise > EDGE_HEIGHT
    below_wall[2:] |= rise[:-1] < -EDGE_HEIGHT
    edges = below_wall.copy()  # and the points on either side of it
    edges[:-1] |= below_wall[1:]
    edges[1:] |= below_wall[:-1]
    return edges


# ---------------------------------------------------------------- the model


def build_scene(column, dynamics):
    """The robot on a Column, as a mujoco.MjSpec. dynamics: an a1.Dynamics.

    All columns have the same structure: NUM_BOXES bodies of one box each. Bodies without a joint cost little, and as
    shapes of one body they would differ in its tree of bounding volumes, which the worlds of an engine must share.
    Columns that need fewer boxes have the others far below.
    """
    spec = a1.build(dynamics)
    spec.add_material(name="floor", rgba=(0.42, 0.45, 0.50, 1.0))
    for i, colour in enumerate(((0.86, 0.74, 0.58), (0.80, 0.62, 0.42))):
        spec.add_material(name="obstacle%d" % i, rgba=(*colour, 1.0))
    for i, box in enumerate(column.boxes):
        pos, half_edges, roll = _box_geometry(box, i)
        body = spec.worldbody.add_body(
            name="terrain_%d" % i, pos=pos, quat=(math.cos(roll / 2), math.sin(roll / 2), 0, 0)
        )
        if i < NUM_GROUNDS:
            material = "ground"
        elif i < NUM_GROUNDS + NUM_FLOORS:
            material = "floor"
        else:
            material = "obstacle%d" % (i % 2)
        body.add_geom(
            type=mujoco.mjtGeom.mjGEOM_BOX,
            size=half_edges,
            contype=a1.TOUCHES_ALL,
            conaffinity=0,
            mass=0,
            material=material,
        )
    _add_rough_ground(spec, column)
    for name, alpha in ((GOAL, 0.9), (NEXT_GOAL, 0.3)):
        marker = spec.worldbody.add_body(name=name, mocap=True, pos=(0, 0, UNUSED_HEIGHT))
        draw(marker, "sphere", (0, 0, 0.0), 0.06, colour=ORANGE, alpha=alpha)
        draw(marker, "cylinder", (0, 0, -MARKER_HEIGHT), (0, 0, -0.05), 0.008, colour=ORANGE, alpha=alpha)
    return spec


def _add_rough_ground(spec, column):
    """The height field, or the same one far below."""
    points = rough_points()
    low = float(points.min())
    high = float(points.max())
    half_length, half_width = CELL * (np.array(points.shape) - 1)
    spec.add_hfield(
        name="rough_ground",
        size=(half_length, half_width, high - low, 0.1),
        nrow=points.shape[1],
        ncol=points.shape[0],
        userdata=((points - low) / (high - low)).T.ravel(),
    )
    x, y = CELL * (0.5 - np.array([BORDER, HALF_WIDTH])) + (half_length, half_width)
    z = low if column.kind in ROUGH_KINDS else UNUSED_HEIGHT
    body = spec.worldbody.add_body(name="rough_ground", pos=(x, y, z))
    body.add_geom(
        type=mujoco.mjtGeom.mjGEOM_HFIELD,
        hfieldname="rough_ground",
        contype=a1.TOUCHES_FEET,
        conaffinity=0,
        mass=0,
        material="ground",
    )


def _box_geometry(box, index):
    """Centre (3,) m, half edges (3,) m, and roll (rad) of the box `index` of a column, or of None."""
    if box is None:
        return (0.0, 0.0, UNUSED_HEIGHT - index), (0.1, 0.1, 0.1), 0.0
    roll = math.atan(box.slope)
    half_height = (box.top - box.bottom) / 2
    centre = (
        CELL * (box.x[0] + box.x[1]) / 2,
        CELL * (box.y[0] + box.y[1]) / 2 + half_height * math.sin(roll),
        box.top - half_height * math.cos(roll),
    )
    half_edges = (CELL * (box.x[1] - box.x[0]) / 2, CELL * (box.y[1] - box.y[0]) / 2 / math.cos(roll), half_height)
    return centre, half_edges, roll
