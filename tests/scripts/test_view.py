"""view.py: what the page shows and what its controls do, also in a real browser where there is one."""

import contextlib
import math
import os
import pathlib
import shutil
import socket
import time
from types import SimpleNamespace

import mujoco
import numpy as np
import pytest
import torch
from playwright.sync_api import sync_playwright

import envs
import sapg
import view
from envs.models import ant
from tests.conftest import the_run
from tests.scripts.conftest import ROOT, checkpoint, refused

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
IS_PROMISED = "POPGRAD_BROWSER" in os.environ  # .ci/run has found or installed one
BROWSER_FLAGS = ["--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader", "--disable-background-networking"]
PATIENCE = 90.0  # s, for a browser that draws without a GPU


@contextlib.contextmanager
def serve(task):
    """view.py at a run of four agents after one iteration of training, with three worlds."""
    flags = f"--no-cuda --env-id {task} --num-agents 4 --num-envs 16 --num-minibatches 1 --num-steps 4"
    sapg.main(f"{flags} --total-timesteps 64 --hidden-sizes 8".split())
    viewer = view.Viewer(view.Args(str(the_run()), num_envs=3))
    yield viewer
    viewer.server.stop()


def stand_in(server):
    """Has what a page asks a tab for, without a browser."""
    return SimpleNamespace(
        scene=server.scene, gui=server.gui, atomic=server.atomic, flush=server.flush, camera=SimpleNamespace()
    )


@pytest.fixture
def page():
    with serve("Ant") as viewer:
        yield view.Page(viewer, stand_in(viewer.server))


class LightPage(view.Page):
    """A page without reflections and shadows, since a browser without a GPU draws slowly."""

    opened = []

    def __init__(self, viewer, tab):
        super().__init__(viewer, tab)
        self.choose()
        tab.scene.configure_environment_map(None)
        tab.scene.configure_default_lights(enabled=True, cast_shadow=False)
        self.opened.append(self)


# ---------------------------------------------------------------- the scene


def test_worlds_side_by_side_are_the_worlds_moved_apart():
    offsets = np.array([[0.0, 0.0, 0.0], [3.0, -1.0, 0.0]])
    random = np.random.default_rng(1)
    single = ant.build().compile()
    joined = view.join([ant.build(), ant.build()], offsets)
    data = mujoco.MjData(joined)
    expected = [np.zeros((1, 3))]
    for i, offset in enumerate(offsets):
        own = mujoco.MjData(single)
        own.qpos[:3] = random.normal(size=3)
        own.qpos[7:] = random.uniform(-1.0, 1.0, single.nq - 7)
        mujoco.mj_kinematics(single, own)
        expected.append(own.xpos[1:] + offset)
        data.qpos[i * single.nq : (i + 1) * single.nq] = own.qpos
        data.qpos[i * single.nq : i * single.nq + 3] += offset
    mujoco.mj_kinematics(joined, data)
    np.testing.assert_allclose(data.xpos, np.concatenate(expected), atol=1e-9)
    planes = joined.geom_type == mujoco.mjtGeom.mjGEOM_PLANE.value
    assert planes.sum() == 1


@pytest.fixture
def scene_of():
    """scene_of(env): the scene in which env then draws its worlds, without a browser."""
    server = view.viser.ViserServer("localhost", 8090, verbose=False)

    def make(env):
        scene = view.Scene(stand_in(server), env.engine.renderer)
        env.engine.renderer = scene
        env.reset()
        return scene

    yield make
    server.stop()


def test_the_camera_is_the_tasks_own(scene_of):
    env = envs.make("FrankaCubePush", 1)
    scene = scene_of(env)
    env.render(0)
    position, look_at, fov = view.viewpoint(scene.drawn[0])
    camera = scene.drawn[0].model.camera("overview")
    np.testing.assert_allclose(position, camera.pos, atol=1e-5)
    assert math.degrees(fov) == pytest.approx(camera.fovy[0], abs=1e-3)
    direction = np.array([-0.15, 0.0, 1.38]) - camera.pos  # what the model's camera looks at
    np.testing.assert_allclose(np.cross(look_at - position, direction), 0.0, atol=1e-5)


def test_robots_that_walk_stay_side_by_side(scene_of):
    env = envs.make("Ant", 2)
    scene = scene_of(env)
    scene.build(env, [0, 1])
    env.engine.qpos[1, :2] += torch.tensor([7.0, -3.0])
    for i in (0, 1):
        env.render(i)
    drawn = [scene.drawn[0], scene.drawn[1]]
    bases = np.stack([world.data.xpos[1] for world in drawn])
    apart = np.diff(bases + scene.places(drawn), axis=0)
    np.testing.assert_allclose(apart[:, :2], np.diff(scene.offsets, axis=0)[:, :2], atol=1e-6)


# ---------------------------------------------------------------- pushes and drops


def test_a_push_moves_the_object_and_nothing_else():
    env = envs.make("FrankaCubePush", 3)
    env.reset()
    qpos = env.engine.qpos.clone()
    qvel = env.engine.qvel.clone()
    view.push(env, [0, 2], torch.tensor([0.3, -0.4, 0.5]))
    expected = torch.zeros_like(qvel)
    expected[[0, 2], 9:12] = torch.tensor([0.3, -0.4, 0.5])  # after the arm's and the gripper's nine joints
    torch.testing.assert_close(env.engine.qvel - qvel, expected)
    torch.testing.assert_close(env.engine.qpos, qpos)


def test_a_push_moves_a_cart_along_its_rail():
    env = envs.make("Cartpole", 2)
    env.reset()
    qvel = env.engine.qvel.clone()
    view.push(env, [1], torch.tensor([0.3, -0.4, 0.5]))
    torch.testing.assert_close(env.engine.qvel - qvel, torch.tensor([[0.0, 0.0], [0.3, 0.0]]))


def test_a_push_of_nothing_leaves_the_observation_alone():
    """Also what the sensors in the Ant's feet read."""
    env = envs.make("Ant", 2)
    obs = env.reset()
    for _ in range(60):  # it lands
        obs, *_ = env.step(torch.zeros(2, env.num_actions))
    assert env.engine.sensors.abs().max() > 0.1
    view.push(env, [0, 1], torch.zeros(3))
    torch.testing.assert_close(env.observe(), obs)


@pytest.mark.parametrize(
    "task, hand",
    [  # None: the cube begins in the hand
        ("AllegroKukaRegrasping", "iiwa7_link_7"),
        ("FrankaCubeStack", "panda_leftfinger_tip"),
        ("AllegroHand", None),
        ("ShadowHand", None),
    ],
)
def test_what_is_dropped_falls_freely(task, hand):
    env = envs.make(task, 3)
    env.reset()
    model = env.engine.models[0]
    joint = view.find_pushed_joint(model)
    qpos = env.engine.qpos.clone()
    if hand is not None:
        data = mujoco.MjData(model)
        data.qpos[:] = qpos[0].numpy()
        mujoco.mj_kinematics(model, data)
        start = model.jnt_qposadr[joint]
        qpos[:, start : start + 3] = torch.from_numpy(data.body(hand).xpos)
        env.engine.set_state(torch.ones(3, dtype=torch.bool), qpos, env.engine.qvel)
    view.drop(env, [0, 2])
    torch.testing.assert_close(env.engine.qpos[1], qpos[1])
    env.step(torch.zeros(3, env.num_actions))
    vertical = env.engine.qvel[[0, 2], model.jnt_dofadr[joint] + 2]
    free_fall = torch.full((2,), -9.81 * env.engine.substeps * model.opt.timestep)
    torch.testing.assert_close(vertical, free_fall, rtol=1e-4, atol=0.0)


def test_only_an_object_can_be_dropped():
    dropped = {task: view.holds_an_object(envs.make(task, 1).engine.models[0]) for task in ("Ant", "Cartpole")}
    assert not any(dropped.values())


# ---------------------------------------------------------------- the address


def test_a_port_that_is_taken_is_not_used():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        address, found = view.find_address("localhost", port)
    assert address == "127.0.0.1"
    assert found > port


@pytest.mark.parametrize(
    "host, address, url",
    [
        ("localhost", "127.0.0.1", "http://localhost:8123"),
        ("0.0.0.0", "0.0.0.0", f"http://{socket.gethostname()}:8123"),
        ("192.0.2.2", "192.0.2.2", "http://192.0.2.2:8123"),
        ("2001:db8::1", "2001:db8::1", "http://[2001:db8::1]:8123"),
    ],
)
def test_the_printed_address_is_the_pages(host, address, url, capsys):
    view.announce("RUN", host, address, 8123)
    assert capsys.readouterr().out.split()[0] == url


# ---------------------------------------------------------------- the page


def test_it_plays_the_mean_of_the_agent_that_is_chosen(page):
    page.agent_choice.value = "agent 2"
    page.choose()
    obs = page.obs
    page.step()
    with torch.no_grad():
        ids = torch.full((1, 3), 2)
        _, _, policy, value, _ = page.agent.get_action_and_value(obs[None], ids, None, torch.zeros(1, 3, 0))
    seconds, shown_value, *action = page.history[-1]
    assert action == pytest.approx(policy.mean[0, 0].clamp(-1.0, 1.0).tolist())
    assert shown_value == pytest.approx(page.agent.value_rms.denormalize(value)[0, 0].item() / 0.01)
    assert page.env.episode_length.tolist() == [1, 1, 1]


def test_sampled_actions_differ_from_the_mean(page):
    page.choose()
    mean = page.player.act(page.obs)
    page.sampled.value = True
    page.choose()
    assert (page.player.act(page.obs) != mean).all()


def test_a_paused_page_makes_single_steps(page):
    page.paused.value = True
    page.update()
    page.commands.put("One step")
    page.update()
    page.update()
    assert page.env.episode_length.tolist() == [1, 1, 1]


def test_a_new_episode_begins_in_all_worlds(page):
    for _ in range(3):
        page.update()
    page.paused.value = True
    page.commands.put("New episode")
    page.update()
    assert page.env.episode_length.tolist() == [0, 0, 0]
    torch.testing.assert_close(page.obs, page.env.observe())


def test_a_push_goes_to_the_worlds_that_are_shown(page):
    page.paused.value = True
    page.world_choice.value = "world 1"
    page.push_speed.value = 2.0
    page.update()
    qvel = page.env.engine.qvel.clone()
    page.commands.put("Push sideways")
    page.update()
    gained = page.env.engine.qvel - qvel
    assert gained[1, :2].norm().item() == pytest.approx(2.0)
    assert gained[:, 2:].abs().max() == 0.0
    assert gained[[0, 2]].abs().max() == 0.0
    torch.testing.assert_close(page.obs, page.env.observe())


def test_a_new_checkpoint_is_taken_up(page):
    page.update()
    saved = checkpoint(the_run())
    saved["learner"]["agent"]["actor.bias"] += 1.0
    saved["global_step"] = 12_345
    torch.save(saved, page.file)
    page.last.clear()  # the time to look again has come
    page.update()
    torch.testing.assert_close(page.player.agent.actor.bias.data, saved["learner"]["agent"]["actor.bias"])
    assert "12,345 steps" in page.text.content


def test_a_checkpoint_that_is_lost_or_damaged_stops_nothing(page, capsys):
    page.update()
    capsys.readouterr()
    os.remove(page.file)
    for _ in range(2):
        page.last.clear()
        page.update()
    assert len(capsys.readouterr().out.splitlines()) == 1
    pathlib.Path(page.file).write_bytes(b"damaged")
    page.last.clear()
    page.update()
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert page.env.episode_length.tolist() == [4, 4, 4]


def test_a_run_without_a_checkpoint(tmp_path, capsys):
    assert refused(view, str(tmp_path), capsys).startswith(f"run {tmp_path}: ")


@pytest.mark.parametrize(
    "flags, start",
    [
        (f"{ROOT}/policies/Moat", "run "),
        ("nowhere", "run nowhere: "),
        (f"{ROOT}/policies/Ant --num-envs 0", "--num-envs 0: "),
        (f"{ROOT}/policies/Ant --port 70000", "--port 70000: "),
        (f"{ROOT}/policies/Ant --host nohost.invalid", "--host nohost.invalid: "),
        (f"{ROOT}/policies/Ant --host 203.0.113.77", "--host 203.0.113.77: "),  # of nobody's machine (RFC 5737)
    ],
)
def test_bad_input(flags, start, capsys):
    assert refused(view, flags, capsys).startswith(start)


# ---------------------------------------------------------------- in a browser


def wait_for(condition):
    """Wait until condition() is true."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "the browser has not done it"
        time.sleep(0.1)


def open_tab(browser, viewer):
    """A tab with the page, once the scene is in it, and that page."""
    tab = browser.new_page(viewport={"width": 800, "height": 600}, device_scale_factor=0.3)
    tab.set_default_timeout(1000.0 * PATIENCE)
    tab.goto(f"http://localhost:{viewer.server.get_port()}")
    tab.get_by_text("sapg.py").wait_for()
    return tab, LightPage.opened[-1]


def mean_action(page, k, obs):
    """The first number of the action that agent k takes in the first world."""
    ids = torch.full((1, len(obs)), k)
    with torch.no_grad():
        _, _, policy, _, _ = page.agent.get_action_and_value(obs[None], ids, None, torch.zeros(1, len(obs), 0))
    return policy.mean[0, 0, 0].clamp(-1.0, 1.0).item()


def choose(tab, label, option):
    tab.get_by_role("combobox", name=label).click()
    tab.get_by_role("option", name=option, exact=True).click()


@pytest.fixture
def chromium():
    """A headless browser."""
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=BROWSER, args=BROWSER_FLAGS)
        yield found
        found.close()


@pytest.fixture
def light_viewer(monkeypatch):
    """Of a robot with few parts."""
    monkeypatch.setattr(view, "Page", LightPage)
    with serve("Cartpole") as viewer:
        yield viewer


in_a_browser = pytest.mark.skipif(BROWSER is None and not IS_PROMISED, reason="no Chromium")


@in_a_browser
def test_the_page_in_a_browser(light_viewer, chromium):
    tab, page = open_tab(chromium, light_viewer)
    canvas = tab.locator("canvas").first
    before = canvas.screenshot()
    wait_for(lambda: canvas.screenshot() != before)  # the scene moves

    tab.get_by_label("Pause").click()
    wait_for(lambda: page.paused.value)
    wait_for(lambda: not page.moved)
    for k in (3, 2):  # the action is that of the agent that is chosen
        choose(tab, "Agent", f"agent {k}")
        wait_for(lambda: page.playing == (k, False))
        obs = page.obs.clone()
        seconds = page.seconds
        tab.get_by_role("button", name="One step").click()
        wait_for(lambda: page.seconds > seconds and not page.moved)
        actions = [mean_action(page, agent, obs) for agent in range(4)]
        distances = [abs(page.history[-1][2] - action) for action in actions]
        assert np.argmin(distances) == k
        assert distances[k] < 1e-5

    qpos = page.env.engine.qpos[0].clone()
    tab.get_by_role("button", name="New episode").click()  # one that does not end in the step below
    wait_for(lambda: (page.env.engine.qpos[0] != qpos).any() and not page.moved)
    velocity = page.env.engine.qvel[0].clone()
    place = page.env.engine.qpos[0, 0].item()
    tab.get_by_role("button", name="Push sideways").click()
    wait_for(lambda: (page.env.engine.qvel[0] != velocity).any())
    gained = page.env.engine.qvel[0] - velocity
    angle = 2.0 * math.pi * torch.rand((), generator=torch.Generator().manual_seed(light_viewer.args.seed))
    torch.testing.assert_close(gained, torch.stack([angle.cos(), torch.zeros(())]))
    speed = page.env.engine.qvel[0, 0].item()
    seconds = page.seconds
    tab.get_by_role("button", name="One step").click()
    wait_for(lambda: page.seconds > seconds and not page.moved)
    moved = page.env.engine.qpos[0, 0].item() - place
    assert math.copysign(1.0, moved) == math.copysign(1.0, speed)  # the cart goes where it was pushed


@in_a_browser
def test_tabs_do_not_disturb_each_other(light_viewer, chromium):
    first, page = open_tab(chromium, light_viewer)
    first.get_by_label("Pause").click()
    wait_for(lambda: page.paused.value)
    wait_for(lambda: not page.moved)
    seconds = page.seconds
    camera = page.tab.camera.position.copy()

    second, other = open_tab(chromium, light_viewer)
    assert other is not page
    choose(second, "Agent", "agent 3")
    second.get_by_text("agent 3 of sapg.py").wait_for()
    choose(second, "Show", "world 2")
    box = second.locator("canvas").first.bounding_box()
    second.mouse.move(box["x"] + 100, box["y"] + 300)
    second.mouse.down()
    second.mouse.move(box["x"] + 200, box["y"] + 300, steps=4)
    second.mouse.up()
    wait_for(lambda: other.shown == [2])
    wait_for(lambda: (other.tab.camera.position != camera).any())
    moments = other.seconds
    wait_for(lambda: other.seconds > moments)  # the first one's pause does not stop it

    first.get_by_text("leader (agent 0) of sapg.py").wait_for()
    assert page.playing == (0, False)
    assert page.shown == [0]
    assert page.seconds == seconds
    np.testing.assert_array_equal(page.tab.camera.position, camera)

    second.close()
    wait_for(lambda: len(light_viewer.server.get_clients()) == 1)
    first.get_by_label("Pause").click()
    wait_for(lambda: page.seconds > seconds)  # a closed tab does not stop the other
    moments = other.seconds
    seconds = page.seconds
    wait_for(lambda: page.seconds > seconds + 1.0)
    assert other.seconds == moments  # and costs nothing any more
