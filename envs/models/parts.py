"""Building blocks of several models: bodies with primitive shapes, and position drives."""

import mujoco


def add_body(parent, name, pos, quat, mass, com, inertia, shapes, colour=(0.85, 0.5, 0.2, 1)):
    """Add a body to its parent (mujoco.MjsBody) and return it. Gravity does not act on it, and its boxes are grey.

    pos (3,) m and quat (4,) wxyz: frame in the parent; mass (kg); com (3,) m: centre of mass; inertia (6,) kg m^2 about
    it: xx, yy, zz, xy, xz, yz in body axes.
    A shape is ("capsule" or "cylinder", end, end, radius) or ("box", centre, half edges, quat).
    """
    body = parent.add_body(name=name, pos=pos, quat=quat, mass=mass, ipos=com, fullinertia=inertia, gravcomp=1)
    body.explicitinertial = True
    for kind, first, second, third in shapes:
        if kind == "box":
            body.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, pos=first, size=second, quat=third, rgba=(0.3, 0.3, 0.33, 1))
        else:
            shape = mujoco.mjtGeom.mjGEOM_CAPSULE if kind == "capsule" else mujoco.mjtGeom.mjGEOM_CYLINDER
            body.add_geom(type=shape, fromto=first + second, size=(third, 0, 0), rgba=colour)
    return body


def add_position_drive(spec, joint, stiffness, damping, effort, limits=None):
    """Add a position drive with the name of its joint. Its control is the target position.

    stiffness N m / rad, damping N m s / rad, effort N m (for a slide joint N / m, N s / m and N); limits (2,): range of
    the target, or None for no limits.
    """
    options = {} if limits is None else dict(ctrlrange=limits)
    drive = spec.add_actuator(name=joint, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT, **options)
    drive.set_to_position(kp=stiffness, kv=damping)
    drive.forcerange = (-effort, effort)
