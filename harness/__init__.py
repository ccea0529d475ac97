"""What every script needs and no paper is about: flags, tuned hyperparameters, a run's folder, and diagnostics."""

# ruff: noqa: F401
from harness.checkpoints import load_checkpoint, refuse, seed_everything
from harness.diagnostics import LEADER, MAX_LOG_RATIO, LineageStats, diagnose, population_scalars
from harness.distributed import average, average_gradients, broadcast, from_rank_0, mean_and_std, moments, share
from harness.distributed import share_curriculum
from harness.flags import make_env, parse_args
from harness.run import EpisodeStatistics, Run
