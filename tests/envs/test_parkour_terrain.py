"""The courses of A1Parkour: dimensions against the formulas, and one height for rays, height map and edges."""

import math

import mujoco
import numpy as np
import pytest

from envs.models import a1
from envs.models import parkour_terrain as terrain
from tests.envs.helpers import simulate

LEVELS = (0, 4, 9)
at_levels = pytest.mark.parametrize("level", LEVELS)


def tiles(kind, level, count=200):
    rng = np.random.default_rng(0)
    return [terrain.make_tile(kind, level, rng) for _ in range(count)]


# Lengths are in cells of 5 cm. Points of the original's grid stand at the beginnings of cells.


def assert_drawn(values, low, high):
    """Whole numbers of cells that were drawn from `low` up to, but not including, `high` m: each of them occurs."""
    assert set(values) == set(range(round(low / 0.05), round(high / 0.05)))


def assert_drawn_in_metres(values, low, high):
    """Random numbers fill the range from low to high."""
    assert low <= min(values) <= low + 0.03 * (high - low)
    assert high - 0.03 * (high - low) <= max(values) <= high


def assert_rounded(values, low, high):
    """Whole numbers of cells, rounded from numbers from low to high m: each of them occurs."""
    assert set(values) == set(range(round(low / 0.05), round(high / 0.05) + 1))


def edges(boxes):
    """x from, x to, y from, y to of boxes, (4, boxes) cells."""
    return np.array([(*box.x, *box.y) for box in boxes]).T


def centres(boxes):
    """The points (x, y) of a tile's boxes about which the original raises its points, (2, boxes) cells."""
    begin, end, right, left = edges(boxes)
    return (begin + end + 1) // 2, (right + left + 1) // 2


def last_spacing(tile, x):
    """From the last obstacle at x to the last goal, in cells; None where the goal lay beyond the tile."""
    goal, y = tile.goals[7]
    assert y == 0
    return goal - x if goal != 351 else None  # 17.55 m


def assert_last_spacings(spacings, low, high):
    assert_drawn([spacing for spacing in spacings if spacing is not None], low, high)


# ---------------------------------------------------------------- dimensions


@pytest.mark.parametrize("kind", terrain.KINDS)
@at_levels
def test_what_all_tiles_have(kind, level):
    for tile in tiles(kind, level):
        assert len(tile.goals) == 8
        assert len(tile.obstacles) == (0 if kind == "flat" else 6)
        assert (tile.pit is not None) == (kind in ("stones", "gap"))
        assert (np.diff(tile.goals, axis=0)[:, 0] > 0).all()
        assert tile.goals[-1][0] <= 360


@at_levels
def test_hurdles(level):
    d = level / 9
    of_level = tiles("hurdle", level)
    spacings = []
    offsets = []
    half_widths = []
    last_spacings = []
    for tile in of_level:
        begin, end, right, left = edges(tile.obstacles)
        x, y = centres(tile.obstacles)
        # the formula gives 0.1, 0.25 and 0.4 m of points; an odd number of them loses one, and n points are n - 1 cells
        assert (end - begin == {0: 1, 4: 3, 9: 7}[level]).all()
        assert ((left - right) % 2 == 1).all()
        spacing = np.diff(x, prepend=50)
        assert tile.goals[0] == (49, 0)  # 5 cm before the end of the platform
        assert tile.goals[1:7] == [*zip(x - spacing // 2, y)]
        spacings += spacing.tolist()
        offsets += y.tolist()
        half_widths += ((left - right + 1) // 2).tolist()
        last_spacings.append(last_spacing(tile, x[-1]))
    assert_drawn(spacings, 1.2, 2.2)
    assert_drawn(offsets, -0.4, 0.4)
    assert_rounded(half_widths, 0.4, 0.8)
    assert_last_spacings(last_spacings, 1.2, 2.2)
    assert_drawn_in_metres([box.top for tile in of_level for box in tile.obstacles], 0.1 + 0.1 * d, 0.15 + 0.25 * d)


def test_flat_goals():
    """As before obstacles that are s = 30 to 47 cells apart, s // 2 of them behind the goal."""
    of_level = tiles("flat", 9)
    goals = np.array([tile.goals for tile in of_level])
    ways = np.diff(goals[:, :, 0], axis=1)
    assert (goals[:, 0] == (49, 0)).all()
    assert set(ways[:, 0]) == set(range(1 + 15, 1 + 24 + 1))  # s - s // 2, from the end of the platform at 50
    assert set(ways[:, 1:6].ravel()) == set(range(15 + 15, 23 + 24 + 1))
    on_tile = goals[:, 7, 0] != 351
    assert set(ways[on_tile, 6]) == set(range(15 + 30, 23 + 47 + 1))
    assert_drawn(goals[:, 1:7, 1].ravel(), -0.4, 0.4)
    assert (goals[:, 7, 1] == 0).all()


@at_levels
def test_steps(level):
    height = 0.1 + 0.35 * level / 9
    of_level = tiles("step", level)
    lengths = []
    offsets = []
    half_widths = []
    last_spacings = []
    for tile in of_level:
        begin, end, right, left = edges(tile.obstacles)
        assert [box.top for box in tile.obstacles] == pytest.approx(np.array([1, 2, 3, 3, 2, 1]) * height)
        assert begin.tolist() == [50, *end[:-1]]
        points = end + (0, 0, 1, 1, 1, 1)  # walls down are at the last point of a step
        length = np.diff(points, prepend=50)
        _, offset = centres(tile.obstacles)
        assert tile.goals[0] == (30, 0)  # 1 m before the end of the platform
        assert tile.goals[1:7] == [*zip(points - length // 2, offset)]
        lengths += length.tolist()
        offsets += offset.tolist()
        half_widths += ((left - right + 1) // 2).tolist()
        last_spacings.append(last_spacing(tile, points[-1]))
    assert_drawn(lengths, 0.3 + height, 1.5 + height)
    assert_drawn(offsets, -0.4, 0.4)
    assert_rounded(half_widths, 0.5, 1.0)
    assert_last_spacings(last_spacings, 0.3 + height, 1.5 + height)


@at_levels
def test_gaps(level):
    gap = {0: 2, 4: 8, 9: 16}[level]  # the formula's 0.1, 0.41 and 0.8 m of points, of which n are n + 1 cells
    of_level = tiles("gap", level)
    spacings = []
    offsets = []
    half_widths = []
    last_spacings = []
    for tile in of_level:
        begin, end, right, left = edges(tile.obstacles)
        pit_begin, pit_end, _ = tile.pit
        assert pit_begin == begin[0] == 49
        next_begin = np.array([*begin[1:], pit_end])
        assert (next_begin - end == gap + 1).all()
        assert all(box.top == 0.0 for box in tile.obstacles)
        x = next_begin - gap // 2
        spacing = np.diff(x, prepend=50)
        _, offset = centres(tile.obstacles)
        assert tile.goals[0] == (49, 0)
        assert tile.goals[1:7] == [*zip(x - spacing // 2, offset)]
        spacings += (spacing - gap).tolist()
        offsets += offset.tolist()
        half_widths += ((left - right + 1) // 2).tolist()
        last_spacings.append(last_spacing(tile, x[-1] + gap))
    assert_drawn(spacings, 0.8, 1.5)
    assert_drawn(offsets, -0.4, 0.4)
    assert_rounded(half_widths, 0.6, 1.2)
    assert_last_spacings(last_spacings, 0.8, 1.5)
    assert_drawn_in_metres([tile.pit[2] for tile in of_level], 0.2, 1.0)


@at_levels
def test_stones(level):
    d = level / 9
    of_level = tiles("stones", level)
    lengths = []
    spacings = []
    sides = []
    last_spacings = []
    for tile in of_level:
        begin, end, right, left = edges(tile.obstacles)
        x, y = centres(tile.obstacles)
        length = end[0] - begin[0] + 1
        assert (end - begin + 1).tolist() == [length] * 5 + [32]  # the last one is 1.6 m long
        assert (left - right == 19).all()  # 20 points
        rise = np.array([abs(box.slope) for box in tile.obstacles]) * 0.475
        assert rise == pytest.approx([0.25 * d] * 5 + [0.1 + 0.15 * d])
        assert (np.sign(y[1:]) == -np.sign(y[:-1])).all()
        assert tile.obstacles[-1].slope * y[-1] > 0.0
        assert all(box.slope * side >= 0.0 for box, side in zip(tile.obstacles, y))  # the outer edge is the higher one
        pit_begin, pit_end, _ = tile.pit
        assert pit_begin == 49
        assert pit_end == end[-1] + 2
        assert tile.goals[0] == (50 - length // 2, 0)
        assert tile.goals[1:7] == [*zip(x, y)]
        lengths.append(length)
        spacings += (np.diff(x) - length - (0, 0, 0, 0, 8)).tolist()  # a quarter of the last stone is added
        sides += np.abs(y).tolist()
        goal, middle = tile.goals[7]
        assert middle == 0
        assert (goal - x[-1]) % 2 == 0
        last_spacings.append((goal - x[-1]) // 2 - length)
    # 0.9 to 1.0, 0.77 to 0.91 and 0.6 to 0.8 m, rounded to 0.2 m
    assert set(lengths) == {0: {20}, 4: {16, 20}, 9: {12, 16}}[level]
    for values in (spacings, last_spacings):
        assert_drawn(values, -0.1, 0.1 + 0.3 * d)
    assert_drawn(sides, 0.2, 0.3 + 0.1 * d)
    assert_drawn_in_metres([tile.pit[2] for tile in of_level], 0.2, 1.0)


@at_levels
def test_the_first_stone(level):
    """Half a stone behind the platform, moved by the difference of two spacings."""
    starts = []
    for tile in tiles("stones", level, 2_000):
        x, _ = centres(tile.obstacles)
        begin, end, _, _ = edges(tile.obstacles)
        starts.append(x[0] - 50 - (end[0] - begin[0] + 1) // 2)
    width = round((0.1 + 0.3 * level / 9) / 0.05) - round(-0.1 / 0.05) - 1
    assert set(starts) == set(range(-width, width + 1))


def test_a_last_goal_beyond_the_tile_is_put_at_17_55_m():
    assert [terrain._last_goal(x) for x in (300, 360, 361)] == [(300, 0), (360, 0), (351, 0)]


# ---------------------------------------------------------------- columns


def test_columns_differ_and_are_always_the_same():
    column = terrain.make_column(7)
    terrain.make_column.cache_clear()
    assert terrain.make_column(7).boxes == column.boxes
    assert terrain.make_column(12).kind == column.kind == "flat"
    assert not np.array_equal(terrain.make_column(12).goals, column.goals)
    kinds = [terrain.make_column(i).kind for i in range(terrain.NUM_COLUMNS)]
    assert [kinds.count(kind) for kind in terrain.KINDS] == [8] * 5


def compile_column(index):
    model = terrain.build_scene(terrain.make_column(index), a1.NOMINAL).compile()
    data = mujoco.MjData(model)
    data.qpos[:3] = (-300.0, 0.0, 0.0)  # the robot is not in the way of rays
    mujoco.mj_forward(model, data)
    return model, data


def test_columns_have_the_same_structure():
    assert len({compile_column(i)[0].signature for i in range(10)}) == 1


# columns of all kinds, and of two more pits
@pytest.mark.parametrize("index", [0, 1, 2, 3, 4, 35, 39])
def test_the_height_map_is_what_rays_see(index):
    column = terrain.make_column(index)
    _, data = compile_column(index)
    heights = terrain.height_map(column)
    cells = np.random.default_rng(0).integers((0, 0), heights.shape, (2_000, 2))
    seen = []
    for i, j in cells:
        point = (0.05 * (i + 0.5) - 5.0, 0.05 * (j + 0.5) - 2.2, 4.0)
        distance = mujoco.mj_ray(data.model, data, np.array(point), np.array([0.0, 0.0, -1.0]), None, 1, -1, None)
        seen.append(4.0 - distance)
    assert np.allclose(heights[cells[:, 0], cells[:, 1]], seen, atol=1e-5)
    if column.kind in ("stones", "gap"):
        assert 100 < (heights[cells[:, 0], cells[:, 1]] < -0.19).sum()


def test_rough_ground():
    """Within +-4 cm, about 0 on average, and for the feet alone."""
    ground = terrain.height_map(terrain.make_column(2))[:-1]  # the last cell lies behind the last point
    assert 0.0399 < ground.max() <= 0.04
    assert -0.04 <= ground.min() < -0.0399
    assert abs(ground.mean()) < 1e-3
    model, _ = compile_column(2)
    field = model.geom_type == mujoco.mjtGeom.mjGEOM_HFIELD
    meets = (model.geom_contype[field] & model.geom_conaffinity) > 0
    assert [model.geom(i).name for i in np.flatnonzero(meets)] == a1.FOOT_GEOMS


def test_edges():
    heights = np.zeros((12, 3), np.float32)
    heights[4:7, 1] = 0.08  # walls before cell 4 and behind cell 6
    heights[9:, 1] = 0.07
    heights[:, 2] = [0, 0, -0.3, -0.3, -0.3, -0.3, 0, 0, 0, 0, 0, 0]  # a gap
    edges = terrain.edge_map(heights)
    assert edges[:, 0].sum() == 0
    assert np.flatnonzero(edges[:, 1]).tolist() == [2, 3, 4, 7, 8, 9]  # of the points at the beginnings of cells
    assert np.flatnonzero(edges[:, 2]).tolist() == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("index", range(5))
def test_a_robot_stands_on_every_platform(index):
    column = terrain.make_column(index)
    model = terrain.build_scene(column, a1.NOMINAL).compile()
    for level in LEVELS:
        data = mujoco.MjData(model)
        start = 18.0 * level + terrain.START
        data.qpos[:] = [start, 0, a1.START_HEIGHT, 1, 0, 0, 0, *a1.DEFAULT_POSE]
        data.ctrl[:] = a1.DEFAULT_POSE
        simulate(model, data, 10.0)
        feet = np.array([data.geom(name).xpos for name in a1.FOOT_GEOMS])
        rough = column.kind in ("hurdle", "flat", "step")
        assert data.qpos[2] - feet[:, 2].mean() == pytest.approx(0.266, abs=0.01 if rough else 0.005)
        assert math.hypot(data.qpos[0] - start, data.qpos[1]) < 0.06
        assert np.abs(data.qpos[4:7]).max() < (0.07 if rough else 0.02)
        assert np.abs(data.qvel).max() < 0.1
