"""Off-screen images of a world. MuJoCo draws them on the CPU, for both engines."""

import collections
import ctypes.util
import functools
import importlib
import os
import sys

import mujoco
import numpy as np
import torch

CACHED_MODELS = 64  # worlds may have models of their own; compiling one takes some ms
TRAIL_LENGTH = 40  # images
TRAIL_WIDTH = 0.008  # m
TRAIL_COLOUR = (0.98, 0.45, 0.05)
JUMP = 0.3  # m; a body that moved farther between two images was put elsewhere
ZONE_WIDTH = 0.0018  # m
ZONE_COLOUR = (0.10, 0.65, 0.30)


class Renderer:
    """Draws worlds; world i looks like models[i % len(models)], functions as MujocoCpu takes them.

    These models include everything that is only drawn, which the engines' own leave out. To draw in a browser, view.py
    puts an object with the same method `render` in its place.
    """

    def __init__(self, models):
        self.models = models
        self._compile = functools.lru_cache(CACHED_MODELS)(lambda i: models[i]().compile())
        self._renderer = None
        self._size = None  # of the renderer's images: width, height
        self._trails = collections.defaultdict(lambda: collections.deque(maxlen=TRAIL_LENGTH))  # world -> positions

    def pose(self, index, qpos, qvel, mocap_pos, mocap_quat, markers):
        """World `index` in this state, for arguments see `render`. Returns its mujoco.MjModel and mujoco.MjData."""
        model = self._compile(index % len(self.models))
        data = mujoco.MjData(model)
        data.qpos[:] = qpos
        data.qvel[:] = qvel
        data.mocap_pos[:] = mocap_pos
        data.mocap_quat[:] = mocap_quat
        for name, marker in (markers or {}).items():
            mocap = model.body(name).mocapid[0]
            pose = torch.as_tensor(marker).cpu().numpy()
            data.mocap_pos[mocap] = pose[:3]
            if len(pose) == 7:
                data.mocap_quat[mocap] = pose[3:]
        mujoco.mj_forward(model, data)
        return model, data

    def render(
        self,
        index,
        qpos,
        qvel,
        mocap_pos,
        mocap_quat,
        camera=-1,
        width=640,
        height=480,
        markers=None,
        zone=None,
        trail=None,
    ):
        """World `index` as an (height, width, 3) uint8 numpy image.

        qpos (nq,), qvel (nv,), mocap_pos (M, 3), mocap_quat (M, 4) numpy, SI units
        camera: the name of a camera of the model, a mujoco.MjvCamera, or -1 for MuJoCo's free camera.
        markers: where to draw mocap bodies instead, name -> position (3,) m, or position and quaternion (7,).
        zone: the sphere to show, centre (3,) m and radius (m), or None.
        trail: the name of a body; a line shows where it was in the last images of this world. None: no line.
        """
        model, data = self.pose(index, qpos, qvel, mocap_pos, mocap_quat, markers)
        if self._size != (width, height):
            if self._renderer is not None:
                self._renderer.close()
            self._renderer = _make_renderer(model, width, height)
            self._size = (width, height)
        # mujoco.Renderer.update_scene does what follows, but only for the model that the renderer was made for. The
        # models of one engine have the same structure and textures, so one renderer, slow to create, serves them all.
        scene = self._renderer.scene
        camera = find_camera(model, camera)
        mujoco.mjv_updateCamera(model, data, camera, scene)  # what is translucent is sorted by distance from it
        everything = mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(model, data, mujoco.MjvOption(), None, camera, everything, scene)
        if zone is not None:
            _draw_sphere(scene, torch.as_tensor(zone[0]).cpu().numpy(), float(zone[1]))
        if trail is not None:
            points = self._trails[index]
            points.append(data.body(trail).xpos.copy())
            fading = [(*TRAIL_COLOUR, i / len(points)) for i in range(1, len(points))]  # the oldest end is transparent
            _draw_line(scene, list(points), TRAIL_WIDTH, fading)
        return self._renderer.render()


def _draw_line(scene, points, width, colours):
    """Add a line without shadow through points [(3,) m] to a mujoco.MjvScene; colours: rgba (4,) of each segment."""
    capsule = mujoco.mjtGeom.mjGEOM_CAPSULE
    for first, second, colour in zip(points, points[1:], colours):
        if 0.0 < np.linalg.norm(second - first) < JUMP and scene.ngeom < scene.maxgeom:
            geom = scene.geoms[scene.ngeom]
            rgba = np.array(colour, np.float32)
            mujoco.mjv_initGeom(geom, capsule, np.zeros(3), np.zeros(3), np.eye(3).ravel(), rgba)
            mujoco.mjv_connector(geom, capsule, width, first, second)
            geom.castshadow = False
            scene.ngeom += 1


def _draw_sphere(scene, centre, radius):
    """Add three great circles of a sphere. A transparent ball would throw a dark shadow on whatever is inside it."""
    angles = np.linspace(0.0, 2.0 * np.pi, 49)
    circle = np.stack([np.cos(angles), np.sin(angles), np.zeros(49)], 1) * radius
    for axis in range(3):
        _draw_line(scene, list(centre + np.roll(circle, axis, 1)), ZONE_WIDTH, [(*ZONE_COLOUR, 1.0)] * 48)


def find_camera(model, camera):
    """The mujoco.MjvCamera that `camera`, an argument of Renderer.render, stands for."""
    if isinstance(camera, mujoco.MjvCamera):
        return camera
    found = mujoco.MjvCamera()
    if camera == -1:
        mujoco.mjv_defaultFreeCamera(model, found)
    else:
        found.type = mujoco.mjtCamera.mjCAMERA_FIXED
        found.fixedcamid = model.camera(camera).id
    return found


def _make_renderer(model, width, height):
    """An off-screen renderer. Without a display it needs EGL or OSMesa, which are searched for here, on first use."""
    if not any(name in os.environ for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY")):
        for backend, library in (("egl", "EGL"), ("osmesa", "OSMesa")):
            if ctypes.util.find_library(library):
                os.environ["MUJOCO_GL"] = backend
                break
    if "MUJOCO_GL" in os.environ:
        # MuJoCo read the variable when it was imported, and has to read it again. It would read it when a renderer is
        # made with https://github.com/google-deepmind/mujoco/pull/3366.
        importlib.reload(sys.modules[mujoco.Renderer.__module__].gl_context)
    model.vis.global_.offwidth = max(width, model.vis.global_.offwidth)
    model.vis.global_.offheight = max(height, model.vis.global_.offheight)
    try:
        return mujoco.Renderer(model, height, width)
    except Exception as error:  # each backend has its own exception type
        reason = f"no OpenGL for off-screen rendering; on Debian: apt-get install libegl1 ({error})"
        raise RuntimeError(reason) from error
