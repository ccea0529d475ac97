"""Cartpole: balance a pole on a cart that is pushed along a rail. The smallest task with a physics engine."""

import math

import mujoco
import torch

from envs.base import VectorEnv
from envs.engines import make_engine

CONTROL_STEP = 0.0166  # s
SUBSTEPS = 2
MAX_FORCE = 400.0  # N
MAX_POSITION = 3.0  # m, of the cart
MAX_ANGLE = 0.5 * math.pi  # rad, of the pole
MAX_POLE_SPEED = 8.0  # rad/s, the original's limit; MuJoCo has none


def make_cartpole():
    """Cart of 1 kg on a rail along y, pole of 1 kg hinged about x, upright at 0. Nothing collides, no friction."""
    spec = mujoco.MjSpec()
    spec.option.timestep = CONTROL_STEP / SUBSTEPS
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_RK4  # no contacts, no damping: keeps the energy
    box = dict(type=mujoco.mjtGeom.mjGEOM_BOX, contype=0, conaffinity=0)

    rail = spec.worldbody.add_body(name="rail", pos=[0.0, 0.0, 2.0])
    rail.add_geom(size=[0.015, 4.0, 0.015], rgba=[0.5, 0.5, 0.5, 1.0], **box)
    cart = rail.add_body(name="cart", mass=1.0, inertia=[0.0085417, 0.0066667, 0.0085417], explicitinertial=True)
    cart.add_joint(name="slider", type=mujoco.mjtJoint.mjJNT_SLIDE, axis=[0, 1, 0], range=[-4.0, 4.0], limited=True)
    cart.add_geom(size=[0.1, 0.125, 0.1], rgba=[0.2, 0.4, 0.8, 1.0], **box)
    inertia = dict(ipos=[0.0, 0.0, 0.47], inertia=[0.083633, 0.083467, 0.00043333], explicitinertial=True)
    pole = cart.add_body(name="pole", pos=[0.12, 0.0, 0.0], mass=1.0, **inertia)
    pole.add_joint(name="hinge", type=mujoco.mjtJoint.mjJNT_HINGE, axis=[1, 0, 0])
    pole.add_geom(pos=[0.0, 0.0, 0.47], size=[0.02, 0.03, 0.5], rgba=[0.9, 0.5, 0.2, 1.0], **box)

    motor = spec.add_actuator(name="push", target="slider", trntype=mujoco.mjtTrn.mjTRN_JOINT)
    motor.gear[0] = MAX_FORCE
    motor.ctrlrange, motor.ctrllimited = [-1.0, 1.0], True
    sky = dict(type=mujoco.mjtTexture.mjTEXTURE_SKYBOX, builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT)
    spec.add_texture(name="sky", width=64, height=384, rgb1=[0.9, 0.95, 1.0], rgb2=[0.6, 0.7, 0.8], **sky)
    spec.worldbody.add_light(pos=[3.0, 0.0, 6.0], dir=[-0.5, 0.0, -1.0])
    spec.worldbody.add_camera(name="side", pos=[8.0, 0.0, 2.0], xyaxes=[0, 1, 0, 0, 0, 1])
    return spec


class Cartpole(VectorEnv):
    """Observation (4): cart position (m) and velocity, pole angle (rad) and velocity. Action (1): force / 400 N.

    Reward 1 - angle^2 - 0.01 |cart velocity| - 0.005 |pole velocity|; leaving |position| <= 3 or |angle| <= pi/2
    terminates with -2. Objective: the return.
    """

    num_obs, num_actions, max_episode_steps = 4, 1, 500

    def __init__(self, num_envs, device, seed, engine="mujoco"):
        super().__init__(num_envs, device, seed)
        self.engine = make_engine(engine, [make_cartpole()], num_envs, SUBSTEPS, [], device)
        self.engine_name = self.engine.name
        self.nan_worlds = torch.tensor(0, device=self.device)  # how often the physics broke so far

    def reset_where(self, mask):
        self.engine.set_state(mask, self.uniform(-0.1, 0.1, 2), self.uniform(-0.25, 0.25, 2))

    def advance(self, action):
        self.engine.step(action)
        qpos, qvel = self.engine.qpos, self.engine.qvel
        capped = torch.stack([qvel[:, 0], qvel[:, 1].clamp(-MAX_POLE_SPEED, MAX_POLE_SPEED)], 1)
        self.engine.set_state((capped != qvel).any(1) & ~self.engine.broken, qpos, capped)
        position, velocity, angle, angular_velocity = self.observe().unbind(1)
        terminated = (position.abs() > MAX_POSITION) | (angle.abs() > MAX_ANGLE)
        reward = 1.0 - angle.square() - 0.01 * velocity.abs() - 0.005 * angular_velocity.abs()
        reward = torch.where(terminated, torch.full_like(reward, -2.0), reward)
        broken = self.engine.broken
        self.nan_worlds = self.nan_worlds + broken.sum()
        return reward.masked_fill(broken, 0.0), terminated | broken, torch.zeros_like(terminated)

    def observe(self):
        qpos, qvel = self.engine.qpos, self.engine.qvel
        return torch.stack([qpos[:, 0], qvel[:, 0], qpos[:, 1], qvel[:, 1]], 1)

    def metrics(self):
        return {"nan_worlds": self.nan_worlds}

    def render(self, index):
        return self.engine.render(index, camera="side")
