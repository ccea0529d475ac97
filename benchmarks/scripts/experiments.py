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


RETURN, OBJECTIVE, STD = "charts/leader_return", "charts/leader_objective", "charts/action_std*"
REWARD = "charts/reward_per_step"

POINT_REACH_STEPS = 512 * 16  # environment steps of one iteration
SAPG_4 = "--num-agents 4 --max-ent-coef 0 --num-minibatches 5"  # with the off-policy rows: 2,048 rows each, as PPO's 4

# The table's row for Moat, spelled out because RandomFitnessMoat has no row
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
    ("EPO-48 random fitness", "epo.py", 48, "benchmarks.scripts.random_fitness_moat:RandomFitnessMoat"),
)


# Of the tables' rows for a CPU, spelled out because the tasks of in_phase.py have no rows
CPU_FLAGS = "--num-envs 1024 --num-steps 16 --num-minibatches 16 --update-epochs 5 --hidden-sizes 256 128 64"
CPU_FLAGS += " --clip-coef 0.2 --vf-coef 4 --bounds-coef 1e-4"

# env id -> the row of `hyperparameters.CPU` and its alternatives: name, M steps in 20 minutes of two cores (a sixth of
# the row's steps of two hours; with more epochs fewer, by measured CPU time), minibatches, epochs, steps
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
        variants.append(Variant(name, "ppo.py", flags, total_timesteps=round(share * 1e6 * millions)))
    return Experiment(
        env_id=env_id,
        total_timesteps=variants[0].total_timesteps,
        seeds=range(1, 3),
        flags="--num-envs 1024",
        tags=(REWARD, RETURN, OBJECTIVE),
        variants=tuple(variants),
    )


def moat_population(name, script, num_agents, env_id, num_minibatches):
    flags = f"--num-agents {num_agents} --max-ent-coef 0.025 --num-minibatches {num_minibatches}"
    return Variant(f"{name}, {num_minibatches} minibatches", script, flags, env_id=env_id)


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
            Variant("PPO", "ppo.py", "--num-minibatches 4"),
            Variant("SAPG-4", "sapg.py", SAPG_4, range(0, 12)),
            Variant("PPO, clipped values", "ppo.py", "--num-minibatches 4 --clip-vloss"),
            Variant("PPO, separate critic", "ppo.py", "--num-minibatches 4 --separate-critic"),
            Variant("PPO, 3-step target", "ppo.py", "--num-minibatches 4 --critic-n-step 3"),
        ),
    ),
    # Does a population help, and does it still with small minibatches? 12,288 rows each with 4, 3,072 with 16
    "moat": Experiment(
        env_id="Moat",
        total_timesteps=6_000_000,
        seeds=range(1, 11),
        flags=f"--num-envs 3072 {MOAT}",
        tags=(OBJECTIVE,),
        finals=(RETURN, STD, "evolution/fired"),
        threshold=12,
        variants=(
            *(Variant(f"PPO, {k} minibatches", "ppo.py", f"--num-minibatches {k}") for k in (4, 16, 64)),
            *(moat_population(*population, k) for k in (4, 16) for population in MOAT_POPULATIONS),
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
        variants=(Variant("EPO-64", "epo.py"),),
    ),
    "moat_critic": Experiment(
        env_id="Moat",
        total_timesteps=6_000_000,
        seeds=range(1, 11),
        flags=f"--num-envs 3072 {MOAT}",
        tags=(OBJECTIVE,),
        finals=(RETURN, STD),
        threshold=12,
        variants=tuple(
            Variant(f"PPO, {k} minibatches, {critic}", "ppo.py", f"--num-minibatches {k} {flag}")
            for k in (4, 16)
            for critic, flag in (("separate critic", "--separate-critic"), ("clipped values", "--clip-vloss"))
        ),
    ),
    "ant": Experiment(
        env_id="Ant",
        total_timesteps=4_000_000,
        seeds=range(1, 6),
        flags="--num-envs 1024 --num-steps 16 --update-epochs 4 --num-minibatches 4 --hidden-sizes 256 128 64",
        tags=(RETURN, REWARD),
        finals=(STD,),
        variants=(
            Variant("PPO", "ppo.py"),
            Variant("PPO, clipped values", "ppo.py", "--clip-vloss"),
            Variant("PPO, separate critic", "ppo.py", "--separate-critic"),
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
    # Which settings learn most in 20 minutes of two cores? And a first look, at 5 M steps of the row
    **{f"cpu_rows_{env_id}": cpu_rows(env_id) for env_id in CPU_ROWS},
    **{f"cpu_rows_{env_id}_short": cpu_rows(env_id, 5 / 13.3) for env_id in ("AllegroHand", "AllegroKukaRegrasping")},
}
