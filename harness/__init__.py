"""What every script needs and no paper is about: flags, tuned hyperparameters, a run's folder, and diagnostics."""

from harness.checkpoints import load_checkpoint, refuse, seed_everything
from harness.diagnostics import LEADER, MAX_LOG_RATIO, LineageStats, diagnose, population_scalars
from harness.distributed import average, average_gradients, broadcast, from_rank_0, mean_and_std, moments, share
from harness.distributed import share_curriculum
from harness.flags import make_env, parse_args
from harness.run import EpisodeStatistics, Run

__all__ = (
    "LEADER MAX_LOG_RATIO EpisodeStatistics LineageStats Run average average_gradients broadcast diagnose from_rank_0"
    " load_checkpoint make_env mean_and_std moments parse_args population_scalars refuse seed_everything share"
    " share_curriculum"
).split()
