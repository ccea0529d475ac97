"""The environments of this process, what they share with those of other processes, and statistics of their episodes."""

import math

import envs  # before torch: Isaac Gym must be imported first
from envs.terminal import needs_output

import torch
import torch.nn as nn

from harness import distributed
from harness.errors import refuse


@needs_output()
def make_env(args):
    """The environments of this process, for training; prints what steps them.

    Refuses tasks without observations or actions.
    """
    num_envs = args.num_envs // distributed.WORLD_SIZE
    seed = (args.seed + distributed.SEED_OFFSET) % 2**32
    try:
        env = envs.make(args.env_id, num_envs, args.device, seed, args.engine, training=True)
    except envs.UnsupportedError as error:
        refuse("--env-id", args.env_id, error)
    if env.num_obs < 1 or env.num_actions < 1:
        refuse("--env-id", args.env_id, "must have at least one number in its observation and in its action")
    engine = getattr(env, "engine_name", "its own")
    if engine == "mujoco" and args.device != "cpu":
        engine += " on the CPU (for MuJoCo Warp on the GPU: pip install -e '.[gpu]')"
    print(f"{args.env_id}: engine {engine}, {args.device}, {args.num_envs:,} environments", flush=True)
    note = getattr(env, "cpu_note", "")  # a class that is no VectorEnv may lack it
    if args.device == "cpu" and note:
        print(f"{args.env_id}: {note}", flush=True)
    return env


def share_curriculum(env):
    """Overwrite the tensors of the environment's curriculum with rank 0's."""
    distributed.share([getattr(env, name) for name in getattr(env, "curriculum", ())])


# Rows of what is kept of episodes
RETURN = 0
LENGTH = 1
OBJECTIVE = 2


class EpisodeStatistics(nn.Module):
    """Return, length and objective of the episodes that finish, per agent."""

    def __init__(self, num_envs, num_agents, device, leader=0):
        """leader: the agent whose episodes are logged by themselves; the first where none leads."""
        super().__init__()
        self.leader = leader
        self.register_buffer("counts", torch.zeros(num_envs, device=device))  # of this iteration's episodes
        self.register_buffer("sums", torch.zeros(3, num_envs, device=device))  # rows as above
        self.register_buffer("means", torch.full((3, num_agents), math.nan, device=device))  # of its latest episodes
        self.register_buffer("ages", torch.zeros(num_agents, device=device))  # iterations since these

    def record(self, episode):
        """episode: `info["episode"]` of a step, done (N,) and return, length, objective (N,)."""
        self.counts += episode["done"]
        values = torch.stack([episode[key] for key in ("return", "length", "objective")])
        self.sums += torch.where(episode["done"], values, 0.0)

    def end_iteration(self):
        """Scalars of the episodes that finished since the last call; an agent without any keeps its last means."""
        num_agents = len(self.ages)
        counts = distributed.total(self.counts.view(num_agents, -1).sum(1))  # (A,)
        sums = distributed.total(self.sums.view(3, num_agents, -1).sum(2))  # (3, A)
        self.means = torch.where(counts > 0, sums / counts, self.means)
        self.ages = torch.where(counts > 0, 0.0, self.ages + 1.0)
        episodic_return, length, objective = sums.sum(1) / counts.sum()
        self.counts.zero_()
        self.sums.zero_()
        return {
            "charts/episodes": counts.sum(),
            "charts/episodic_return": episodic_return,
            "charts/episodic_length": length,
            "charts/objective": objective,
            "charts/leader_return": self.means[RETURN, self.leader],
            "charts/leader_objective": self.means[OBJECTIVE, self.leader],
            "charts/leader_episodes": counts[self.leader],
            "charts/leader_age": self.ages[self.leader],
            "charts/best_agent_objective": self.means[OBJECTIVE].nan_to_num(-math.inf).max(),
        }
