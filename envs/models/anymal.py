"""ANYmal C on flat ground: a free base and four legs of three hinges, of primitive shapes and published numbers.

Lengths in m, angles in rad, masses in kg, inertias in kg m^2 about the centre of mass in body axes. Quaternions are
(w, x, y, z). x points forward, y to the left, z up. Joint order, everywhere: legs LF, LH, RF, RH, each with hip
abduction HAA, hip flexion HFE and knee flexion KFE.
"""

import mujoco
import numpy as np

from envs.models.parts import add_position_drive, add_sky

LEGS = ("LF", "LH", "RF", "RH")
JOINT_NAMES = ["%s_%s" % (leg, joint) for leg in LEGS for joint in ("HAA", "HFE", "KFE")]
BASE_BODY, THIGH_BODIES = "base", ["%s_THIGH" % leg for leg in LEGS]
START_HEIGHT = 0.62  # of the base; in the default pose the feet are 7.7 cm above the ground
DEFAULT_POSE = np.array([0.03, 0.4, -0.8, 0.03, -0.4, 0.8, -0.03, 0.4, -0.8, -0.03, -0.4, 0.8])

STIFFNESS = 85.0  # N m / rad
DAMPING = 2.0  # N m s / rad
EFFORT = 80.0  # N m

CONTROL_PERIOD = 0.02  # s, one control step
SUBSTEPS = 4
TIMESTEP = CONTROL_PERIOD / SUBSTEPS
CONTACT_IMPEDANCE = (0.99, 0.99, 0.001, 0.5, 2.0)  # MuJoCo's solimp
CONTACT_RESPONSE = (0.01, 1.0)  # MuJoCo's solref: time constant (s), damping ratio
CONTACT_NET_FORCE = (2, 3, 1)  # of MuJoCo's contact sensor: force only, summed over all contacts, one slot
COS, SIN = 0.25881905, 0.96592583  # of 75 degrees

# body: mass, centre of mass, inertia (xx, yy, zz, xy, xz, yz), shapes. A shape is a sphere (centre, radius), a box
# (centre, half edges) or a capsule (end, end, radius), which replaces the published cylinders. Shapes touch only the
# ground, a plane, for which only their convex hull matters: two capsules replace the base's twelve lower shapes.
BASE = (26.37319938, (-0.0177939, -0.0001782, 0.0085043),
        (0.21671194, 1.7851629, 1.83370072, 0.00922381, 0.05893319, -0.00016378),
        [("capsule", (-0.5245, 0.07, 0), (0.5245, 0.07, 0), 0.09),
         ("capsule", (-0.5245, -0.07, 0), (0.5245, -0.07, 0), 0.09),
         ("capsule", (-0.364, 0, 0.0735), (-0.364, 0, 0.1935), 0.07)])  # fmt: skip
THIGH_SHAPES = [("capsule", (0, 0, 0), (0.08, 0, 0), 0.065),
                ("capsule", (-0.0397, 0, -0.285), (0.1003, 0, -0.285), 0.05),
                ("box", (0.03, 0, -0.141314), (0.03, 0.0375, 0.141314))]  # fmt: skip
# Hip, thigh, shank of LF and RH, then of LH and RF, which are nearly the mirror image in y.
LEG = [
    (2.781, (0.0566606, -0.015294, -0.0082978),
     (0.003295526, 0.005044349, 0.005726904, -1.038823e-05, 0.0001070622, -0.0003194918),
     [("capsule", (0.0599, 0.04866, 0.0281), (0.0599, -0.07258, -0.04191), 0.05)]),
    (3.071, (0.0308147, 4.65e-05, -0.2456957),
     (0.02956379, 0.02990405, 0.004861085, 4.42919e-05, 0.004142426, 9.447996e-05), THIGH_SHAPES),
    (0.58842, (0.005462, -0.0612528, -0.0806598),
     (0.01016114, 0.00881038, 0.001549784, -5.357133e-05, -2.266043e-05, -0.001819354),
     [("capsule", (0.01305, -0.08795, -0.31024), (0.01305, -0.08795, -0.02773), 0.0175),
      ("sphere", (0.01305, -0.08795, -0.31547), 0.03)]),
]  # fmt: skip
MIRRORED_LEG = [
    (2.781, (0.0567633, 0.015294, -0.0082978),
     (0.003295526, 0.00504617, 0.005728725, -1.100526e-05, -0.0001091211, 0.0003194918),
     [("capsule", (0.0599, -0.04866, 0.0281), (0.0599, 0.07258, -0.04191), 0.05)]),
    (3.071, (0.0308147, 4.65e-05, -0.2456957),
     (0.02956379, 0.02990405, 0.004861085, 4.43959e-05, 0.004142426, 0.000114794), THIGH_SHAPES),
    (0.58842, (0.005462, 0.0612528, -0.0806598),
     (0.01016114, 0.00881038, 0.001549784, 5.357133e-05, -2.266043e-05, 0.001819354),
     [("capsule", (0.01305, 0.08795, -0.31024), (0.01305, 0.08795, -0.02773), 0.0175),
      ("sphere", (0.01305, 0.08795, -0.31547), 0.03)]),
]  # fmt: skip
HAA_LIMITS = {"L": (-0.72, 0.49), "R": (-0.49, 0.72)}
OTHER_LIMITS = (-9.42478, 9.42478)
JOINT_LOWER, JOINT_UPPER = np.array([x for leg in LEGS for x in (HAA_LIMITS[leg[0]], OTHER_LIMITS, OTHER_LIMITS)]).T


def build():
    """The robot above its plane as a mujoco.MjSpec.

    nu = 12, joint targets in rad. qpos (19): position and quaternion of the base, 12 joints; qvel (18): linear velocity
    of the base in world axes, angular velocity in its own, 12 joints. Sensors (27): the drives' torques (12), N m, then
    the net contact force (3), N, world axes, on the base and on each thigh.
    """
    spec = mujoco.MjSpec()
    spec.compiler.degree = False
    spec.option.timestep = TIMESTEP
    # Measured against steps of 0.5 ms. An implicit integrator damps the joints of the light shanks where the contact
    # solver does not expect it, and standing feet hop. With three substeps flailing legs penetrate 1.5 times as deep.
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_EULER
    # With MuJoCo's defaults the feet of the splayed legs creep 100 mm in 4 s of standing, with these settings 0.5 mm.
    # The solver is Newton: 20 iterations of PGS take 2/3 of the time, but at impacts a shank is off by up to 10 rad/s.
    spec.option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    spec.option.impratio = 10.0
    spec.default.geom.solimp = CONTACT_IMPEDANCE
    spec.default.geom.solref = CONTACT_RESPONSE
    spec.option.iterations = 20
    add_sky(spec)
    grid = spec.add_texture(
        name="grid", type=mujoco.mjtTexture.mjTEXTURE_2D, builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER, width=300,
        height=300, rgb1=(0.75, 0.78, 0.8), rgb2=(0.65, 0.68, 0.7),
    )  # fmt: skip
    material = spec.add_material(name="grid", texrepeat=(2, 2), texuniform=True)
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = grid.name
    spec.worldbody.add_geom(
        name="ground", type=mujoco.mjtGeom.mjGEOM_PLANE, size=(0, 0, 1), material="grid", contype=1, conaffinity=0
    )

    base = _add_body(spec.worldbody, BASE_BODY, (0, 0, START_HEIGHT), (1, 0, 0, 0), *BASE)
    base.add_freejoint(name="base")
    spec.visual.map.shadowclip = 3.0  # avoids speckled shadows
    follow = mujoco.mjtCamLight.mjCAMLIGHT_TRACK
    base.add_camera(name="follow", mode=follow, pos=(0.3, -2.2, 0.6), xyaxes=(1, 0.1, 0, 0, 0.25, 1))
    base.add_light(mode=follow, pos=(0, 0, 4), dir=(0.1, 0.1, -1), type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL)
    for leg in LEGS:
        front, left = 1 if leg[1] == "F" else -1, 1 if leg[0] == "L" else -1
        side = front * left
        hip_quat = (COS, left * SIN, 0, 0) if front == 1 else (0, 0, -left * SIN, COS)
        thigh_quat = (0.1830127, -0.6830127 * side, 0.6830127, 0.1830127 * side)
        frames = [
            ("HIP", "HAA", front, (0.2999 * front, 0.104 * left, 0), hip_quat),
            ("THIGH", "HFE", left, (0.0599, -0.07258159 * side, -0.041905), thigh_quat),
            ("SHANK", "KFE", left, (0.1003, 0, -0.285), (1, 0, 0, 0)),
        ]
        body = base
        for (link, joint, axis, pos, quat), numbers in zip(frames, LEG if side == 1 else MIRRORED_LEG):
            body = _add_body(body, "%s_%s" % (leg, link), pos, quat, *numbers)
            joint = "%s_%s" % (leg, joint)
            i = JOINT_NAMES.index(joint)
            body.add_joint(name=joint, axis=(axis, 0, 0), range=(JOINT_LOWER[i], JOINT_UPPER[i]))
            add_position_drive(spec, joint, STIFFNESS, DAMPING, EFFORT)
            spec.add_sensor(
                type=mujoco.mjtSensor.mjSENS_ACTUATORFRC, objtype=mujoco.mjtObj.mjOBJ_ACTUATOR, objname=joint
            )
    for name in [BASE_BODY, *THIGH_BODIES]:
        sensor = spec.add_sensor(type=mujoco.mjtSensor.mjSENS_CONTACT, objtype=mujoco.mjtObj.mjOBJ_BODY, objname=name)
        sensor.intprm[:3] = CONTACT_NET_FORCE
    return spec


def _add_body(parent, name, pos, quat, mass, com, inertia, shapes):
    body = parent.add_body(name=name, pos=pos, quat=quat, mass=mass, ipos=com, fullinertia=inertia)
    body.explicitinertial = True
    # contype 0, conaffinity 1: collides with the ground only; the original has no self-collision either
    look = dict(rgba=(0.8, 0.25, 0.2, 1) if parent.name == "world" else (0.25, 0.26, 0.3, 1), contype=0, conaffinity=1)
    for kind, point, *size in shapes:
        if kind == "capsule":
            end, radius = size
            body.add_geom(type=mujoco.mjtGeom.mjGEOM_CAPSULE, fromto=point + end, size=(radius, 0, 0), **look)
        elif kind == "box":
            body.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, pos=point, size=size[0], **look)
        else:
            foot = name.replace("SHANK", "FOOT")
            body.add_geom(name=foot, type=mujoco.mjtGeom.mjGEOM_SPHERE, pos=point, size=(size[0], 0, 0), **look)
    return body
