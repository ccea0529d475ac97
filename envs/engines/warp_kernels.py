"""The Warp kernels of mujoco_warp.py. Shape letters: N worlds, B listed bodies, L sensors of joint limits.

Of the constraint rows `efc_*` (N, max_constraints) of a world, the first `nefc` are in use.
"""

import mujoco
import warp as wp

HUGE = wp.constant(1e6)  # SI units; a position or velocity beyond it means that the world has diverged
JOINT_LIMIT = wp.constant(int(mujoco.mjtConstraint.mjCNSTR_LIMIT_JOINT))

# What `counts` holds, an int array that the host reads after a step:
OVERFLOW = wp.constant(0)  # bits of mujoco_warp.OverflowType: buffers that were too small
CONTACTS = wp.constant(1)  # the most contacts or near-contacts of all worlds together
CONSTRAINTS = wp.constant(2)  # the most constraint rows of one world
BAD_CONTROL = wp.constant(3)  # 1 if a control was not finite
NUM_COUNTS = 4


@wp.kernel
def count_buffer_use(
    nacon: wp.array[int],  # (1,) contacts
    ncollision: wp.array[int],  # (1,) pairs of geoms that may touch
    nefc: wp.array[int],  # (N,)
    overflow: wp.array[int],  # (N,) bits
    counts: wp.array[int],  # out
):
    """After a substep: how full the buffers were. Launched for N."""
    world = wp.tid()
    if world == 0:
        wp.atomic_max(counts, CONTACTS, wp.max(nacon[0], ncollision[0]))
    wp.atomic_max(counts, CONSTRAINTS, nefc[world])
    wp.atomic_or(counts, OVERFLOW, overflow[world])


@wp.kernel
def read_joint_limits(
    joints: wp.array[int],  # (L,) the joint of each sensor
    addresses: wp.array[int],  # (L,) where its reading is in sensordata
    cutoffs: wp.array[float],  # (L,) N m or N, the largest reading; 0: none
    nefc: wp.array[int],  # (N,)
    efc_type: wp.array2d[int],  # (N, rows)
    efc_id: wp.array2d[int],  # (N, rows) the joint, tendon, ... that a row is of
    efc_force: wp.array2d[float],  # (N, rows) N m or N
    sensordata: wp.array2d[float],  # out, (N, S)
):
    """The torque or force of each joint's limit. Launched for (N, L).

    MuJoCo Warp's own sensor compares a row's number alone, and so takes the limit of the tendon of the same number for
    that of the joint (4.0.0; since https://github.com/google-deepmind/mujoco_warp/pull/267).
    """
    world, i = wp.tid()
    force = float(0.0)  # a plain 0.0 would be a constant of the kernel
    for row in range(wp.min(nefc[world], efc_type.shape[1])):
        if efc_type[world, row] == JOINT_LIMIT and efc_id[world, row] == joints[i]:
            force = efc_force[world, row]
    if cutoffs[i] > 0.0:
        force = wp.min(force, cutoffs[i])
    sensordata[world, addresses[i]] = force


@wp.kernel
def reset_broken(
    ctrl: wp.array2d[float],  # (N, nu)
    qpos0: wp.array2d[float],  # (models, nq), or (1, nq) where all models have the same
    qpos: wp.array2d[float],  # in and out, (N, nq)
    qvel: wp.array2d[float],  # in and out, (N, nv)
    act: wp.array2d[float],  # in and out, (N, na)
    time: wp.array[float],  # out, (N,) s
    sensordata: wp.array2d[float],  # out, (N, S)
    broken: wp.array[bool],  # out, (N,)
    counts: wp.array[int],  # out
):
    """After a control step: put worlds whose state is nan or huge back into their model's initial state.

    Launched for N. The comparisons are written so that nan counts as broken.
    """
    world = wp.tid()
    finite = bool(True)  # a plain True would be a constant of the kernel
    for i in range(qpos.shape[1]):
        finite = finite and wp.abs(qpos[world, i]) < HUGE
    for i in range(qvel.shape[1]):
        finite = finite and wp.abs(qvel[world, i]) < HUGE
    for i in range(act.shape[1]):
        finite = finite and wp.abs(act[world, i]) < HUGE
    for i in range(ctrl.shape[1]):
        if not wp.isfinite(ctrl[world, i]):
            counts[BAD_CONTROL] = 1
    broken[world] = not finite
    if not finite:
        for i in range(qpos.shape[1]):
            qpos[world, i] = qpos0[world % qpos0.shape[0], i]
        for i in range(qvel.shape[1]):
            qvel[world, i] = 0.0
        for i in range(act.shape[1]):
            act[world, i] = 0.0
        for i in range(sensordata.shape[1]):
            sensordata[world, i] = 0.0
        time[world] = 0.0


@wp.kernel
def read_poses(
    bodies: wp.array[int],  # (B,)
    rootid: wp.array[int],  # (bodies,) the root of each body's tree
    xpos: wp.array2d[wp.vec3],  # (N, bodies) m
    xquat: wp.array2d[wp.quat],  # (N, bodies) w, x, y, z
    subtree_com: wp.array2d[wp.vec3],  # (N, bodies) m
    cvel: wp.array2d[wp.spatial_vector],  # (N, bodies) rad/s, then m/s at the centre of mass of the body's tree
    poses: wp.array3d[float],  # out, (N, B, 13)
):
    """Position (m), quaternion, velocity of the frame's origin (m/s) and angular velocity (rad/s) of each listed body.

    Launched for (N, B).
    """
    world, i = wp.tid()
    body = bodies[i]
    position = xpos[world, body]
    quaternion = xquat[world, body]
    angular = wp.spatial_top(cvel[world, body])
    at_centre = wp.spatial_bottom(cvel[world, body])
    linear = at_centre + wp.cross(angular, position - subtree_com[world, rootid[body]])
    for k in range(3):
        poses[world, i, k] = position[k]
        poses[world, i, 7 + k] = linear[k]
        poses[world, i, 10 + k] = angular[k]
    for k in range(4):
        poses[world, i, 3 + k] = quaternion[k]
