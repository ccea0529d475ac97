"""The table of experiments: what `run.py` runs, `summarize.py` tabulates and `plot.py` draws."""

from dataclasses import dataclass
from typing import Optional, Tuple


@dataclass(frozen=True)
class Variant:
    """One line of an experiment's table: a script and its flags, run once per seed."""

    name: str
    script: str
    flags: str = ""  # added to the experiment's
    seeds: Optional[range] = None  # None: the experiment's
    env_id: Optional[str] = None  # None: the experiment's
    total_timesteps: Optional[int] = None  # None: the experiment's


@dataclass(frozen=True)
class Experiment:
    """Runs that are compared with each other."""

    env_id: str
    total_timesteps: int
    seeds: range
    variants: Tuple[Variant, ...]
    tags: Tuple[str, ...]  # whose curves and final values are collected; the first is the score, others may be patterns
    finals: Tuple[str, ...] = ()  # patterns of tags of which final values are enough
    flags: str = ""  # of every variant
    threshold: Optional[float] = None  # a score at or above this is a success
    final_share: float = 0.05  # the final value is the mean over this share of a curve's points
    first_above: Optional[float] = None  # also collect the first step at which the score exceeds this
    evaluate: bool = False  # also play 100 episodes with evaluate.py


RETURN, OBJECTIVE, STD = "charts/leader_return", "charts/leader_objective", "charts/action_std*"
REWARD = "charts/reward_per_step"
RUNNING_RETURN = "return_over_100_episodes"  # from charts/episodic_return, see run.py

POINT_REACH_STEPS = 512 * 16  # environment steps of one iteration
SAPG_4 = "--num-agents 4 --max-ent-coef 0 --num-minibatches 5"  # with the off-policy rows: 2,048 rows each, as PPO's 4

# The table's row for Moat and Grasp, spelled out because those with a random fitness have no row
MOAT = (
    "--num-steps 16 --update-epochs 2 --learning-rate 3e-4 --kl-threshold 0.016 --clip-coef 0.2 --vf-coef 4"
    " --hidden-sizes 64 64"
)
MOAT_POPULATIONS = (  # name, script, agents, env id
    ("SAPG-6", "sapg.py", 6, None),
    ("SAPG-48", "sapg.py", 48, None),
    ("CPO-6", "cpo.py", 6, None),
    ("CPO-48", "cpo.py", 48, None),
    ("EPO-48", "epo.py", 48, None),
    ("EPO-48 random fitness", "epo.py", 48, "benchmarks.scripts.random_fitness:RandomFitnessMoat"),
)


# Of the tables' rows for a CPU, unclipped; spelled out because the tasks of in_phase.py have no rows
CPU_FLAGS = "--num-envs 1024 --num-steps 16 --num-minibatches 16 --update-epochs 5 --hidden-sizes 256 128 64"
CPU_FLAGS += " --clip-coef 0.2 --no-clip-vloss --vf-coef 4 --bounds-coef 1e-4"

# env id -> the row of `hyperparameters.CPU` when this was run and its alternatives: name, M steps in 20 minutes of two
# cores (a sixth of the row's steps of two hours; with more epochs fewer, by measured CPU time), minibatches, epochs,
# steps. AllegroKuka's row has 5 epochs since.
CPU_ROWS = {
    "AllegroKukaRegrasping": (
        ("row", 13.3, 16, 2, 16), ("4 minibatches", 13.3, 4, 2, 16), ("5 epochs", 10.5, 16, 5, 16),
    ),
    "AllegroHand": (("row", 13.3, 16, 5, 16), ("4 minibatches", 13.3, 4, 5, 16), ("32 steps", 13.3, 32, 5, 32)),
    "Ant": (("row", 16.7, 16, 4, 16), ("4 minibatches", 16.7, 4, 4, 16), ("32 steps", 16.7, 32, 4, 32)),
    "Anymal": (("row", 10.0, 16, 5, 16), ("4 minibatches", 10.0, 4, 5, 16), ("32 steps", 10.0, 32, 5, 32)),
}  # fmt: skip


def cpu_rows(env_id, share=1.0):
    """The experiment on a task's row. share: of the 20 minutes."""
    variants = []
    for name, millions, num_minibatches, update_epochs, num_steps in CPU_ROWS[env_id]:
        flags = f"--num-steps {num_steps} --num-minibatches {num_minibatches} --update-epochs {update_epochs}"
        total_timesteps = round(share * 1e6 * millions)
        for suffix, clip in (("", " --clip-vloss"), (", unclipped", " --no-clip-vloss")):
            variants.append(Variant(name + suffix, "ppo.py", flags + clip, total_timesteps=total_timesteps))
    return Experiment(
        env_id=env_id,
        total_timesteps=variants[0].total_timesteps,
        seeds=range(1, 3),
        flags="--num-envs 1024",
        tags=(REWARD, RETURN, OBJECTIVE),
        variants=tuple(variants),
    )


def on_moat(variants, flags="--clip-vloss"):
    return Experiment(
        env_id="Moat",
        total_timesteps=6_000_000,
        seeds=range(1, 11),
        flags=f"--num-envs 3072 {MOAT} {flags}",
        tags=(OBJECTIVE,),
        finals=(RETURN, STD, "evolution/fired"),
        threshold=12,
        variants=variants,
    )


def moat(flags="--clip-vloss", more_seeds=()):
    """PPO with minibatches of 12,288, 3,072 or 768 rows, populations with the off-policy rows on top.

    more_seeds: variants with twenty.
    """
    runs = [("PPO", "ppo.py", 1, None, k) for k in (4, 16, 64)]
    runs += [(*population, k) for k in (4, 16, 64) for population in MOAT_POPULATIONS]
    variants = []
    for name, script, num_agents, env_id, num_minibatches in runs:
        name = f"{name}, {num_minibatches} minibatches"
        agents = f"--num-agents {num_agents} --max-ent-coef 0.025 " if num_agents > 1 else ""
        seeds = range(1, 21) if name in more_seeds else None
        variants.append(Variant(name, script, f"{agents}--num-minibatches {num_minibatches}", seeds, env_id))
    return on_moat(tuple(variants), flags)


# rl_games' settings for EnvPool's MuJoCo tasks (docs/ENVPOOL.md and configs/mujoco there)
RL_GAMES = "--num-envs 64 --clip-coef 0.2 --vf-coef 2 --bounds-coef 0 --reward-scale 0.1 --hidden-sizes 256 128 64"
# CleanRL's ppo_continuous_action.py for DeepMind Control: 2,048 rows, minibatches of 64, a network each of 64-64. Its
# learning rate falls linearly, ours follows the KL divergence; a constant one clipped half of all rows, and with our
# default threshold of 0.016 the standard deviation of the actions fell to 0.17 within 2 M steps.
CLEANRL = (
    "--num-envs 128 --num-steps 16 --num-minibatches 32 --update-epochs 10 --learning-rate 3e-4 --kl-threshold 0.004"
    " --clip-coef 0.2 --clip-vloss --vf-coef 0.5 --bounds-coef 0 --max-grad-norm 0.5 --hidden-sizes 64 64"
    " --separate-critic"
)
# As in the tables' rows for populations, for PPO too: 960 environments, which 6 and 16 agents share evenly
PUBLIC = (
    "--num-envs 960 --num-steps 16 --kl-threshold 0.008 --clip-coef 0.2 --clip-vloss --bounds-coef 0"
    " --hidden-sizes 256 128 64"
)
PUBLIC_POPULATIONS = (  # name, script, agents, further flags
    ("SAPG-6", "sapg.py", 6, ""),
    ("CPO-6", "cpo.py", 6, ""),
    ("EPO-16", "epo.py", 16, " --ga-threshold 0.5"),
)


def against_rl_games(task, total_timesteps, flags, *variants):
    return Experiment(
        env_id=f"envpool:{task}",
        total_timesteps=total_timesteps,
        seeds=range(1, 4),
        flags=f"{RL_GAMES} {flags}",
        tags=(RUNNING_RETURN, RETURN),
        finals=("charts/learning_rate", STD, "losses/explained_variance"),
        final_share=0,  # the last value: it is a mean over 100 episodes already
        evaluate=True,
        variants=variants,
    )


def rl_games_ppo(name="PPO", task=None, kl_threshold=0.008, clip_vloss=False):
    flags = f"--kl-threshold {kl_threshold} --{'' if clip_vloss else 'no-'}clip-vloss"
    return Variant(name, "ppo.py", flags, env_id=task and f"envpool:{task}")


def against_cleanrl(task):
    return Experiment(
        env_id=f"envpool:{task}",
        total_timesteps=8_000_000,
        seeds=range(1, 4),
        flags=CLEANRL,
        tags=(RUNNING_RETURN, RETURN),
        finals=(STD,),
        final_share=0,
        evaluate=True,
        variants=(Variant("PPO", "ppo.py"),),
    )


def public(task, total_timesteps, flags):
    ppo = [Variant(f"PPO, {k} minibatches", "ppo.py", f"--num-minibatches {k}") for k in (4, 15)]
    populations = [
        Variant(
            f"{name}, {k} minibatches", script,
            f"--num-minibatches {k} --num-agents {num_agents} --max-ent-coef 0.001{more}",
        )
        for k in (4, 15)
        for name, script, num_agents, more in PUBLIC_POPULATIONS
    ]  # fmt: skip
    return Experiment(
        env_id=f"envpool:{task}",
        total_timesteps=total_timesteps,
        seeds=range(1, 4),
        flags=f"{PUBLIC} {flags}",
        tags=(RETURN,),
        finals=("charts/episodic_return", STD, "evolution/*"),
        evaluate=True,
        variants=(*ppo, *populations),
    )


def on_grasp(variants):
    return Experiment(
        env_id="Grasp",
        total_timesteps=4_000_000,
        seeds=range(0, 5),
        flags=f"--num-envs 3072 {MOAT} --clip-vloss",
        tags=(OBJECTIVE,),
        finals=(RETURN, STD, "evolution/fired"),
        variants=variants,
    )


GRASP_POPULATIONS = (  # name, script, agents, env id
    ("SAPG-6", "sapg.py", 6, None),
    ("SAPG-48", "sapg.py", 48, None),
    ("EPO-48", "epo.py", 48, None),
    ("EPO-48 random fitness", "epo.py", 48, "benchmarks.scripts.random_fitness:RandomFitnessGrasp"),
)
GENETIC_OPERATORS = {
    "uniform crossover": "--crossover uniform", "fitness-weighted crossover": "--crossover fitness_weighted",
    "mutation 0": "--mutation-std 0", "mutation 0.3": "--mutation-std 0.3",
}  # fmt: skip


def minibatches(num_envs, num_agents, rows):
    """--num-minibatches for minibatches of about so many rows, off-policy ones included."""
    columns = num_envs + (num_envs // num_agents if num_agents > 1 else 0)
    return round(16 * columns / rows)


def sized(name, script, num_agents, num_envs, rows, size, flags="", seeds=None, env_id=None):
    """A variant whose minibatches have about so many rows; size: how its name says that."""
    flags += f" --num-minibatches {minibatches(num_envs, num_agents, rows)}"
    flags += f" --num-agents {num_agents}" if num_agents > 1 else ""
    return Variant(f"{name}, {size}", script, flags.strip(), seeds, env_id)


def batch_scaling(env_id, num_envs, max_ent_coef, rows, more=(), small_seeds=None):
    """SAPG's premise: PPO does not use more environments. 122 iterations, as many as Moat's 6 M steps have.

    rows: of the small minibatches, which have `small_seeds` where five do not suffice. more: further sizes for PPO
    alone. PPO and SAPG-6 also with the papers' 4 N rows.
    """
    small, papers = (rows, f"{rows:,} rows"), (4 * num_envs, "4 N rows")
    populations = (("SAPG-6", "sapg.py", 6), ("CPO-6", "cpo.py", 6), ("EPO-48", "epo.py", 48))
    entropy = f"--max-ent-coef {max_ent_coef}"
    return Experiment(
        env_id=env_id,
        total_timesteps=122 * 16 * num_envs,
        seeds=range(0, 5),
        flags=f"--num-envs {num_envs} {MOAT} --clip-vloss",
        tags=(OBJECTIVE,),
        finals=(RETURN, STD),
        variants=(
            sized("PPO", "ppo.py", 1, num_envs, *small, "", small_seeds),
            sized("PPO", "ppo.py", 1, num_envs, *papers),
            *(sized(*population, num_envs, *small, entropy, small_seeds) for population in populations),
            sized(*populations[0], num_envs, *papers, entropy),
            *(sized("PPO", "ppo.py", 1, num_envs, each, f"{each:,} rows") for each in more),
        ),
    )


def robot(env_id, score):
    """A task's row for a CPU, 1,024 environments (1,020 for six agents), with minibatches of 1,024 rows."""
    agents = (("PPO", "ppo.py", 1, 1_024), ("SAPG-6", "sapg.py", 6, 1_020), ("EPO-16", "epo.py", 16, 1_024))
    return Experiment(
        env_id=env_id,
        total_timesteps=10_000_000,
        seeds=range(1, 4),
        flags="--clip-vloss",
        tags=tuple(dict.fromkeys((score, RETURN, OBJECTIVE, REWARD))),
        finals=(STD, "evolution/fired"),
        evaluate=True,
        variants=tuple(sized(*each, 1_024, "1,024 rows") for each in agents),
    )


EXPERIMENTS = {
    # The settings at which the released SAPG code was run; 300 iterations
    "point_reach": Experiment(
        env_id="benchmarks.scripts.point_reach:PointReach",
        total_timesteps=300 * POINT_REACH_STEPS,
        seeds=range(0, 6),
        flags="--num-envs 512 --num-steps 16 --update-epochs 5 --learning-rate 5e-4 --kl-threshold 0.016"
        " --clip-coef 0.2 --vf-coef 4 --bounds-coef 1e-4 --max-grad-norm 1 --reward-scale 0.01 --hidden-sizes 128 64",
        tags=(RETURN,),
        finals=(OBJECTIVE,),
        threshold=44,
        final_share=20 / 300,  # iterations 281 to 300
        first_above=30,
        variants=(
            Variant("PPO", "ppo.py", "--num-minibatches 4 --clip-vloss"),
            Variant("SAPG-4", "sapg.py", f"{SAPG_4} --clip-vloss", range(0, 12)),
            Variant("PPO, unclipped", "ppo.py", "--num-minibatches 4 --no-clip-vloss"),
            Variant("SAPG-4, unclipped", "sapg.py", f"{SAPG_4} --no-clip-vloss", range(0, 12)),
            Variant(
                "PPO, unclipped, separate critic", "ppo.py", "--num-minibatches 4 --no-clip-vloss --separate-critic"
            ),
            Variant("PPO, unclipped, 3-step target", "ppo.py", "--num-minibatches 4 --no-clip-vloss --critic-n-step 3"),
        ),
    ),
    # Does a population help, and does it still with small minibatches? PPO with 64 has ten more seeds, because on its
    # first ten the clip of the value loss was chosen
    "moat": moat(more_seeds=("PPO, 64 minibatches",)),
    # With the papers' plain square error of the value. PPO with 64 minibatches then ends near 7.5 or near 15, so that
    # ten seeds leave its median to chance: twenty of it and of SAPG-48
    "moat_unclipped": moat("--no-clip-vloss", ("PPO, 64 minibatches", "SAPG-48, 64 minibatches")),
    # Whose data should be used, and does the entropy bonus matter (SAPG 6.3)? Do more agents help (EPO 5.3)? The
    # papers' critic target (SAPG Eq. 5)?
    "moat_ablations": on_moat(
        tuple(
            # minibatches of about 3,584 rows, as SAPG-6 has with 16, where nothing else is said
            Variant(f"{name}-{agents}, {what}", f"{name.lower()}.py",
                    f"--num-agents {agents} --max-ent-coef {entropy} --num-minibatches {k} {flags}".strip(), seeds)
            for name, agents, what, entropy, k, flags, seeds in (
                ("SAPG", 6, "symmetric", 0.025, 27, "--aggregation symmetric", None),
                ("SAPG", 6, "no followers' data", 0.025, 14, "--off-policy-ratio 0", None),
                ("SAPG", 6, "all followers' data", 0.025, 25, "--off-policy-ratio 5", None),
                ("SAPG", 6, "no entropy bonus", 0, 16, "", None),
                ("SAPG", 6, "window centred on mu", 0.025, 16, "--off-policy-mu", None),
                ("SAPG", 6, "4 minibatches, 3-step target", 0.025, 4, "--critic-n-step 3", None),
                ("CPO", 6, "4 minibatches, 3-step target", 0.025, 4, "--critic-n-step 3", None),
                ("EPO", 8, "16 minibatches", 0.025, 16, "", None),
            )
        ),
    ),
    # With its defaults EPO replaces one of 47 followers at a time, at most seven times in a run of `moat`. Does it
    # matter who is selected, and how they are crossed and mutated, where half of them are replaced?
    "moat_selection": on_moat(
        tuple(
            Variant(
                f"{name}, {k} minibatches", "epo.py",
                f"--num-agents 48 --max-ent-coef 0.025 --num-elites 24 --num-minibatches {k} {flags}".strip(),
                seeds, env_id,
            )
            for name, flags, ks, seeds, env_id in (
                ("EPO-48", "", (16, 64), None, None),
                ("EPO-48 random fitness", "", (16, 64), None, MOAT_POPULATIONS[-1][-1]),
                *((f"EPO-48 {name}", flags, (16,), range(1, 6), None) for name, flags in GENETIC_OPERATORS.items()),
            )
            for k in ks
        )
    ),
    # The same questions on Grasp; minibatches of 768 rows, or of the papers' 4 N
    "grasp": on_grasp(
        tuple(
            variant
            # more: seeds of what says what evolution adds, and of PPO
            for rows, size, more in ((768, "768 rows", range(0, 10)), (4 * 3_072, "4 N rows", None))
            for variant in (
                sized("PPO", "ppo.py", 1, 3_072, rows, size, "", more),
                *(
                    sized(name, script, agents, 3_072, rows, size, "--max-ent-coef 0.005",
                          more if agents == 48 else None, env_id)
                    for name, script, agents, env_id in GRASP_POPULATIONS
                ),
            )
        )
    ),
    "grasp_selection": on_grasp(
        tuple(
            sized(name, "epo.py", 48, 3_072, 768, "768 rows", f"--max-ent-coef 0.005 --num-elites 24 {flags}",
                  seeds, env_id)
            for name, flags, seeds, env_id in (
                ("EPO-48", "", range(0, 10), None),
                ("EPO-48 random fitness", "", range(0, 10), GRASP_POPULATIONS[-1][-1]),
                *((f"EPO-48 {name}", flags, None, None) for name, flags in GENETIC_OPERATORS.items()),
            )
        )
    ),
    # 768 rows are 32 minibatches of 1,536 environments, but 512 of 24,576, with which PPO fails on Moat
    "moat_1536": batch_scaling("Moat", 1_536, 0.025, 768),
    "moat_24576": batch_scaling("Moat", 24_576, 0.025, 6_144, more=(768, 24_576)),
    # With five seeds populations looked better here than PPO; ten more have no part in that
    "grasp_1536": batch_scaling("Grasp", 1_536, 0.005, 768, small_seeds=range(0, 15)),
    "grasp_24576": batch_scaling("Grasp", 24_576, 0.005, 6_144, more=(768,)),
    "ant_populations": robot("Ant", RETURN),
    "allegro_hand_populations": robot("AllegroHand", OBJECTIVE),
    # How far does AllegroKukaRegrasping come in one to three hours of one core?
    "allegro_kuka": Experiment(
        env_id="AllegroKukaRegrasping",
        total_timesteps=15_000_000,
        seeds=range(1, 2),
        tags=(RETURN, OBJECTIVE, REWARD, "charts/lifted", "charts/reward_*", "losses/explained_variance"),
        finals=(STD, "charts/learning_rate", "charts/*_distance"),
        evaluate=True,
        variants=(
            Variant("5 epochs", "ppo.py", "--update-epochs 5"),
            Variant("2 epochs", "ppo.py", "--update-epochs 2", total_timesteps=8_000_000),  # enough to fall behind
            # what a grasp needs: less noise, but not before the policy has learned to reach
            Variant(
                "5 epochs, less and less noise", "ppo.py", "--update-epochs 5 --ent-coef -0.001",
                total_timesteps=48_000_000,
            ),
        ),
    ),
    # Does the action noise stay bounded?
    "moat_long": Experiment(
        env_id="Moat",
        total_timesteps=40_000_000,
        seeds=range(1, 4),
        flags=f"--num-envs 3072 {MOAT} --num-agents 64 --max-ent-coef 0.025 --num-minibatches 4",
        tags=(OBJECTIVE, STD, "charts/learning_rate"),
        threshold=12,
        variants=(
            Variant("EPO-64", "epo.py", "--clip-vloss"),
            Variant("EPO-64, unclipped", "epo.py", "--no-clip-vloss"),
        ),
    ),
    "moat_critic": on_moat(
        tuple(
            Variant(f"PPO, {k} minibatches, separate critic", "ppo.py", f"--num-minibatches {k} --separate-critic")
            for k in (4, 16)
        ),
        "--no-clip-vloss",
    ),
    "ant": Experiment(
        env_id="Ant",
        total_timesteps=4_000_000,
        seeds=range(1, 6),
        flags="--num-envs 1024 --num-steps 16 --update-epochs 4 --num-minibatches 4 --hidden-sizes 256 128 64",
        tags=(RETURN, REWARD),
        finals=(STD, "charts/reward_*"),
        variants=(
            Variant("PPO", "ppo.py", "--clip-vloss"),
            Variant("PPO, unclipped", "ppo.py", "--no-clip-vloss"),
            Variant("PPO, unclipped, separate critic", "ppo.py", "--no-clip-vloss --separate-critic"),
        ),
    ),
    # rl_games' best of one seed: 3,485, 4,429, 5,186 (docs/ENVPOOL.md there)
    "rl_games_hopper": against_rl_games(
        "Hopper-v5", 4_096_000, "--num-steps 64 --num-minibatches 2 --update-epochs 5 --learning-rate 5e-4",
        rl_games_ppo(),
        rl_games_ppo("PPO, clipped values", clip_vloss=True),
        rl_games_ppo("PPO, threshold 0.016", kl_threshold=0.016),
        rl_games_ppo("PPO, Hopper-v4", "Hopper-v4"),
    ),
    "rl_games_ant": against_rl_games(
        "Ant-v5", 8_192_000, "--num-steps 64 --num-minibatches 2 --update-epochs 4 --learning-rate 3e-4",
        rl_games_ppo(clip_vloss=True),
        rl_games_ppo("PPO, Ant-v4", "Ant-v4", clip_vloss=True),
    ),
    "rl_games_walker2d": against_rl_games(
        "Walker2d-v5", 8_192_000, "--num-steps 128 --num-minibatches 4 --update-epochs 5 --learning-rate 3e-4",
        rl_games_ppo(),
        rl_games_ppo("PPO, Walker2d-v4", "Walker2d-v4"),
    ),
    # CleanRL's mean of ten seeds: 432.6 +- 82.5, 392.5 +- 56.3 (docs/rl-algorithms/ppo.md there)
    "cleanrl_cheetah_run": against_cleanrl("CheetahRun-v1"),
    "cleanrl_walker_walk": against_cleanrl("WalkerWalk-v1"),
    # Populations on other people's tasks: minibatches of 3,840 rows (4) as in the papers, or of 1,024 rows (15)
    "public_halfcheetah": public(
        "HalfCheetah-v5", 8_000_000, "--update-epochs 5 --learning-rate 5e-4 --vf-coef 4 --reward-scale 1"
    ),
    "public_ant": public(
        "Ant-v5", 4_000_000, "--update-epochs 4 --learning-rate 3e-4 --vf-coef 2 --reward-scale 0.1"
    ),
    # Which of Playground's quadrupeds learns in reach of two cores? The table's row for the first, on both
    "spot": Experiment(
        env_id="envpool:SpotFlatTerrainJoystick-v1",
        total_timesteps=5_000_000,
        seeds=range(1, 2),
        flags="--num-envs 64 --num-steps 128 --num-minibatches 8 --learning-rate 3e-4 --kl-threshold 0.008 --vf-coef 2"
        " --bounds-coef 0 --gamma 0.97",
        tags=(RETURN, "charts/episodic_length"),
        finals=(STD,),
        evaluate=True,
        variants=(
            Variant("joystick", "ppo.py"),
            Variant("gait tracking", "ppo.py", env_id="envpool:SpotJoystickGaitTracking-v1"),
        ),
    ),
    # Do first episodes that begin at different points of their clock help?
    "stagger": Experiment(
        env_id="AllegroHand",
        total_timesteps=5_000_000,
        seeds=range(1, 3),
        flags=f"{CPU_FLAGS} --learning-rate 5e-4 --kl-threshold 0.016 --reward-scale 0.01",
        tags=(REWARD, RETURN, OBJECTIVE),
        variants=(
            Variant("AllegroHand, staggered", "ppo.py"),
            Variant("AllegroHand, in phase", "ppo.py", env_id="benchmarks.scripts.in_phase:AllegroHand"),
        ),
    ),
    "stagger_anymal": Experiment(
        env_id="Anymal",
        total_timesteps=5_000_000,
        seeds=range(1, 3),
        flags=f"{CPU_FLAGS} --learning-rate 3e-4 --kl-threshold 0.008",
        tags=(REWARD, RETURN),
        variants=(
            Variant("Anymal, staggered", "ppo.py"),
            Variant("Anymal, in phase", "ppo.py", env_id="benchmarks.scripts.in_phase:Anymal"),
        ),
    ),
    # Which settings learn most in 20 minutes of two cores? And a first look, in a quarter of that time
    **{f"cpu_rows_{env_id}": cpu_rows(env_id) for env_id in CPU_ROWS},
    **{f"cpu_rows_{env_id}_short": cpu_rows(env_id, 0.25) for env_id in CPU_ROWS},
}
