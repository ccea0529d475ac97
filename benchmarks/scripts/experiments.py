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
BEST, MEDIAN = "charts/best_agent_objective", "population/objective_median"
REWARD = "charts/reward_per_step"
RUNNING_RETURN = "return_over_100_episodes"  # from charts/episodic_return, see run.py

# The preset of Moat and Grasp, spelled out because the tasks with a random fitness have none
MOAT = (
    "--num-steps 16 --update-epochs 2 --learning-rate 3e-4 --kl-threshold 0.016 --clip-coef 0.2 --vf-coef 4"
    " --hidden-sizes 64 64"
)
POPULATIONS = (("SAPG-6", "sapg.py", 6), ("SAPG-48", "sapg.py", 48), ("CPO-6", "cpo.py", 6), ("CPO-48", "cpo.py", 48))
EPO_48 = "--num-agents 48 --max-ent-coef 0.025"
RANDOM_FITNESS = "benchmarks.scripts.random_fitness:RandomFitness"


def on_moat(variants, flags="--clip-vloss"):
    return Experiment(
        env_id="Moat",
        total_timesteps=6_000_000,
        seeds=range(1, 11),
        flags=f"--num-envs 3072 {MOAT} {flags}",
        tags=(OBJECTIVE,),
        finals=(RETURN, BEST, MEDIAN, STD, "evolution/fired"),
        threshold=12,
        variants=variants,
    )


def moat(flags, with_64, more_seeds=(), more=()):
    """PPO with minibatches of 12,288, 3,072 or 768 rows, populations with the off-policy rows on top.

    with_64: the populations that have the smallest ones too. more_seeds: variants with twenty seeds. more: variants.
    """
    variants = []
    for num_minibatches in (4, 16, 64):
        for name, script, num_agents in (("PPO", "ppo.py", 1), *POPULATIONS):
            if num_minibatches == 64 and name not in with_64:
                continue
            name = f"{name}, {num_minibatches} minibatches"
            population = f"--num-agents {num_agents} --max-ent-coef 0.025 " if num_agents > 1 else ""
            seeds = range(1, 21) if name in more_seeds else None
            variants.append(Variant(name, script, f"{population}--num-minibatches {num_minibatches}", seeds))
    return on_moat((*variants, *more), flags)


def on_grasp(variants):
    return Experiment(
        env_id="Grasp",
        total_timesteps=4_000_000,
        seeds=range(0, 10),
        flags=f"--num-envs 3072 {MOAT} --clip-vloss",
        tags=(OBJECTIVE,),
        finals=(RETURN, BEST, MEDIAN, STD, "evolution/fired"),
        variants=variants,
    )


def sized(name, script, num_agents, num_envs, rows, size="", flags="", seeds=None, env_id=None):
    """A variant whose minibatches have about so many rows, off-policy ones included; size: how its name says that."""
    columns = num_envs + (num_envs // num_agents if num_agents > 1 else 0)
    flags += f" --num-minibatches {round(16 * columns / rows)}"
    flags += f" --num-agents {num_agents}" if num_agents > 1 else ""
    return Variant(f"{name}, {size}" if size else name, script, flags.strip(), seeds, env_id)


def batch_scaling(env_id, num_envs, max_ent_coef, rows, more=(), seeds=None):
    """SAPG's premise: PPO does not use more environments. 122 iterations, as many as Moat's 6 M steps have.

    rows: of the small minibatches. more: PPO's further sizes. seeds: of PPO's and the populations' small minibatches.
    """
    small, papers = (rows, "small minibatches"), (4 * num_envs, "4 N rows")
    populations = (("SAPG-6", "sapg.py", 6), ("CPO-6", "cpo.py", 6))
    entropy = f"--max-ent-coef {max_ent_coef}"
    return Experiment(
        env_id=env_id,
        total_timesteps=122 * 16 * num_envs,
        seeds=range(0, 5),
        flags=f"--num-envs {num_envs} {MOAT} --clip-vloss",
        tags=(OBJECTIVE,),
        finals=(RETURN, STD),
        variants=(
            sized("PPO", "ppo.py", 1, num_envs, *small, "", seeds),
            sized("PPO", "ppo.py", 1, num_envs, *papers),
            *(sized(*population, num_envs, *small, entropy, seeds) for population in populations),
            sized(*populations[0], num_envs, *papers, entropy),
            *(sized("PPO", "ppo.py", 1, num_envs, each, f"{each:,} rows") for each in more),
        ),
    )


def robot(env_id, score, *more):
    """A task's CPU preset, 1,024 environments (1,020 for six agents), with minibatches of 1,024 rows."""
    agents = (("PPO", "ppo.py", 1, 1_024), ("SAPG-6", "sapg.py", 6, 1_020), *more)
    return Experiment(
        env_id=env_id,
        total_timesteps=10_000_000,
        seeds=range(1, 4),
        flags="--clip-vloss",
        tags=tuple(dict.fromkeys((score, RETURN, OBJECTIVE, REWARD))),
        finals=(STD, "evolution/fired"),
        evaluate=True,
        variants=tuple(sized(*each, 1_024) for each in agents),
    )


# CleanRL's ppo_continuous_action.py for DeepMind Control: 2,048 rows, minibatches of 64, a network each of 64-64. Its
# learning rate falls linearly, ours follows the KL divergence
CLEANRL = (
    "--num-envs 128 --num-steps 16 --num-minibatches 32 --update-epochs 10 --learning-rate 3e-4 --clip-coef 0.2"
    " --clip-vloss --vf-coef 0.5 --bounds-coef 0 --max-grad-norm 0.5 --hidden-sizes 64 64 --separate-critic"
)
POINT_REACH_STEPS = 512 * 16  # environment steps of one iteration

EXPERIMENTS = {
    # The settings at which the released SAPG code was run, unmodified, on this task; its curves are in the csv too
    "point_reach": Experiment(
        env_id="benchmarks.scripts.point_reach:PointReach",
        total_timesteps=300 * POINT_REACH_STEPS,
        seeds=range(0, 6),
        flags="--num-envs 512 --num-steps 16 --update-epochs 5 --learning-rate 5e-4 --kl-threshold 0.016"
        " --clip-coef 0.2 --vf-coef 4 --bounds-coef 1e-4 --max-grad-norm 1 --reward-scale 0.01 --hidden-sizes 128 64"
        " --clip-vloss",
        tags=(RETURN,),
        finals=(OBJECTIVE,),
        final_share=20 / 300,  # iterations 281 to 300
        first_above=30,
        variants=(
            Variant("PPO", "ppo.py", "--num-minibatches 4"),
            # with the off-policy rows 2,048 rows per minibatch, as PPO's 4
            Variant("SAPG-4", "sapg.py", "--num-minibatches 5 --num-agents 4 --max-ent-coef 0", range(0, 12)),
            Variant("PPO, 3-step target", "ppo.py", "--num-minibatches 4 --critic-n-step 3"),
            Variant("PPO, separate critic", "ppo.py", "--num-minibatches 4 --separate-critic"),
        ),
    ),
    # Does a population help, and does it still with small minibatches? PPO with 64 has ten more seeds, because on its
    # first ten the clip of the value loss was chosen
    "moat": moat(
        "--clip-vloss", ("PPO", "SAPG-6", "SAPG-48"), ("PPO, 64 minibatches",),
        (
            *(Variant(f"EPO-48, {k} minibatches", "epo.py", f"{EPO_48} --num-minibatches {k}") for k in (4, 16, 64)),
            Variant("EPO-48 random fitness, 16 minibatches", "epo.py", f"{EPO_48} --num-minibatches 16",
                    env_id=f"{RANDOM_FITNESS}Moat"),
            *(Variant(f"PBT-8, {k} minibatches", "pbt.py", f"--num-agents 8 --num-minibatches {k}") for k in (4, 16)),
        ),
    ),
    # With the papers' plain square error of the value
    "moat_unclipped": moat("--no-clip-vloss", ("PPO", "SAPG-48"), ("PPO, 64 minibatches", "SAPG-48, 64 minibatches")),
    # Whose data should be used, and does the entropy bonus matter (SAPG 6.3)? The papers' critic target (SAPG Eq. 5)?
    # Minibatches of about 3,584 rows, as SAPG-6 has with 16, where nothing is said
    "moat_ablations": on_moat(
        tuple(
            Variant(f"{name}-{agents}, {what}", f"{name.lower()}.py",
                    f"--num-agents {agents} --max-ent-coef {entropy} --num-minibatches {k} {flags}".strip(), seeds)
            for name, agents, what, entropy, k, flags, seeds in (
                ("SAPG", 6, "symmetric", 0.025, 27, "--aggregation symmetric", None),
                ("SAPG", 6, "no followers' data", 0.025, 14, "--off-policy-ratio 0", None),
                ("SAPG", 6, "all followers' data", 0.025, 25, "--off-policy-ratio 5", None),
                ("SAPG", 6, "no entropy bonus", 0, 16, "", None),
                ("SAPG", 6, "window centred on mu", 0.025, 16, "--off-policy-mu", None),
                ("SAPG", 6, "4 minibatches, 3-step target", 0.025, 4, "--critic-n-step 3", range(1, 6)),
                ("CPO", 6, "4 minibatches, 3-step target", 0.025, 4, "--critic-n-step 3", range(1, 6)),
            )
        )
    ),
    "grasp": on_grasp(
        (
            sized("PPO", "ppo.py", 1, 3_072, 768, "768 rows"),
            *(
                sized(name, script, 48, 3_072, 768, "768 rows", "--max-ent-coef 0.005", None, env_id)
                for name, script, env_id in (
                    ("SAPG-48", "sapg.py", None),
                    ("EPO-48", "epo.py", None),
                    ("EPO-48 random fitness", "epo.py", f"{RANDOM_FITNESS}Grasp"),
                )
            ),
            Variant("PBT-8, 768 rows", "pbt.py", "--num-agents 8 --num-minibatches 8"),  # an agent has 6,144 rows
            Variant("PBT-8, 1,536 rows", "pbt.py", "--num-agents 8 --num-minibatches 4"),  # the papers' 4 minibatches
        )
    ),
    # 768 rows are 32 minibatches of 1,536 environments, but 512 of 24,576, with which PPO fails on Moat
    "moat_1536": batch_scaling("Moat", 1_536, 0.025, 768),
    "moat_24576": batch_scaling("Moat", 24_576, 0.025, 6_144, more=(768, 24_576)),
    # With five seeds populations looked better here than PPO; ten more have no part in that
    "grasp_1536": batch_scaling("Grasp", 1_536, 0.005, 768, seeds=range(0, 15)),
    "grasp_24576": batch_scaling("Grasp", 24_576, 0.005, 6_144, more=(768,)),
    # CPO's claim (Table 2): coupled followers produce data that the leader can use. No adversarial reward (CPO 7.2)
    "moat_coupling": Experiment(
        env_id="Moat",
        total_timesteps=6_000_000,
        seeds=range(1, 4),
        flags=f"--num-agents 6 --diagnostics-interval 5 --num-envs 3072 {MOAT} --clip-vloss --num-minibatches 4"
        " --max-ent-coef 0.025",
        tags=(OBJECTIVE,),
        finals=tuple(
            f"population/{key}" for key in "is_ratio_deviation ess_rate kl_to_leader leader_is_nearest".split()
        ),
        final_share=0.4,  # single evaluations are noisy
        variants=(
            Variant("SAPG", "sapg.py"),
            Variant("CPO without imitation", "cpo.py", "--adversarial-coef 0 --awac-coef 0"),
            Variant("CPO(0.5)", "cpo.py", "--adversarial-coef 0 --awac-temperature 0.5"),
            Variant("CPO(0.05)", "cpo.py", "--adversarial-coef 0 --awac-temperature 0.05"),
            Variant(
                "CPO(0.05) with beta 0.01", "cpo.py", "--adversarial-coef 0 --awac-temperature 0.05 --awac-coef 0.01"
            ),
        ),
    ),
    "ant": Experiment(
        env_id="Ant",
        total_timesteps=4_000_000,
        seeds=range(1, 6),
        flags="--num-envs 1024 --num-steps 16 --update-epochs 4 --num-minibatches 4 --hidden-sizes 256 128 64",
        tags=(REWARD, RETURN),
        finals=(STD, "charts/reward_*"),
        variants=(
            Variant("PPO", "ppo.py", "--clip-vloss"),
            Variant("PPO, unclipped", "ppo.py", "--no-clip-vloss"),
        ),
    ),
    "ant_populations": robot("Ant", RETURN),
    "allegro_hand_populations": robot("AllegroHand", RETURN, ("EPO-16", "epo.py", 16, 1_024)),
    # Do populations help where diverse starts do?
    "held_starts": Experiment(
        env_id="AllegroKukaRegraspingHeldStarts",
        total_timesteps=20_000_000,
        seeds=range(1, 3),
        tags=(OBJECTIVE, RETURN, "charts/solved_from_original"),
        finals=(BEST, MEDIAN, STD, "evolution/heritability"),
        evaluate=True,
        variants=(
            Variant("PPO", "ppo.py"),
            Variant("SAPG-6", "sapg.py", "--num-agents 6 --num-minibatches 19"),
            Variant("CPO-6", "cpo.py", "--num-agents 6 --num-minibatches 19"),
            Variant("EPO-16, Eq. 3", "epo.py", "--num-agents 16 --num-minibatches 17"),
            Variant("EPO-16, every episode", "epo.py", "--num-agents 16 --num-minibatches 17 --ga-interval 1"),
        ),
    ),
    # What matters at the beginning
    "held_starts_recipe": Experiment(
        env_id="AllegroKukaRegraspingHeldStarts",
        total_timesteps=5_000_000,
        seeds=range(1, 2),
        tags=("charts/solved_from_half_open", "charts/solved_from_low", "charts/solved_from_near", OBJECTIVE),
        finals=(STD, "losses/clipfrac"),
        variants=(
            Variant("PPO", "ppo.py", seeds=range(1, 3)),
            Variant("clip 0.1", "ppo.py", "--clip-coef 0.1"),
            Variant("std 1", "ppo.py", "--init-std 1.0"),
        ),
    ),
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
            # what a grasp needs: less noise, but not before the policy has learned to reach
            Variant(
                "5 epochs, less and less noise", "ppo.py", "--update-epochs 5 --ent-coef -0.001",
                total_timesteps=48_000_000,
            ),
            Variant("SAPG-6", "sapg.py", "--num-agents 6 --num-minibatches 19", total_timesteps=20_000_000),
            Variant("CPO-6", "cpo.py", "--num-agents 6 --num-minibatches 19", total_timesteps=20_000_000),
            Variant("EPO-16, Eq. 3", "epo.py", "--num-agents 16 --num-minibatches 17", total_timesteps=20_000_000),
        ),
    ),
    # CleanRL's mean of ten seeds: 432.6 +- 82.5 (docs/rl-algorithms/ppo.md there)
    "cleanrl_cheetah_run": Experiment(
        env_id="envpool:CheetahRun-v1",
        total_timesteps=8_000_000,
        seeds=range(1, 4),
        flags=f"{CLEANRL} --kl-threshold 0.004",
        tags=(RUNNING_RETURN, RETURN),
        finals=(STD,),
        final_share=0,  # the last value: it is a mean over 100 episodes already
        evaluate=True,
        variants=(Variant("PPO", "ppo.py"),),
    ),
}  # fmt: skip
