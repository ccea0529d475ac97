"""What tests of tasks and robots share: environments and poses to begin with, and an engine in which nothing moves."""

import math

import mujoco
import numpy as np
import pytest
import torch

import envs


def started(env_id, num_envs=2, seed=1):
    """A task after its first reset."""
    env = envs.make(env_id, num_envs, seed=seed)
    env.reset()
    return env


def random_actions(env, num_steps, seed=0):
    """Uniform actions (num_steps, N, U) in [-1, 1]."""
    size = (num_steps, env.num_envs, env.num_actions)
    return 2.0 * torch.rand(size, generator=torch.Generator().manual_seed(seed)) - 1.0


def turn(angle, axis):
    """Quaternion w, x, y, z of a turn by `angle` (rad) about a world axis (0, 1 or 2)."""
    quaternion = [math.cos(angle / 2), 0.0, 0.0, 0.0]
    quaternion[1 + axis] = math.sin(angle / 2)
    return quaternion


def simulate(model, data, seconds):
    for _ in range(round(seconds / model.opt.timestep)):
        mujoco.mj_step(model, data)


def touching(model, data):
    """The pairs of bodies in contact, as a list of sets of names."""
    return [{model.body(model.geom_bodyid[geom]).name for geom in contact.geom} for contact in data.contact]


def data_of(env, index):
    """MuJoCo's own model and data of an environment's present state, kinematics and contacts included."""
    model = env.engine.models[index % len(env.engine.models)]
    data = mujoco.MjData(model)
    data.qpos[:] = env.engine.qpos[index].double()
    data.qvel[:] = env.engine.qvel[index].double()
    mujoco.mj_forward(model, data)
    return model, data


def motion(model, data, name):
    """Of a body in world axes: position (3), quaternion x, y, z, w (4), linear (3) and angular velocity (3)."""
    velocity = np.zeros(6)
    body = data.body(name)
    mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, body.id, velocity, 0)
    return [*body.xpos, *body.xquat[[1, 2, 3, 0]], *velocity[3:], *velocity[:3]]


def inertia_in_body(body):
    """xx, yy, zz, xy, xz, yz of a model's body about its centre of mass, in the body's axes."""
    axes = np.zeros(9)
    mujoco.mju_quat2Mat(axes, body.iquat)
    axes = axes.reshape(3, 3)
    inertia = axes @ np.diag(body.inertia) @ axes.T
    return inertia[[0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]]


def rendered(env, index):
    """The picture of an environment; skips the test where there is no OpenGL."""
    try:
        return env.render(index)
    except RuntimeError as error:
        if "OpenGL" not in str(error):
            raise
        pytest.skip(str(error))


class Specs:
    """models[i], built when asked for: 947 objects take seconds."""

    def __init__(self, builders):
        self.builders = builders

    def __len__(self):
        return len(self.builders)

    def __getitem__(self, index):
        return self.builders[index]()


class StillEngine:
    """Takes the place of `make_engine`: bodies stay where a test or a reset puts them.

    Tensors as those of envs.engines.mujoco_cpu.MujocoCpu. A free body follows its coordinates in qpos; all other bodies
    are at the origin, unturned. `ctrl` and `xfrc` are those of the last step, `mocap` (N, M, 7) the last poses set.
    """

    def __init__(self, name, models, num_envs, substeps, bodies, device, **buffers):
        self.name = "still"
        self.models = Specs(models)
        self.bodies = bodies
        self.substeps = substeps
        model = self.models[0].compile()
        self.timestep = model.opt.timestep
        self.broken = torch.zeros(num_envs, dtype=torch.bool)
        self.qpos = torch.zeros(num_envs, model.nq)
        self.qvel = torch.zeros(num_envs, model.nv)
        self.sensors = torch.zeros(num_envs, model.nsensordata)
        self.mocap = torch.zeros(num_envs, model.nmocap, 7)
        self.body_pos, self.body_linvel, self.body_angvel = torch.zeros(3, num_envs, len(bodies), 3)
        self.body_quat = torch.zeros(num_envs, len(bodies), 4)
        self.body_quat[..., 0] = 1.0
        self._free = []  # index into `bodies`, start of its coordinates in qpos
        for i, body in enumerate(map(model.body, bodies)):
            joint = body.jntadr[0]
            if joint >= 0 and model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE:
                self._free.append((i, model.jnt_qposadr[joint]))

    def step(self, ctrl, xfrc=None):
        self.ctrl = ctrl.clone()
        self.xfrc = xfrc

    def set_state(self, mask, qpos, qvel):
        self.qpos = torch.where(mask[:, None], qpos, self.qpos)
        self.qvel = torch.where(mask[:, None], qvel, self.qvel)
        self.sensors = self.sensors.masked_fill(mask[:, None], 0.0)
        for i, start in self._free:
            self.body_pos[:, i], self.body_quat[:, i] = self.qpos[:, start : start + 7].split([3, 4], 1)

    def set_mocap(self, mask, pose):
        self.mocap = torch.where(mask[:, None, None], pose, self.mocap)
