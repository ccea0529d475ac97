"""What every script needs and no paper is about: flags, tuned hyperparameters, a run's folder, and diagnostics."""

from harness.checkpoints import comes_with_run, load_checkpoint, refuse
from harness.diagnostics import LineageStats, diagnose, population_scalars
from harness.flags import check_saved_flags, make_env, parse_args, seed_everything
from harness.run import EpisodeStatistics, Run

__all__ = (
    "EpisodeStatistics LineageStats Run check_saved_flags comes_with_run diagnose load_checkpoint make_env parse_args"
    " population_scalars refuse seed_everything"
).split()
