"""The distance of a box from a robot, to find start positions that are clear of it. Batched torch without an engine.

Shape letters: R environments, J joints, B bodies, S shapes of the robot.
"""

import mujoco
import numpy as np
import torch

from envs.rotations import rotation_matrix

ITERATIONS = 16  # of alternating projections, which give the distance to the robots here to within a millimetre


class Clearance:
    """The shapes of a robot (capsules, boxes, cylinders) and where they are at given joint angles."""

    def __init__(self, model, num_joints, device):
        """model: a compiled mujoco.MjModel whose first `num_joints` joints are the robot's, all of them hinges.

        Every shape becomes a box, rounded by a radius. A capsule is its axis with its radius, and a cylinder is the box
        around it.
        """
        moved = [int(body) for body in model.jnt_bodyid[:num_joints]]
        if (model.jnt_type[:num_joints] != mujoco.mjtJoint.mjJNT_HINGE).any() or model.jnt_pos[:num_joints].any():
            raise ValueError("only hinges through the origin of their body are supported")

        def tensor(values):
            return torch.as_tensor(values, dtype=torch.float32, device=device)

        bodies = list(moved)
        for body in moved:  # and the fixed bodies that carry them
            while model.body_parentid[body]:
                body = int(model.body_parentid[body])
                if body not in bodies:
                    bodies.append(body)
        depth = {0: 0}
        for body in sorted(bodies):  # a parent has a lower number
            depth[body] = depth[int(model.body_parentid[body])] + 1
        order = sorted(bodies, key=lambda body: (depth[body], body))
        joint = {body: i for i, body in enumerate(moved)}
        self.joint_index = torch.tensor([joint.get(body, num_joints) for body in order], device=device)  # J: none
        # A body's frame in its parent's is fixed + sin(angle) turned + (1 - cos(angle)) twice, Rodrigues' formula; each
        # (B, 4, 4)
        axes = np.array([model.jnt_axis[joint.get(body, 0)] for body in order])
        fixed = frames(model.body_pos[order], model.body_quat[order])
        cross = cross_products(axes)
        self.fixed = tensor(fixed)
        self.turned = tensor(fixed @ cross)
        self.twice = tensor(fixed @ cross @ cross)
        self.levels = []  # per depth: places of its bodies in `order`, and of their parents in the depth before
        before = [0]
        for level in range(1, max(depth.values()) + 1):
            here = [body for body in order if depth[body] == level]
            parents = [before.index(int(model.body_parentid[body])) for body in here]
            self.levels.append(
                (slice(order.index(here[0]), order.index(here[-1]) + 1), torch.tensor(parents, device=device))
            )
            before = here

        geoms = [i for i in range(model.ngeom) if int(model.geom_bodyid[i]) in joint and model.geom_contype[i]]
        capsule = model.geom_type[geoms] == mujoco.mjtGeom.mjGEOM_CAPSULE
        cylinder = model.geom_type[geoms] == mujoco.mjtGeom.mjGEOM_CYLINDER
        half = model.geom_size[geoms].copy()
        self.radius = tensor(half[:, 0] * capsule)  # (S,) m
        half[cylinder] = half[cylinder][:, [0, 0, 1]]
        half[capsule] = half[capsule][:, [1, 1, 1]] * (0.0, 0.0, 1.0)
        self.half = tensor(half)  # (S, 3) m, half edges
        self.geom_body = torch.tensor([order.index(int(model.geom_bodyid[i])) for i in geoms], device=device)  # (S,)
        self.geom_frames = tensor(frames(model.geom_pos[geoms], model.geom_quat[geoms]))  # (S, 4, 4), in the body's

    def shapes(self, joint_pos):
        """The shapes' centres (R, S, 3) m, and their axes as columns (R, S, 3, 3). joint_pos (R, J) rad."""
        angle = torch.nn.functional.pad(joint_pos, (0, 1))[:, self.joint_index, None, None]
        local = self.fixed + angle.sin() * self.turned + (1.0 - angle.cos()) * self.twice
        bodies = [torch.eye(4, device=joint_pos.device).expand(len(joint_pos), 1, 4, 4)]
        for here, parents in self.levels:
            bodies.append(bodies[-1][:, parents] @ local[:, here])
        shapes = torch.cat(bodies[1:], 1)[:, self.geom_body] @ self.geom_frames
        return shapes[..., :3, 3], shapes[..., :3, :3]

    def distance(self, shapes, box_pos, box_quat, box_half):
        """The distance (R,) m from the surface of a box to the nearest shape, at most 0 if they overlap.

        shapes: as returned by `shapes`; box_pos (R, 3) m; box_quat (R, 4) w, x, y, z; box_half (R, 3) m, half edges.
        """
        centre, rotation = shapes
        # components come first, because many small products are far faster along the last dimensions
        box = rotation_matrix(box_quat.T)[..., None]  # (3, 3, R, 1)
        centre = (box * (centre - box_pos[:, None]).movedim(-1, 0)[:, None]).sum(0)  # (3, R, S), in the box's axes
        rotation = (box[:, :, None] * rotation.permute(2, 3, 0, 1)[:, None]).sum(0)  # (3, 3, R, S)
        edge = box_half.T[..., None]
        half = self.half.T[:, None]
        low = -edge - centre  # of the box, as seen from the shape's centre
        high = edge - centre
        minus_half = -half
        of_shape = torch.zeros_like(centre)
        for _ in range(ITERATIONS):  # the nearest points of two convex bodies
            local = (rotation * of_shape.clamp(low, high)[:, None]).sum(0)
            of_shape = (rotation * local.clamp(minus_half, half)).sum(1)
        return ((of_shape - of_shape.clamp(low, high)).norm(dim=0) - self.radius).amin(-1)


def frames(positions, quaternions):
    """Numpy (B, 3) m, (B, 4) w, x, y, z, of any length -> homogeneous transforms (B, 4, 4)."""
    found = np.tile(np.eye(4), (len(positions), 1, 1))
    found[:, :3, 3] = positions
    rotation = np.zeros(9)
    for frame, quaternion in zip(found, quaternions):
        mujoco.mju_quat2Mat(rotation, quaternion)
        frame[:3, :3] = rotation.reshape(3, 3)
    return found


def cross_products(axes):
    """Numpy (B, 3) -> matrices (B, 4, 4) whose upper left (3, 3) take the cross product with them, else 0."""
    found = np.zeros((len(axes), 4, 4))
    found[:, :3, :3] = np.cross(axes[:, None], np.eye(3)).swapaxes(1, 2)
    return found
