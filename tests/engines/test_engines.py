"""The engines: a step is a function of the state, what tasks read is fresh, worlds do not disturb each other."""

import functools
import importlib.util
import math
import os

import mujoco
import numpy as np
import pytest
import torch

import envs.engines

BODIES = ["box", "lower", "upper"]
GEOM = mujoco.mjtGeom
JOINT = mujoco.mjtJoint
ENGINES = [name for name, package in envs.ENGINES.items() if importlib.util.find_spec(package)]
mujoco_only = pytest.mark.parametrize("engine_name", ["mujoco"], indirect=True)


@pytest.fixture(autouse=True, params=ENGINES)
def engine_name(request, monkeypatch):
    """Every test runs on every engine."""
    if request.config.getoption("engine") not in ("mujoco", request.param):
        pytest.skip("--engine asks for another")
    monkeypatch.setattr(f"{__name__}.make_engine", lambda *args: envs.engines.make_engine(request.param, *args))
    return request.param


def make_engine(*args):
    raise AssertionError("the fixture replaces it")


def make_spec(size=0.1):
    """A free box above a plane, and a two-link arm with a motor on each joint. nq 9, nv 8, nu 2."""
    spec = mujoco.MjSpec()
    spec.option.timestep = 0.005
    spec.worldbody.add_geom(type=GEOM.mjGEOM_PLANE, size=[5, 5, 0.1])
    box = spec.worldbody.add_body(name="box", pos=[0, 0, 0.5])
    box.add_freejoint()
    box.add_geom(type=GEOM.mjGEOM_BOX, size=[size] * 3, pos=[0.02, 0, 0])  # centre of mass beside the frame's origin
    lower = spec.worldbody.add_body(name="lower", pos=[0, 2, 1])
    upper = lower.add_body(name="upper", pos=[3 * size, 0, 0])
    for body, axis in ((lower, [0, 0, 1]), (upper, [0, 1, 0])):
        body.add_joint(name=body.name, type=JOINT.mjJNT_HINGE, axis=axis, damping=0.1)
        body.add_geom(type=GEOM.mjGEOM_CAPSULE, fromto=[0, 0, 0, 0.3, 0, 0], size=[0.03, 0, 0])
        motor = spec.add_actuator(name=body.name, target=body.name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        motor.gear[0] = 5.0
    return spec


def make(num_envs=6, substeps=3, sizes=(0.1,), bodies=BODIES):
    return make_engine([functools.partial(make_spec, size) for size in sizes], num_envs, substeps, bodies, "cpu")


def controls(engine, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(steps, engine.num_envs, engine.nu, generator=generator) * 2 - 1


def run(engine, ctrl):
    for c in ctrl:
        engine.step(c)
    return engine.state_dict()["state"]


def settle(engine):
    """Drop the boxes, each with a spin of its own, and wait until they touch the plane."""
    qvel = torch.zeros(engine.num_envs, engine.nv)
    qvel[:, 3:6] = torch.randn(engine.num_envs, 3, generator=torch.Generator().manual_seed(1))
    engine.set_state(torch.ones(engine.num_envs, dtype=torch.bool), engine.qpos.clone(), qvel)
    run(engine, controls(engine, 25))
    assert (engine.body_pos[:, 0, 2] < 0.25).all()


def reference(engine, world):
    """MuJoCo's own MjData at the world's present state."""
    model = engine.models[world % len(engine.models)]
    data = mujoco.MjData(model)
    state = engine.state_dict()["state"][world].numpy()
    mujoco.mj_setState(model, data, state, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    mujoco.mj_forward(model, data)
    return model, data


def assert_fresh(engine):
    for world in range(engine.num_envs):
        model, data = reference(engine, world)
        np.testing.assert_allclose(engine.qpos[world], data.qpos, atol=1e-6)
        np.testing.assert_allclose(engine.qvel[world], data.qvel, atol=1e-5)
        for i, name in enumerate(BODIES):
            body = model.body(name).id
            np.testing.assert_allclose(engine.body_pos[world, i], data.xpos[body], atol=1e-6)
            np.testing.assert_allclose(engine.body_quat[world, i], data.xquat[body], atol=1e-6)
            velocity = np.zeros(6)  # angular, then linear
            mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, body, velocity, 0)
            np.testing.assert_allclose(engine.body_angvel[world, i], velocity[:3], atol=1e-5)
            np.testing.assert_allclose(engine.body_linvel[world, i], velocity[3:], atol=1e-5)


@mujoco_only
def test_same_state_and_controls_give_the_same_bits_with_any_number_of_threads(monkeypatch):
    ctrl = controls(make(40), 60)

    def trajectory(threads, num_envs):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(threads), raising=False)
        engine = make(num_envs, sizes=(0.1, 0.15))
        assert engine.num_threads == threads
        return run(engine, ctrl[:, :num_envs])

    three = trajectory(3, 40)
    assert torch.equal(three, trajectory(1, 40))
    assert torch.equal(three[:6], trajectory(2, 6))  # other chunks, other neighbours


def test_what_tasks_read_is_of_the_present_state():
    engine = make(sizes=(0.1, 0.15))
    assert_fresh(engine)
    for c in controls(engine, 20):
        engine.step(c)
        assert_fresh(engine)
    qpos = engine.qpos.clone() + 0.1
    qvel = engine.qvel.clone() + 0.2
    qpos[:, 3:7] = torch.tensor([0.5, 0.5, -0.5, 0.5])
    engine.set_state(torch.arange(6) % 2 == 0, qpos, qvel)
    assert_fresh(engine)


def test_set_state_leaves_the_other_worlds_alone_while_they_touch():
    engine = make()
    other = make()
    settle(engine)
    settle(other)
    mask = torch.tensor([True, False, False, True, False, False])
    before = engine.state_dict()["state"]
    position = engine.body_pos.clone()
    engine.set_state(mask, torch.full((6, 9), 0.3), torch.zeros(6, 8))
    after = engine.state_dict()["state"]
    assert torch.equal(after[~mask], before[~mask])
    assert torch.equal(engine.body_pos[~mask], position[~mask])
    assert (after[mask, 0] == 0.0).all()
    assert torch.equal(engine.qpos[mask], torch.full((2, 9), 0.3))
    ctrl = controls(engine, 20, seed=2)
    assert torch.equal(run(engine, ctrl)[~mask], run(other, ctrl)[~mask])  # and their future is the same too
    engine.set_state(torch.zeros(6, dtype=torch.bool), engine.qpos, engine.qvel)  # no world at all


def test_each_world_has_its_own_model():
    engine = make(4, sizes=(0.1, 0.2))
    run(engine, torch.zeros(120, 4, 2))
    height = engine.body_pos[:, 0, 2]
    torch.testing.assert_close(height, torch.tensor([0.1, 0.2, 0.1, 0.2]), atol=2e-3, rtol=0.0)


def test_what_cannot_move_stands_where_each_worlds_own_model_has_it():
    def build(height):
        spec = make_spec()
        plate = spec.worldbody.add_body(name="plate", pos=[0, 0, height])
        plate.add_geom(type=GEOM.mjGEOM_BOX, size=[1, 1, 0.05])
        return spec

    engine = make_engine([functools.partial(build, height) for height in (0.05, 0.15)], 4, 3, BODIES, "cpu")
    run(engine, torch.zeros(120, 4, 2))
    height = engine.body_pos[:, 0, 2]
    torch.testing.assert_close(height, torch.tensor([0.2, 0.3, 0.2, 0.3]), atol=2e-3, rtol=0.0)


def test_what_a_world_cannot_have_of_its_own_is_refused():
    def build(height):
        spec = make_spec()
        spec.add_mesh(name="tip", uservert=[0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, height])
        spec.body("box").add_geom(type=GEOM.mjGEOM_MESH, meshname="tip")
        return spec

    with pytest.raises(ValueError):
        make_engine([functools.partial(build, height) for height in (1, 2)], 2, 1, BODIES, "cpu")


def test_models_of_different_timesteps_are_refused():
    def build(timestep):
        spec = make_spec()
        spec.option.timestep = timestep
        return spec

    with pytest.raises(envs.UnsupportedError, match="timestep"):
        make_engine([functools.partial(build, timestep) for timestep in (0.005, 0.01)], 2, 1, BODIES, "cpu")


def test_what_is_fixed_to_a_mocap_body_cannot_be_read():
    spec = make_spec()
    plate = spec.worldbody.add_body(name="plate", mocap=True)
    plate.add_body(name="box on it").add_geom(size=[0.1, 0, 0])
    with pytest.raises(ValueError, match="mocap"):
        make_engine([spec.copy], 1, 1, ["box on it"], "cpu")


@mujoco_only
def test_a_world_moves_to_the_bit_as_its_own_model():
    def build(size, gravity):
        spec = make_spec(size)
        spec.option.gravity[2] = gravity
        return spec

    models = [functools.partial(build, *parts) for parts in ((0.1, -9.81), (0.2, -5.0), (0.15, -7.0))]
    engine = make_engine(models, 5, 120, BODIES, "cpu")
    states = []
    for world in range(5):
        model, data = reference(engine, world)
        mujoco.mj_resetData(model, data)
        mujoco.mj_step(model, data, nstep=120)
        assert data.ncon
        states.append(np.concatenate([[data.time], data.qpos, data.qvel]))
    assert np.array_equal(run(engine, torch.zeros(1, 5, 2)), states)


@mujoco_only
def test_many_joints_move_as_with_a_dense_jacobian():
    """From 60 degrees of freedom on MuJoCo takes a sparse one, which 4.0.0 factorises wrongly."""
    spec = mujoco.MjSpec()
    random = np.random.default_rng(1)
    spec.worldbody.add_geom(type=GEOM.mjGEOM_PLANE, size=[5, 5, 0.1])
    for i in range(4):
        trunk = spec.worldbody.add_body(pos=[0, 0, 0.1 + 0.2 * i])
        trunk.add_freejoint()
        limbs = [trunk]
        for j in range(12):  # three on the trunk, three on each of these
            limbs.append(limbs[j // 3].add_body(pos=random.uniform(-0.12, 0.12, 3)))
            limbs[-1].add_joint(axis=random.normal(size=3))
        for limb in limbs:
            limb.add_geom(type=GEOM.mjGEOM_SPHERE, size=[0.05, 0, 0])
    engine = make_engine([spec.copy], 1, 30, [], "cpu")
    model = spec.compile()
    model.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE.value
    data = mujoco.MjData(model)
    run(engine, torch.zeros(1, 1, 0))
    mujoco.mj_step(model, data, nstep=30)
    assert data.ncon
    assert engine.nv >= 60
    np.testing.assert_allclose(engine.qpos[0], data.qpos, atol=1e-6)


def test_external_force_accelerates_by_force_over_mass_and_ends_with_the_step():
    engine = make(2, substeps=4)
    mass = float(engine.models[0].body("box").mass[0])
    xfrc = torch.zeros(2, 3, 6)
    xfrc[1, 0, 0] = 3.0 * mass
    engine.step(torch.zeros(2, 2), xfrc)
    time = 4 * engine.timestep
    torch.testing.assert_close(engine.qvel[0, :3], torch.tensor([0.0, 0.0, -9.81 * time]), atol=1e-5, rtol=0.0)
    torch.testing.assert_close(engine.qvel[1, :3], torch.tensor([3.0 * time, 0.0, -9.81 * time]), atol=1e-5, rtol=0.0)
    engine.step(torch.zeros(2, 2))
    assert abs(engine.qvel[1, 0] - 3.0 * time) < 1e-5


def test_the_models_own_sensors_are_read_and_forgotten_at_a_reset():
    spec = make_spec()
    sensor = dict(type=mujoco.mjtSensor.mjSENS_JOINTACTFRC, objtype=mujoco.mjtObj.mjOBJ_JOINT)
    for name in ("upper", "lower"):
        spec.add_sensor(objname=name, **sensor)
    engine = make_engine([spec.copy], 3, 2, BODIES, "cpu")
    assert engine.sensors.shape == (3, 2)
    assert not engine.sensors.any()
    assert_fresh(engine)
    ctrl = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    engine.step(ctrl)
    assert torch.allclose(engine.sensors, 5.0 * ctrl.flip(1))  # gear times control, in the order of the sensors
    assert_fresh(engine)
    state = engine.state_dict()
    engine.set_state(torch.tensor([False, True, False]), engine.qpos.clone(), engine.qvel.clone())
    assert torch.allclose(engine.sensors, torch.tensor([[1.0], [0.0], [1.0]]) * 5.0 * ctrl.flip(1))
    engine.load_state_dict(state)
    assert torch.allclose(engine.sensors, 5.0 * ctrl.flip(1))


def make_gallery():
    """A robot, 1 m behind a poster that collides with nothing, which hangs 1 m before the brick of the same wall.

    Half way to the poster stands a pane of glass, which collides but has an invisible material. Sensors: the range to
    what the robot sees in front of it (m), and the distance between the robot and the wall (m).
    """
    spec = mujoco.MjSpec()
    spec.option.gravity = [0, 0, 0]
    spec.add_material(name="glass", rgba=[1, 1, 1, 0])
    pane = spec.worldbody.add_geom(type=GEOM.mjGEOM_BOX, size=[0.01, 2, 2], pos=[0.51, 0, 0])
    pane.material = "glass"
    wall = spec.worldbody.add_body(name="wall")
    wall.add_geom(type=GEOM.mjGEOM_BOX, size=[0.01, 2, 2], pos=[1.01, 0, 0], contype=0, conaffinity=0)
    wall.add_geom(type=GEOM.mjGEOM_BOX, size=[0.01, 2, 2], pos=[2.01, 0, 0])
    robot = spec.worldbody.add_body(name="robot")
    robot.add_freejoint()
    robot.add_geom(type=GEOM.mjGEOM_SPHERE, size=[0.1, 0, 0])
    robot.add_site(name="front", quat=[math.sqrt(0.5), 0, math.sqrt(0.5), 0])  # z, along which it measures, is ahead
    return spec


def test_sensors_see_what_collides_with_nothing_and_not_what_is_invisible():
    spec = make_gallery()
    kind = mujoco.mjtSensor
    body = mujoco.mjtObj.mjOBJ_BODY
    ray = spec.add_sensor(type=kind.mjSENS_RANGEFINDER, objtype=mujoco.mjtObj.mjOBJ_SITE, objname="front")
    ray.intprm[0] = 1 << mujoco.mjtRayDataField.mjRAYDATA_DIST.value
    spec.add_sensor(type=kind.mjSENS_GEOMDIST, objtype=body, objname="robot", reftype=body, refname="wall", cutoff=5.0)
    engine = make_engine([spec.copy], 2, 1, ["robot"], "cpu")
    engine.step(torch.zeros(2, 0))
    torch.testing.assert_close(engine.sensors, torch.tensor([[1.0, 0.9]] * 2), atol=1e-5, rtol=0.0)


def test_where_no_sensor_sees_it_what_collides_with_nothing_slows_no_step_down():
    engine = make_engine([make_gallery], 1, 1, ["robot"], "cpu")
    assert engine.models[0].ngeom == 3


SERVO = """
<mujoco>
  <option gravity="0 0 0" timestep="0.005"/>
  <worldbody>
    <body name="arm">
      <joint name="hinge" axis="0 0 1" damping="1"/>
      <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.03"/>
    </body>
  </worldbody>
  <actuator><intvelocity joint="hinge" kp="50" actrange="-3 3"/></actuator>
</mujoco>
"""


def test_activations_are_set_read_and_kept():
    """The actuator integrates its control, a velocity, to the angle at which it holds the joint: its activation."""

    def make_servo():
        return make_engine([lambda: mujoco.MjSpec.from_string(SERVO)], 2, 20, ["arm"], "cpu")

    engine = make_servo()
    everywhere = torch.tensor([True, True])
    at_one = torch.ones(2, 1)
    at_rest = torch.zeros(2, 1)
    engine.set_state(everywhere, at_one, at_rest, torch.tensor([[1.0], [0.0]]))
    for _ in range(20):  # 2 s
        engine.step(torch.zeros(2, 1))
    assert engine.act.tolist() == [[1.0], [0.0]]
    torch.testing.assert_close(engine.qpos, torch.tensor([[1.0], [0.0]]), atol=1e-3, rtol=0.0)
    for _ in range(10):  # 1 s
        engine.step(torch.full((2, 1), 0.5))
    torch.testing.assert_close(engine.act, torch.tensor([[1.5], [0.5]]), atol=1e-4, rtol=0.0)

    engine.set_state(torch.tensor([False, True]), 2.0 * at_one, at_rest, 2.0 * at_one)
    torch.testing.assert_close(engine.act, torch.tensor([[1.5], [2.0]]), atol=1e-4, rtol=0.0)
    other = make_servo()
    other.load_state_dict(engine.state_dict())
    assert torch.equal(other.act, engine.act)
    engine.step(torch.ones(2, 1))
    other.step(torch.ones(2, 1))
    assert torch.equal(other.state_dict()["state"], engine.state_dict()["state"])

    engine.step(torch.zeros(2, 1), torch.tensor([[[math.nan] * 6], [[0.0] * 6]]))
    assert engine.broken.tolist() == [True, False]
    assert engine.act[0].item() == 0.0
    with pytest.raises(ValueError, match="needs act"):
        engine.set_state(everywhere, at_one, at_rest)
    with pytest.raises(ValueError, match=r"act has shape \(2, 2\), must be \(2, 1\)"):
        engine.set_state(everywhere, at_one, at_rest, torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"qvel has shape \(1, 1\), must be \(2, 1\)"):
        engine.set_state(everywhere, at_one, torch.zeros(1, 1), torch.zeros(2, 1))


def make_mocap(num_envs=4, substeps=3):
    """As make(), with a plate of 1.2 x 0.4 x 0.1 m that has no joint, at first far away."""
    spec = make_spec()
    plate = spec.worldbody.add_body(name="plate", mocap=True, pos=[0, 0, -3])
    plate.add_geom(type=GEOM.mjGEOM_BOX, size=[0.6, 0.2, 0.05])
    return make_engine([spec.copy], num_envs, substeps, BODIES, "cpu")


def test_mocap_bodies_stand_where_they_are_put_and_stop_what_touches_them():
    engine = make_mocap()
    turned = math.sqrt(0.5)  # 90 degrees about y: the plate stands upright, 1.2 m high
    poses = torch.tensor([[0.3, 1, 0, 0, 0], [0.3, turned, 0, turned, 0], [0.2, 1, 0, 0, 0], [0.1, 1, 0, 0, 0]])
    poses = torch.cat([torch.zeros(4, 2), poses], 1)[:, None]
    engine.set_mocap(torch.tensor([True, True, False, False]), poses)
    qpos = engine.qpos.clone()
    qpos[:, :3] = torch.tensor([0.0, 0.0, 1.1])
    engine.set_state(torch.ones(4, dtype=torch.bool), qpos, torch.zeros(4, 8))
    for _ in range(100):
        engine.step(torch.zeros(4, 2))
    top = torch.tensor([0.35, 0.9, 0.0, 0.0])
    torch.testing.assert_close(engine.body_pos[:, 0, 2], top + 0.1, atol=3e-3, rtol=0.0)


def test_state_dict_continues_to_the_bit_and_mocap_poses_belong_to_it():
    engine = make_mocap()
    other = make_mocap()
    poses = torch.tensor([0.0, 0.0, 0.2, 1.0, 0.0, 0.0, 0.0]).repeat(4, 1, 1)
    engine.set_mocap(torch.tensor([True, False, True, False]), poses)
    run(engine, controls(engine, 20))  # boxes land
    state = engine.state_dict()
    assert torch.equal(state["mocap"][0], poses[0, 0].double())
    assert state["mocap"][1].tolist() == [0.0, 0.0, -3.0, 1.0, 0.0, 0.0, 0.0]
    other.load_state_dict(state)
    assert torch.equal(other.body_pos, engine.body_pos)
    assert torch.equal(other.qvel, engine.qvel)
    ctrl = controls(engine, 30, seed=3)
    assert torch.equal(run(engine, ctrl), run(other, ctrl))
    assert (engine.body_pos[[0, 2], 0, 2] > 0.3).all()
    assert (engine.body_pos[[1, 3], 0, 2] < 0.2).all()


def test_mocap_bodies_stay_through_resets_and_broken_worlds():
    engine = make_mocap()
    engine.set_mocap(torch.ones(4, dtype=torch.bool), torch.rand(4, 1, 7))
    before = engine.state_dict()["mocap"]
    engine.set_state(torch.tensor([True, False, False, False]), torch.rand(4, 9), torch.zeros(4, 8))
    xfrc = torch.zeros(4, 3, 6)
    xfrc[1, 0, 0] = math.nan
    engine.step(torch.zeros(4, 2), xfrc)
    assert engine.broken.tolist() == [False, True, False, False]
    assert torch.equal(engine.state_dict()["mocap"], before)


@pytest.mark.parametrize("substeps", [1, 3])
@pytest.mark.parametrize("kind", ["nan state", "nan force", "explosion"])
def test_a_broken_world_starts_anew_and_the_others_do_not_notice(kind, substeps):
    engine = make(substeps=substeps, sizes=(0.1, 0.15))
    intact = make(substeps=substeps, sizes=(0.1, 0.15))
    initial = engine.state_dict()["state"][3]
    run(engine, controls(engine, 5))
    run(intact, controls(engine, 5))
    xfrc = torch.zeros(6, 3, 6)
    fourth = torch.arange(6) == 3
    if kind == "nan state":
        engine.set_state(fourth, torch.full_like(engine.qpos, math.nan), engine.qvel)
    else:
        xfrc[3, 0, 0] = math.nan if kind == "nan force" else 1e12  # after the latter the velocity is finite
    ctrl = torch.zeros(6, 2)
    engine.step(ctrl, xfrc)
    intact.step(ctrl)
    assert torch.equal(engine.broken, fourth)
    assert not intact.broken.any()
    assert torch.equal(engine.state_dict()["state"][3], initial)
    assert_fresh(engine)
    engine.step(ctrl)
    intact.step(ctrl)
    assert not engine.broken.any()
    assert torch.equal(engine.state_dict()["state"][~fourth], intact.state_dict()["state"][~fourth])


@mujoco_only
@pytest.mark.parametrize("substeps", [1, 2])
@pytest.mark.parametrize("memory", [200_000, 700_000])  # too small for the contacts, and for the solver alone
def test_a_world_that_runs_out_of_memory_is_broken(memory, substeps):
    def boxes(gap):
        spec = mujoco.MjSpec()
        spec.memory = memory
        for i in range(12):
            body = spec.worldbody.add_body(name=f"{i}", pos=[0, 0, gap * i])
            body.add_freejoint()
            body.add_geom(type=GEOM.mjGEOM_BOX, size=[0.05] * 3)
        return spec

    engine = make_engine([functools.partial(boxes, gap) for gap in (0.001, 1.0)], 4, substeps, ["0"], "cpu")
    for _ in range(2):
        engine.step(torch.zeros(4, 0))
        assert engine.broken.tolist() == [True, False] * 2


def test_render_shows_the_worlds_own_model():
    engine = make(4, substeps=1, sizes=(0.1, 0.4))
    camera = mujoco.MjvCamera()
    camera.lookat[:] = [0.0, 0.0, 0.5]
    camera.distance = 4.0
    camera.elevation = -20.0
    try:
        images = [engine.render(i, camera=camera, width=160, height=120) for i in range(4)]
    except RuntimeError as error:
        if "OpenGL" not in str(error):
            raise
        pytest.skip(str(error))
    assert images[0].shape == (120, 160, 3)
    assert images[0].dtype == np.uint8
    assert images[0].max() > 0
    assert (images[0] == images[2]).all()
    assert (images[0] != images[1]).any()
