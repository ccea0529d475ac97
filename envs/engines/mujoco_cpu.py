"""MuJoCo on CPU threads: `mujoco.batch` steps all worlds in C++, never a Python loop over environments."""

import contextlib
import os

import mujoco
import numpy as np
import torch
from mujoco.batch import Batch, SimulationError

from envs.engines.rendering import Renderer

BEFORE_WARMSTART = mujoco.mjtState.mjSTATE_WARMSTART.value - 1  # time, qpos, qvel, activations: a row begins with them
BEFORE_MOCAP = mujoco.mjtState.mjSTATE_MOCAP_POS.value - 1
POSE = (  # the sensors of each body: 3 + 4 + 3 + 3 = 13 numbers
    mujoco.mjtSensor.mjSENS_FRAMEPOS,
    mujoco.mjtSensor.mjSENS_FRAMEQUAT,
    mujoco.mjtSensor.mjSENS_FRAMELINVEL,
    mujoco.mjtSensor.mjSENS_FRAMEANGVEL,
)
FRAMES = ("body_pos", "body_quat", "jnt_pos", "jnt_axis", "qpos0")  # all that poses depend on
HUGE = 1e6  # SI units; a position, velocity or time beyond it means that the world has diverged


class MujocoCpu:
    """N worlds, world i runs models[i % len(models)]. Units SI, world axes, quaternions w, x, y, z.

    Shape letters: N num_envs, B len(bodies), S sensor values. After construction, `step`, `set_state` and
    `load_state_dict` these tensors hold the current state, float32 on `device`. They are overwritten in place: clone
    what must outlive a step.
        qpos (N, nq), qvel (N, nv)                            joint coordinates and velocities
        body_pos (N, B, 3), body_quat (N, B, 4)               pose of the body frame
        body_linvel (N, B, 3), body_angvel (N, B, 3)          velocity of the body frame's origin; angular velocity
        sensors (N, S)                                        the model's own sensors, in the order of the model
        broken (N,) bool                                      worlds that broke in the last step, see `step`
    MuJoCo computes sensors before it integrates: they describe the start of the last substep, and are 0 after
    `set_state`. The state itself is float64. A step depends on state and control alone: nothing is warm-started.
    """

    name = "mujoco"

    def __init__(self, models, num_envs, substeps, bodies, device):
        """models: functions that return a mujoco.MjSpec, of the same structure (sizes, masses and gains may differ);
        those beyond num_envs are not called.
        What is only drawn is left out of the physics. substeps: timesteps of the model per control step. bodies: names
        of the bodies whose poses are read; mocap bodies are not allowed, since they stay where `set_mocap` puts them.
        """
        self.models = []
        for build in models[:num_envs]:
            spec = build().copy()  # the Renderer draws what the physics leaves out
            spec.compiler.discardvisual = True
            if not self.models:
                # A step leaves poses one substep old, so they are read from a model without forces and contacts
                readout_model = _make_readout(spec, bodies)
            self.models.append(spec.compile())
        self.num_envs, self.substeps, self.device = num_envs, substeps, torch.device(device)
        first = self.models[0]
        self.nq, self.nv, self.nu, self.timestep = first.nq, first.nv, first.nu, first.opt.timestep
        if len({model.signature for model in self.models}) > 1:  # unchecked by MuJoCo, where it would corrupt memory
            raise ValueError("the models of one engine must have the same structure, these differ")
        for model in self.models:
            model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET.value  # `step` sees which worlds broke
            if mujoco.__version__ == "4.0.0":  # factorises the sparse one of 60 or more degrees of freedom wrongly
                model.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE.value
        self._body_ids = [first.body(name).id for name in bodies]
        if (first.body_mocapid[first.body_rootid[self._body_ids]] >= 0).any():
            raise ValueError("mocap bodies and what is fixed to them cannot be read")

        affinity = getattr(os, "sched_getaffinity", None)  # Linux only
        cores = len(affinity(0)) if affinity else os.cpu_count()
        self.num_threads = max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))  # torchrun's processes here
        # One model whose fields differ per world: hundreds of whole models do not fit into the processor's cache.
        self._batch = Batch(first, num_envs, self.num_threads)
        _expand(self._batch, self.models)
        self._batch.reset(stage=mujoco.mjtStage.mjSTAGE_NONE.value)
        self._readout = Batch(readout_model, num_envs, self.num_threads)
        _expand(self._readout, self.models, FRAMES)
        # MuJoCo writes and reads the memory of all these
        num_state = mujoco.mj_stateSize(first, BEFORE_WARMSTART)
        if num_state != mujoco.mj_stateSize(first, mujoco.mjtState.mjSTATE_FULLPHYSICS.value):
            raise ValueError("the state of plugins and plastic bodies cannot be kept")
        self._state, self._readout_state = (batch.state[:, :num_state] for batch in (self._batch, self._readout))
        mocap = mujoco.mj_stateSize(first, BEFORE_MOCAP)
        self._mocap = self._batch.state[:, mocap : mocap + 7 * first.nmocap]  # positions, then quaternions
        self._xfrc, self._sensordata = self._batch.xfrc_applied, self._batch.sensordata
        self._pose_sensors = self._readout.sensordata
        self._initial = self._state.copy()
        self._pushed = False  # whether _xfrc holds anything but zeros

        # numpy writes, torch reads: on the CPU the same memory, on another device a copy
        self._host_joints = np.zeros((num_envs, self.nq + self.nv), np.float32)
        self._host_poses = np.zeros((num_envs, len(bodies), 13), np.float32)
        self.sensors = torch.zeros(num_envs, first.nsensordata, device=self.device)
        self._joints = torch.from_numpy(self._host_joints).to(self.device)
        self._poses = torch.from_numpy(self._host_poses).to(self.device)
        self.qpos, self.qvel = self._joints.split([self.nq, self.nv], 1)
        self.body_pos, self.body_quat, self.body_linvel, self.body_angvel = self._poses.split([3, 4, 3, 3], 2)
        self.broken = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self._renderer = Renderer(models)
        self._refresh(np.arange(num_envs))

    def step(self, ctrl, xfrc=None):
        """One control step. ctrl (N, nu) is held for all substeps.

        xfrc (N, B, 6), optional: force (N), then torque (N m), world axes, at the centre of mass of each listed body.
        A world breaks when its state becomes nan or huge, or when MuJoCo runs out of memory for its contacts. It is
        then put back into its model's initial state, `broken` is set until the next step, and the task has to reset it.
        MuJoCo writes the reason to MUJOCO_LOG.TXT. Raises ValueError for a control that is not finite, or of another
        shape, which numpy would broadcast.
        """
        if ctrl.shape != (self.num_envs, self.nu):
            raise ValueError(f"a control has shape {tuple(ctrl.shape)}, must be {(self.num_envs, self.nu)}")
        if not ctrl.isfinite().all():
            raise ValueError("a control is not finite")
        self._batch.ctrl = ctrl.detach().cpu().numpy()
        self._batch.qacc_warmstart = 0.0
        if xfrc is not None or self._pushed:
            self._xfrc[:, self._body_ids] = 0.0 if xfrc is None else xfrc.detach().cpu().numpy()
            self._pushed = xfrc is not None
        start, warnings = self._batch.time.copy(), self._batch.warning[..., 1].copy()
        with contextlib.suppress(SimulationError):  # of worlds that it leaves where they were: their clocks show it
            self._batch.rollout(self.substeps, record=())
        broken = self._find_broken(start, warnings)
        self._state[broken] = self._initial[broken]
        self.broken.copy_(torch.from_numpy(broken))
        self.sensors.copy_(torch.tensor(self._sensordata))
        self.sensors[self.broken] = 0.0
        self._refresh(np.arange(self.num_envs))

    def set_state(self, mask, qpos, qvel):
        """Put the worlds of mask (N,) bool at qpos (N, nq), qvel (N, nv) and time 0; all others keep every bit."""
        rows = np.flatnonzero(mask.cpu().numpy())
        if len(rows) == 0:
            return
        self._state[rows] = self._initial[rows]
        self._state[rows, 1 : 1 + self.nq] = qpos.detach().cpu().numpy()[rows]
        self._state[rows, 1 + self.nq : 1 + self.nq + self.nv] = qvel.detach().cpu().numpy()[rows]
        self.sensors[mask.to(self.device)] = 0.0
        self._refresh(rows)

    def set_mocap(self, mask, pose):
        """Put the mocap bodies of the worlds of mask (N,) bool at pose (N, M, 7): position (m), quaternion.

        The M bodies are in the order of the model. They stay there, also after set_state or when a world breaks, and
        act on other bodies like fixed walls.
        """
        rows = np.flatnonzero(mask.cpu().numpy())
        pose = pose.detach().cpu().numpy()[rows]
        self._batch.mocap_pos[rows], self._batch.mocap_quat[rows] = pose[..., :3], pose[..., 3:]

    def state_dict(self):
        """The physics state and mocap poses (N, ...) float64, the sensors' readings: enough to continue exactly."""
        return {
            "state": torch.from_numpy(self._state.copy()),
            "mocap": torch.from_numpy(self._mocap.copy()),
            "sensors": self.sensors.clone(),
        }

    def load_state_dict(self, state):
        """Restore what `state_dict` returned."""
        self._state[:] = state["state"].cpu().numpy()
        self._mocap[:] = state["mocap"].cpu().numpy()
        self.sensors.copy_(state["sensors"])
        self._refresh(np.arange(self.num_envs))

    def render(self, index, camera=-1, width=640, height=480, markers=None, zone=None, trail=None):
        """World `index` as an (height, width, 3) uint8 numpy image, off-screen; see `Renderer.render`."""
        _, qpos, qvel = np.split(self._state[index], [1, 1 + self.nq])
        mocap = self._batch.mocap_pos[index], self._batch.mocap_quat[index]
        return self._renderer.render(index, qpos, qvel, *mocap, camera, width, height, markers, zone, trail)

    def _refresh(self, rows):
        """Bring the tensors of the worlds `rows` up to date with the state."""
        state = self._state[rows]
        self._host_joints[rows] = state[:, 1 : 1 + self.nq + self.nv]
        if self._body_ids:
            self._readout_state[rows] = state
            self._readout.forward(rows, mujoco.mjtStage.mjSTAGE_VEL.value)
            self._host_poses[rows] = self._pose_sensors[rows].reshape(len(rows), -1, 13)
        if self.device.type != "cpu":
            self._joints.copy_(torch.from_numpy(self._host_joints))
            self._poses.copy_(torch.from_numpy(self._host_poses))

    def _find_broken(self, start, warnings):
        """Worlds (N,) bool that broke in a step from clocks `start` (N,) s and counts of `warnings` (N, 7).

        Rollout silently stops the clock of one that warns, but not in its last substep.
        """
        late = self._state[:, 0] < start + (self.substeps - 0.5) * self.timestep
        warned = (self._batch.warning[..., 1] > warnings).any(1)
        return late | warned | ~(np.abs(self._state) < HUGE).all(1)  # written so that nan counts as broken


def _make_readout(spec, bodies):
    """A compiled copy of `spec` that only measures poses and velocities of `bodies`, with all forces disabled."""
    spec = spec.copy()
    for sensor in spec.sensors:
        spec.delete(sensor)
    for name in bodies:
        for sensor in POSE:
            spec.add_sensor(type=sensor, objtype=mujoco.mjtObj.mjOBJ_XBODY, objname=name)
    model = spec.compile()
    for name in ("CONSTRAINT", "CONTACT", "ACTUATION", "GRAVITY", "SPRING", "DAMPER", "AUTORESET"):
        model.opt.disableflags |= getattr(mujoco.mjtDisableBit, "mjDSBL_" + name).value
    model.opt.integrator = mujoco.mjtIntegrator.mjINT_EULER
    return model


def _expand(batch, models, fields=None):
    """Give world i of a mujoco.batch.Batch of models[0] what is different in models[i % len(models)], or only fields.

    Raises ValueError for what worlds cannot have of their own, such as a mesh.
    """
    which = np.arange(batch.nsim) % len(models)
    for prefix, parts, types in (("", models, ()), ("opt.", [model.opt for model in models], (int,))):
        for name in dir(parts[0]):
            if fields and name not in fields:
                continue
            if isinstance(getattr(parts[0], name), (float, np.ndarray, *types)):
                values = np.array([getattr(part, name) for part in parts])
                if (values != values[0]).any():
                    batch.expand(prefix + name)[:] = values[which]
