"""Draws a picture of every task but those with held starts or relative targets: docs/images/<env id>.png, tasks.png.

    python -m benchmarks.scripts.pictures [env ids]

Ant and Anymal follow their policies of policies/. The other tasks are brought into a pose that shows what they are
about, by scripted actions or by hand.
"""

import math
import os
import sys

import numpy as np
import torch
from PIL import Image

import envs
import evaluate
from envs.models import allegro_kuka_scene as kuka
from envs.models import franka, humanoid
from envs.models import parkour_terrain as terrain
from envs.tasks.moat import PLATEAU_STARTS

SIZE = (480, 360)
# The arm and the 5 cm cube at the end of the scripted lift of tests/envs/test_allegro_kuka_grasp.py.
# fmt: off
HELD = [
    -1.631, 0.743, 0.026, 0.01, 0.033, 0.943, 2.323, -0.082, 0.978, 0.731, 0.781, -0.002, 1.03, 0.747, 0.439, 0.0, 0.3,
    0.3, 0.3, 1.569, -0.177, 0.386, -0.28, -0.002, 0.019, 0.794, 1.0, 0.001, 0.004, 0.003,
]
# fmt: on


def set_state(env, qpos, qvel=None):
    """Put the last environment at qpos (nq,), qvel (nv,)."""
    mask = torch.zeros(env.num_envs, dtype=torch.bool)
    mask[-1] = True
    state = env.engine.qpos.clone()
    velocity = torch.zeros_like(env.engine.qvel)
    state[-1] = torch.as_tensor(qpos)
    if qvel is not None:
        velocity[-1] = torch.as_tensor(qvel)
    env.engine.set_state(mask, state, velocity)


def make_with_cube(env_id):
    """An AllegroKuka task whose last environment has the cube of 5 cm."""
    families = envs.find_class(env_id).object_families
    cube = np.abs(kuka.object_scales(families) - 1.0).sum(1).argmin()
    env = envs.make(env_id, int(cube) + 1, "cpu", 1, "mujoco")
    env.reset()
    return env


def set_goal(env, *pose):
    """Move the goal of the last environment. pose: position (3,) m, quaternion (4,)."""
    env.goal[-1] = torch.tensor(pose)
    env.engine.set_mocap(torch.arange(env.num_envs) == env.num_envs - 1, env.goal[:, None])


def regrasping(env_id):
    env = make_with_cube(env_id)
    set_state(env, HELD)
    set_goal(env, -0.02, -0.27, 0.90, 1.0, 0.0, 0.0, 0.0)
    return env


def reorientation(env_id):
    env = make_with_cube(env_id)
    set_state(env, HELD)
    set_goal(env, 0.0, -0.28, 0.88, 0.80, 0.40, -0.35, 0.27)
    return env


def throw(env_id):
    """The cube flies from the hand towards the bucket; the pictures on the way make its trail."""
    env = make_with_cube(env_id)
    set_goal(env, 0.72, -0.42, 0.42, 1.0, 0.0, 0.0, 0.0)
    start = np.array([0.05, -0.10, 0.86])
    goal = np.array([0.72, -0.42, 0.46])
    seconds = 0.62
    velocity = (goal - start) / seconds
    velocity[2] += 9.81 * seconds / 2.0
    qpos = torch.tensor(HELD)
    qvel = torch.zeros(29)
    qpos[7:23] = torch.tensor([0.0, 0.3, 0.3, 0.3] * 3 + [1.2, 0.2, 0.3, 0.3])  # the hand open
    qpos[23:26] = torch.tensor(start)
    qvel[23:26] = torch.tensor(velocity)
    qvel[26:] = torch.tensor([4.0, 6.0, 2.0])
    set_state(env, qpos, qvel)
    for _ in range(29):
        env.render(env.num_envs - 1)
        env.engine.step(env.engine.qpos[:, :23])
    return env


def in_hand(env_id, fingers):
    """The cube settles in the half closed hand. fingers: part of a joint's name -> action, the first that fits."""
    env = envs.make(env_id, 1, "cpu", 3, "mujoco")
    env.reset()
    names = [env.joint_names[i] for i in env.actuated]
    action = torch.tensor([[next(a for key, a in fingers.items() if key in name) for name in names]])
    for _ in range(40):
        env.step(action)
    return env


def trained(env_id):
    """After three seconds of the policy in policies/, mean actions."""
    saved, script = evaluate.load(f"policies/{env_id}")
    env = envs.make(env_id, 1, "cpu", 1, "mujoco")
    agent_ids = torch.zeros(1, dtype=torch.long)
    player = evaluate.Player(evaluate.make_agent(saved, script, env, "cpu"), agent_ids, deterministic=True)
    obs = env.reset()
    for _ in range(3 * env.frame_rate):
        obs = env.step(player.act(obs))[0]
    return env


def running_humanoid(env_id):
    env = envs.make(env_id, 1, "cpu", 1, "mujoco")
    env.reset()
    degrees = dict(
        abdomen_y=-8,
        abdomen_z=6,
        right_hip_y=-62,
        right_knee=-68,
        right_ankle_y=8,
        left_hip_y=18,
        left_knee=-26,
        left_ankle_y=22,
        right_hip_x=-3,
        left_hip_x=-3,
        right_shoulder1=22,
        right_shoulder2=-38,
        right_elbow=15,
        left_shoulder1=-38,
        left_shoulder2=26,
        left_elbow=25,
    )
    joints = [math.radians(degrees.get(name, 0.0)) for name in humanoid.JOINT_NAMES]
    set_state(env, [0.0, 0.0, 1.30, math.cos(0.05), 0.0, math.sin(0.05), 0.0, *joints])
    return env


def parkour(env_id):
    """The robot climbs the steps of the fifth level."""
    env = envs.make(env_id, 24, "cpu", 1, "mujoco")
    env.reset()
    step = terrain.make_column(23).boxes[terrain.NUM_GROUNDS + terrain.NUM_FLOORS + 4 * terrain.NUM_OBSTACLES]
    edge = terrain.CELL * step.x[0]
    legs = [-0.1, 0.45, -1.75, 0.1, 0.15, -1.55, -0.1, 0.85, -1.15, 0.1, 1.05, -1.35]
    pitch = -0.38
    set_state(env, [edge - 0.18, 0.0, 0.40, math.cos(pitch / 2), 0.0, math.sin(pitch / 2), 0.0, *legs])
    env.passed[-1] = 1
    return env


def cartpole(env_id):
    env = envs.make(env_id, 1, "cpu", 1, "mujoco")
    env.reset()
    set_state(env, [0.4, -0.16])
    return env


def move_hand(env, target, opening, steps):
    """Move the grip site of FrankaCube to a point (3,) m."""
    for _ in range(steps):
        action = torch.zeros(1, 7)
        action[0, :3] = ((torch.as_tensor(target) - env.engine.body_pos[0, 9]) / 0.1).clamp(-1.0, 1.0)
        action[0, 6] = opening
        env.step(action)


def stack(env_id):
    """The gripper brings the small cube to the large one."""
    env = envs.make(env_id, 1, "cpu", 1, "mujoco")
    env.reset()
    qpos = torch.cat([env.joint_default, torch.zeros(14)])
    qpos[9:12] = torch.tensor([0.05, -0.16, franka.TABLE_TOP + franka.SIZE_A / 2])
    qpos[12] = 1.0
    qpos[16:19] = torch.tensor([0.02, 0.14, franka.TABLE_TOP + franka.SIZE_B / 2])
    qpos[19] = math.cos(0.3)
    qpos[22] = math.sin(0.3)
    set_state(env, qpos)
    cube = qpos[9:12]
    base = qpos[16:19]
    move_hand(env, cube + torch.tensor([0.0, 0.0, 0.12]), 1.0, 60)
    move_hand(env, cube, 1.0, 60)
    move_hand(env, cube, -1.0, 20)
    move_hand(env, cube + torch.tensor([0.0, 0.0, 0.2]), -1.0, 50)
    move_hand(env, base + torch.tensor([0.0, -0.02, 0.13]), -1.0, 70)
    return env


def push(env_id):
    env = envs.make(env_id, 1, "cpu", 1, "mujoco")
    env.reset()
    qpos = torch.cat([env.joint_default, torch.zeros(7)])
    qpos[9:12] = torch.tensor([0.0, -0.10, franka.TABLE_TOP + franka.SIZE_A / 2])
    qpos[12] = math.cos(0.2)
    qpos[15] = math.sin(0.2)
    set_state(env, qpos)
    env.goal[0] = torch.tensor([0.04, 0.16, franka.TABLE_TOP + franka.SIZE_A / 2])
    behind = qpos[9:12] + torch.tensor([0.0, -0.10, 0.0])
    move_hand(env, behind + torch.tensor([0.0, 0.0, 0.1]), -1.0, 60)
    move_hand(env, behind, -1.0, 50)
    move_hand(env, behind + torch.tensor([0.0, 0.12, 0.0]), -1.0, 40)
    return env


def grasp(env_id):
    """On the way to the second goal."""
    env = envs.make(env_id, 1, "cpu", 1)
    env.reset()
    env.hand[0] = env.object[0] = torch.tensor([-0.35, -0.2, 0.55])
    env.fingers[0] = env.posture + 0.1
    env.goal[0] = torch.tensor([0.55, 0.1, 0.75])
    env.successes[0] = 1.0
    return env


def moat(env_id):
    env = envs.make(env_id, 1, "cpu", 1)
    env.reset()
    env.position[0] = torch.tensor([PLATEAU_STARTS[1] + 0.25, 0.15, 0.1, 0.0])
    return env


# Two arms, left and right: palms up under the ends of a stick of 0.3 m, as in the hand-over of
# tests/envs/test_allegro_kuka_two_arms.py; and the left hand pushing.
PALM_UP = [-1.453, 0.824, -0.315, -0.405, 0.287, 0.297, -0.825] + [0.0] * 12
OVER_STICK = [1.3, 0.19, 1.36, 0.0]
ASIDE = [0.28, 0.6, 0.0, 0.0]
REACH = [-1.618, 1.189, -0.462, 0.245, -0.021, 0.244, 2.558] + HELD[7:23]


def make_two_arms(env_id, scale):
    """A task with two arms whose last environment has the object of this scale; both arms as they begin."""
    same = np.abs(kuka.object_scales() - scale).sum(1).argmin()
    env = envs.make(env_id, int(same) + 1, "cpu", 1, "mujoco")
    env.reset()
    qpos = env.engine.qpos[-1].clone()
    qpos[:46] = torch.tensor(np.tile(np.clip(kuka.TWO_ARMS.pose, kuka.JOINT_LOWER, kuka.JOINT_UPPER), 2))
    return env, qpos


def two_arms_regrasping(env_id):
    """The left hand has lifted the cube."""
    env, qpos = make_two_arms(env_id, (1.0, 1.0, 1.0))
    qpos[:23] = torch.tensor(HELD[:23])
    qpos[46:53] = torch.tensor([-0.319, -0.002, 0.794, 0.71, 0.003, 0.003, 0.71])
    set_state(env, qpos)
    set_goal(env, 0.57, -0.3, 1.03, 1.0, 0.0, 0.0, 0.0)
    return env


def two_arms_reorientation(env_id):
    """One hand hands a stick to the other."""
    env, qpos = make_two_arms(env_id, (6.0, 1.0, 0.5))
    qpos[:46] = torch.tensor(PALM_UP + OVER_STICK + PALM_UP + ASIDE)
    qpos[46:53] = torch.tensor([-0.002, -0.004, 0.785, 1.0, 0.0, 0.0, 0.0])
    set_state(env, qpos)
    set_goal(env, 0.62, -0.2, 0.98, 0.80, 0.40, -0.35, 0.27)
    return env


def partition(env_id):
    """The left hand pushes the board over."""
    env, qpos = make_two_arms(env_id, (1.0, 1.0, 1.0))
    qpos[46:53] = torch.tensor([-0.33, -0.12, 0.56, 0.92, 0.0, 0.0, 0.38])
    set_state(env, qpos)
    set_goal(env, 0.6, -0.45, 0.86, 0.80, 0.40, -0.35, 0.27)
    ctrl = env.engine.qpos[:, :46].clone()
    for step in range(100):
        ctrl[-1, :23] = qpos[:23] + min(1.0, step / 60) * (torch.tensor(REACH) - qpos[:23])
        env.engine.step(ctrl)
        if env.engine.qpos[-1, 57:59].norm() > 0.17:  # half of the tilt's sine: 20 degrees
            break
    return env


def across(env_id, y, z):
    """The cube flies over the middle of the table from these y and z; the pictures on the way make its trail."""
    env, qpos = make_two_arms(env_id, (1.0, 1.0, 1.0))
    qpos[46:53] = torch.tensor([-0.34, y, z, 0.9, 0.2, 0.3, 0.25])
    set_goal(env, 0.58, y, z - 0.03, 0.80, 0.40, -0.35, 0.27)
    qvel = torch.zeros_like(env.engine.qvel[-1])
    qvel[46] = 3.2
    qvel[48] = 1.3
    set_state(env, qpos, qvel)
    for _ in range(13):
        env.render(env.num_envs - 1)
        env.engine.step(env.engine.qpos[:, :46])
    return env


POSES = {
    "A1Parkour": parkour,
    "AllegroKukaRegrasping": regrasping,
    "AllegroKukaThrow": throw,
    "AllegroKukaReorientation": reorientation,
    "AllegroKukaTwoArmsRegrasping": two_arms_regrasping,
    "AllegroKukaTwoArmsReorientation": two_arms_reorientation,
    "AllegroKukaTwoArmsReorientationPartition": partition,
    "AllegroKukaTwoArmsReorientationHole": lambda env_id: across(env_id, 0.0, 0.82),
    "AllegroKukaTwoArmsReorientationBarrier": lambda env_id: across(env_id, -0.24, 0.72),
    "AllegroHand": lambda env_id: in_hand(env_id, {"thumb_joint_0": 0.6, "thumb": 0.0, "joint_0": 0.0, "": -0.25}),
    "ShadowHand": lambda env_id: in_hand(
        env_id, {"WR": 0.0, "FJ3": 0.0, "FJ2": -0.45, "FJ1": -0.5, "THJ4": 0.6, "TH": 0.0, "": 0.0}
    ),
    "Anymal": trained,
    "Humanoid": running_humanoid,
    "Ant": trained,
    "FrankaCubePush": push,
    "FrankaCubeStack": stack,
    "Cartpole": cartpole,
    "Grasp": grasp,
    "Moat": moat,
}

STRIP = (
    "AllegroKukaRegrasping",
    "AllegroKukaThrow",
    "AllegroKukaTwoArmsReorientation",
    "AllegroHand",
    "ShadowHand",
    "FrankaCubeStack",
    "Anymal",
    "A1Parkour",
)


def draw(env):
    """A picture of the last environment."""
    return Image.fromarray(np.asarray(env.render(env.num_envs - 1))).resize(SIZE, Image.Resampling.LANCZOS)


def save(image, path):
    """Write a PNG of at most 256 colours, a third of the size of full colour."""
    image.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {os.path.getsize(path) / 1000:.0f} kB")


def main(names):
    os.makedirs("docs/images", exist_ok=True)
    for name in names:
        save(draw(POSES[name](name)), f"docs/images/{name}.png")
    width = SIZE[0] // 2
    height = SIZE[1] // 2
    columns = 4
    strip = Image.new("RGB", (columns * width, len(STRIP) // columns * height))
    for i, name in enumerate(STRIP):
        picture = Image.open(f"docs/images/{name}.png").convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
        strip.paste(picture, (i % columns * width, i // columns * height))
    save(strip, "docs/images/tasks.png")


if __name__ == "__main__":
    main(sys.argv[1:] or POSES)
