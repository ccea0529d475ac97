"""Rotations as quaternions w, x, y, z of unit length, as matrices, and as angles."""

import math

import torch


def multiply(a, b):
    """Hamilton product (..., 4) of quaternions (..., 4): the rotation b, then a."""
    aw = a[..., :1]
    av = a[..., 1:]
    bw = b[..., :1]
    bv = b[..., 1:]
    vector = aw * bv + bw * av + torch.linalg.cross(av, bv)
    return torch.cat([aw * bw - (av * bv).sum(-1, keepdim=True), vector], -1)


def conjugate(quaternion):
    """The inverse (..., 4) of a rotation (..., 4)."""
    return torch.cat([quaternion[..., :1], -quaternion[..., 1:]], -1)


def rotate(quaternion, vector):
    """Rotate vector (..., 3) by quaternion (..., 4)."""
    w = quaternion[..., :1]
    xyz, vector = torch.broadcast_tensors(quaternion[..., 1:], vector)
    twice = 2.0 * torch.linalg.cross(xyz, vector)
    return vector + w * twice + torch.linalg.cross(xyz, twice)


def wrap_angle(angle):
    """The same angle in [-pi, pi)."""
    return (angle + math.pi).remainder(2.0 * math.pi) - math.pi


def rotation_matrix(quaternion):
    """The body's axes as columns: (4, ...) -> (3, 3, ...). The components come first because that is fastest."""
    w, x, y, z = math.sqrt(2.0) * quaternion
    entries = [
        1.0 - y * y - z * z, x * y - w * z, x * z + w * y,
        x * y + w * z, 1.0 - x * x - z * z, y * z - w * x,
        x * z - w * y, y * z + w * x, 1.0 - x * x - y * y,
    ]  # fmt: skip
    return torch.stack(entries).unflatten(0, (3, 3))
