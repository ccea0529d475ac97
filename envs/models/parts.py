"""Building blocks of several models: the physics of robots that walk, bodies with primitive shapes, position drives."""

import mujoco

SHAPES = {
    "sphere": mujoco.mjtGeom.mjGEOM_SPHERE,
    "capsule": mujoco.mjtGeom.mjGEOM_CAPSULE,
    "cylinder": mujoco.mjtGeom.mjGEOM_CYLINDER,
    "ellipsoid": mujoco.mjtGeom.mjGEOM_ELLIPSOID,
    "box": mujoco.mjtGeom.mjGEOM_BOX,
}
CONTACT_NET_FORCE = (2, 3, 1)  # of MuJoCo's contact sensor: force only, summed over all contacts, one slot


def make_walking_spec(timestep):
    """An empty mujoco.MjSpec with the solver and the contacts of robots that walk. timestep: of a substep, s.

    The settings were compared on ANYmal with a simulation in steps of 0.5 ms.
    """
    spec = mujoco.MjSpec()
    spec.compiler.degree = False
    spec.option.timestep = timestep
    # An implicit integrator damps the joints of light shanks, which the contact solver does not expect, so that
    # standing feet hop.
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_EULER
    # With MuJoCo's defaults, the feet of splayed legs creep by 100 mm during 4 s of standing, with these settings by
    # 0.5 mm. The solver is Newton. 20 iterations of PGS take 2/3 of the time, but at impacts the speed of a shank is
    # off by up to 10 rad/s.
    spec.option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    spec.option.impratio = 10.0
    spec.option.iterations = 20
    spec.default.geom.solimp = (0.99, 0.99, 0.001, 0.5, 2.0)
    spec.default.geom.solref = (0.01, 1.0)  # time constant (s), damping ratio
    return spec


def add_shape(body, kind, *numbers, **options):
    """Add a geom to a body (mujoco.MjsBody) and return it. Numbers are in the body's axes, lengths in m.

    A sphere is (centre, radius), a capsule or cylinder (end, end, radius), an ellipsoid or box (centre, half edges) or
    (centre, half edges, quaternion). options: other attributes of the geom.
    """
    geom = body.add_geom(type=SHAPES[kind], **options)
    if kind in ("capsule", "cylinder"):
        start, end, radius = numbers
        geom.fromto = (*start, *end)
        geom.size = (radius, 0, 0)
    elif kind == "sphere":
        geom.pos, radius = numbers
        geom.size = (radius, 0, 0)
    else:
        geom.pos, geom.size, *quaternion = numbers
        if quaternion:
            (geom.quat,) = quaternion
    return geom


def add_body(parent, name, pos, quat, mass, com, inertia, shapes, colour=(0.85, 0.5, 0.2, 1)):
    """Add a body to its parent (mujoco.MjsBody) and return it. Gravity does not act on it, and its boxes are grey.

    pos (3,) m and quat (4,) wxyz: frame in the parent; mass (kg); com (3,) m: centre of mass; inertia (6,) kg m^2 about
    it: xx, yy, zz, xy, xz, yz in body axes.
    A shape is (kind, *numbers), see `add_shape`.
    """
    body = parent.add_body(name=name, pos=pos, quat=quat, mass=mass, ipos=com, fullinertia=inertia, gravcomp=1)
    body.explicitinertial = True
    for kind, *numbers in shapes:
        add_shape(body, kind, *numbers, rgba=(0.3, 0.3, 0.33, 1) if kind == "box" else colour)
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
