"""MuJoCo Warp on its CPU device: the same physics as MuJoCo's, buffers that say when they are full, bad input.

What every engine must do is in test_engines.py. `python -m pytest --engine warp tests/envs/test_contract.py` tests the
contract of all tasks on it.
"""

import gc
import weakref

import mujoco
import numpy as np
import pytest
import torch

import envs
import ppo
from envs.engines import make_engine
from envs.models import allegro_kuka_scene as scene
from envs.tasks.allegro_kuka import ARM_SPEED, OBJECT
from tests.conftest import the_run
from tests.engines.test_engines import controls, make_spec, run, settle
from tests.envs.test_allegro_kuka_grasp import GRASP, LIFT, RESTING_HEIGHT, START
from tests.envs.test_contract import Waits
from tests.scripts.conftest import assert_same_state, checkpoint

pytest.importorskip("mujoco_warp")
import warp as wp  # noqa: E402

from envs.engines import mujoco_warp, warp_kernels  # noqa: E402

CARTPOLE = "--env-id Cartpole --engine warp --no-cuda --num-envs 8 --num-steps 8 --hidden-sizes 16"


def make(num_envs=6, substeps=3, max_contacts=32, max_constraints=128, spec=None):
    return make_engine(
        "warp",
        [spec.copy if spec else make_spec],
        num_envs,
        substeps,
        ["box"],
        "cpu",
        max_contacts=max_contacts,
        max_constraints=max_constraints,
    )


def pair(env_id, num_envs):
    """The task on both engines, at its beginning."""
    both = [envs.make(env_id, num_envs, "cpu", 1, engine) for engine in ("mujoco", "warp")]
    for env in both:
        env.reset()
    return both


# ---------------------------------------------------------------- what it cannot do


def test_delays_are_refused():
    spec = make_spec()
    spec.actuators[0].delay = 0.01  # s
    spec.actuators[0].nsample = 4
    with pytest.raises(ValueError, match="state of delays"):
        make(spec=spec)


def test_sensors_that_are_misread_are_refused():
    spec = make_spec()
    spec.add_tendon(name="coupling", limited=True, range=[-0.1, 0.1]).wrap_joint("lower", 1.0)
    spec.add_sensor(type=mujoco.mjtSensor.mjSENS_TENDONLIMITFRC, objtype=mujoco.mjtObj.mjOBJ_TENDON, objname="coupling")
    with pytest.raises(ValueError, match="misreads the sensors of limits"):
        make(spec=spec)


# ---------------------------------------------------------------- parity


@pytest.mark.parametrize(
    "env_id, tolerance",
    [
        ("Cartpole", 1e-5),
        ("A1Parkour", 0.1),
        ("AllegroHand", 1e-2),  # angular velocities, at impacts
        ("AllegroKukaRegrasping", 2e-2),
        ("FrankaCubeStack", 2e-3),
        ("ShadowHand", 0.1),
    ],
)
def test_from_the_same_state_a_step_leads_to_the_same(env_id, tolerance):
    ours, theirs = pair(env_id, 8)
    generator = torch.Generator().manual_seed(0)
    action = torch.zeros(8, ours.num_actions)
    errors = []
    for step in range(100):
        action = 0.9 * action + 0.3 * torch.randn(action.shape, generator=generator)
        if step >= 50:
            theirs.load_state_dict(ours.state_dict())
            assert torch.allclose(theirs.observe(), ours.observe(), atol=1e-4)
        _, reward, terminated, truncated, info = ours.step(action)
        if step >= 50:
            _, their_reward, their_terminated, their_truncated, their_info = theirs.step(action)
            assert torch.equal(terminated, their_terminated)
            assert torch.equal(truncated, their_truncated)
            assert torch.allclose(reward, their_reward, rtol=1e-2, atol=0.05)
            errors.append((info["final_obs"] - their_info["final_obs"]).abs().amax(1))
    errors = torch.stack(errors)
    assert errors.quantile(0.95) < tolerance  # not the largest: a contact may begin a substep earlier
    assert errors.median() < 1e-3


def test_a_scripted_reach_grasp_and_lift_is_the_same(monkeypatch):
    """17 s without a correction, observation by observation; in the end both hold the cube a quarter metre higher."""
    monkeypatch.setattr(scene, "object_scales", lambda families: np.ones((1, 3)))
    ours, theirs = pair("AllegroKukaRegrasping", 1)
    lower = ours.joint_lower
    upper = ours.joint_upper
    qpos = ours.engine.qpos.clone()
    qpos[0, :23] = ours.target[0] = torch.tensor(START)
    qpos[0, 23:] = torch.tensor([0.0, 0.0, RESTING_HEIGHT, 1.0, 0.0, 0.0, 0.0])
    ours.engine.set_state(torch.tensor([True]), qpos, torch.zeros_like(ours.engine.qvel))
    ours.goal[:, 2] = 2.0  # out of reach
    theirs.load_state_dict(ours.state_dict())
    differences = []
    for seconds, goal in GRASP + LIFT:
        first = ours.target[0].clone()
        goal = torch.tensor(goal)
        steps = round(seconds / scene.CONTROL_PERIOD)
        for step in range(1, steps + 1):
            t = step / steps
            target = first + (goal - first) * t**3 * (10 - 15 * t + 6 * t**2)  # begins and ends at rest
            arm = (target - ours.target[0])[:7] / (ARM_SPEED * scene.CONTROL_PERIOD)
            action = torch.cat([arm, 2.0 * ((target - lower) / (upper - lower))[7:] - 1.0])[None]
            results = []
            for env in (ours, theirs):
                env.push_probability.zero_()
                env.episode_step.zero_()  # no time limit
                results.append(env.step(action))
            assert not any(result[2].any() for result in results)
            differences.append((results[0][0] - results[1][0]).abs()[0])
    differences = torch.stack(differences)
    assert differences[:480].max() < 5e-3  # before the hand touches
    assert differences[:, :23].max() < 1e-3  # joint angles in [-1, 1]
    assert differences[:, 69:].max() < 1e-3  # m
    assert differences.flatten().quantile(0.99) < 1e-3  # velocities differ for a step where fingers touch
    assert differences[-60:].max() < 5e-3  # held still
    heights = [env.engine.body_pos[0, OBJECT, 2].item() for env in (ours, theirs)]
    assert min(heights) > RESTING_HEIGHT + 0.2
    assert abs(heights[0] - heights[1]) < 1e-3


def test_without_graphs_a_step_is_the_same(monkeypatch, capsys):
    engine = make()
    monkeypatch.setattr(mujoco_warp, "find_graph_problem", lambda device: "an old driver")
    eager = make()
    assert "an old driver" in capsys.readouterr().out
    settle(engine)
    eager.load_state_dict(engine.state_dict())
    for ctrl in controls(engine, 20):
        engine.step(ctrl)
        eager.step(ctrl)
        assert torch.equal(engine.qpos, eager.qpos)
        assert torch.equal(engine.body_linvel, eager.body_linvel)


def test_no_garbage_is_collected_into_a_graph():
    """An engine is no cycle, so that its graphs are not left to the garbage collector."""
    engine = make()
    collected = []
    engine._capture(lambda: collected.append(gc.isenabled()))
    assert collected == [True, False]  # before the capture and within
    assert gc.isenabled()
    gone = weakref.ref(engine)
    del engine
    assert gone() is None


def test_nothing_waits_for_a_gpu():
    engine = make()
    mask = torch.ones(6, dtype=torch.bool)
    qpos = engine.qpos.clone()
    qvel = engine.qvel.clone()
    with Waits() as waits:
        engine.step(torch.zeros(6, 2), torch.zeros(6, 1, 6))
        engine.step(torch.zeros(6, 2))
        engine.set_state(mask, qpos, qvel)
        engine.set_mocap(mask, torch.zeros(6, 0, 7))
    assert waits.count == 0


def test_a_joints_limit_is_not_taken_for_the_tendons_of_its_number():
    """Upstream's sensor does; ours must read 0 while only the tendon is at its limit."""
    spec = make_spec()
    tendon = spec.add_tendon(name="coupling", limited=True, range=[-0.1, 0.1])
    for name in ("lower", "upper"):
        spec.joint(name).range = [-170, 170]  # degrees
        spec.joint(name).limited = True
        tendon.wrap_joint(name, 1.0)
    for name in ("lower", "upper"):
        spec.add_sensor(type=mujoco.mjtSensor.mjSENS_JOINTLIMITFRC, objtype=mujoco.mjtObj.mjOBJ_JOINT, objname=name)
    spec.sensors[1].cutoff = 0.01  # N m, the largest reading
    both = [make_engine(name, [spec.copy], 1, 1, [], "cpu") for name in ("mujoco", "warp")]
    for engine in both:
        qpos = engine.qpos.clone()
        for angles, pressed in (((0.3, 0.0), False), ((3.0, -3.0), True)):
            qpos[0, 7:] = torch.tensor(angles)
            engine.set_state(torch.tensor([True]), qpos, torch.zeros_like(engine.qvel))
            engine.step(torch.zeros(1, 2))
            assert ((engine.sensors > 0) == pressed).all()
            assert engine.sensors[0, 1] <= 0.01


# ---------------------------------------------------------------- CUDA kernels, compiled without a GPU


def compile_for_gpu(modules, arch, folder):
    """The PTX of Warp modules. NVRTC, which comes with Warp, needs no driver."""
    if arch not in wp._src.context.runtime.nvrtc_supported_archs:
        pytest.skip(f"this build of Warp has no NVRTC for sm_{arch}")
    paths = [wp.compile_aot_module(module, arch=arch, module_dir=folder, use_ptx=True)[0] for module in modules]
    return "".join(path.read_text() for path in paths)


@pytest.mark.parametrize("arch", [80, 86, 90])
def test_our_kernels_compile_for_gpus(arch, tmp_path):
    wp.init()
    ptx = compile_for_gpu([warp_kernels], arch, tmp_path)
    assert f".target sm_{arch}\n" in ptx
    for kernel in ("count_buffer_use", "read_joint_limits", "reset_broken", "read_poses"):
        assert f".entry {kernel}_" in ptx


@pytest.mark.parametrize(
    "env_id, arch",
    [
        pytest.param("A1Parkour", 80, marks=pytest.mark.slow),
        ("Ant", 80),
        ("ShadowHand", 86),
        pytest.param("AllegroKukaRegrasping", 90, marks=pytest.mark.slow),
    ],
)
def test_the_kernels_that_mujoco_warp_generates_for_a_model_compile_for_gpus(env_id, arch, tmp_path, monkeypatch):
    """Those that depend on sizes and options of the model."""
    engine = envs.make(env_id, 1, "cpu", 1, "warp").engine
    modules = {}

    def recording(launch):
        def record(kernel, *args, **options):
            modules[kernel.module.name] = kernel.module
            return launch(kernel, *args, **options)

        return record

    for name in ("launch", "launch_tiled"):
        monkeypatch.setattr(wp, name, recording(getattr(wp, name)))
    engine._advance()
    generated = [module for name, module in modules.items() if "__locals__" in name]
    assert generated
    assert compile_for_gpu(generated, arch, tmp_path).count(".visible .entry") >= len(generated)


# ---------------------------------------------------------------- buffers and errors


@pytest.mark.parametrize("setting, too_small", [("max_contacts", 2), ("max_constraints", 5)])
def test_a_full_buffer_names_the_setting_and_a_number_that_is_enough(setting, too_small):
    with pytest.raises(RuntimeError, match=rf"{setting} {too_small}: too small, .* use \d+") as error:
        run(make(**{setting: too_small}), torch.zeros(150, 6, 2))
    engine = make(**{setting: int(str(error.value).split()[-1])})
    run(engine, torch.zeros(150, 6, 2))
    assert (engine.body_pos[:, 0, 2] < 0.15).all()  # the boxes lie


def test_a_full_buffer_of_cylinders_names_the_setting_and_a_number_that_is_enough(monkeypatch):
    spec = make_spec()
    for i in range(2):  # no special algorithm exists for a cylinder on a box
        body = spec.worldbody.add_body(name=f"barrel {i}", pos=[0.5 * i - 2.0, 0.0, 0.06])
        body.add_freejoint()
        body.add_geom(type=mujoco.mjtGeom.mjGEOM_CYLINDER, size=[0.04, 0.05, 0.0])
        spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=[0.2, 0.2, 0.01], pos=[0.5 * i - 2.0, 0.0, 0.0])
    monkeypatch.setattr(mujoco_warp, "MAX_CCD", 1)
    with pytest.raises(RuntimeError, match=r"MAX_CCD \(envs.engines.mujoco_warp\) 1: too small.* use 2$"):
        run(make(spec=spec), torch.zeros(50, 6, 2))
    monkeypatch.setattr(mujoco_warp, "MAX_CCD", 2)
    engine = make(spec=spec)
    run(engine, torch.zeros(50, 6, 2))
    assert (engine.qpos[:, -5] > 0.05).all()  # the barrels stand


def test_a_control_that_is_not_finite_breaks_its_world_and_is_raised_with_the_next_step():
    engine = make()
    ctrl = torch.zeros(6, 2)
    ctrl[4, 1] = torch.nan
    engine.step(ctrl)
    assert engine.broken.tolist() == [False] * 4 + [True, False]
    assert engine.qpos.isfinite().all()
    with pytest.raises(ValueError, match="not finite"):
        engine.step(torch.zeros(6, 2))


# ---------------------------------------------------------------- scripts


def test_a_run_and_its_resumption(capsys):
    ppo.main(f"{CARTPOLE} --total-timesteps 256".split())
    assert "\nCartpole: engine warp, cpu, 8 environments" in capsys.readouterr().out
    whole = checkpoint(the_run())
    the_run().rename("whole")
    ppo.main(f"{CARTPOLE} --total-timesteps 128".split())
    ppo.main(f"{CARTPOLE} --total-timesteps 256 --resume {the_run()}".split())
    assert_same_state(whole, checkpoint(the_run()))


def test_auto_takes_warp_on_a_gpu_alone():
    assert envs.find_engine("auto", "Cartpole", "cpu") == "mujoco"
    assert envs.find_engine("auto", "Cartpole", "cuda") == "warp"
