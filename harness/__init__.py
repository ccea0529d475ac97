"""What every script needs and no paper is about: flags, tuned hyperparameters, a run's folder, and diagnostics."""

from harness.diagnostics import LineageStats, diagnose, population_scalars
from harness.flags import make_env, parse_args, seed_everything
from harness.run import EpisodeStatistics, Run, load_checkpoint, refuse

__all__ = (
    "EpisodeStatistics LineageStats Run diagnose load_checkpoint make_env parse_args population_scalars refuse"
    " seed_everything"
).split()
