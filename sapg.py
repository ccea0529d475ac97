"""SAPG: a leader and its followers, one network, one block of environments each (arXiv 2407.20230, ICML 2024).

All agents share the network and differ in a latent vector that is concatenated to the observation, and in their action
noise. Followers learn from their own data alone; the leader also learns from theirs, importance weighted. Read ppo.py,
then `diff ppo.py sapg.py`: what SAPG adds stands under `# SAPG:` with the paper's equation.

Shape letters: T num_steps, N num_envs, A num_agents, n = N / A, D observation, U action, L latent, H lstm_size,
M columns of a minibatch. Layout is always time-major (T, N, ...); a minibatch is a random set of columns, all T steps
of each.
"""

import copy
import io
import math
import os
import random
import signal
import sys
import time
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Literal, Optional, Tuple

import envs as tasks  # before torch: it imports Isaac Gym where --engine asks for it

import numpy as np
import torch
import torch.nn as nn
import tyro
from torch.distributions import Normal, kl_divergence
from torch.utils.tensorboard import SummaryWriter

PAPER_NUM_ENVS, CPU_NUM_ENVS = 24_576, 1_024  # on a CPU the latter stands in for the former
# What is tuned per task: SAPG's and CPO's tables, where they differ the released code; Ant, Cartpole from IsaacGymEnvs
ALLEGRO_KUKA = dict(
    num_envs=PAPER_NUM_ENVS, total_timesteps=10_000_000_000, num_steps=16, num_minibatches=4, update_epochs=2,
    learning_rate=1e-4, kl_threshold=0.016, clip_coef=0.1, vf_coef=4.0, bounds_coef=1e-4, reward_scale=0.01,
    hidden_sizes=(768, 512, 256), lstm=True, lstm_size=768,
)  # fmt: skip
IN_HAND = dict(
    num_envs=PAPER_NUM_ENVS, total_timesteps=10_000_000_000, num_steps=8, num_minibatches=2, update_epochs=5,
    learning_rate=5e-4, kl_threshold=0.016, clip_coef=0.2, vf_coef=4.0, bounds_coef=1e-4, reward_scale=0.01,
)  # fmt: skip
LOCOMOTION = dict(
    num_envs=PAPER_NUM_ENVS, total_timesteps=5_000_000_000, num_steps=8, num_minibatches=2, update_epochs=5,
    kl_threshold=0.008, clip_coef=0.2, vf_coef=4.0, bounds_coef=1e-4, hidden_sizes=(768, 512, 256),
)  # fmt: skip
FRANKA_CUBE = dict(
    num_envs=PAPER_NUM_ENVS, total_timesteps=5_000_000_000, num_steps=16, num_minibatches=4, update_epochs=8,
    learning_rate=5e-4, kl_threshold=0.008, clip_coef=0.2, vf_coef=4.0, bounds_coef=1e-4,
    hidden_sizes=(256, 128, 64), lstm=True, lstm_size=256,
)  # fmt: skip
TASK_HYPERPARAMETERS = {
    "AllegroHand": dict(IN_HAND, hidden_sizes=(512, 256, 128)),
    "AllegroKukaRegrasping": ALLEGRO_KUKA,
    "AllegroKukaReorientation": ALLEGRO_KUKA,
    "AllegroKukaThrow": ALLEGRO_KUKA,
    "AllegroKukaTwoArmsRegrasping": ALLEGRO_KUKA,
    "AllegroKukaTwoArmsReorientation": ALLEGRO_KUKA,
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
    "FrankaCubePush": FRANKA_CUBE,
    "FrankaCubeStack": FRANKA_CUBE,
    "Humanoid": dict(LOCOMOTION, learning_rate=5e-4, reward_scale=0.01),
    "Moat": dict(  # ours
        num_envs=3_072, total_timesteps=6_000_000, num_steps=16, num_minibatches=4, update_epochs=2,
        learning_rate=3e-4, kl_threshold=0.016, clip_coef=0.2, vf_coef=4.0, hidden_sizes=(64, 64),
    ),
    "ShadowHand": dict(IN_HAND, hidden_sizes=(512, 512, 256, 128)),
}  # fmt: skip
# Flags that may change when a run is resumed
MAY_CHANGE = "total_timesteps checkpoint_interval diagnostics_interval resume cuda device num_iterations".split()
SCRIPT = os.path.splitext(os.path.basename(__file__))[0]
MAX_LOG_RATIO = 20.0  # of two policies' probabilities, against overflow; no sound ratio comes near it
# SAPG: what a population adds to the table above
POPULATION_HYPERPARAMETERS = {
    "AllegroKukaReorientation": dict(max_ent_coef=0.0025),  # half of the papers' coefficient, as released
    "AllegroKukaTwoArmsReorientation": dict(max_ent_coef=0.001),
    "Anymal": dict(max_ent_coef=0.001),
    "FrankaCubePush": dict(max_ent_coef=0.0025),
    "FrankaCubeStack": dict(max_ent_coef=0.0025),
    "Humanoid": dict(max_ent_coef=0.001),
    "Moat": dict(max_ent_coef=0.025),
    "ShadowHand": dict(max_ent_coef=0.0025),
}
LEADER = 0  # the agent that learns from all others; its environments are the first n


@dataclass
class Args:
    """The defaults hold for a task of your own; TASK_HYPERPARAMETERS replaces them for the papers' tasks."""

    # Experiment
    env_id: str = "AllegroKukaRegrasping"
    """a task of envs/, or package.module:Class for your own"""
    engine: str = "auto"
    """who steps the physics: auto (the fastest one installed) or an engine's name"""
    num_envs: Optional[int] = None
    """parallel environments in all; unset: the task's number, but on a CPU 1,024 in place of the papers' 24,576"""
    total_timesteps: int = 10_000_000
    """environment steps over all environments"""
    seed: int = 1
    """of every random generator"""
    cuda: bool = True
    """use the GPU if there is one"""
    checkpoint_interval: int = 100
    """iterations between two checkpoints; one is written at the end and on SIGINT and SIGTERM too; 0: only then"""
    resume: Optional[str] = None
    """a run's folder or a checkpoint file to go on from, with its flags; --total-timesteps may grow"""

    # PPO
    num_steps: int = 16
    """T: control steps per environment and iteration (SAPG Table 2: 16)"""
    num_minibatches: int = 4
    """minibatches per update epoch, each a random set of environment columns (papers: 4 N rows each, so 4 at T = 16)"""
    update_epochs: int = 5
    """passes over the batch per iteration (rl_games: mini_epochs)"""
    learning_rate: float = 3e-4
    """of Adam, at the start; then it follows the KL divergence"""
    kl_threshold: float = 0.016
    """KL(old || new) above twice this divides the learning rate by 1.5, below half of it multiplies; 0: constant"""
    gamma: float = 0.99
    """discount per control step (all papers)"""
    gae_lambda: float = 0.95
    """lambda of GAE (released code; rl_games calls it tau)"""
    critic_n_step: int = 3
    """steps of the critic's target (SAPG Eq. 5, EPO Eq. 6: 3); 0: the GAE return, as in the released code"""
    clip_coef: float = 0.2
    """clip range of the policy ratio and of the value (rl_games: e_clip)"""
    vf_coef: float = 4.0
    """weight of half the squared value error, in normalised units (rl_games: critic_coef)"""
    ent_coef: float = 0.0
    """weight of the entropy bonus, the same for every agent (released code: 0)"""
    bounds_coef: float = 1e-4
    """weight of the penalty on action means outside +-1.1 (SAPG, CPO: 1e-4; EPO B.2: 1e-5)"""
    max_grad_norm: float = 1.0
    """clip of the gradient's global norm (all papers)"""
    reward_scale: float = 1.0
    """the learner sees reward times this; returns are logged without it"""
    hidden_sizes: Tuple[int, ...] = (256, 128, 64)
    """widths of the MLP's hidden layers, ELU after each"""
    lstm: bool = False
    """put LSTM and LayerNorm before the MLP (released code of all three papers, for AllegroKuka)"""
    lstm_size: int = 768
    """H: units of the LSTM (SAPG, EPO B.2: 768)"""

    # SAPG
    num_agents: int = 6
    """A: policies, each with num_envs / num_agents environments (SAPG: 6)"""
    latent_dim: int = 32
    """L: size of the latent that tells the agents apart (SAPG 4.4: 32, on easy tasks 16)"""
    max_ent_coef: float = 0.0
    """entropy bonus of the last follower on top of ent_coef; linear from 0 at the leader (SAPG 4.5)"""
    off_policy_ratio: float = 1.0
    """columns of others that the leader learns from, in multiples of its own n (SAPG Algorithm 1: 1); 0: none"""
    off_policy_coef: float = 1.0
    """lambda: weight of an off-policy row against an on-policy one (SAPG Eq. 4)"""
    off_policy_mu: bool = False
    """centre the off-policy clip window on mu (SAPG Eq. 3); off: on 1, as released, which measured better"""
    aggregation: Literal["leader-follower", "one-follower", "symmetric"] = "leader-follower"
    """who learns from whom: the leader from all followers (SAPG 4.3) or from one drawn anew each iteration (CPO Eq. 2;
    SAPG as released), or everybody from everybody (SAPG 4.2)"""
    diagnostics_interval: int = 50
    """iterations between two looks at how far the agents are apart, see `diagnose`; 0: never"""

    # Runtime
    device: tyro.conf.Suppress[str] = field(init=False, default="cpu")
    num_iterations: tyro.conf.Suppress[int] = field(init=False, default=0)


def parse_args(argv=None):
    """The command line, with the task's row of the tables under it; refuses what cannot work (one line, status 2)."""
    given = tyro.cli(Args, args=argv, add_help=False, return_unknown_args=True)[0]
    defaults, saved = dict(env_id=given.env_id, **task_defaults(given.env_id)), None
    if given.resume:
        saved = load_checkpoint(given.resume)
        defaults = {f.name: saved["args"][f.name] for f in fields(Args) if f.init and f.name in saved["args"]}
    args = tyro.cli(Args, args=argv, default=Args(**defaults))
    args.device = "cuda" if args.cuda and torch.cuda.is_available() else "cpu"
    if args.num_envs is None:
        args.num_envs = TASK_HYPERPARAMETERS.get(args.env_id, {}).get("num_envs", CPU_NUM_ENVS)
        if args.device == "cpu" and args.num_envs == PAPER_NUM_ENVS:
            args.num_envs = CPU_NUM_ENVS
        # SAPG: equal blocks
        args.num_envs -= args.num_envs % max(1, min(args.num_agents, args.num_envs))
    check_args(args)
    args.num_iterations = max(1, args.total_timesteps // (args.num_envs * args.num_steps))
    if saved:
        check_resumable(args, saved)
    return args


def task_defaults(env_id):
    """The task's hyperparameters as keyword arguments of Args."""
    row = {**TASK_HYPERPARAMETERS.get(env_id, {}), **POPULATION_HYPERPARAMETERS.get(env_id, {})}
    return {k: v for k, v in row.items() if k != "num_envs"}


def refuse(flag, value, reason):
    """End with exit status 2 and one line that names the flag, its value and what would be valid."""
    print(f"--{flag.replace('_', '-')} {value}: {reason}", file=sys.stderr)
    sys.exit(2)


def check_args(args):
    """Refuse every configuration that cannot work, before anything is created."""
    for check, *names in ((tasks.check_env_id, "env_id"), (tasks.find_engine, "engine", "env_id", "device")):
        try:
            check(*(getattr(args, name) for name in names))
        except ValueError as error:
            refuse(names[0], getattr(args, names[0]), error)
    if args.engine == "warp" and args.cuda and args.device == "cpu":
        refuse("engine", "warp", "needs a CUDA GPU, none was found; with --no-cuda it runs on the CPU, slowly")
    for f in fields(args):
        value = getattr(args, f.name)
        if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
            refuse(f.name, value, "must be a finite number, at least 0")
    for name in ("num_envs", "total_timesteps", "num_steps", "num_minibatches", "update_epochs", "lstm_size"):
        if getattr(args, name) < 1:
            refuse(name, getattr(args, name), "must be at least 1")
    for name in ("gamma", "gae_lambda"):
        if getattr(args, name) > 1:
            refuse(name, getattr(args, name), "must be at most 1")
    for name in ("seed", "critic_n_step", "checkpoint_interval", "diagnostics_interval"):
        if getattr(args, name) < 0:
            refuse(name, getattr(args, name), "must be at least 0")
    if args.seed >= 2**32:
        refuse("seed", args.seed, "must be below 2**32, numpy's limit")
    if args.num_envs * args.num_steps < 2:
        refuse("num_steps", args.num_steps, "must be at least 2 with one environment: advantages are normalised")
    if not args.hidden_sizes or min(args.hidden_sizes) < 1:
        refuse("hidden_sizes", args.hidden_sizes, "must be one or more widths, each at least 1")
    # SAPG
    if args.num_agents < 1 or args.num_envs % args.num_agents:
        refuse("num_agents", args.num_agents, f"must be at least 1 and divide --num-envs {args.num_envs}")
    if args.latent_dim < 0:
        refuse("latent_dim", args.latent_dim, "must be at least 0")
    others = max(args.num_agents - 1, 1) if args.aggregation != "one-follower" else 1
    if args.off_policy_ratio > others:
        refuse("off_policy_ratio", args.off_policy_ratio, f"must be at most {others}: all data of the others")
    if args.num_minibatches > args.num_envs:
        refuse("num_minibatches", args.num_minibatches, f"must be at most the {args.num_envs} columns of --num-envs")
    runs = os.path.abspath("runs")
    folder = runs if os.path.exists(runs) else os.path.dirname(runs)
    if not args.resume and not (os.path.isdir(folder) and os.access(folder, os.W_OK)):
        print(f"{runs}: must be a folder that can be written to, or created", file=sys.stderr)
        sys.exit(2)


# ----------------------------------------------------------------------------------------------------------------------
# Checkpoints
# ----------------------------------------------------------------------------------------------------------------------
def save_checkpoint(folder, state):
    """Write folder/checkpoint.pt, whole or not at all, and keep the one before as checkpoint_previous.pt.

    A disk that is full or may not be written is no reason to end a run: it is reported, and the old files stay.
    """
    path, buffer = os.path.join(folder, "checkpoint.pt"), io.BytesIO()
    torch.save({**state, "random": random_state()}, buffer)
    try:
        with open(path + ".tmp", "wb") as file:
            file.write(buffer.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        if os.path.exists(path):
            os.replace(path, os.path.join(folder, "checkpoint_previous.pt"))
        os.replace(path + ".tmp", path)
    except OSError as error:
        print(f"no checkpoint: {error}; training goes on", file=sys.stderr)


def check_resumable(args, saved):
    """Refuse flags that contradict the checkpoint."""
    for name, value in saved["args"].items():
        if name not in MAY_CHANGE and getattr(args, name, None) != value:
            refuse(name, getattr(args, name, None), f"must be {value}, as in the checkpoint")
    if args.num_iterations <= saved["iteration"]:
        refuse("total_timesteps", args.total_timesteps, f"must be more than the checkpoint's {saved['global_step']}")


def load_checkpoint(path):
    """The newest readable checkpoint of a run's folder, or the one in a file; plain tensors and numbers, nothing else.

    Ends with exit status 2 and one line where there is none, or another script's.
    """
    paths, reason = [path], "no such file or folder"
    if os.path.isdir(path):
        paths = [os.path.join(path, name) for name in ("checkpoint.pt", "checkpoint_previous.pt")]
        reason = "must be a folder with a checkpoint.pt"
    for each in filter(os.path.exists, paths):
        try:
            saved = torch.load(each, map_location="cpu", weights_only=True)
        except Exception as error:  # damage shows as one of a dozen kinds
            reason = f"{os.path.basename(each)} cannot be read: {(str(error) or repr(error)).splitlines()[0]}"
            continue
        if not isinstance(saved, dict) or saved.get("script") != SCRIPT:
            refuse("resume", path, f"must be a checkpoint that {SCRIPT}.py wrote")
        if each != paths[0]:
            print(f"going on from {each}: {reason}", file=sys.stderr)
        return saved
    refuse("resume", path, reason)


def random_state():
    """The state of all global random generators, as plain tensors and numbers."""
    name, keys, *rest = np.random.get_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    numpy_state = [name, keys.tolist(), *rest]
    return {"python": random.getstate(), "numpy": numpy_state, "torch": torch.get_rng_state(), "cuda": cuda}


def set_random_state(state):
    random.setstate(state["python"])
    np.random.set_state(tuple(state["numpy"]))
    torch.set_rng_state(state["torch"])
    torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])  # there may have been more GPUs


class StopSignal:
    """SIGINT and SIGTERM: end the run with a checkpoint after the present iteration; the second one ends it at once."""

    def __init__(self):
        self.signum = 0
        self.handlers = {signum: signal.signal(signum, self) for signum in (signal.SIGINT, signal.SIGTERM)}

    def __call__(self, signum, frame):
        self.signum = signum
        self.restore()

    def restore(self):
        for signum, handler in self.handlers.items():
            signal.signal(signum, handler)


# ----------------------------------------------------------------------------------------------------------------------
# Network
# ----------------------------------------------------------------------------------------------------------------------
class RunningMeanStd(nn.Module):
    """Mean and variance of everything seen so far, as buffers: saved with the network, moved by `update` alone."""

    def __init__(self, *shape):
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.ones((), dtype=torch.float64))

    def update(self, x):
        """Merge the moments of x (..., *shape) into the running ones (Chan et al. 1979)."""
        x = x.reshape(-1, *self.mean.shape).double()
        delta, total = x.mean(0) - self.mean, self.count + len(x)
        m2 = self.var * self.count + x.var(0, unbiased=False) * len(x) + delta**2 * self.count * len(x) / total
        self.mean += delta * len(x) / total
        self.var.copy_(m2 / total)
        self.count.copy_(total)

    @property
    def std(self):
        return (self.var + 1e-5).sqrt().float()

    def normalize(self, x):
        return (x - self.mean.float()) / self.std

    def denormalize(self, x):
        return x * self.std + self.mean.float()


def layer_init(layer):
    """PyTorch's weights, zero bias (released code)."""
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    """One trunk with a head for the action mean and one for the value, which speaks in normalised units."""

    def __init__(self, num_obs, num_actions, args):
        super().__init__()
        self.obs_rms = RunningMeanStd(num_obs)
        self.value_rms = RunningMeanStd()
        self.latents = nn.Parameter(torch.randn(args.num_agents, args.latent_dim))  # SAPG: one phi per agent
        width = num_obs + args.latent_dim
        self.state_size = 2 * args.lstm_size if args.lstm else 0  # h and c side by side
        if args.lstm:
            self.lstm = nn.LSTM(width, args.lstm_size)
            self.layer_norm = nn.LayerNorm(args.lstm_size)
            width = args.lstm_size
        layers = []
        for size in args.hidden_sizes:
            layers += [layer_init(nn.Linear(width, size)), nn.ELU()]
            width = size
        self.mlp = nn.Sequential(*layers)
        self.actor = layer_init(nn.Linear(width, num_actions))
        self.critic = layer_init(nn.Linear(width, 1))
        self.actor_logstd = nn.Parameter(torch.zeros(args.num_agents, num_actions))

    def trunk(self, obs, agent_ids, dones, lstm_state):
        """obs (T, N, D), dones (T, N): whether obs begins an episode, lstm_state (1, N, 2H) before the first step.
        agent_ids (1, N): whose latent each column is conditioned on.

        Returns features (T, N, F) and the state after each step (T, N, 2H); without LSTM the state has no columns.
        """
        x = self.obs_rms.normalize(obs).clamp(-5.0, 5.0)  # released code
        x = torch.cat([x, self.latents[agent_ids].expand(len(x), -1, -1)], -1)  # SAPG
        if not self.state_size:
            return self.mlp(x), lstm_state.expand(len(x), -1, -1)
        outputs, states = [], []
        h, c = lstm_state.chunk(2, dim=-1)
        for x_t, done in zip(x, dones):
            keep = (~done).float()[None, :, None]  # an episode begins with an empty memory
            output, (h, c) = self.lstm(x_t[None], ((h * keep).contiguous(), (c * keep).contiguous()))
            outputs.append(output)
            states.append(torch.cat([h, c], -1))
        return self.mlp(self.layer_norm(torch.cat(outputs))), torch.cat(states)

    def get_value(self, obs, agent_ids, dones, lstm_state):
        """Normalised value (T, N)."""
        return self.critic(self.trunk(obs, agent_ids, dones, lstm_state)[0]).squeeze(-1)

    def get_action_and_value(self, obs, agent_ids, dones, lstm_state, action=None):
        """Action (T, N, U), its log-probability (T, N), the Normal policy, normalised value (T, N), states."""
        x, states = self.trunk(obs, agent_ids, dones, lstm_state)
        mean = self.actor(x)
        policy = Normal(mean, self.actor_logstd[agent_ids].exp().expand_as(mean), validate_args=False)
        if action is None:
            action = mean + policy.stddev * torch.randn_like(mean)  # on a GPU policy.sample() waits for the device
        return action, policy.log_prob(action).sum(-1), policy, self.critic(x).squeeze(-1), states


# ----------------------------------------------------------------------------------------------------------------------
# Advantages and targets
# ----------------------------------------------------------------------------------------------------------------------
def compute_gae(rewards, values, next_values, dones, gamma, gae_lambda):
    """Generalised advantage estimation (arXiv 1506.02438, Eq. 16), cut at every episode end. All (T, N).

    next_values[t] is V of the state that action t led to: 0 where terminated, V(final_obs) where truncated.
    dones[t] is True where action t ended an episode.
    """
    deltas = rewards + gamma * next_values - values
    advantages, running = torch.zeros_like(rewards), torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        running = deltas[t] + gamma * gae_lambda * running * ~dones[t]
        advantages[t] = running
    return advantages


def n_step_returns(rewards, next_values, dones, gamma, n):
    """Critic target r_t + ... + gamma^n V(s_{t+n}) (SAPG Eq. 5, EPO Eq. 6); shorter where episode or window end."""
    returns = rewards + gamma * next_values
    for _ in range(n - 1):
        longer = rewards[:-1] + gamma * torch.where(dones[:-1], next_values[:-1], returns[1:])
        returns = torch.cat([longer, returns[-1:]])
    return returns


# ----------------------------------------------------------------------------------------------------------------------
# SAPG: learning from the data of others
# ----------------------------------------------------------------------------------------------------------------------
def sample_offpolicy_columns(agent_ids, num_agents, ratio, aggregation):
    """Which columns are learned from off-policy, and by whom: columns (C,) and their learners' ids (C,).

    agent_ids (N,): who acted in each column. Each learner gets ratio * n columns, drawn uniformly without replacement
    from those of all other agents (SAPG Algorithm 1; 4.3 leader-follower, 4.2 symmetric), or the leader alone from
    those of one follower, drawn uniformly too (CPO Eq. 2).
    """
    count = min(round(ratio * len(agent_ids) / num_agents), len(agent_ids) - len(agent_ids) // num_agents)
    columns, learners = [], range(num_agents) if aggregation == "symmetric" else [LEADER]
    for learner in learners:
        others = (agent_ids != learner).nonzero().squeeze(1)
        others = others[torch.randperm(len(others), device=agent_ids.device)]
        if aggregation == "one-follower":  # blocks are equal, so whose column is drawn first is a fair draw
            others = others[agent_ids[others] == agent_ids[others[:1]]]
        columns.append(others[:count])
    return torch.cat(columns), torch.tensor(list(learners), device=agent_ids.device).repeat_interleave(count)


@torch.no_grad()
def offpolicy_batch(agent, batch, rewards, successors, terminated, columns, learners, args):
    """Relabel columns (C,) of the on-policy batch for their learners (C,): a batch of the same fields, C columns.

    Kept: observation, action, behaviour log-probability, LSTM state before the window. Made anew with the learner's
    latent: values, 1-step target and advantage (SAPG Eq. 6, EPO Eq. 8), and mu (SAPG Eq. 3, EPO Eq. 4).
    rewards, terminated (T, N); successors (T, N, D): what each action led to, final_obs at an episode's end.
    """
    off = {key: value[:, columns] for key, value in batch.items()}
    off["agent_ids"] = ids = learners[None]
    _, old_logprob, _, off["values"], states = agent.get_action_and_value(
        off["obs"], ids, off["dones"], off["lstm_state"], off["actions"]
    )
    rows = successors[:, columns].flatten(0, 1)[None]  # (1, T C, D): each follows from its own state
    same_episode = torch.zeros(rows.shape[:2], dtype=torch.bool, device=rows.device)
    next_values = agent.get_value(rows, ids.repeat(1, len(rewards)), same_episode, states.flatten(0, 1)[None])
    next_values = agent.value_rms.denormalize(next_values.view(len(rewards), -1)) * ~terminated[:, columns]
    returns = rewards[:, columns] + args.gamma * next_values
    off["values"] = agent.value_rms.denormalize(off["values"])
    off["advantages"] = returns - off["values"]
    off["returns"] = returns
    if args.off_policy_mu:
        off["mu"] = (old_logprob - off["logprobs"]).clamp(max=MAX_LOG_RATIO).exp()  # pi_learner,old / pi_behaviour
    off["is_offpolicy"] = torch.ones_like(returns)
    return off


# ----------------------------------------------------------------------------------------------------------------------
# SAPG: how far the agents are apart
# ----------------------------------------------------------------------------------------------------------------------
@torch.no_grad()
def diagnose(agent, batch, args):
    """What the leader can make of the followers' data (CPO 7.2) and how far the agents are apart (CPO 7.3).

    batch: that of the update, before its first step. Returns scalars, name -> 0-d tensor, and the KL matrix (K, K) of
    at most 9 agents, evenly spaced from the leader to the last follower, so that the cost does not grow with A.
    """

    def log_ratio(rows):  # of the learner's probability to that of who acted, from whose LSTM state it starts (T, C)
        keys = ("obs", "agent_ids", "dones", "lstm_state", "actions")
        logprob = agent.get_action_and_value(*(rows[key] for key in keys))[1]
        return (logprob - rows["logprobs"]).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

    on = {key: value[:, : args.num_envs] for key, value in batch.items()}
    off = {key: value[:, args.num_envs :] for key, value in batch.items()}
    shown = torch.linspace(0, args.num_agents - 1, min(args.num_agents, 9)).round().long().tolist()
    kls = kl_matrix(agent, on, shown, args.num_agents)
    log_ratios = log_ratio({**on, "agent_ids": torch.full_like(on["agent_ids"], LEADER)})
    scalars = {"population/latent_spread": agent.latents.std(0, unbiased=False).mean()}
    if args.num_agents > 1:
        deviation, ess = importance_statistics(log_ratios, args.num_agents)
        nearest = nearest_agents(kls)
        scalars.update({
            "population/is_ratio_deviation": deviation[LEADER + 1 :].mean(),
            "population/is_ratio_deviation_max": deviation[LEADER + 1 :].max(),
            "population/is_log_ratio_median": log_ratios[:, args.num_envs // args.num_agents :].abs().median(),
            "population/ess_rate": ess,
            "population/leader_is_nearest": (nearest[1:] == LEADER).float().mean(),
            "population/kl_to_leader": kls[1:, LEADER].mean(),
            "population/kl_to_leader_max": kls[1:, LEADER].max(),
        })
        scalars.update({f"population/is_ratio_deviation_of_{k}": deviation[k] for k in shown[1:]})
    if off["obs"].shape[1]:
        ratio = log_ratio(off).exp()
        low, high = off["mu"] * (1 - args.clip_coef), off["mu"] * (1 + args.clip_coef)
        used = torch.where(off["advantages"] > 0, ratio < high, ratio > low)  # not cut off by the clip
        scalars["population/off_policy_used"] = used.float().mean()
    return scalars, kls


def importance_statistics(log_ratios, num_agents):
    """log_ratios (T, N) of the leader to who acted -> mean |1 - w| per agent (A,) and ESS / (T N) (CPO Table 2, Eq. 5).

    The leader's own rows, w = 1, are among them.
    """
    w = log_ratios.double().exp()
    return (1 - w).abs().view(len(w), num_agents, -1).mean((0, 2)), w.sum() ** 2 / w.square().sum() / w.numel()


def kl_matrix(agent, rows, agents, num_agents):
    """KL(i || j), i down and j across, for K agents (ids): mean over at most 256 states of i, the window's first."""
    n, matrix = rows["obs"].shape[1] // num_agents, []
    for i in agents:
        keys = ("obs", "agent_ids", "dones", "lstm_state", "actions")
        obs, ids, *inputs = (rows[key][:1, i * n : i * n + min(n, 256)] for key in keys)
        policies = [agent.get_action_and_value(obs, torch.full_like(ids, j), *inputs)[2] for j in agents]
        own = policies[agents.index(i)]
        matrix.append(torch.stack([kl_divergence(own, other).sum(-1).mean() for other in policies]))
    return torch.stack(matrix)


def nearest_agents(kls):
    """For each row of the KL matrix (K, K) the column of the nearest other agent (K,)."""
    return (kls + torch.diag(torch.full_like(kls[0], math.inf))).argmin(1)


def kl_image(kls, cell=24):
    """The KL matrix (K, K) as an image (3, K cell, K cell) in [0, 1], dark 1e-3 to bright 100 nats, on a log scale.

    First row and column are the leader's. A white square marks the agent nearest to the row's (CPO Fig. 4).
    """
    shade = ((kls.clamp(1e-3, 1e2).log10() + 3) / 5).cpu()
    image = torch.stack([shade, shade**2, 0.4 * (1 - shade)]).repeat_interleave(cell, 1).repeat_interleave(cell, 2)
    for i, j in enumerate(nearest_agents(kls).tolist() if len(kls) > 1 else []):
        middle = slice(cell // 3, cell - cell // 3)
        image[:, i * cell : (i + 1) * cell, j * cell : (j + 1) * cell][:, middle, middle] = 1.0
    return image


def adapt_learning_rate(lr, kl, threshold):
    """rl_games' rule: keep KL(old || new) of the on-policy data between half and twice the threshold."""
    if threshold and kl > 2.0 * threshold:
        return max(lr / 1.5, 1e-6)
    if threshold and kl < 0.5 * threshold:
        return min(lr * 1.5, 1e-2)
    return lr


def main(argv=None):
    args = parse_args(argv)
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    device, T, N = args.device, args.num_steps, args.num_envs
    try:
        envs = tasks.make(args.env_id, N, device, args.seed, args.engine)
    except ValueError as error:
        refuse("num_envs", N, error)
    engine = getattr(envs, "engine_name", "its own")
    for_gpu = TASK_HYPERPARAMETERS.get(args.env_id, {}).get("num_envs") == PAPER_NUM_ENVS
    print(
        f"{args.env_id}: engine {engine}, {device}, {torch.get_num_threads()} threads, {N:,} environments"
        + (f" ({PAPER_NUM_ENVS:,} on a GPU)" if for_gpu and device == "cpu" and N < PAPER_NUM_ENVS else "")
        + ("; faster on a CPU: --no-lstm --hidden-sizes 256 128 64" if args.lstm and device == "cpu" else ""),
        flush=True,
    )
    agent = Agent(envs.num_obs, envs.num_actions, args).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, fused=device == "cuda")
    # SAPG: who acts where, and how much each agent is paid for noise
    agent_ids = torch.arange(args.num_agents, device=device).repeat_interleave(N // args.num_agents)[None]  # (1, N)
    ent_coefs = args.ent_coef + torch.linspace(0.0, args.max_ent_coef, args.num_agents, device=device)  # (A,)

    first_iteration, global_step, start_time = 1, 0, time.time()
    folder = f"runs/{args.env_id.replace(':', '-')}__{SCRIPT}__{args.seed}__{int(start_time)}"
    if args.resume:
        saved = load_checkpoint(args.resume)
        folder = args.resume if os.path.isdir(args.resume) else os.path.dirname(args.resume) or "."
        first_iteration, global_step = saved["iteration"] + 1, saved["global_step"]
        start_time -= saved["seconds"]
    writer = SummaryWriter(folder, purge_step=global_step + 1 if args.resume else None)  # logged after the checkpoint
    rows = "\n".join(f"|{key}|{value}|" for key, value in vars(args).items())
    writer.add_text("hyperparameters", f"|flag|value|\n|-|-|\n{rows}", global_step)

    # Storage: entry T of obs, dones and values is the step after the window
    obs = torch.zeros(T + 1, N, envs.num_obs, device=device)
    dones = torch.zeros(T + 1, N, dtype=torch.bool, device=device)  # obs[t] begins an episode
    values = torch.zeros(T + 1, N, device=device)
    actions = torch.zeros(T, N, envs.num_actions, device=device)
    means = torch.zeros(T, N, envs.num_actions, device=device)
    logprobs = torch.zeros(T, N, device=device)
    rewards = torch.zeros(T, N, device=device)
    successors = torch.zeros(T, N, envs.num_obs, device=device)  # SAPG: what each action led to
    terminated = torch.zeros(T, N, dtype=torch.bool, device=device)
    final_values = torch.zeros(T, N, device=device)  # V(final_obs) where truncated
    lstm_state = torch.zeros(1, N, agent.state_size, device=device)
    latest = torch.full((3, N), float("nan"), device=device)  # return, length, objective of each latest episode

    obs[0], dones[0] = envs.reset(), True
    if args.resume:
        agent.load_state_dict(saved["agent"])
        saved["optimizer"]["param_groups"][0]["fused"] = device == "cuda"  # not where the checkpoint was written
        optimizer.load_state_dict(saved["optimizer"])
        envs.load_state_dict(saved["envs"])
        latest = saved["latest"].to(device)
        if getattr(envs, "resumes_exactly", True):
            obs[0], dones[0], lstm_state = (saved[key].to(device) for key in ("obs", "dones", "lstm_state"))
        set_random_state(saved["random"])
    stop = StopSignal()
    for iteration in range(first_iteration, args.num_iterations + 1):
        # --------------------------------------------------------------------------------------------------------------
        # Rollout
        # --------------------------------------------------------------------------------------------------------------
        rollout_start, first_lstm_state = time.time(), lstm_state
        finished = torch.zeros(4, device=device)  # number of finished episodes, sums of return, length, objective
        with torch.no_grad():
            for t in range(T):
                actions[t], logprobs[t], policy, values[t], lstm_state = agent.get_action_and_value(
                    obs[t : t + 1], agent_ids, dones[t : t + 1], lstm_state
                )
                means[t] = policy.mean
                obs[t + 1], reward, terminated[t], truncated, info = envs.step(actions[t])
                rewards[t], dones[t + 1] = args.reward_scale * reward, terminated[t] | truncated
                successors[t] = torch.where(dones[t + 1][:, None], info["final_obs"], obs[t + 1])
                if truncated.any():
                    cut = truncated.nonzero().squeeze(1)
                    final_values[t, cut] = agent.get_value(
                        info["final_obs"][None, cut], agent_ids[:, cut], terminated[t : t + 1, cut], lstm_state[:, cut]
                    )[0]
                episode = torch.stack([info["episode"][key] for key in ("return", "length", "objective")])  # (3, N)
                latest = torch.where(dones[t + 1], episode, latest)
                finished += torch.cat([torch.ones_like(episode[:1]), episode]).where(dones[t + 1], 0.0).sum(1)
            values[T] = agent.get_value(obs[T:], agent_ids, dones[T:], lstm_state)
        global_step += T * N

        # --------------------------------------------------------------------------------------------------------------
        # Advantages and batch
        # --------------------------------------------------------------------------------------------------------------
        update_start = time.time()
        raw_values = agent.value_rms.denormalize(values)
        next_values = torch.where(dones[1:], agent.value_rms.denormalize(final_values), raw_values[1:]) * ~terminated
        advantages = compute_gae(rewards, raw_values[:-1], next_values, dones[1:], args.gamma, args.gae_lambda)
        returns = advantages + raw_values[:-1]
        if args.critic_n_step:
            returns = n_step_returns(rewards, next_values, dones[1:], args.gamma, args.critic_n_step)
        explained_variance = 1 - (returns - raw_values[:-1]).var() / returns.var()
        batch = {  # every entry (T or 1, N, ...): columns are dimension 1
            "obs": obs[:-1],
            "dones": dones[:-1],
            "lstm_state": first_lstm_state,
            "actions": actions,
            "logprobs": logprobs,
            "means": means,
            "values": raw_values[:-1],
            "advantages": advantages,
            "returns": returns,
            "agent_ids": agent_ids,
            "mu": torch.ones_like(returns),
            "is_offpolicy": torch.zeros_like(returns),
        }
        old_std = agent.actor_logstd.detach().exp()
        # SAPG: append what the leader learns from others
        columns, learners = sample_offpolicy_columns(
            agent_ids[0], args.num_agents, args.off_policy_ratio, args.aggregation
        )
        off = offpolicy_batch(agent, batch, rewards, successors, terminated, columns, learners, args)
        batch = {key: torch.cat([batch[key], off[key]], 1) for key in batch}  # (T or 1, N', ...)
        agent.value_rms.update(raw_values[:-1])  # from here on the value head speaks in the new units (released code)
        agent.value_rms.update(returns)
        batch["values"] = agent.value_rms.normalize(batch["values"])
        batch["returns"] = agent.value_rms.normalize(batch["returns"])
        advantages = batch["advantages"]
        batch["advantages"] = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        diagnostics, images = {}, {}
        if args.diagnostics_interval and iteration % args.diagnostics_interval == 0:
            diagnostics, matrix = diagnose(agent, batch, args)
            images["population/kl_matrix"] = kl_image(matrix)

        # --------------------------------------------------------------------------------------------------------------
        # Update
        # --------------------------------------------------------------------------------------------------------------
        stats, before = [], copy.deepcopy({"agent": agent.state_dict(), "optimizer": optimizer.state_dict()})
        before["random"] = random_state()
        for _ in range(args.update_epochs):
            kls = []
            columns = torch.randperm(batch["obs"].shape[1], device=device)
            for minibatch_columns in columns.tensor_split(args.num_minibatches):
                mb = {key: value[:, minibatch_columns] for key, value in batch.items()}
                _, newlogprob, policy, newvalue, _ = agent.get_action_and_value(
                    mb["obs"], mb["agent_ids"], mb["dones"], mb["lstm_state"], mb["actions"]
                )
                entropy = policy.entropy().sum(-1)  # (T, M)
                ratio = (newlogprob - mb["logprobs"]).clamp(max=MAX_LOG_RATIO).exp()
                # SAPG Eq. 3: mu is 1 on-policy, where this is PPO's clip (Eq. 2)
                clipped_ratio = ratio.clamp(mb["mu"] * (1 - args.clip_coef), mb["mu"] * (1 + args.clip_coef))
                pg_loss = -torch.min(ratio * mb["advantages"], clipped_ratio * mb["advantages"])
                clipped_value = mb["values"] + (newvalue - mb["values"]).clamp(-args.clip_coef, args.clip_coef)
                v_loss = 0.5 * torch.max((newvalue - mb["returns"]) ** 2, (clipped_value - mb["returns"]) ** 2)
                bounds_loss = (policy.mean.abs() - 1.1).clamp(min=0.0).square().sum(-1)
                ent_coef = ent_coefs[mb["agent_ids"]]  # SAPG 4.5
                loss = pg_loss + args.vf_coef * v_loss - ent_coef * entropy + args.bounds_coef * bounds_loss
                weight = 1 + (args.off_policy_coef - 1) * mb["is_offpolicy"]  # SAPG Eq. 4, 9
                loss = loss * weight / weight.mean().clamp(min=1e-8)
                optimizer.zero_grad()
                loss.mean().backward()
                grad_norm = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()

                with torch.no_grad():
                    mb_std = old_std[mb["agent_ids"]].expand_as(mb["means"])
                    kl = kl_divergence(Normal(mb["means"], mb_std, validate_args=False), policy).sum(-1)  # (T, M)
                    on_policy = 1 - mb["is_offpolicy"]  # off-policy rows were acted by somebody else
                    kls.append((kl * on_policy).sum() / on_policy.sum().clamp(min=1))
                    clipfrac = (clipped_ratio != ratio).float()
                    losses = (pg_loss, v_loss, entropy, bounds_loss, clipfrac, grad_norm)
                    stats.append(torch.stack([x.mean() for x in losses]))
            kl, group = torch.stack(kls).mean().item(), optimizer.param_groups[0]
            group["lr"] = adapt_learning_rate(group["lr"], kl, args.kl_threshold)
        loss_names = ("policy_loss", "value_loss", "entropy", "bounds_loss", "clipfrac", "grad_norm")
        losses = dict(zip((f"losses/{name}" for name in loss_names), torch.stack(stats).T))
        broken = [k for k, x in {"observations": obs, "rewards": rewards, **losses}.items() if not x.isfinite().all()]
        if broken:
            fault = {"args": vars(args), "iteration": iteration, "batch": batch, **before}
            torch.save(fault, os.path.join(folder, "fault.pt"))
            found = f"iteration {iteration}: {', '.join(broken)} not finite"
            print(f"{found}; {folder}/fault.pt has the batch and what the update began with", file=sys.stderr)
            stop.restore()
            sys.exit(1)
        agent.obs_rms.update(obs[:-1])
        obs[0], dones[0] = obs[T], dones[T]

        # --------------------------------------------------------------------------------------------------------------
        # Log
        # --------------------------------------------------------------------------------------------------------------
        now = time.time()
        sps = int(global_step / (now - start_time))
        count, *means_finished = [x.item() for x in torch.cat([finished[:1], finished[1:] / finished[0]])]
        agent_means = latest.view(3, args.num_agents, -1).nanmean(2)  # (3, agents): return, length, objective
        leader_return, _, leader_objective = agent_means[:, LEADER].tolist()
        scalars = dict(zip(("charts/episodic_return", "charts/episodic_length", "charts/objective"), means_finished))
        scalars.update({f"charts/{key}": float(value) for key, value in info["metrics"].items()})
        scalars.update({key: x.mean().item() for key, x in losses.items()})
        scalars.update({
            "charts/leader_return": leader_return,
            "charts/leader_objective": leader_objective,
            "charts/best_agent_objective": agent_means[2].max().item(),
            "charts/episodes": count,
            "population/objective_median": agent_means[2].quantile(0.5).item(),
            "population/objective_worst": agent_means[2].min().item(),
            "population/latent_distance": (agent.latents[1:] - agent.latents[LEADER]).norm(dim=1).mean().item(),
            "charts/SPS": sps,
            "charts/learning_rate": group["lr"],
            "losses/approx_kl": kl,
            "losses/explained_variance": explained_variance.item(),
            "perf/rollout_s": update_start - rollout_start,
            "perf/update_s": now - update_start,
            **{key: float(value) for key, value in diagnostics.items()},
        })
        try:
            for key, value in scalars.items():
                if math.isfinite(value):  # no episode has finished yet: nothing to say
                    writer.add_scalar(key, value, global_step)
            for key, image in images.items():
                writer.add_image(key, image, global_step)
            writer.flush()
        except OSError as error:
            print(f"no log: {error}; training goes on", file=sys.stderr)
        stopping = stop.signum  # a signal that comes after this waits for the next iteration
        if stopping or iteration == args.num_iterations or iteration % (args.checkpoint_interval or math.inf) == 0:
            save_checkpoint(folder, {
                "script": SCRIPT, "args": vars(args), "iteration": iteration, "global_step": global_step,
                "seconds": now - start_time, "agent": agent.state_dict(), "optimizer": optimizer.state_dict(),
                "envs": envs.state_dict(), "obs": obs[0].clone(), "dones": dones[0].clone(),
                "lstm_state": lstm_state, "latest": latest,
            })  # fmt: skip
        left = int((now - start_time) / iteration * (args.num_iterations - iteration))
        print(
            f"{global_step:>13,} steps {iteration / args.num_iterations:6.1%} | return {leader_return:9.2f} | "
            f"objective {leader_objective:7.2f} | {sps:>7,} SPS | {timedelta(seconds=left)} left",
            flush=True,
        )
        if stopping:
            print(f"stopped; to go on: --resume {folder}", flush=True)
            break
    stop.restore()
    writer.close()
    if stopping:
        sys.exit(128 + stopping)


if __name__ == "__main__":
    main()
