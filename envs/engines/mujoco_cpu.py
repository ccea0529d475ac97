"""MuJoCo on CPU threads: `mujoco.batch` steps all worlds in C++, never a Python loop over environments."""

import contextlib

import mujoco
import numpy as np
import torch
from mujoco.batch import Batch, SimulationError

from envs.base import UnsupportedError
from envs.engines.models import check_state, check_structure, find_bodies, make_physics_spec
from envs.engines.rendering import Renderer
from envs.threads import count_threads

# A row of a batch's state begins with time, qpos, qvel, activations and the buffers of delays. Then come the warm
# start, the controls and, further on, the mocap poses.
BEFORE_WARMSTART = mujoco.mjtState.mjSTATE_WARMSTART.value - 1
BEFORE_MOCAP = mujoco.mjtState.mjSTATE_MOCAP_POS.value - 1
# The sensors that measure a body's pose and velocity: 3 + 4 + 3 + 3 = 13 numbers.
POSE = (
    mujoco.mjtSensor.mjSENS_FRAMEPOS,
    mujoco.mjtSensor.mjSENS_FRAMEQUAT,
    mujoco.mjtSensor.mjSENS_FRAMELINVEL,
    mujoco.mjtSensor.mjSENS_FRAMEANGVEL,
)
FRAMES = ("body_pos", "body_quat", "jnt_pos", "jnt_axis", "qpos0")  # all fields of a model that poses depend on
HUGE = 1e6  # SI units; a position, velocity or time beyond it means that the world has diverged


class MujocoCpu:
    """N worlds; world i runs models[i % len(models)]. Units are SI, axes the world's, quaternions w, x, y, z.

    Shape letters: N num_envs, B len(bodies), S sensor values. After construction, `step`, `set_state` and
    `load_state_dict` these tensors hold the current state, float32 on `device`. They are overwritten in place: clone
    what must outlive a step.
        qpos (N, nq), qvel (N, nv)                            joint coordinates and velocities
        act (N, na)                                           activations: the state of actuators that have one
        body_pos (N, B, 3), body_quat (N, B, 4)               pose of the body frame
        body_linvel (N, B, 3), body_angvel (N, B, 3)          velocity of the body frame's origin; angular velocity
        sensors (N, S)                                        the model's own sensors, in the order of the model
        broken (N,) bool                                      worlds that broke in the last step, see `step`
    MuJoCo computes sensors before it integrates: they describe the start of the last substep, and are 0 after
    `set_state`. The state itself is float64. A step depends on state and control alone: nothing is warm-started.
    """

    name = "mujoco"

    def __init__(self, models, num_envs, substeps, bodies, device):
        """models: functions that return a mujoco.MjSpec; all specs must have the same structure, while sizes, masses
        and gains may differ. Functions beyond num_envs are not called. What is only drawn is left out of the physics.
        substeps: timesteps of the model per control step.
        bodies: names of the bodies whose poses are read; mocap bodies are not allowed, since they stay where
        `set_mocap` puts them.
        """
        self.models = [make_physics_spec(build).compile() for build in models[:num_envs]]
        check_structure(self.models)
        first = self.models[0]
        self.num_envs = num_envs
        self.substeps = substeps
        self.device = torch.device(device)
        self.nq = first.nq
        self.nv = first.nv
        self.na = first.na
        self.nu = first.nu
        self.timestep = first.opt.timestep
        for model in self.models:
            # MuJoCo must not reset a diverged world itself: `step` has to see it.
            model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET.value
            if mujoco.__version__ == "4.0.0":
                # From 60 degrees of freedom on MuJoCo takes a sparse Jacobian, whose Newton solver factorises wrongly
                # in 4.0.0; fixed in 4.0.1 (https://github.com/google-deepmind/mujoco/issues/3767).
                model.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE.value
        self._body_ids = find_bodies(first, bodies)

        self.num_threads = count_threads()
        # One model whose fields differ per world: hundreds of whole models do not fit into the processor's cache.
        self._batch = Batch(first, num_envs, self.num_threads)
        _expand(self._batch, self.models)
        self._batch.reset(stage=mujoco.mjtStage.mjSTAGE_NONE.value)
        # A step leaves poses one substep old, so they are read from a second model, without forces and contacts.
        readout_model = _make_readout_model(make_physics_spec(models[0]), bodies)
        self._readout = Batch(readout_model, num_envs, self.num_threads)
        _expand(self._readout, self.models, FRAMES)

        # Views of MuJoCo's own memory, which it reads and writes.
        num_state = mujoco.mj_stateSize(first, BEFORE_WARMSTART)
        if num_state != mujoco.mj_stateSize(first, mujoco.mjtState.mjSTATE_FULLPHYSICS.value):
            raise UnsupportedError("the state of plugins and plastic bodies cannot be kept")
        self._state = self._batch.state[:, :num_state]
        self._readout_state = self._readout.state[:, :num_state]
        mocap_start = mujoco.mj_stateSize(first, BEFORE_MOCAP)
        self._mocap = self._batch.state[:, mocap_start : mocap_start + 7 * first.nmocap]  # positions, then quaternions
        self._xfrc = self._batch.xfrc_applied
        self._sensordata = self._batch.sensordata
        self._pose_sensors = self._readout.sensordata
        self._initial = self._state.copy()
        self._pushed = False  # whether _xfrc holds anything but zeros

        # numpy writes these arrays and torch reads them: on the CPU the same memory, on another device a copy.
        num_joint_values = self.nq + self.nv + self.na
        self._host_joints = np.zeros((num_envs, num_joint_values), np.float32)
        self._host_poses = np.zeros((num_envs, len(bodies), 13), np.float32)
        self._joints = torch.from_numpy(self._host_joints).to(self.device)
        self._poses = torch.from_numpy(self._host_poses).to(self.device)
        self.qpos, self.qvel, self.act = self._joints.split([self.nq, self.nv, self.na], 1)
        self.body_pos, self.body_quat, self.body_linvel, self.body_angvel = self._poses.split([3, 4, 3, 3], 2)
        self.sensors = torch.zeros(num_envs, first.nsensordata, device=self.device)
        self.broken = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self.renderer = Renderer(models)
        self._refresh(np.arange(num_envs))

    def step(self, ctrl, xfrc=None):
        """One control step. ctrl (N, nu) is held for all substeps.

        xfrc (N, B, 6), optional: force (N), then torque (N m), world axes, at the centre of mass of each listed body.
        A world breaks when its state becomes nan or huge, or when MuJoCo runs out of memory for its contacts. It is
        then put back into its model's initial state, `broken` is set until the next step, and `VectorEnv.step` ends its
        episode. MuJoCo writes the reason to MUJOCO_LOG.TXT. Raises ValueError for a control that is not finite, or of
        another shape, which numpy would broadcast.
        """
        if ctrl.shape != (self.num_envs, self.nu):
            raise ValueError(f"a control has shape {tuple(ctrl.shape)}, must be {(self.num_envs, self.nu)}")
        ctrl = ctrl.detach().cpu().numpy()
        if not np.isfinite(ctrl).all():
            raise ValueError("a control is not finite")
        self._batch.ctrl = ctrl
        self._batch.qacc_warmstart = 0.0
        if xfrc is not None or self._pushed:
            self._xfrc[:, self._body_ids] = 0.0 if xfrc is None else xfrc.detach().cpu().numpy()
            self._pushed = xfrc is not None
        start = self._batch.time.copy()
        warnings = self._batch.warning[..., 1].copy()
        # An error of one world leaves it where it was, which its clock shows, and the others go on.
        with contextlib.suppress(SimulationError):
            self._batch.rollout(self.substeps, record=())
        broken = self._find_broken(start, warnings)
        self._state[broken] = self._initial[broken]
        self.broken.copy_(torch.from_numpy(broken))
        self.sensors.copy_(torch.tensor(self._sensordata))
        self.sensors[self.broken] = 0.0
        self._refresh(np.arange(self.num_envs))

    def set_state(self, mask, qpos, qvel, act=None):
        """Put the worlds of mask (N,) bool at qpos (N, nq), qvel (N, nv) and time 0; all others keep every bit.

        act (N, na): the activations, in the order of the actuators that have one. Required in a model that has any,
        since no value is right for all kinds: a muscle at rest has 0, while the activation of an `intvelocity` actuator
        is the position that it holds its joint at. Buffers of delays are those of the model's initial state.
        """
        check_state(self, qpos, qvel, act)
        rows = np.flatnonzero(mask.cpu().numpy())
        if len(rows) == 0:
            return
        joints = torch.cat([qpos, qvel] if act is None else [qpos, qvel, act], 1)
        self._state[rows] = self._initial[rows]
        self._state[rows, 1 : 1 + joints.shape[1]] = joints.detach().cpu().numpy()[rows]  # after the time
        self.sensors[mask.to(self.device)] = 0.0
        self._refresh(rows)

    def set_mocap(self, mask, pose):
        """Put the mocap bodies of the worlds of mask (N,) bool at pose (N, M, 7): position (m), quaternion.

        The M bodies are in the order of the model. They stay there, also after set_state or when a world breaks, and
        act on other bodies like fixed walls.
        """
        rows = np.flatnonzero(mask.cpu().numpy())
        pose = pose.detach().cpu().numpy()[rows]
        self._batch.mocap_pos[rows] = pose[..., :3]
        self._batch.mocap_quat[rows] = pose[..., 3:]

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

    def render(self, index, **options):
        """World `index` as an (height, width, 3) uint8 numpy image, off-screen; options: see `Renderer.render`."""
        qpos = self._state[index, 1 : 1 + self.nq]
        qvel = self._state[index, 1 + self.nq : 1 + self.nq + self.nv]
        mocap_pos = self._batch.mocap_pos[index]
        mocap_quat = self._batch.mocap_quat[index]
        return self.renderer.render(index, qpos, qvel, mocap_pos, mocap_quat, **options)

    def _refresh(self, rows):
        """Bring the tensors of the worlds `rows` up to date with the state."""
        state = self._state[rows]
        self._host_joints[rows] = state[:, 1 : 1 + self._host_joints.shape[1]]
        if self._body_ids:
            self._readout_state[rows] = state
            self._readout.forward(rows, mujoco.mjtStage.mjSTAGE_VEL.value)
            self._host_poses[rows] = self._pose_sensors[rows].reshape(len(rows), -1, 13)
        if self.device.type != "cpu":
            self._joints.copy_(torch.from_numpy(self._host_joints))
            self._poses.copy_(torch.from_numpy(self._host_poses))

    def _find_broken(self, start, warnings):
        """Worlds (N,) bool that broke in a step from clocks `start` (N,) s and counts of `warnings` (N, 7).

        In MuJoCo 4.0.0 a rollout silently stops the clock of a world that warns, unless that is in its last substep.
        """
        late = self._state[:, 0] < start + (self.substeps - 0.5) * self.timestep
        warned = (self._batch.warning[..., 1] > warnings).any(1)
        diverged = ~(np.abs(self._state) < HUGE).all(1)  # written so that nan counts as diverged
        return late | warned | diverged


def _make_readout_model(spec, bodies):
    """A model of the same state as `spec`'s that only measures poses and velocities of `bodies`, without forces."""
    spec.compiler.discardvisual = True
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

    def expand(prefix, parts, types):
        for name in fields or dir(parts[0]):
            if isinstance(getattr(parts[0], name, None), types):
                values = np.array([getattr(part, name) for part in parts])
                if (values != values[0]).any():
                    batch.expand(prefix + name)[:] = values[which]

    expand("", models, (float, np.ndarray))
    expand("opt.", [model.opt for model in models], (float, int, np.ndarray))
