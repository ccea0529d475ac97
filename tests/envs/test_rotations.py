"""Rotations against MuJoCo's."""

import mujoco
import numpy as np
import pytest
import torch

from envs.rotations import conjugate, multiply, rotate, rotation_matrix


@pytest.fixture
def quaternions():
    """(2, 5, 4) float64."""
    found = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return found / found.norm(dim=-1, keepdim=True)


def by_mujoco(function, size, *arguments):
    rows = [np.zeros(size) for _ in arguments[0]]
    for row, *values in zip(rows, *(x.numpy() for x in arguments)):
        function(row, *values)
    return torch.from_numpy(np.array(rows))


def test_multiply(quaternions):
    assert torch.allclose(multiply(*quaternions), by_mujoco(mujoco.mju_mulQuat, 4, *quaternions))


def test_conjugate(quaternions):
    unturned = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    assert torch.allclose(multiply(quaternions, conjugate(quaternions)), unturned.expand(2, 5, 4))


def test_rotate(quaternions):
    vectors = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = by_mujoco(lambda out, q, v: mujoco.mju_rotVecQuat(out, v, q), 3, quaternions[0], vectors)
    assert torch.allclose(rotate(quaternions[0], vectors), expected)
    assert torch.allclose(rotate(quaternions[0][:, None], vectors[None])[2, 2], expected[2])  # every one by every one


def test_rotation_matrix(quaternions):
    expected = by_mujoco(mujoco.mju_quat2Mat, 9, quaternions[0])
    assert torch.allclose(rotation_matrix(quaternions[0].T).flatten(0, 1).T, expected)
