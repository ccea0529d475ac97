"""Watch what a run has learned, live in a browser: `python view.py runs/RUN`, also while it trains.

Plays a checkpoint, or a policy of policies/, on the CPU, and switches to each new checkpoint of the run. No OpenGL
is needed. Every tab has its own worlds, controls and camera; see docs/running.md.
"""

import contextlib
import dataclasses
import errno
import io
import math
import os
import queue
import socket
import threading
import time
import warnings
from collections import deque
from types import SimpleNamespace

import envs  # noqa: F401, before torch: Isaac Gym must be imported first
import harness
from envs.engines.rendering import ZONE_COLOUR, find_camera
from envs.terminal import needs_output
from evaluate import Player, can_render, copy_curriculum, load, make_agent, make_env, num_agents_of, seed_noise

import mujoco
import numpy as np
import torch
import tyro

try:
    import trimesh
    import viser
    from mjviser import ViserMujocoScene
except ModuleNotFoundError as error:
    raise SystemExit(f"view.py needs {error.name}: pip install -e '.[view]'") from None

FRAME_PERIOD = 1.0 / 30.0  # s, between pictures
TEXT_PERIOD = 0.2  # s, between updates of the text and the plots
CHECKPOINT_PERIOD = 2.0  # s, between looks for a new checkpoint
HISTORY = 200  # control steps in the plots
SPEEDS = {"1/8 x": 0.125, "1/4 x": 0.25, "1/2 x": 0.5, "1 x": 1.0, "2 x": 2.0}  # relative to real time
ALL = "all, in a grid"
BEST = "best in training"  # by the objective of its latest episodes there; evaluate.py --best looks for the best
SKY = ((0.62, 0.75, 0.90), (0.97, 0.98, 0.99))  # top and bottom
ZONE_OPACITY = 0.2
DROP_DISTANCE = 0.2  # m, how far beside its place an object is dropped; in-hand tasks end the episode at 0.24
DROP_DIRECTIONS = 16
LAST_PORT = 65535


@dataclasses.dataclass
class Args:
    # Policy
    run: tyro.conf.Positional[str]
    """a run's folder, a checkpoint file, or a folder that export.py wrote"""
    # Page
    host: str = "localhost"
    """address to serve the page at; 0.0.0.0 serves it to every machine that reaches this one"""
    port: int = 8080
    """port of the page; if it is taken, the next free one"""
    # Simulation
    num_envs: int = 4
    """worlds to choose from; in some tasks their objects differ"""
    seed: int = 1_000_000
    """random seed of the environments, the action noise and the pushes"""


# ----------------------------------------------------------------------------------------------------------------------
# The scene
# ----------------------------------------------------------------------------------------------------------------------
class Scene:
    """The worlds in 3D. It takes the place of an engine's Renderer, so that it shows what a task's `render` draws."""

    def __init__(self, tab, renderer):
        """tab: a viser.ClientHandle; no other tab shows this scene."""
        self.tab = tab
        self.renderer = renderer
        self.drawn = {}  # world -> what its task drew last
        tab.scene.set_up_direction("+z")

    def render(self, index, qpos, qvel, mocap_pos, mocap_quat, camera=-1, markers=None, zone=None, **ignored):
        """The arguments are those of Renderer.render; size and trail are ignored. `show` draws."""
        model, data = self.renderer.pose(index, qpos, qvel, mocap_pos, mocap_quat, markers)
        self.drawn[index] = SimpleNamespace(model=model, data=data, camera=find_camera(model, camera), zone=zone)

    def build(self, env, worlds):
        """Replace the scene by these worlds, a list of indices, and put the camera where the task's own is."""
        for i in worlds:
            env.render(i)
        self.worlds = worlds
        first = self.drawn[worlds[0]]
        position, look_at, fov = viewpoint(first)
        columns = math.ceil(math.sqrt(len(worlds)))
        grid = np.array([(i % columns, i // columns, 0.0) for i in range(len(worlds))])
        self.offsets = grid * 2.0 * np.linalg.norm(position - look_at) * math.tan(fov / 2.0)  # (n, 3) m
        specs = [self.renderer.models[i % len(self.renderer.models)]() for i in worlds]
        self.tab.scene.reset()
        top, bottom = np.array(SKY)
        sky = top + (bottom - top) * np.linspace(0.0, 1.0, 256)[:, None, None]  # (256, 1, 3)
        self.tab.scene.set_background_image((255 * sky).astype(np.uint8))
        self.bodies = ViserMujocoScene(self.tab, join(specs, self.offsets), 1)
        self.bodies.camera_tracking_enabled = follows(first)
        self.zones = None if first.zone is None else self.add_zones(len(worlds))
        self.show(env)
        shift = self.bodies.fixed_bodies_frame.position
        centre = look_at + self.offsets.mean(0) + shift
        self.tab.camera.position = centre + columns * (position - look_at)
        self.tab.camera.look_at = centre
        self.tab.camera.fov = fov

    def places(self, drawn):
        """Where each world is drawn, (n, 3) m: robots that walk on a plane stay beside the first one."""
        first = drawn[0]
        stands_alone = first.model.body_weldid[1:].all()  # nothing but the plane stays where it is
        if not (follows(first) and stands_alone):
            return self.offsets
        bases = np.stack([world.data.xpos[1] for world in drawn])
        return self.offsets + (bases[0] - bases) * [1.0, 1.0, 0.0]

    def add_zones(self, count):
        """A transparent ball per world, which `show` puts where a success counts."""
        ball = trimesh.creation.icosphere(subdivisions=3)
        return self.tab.scene.add_batched_meshes_simple(
            "/zones",
            ball.vertices,
            ball.faces,
            batched_wxyzs=np.tile([1.0, 0.0, 0.0, 0.0], (count, 1)),
            batched_positions=np.zeros((count, 3)),
            batched_colors=np.tile((255 * np.array(ZONE_COLOUR)).astype(np.uint8), (count, 1)),
            batched_opacities=np.full(count, ZONE_OPACITY),
            lod="off",
            cast_shadow=False,
            receive_shadow=False,
        )

    def show(self, env):
        """Bring the scene up to date with the environments."""
        for i in self.worlds:
            env.render(i)
        drawn = [self.drawn[i] for i in self.worlds]
        positions = [np.zeros((1, 3))]  # of the world itself, then of each world's bodies
        rotations = [np.eye(3)[None]]
        places = self.places(drawn)
        for world, offset in zip(drawn, places):
            positions.append(world.data.xpos[1:] + offset)
            rotations.append(world.data.xmat[1:].reshape(-1, 3, 3))
        with self.tab.atomic():
            self.bodies.update_from_arrays(
                np.concatenate(positions)[None],
                np.concatenate(rotations)[None],
                np.concatenate([world.data.mocap_pos + offset for world, offset in zip(drawn, places)])[None],
                np.concatenate([world.data.mocap_quat for world in drawn])[None],
            )
            if self.zones is not None:
                shift = self.bodies.fixed_bodies_frame.position  # the page moves the scene, not the camera
                centres = np.array([world.zone[0].cpu().numpy() for world in drawn])
                radii = np.array([float(world.zone[1]) for world in drawn])
                self.zones.batched_positions = centres + places + shift
                self.zones.batched_scales = np.tile(radii[:, None], (1, 3))


def join(specs, offsets):
    """One mujoco.MjModel of several mujoco.MjSpec; its bodies are in their order. offsets (n, 3) m: the first is 0.

    The first spec is changed.
    """
    joined = specs[0]
    for i in range(1, len(specs)):
        for geom in list(specs[i].geoms):
            if geom.type == mujoco.mjtGeom.mjGEOM_PLANE.value:  # the first one's ground has no end
                specs[i].delete(geom)
        joined.attach(specs[i], prefix=f"{i}/", frame=joined.worldbody.add_frame(pos=offsets[i]))
    return joined.compile()


def viewpoint(world):
    """Position (3,) m of the camera of Scene.drawn[i], what it looks at (3,) m, vertical field of view (rad)."""
    scene = mujoco.MjvScene(world.model, maxgeom=1)
    mujoco.mjv_updateCamera(world.model, world.data, world.camera, scene)
    left, right = scene.camera
    position = (left.pos + right.pos) / 2.0
    subject = world.data.xpos[world.model.jnt_bodyid[find_pushed_joint(world.model)]]
    distance = (subject - position) @ left.forward
    return position, position + distance * left.forward, 2.0 * math.atan(left.frustum_top / left.frustum_near)


def follows(world):
    """Whether the camera of Scene.drawn[i] follows a robot that walks."""
    if world.camera.type != mujoco.mjtCamera.mjCAMERA_FIXED.value:
        return False
    mode = world.model.cam_mode[world.camera.fixedcamid]
    return mode in (mujoco.mjtCamLight.mjCAMLIGHT_TRACK.value, mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM.value)


# ----------------------------------------------------------------------------------------------------------------------
# Pushes and drops
# ----------------------------------------------------------------------------------------------------------------------
def find_pushed_joint(model):
    """The first free joint: of the object, or of a robot that walks. In a model without one, the first joint."""
    return int(np.argmax(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE.value))


def is_free(model, joint):
    return model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE.value


def holds_an_object(model):
    """Whether the body of `find_pushed_joint` is an object: nothing is attached to it, as to a robot that walks."""
    joint = find_pushed_joint(model)
    body = model.jnt_bodyid[joint]
    return bool(is_free(model, joint) and (model.body_rootid == body).sum() == 1)


def push(env, worlds, velocity):
    """Add velocity (3,) m/s to the object, or to the base of a robot that walks, in these worlds.

    A velocity, not a force: one number suits a cube of 50 g and a robot of 30 kg. Without a free joint, the first joint
    gets the first component.
    """
    model = env.engine.models[0]
    joint = find_pushed_joint(model)
    start = model.jnt_dofadr[joint]
    size = 3 if is_free(model, joint) else 1
    qvel = env.engine.qvel.clone()
    qvel[:, start : start + size] += velocity[:size]
    set_state(env, worlds, env.engine.qpos, qvel)


def drop(env, worlds):
    """Put the object DROP_DISTANCE beside its place, at rest and at the same height, in these worlds.

    That is clear of the hand: of all directions, it is the one that leads farthest away from everything that moves.
    """
    qpos = env.engine.qpos.clone()
    qvel = env.engine.qvel.clone()
    angles = np.linspace(0.0, 2.0 * math.pi, DROP_DIRECTIONS, endpoint=False)
    offsets = DROP_DISTANCE * np.stack([np.cos(angles), np.sin(angles)], 1)  # (DROP_DIRECTIONS, 2) m
    for i in worlds:
        model = env.engine.models[i % len(env.engine.models)]
        joint = find_pushed_joint(model)
        start = model.jnt_qposadr[joint]
        first_dof = model.jnt_dofadr[joint]
        data = mujoco.MjData(model)
        data.qpos[:] = qpos[i].numpy()
        mujoco.mj_kinematics(model, data)
        moves = (model.body_weldid > 0) & (model.body_mocapid < 0)
        moves[model.jnt_bodyid[joint]] = False
        places = data.qpos[start : start + 2] + offsets
        distances = np.linalg.norm(places[:, None] - data.xpos[None, moves, :2], axis=2)
        qpos[i, start : start + 2] = torch.from_numpy(places[distances.min(1).argmax()])
        qvel[i, first_dof : first_dof + 6] = 0.0
    set_state(env, worlds, qpos, qvel)


def set_state(env, worlds, qpos, qvel):
    """The engine's set_state in these worlds, without its sensors being 0 until the next step: policies see some."""
    engine = env.engine
    mask = torch.zeros(env.num_envs, dtype=torch.bool)
    mask[worlds] = True
    sensors = engine.sensors.clone()
    engine.set_state(mask, qpos, qvel, engine.act if engine.na else None)
    engine.sensors.copy_(sensors)


# ----------------------------------------------------------------------------------------------------------------------
# The address
# ----------------------------------------------------------------------------------------------------------------------
def find_address(host, port):
    """The numeric address of `host`, and its first free port from `port` on. Refused if this machine has neither.

    viser would try further ports without end where the address is at fault, and wrap a port that is too large.
    """
    if not 0 <= port <= LAST_PORT:
        harness.refuse("--port", port, f"must be between 0 and {LAST_PORT}")
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        harness.refuse("--host", host, f"no such address ({error.strerror})")
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)  # IPv4 where there is one
    for candidate in range(port, LAST_PORT + 1):
        try:
            with socket.create_server((address[0], candidate), family=family) as listener:
                return address[0], listener.getsockname()[1]
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):  # EACCES: a port for the administrator alone
                harness.refuse("--host", host, f"must be an address of this machine ({error.strerror})")
    harness.refuse("--port", port, "neither this port nor a higher one is free")


def announce(run, host, address, port):
    """Print where the page is. host: as it was given; address: the numeric one."""
    end = "Ctrl-C ends it"
    if address.startswith("127.") or address == "::1":
        print(f"http://localhost:{port} plays {run}; {end}")
        tunnel = f"ssh -L {port}:localhost:{port} THIS_MACHINE"
        print(f"from another machine: {tunnel}, then the same address there", flush=True)
        return
    if address in ("0.0.0.0", "::"):  # all addresses of this machine
        name = socket.gethostname()
    else:
        name = f"[{host}]" if ":" in host else host
    print(f"http://{name}:{port} plays {run}; {end}")
    print(f"everybody who can reach {name}:{port} can watch and use the controls", flush=True)


# ----------------------------------------------------------------------------------------------------------------------
# The page
# ----------------------------------------------------------------------------------------------------------------------
class Viewer:
    """Serves the page. Every tab plays on its own, in a thread, so that none waits for another or sees its controls."""

    def __init__(self, args):
        self.args = args
        self.file = harness.checkpoint_file(harness.policy_file(args.run))
        # The time is taken before the file is read, so that a newer file is noticed. `load` refuses a missing one
        self.file_time = os.stat(self.file).st_mtime_ns if os.path.isfile(self.file) else None
        self.saved, self.script = load(args.run)
        env = make_env(self.saved, 1, args.seed, "auto", "cpu")
        if getattr(env, "engine", None) is None or not can_render(env):
            task = self.saved["args"]["env_id"]
            harness.refuse("run", args.run, f"{task} has no MuJoCo scene to show; try evaluate.py --video")
        seed_noise(args.seed)
        self.address, port = find_address(args.host, args.port)
        with contextlib.redirect_stdout(io.StringIO()):  # viser's own banner; `announce` says more
            self.server = viser.ViserServer(self.address, port, label="popgrad", verbose=False)
        self.server.gui.configure_theme(show_logo=False, show_share_button=False)
        self.server.gui.main_panel.dock_right()
        self.server.on_client_connect(self.open)
        warnings.filterwarnings("ignore", "Queued a .* on a closed connection")  # a tab may close during an update

    def open(self, tab):
        """Begin to play in a new tab, a viser.ClientHandle."""
        threading.Thread(target=self.play, args=(tab,), daemon=True).start()  # viser's own threads are few

    def play(self, tab):
        """Play in a tab until it is closed."""
        page = Page(self, tab)
        due = time.monotonic()
        while tab.client_id in self.server.get_clients():
            try:
                page.update()
            except RuntimeError as error:
                # viser 1.1.1 wakes its sender from this thread, which may fail; what it was given it sends all the same
                if "deque mutated" not in str(error):
                    raise
            now = time.monotonic()
            due = max(due + page.period(), now)  # time that was lost is not made up for
            time.sleep(due - now)


class Page:
    """What a tab shows: a policy that plays in args.num_envs environments, of which one or all are in the scene."""

    def __init__(self, viewer, tab):
        args = viewer.args
        self.saved = viewer.saved
        self.script = viewer.script
        self.file = viewer.file
        self.file_time = viewer.file_time
        self.tab = tab
        self.env = make_env(self.saved, args.num_envs, args.seed, "auto", "cpu")
        self.agent = make_agent(self.saved, self.script, self.env, "cpu")
        self.push_generator = torch.Generator().manual_seed(args.seed)
        self.scene = Scene(tab, self.env.engine.renderer)
        self.env.engine.renderer = self.scene
        self.commands = queue.SimpleQueue()  # from the buttons, which viser handles in threads of its own
        self.last = {}  # what happens periodically -> when it last did
        self.add_controls()
        self.player = None
        self.playing = None  # the agent of `player`, and whether it samples its actions
        self.shown = None  # the worlds in the scene
        self.moved = False  # whether the scene is out of date
        self.begin_episodes()

    def add_controls(self):
        gui = self.tab.gui
        num_agents = num_agents_of(self.saved)
        named = ["leader", BEST] if hasattr(self.script.Agent, "leader") else [BEST]
        agents = ["agent 0"] if num_agents == 1 else [*named, *(f"agent {k}" for k in range(num_agents))]
        worlds = [f"world {i}" for i in range(self.env.num_envs)]
        self.text = gui.add_markdown("")
        with gui.add_folder("Policy"):
            self.agent_choice = gui.add_dropdown("Agent", agents)
            self.sampled = gui.add_checkbox("Sample actions", False, hint="else the mean of the policy")
        with gui.add_folder("World"):
            self.world_choice = gui.add_dropdown("Show", worlds if len(worlds) == 1 else [*worlds, ALL])
            self.speed = gui.add_dropdown("Speed", list(SPEEDS), initial_value="1 x")
            self.paused = gui.add_checkbox("Pause", False)
            self.add_buttons("Time", "One step", "New episode")
            self.push_speed = gui.add_slider("Push (m/s)", 0.1, 5.0, 0.1, 1.0)
            model = self.env.engine.models[0]
            down = ["Push down"] if is_free(model, find_pushed_joint(model)) else []
            drops = ["Drop it"] if holds_an_object(model) else []
            self.add_buttons("Disturb", "Push sideways", *down, *drops)
        self.value_plot = self.add_plot("value estimate", 1)
        self.action_plot = self.add_plot("action", self.env.num_actions)

    def add_buttons(self, label, *names):
        buttons = self.tab.gui.add_button_group(label, names)
        buttons.on_click(lambda _: self.commands.put(buttons.value))

    def add_plot(self, title, num_lines):
        series = [viser.uplot.Series(label="s")]
        for i in range(num_lines):
            series.append(viser.uplot.Series(stroke=f"hsl({360 * i // num_lines}, 65%, 45%)", width=1))
        return self.tab.gui.add_uplot(
            tuple(np.zeros((1 + num_lines, 2))),
            tuple(series),
            title=title,
            scales={"x": viser.uplot.Scale(time=False)},
            legend=viser.uplot.Legend(show=False),
            aspect=3.0,
        )

    # ---------------------------------------------------------------- what happens in the worlds

    def begin_episodes(self):
        self.obs = self.env.reset()
        self.playing = None  # an LSTM begins with an empty memory
        self.seconds = 0.0
        self.history = deque(maxlen=HISTORY)  # seconds, value estimate and actions of the first world shown
        self.finished = "| | | |"

    def choose(self):
        """Do what the dropdowns and checkboxes say."""
        num_envs = self.env.num_envs
        choice = self.world_choice.value
        shown = list(range(num_envs)) if choice == ALL else [int(choice.split()[1])]
        if shown != self.shown:
            self.shown = shown
            self.history.clear()
            self.finished = "| | | |"
            self.scene.build(self.env, shown)
        k = self.chosen_agent(self.agent_choice.value)
        if self.playing != (k, self.sampled.value):
            self.playing = (k, self.sampled.value)
            self.player = Player(self.agent, torch.full((num_envs,), k), deterministic=not self.sampled.value)

    def chosen_agent(self, choice):
        """The number of the agent of a choice in the dropdown."""
        if choice == "leader":
            return self.script.Agent.leader
        if choice == BEST:
            means = self.saved["rollout"][0]["episodes"]["means"]
            objectives = means[harness.OBJECTIVE]  # NaN where no episode has ended
            return objectives.nan_to_num(-math.inf).argmax().item()
        return int(choice.split()[1])

    def obey(self, command):
        """Do what a button says."""
        self.moved = True
        if command == "One step":
            self.step()
        elif command == "New episode":
            self.begin_episodes()
            self.choose()
        elif command == "Drop it":
            drop(self.env, self.shown)
            self.obs = self.env.observe()
        else:
            angle = 2.0 * math.pi * torch.rand((), generator=self.push_generator)
            sideways = torch.stack([angle.cos(), angle.sin(), torch.zeros(())])
            direction = torch.tensor([0.0, 0.0, -1.0]) if command == "Push down" else sideways
            push(self.env, self.shown, self.push_speed.value * direction)
            self.obs = self.env.observe()

    def step(self):
        """One control step of all worlds."""
        self.moved = True
        action = self.player.act(self.obs)
        k = self.playing[0]
        first = self.shown[0]
        network = self.agent[k] if isinstance(self.agent, torch.nn.ModuleList) else self.agent  # PBT: one each
        value = network.value_rms.denormalize(self.player.value[0, first]) / self.saved["args"]["reward_scale"]
        self.history.append([self.seconds, value.item(), *action[first].clamp(-1.0, 1.0).tolist()])
        self.obs, _, terminated, truncated, info = self.env.step(action)
        self.player.dones = (terminated | truncated)[None]
        self.seconds += 1.0 / self.env.frame_rate
        if info["episode"]["done"][first]:
            self.finished = describe(*(info["episode"][key][first] for key in ("length", "return", "objective")))

    def take_up_checkpoint(self):
        """Play the run's new checkpoint, if there is one. One that is gone or damaged is named in a line."""
        file_time = os.stat(self.file).st_mtime_ns if os.path.isfile(self.file) else None
        if file_time == self.file_time:
            return
        self.file_time = file_time
        try:
            saved = harness.read_checkpoint(self.file)
        except ValueError as error:
            print(f"{self.file}: {error}; the page goes on with step {self.saved['global_step']:,}", flush=True)
            return
        self.saved = saved
        self.agent = make_agent(saved, self.script, self.env, "cpu")
        copy_curriculum(self.env, saved)
        self.playing = None

    def write(self):
        """Bring text and plots up to date."""
        k = self.playing[0]
        first = self.shown[0]
        env = self.env
        episode = describe(env.episode_length[first], env.episode_return[first], env.objective()[first])
        task = self.saved["args"]["env_id"]
        script = self.saved["script"]
        steps = self.saved["global_step"]
        choice = self.agent_choice.value
        who = choice if choice == f"agent {k}" else f"{choice} (agent {k})"
        self.text.content = (
            f"**{task}**, {who} of {script}.py after {steps:,} steps\n\n"
            f"|world {first}| step | return | objective |\n|-|-|-|-|\n"
            f"|now {episode}\n|before {self.finished}\n"
        )
        if len(self.history) > 1:
            seconds, value, *actions = np.array(self.history).T
            self.value_plot.data = (seconds, value)
            self.action_plot.data = (seconds, *actions)

    # ---------------------------------------------------------------- time

    def is_due(self, name, period):
        """Whether `period` seconds have passed since this was last true for `name`."""
        now = time.monotonic()
        if now - self.last.get(name, -math.inf) < period:
            return False
        self.last[name] = now
        return True

    def update(self):
        """Whatever is to be done before the next control step, and the step unless the worlds are paused."""
        if self.is_due("checkpoint", CHECKPOINT_PERIOD):
            self.take_up_checkpoint()
        self.choose()
        while not self.commands.empty():
            self.obey(self.commands.get())
        if not self.paused.value:
            self.step()
        if self.moved and self.is_due("frame", FRAME_PERIOD):
            self.scene.show(self.env)
            self.moved = False
        if self.is_due("text", TEXT_PERIOD):
            self.write()

    def period(self):
        """Seconds from one update to the next, at the speed that is chosen."""
        return 1.0 / (self.env.frame_rate * SPEEDS[self.speed.value])


def describe(length, episode_return, objective):
    """An episode as cells of a table."""
    return f"| {length:.0f} | {episode_return:.1f} | {objective:.4g} |"


@needs_output()
def main(argv=None):
    args = harness.parse_program_args(Args, "view", __doc__, argv)
    if args.num_envs < 1:
        harness.refuse("--num-envs", args.num_envs, "must be at least 1")
    viewer = Viewer(args)
    announce(args.run, args.host, viewer.address, viewer.server.get_port())
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
    viewer.server.stop()


if __name__ == "__main__":
    main()
