"""Tuned hyperparameters: the tables PPO, PBT, SAPG, CPO and EPO, one per script, and CPU for machines without a GPU.

A table has one row per task: a dict, flag -> value. The script's Args says what each flag means. A run takes a flag
from the first of these that has it: the command line, the task's row of CPU if there is no GPU, its row in the script's
table, and Args.

Sources: SAPG Tables 2-4, EPO B.2 and CPO Tables 3-6, for reward scales and entropy bonuses the released code, for Ant
and Cartpole IsaacGymEnvs, for EnvPool rl_games.
"""

from envs import TASKS  # before torch: Isaac Gym must be imported first


def merge(table, changes):
    """A copy of a table, with the flags of `changes`, a table too, added to its rows or in place of theirs."""
    merged = dict(table)
    for task, row in changes.items():
        merged[task] = {**table.get(task, {}), **row}
    return merged


# Families of tasks. A family's row in a table, dict.fromkeys(family, row), is the row of each of its tasks
ALL_ALLEGRO_KUKA = [task for task in TASKS if task.startswith("AllegroKuka")]
TWO_ARMS = [task for task in ALL_ALLEGRO_KUKA if task.startswith("AllegroKukaTwoArms")]
THROW = [task for task in ALL_ALLEGRO_KUKA if task.startswith("AllegroKukaThrow")]
REORIENTATION = [task for task in ALL_ALLEGRO_KUKA if task.startswith("AllegroKukaReorientation")]
RELATIVE_TARGETS = [task for task in ALL_ALLEGRO_KUKA if task.endswith(("HeldStarts", "RelativeTargets"))]
ONE_ARM = [task for task in ALL_ALLEGRO_KUKA if task not in (*TWO_ARMS, *RELATIVE_TARGETS)]  # the papers'
FRANKA_CUBES = ["FrankaCubePush", "FrankaCubeStack"]
ENVPOOL = ["envpool:Ant-v5", "envpool:Hopper-v5", "envpool:Walker2d-v5"]

# Values that the rows of several tasks begin with
ALLEGRO_KUKA = dict(
    num_envs=24_576, total_timesteps=10_000_000_000, num_steps=16, num_minibatches=4, update_epochs=2,
    learning_rate=1e-4, kl_threshold=0.016, clip_coef=0.1, vf_coef=4.0, bounds_coef=1e-4, reward_scale=0.01,
    hidden_sizes=(768, 512, 256), lstm=True, lstm_size=768,
)  # fmt: skip
IN_HAND = dict(
    num_envs=24_576, total_timesteps=10_000_000_000, num_steps=8, num_minibatches=2, update_epochs=5,
    learning_rate=5e-4, kl_threshold=0.016, clip_coef=0.2, vf_coef=4.0, bounds_coef=1e-4, reward_scale=0.01,
)  # fmt: skip
LOCOMOTION = dict(
    num_envs=24_576, total_timesteps=5_000_000_000, num_steps=8, num_minibatches=2, update_epochs=5,
    kl_threshold=0.008, clip_coef=0.2, vf_coef=4.0, bounds_coef=1e-4, hidden_sizes=(768, 512, 256),
)  # fmt: skip
EPO_LOCOMOTION = dict(  # EPO B.2's table for locomotion
    num_steps=16, num_minibatches=4, update_epochs=2, learning_rate=1e-4, kl_threshold=0.016, clip_coef=0.1,
    bounds_coef=1e-5, hidden_sizes=(512, 256, 128),
)  # fmt: skip
FRANKA_CUBE = dict(
    num_envs=24_576, total_timesteps=5_000_000_000, num_steps=16, num_minibatches=4, update_epochs=8,
    learning_rate=5e-4, kl_threshold=0.008, clip_coef=0.2, vf_coef=4.0, bounds_coef=1e-4,
    hidden_sizes=(256, 128, 64), lstm=True, lstm_size=256,
)  # fmt: skip
RL_GAMES = dict(  # its configurations for EnvPool's MuJoCo tasks; minibatches of 2,048 rows
    num_envs=64, num_steps=64, num_minibatches=2, learning_rate=3e-4, kl_threshold=0.008, clip_coef=0.2, vf_coef=2.0,
    clip_vloss=False, bounds_coef=0.0, reward_scale=0.1, hidden_sizes=(256, 128, 64),
)  # fmt: skip
# The toys are ours, and so are these values
TOY = dict(num_envs=3_072, num_steps=16, num_minibatches=4, update_epochs=2, kl_threshold=0.016, hidden_sizes=(64, 64))
COMMON = {  # to all scripts, whose tables change or add to it
    # The entropy bonus is Extreme Parkour's. Without it, after 13 M steps of PPO on even ground, the noise had halved
    # and only flat courses were passed. The initial standard deviation is ours: it moves the joints' targets by
    # 0.075 rad, with which a new policy can stand
    "A1Parkour": {**LOCOMOTION, **EPO_LOCOMOTION, "ent_coef": 0.01, "init_std": 0.0625},
    "AllegroHand": dict(IN_HAND, hidden_sizes=(512, 256, 128)),
    **dict.fromkeys([*ONE_ARM, *TWO_ARMS], ALLEGRO_KUKA),
    # These tasks are ours, and so are the three values in which they differ from the papers' AllegroKuka
    **dict.fromkeys(RELATIVE_TARGETS, dict(ALLEGRO_KUKA, kl_threshold=0.008, clip_coef=0.2, init_std=0.4)),
    "Ant": dict(
        num_envs=4_096, total_timesteps=100_000_000, num_steps=16, num_minibatches=2, update_epochs=4,
        learning_rate=3e-4, kl_threshold=0.008, clip_coef=0.2, vf_coef=2.0, bounds_coef=1e-4, reward_scale=0.01,
        hidden_sizes=(256, 128, 64),
    ),
    "Anymal": dict(LOCOMOTION, learning_rate=3e-4),
    "Cartpole": dict(
        num_envs=512, total_timesteps=1_000_000, num_steps=16, num_minibatches=1, update_epochs=8,
        learning_rate=3e-4, kl_threshold=0.008, clip_coef=0.2, vf_coef=4.0, bounds_coef=1e-4, reward_scale=0.1,
        hidden_sizes=(32, 32),
    ),
    **dict.fromkeys(FRANKA_CUBES, FRANKA_CUBE),
    "Grasp": dict(TOY, total_timesteps=4_000_000),
    "Humanoid": dict(LOCOMOTION, learning_rate=5e-4, reward_scale=0.01),
    "Moat": dict(TOY, total_timesteps=6_000_000),
    "ShadowHand": dict(IN_HAND, hidden_sizes=(512, 512, 256, 128)),
    "envpool:Ant-v5": dict(RL_GAMES, total_timesteps=8_192_000, update_epochs=4, clip_vloss=True),
    "envpool:Hopper-v5": dict(RL_GAMES, total_timesteps=4_096_000, learning_rate=5e-4),
    "envpool:Walker2d-v5": dict(RL_GAMES, total_timesteps=8_192_000, num_steps=128, num_minibatches=4),
}  # fmt: skip
# No paper trains a population on EnvPool's tasks, so this row is ours: enough environments for 6 to 64 agents,
# minibatches of 1,024 rows, and the papers' entropy bonus for locomotion
ENVPOOL_POPULATION = dict(
    num_envs=960, num_steps=16, num_minibatches=15, clip_vloss=True, hidden_sizes=(256, 128, 64), max_ent_coef=0.001,
)  # fmt: skip
PPO = merge(COMMON, {
    # Ours, see benchmarks/robots.md
    "FrankaCubeStack": dict(ent_coef=0.0025),
})  # fmt: skip
PBT = PPO
SAPG = merge(COMMON, {
    # Half of CPO's 0.005
    **dict.fromkeys([*REORIENTATION, *FRANKA_CUBES, "ShadowHand"], dict(max_ent_coef=0.0025)),
    # Half of 0.002, which CPO has in locomotion and the released commands with two arms
    **dict.fromkeys([*TWO_ARMS, "Anymal", "Humanoid"], dict(max_ent_coef=0.001)),
    # The toys are ours, and so are their entropy bonuses
    "Grasp": dict(max_ent_coef=0.005),
    "Moat": dict(max_ent_coef=0.025),
    **dict.fromkeys(ENVPOOL, ENVPOOL_POPULATION),
})  # fmt: skip
CPO = merge(SAPG, {  # CPO Tables 3-6
    "AllegroHand": dict(awac_coef=0.0005, awac_temperature=0.1, adversarial_coef=0.001),
    **dict.fromkeys(THROW, dict(awac_temperature=0.1)),
    **dict.fromkeys(["Anymal", "Humanoid"], dict(discriminator_sizes=(768, 512, 256))),
    **dict.fromkeys(FRANKA_CUBES, dict(awac_coef=0.0005, awac_temperature=0.1, discriminator_sizes=(256, 128, 64))),
    "ShadowHand": dict(adversarial_coef=0.01),
})  # fmt: skip
EPO = merge(SAPG, {
    **dict.fromkeys(ALL_ALLEGRO_KUKA, dict(bounds_coef=1e-5)),  # EPO B.2
    **dict.fromkeys(["A1Parkour", "Anymal", "Humanoid"], dict(EPO_LOCOMOTION, ga_threshold=0.5)),
    **dict.fromkeys(["Ant", *ENVPOOL], dict(ga_threshold=0.5)),
})  # fmt: skip
# No paper trains without a GPU, so these rows are ours: small networks, small minibatches, and enough steps for one to
# seven hours of one core
SMALL = dict(num_envs=1_024, num_steps=16, num_minibatches=16, lstm=False, hidden_sizes=(256, 128, 64))
CPU = {
    # With 2,560 environments, each of 64 agents has one on each of the 40 columns. With 640, and minibatches of 1,536
    # rows, PPO's mean level was higher in the first 29 M steps, but then stayed below 3
    "A1Parkour": dict(
        SMALL, num_envs=2_560, num_steps=24, num_minibatches=10, update_epochs=6, kl_threshold=0.03, clip_coef=0.2,
        bounds_coef=1e-4, total_timesteps=100_000_000,
    ),
    "AllegroHand": dict(SMALL, num_envs=4_096, num_minibatches=8, total_timesteps=150_000_000),
    **dict.fromkeys(ONE_ARM, dict(SMALL, update_epochs=5, total_timesteps=60_000_000)),
    **dict.fromkeys(TWO_ARMS, dict(SMALL, update_epochs=5, total_timesteps=50_000_000)),
    **dict.fromkeys(RELATIVE_TARGETS, dict(SMALL, num_envs=2_048, update_epochs=4, total_timesteps=60_000_000)),
    "AllegroKukaThrowHeldStarts": dict(SMALL, num_envs=4_096, update_epochs=4, total_timesteps=100_000_000),
    "Anymal": dict(SMALL, total_timesteps=60_000_000),
    **dict.fromkeys([*FRANKA_CUBES, "Ant"], dict(SMALL, total_timesteps=100_000_000)),
    # With the batch of the others, it learned faster in the first 20 M steps, but then stayed behind
    "Humanoid": dict(SMALL, num_envs=2_048, num_steps=32, num_minibatches=8, total_timesteps=80_000_000),
    "ShadowHand": dict(SMALL, num_envs=4_096, num_minibatches=8, total_timesteps=100_000_000),
}  # fmt: skip
