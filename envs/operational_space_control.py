"""Operational-space control (Khatib 1987) of N arms at once: torques that move a point of the hand like a free mass.

Shape letters: N arms, J joints of the arm, L links that it carries. The joints are hinges about the z axes of the first
J links, in order; further links, such as fingers, hang on the last one. SI units, world axes, quaternions w, x, y, z.
"""

import math

import torch

from envs.rotations import rotation_matrix, wrap_angle

# 1/kg and 1/(kg m^2). It keeps the effective mass finite in singular poses and has an effect below 1 % elsewhere
REGULARISATION = 1e-4


def cross(a, b):
    """(3, ...), (3, ...) -> (3, ...); a third of the time of torch's."""
    return torch.stack([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]])


def arms_first(x):
    """(I, J, N) -> (N, I, J); torch transposes two dimensions much faster than three."""
    return x.flatten(0, 1).T.contiguous().unflatten(1, x.shape[:2])


class OperationalSpaceController:
    """Turns desired displacements of the hand into joint torques, for N arms of one model.

    mass (L,), com (L, 3) and inertia (L, 3, 3) about it in link axes; armature of every joint, kg m^2; hand_offset
    (m): from the last arm link's origin along its joint axis to the controlled point; effort (J,) N m and speed (J,)
    rad/s limit the joints, period (s) is how long a torque is held; nullspace_pose (J,) rad is the pose that the joints
    keep as far as the hand's motion allows. stiffness and nullspace_stiffness (1/s^2) are accelerations per m or rad of
    error; both are critically damped.
    """

    def __init__(
        self,
        *,
        mass,
        com,
        inertia,
        armature,
        hand_offset,
        effort,
        speed,
        period,
        nullspace_pose,
        stiffness,
        nullspace_stiffness,
        device,
    ):
        def tensor(values):
            return torch.as_tensor(values, dtype=torch.float32, device=device)

        mass = tensor(mass)
        self.effort = tensor(effort)
        self.speed = tensor(speed)
        self.period = period
        self.nullspace_pose = tensor(nullspace_pose)
        self.num_joints = len(nullspace_pose)
        self.hand_offset = hand_offset
        self.stiffness = stiffness
        self.damping = 2.0 * math.sqrt(stiffness)
        self.nullspace_stiffness = nullspace_stiffness
        self.nullspace_damping = 2.0 * math.sqrt(nullspace_stiffness)
        self.armature = armature * torch.eye(self.num_joints, device=device)
        self.regularisation = REGULARISATION * torch.eye(6, device=device)
        # components first, N last, as in `dynamics`
        self.mass = mass[:, None]
        self.com = tensor(com).T[..., None]
        self.inertia = tensor(inertia).permute(1, 2, 0)[..., None]
        self.carries = torch.ones(self.num_joints, len(mass), device=device).triu()  # (J, L): joint j moves link l
        self.carried_mass = self.carries @ self.mass
        self.eye = torch.eye(3, device=device)[..., None, None]
        self.upper = torch.ones(self.num_joints, self.num_joints, dtype=torch.bool, device=device).triu()[..., None]

    def dynamics(self, link_pos, link_quat):
        """The hand's Jacobian (N, 6, J), linear above angular, and the mass matrix (N, J, J).

        link_pos (N, L, 3), link_quat (N, L, 4). Composite rigid bodies: entry i <= j is the momentum, along joint i,
        of everything that joint j carries when only j rotates, at unit speed. Moments are about the hand.
        """
        # components first, N last, (3, L, N): twice as fast, as every operation runs along contiguous memory
        pos = link_pos.permute(2, 1, 0).contiguous()
        rotation = rotation_matrix(link_quat.permute(2, 1, 0).contiguous())
        joint_pos = pos[:, : self.num_joints]
        axis = rotation[:, 2, : self.num_joints]
        hand = joint_pos[:, -1:] + self.hand_offset * axis[:, -1:]
        linear = cross(axis, hand - joint_pos)

        com = pos - hand + (rotation * self.com).sum(1)
        moment = self.mass * com
        inertia = (rotation[:, :, None] * self.inertia).sum(1)
        inertia = (inertia[:, None] * rotation).sum(2)
        inertia = inertia + self.eye * (moment * com).sum(0) - moment[:, None] * com
        # of everything that each joint carries
        moment = self.carries @ moment
        inertia = self.carries @ inertia
        momentum = self.carried_mass * linear + cross(axis, moment)
        angular_momentum = cross(moment, linear) + (inertia * axis).sum(1)

        twist = torch.cat([linear, axis])
        momentum = torch.cat([momentum, angular_momentum])
        mass = (twist[:, :, None] * momentum[:, None]).sum(0)
        mass = torch.where(self.upper, mass, mass.transpose(0, 1))
        return arms_first(twist), arms_first(mass) + self.armature

    def torque(self, displacement, velocity, joint_pos, joint_vel, link_pos, link_quat):
        """displacement (N, 6) m and rad, velocity (N, 6) of the hand, joints (N, J), links as above -> (N, J) N m."""
        jacobian, mass = self.dynamics(link_pos, link_quat)
        error = wrap_angle(self.nullspace_pose - joint_pos)
        posture = (self.nullspace_stiffness * error - self.nullspace_damping * joint_vel)[..., None]
        # J M^-1 J^T f + J posture = desired: the posture must not accelerate the hand
        desired = (self.stiffness * displacement - self.damping * velocity)[..., None] - jacobian @ posture
        joint_response = torch.linalg.solve_ex(mass, jacobian.transpose(1, 2))[0]
        force = torch.linalg.solve_ex(jacobian @ joint_response + self.regularisation, desired)[0]
        acceleration = (joint_response @ force + posture).squeeze(-1)
        top = self.speed / self.period
        joint_vel = joint_vel / self.period
        acceleration = acceleration.clamp(-top - joint_vel, top - joint_vel)  # respects the joints' speed limits
        return (mass @ acceleration[..., None]).squeeze(-1).clamp(-self.effort, self.effort)
