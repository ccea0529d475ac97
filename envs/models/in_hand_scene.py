"""The scene of the in-hand tasks: a hand fixed to the world, a free cube, and a cube that shows the goal."""

import mujoco

from envs.models.visuals import WHITE, add_camera, add_surroundings, draw_faces, draw_goal_box

CONTACT_IMPEDANCE = (0.99, 0.99, 0.001, 0.5, 2.0)  # MuJoCo's solimp
CUBE_BODY = "cube"
GOAL_BODY = "goal"


def build_scene(add_hand, joint_names, fingertip_bodies, cube_edge, cube_density, cube_start, timestep):
    """The scene as a mujoco.MjSpec.

    add_hand: a function of the spec that adds the hand; joint_names: of its J joints; fingertip_bodies: the F bodies
    whose force and torque are measured; cube_edge m; cube_density kg / m^3; cube_start (3,) m; timestep s.
    qpos (J + 7) contains the hand's joints, then the cube's position (3) and quaternion (4, wxyz). qvel (J + 6)
    contains the joints' velocities, then the linear (world axes) and angular (body axes) velocity of the cube.
    Sensors: the torques of the drives (J) and the magnitudes of the joint limits' torques (J), N m; then for each
    fingertip the force (3, N) and the torque (3, N m) between it and the link before it, in axes of the fingertip's
    body (F * 6).
    """
    spec = mujoco.MjSpec()
    spec.option.timestep = timestep
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.iterations = 20  # the average is 3, the maximum was 18; with 6, a resting cube shakes and falls off
    # We turned 60 random grasps upside down and counted the cubes that the hand kept. In brackets are the medians of
    # how far a cube slips in 2 s, and of how deep it penetrates the fingers. Allegro hand: 39 (0.7 mm, 0.4 mm); with a
    # pyramidal cone and impratio 1: 35 (2.0 mm, 0.4 mm); with MuJoCo's default solimp: 40 (2.1 mm, 1.7 mm); with both:
    # 27 (4.7 mm, 1.6 mm). Shadow hand: 37 (0.9 mm, 0.4 mm); with a pyramidal cone and impratio 1: 23 (3.3 mm, 0.4 mm).
    # The elliptic cone costs a quarter of the time.
    spec.option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    spec.option.impratio = 10.0
    spec.default.geom.solimp = spec.default.pair.solimp = CONTACT_IMPEDANCE

    add_hand(spec)
    cube = spec.worldbody.add_body(name=CUBE_BODY, pos=cube_start)
    cube.add_freejoint(name=CUBE_BODY)
    half_edges = (cube_edge / 2.0,) * 3
    cube.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=half_edges, density=cube_density, rgba=(*WHITE, 1))
    draw_faces(cube, half_edges)

    # The rest is only drawn, the goal at the place that is given when rendering
    draw_goal_box(spec.worldbody.add_body(name=GOAL_BODY, mocap=True, pos=cube_start), half_edges)
    add_surroundings(spec, aim=cube_start, span=2.0)
    ground = spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, size=(0, 0, 1), material="ground")
    ground.contype = ground.conaffinity = 0
    x, y, z = cube_start
    add_camera(spec.worldbody, "overview", (x + 0.26, y - 0.34, z + 0.26), (x - 0.01, y + 0.04, z - 0.05), fovy=38.0)

    for sensor in (mujoco.mjtSensor.mjSENS_JOINTACTFRC, mujoco.mjtSensor.mjSENS_JOINTLIMITFRC):
        for name in joint_names:
            spec.add_sensor(type=sensor, objtype=mujoco.mjtObj.mjOBJ_JOINT, objname=name)
    for name in fingertip_bodies:
        site = name + "_frame"
        spec.body(name).add_site(name=site)
        for sensor in (mujoco.mjtSensor.mjSENS_FORCE, mujoco.mjtSensor.mjSENS_TORQUE):
            spec.add_sensor(type=sensor, objtype=mujoco.mjtObj.mjOBJ_SITE, objname=site)
    return spec
