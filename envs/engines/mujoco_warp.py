"""MuJoCo Warp: all worlds in the memory of one GPU, a control step is one CUDA graph. Also runs on a CPU, slowly."""

import contextlib
import dataclasses
import gc

import mujoco
import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp

from envs.base import UnsupportedError
from envs.engines import warp_kernels
from envs.engines.models import check_state, check_structure, find_bodies, make_physics_spec
from envs.engines.rendering import Renderer
from envs.terminal import say

FULL_CONTACTS = mjw.OverflowType.BROADPHASE | mjw.OverflowType.NARROWPHASE
# Fewer worlds get the contact buffers of this many: the mean over few worlds varies more.
MIN_WORLDS_OF_BUFFERS = 8
# Entries per world in the buffer for pairs of shapes that need the general collision algorithm: those with a cylinder
# or a height field. By default it is as long as that of the contacts and takes most of the memory
# (https://github.com/google-deepmind/mujoco_warp/pull/1116).
MAX_CCD = 4
# Sensors that MuJoCo Warp 4.0.0 misreads in a model with tendons, see warp_kernels.read_joint_limits.
MISREAD_SENSORS = (
    mujoco.mjtSensor.mjSENS_JOINTLIMITPOS,
    mujoco.mjtSensor.mjSENS_JOINTLIMITVEL,
    mujoco.mjtSensor.mjSENS_TENDONLIMITPOS,
    mujoco.mjtSensor.mjSENS_TENDONLIMITVEL,
    mujoco.mjtSensor.mjSENS_TENDONLIMITFRC,
)


class MujocoWarp:
    """N worlds; world i runs models[i % len(models)]. The interface is that of `mujoco_cpu.MujocoCpu`.

    The state is float32. Nothing waits for the GPU: errors in a step are raised in a later one.
    """

    name = "warp"

    def __init__(self, models, num_envs, substeps, bodies, device, *, max_contacts, max_constraints):
        """As MujocoCpu, plus buffer sizes per world. All worlds share one buffer for contacts, so max_contacts limits
        the mean over worlds; max_constraints, in rows, limits each world.
        """
        wp.config.log_level = wp.LOG_ERROR  # otherwise it warns on every machine without a GPU
        wp.init()
        self.models = [make_physics_spec(build).compile() for build in models[:num_envs]]
        check_structure(self.models)
        first = self.models[0]
        self.num_envs = num_envs
        self._model_of_world = np.arange(num_envs) % len(self.models)
        self.substeps = substeps
        self.device = torch.device(device)
        self.nq = first.nq
        self.nv = first.nv
        self.na = first.na
        self.nu = first.nu
        self.timestep = first.opt.timestep
        body_ids = find_bodies(first, bodies)
        _check_supported(first)
        for model in self.models:
            # By default MuJoCo Warp collides boxes by its general algorithm. It keeps at most 4 of their contacts,
            # where MuJoCo has up to 8 (https://github.com/google-deepmind/mujoco_warp/pull/864), and in 4.0.0 it finds
            # none between a box of 0.2 m and one of 60 m (https://github.com/google-deepmind/mujoco_warp/issues/1430).
            # With this flag it uses its algorithm for boxes, which finds MuJoCo's contacts.
            model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_NATIVECCD.value
        self.max_contacts = max_contacts
        self.max_constraints = max_constraints

        self._wp_device = wp.device_from_torch(str(self.device))
        with wp.ScopedDevice(self._wp_device):
            self._model = _put_models(self.models)
            self._model.opt.warn_overflow = 0  # `step` raises an error instead
            self._data = self._make_data()
            self._bodies = wp.array(body_ids, dtype=int)
            limits = first.sensor_type == mujoco.mjtSensor.mjSENS_JOINTLIMITFRC
            self._limit_joints = wp.array(first.sensor_objid[limits], dtype=int)
            self._limit_addresses = wp.array(first.sensor_adr[limits], dtype=int)
            self._limit_cutoffs = wp.array(first.sensor_cutoff[limits], dtype=float)
            self._poses = wp.zeros((num_envs, len(bodies), 13), dtype=float)
            self._broken = wp.zeros(num_envs, dtype=bool)
            self._counts = wp.zeros(warp_kernels.NUM_COUNTS, dtype=int)

        # Tensors that share Warp's memory.
        self.qpos = wp.to_torch(self._data.qpos)
        self.qvel = wp.to_torch(self._data.qvel)
        self.act = wp.to_torch(self._data.act)
        self.sensors = wp.to_torch(self._data.sensordata)
        self.broken = wp.to_torch(self._broken)
        poses = wp.to_torch(self._poses)
        self.body_pos, self.body_quat, self.body_linvel, self.body_angvel = poses.split([3, 4, 3, 3], 2)
        self._time = wp.to_torch(self._data.time)
        self._ctrl = wp.to_torch(self._data.ctrl)
        self._xfrc = wp.to_torch(self._data.xfrc_applied)
        self._mocap_pos = wp.to_torch(self._data.mocap_pos)
        self._mocap_quat = wp.to_torch(self._data.mocap_quat)
        self._new_counts = wp.to_torch(self._counts)

        # The counts of the last step that the GPU has finished, on the host.
        on_gpu = self.device.type == "cuda"
        self._seen_counts = torch.zeros(warp_kernels.NUM_COUNTS, dtype=torch.int32, pin_memory=on_gpu)
        self._seen = torch.cuda.Event() if on_gpu else None
        self._body_ids = torch.tensor(body_ids, dtype=torch.long, device=self.device)
        self._pushed = False  # whether _xfrc holds anything but zeros
        self.renderer = Renderer(models)

        problem = find_graph_problem(self._wp_device)
        if problem:
            say(f"no CUDA graphs, every kernel is launched by itself, which is slow: {problem}")
            self._step_graph = None
            self._read_graph = None
        else:
            self._step_graph = self._capture(self._advance)
            self._read_graph = self._capture(self._read)
        self.load_state_dict(self._make_initial_state())

    def step(self, ctrl, xfrc=None):
        """One control step; as MujocoCpu's, except that errors are raised only once the GPU has finished.

        RuntimeError: a buffer was too small in an earlier step and contacts were lost. ValueError: an earlier control
        was not finite; its world is broken. A control of another shape is refused at once.
        """
        if ctrl.shape != self._ctrl.shape:
            raise ValueError(f"a control has shape {tuple(ctrl.shape)}, must be {tuple(self._ctrl.shape)}")
        self._raise_errors()
        self._ctrl.copy_(ctrl)
        if xfrc is not None or self._pushed:
            self._xfrc[:, self._body_ids] = 0.0 if xfrc is None else xfrc
            self._pushed = xfrc is not None
        self._launch(self._step_graph, self._advance)
        self._seen_counts.copy_(self._new_counts, non_blocking=True)
        if self._seen:
            self._seen.record()

    def set_state(self, mask, qpos, qvel, act=None):
        """Put the worlds of mask (N,) bool at qpos (N, nq), qvel (N, nv), act (N, na) and time 0, as MujocoCpu's."""
        check_state(self, qpos, qvel, act)
        rows = mask[:, None]
        self.qpos.copy_(torch.where(rows, qpos, self.qpos))
        self.qvel.copy_(torch.where(rows, qvel, self.qvel))
        if act is not None:
            self.act.copy_(torch.where(rows, act, self.act))
        self.sensors.masked_fill_(rows, 0.0)
        self._time.masked_fill_(mask, 0.0)
        self._launch(self._read_graph, self._read)

    def set_mocap(self, mask, pose):
        """Put the mocap bodies of the worlds of mask (N,) bool at pose (N, M, 7), as MujocoCpu's."""
        rows = mask[:, None, None]
        self._mocap_pos.copy_(torch.where(rows, pose[..., :3], self._mocap_pos))
        self._mocap_quat.copy_(torch.where(rows, pose[..., 3:], self._mocap_quat))

    def state_dict(self):
        """As MujocoCpu's, float64 on the CPU, so that either engine can continue where the other stopped."""
        state = torch.cat([self._time[:, None], self.qpos, self.qvel, self.act], 1)
        mocap = torch.cat([self._mocap_pos.flatten(1), self._mocap_quat.flatten(1)], 1)
        return {"state": state.double().cpu(), "mocap": mocap.double().cpu(), "sensors": self.sensors.clone()}

    def load_state_dict(self, state):
        """Restore what `state_dict` returned."""
        time, qpos, qvel, act = state["state"].split([1, self.nq, self.nv, self.na], 1)
        self._time.copy_(time[:, 0])
        self.qpos.copy_(qpos)
        self.qvel.copy_(qvel)
        self.act.copy_(act)
        self.sensors.copy_(state["sensors"])
        pos, quat = state["mocap"].split([self._mocap_pos[0].numel(), self._mocap_quat[0].numel()], 1)
        self._mocap_pos.copy_(pos.view_as(self._mocap_pos))
        self._mocap_quat.copy_(quat.view_as(self._mocap_quat))
        self._launch(self._read_graph, self._read)

    def render(self, index, **options):
        """World `index` as an (height, width, 3) uint8 numpy image, by MuJoCo; options: see `Renderer.render`."""
        qpos = self.qpos[index].cpu().numpy()
        qvel = self.qvel[index].cpu().numpy()
        mocap_pos = self._mocap_pos[index].cpu().numpy()
        mocap_quat = self._mocap_quat[index].cpu().numpy()
        return self.renderer.render(index, qpos, qvel, mocap_pos, mocap_quat, **options)

    def _make_data(self):
        """A mjw.Data of num_envs worlds, with buffers of the sizes asked for."""
        worlds = max(self.num_envs, MIN_WORLDS_OF_BUFFERS)
        data = mjw.make_data(
            self.models[0],
            self.num_envs,
            naconmax=worlds * self.max_contacts,
            naccdmax=worlds * min(MAX_CCD, self.max_contacts),
            njmax=self.max_constraints,
        )
        # Only here does MuJoCo Warp compute where shapes are that cannot move, and for all worlds as in the first model
        positions = []
        rotations = []
        for model in self.models:
            single = mujoco.MjData(model)
            mujoco.mj_kinematics(model, single)
            positions.append(single.geom_xpos.copy())  # a view would keep the MjData of every model
            rotations.append(single.geom_xmat.copy())
        data.geom_xpos.assign(np.stack(positions)[self._model_of_world])
        data.geom_xmat.assign(np.stack(rotations)[self._model_of_world].reshape(self.num_envs, -1, 3, 3))
        return data

    def _make_initial_state(self):
        """What `state_dict` returns for worlds in the initial states of their models."""
        is_mocap = self.models[0].body_mocapid >= 0
        states = []
        mocaps = []
        for model in self.models:
            states.append(np.concatenate([[0.0], model.qpos0, np.zeros(self.nv + self.na)]))
            mocaps.append(np.concatenate([model.body_pos[is_mocap].ravel(), model.body_quat[is_mocap].ravel()]))
        return {
            "state": torch.from_numpy(np.stack(states)[self._model_of_world]),
            "mocap": torch.from_numpy(np.stack(mocaps)[self._model_of_world]),
            "sensors": torch.zeros_like(self.sensors),
        }

    def _raise_errors(self):
        """Raises what went wrong in an earlier step, if the GPU has finished it."""
        if self._seen and not self._seen.query():
            return
        overflow, contacts, constraints, bad_control = self._seen_counts.tolist()
        if overflow & mjw.OverflowType.NEFC:
            raise RuntimeError(
                f"max_constraints {self.max_constraints}: too small, a world had {constraints} rows of constraints; "
                f"use {int(1.3 * constraints)}"
            )
        if overflow & mjw.OverflowType.CCD:
            raise RuntimeError(
                f"MAX_CCD ({__name__}) {MAX_CCD}: too small for cylinders and height fields; use {2 * MAX_CCD}"
            )
        if overflow & FULL_CONTACTS:
            per_world = contacts / max(self.num_envs, MIN_WORLDS_OF_BUFFERS)
            raise RuntimeError(
                f"max_contacts {self.max_contacts}: too small, the worlds had {per_world:.1f} contacts or "
                f"near-contacts on average; use {int(1.3 * per_world) + 1}"
            )
        if bad_control:
            raise ValueError("a control is not finite")

    # ---------------------------------------------------------------- what the CUDA graphs run

    def _advance(self):
        """One control step."""
        model = self._model
        data = self._data
        # A step depends on state and control alone. MuJoCo Warp begins its solver with the accelerations of the last
        # step (https://github.com/google-deepmind/mujoco_warp/pull/637), which are not part of our state.
        data.qacc_warmstart.zero_()
        for _ in range(self.substeps):
            mjw.step(model, data)
            wp.launch(
                warp_kernels.count_buffer_use,
                dim=self.num_envs,
                inputs=[data.nacon, data.ncollision, data.nefc, data.overflow],
                outputs=[self._counts],
            )
        wp.launch(
            warp_kernels.read_joint_limits,
            dim=(self.num_envs, self._limit_joints.size),
            inputs=[
                self._limit_joints,
                self._limit_addresses,
                self._limit_cutoffs,
                data.nefc,
                data.efc.type,
                data.efc.id,
                data.efc.force,
            ],
            outputs=[data.sensordata],
        )
        wp.launch(
            warp_kernels.reset_broken,
            dim=self.num_envs,
            inputs=[data.ctrl, model.qpos0],
            outputs=[data.qpos, data.qvel, data.act, data.time, data.sensordata, self._broken, self._counts],
        )
        self._read()

    def _read(self):
        """Update the poses, which a step leaves one substep old."""
        model = self._model
        data = self._data
        mjw.kinematics(model, data)
        mjw.com_pos(model, data)
        mjw.com_vel(model, data)
        wp.launch(
            warp_kernels.read_poses,
            dim=self._poses.shape[:2],
            inputs=[self._bodies, model.body_rootid, data.xpos, data.xquat, data.subtree_com, data.cvel],
            outputs=[self._poses],
        )

    def _capture(self, function):
        """The graph of what `function()` launches."""
        with wp.ScopedDevice(self._wp_device):
            function()  # compiles and loads kernels, which is not possible within a capture
            with no_garbage_collection(), wp.ScopedCapture() as capture:
                function()
        return capture.graph

    def _launch(self, graph, function):
        """Launch a graph, or without graphs what it would have been recorded from."""
        if graph:
            wp.capture_launch(graph)
        else:
            with wp.ScopedDevice(self._wp_device):
                function()


@contextlib.contextmanager
def no_garbage_collection():
    """Keeps Python from collecting an old graph within the capture of a new one, which would record its destruction.

    Replaying the new graph would then fail: https://github.com/mujocolab/mjlab/pull/821. Reported to Warp as
    https://github.com/NVIDIA/warp/issues/992 (closed); arrays: https://github.com/NVIDIA/warp/issues/1714 (open).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def find_graph_problem(device):
    """Why a Warp device cannot record the graphs of a step, which allocates memory and loops; None if it can.

    Memory is allocated in a graph from a memory pool (https://nvidia.github.io/warp/stable/deep_dive/allocators.html),
    and the solver's loop is a conditional graph node, which CUDA has from 12.4 on.
    """
    if device.is_cuda and not device.is_mempool_enabled:
        return "the GPU has no memory pools"
    if device.is_cuda and not wp.is_conditional_graph_supported():
        version = ".".join(map(str, wp.get_cuda_driver_version()))
        return f"the driver must be of CUDA 12.4 or later, this is {version}"
    return None


def _check_supported(model):
    """Raises UnsupportedError (one line) for a mujoco.MjModel that this engine would not step as MuJoCo does."""
    num_state = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS.value)
    if num_state != 1 + model.nq + model.nv + model.na:
        raise UnsupportedError("the state of delays and plugins cannot be kept: --engine mujoco keeps that of delays")
    if model.ntendon > 0 and np.isin(model.sensor_type, MISREAD_SENSORS).any():
        raise UnsupportedError("MuJoCo Warp misreads the sensors of limits beside tendons: --engine mujoco does not")


def _put_models(models):
    """The models as one mjw.Model whose arrays have an entry per model where the models differ.

    Raises UnsupportedError for what worlds cannot have of their own, such as gravity or a mesh.
    """
    options = [model.opt for model in models]
    differing = {}
    for prefix, kind, parts in (("", mjw.Model, models), ("opt.", mjw.Option, options)):
        for field in dataclasses.fields(kind):
            values = [getattr(part, field.name, None) for part in parts]
            if not isinstance(values[0], (int, float, np.ndarray)):
                continue
            if all(np.array_equal(value, values[0]) for value in values):
                continue
            has_worlds = getattr(field.type, "shape", [None])[0] == "*"
            if has_worlds and not prefix:
                differing[field.name] = np.stack(values)
            # Worlds share dof_length (mujoco_warp/_src/types.py). Only sleeping reads it (sleep.py there), which
            # `check_structure` refuses.
            elif field.name != "dof_length":
                raise UnsupportedError(
                    f"{prefix}{field.name} differs between models: MuJoCo Warp's worlds must share it"
                )
    model = mjw.put_model(models[0], batch_sizes={name: len(models) for name in differing})
    for name, values in differing.items():
        array = getattr(model, name)
        array.assign(values.reshape(array.numpy().shape))
    return model
