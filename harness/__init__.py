"""What several scripts need: flags, tuned hyperparameters, a run's folder, agents' fitness, and diagnostics."""

# ruff: noqa: F401
from harness.checkpoints import checkpoint_file, load_checkpoint, policy_file, read_checkpoint
from harness.diagnostics import LineageStats, diagnose, population_scalars
from harness.distributed import WORLD_SIZE, average, average_gradients, broadcast, from_rank_0, mean_and_std, moments
from harness.distributed import share
from harness.environments import LENGTH, OBJECTIVE, EpisodeStatistics, make_env, share_curriculum
from harness.errors import refuse
from harness.fitness import FitnessTracker
from harness.flags import parse_args, say_what_is_ignored
from harness.help import parse_program_args
from harness.run import Run
from harness.seeding import seed_everything
