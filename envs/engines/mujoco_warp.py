"""MuJoCo Warp: all worlds in the memory of one GPU, a control step is one CUDA graph. Also runs on a CPU, slowly."""

import contextlib
import dataclasses
import gc
import sys
import threading

import mujoco
import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp

from envs.engines.rendering import Renderer

HUGE = wp.constant(1e6)  # SI units; a position or velocity beyond it means that the world has diverged
JOINT_LIMIT = wp.constant(int(mujoco.mjtConstraint.mjCNSTR_LIMIT_JOINT))
FULL = mjw.OverflowType.BROADPHASE | mjw.OverflowType.NARROWPHASE
FEW = 8  # worlds; fewer get the contact buffers of this many, since their mean varies more
MAX_CCD = 4  # buffer per world and kind for pairs of shapes that need the general algorithm: those with a cylinder
# Bytes per world that a step allocates besides the data, measured on the tasks: at most 16 kB, plus 6.9 kB per entry
# of the buffer for such pairs.
WORKSPACE, WORKSPACE_CCD = 16_000, 6_900


@wp.kernel
def count(
    nacon: wp.array[int], ncollision: wp.array[int], nefc: wp.array[int], overflow: wp.array[int], counts: wp.array[int]
):
    """After a substep: counts = bits of buffers that were too small, most contacts and constraint rows so far."""
    world = wp.tid()
    if world == 0:
        wp.atomic_max(counts, 1, wp.max(nacon[0], ncollision[0]))
    wp.atomic_max(counts, 2, nefc[world])
    wp.atomic_or(counts, 0, overflow[world])


@wp.kernel
def read_limits(
    joints: wp.array[int], addresses: wp.array[int], nefc: wp.array[int], efc_type: wp.array2d[int],
    efc_id: wp.array2d[int], efc_force: wp.array2d[float], sensordata: wp.array2d[float],
):  # fmt: skip
    """The torque of each joint's limit. Warp's own sensor confuses the joint with the tendon of the same id."""
    world, i = wp.tid()
    force = float(0.0)
    for row in range(wp.min(nefc[world], efc_type.shape[1])):
        if efc_type[world, row] == JOINT_LIMIT and efc_id[world, row] == joints[i]:
            force = efc_force[world, row]
    sensordata[world, addresses[i]] = force


@wp.kernel
def reset_broken(
    ctrl: wp.array2d[float], qpos0: wp.array2d[float], qpos: wp.array2d[float], qvel: wp.array2d[float],
    time: wp.array[float], sensordata: wp.array2d[float], broken: wp.array[bool], counts: wp.array[int],
):  # fmt: skip
    """After a control step: put worlds whose state is nan or huge back into their model's initial state."""
    world = wp.tid()
    finite = bool(True)
    for i in range(qpos.shape[1]):
        finite = finite and wp.abs(qpos[world, i]) < HUGE  # written so that nan counts as broken
    for i in range(qvel.shape[1]):
        finite = finite and wp.abs(qvel[world, i]) < HUGE
    for i in range(ctrl.shape[1]):
        if not wp.isfinite(ctrl[world, i]):
            counts[3] = 1
    broken[world] = not finite
    if not finite:
        for i in range(qpos.shape[1]):
            qpos[world, i] = qpos0[world % qpos0.shape[0], i]
        for i in range(qvel.shape[1]):
            qvel[world, i] = 0.0
        for i in range(sensordata.shape[1]):
            sensordata[world, i] = 0.0
        time[world] = 0.0


@wp.kernel
def read_poses(
    bodies: wp.array[int], rootid: wp.array[int], xpos: wp.array2d[wp.vec3], xquat: wp.array2d[wp.quat],
    subtree_com: wp.array2d[wp.vec3], cvel: wp.array2d[wp.spatial_vector], poses: wp.array3d[float],
):  # fmt: skip
    """Position, quaternion, velocity of the frame's origin and angular velocity of each listed body."""
    world, i = wp.tid()
    body = bodies[i]
    position, quaternion, velocity = xpos[world, body], xquat[world, body], cvel[world, body]
    angular = wp.spatial_top(velocity)  # MuJoCo gives the velocity at the centre of mass of the whole tree
    linear = wp.spatial_bottom(velocity) + wp.cross(angular, position - subtree_com[world, rootid[body]])
    for k in range(3):
        poses[world, i, k] = position[k]
        poses[world, i, 7 + k] = linear[k]
        poses[world, i, 10 + k] = angular[k]
    for k in range(4):
        poses[world, i, 3 + k] = quaternion[k]


class MujocoWarp:
    """N worlds, world i runs models[i % len(models)]. The interface is that of `mujoco_cpu.MujocoCpu`.

    The state is float32. Nothing waits for the GPU: errors in a step are raised in a later one.
    """

    name = "warp"

    def __init__(self, models, num_envs, substeps, bodies, device, *, max_contacts, max_constraints):
        """As MujocoCpu, plus buffer sizes per world. All worlds share one buffer for contacts, so max_contacts limits
        the mean over worlds; max_constraints, in rows, limits each world.
        """
        wp.config.log_level = wp.LOG_ERROR  # otherwise it warns on every machine without a GPU
        wp.init()
        self.models = [_compile(build) for build in models[:num_envs]]
        self.num_envs, self.substeps, self.device = num_envs, substeps, torch.device(device)
        first = self.models[0]
        self.nq, self.nv, self.nu, self.timestep = first.nq, first.nv, first.nu, first.opt.timestep
        if len({model.signature for model in self.models}) > 1:
            raise ValueError("the models of one engine must have the same structure, these differ")
        body_ids = [first.body(name).id for name in bodies]
        if (first.body_mocapid[first.body_rootid[body_ids]] >= 0).any():
            raise ValueError("mocap bodies and what is fixed to them cannot be read")
        if mujoco.mj_stateSize(first, mujoco.mjtState.mjSTATE_FULLPHYSICS.value) != 1 + self.nq + self.nv:
            raise ValueError("the state of actuators and plugins cannot be kept: --engine mujoco keeps the former")
        for model in self.models:
            # without this flag Warp's general algorithm handles boxes and finds fewer contacts than MuJoCo
            model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_NATIVECCD.value
        self.max_contacts, self.max_constraints = max_contacts, max_constraints

        self._wp_device = wp.device_from_torch(str(self.device))
        self._check_memory()
        with wp.ScopedDevice(self._wp_device):
            self._model = _put_models(self.models)
            self._model.opt.warn_overflow = 0
            data = self._make_data(num_envs)
            self._bodies = wp.array(body_ids, dtype=int)
            limits = first.sensor_type == mujoco.mjtSensor.mjSENS_JOINTLIMITFRC
            self._limits = [wp.array(x[limits], dtype=int) for x in (first.sensor_objid, first.sensor_adr)]
            self._poses = wp.zeros((num_envs, len(bodies), 13), dtype=float)
            self._broken = wp.zeros(num_envs, dtype=bool)
            self._counts = wp.zeros(4, dtype=int)  # see `count` and `reset_broken`
        self._data = data
        # tensors that share Warp's memory
        names = "time", "qpos", "qvel", "sensordata", "ctrl", "xfrc_applied", "mocap_pos", "mocap_quat"
        tensors = [wp.to_torch(getattr(data, name)) for name in names]
        self._time, self.qpos, self.qvel, self.sensors, self._ctrl, self._xfrc, *mocap = tensors
        self._mocap_pos, self._mocap_quat = mocap
        self.broken = wp.to_torch(self._broken)
        poses = wp.to_torch(self._poses)
        self.body_pos, self.body_quat, self.body_linvel, self.body_angvel = poses.split([3, 4, 3, 3], 2)
        self._body_ids = torch.tensor(body_ids, dtype=torch.long, device=self.device)
        self._pushed = False  # whether xfrc_applied holds anything but zeros
        gpu = self.device.type == "cuda"
        self._new_counts = wp.to_torch(self._counts)
        self._seen_counts = torch.zeros(4, dtype=torch.int32, pin_memory=gpu)  # on the host
        self._seen = torch.cuda.Event() if gpu else None
        self._renderer = Renderer(models)

        line = "loading MuJoCo Warp's kernels; the first run compiles them, which takes about a minute"
        notice = threading.Timer(3.0, print, [line], {"file": sys.stderr})
        notice.start()
        try:
            problem = find_graph_problem(self._wp_device)
            if problem:
                print(f"no CUDA graphs, every kernel is launched by itself, which is slow: {problem}", flush=True)
            self._step_graph = None if problem else self._capture(self._advance)
            self._read_graph = None if problem else self._capture(self._read)
        finally:
            notice.cancel()
        self.load_state_dict(self._initial())

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

    def set_state(self, mask, qpos, qvel):
        """Put the worlds of mask (N,) bool at qpos (N, nq), qvel (N, nv) and time 0; all others keep every bit."""
        rows = mask[:, None]
        self.qpos.copy_(torch.where(rows, qpos, self.qpos))
        self.qvel.copy_(torch.where(rows, qvel, self.qvel))
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
        state = torch.cat([self._time[:, None], self.qpos, self.qvel], 1)
        mocap = torch.cat([self._mocap_pos.flatten(1), self._mocap_quat.flatten(1)], 1)
        return {"state": state.double().cpu(), "mocap": mocap.double().cpu(), "sensors": self.sensors.clone()}

    def load_state_dict(self, state):
        """Restore what `state_dict` returned."""
        time, qpos, qvel = state["state"].split([1, self.nq, self.nv], 1)
        self._time.copy_(time[:, 0])
        self.qpos.copy_(qpos)
        self.qvel.copy_(qvel)
        self.sensors.copy_(state["sensors"])
        pos, quat = state["mocap"].split([self._mocap_pos[0].numel(), self._mocap_quat[0].numel()], 1)
        self._mocap_pos.copy_(pos.view_as(self._mocap_pos))
        self._mocap_quat.copy_(quat.view_as(self._mocap_quat))
        self._launch(self._read_graph, self._read)

    def render(self, index, camera=-1, width=640, height=480, markers=None, zone=None, trail=None):
        """World `index` as an (height, width, 3) uint8 numpy image, off-screen, by MuJoCo; see `Renderer.render`."""
        state = [x[index].cpu().numpy() for x in (self.qpos, self.qvel, self._mocap_pos, self._mocap_quat)]
        return self._renderer.render(index, *state, camera, width, height, markers, zone, trail)

    def _initial(self):
        """What `state_dict` returns for worlds in the initial states of their models."""
        models, fixed = self.models, self.models[0].body_mocapid >= 0
        state = np.stack([np.r_[0.0, model.qpos0, np.zeros(self.nv)] for model in models])
        mocap = np.stack([np.r_[model.body_pos[fixed].ravel(), model.body_quat[fixed].ravel()] for model in models])
        own = np.arange(self.num_envs) % len(models)
        return {
            "state": torch.from_numpy(state[own]),
            "mocap": torch.from_numpy(mocap[own]),
            "sensors": torch.zeros_like(self.sensors),
        }

    # ---------------------------------------------------------------- what the CUDA graphs run

    def _advance(self):
        data = self._data
        data.qacc_warmstart.zero_()  # a step depends on state and control alone
        for _ in range(self.substeps):
            mjw.step(self._model, data)
            found = [data.nacon, data.ncollision, data.nefc, data.overflow]
            wp.launch(count, self.num_envs, found, [self._counts])
        wp.launch(
            read_limits, (self.num_envs, self._limits[0].size),
            [*self._limits, data.nefc, data.efc.type, data.efc.id, data.efc.force], [data.sensordata],
        )  # fmt: skip
        wp.launch(
            reset_broken, self.num_envs, [data.ctrl, self._model.qpos0],
            [data.qpos, data.qvel, data.time, data.sensordata, self._broken, self._counts],
        )  # fmt: skip
        self._read()

    def _read(self):
        """Update the poses, which a step leaves one substep old."""
        model, data = self._model, self._data
        mjw.kinematics(model, data)
        mjw.com_pos(model, data)
        mjw.com_vel(model, data)
        inputs = [self._bodies, model.body_rootid, data.xpos, data.xquat, data.subtree_com, data.cvel]
        wp.launch(read_poses, self._poses.shape[:2], inputs, [self._poses])

    def _capture(self, function):
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

    # ---------------------------------------------------------------- buffers and memory

    def _raise_errors(self):
        if self._seen and not self._seen.query():
            return  # the GPU has not finished
        overflow, contacts, constraints, control = self._seen_counts.tolist()
        if overflow & mjw.OverflowType.NEFC:
            raise RuntimeError(
                f"max_constraints {self.max_constraints}: too small, a world had {constraints} rows of constraints; "
                f"use {int(1.3 * constraints)}"
            )
        if overflow & mjw.OverflowType.CCD:
            raise RuntimeError(f"MAX_CCD ({__name__}) {MAX_CCD}: too small for the cylinders; use {2 * MAX_CCD}")
        if overflow & FULL:
            per_world = contacts / max(self.num_envs, FEW)
            raise RuntimeError(
                f"max_contacts {self.max_contacts}: too small, the worlds had {per_world:.1f} contacts or "
                f"near-contacts on average; use {int(1.3 * per_world) + 1}"
            )
        if control:
            raise ValueError("a control is not finite")

    def _check_memory(self):
        """Raise ValueError if the GPU has no memory for this many worlds."""
        if self.device.type == "cuda":
            check_memory(self.num_envs, self.bytes_per_world(), torch.cuda.mem_get_info(self.device)[0])

    def bytes_per_world(self):
        """GPU memory per world, approximately."""
        with wp.ScopedDevice("cpu"):
            few, more = (self._make_data(num_envs) for num_envs in (FEW, FEW + 1))
        size = sum(_bytes(more, field) - _bytes(few, field) for field in (None, "contact", "efc"))
        general = (self.models[0].geom_type == mujoco.mjtGeom.mjGEOM_CYLINDER).any()
        return size + WORKSPACE + MAX_CCD * WORKSPACE_CCD * general

    def _make_data(self, num_envs):
        worlds = max(num_envs, FEW)
        contacts = dict(naconmax=worlds * self.max_contacts, naccdmax=worlds * min(MAX_CCD, self.max_contacts))
        return mjw.make_data(self.models[0], num_envs, **contacts, njmax=self.max_constraints)


@contextlib.contextmanager
def no_garbage_collection():
    """Collected within a capture, an old graph would be destroyed by every replay of the new one (mjlab, PR 821)."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def find_graph_problem(device):
    """Why a warp device cannot record the graphs of a step, which allocates memory and loops; None if it can."""
    if device.is_cuda and not device.is_mempool_enabled:
        return "the GPU has no memory pools"
    if device.is_cuda and not wp.is_conditional_graph_supported():
        return f"the driver must be of CUDA 12.4 or later, this is {'.'.join(map(str, wp.get_cuda_driver_version()))}"
    return None


def check_memory(num_envs, bytes_per_world, free):
    """Raise ValueError (one line) if `num_envs` worlds do not fit into `free` bytes."""
    fit = int(free / bytes_per_world)
    if num_envs > fit:
        need = num_envs * bytes_per_world
        raise ValueError(f"needs {need / 1e9:.1f} GB of GPU memory, {free / 1e9:.1f} GB are free: at most {fit:,} fit")


def _bytes(data, field):
    """Bytes of the arrays of a mjw.Data, or of one of its fields."""
    arrays = vars(getattr(data, field) if field else data)
    return sum(x.capacity for x in arrays.values() if isinstance(x, wp.array))


def _compile(build):
    spec = build().copy()  # the Renderer draws what the physics leaves out
    spec.compiler.discardvisual = True
    return spec.compile()


def _put_models(models):
    """The models as one mjw.Model whose arrays have an entry per model where the models differ.

    Raises ValueError for what worlds cannot have of their own, such as gravity or a mesh.
    """
    differing = {}
    for prefix, kind, parts in (("", mjw.Model, models), ("opt.", mjw.Option, [model.opt for model in models])):
        for field in dataclasses.fields(kind):
            values = [getattr(part, field.name, None) for part in parts]
            if not isinstance(values[0], (int, float, np.ndarray)) or all(np.array_equal(v, values[0]) for v in values):
                continue
            if not prefix and getattr(field.type, "shape", [None])[0] == "*":
                differing[field.name] = np.stack(values)
            elif field.name != "dof_length":  # which only sleeping reads
                raise ValueError(f"{prefix}{field.name} differs between models: MuJoCo Warp's worlds must share it")
    model = mjw.put_model(models[0], batch_sizes={name: len(models) for name in differing})
    for name, values in differing.items():
        array = getattr(model, name)
        array.assign(values.reshape(array.numpy().shape))
    return model
