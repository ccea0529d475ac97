"""Off-screen images of a world. MuJoCo draws them on the CPU, for both engines."""

import ctypes.util
import importlib
import os
import sys

import mujoco
import torch


class Renderer:
    """Draws worlds. Keeps MuJoCo's renderer for the last model, because creating one is slow."""

    def __init__(self):
        self._renderer = self._key = None

    def render(self, model, qpos, qvel, mocap_pos, mocap_quat, camera, width, height, markers):
        """One world as an (height, width, 3) uint8 numpy image.

        model: mujoco.MjModel; qpos (nq,), qvel (nv,), mocap_pos (M, 3), mocap_quat (M, 4) numpy, SI units
        camera: the name of a camera of the model, a mujoco.MjvCamera, or -1 for MuJoCo's free camera.
        markers: where to draw mocap bodies instead, name -> position (3,) m, or position and quaternion (7,).
        """
        if self._key != (id(model), width, height):
            if self._renderer is not None:
                self._renderer.close()
            self._renderer, self._key = _make_renderer(model, width, height), (id(model), width, height)
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:], data.mocap_pos[:], data.mocap_quat[:] = qpos, qvel, mocap_pos, mocap_quat
        for name, pose in (markers or {}).items():
            mocap, pose = model.body(name).mocapid[0], torch.as_tensor(pose).cpu().numpy()
            data.mocap_pos[mocap] = pose[:3]
            if len(pose) == 7:
                data.mocap_quat[mocap] = pose[3:]
        mujoco.mj_forward(model, data)
        self._renderer.update_scene(data, camera)
        return self._renderer.render()


def _make_renderer(model, width, height):
    """An off-screen renderer. Without a display it needs EGL or OSMesa, which are searched for here, on first use."""
    if not any(name in os.environ for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY")):
        for backend, library in (("egl", "EGL"), ("osmesa", "OSMesa")):
            if ctypes.util.find_library(library):
                os.environ["MUJOCO_GL"] = backend  # MuJoCo read it on import and has to read it again
                importlib.reload(sys.modules[mujoco.Renderer.__module__].gl_context)
                break
    model.vis.global_.offwidth = max(width, model.vis.global_.offwidth)
    model.vis.global_.offheight = max(height, model.vis.global_.offheight)
    try:
        return mujoco.Renderer(model, height, width)
    except Exception as error:  # each backend has its own exception type
        raise RuntimeError(f"no OpenGL for off-screen rendering; on Debian: apt-get install libegl1 ({error})")
