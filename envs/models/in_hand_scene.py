"""The scene of the in-hand tasks: a hand that is fixed to the world, a free cube, and a cube that shows the goal."""

import mujoco

from envs.models.parts import add_sky

CONTACT_IMPEDANCE = (0.99, 0.99, 0.001, 0.5, 2.0)  # MuJoCo's solimp
CUBE_BODY, GOAL_BODY = "cube", "goal"
FACE_COLOURS = ((0.9, 0.2, 0.2), (0.2, 0.7, 0.3), (0.2, 0.4, 0.9), (0.9, 0.8, 0.2), (0.9, 0.5, 0.1), (0.6, 0.3, 0.8))


def build_scene(add_hand, joint_names, fingertip_bodies, cube_edge, cube_density, cube_start, timestep):
    """The scene as a mujoco.MjSpec.

    add_hand: function (spec) that adds the hand; joint_names: of its J joints; fingertip_bodies: the F bodies whose
    force and torque are measured; cube_edge m, cube_density kg / m^3, cube_start (3,) m, timestep s.
    qpos (J + 7) is the hand's joints, then the cube's position (3) and quaternion (4, wxyz); qvel (J + 6) is J, then
    linear (world axes) and angular (body axes) velocity of the cube.
    Sensors: per joint the drive's torque (J) and the size of its limit's torque (J), N m; per fingertip force (3, N)
    and torque (3, N m) between it and the link before it, in axes of the fingertip body (F * 6).
    """
    spec = mujoco.MjSpec()
    spec.option.timestep = timestep
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.iterations = 20  # a cap; 3 on average, at most 18 seen. With 6 a resting cube shakes and falls off
    # Of 60 random grasps of the Allegro hand turned upside down, 39 keep the cube: it slips 0.7 mm in 2 s, 0.4 mm deep
    # in the fingers (medians). With a pyramidal cone and impratio 1: 35, 2.0 mm, 0.4 mm; with MuJoCo's solimp: 40, 2.1
    # mm, 1.7 mm; with both: 27, 4.7 mm, 1.6 mm. The elliptic cone costs a quarter of the time. The Shadow hand keeps 37
    # (0.9 mm, 0.4 mm); with a pyramidal cone and impratio 1: 23 (3.3 mm, 0.4 mm).
    spec.option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    spec.option.impratio = 10.0
    spec.default.geom.solimp = spec.default.pair.solimp = CONTACT_IMPEDANCE
    spec.visual.global_.offwidth, spec.visual.global_.offheight = 640, 480

    add_hand(spec)
    cube = spec.worldbody.add_body(name=CUBE_BODY, pos=cube_start)
    cube.add_freejoint(name=CUBE_BODY)
    add_cube(cube, cube_edge, density=cube_density)
    # only drawn, at the place given when rendering
    goal = spec.worldbody.add_body(name=GOAL_BODY, mocap=True, pos=cube_start)
    add_cube(goal, cube_edge, mass=0, contype=0, conaffinity=0)
    add_sky(spec)
    spec.worldbody.add_light(pos=(1, -1, 3), dir=(-0.3, 0.3, -1), castshadow=True)
    camera = [start + shift for start, shift in zip(cube_start, (0.25, -0.42, 0.39))]
    spec.worldbody.add_camera(name="overview", pos=camera, xyaxes=(0.9, 0.44, 0, -0.28, 0.58, 0.77))

    for sensor in (mujoco.mjtSensor.mjSENS_JOINTACTFRC, mujoco.mjtSensor.mjSENS_JOINTLIMITFRC):
        for name in joint_names:
            spec.add_sensor(type=sensor, objtype=mujoco.mjtObj.mjOBJ_JOINT, objname=name)
    for name in fingertip_bodies:
        site = name + "_frame"
        spec.body(name).add_site(name=site)
        for sensor in (mujoco.mjtSensor.mjSENS_FORCE, mujoco.mjtSensor.mjSENS_TORQUE):
            spec.add_sensor(type=sensor, objtype=mujoco.mjtObj.mjOBJ_SITE, objname=site)
    return spec


def add_cube(body, edge, **options):
    """Add a cube to a body, and a coloured patch on each face that is only drawn."""
    half = edge / 2.0
    body.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=(half, half, half), rgba=(0.95, 0.95, 0.95, 1), **options)
    for face, colour in enumerate(FACE_COLOURS):
        axis, sign = face // 2, 1.0 - 2.0 * (face % 2)
        pos, size = [0.0, 0.0, 0.0], [0.8 * half] * 3
        pos[axis], size[axis] = sign * half, 0.001
        body.add_geom(
            type=mujoco.mjtGeom.mjGEOM_BOX, pos=pos, size=size, rgba=(*colour, 1), mass=0, contype=0, conaffinity=0
        )
