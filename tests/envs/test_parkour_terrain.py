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


def assert_spread(values, low, high, cell=0.05):
    """Random numbers fill the range from low to high. cell: what they were rounded to, m."""
    values = np.asarray(values)
    assert values.min() >= low - 0.51 * cell
    assert values.max() <= high + 0.51 * cell
    assert values.min() <= low + 0.15 * (high - low) + cell
    assert values.max() >= high - 0.15 * (high - low) - 1.51 * cell


def metres(boxes):
    """x from, x to, y from, y to, bottom, top, slope of boxes, (boxes, 7)."""
    return np.array([(*(0.05 * np.array(box.x)), *(0.05 * np.array(box.y)), *box[2:]) for box in boxes])


def goals(tile):
    return 0.05 * np.array(tile.goals)


# ---------------------------------------------------------------- dimensions


@pytest.mark.parametrize("kind", terrain.KINDS)
@at_levels
def test_what_all_tiles_have(kind, level):
    for tile in tiles(kind, level):
        assert len(tile.goals) == 8
        assert len(tile.obstacles) == (0 if kind == "flat" else 6)
        assert (tile.pit is not None) == (kind in ("stones", "gap"))
        assert (np.diff(goals(tile)[:, 0]) > 0.0).all()
        assert goals(tile)[-1, 0] <= 18.0
        assert goals(tile)[0, 1] == goals(tile)[-1, 1] == 0.0


@at_levels
def test_hurdles(level):
    d = level / 9
    heights = []
    spacings = []
    half_widths = []
    offsets = []
    for tile in tiles("hurdle", level):
        box = metres(tile.obstacles)
        middle = box[:, :2].mean(1)
        # the formula gives 0.1, 0.25 and 0.4 m of points; an odd number of them loses one, and n points are n - 1 cells
        assert np.allclose(box[:, 1] - box[:, 0], {0: 0.05, 4: 0.15, 9: 0.35}[level])
        spacing = np.diff([2.5, *(middle + 0.025)])
        heights += box[:, 5].tolist()
        spacings += spacing.tolist()
        half_widths += ((box[:, 3] - box[:, 2] + 0.05) / 2).tolist()
        offsets += (box[:, 2:4].mean(1) + 0.025).tolist()
        assert goals(tile)[0] == pytest.approx([2.45, 0.0])
        assert np.allclose(goals(tile)[1:7, 0], middle - spacing / 2, atol=0.051)  # two halves of a cell
        assert np.allclose(goals(tile)[1:7, 1], offsets[-6:])
    assert_spread(heights, 0.1 + 0.1 * d, 0.15 + 0.25 * d, 0.0)
    assert_spread(spacings, 1.2, 2.2)
    assert_spread(half_widths, 0.4, 0.8)
    assert_spread(offsets, -0.4, 0.4)


def test_flat_goals():
    spacings = np.concatenate([np.diff(goals(tile)[:, 0]) for tile in tiles("flat", 9)])
    offsets = np.concatenate([goals(tile)[1:-1, 1] for tile in tiles("flat", 9)])
    # Obstacles would be s = 1.5 to 2.35 m apart. The first goal lies 5 cm before the end of the platform, the others
    # s / 2 before their obstacles, and the last one s behind the last obstacle
    assert spacings.min() >= 0.8 - 1e-6
    assert spacings.max() <= 1.5 * 2.35 + 1e-6
    assert_spread(offsets, -0.4, 0.4)


@at_levels
def test_steps(level):
    height = 0.1 + 0.35 * level / 9
    lengths = []
    half_widths = []
    for tile in tiles("step", level):
        box = metres(tile.obstacles)
        assert np.allclose(box[:, 5], np.array([1, 2, 3, 3, 2, 1]) * height)
        assert box[0, 0] == pytest.approx(2.5)
        assert np.allclose(box[1:, 0], box[:-1, 1])
        ends = box[:, 1] + (0.0, 0.0, 0.05, 0.05, 0.05, 0.05)  # walls down are at the last point
        lengths += np.diff([2.5, *ends]).tolist()
        half_widths += ((box[:, 3] - box[:, 2] + 0.05) / 2).tolist()
        assert goals(tile)[0] == pytest.approx([1.5, 0.0])
        assert np.allclose(goals(tile)[1:7, 0], ends - np.array(lengths[-6:]) / 2, atol=0.026)
        assert np.allclose(goals(tile)[1:7, 1], box[:, 2:4].mean(1) + 0.025)
    assert_spread(lengths, 0.3 + height, 1.5 + height)
    assert_spread(half_widths, 0.5, 1.0)


@at_levels
def test_gaps(level):
    gap = 0.1 + 0.7 * level / 9
    strips = []
    half_widths = []
    depths = []
    for tile in tiles("gap", level):
        box = metres(tile.obstacles)
        begin, end, depth = tile.pit
        assert 0.05 * begin == pytest.approx(2.45)
        assert box[0, 0] == pytest.approx(2.45)
        ends = np.array([*box[1:, 0], 0.05 * end])
        # the formula gives 0.1, 0.41 and 0.8 m of points, which are even numbers of them, and n points are n + 1 cells
        assert np.allclose(ends - box[:, 1], {0: 0.15, 4: 0.45, 9: 0.85}[level])
        assert np.allclose(box[:, 5], 0.0)
        strips += np.diff(box[:, 1]).tolist()
        half_widths += ((box[:, 3] - box[:, 2] + 0.05) / 2).tolist()
        depths.append(depth)
        assert np.allclose(goals(tile)[1:7, 1], box[:, 2:4].mean(1) + 0.025)
        assert np.all(goals(tile)[2:7, 0] > box[1:, 0])
        assert np.all(goals(tile)[1:7, 0] < box[:, 1])
    assert_spread(strips, gap + 0.8, gap + 1.5)
    assert_spread(half_widths, 0.6, 1.2)
    assert_spread(depths, 0.2, 1.0, 0.0)


@at_levels
def test_stones(level):
    d = level / 9
    lengths = []
    spacings = []
    sides = []
    depths = []
    for tile in tiles("stones", level):
        box = metres(tile.obstacles)
        length = box[:, 1] - box[:, 0] + 0.05
        middle = box[:, 2:4].mean(1) + 0.025
        assert np.allclose(length[:5], length[0])
        assert length[5] == pytest.approx(1.6)
        assert np.allclose(box[:, 3] - box[:, 2], 0.95)
        rise = np.abs(box[:, 6]) * 0.475
        assert np.allclose(rise[:5], 0.25 * d)
        assert rise[5] == pytest.approx(0.1 + 0.15 * d)
        assert np.all(np.sign(middle[1:]) == -np.sign(middle[:-1]))
        assert np.all(box[5, 6] * middle[5] > 0.0)  # the outer edge is the higher one
        assert np.all(box[:5, 6] * middle[:5] >= 0.0)
        lengths.append(length[0])
        spacings += (np.diff(box[:5, :2].mean(1)) - length[0]).tolist()
        sides += np.abs(middle).tolist()
        begin, end, depth = tile.pit
        depths.append(depth)
        assert 0.05 * begin == pytest.approx(2.45)
        assert 0.05 * end == pytest.approx(box[5, 1] + 0.1)
        assert np.allclose(goals(tile)[1:7], np.stack([box[:, :2].mean(1) + 0.025, middle], 1))
        assert goals(tile)[0] == pytest.approx([2.5 - length[0] / 2, 0.0])
    assert_spread(lengths, 0.9 - 0.3 * d, 1.0 - 0.2 * d, 0.2)
    assert_spread(spacings, -0.1, 0.1 + 0.3 * d)
    assert_spread(sides, 0.2, 0.3 + 0.1 * d)
    assert_spread(depths, 0.2, 1.0, 0.0)


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
