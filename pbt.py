"""PBT, Population Based Training: PPO agents, of which the worst copy the best and mutate their hyperparameters.

Jaderberg et al. 2017 (arXiv 1711.09846) as in DexPBT, Petrenko et al. 2023 (arXiv 2305.12127). Each of A agents has its
own network, normalisers and Adam, and n = N / A environments. `diff ppo.py pbt.py`: what PBT adds is marked `# PBT`.

Shape letters: T num_steps, N environments of this process, D observation, U action, H lstm_size, M columns of a
minibatch. Layout is always time-major (T, N, ...). A column is all T steps of one environment, and a minibatch is a
random set of columns; a row is one step of one environment.

If you change a copy of this file, keep the names that docs/algorithms.md lists under "Names to keep".
"""

import itertools
import math
import random
import time
from collections import defaultdict
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Optional, Tuple

import harness  # before torch: Isaac Gym must be imported first
from harness import hyperparameters

import torch
import torch.nn as nn
import tyro
from torch.distributions import Normal, kl_divergence

MAX_STD = 2.0  # of an action: the environment clamps actions, so that more and more noise would cost nothing
MAX_LOG_RATIO = 20.0  # bound on log(pi_new / pi_old), against overflow; no useful ratio comes near it
MUTATED = ("lr", "kl_threshold", "ent_coef", "gamma", "gae_lambda", "clip_coef")  # PBT: an agent's hyperparameters


@dataclass
class Args:
    """Defaults for a custom task; harness/hyperparameters.py has the values for the tasks of envs/."""

    # Experiment
    env_id: str = "AllegroKukaRegrasping"
    """a task of envs/, your own package.module:Class, or envpool:NAME, gymnasium:NAME, isaaclab:NAME, mjlab:NAME"""
    engine: str = "auto"
    """physics engine: mujoco, warp or isaacgym; auto: warp on a GPU if installed, else mujoco"""
    num_envs: int = 1_024
    """number of parallel environments, over all processes (papers: 24,576)"""
    total_timesteps: int = 10_000_000
    """environment steps, over all environments and processes, in whole iterations (papers: billions)"""
    seed: int = 1
    """random seed"""
    cuda: bool = True
    """use the GPU if there is one"""
    checkpoint_interval: float = 10.0
    """minutes between checkpoints; 0: only at the end and when stopped"""
    exp_name: Optional[str] = None
    """replaces the script's name in the name of the run's folder"""
    track: bool = False
    """log to Weights & Biases too (pip install wandb; offline with WANDB_MODE=offline)"""
    wandb_project_name: str = "popgrad"
    """project of Weights & Biases"""
    capture_video: bool = False
    """film the leader (PBT: the best in training) at every checkpoint, except when stopped, for TensorBoard"""
    resume: Optional[str] = None
    """run folder or checkpoint file to resume, with its flags; a few may change, see docs/running.md"""
    load: Optional[str] = None
    """start a new run, with new flags, from the network and normalisers of a run or policy (folder or file)"""

    # PPO
    num_steps: int = 16
    """T: control steps per environment and iteration (SAPG Table 2: 16)"""
    num_minibatches: int = 4
    """minibatches per update epoch, each a random set of columns (papers: minibatches of 4 N rows, so 4 at T = 16)"""
    update_epochs: int = 5
    """passes over the batch per iteration (released code: 5 for hands, 2 for AllegroKuka; rl_games: mini_epochs)"""
    learning_rate: float = 3e-4
    """initial learning rate of Adam; --kl-threshold adapts it (papers: 1e-4 to 5e-4; IsaacGymEnvs' Ant: 3e-4)"""
    kl_threshold: float = 0.016
    """KL above twice this divides the learning rate by 1.5, below half multiplies it (rl_games; SAPG: 0.016); 0: off"""
    gamma: float = 0.99
    """discount per control step (all papers)"""
    gae_lambda: float = 0.95
    """lambda of GAE (SAPG Tables 2-4, CPO Tables 3-6; rl_games: tau)"""
    critic_n_step: int = 0
    """0: the critic learns the GAE return (released code); 3: the 3-step return of SAPG Eq. 5 and EPO Eq. 6"""
    clip_coef: float = 0.2
    """clip range of the policy ratio and, with --clip-vloss, of the change of the value (papers: 0.1 or 0.2)"""
    clip_vloss: bool = True
    """clip the change of the value (released code: yes; papers: no)"""
    vf_coef: float = 4.0
    """weight of half the squared value error, in normalised units (released code: 4; rl_games: critic_coef)"""
    ent_coef: float = 0.0
    """weight of the entropy bonus (released code: 0); below 0 a penalty on action noise"""
    bounds_coef: float = 1e-4
    """weight of the penalty on action means outside +-1.1 (SAPG, CPO: 1e-4; EPO B.2: 1e-5)"""
    max_grad_norm: float = 1.0
    """maximum global norm of the gradient (all papers)"""
    reward_scale: float = 1.0
    """the learner sees reward times this; logged returns are unscaled (released code: 0.01 for most tasks)"""
    hidden_sizes: Tuple[int, ...] = (256, 128, 64)
    """widths of the MLP's hidden layers, ELU after each (IsaacGymEnvs' Ant)"""
    separate_critic: bool = False
    """give the value an MLP of its own (SAPG's text; after a shared LSTM); off: one trunk (released code)"""
    init_std: float = 1.0
    """initial standard deviation of the actions, at most 2 from the first update on (released code: 1)"""
    lstm: bool = False
    """put LSTM and LayerNorm before the MLP (released code of all three papers, for AllegroKuka)"""
    lstm_size: int = 768
    """H: units of the LSTM (SAPG, EPO B.2: 768)"""
    bf16: bool = False
    """compute the update's networks in bfloat16, faster on GPUs and on CPUs with bf16 units"""

    # PBT
    num_agents: int = 8
    """A: number of agents, each with num_envs / num_agents environments (DexPBT: 8)"""
    pbt_start: Optional[int] = None
    """no copies before this step of all agents; unset: 1 % of the run, at most 100 M (DexPBT: 200 M of each)"""
    pbt_interval: Optional[int] = None
    """least steps, over all agents, before and between rounds of copies; unset: 1 % of the run, at most 20 M"""
    mutation_rate: float = 0.25
    """probability that a copied hyperparameter changes (Isaac Lab: 0.25)"""

    device: tyro.conf.Suppress[str] = field(init=False, default="cpu")
    num_iterations: tyro.conf.Suppress[int] = field(init=False, default=0)


def check_args(args):
    """PBT: refuse what the population cannot work with, and set what follows from the run's length."""
    most = args.num_envs // args.num_agents // harness.WORLD_SIZE
    if args.num_minibatches > most:
        harness.refuse("--num-minibatches", args.num_minibatches, f"must be at most {most}, an agent's environments")
    if args.pbt_start is None:
        args.pbt_start = min(args.total_timesteps // 100, 100_000_000)
    if args.pbt_interval is None:
        args.pbt_interval = min(args.total_timesteps // 100, 20_000_000)


# ----------------------------------------------------------------------------------------------------------------------
# Network
# ----------------------------------------------------------------------------------------------------------------------
class RunningMeanStd(nn.Module):
    """Running mean and variance, as buffers: saved with the network, changed only by `update`."""

    def __init__(self, *shape):
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.ones((), dtype=torch.float64))

    def update(self, x):
        """Merge the moments of x (..., *shape) into the running ones (Chan et al. 1979)."""
        x = x.reshape(-1, *self.mean.shape).double()
        mean, var, rows = harness.moments(x)  # over all processes
        delta = mean - self.mean
        total = self.count + rows
        m2 = self.var * self.count + var * rows + delta**2 * self.count * rows / total
        self.mean += delta * rows / total
        self.var.copy_(m2 / total)
        self.count.copy_(total)

    @property
    def std(self):
        return (self.var + 1e-5).sqrt().float()

    def normalize(self, x):
        return ((x - self.mean.float()) / self.std).clamp(-5.0, 5.0)  # released code

    def denormalize(self, x):
        return x.clamp(-5.0, 5.0) * self.std + self.mean.float()


def make_mlp(width, sizes):
    """Linear layers of the given sizes, ELU after each; PyTorch's weights, zero biases (released code)."""
    layers = []
    for size in sizes:
        layers += [nn.Linear(width, size), nn.ELU()]
        nn.init.zeros_(layers[-2].bias)
        width = size
    return nn.Sequential(*layers)


class Network(nn.Module):
    """Action distribution, and value in normalised units; one trunk for both unless --separate-critic."""

    def __init__(self, num_obs, num_actions, args):
        super().__init__()
        self.obs_rms = RunningMeanStd(num_obs)
        self.value_rms = RunningMeanStd()
        self.bf16 = args.bf16
        width = num_obs
        self.state_size = 2 * args.lstm_size if args.lstm else 0  # h and c side by side
        if args.lstm:
            self.lstm = nn.LSTM(width, args.lstm_size)
            self.layer_norm = nn.LayerNorm(args.lstm_size)
            width = args.lstm_size
        self.mlp = make_mlp(width, args.hidden_sizes)
        self.actor = nn.Linear(args.hidden_sizes[-1], num_actions)
        self.critic = nn.Linear(args.hidden_sizes[-1], 1)
        nn.init.zeros_(self.actor.bias)
        nn.init.zeros_(self.critic.bias)
        self.critic_mlp = make_mlp(width, args.hidden_sizes) if args.separate_critic else None
        self.actor_logstd = nn.Parameter(torch.full((1, num_actions), math.log(args.init_std)))

    def encode(self, obs, dones, lstm_state):
        """Normalise obs (T, N, D) and, with --lstm, run the LSTM over the T steps.

        dones (T, N): whether obs begins an episode; None: it never does. lstm_state (1, N, 2H): the LSTM's before the
        first step.
        Returns the MLPs' input (T, N, F) and the LSTM's state after each step (T, N, 2H).
        """
        x = self.obs_rms.normalize(obs)
        if not self.state_size:  # the state has width 0 and is passed through
            return x, lstm_state.expand(len(x), -1, -1)
        outputs = []
        lstm_states = []
        for t in range(len(x)):
            if dones is not None:
                lstm_state = lstm_state * ~dones[t, :, None]  # an episode begins with an empty memory
            h, c = lstm_state.chunk(2, dim=-1)
            output, (h, c) = self.lstm(x[t : t + 1], (h.contiguous(), c.contiguous()))
            lstm_state = torch.cat([h, c], -1)
            outputs.append(output)
            lstm_states.append(lstm_state)
        return self.layer_norm(torch.cat(outputs)), torch.cat(lstm_states)

    def get_value(self, obs, dones, lstm_state):
        """Normalised value (T, N)."""
        x, _ = self.encode(obs, dones, lstm_state)
        features = self.mlp(x) if self.critic_mlp is None else self.critic_mlp(x)
        return self.critic(features).squeeze(-1)

    def get_action_and_value(self, obs, dones, lstm_state, action=None):
        """Act, or evaluate `action` if it is given.

        Returns action (T, N, U), its log-probability (T, N), the Normal policy, normalised value (T, N), and the LSTM's
        states after each step (T, N, 2 H).
        """
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.bf16 and torch.is_grad_enabled()):
            x, lstm_states = self.encode(obs, dones, lstm_state)
            features = self.mlp(x)
            mean = self.actor(features).float()
            critic_features = features if self.critic_mlp is None else self.critic_mlp(x)
            value = self.critic(critic_features).squeeze(-1).float()
        policy = Normal(mean, self.actor_logstd.exp().expand_as(mean), validate_args=False)
        if action is None:
            action = mean + policy.stddev * torch.randn_like(mean)  # on a GPU policy.sample() waits for the device
        return action, policy.log_prob(action).sum(-1), policy, value, lstm_states


class AgentsStatistics:
    """PBT: the RunningMeanStd of all agents, each for its own block of n columns of x (T, N, ...)."""

    def __init__(self, statistics):
        self.statistics = statistics

    def update(self, x):
        for statistics, block in zip(self.statistics, x.chunk(len(self.statistics), dim=1)):
            statistics.update(block)

    def denormalize(self, x):
        blocks = x.chunk(len(self.statistics), dim=1)
        return torch.cat([statistics.denormalize(block) for statistics, block in zip(self.statistics, blocks)], dim=1)


class Agent(nn.ModuleList):
    """PBT: the networks of all agents, used as one. agent_ids (1, N): whose network each column goes through."""

    def __init__(self, num_obs, num_actions, args):
        super().__init__(Network(num_obs, num_actions, args) for _ in range(args.num_agents))
        self.obs_rms = AgentsStatistics([network.obs_rms for network in self])
        self.value_rms = AgentsStatistics([network.value_rms for network in self])
        self.state_size = self[0].state_size

    def get_value(self, obs, agent_ids, dones, lstm_state):
        """Normalised value (T, N)."""
        value = torch.zeros(obs.shape[:2], device=obs.device)
        for k in agent_ids.unique().tolist():
            columns = (agent_ids[0] == k).nonzero()[:, 0]
            inputs = [x if x is None else x[:, columns] for x in (obs, dones, lstm_state)]
            value[:, columns] = self[k].get_value(*inputs)
        return value

    def get_action_and_value(self, obs, agent_ids, dones, lstm_state, action=None):
        """Act, or evaluate `action` if it is given.

        Returns action (T, N, U), its log-probability (T, N), the Normal policy, normalised value (T, N), and the LSTM's
        states after each step (T, N, 2 H).
        """
        outputs = []
        for k in agent_ids.unique().tolist():
            columns = (agent_ids[0] == k).nonzero()[:, 0]
            inputs = [x if x is None else x[:, columns] for x in (obs, dones, lstm_state, action)]
            drawn, logprob, policy, value, lstm_states = self[k].get_action_and_value(*inputs)
            outputs.append((drawn, logprob, policy.mean, policy.stddev, value, lstm_states))
        order = agent_ids[0].argsort(stable=True).argsort()  # column -> its place in outputs, which agent 0's begin
        action, logprob, mean, std, value, lstm_states = (torch.cat(x, dim=1)[:, order] for x in zip(*outputs))
        return action, logprob, Normal(mean, std, validate_args=False), value, lstm_states


# ----------------------------------------------------------------------------------------------------------------------
# Advantages, targets and learning rate
# ----------------------------------------------------------------------------------------------------------------------
def compute_gae(rewards, values, next_values, ends, gamma, gae_lambda):
    """Generalised advantage estimation (arXiv 1506.02438, Eq. 16), restarted at episode ends. All (T, N).

    next_values[t] is V of the state that action t led to: 0 where terminated, V(final_obs) where truncated.
    ends[t] is True where action t ended an episode.
    """
    deltas = rewards + gamma * next_values - values
    advantages = torch.zeros_like(rewards)
    running = torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        running = deltas[t] + gamma * (gae_lambda * running) * ~ends[t]
        advantages[t] = running
    return advantages


def n_step_returns(rewards, next_values, ends, gamma, n):
    """Critic target r_t + ... + gamma^n V(s_{t+n}) (SAPG Eq. 5, EPO Eq. 6); shorter where episode or window end."""
    returns = rewards + gamma * next_values
    for _ in range(n - 1):
        longer = rewards[:-1] + gamma * torch.where(ends[:-1], next_values[:-1], returns[1:])
        returns = torch.cat([longer, returns[-1:]])
    return returns


def adapt_learning_rate(lr, kl, threshold):
    """rl_games' rule: keep the KL divergence between half and twice the threshold."""
    if threshold and kl > 2.0 * threshold:
        return max(lr / 1.5, 1e-6)
    if threshold and kl < 0.5 * threshold:
        return min(lr * 1.5, 1e-2)
    return lr


# ----------------------------------------------------------------------------------------------------------------------
# PBT: exploit and explore
# ----------------------------------------------------------------------------------------------------------------------
def mutate(name, value, rate):
    """PBT: with probability `rate` a new value. DexPBT's factors and limits; of gamma and lambda 1 - value changes."""
    if random.random() >= rate:
        return value
    near_one = name in ("gamma", "gae_lambda")
    factor = random.uniform(1.1, 1.2 if near_one else 1.5)
    if random.choice((True, False)):
        factor = 1.0 / factor
    if near_one:
        return max(1.0 - factor * (1.0 - value), 0.0)
    if name == "clip_coef":
        return min(max(factor * value, 0.01), 0.3)
    return factor * value


def parameter_groups(agent, args):
    """PBT: for Adam, one group per agent with its hyperparameters: agent 0's are the flags, the others' mutations."""
    flags = {
        "lr": args.learning_rate,
        "kl_threshold": args.kl_threshold,
        "ent_coef": args.ent_coef,
        "gamma": args.gamma,
        "gae_lambda": args.gae_lambda,
        "clip_coef": args.clip_coef,
    }
    groups = []
    for k, network in enumerate(agent):
        rate = args.mutation_rate if k > 0 else 0.0
        mutated = {name: mutate(name, flags[name], rate) for name in MUTATED}
        groups.append({"params": network.parameters(), **harness.from_rank_0(mutated)})
    return groups


def exploit_and_explore(agent, optimizer, fitness, rate):
    """PBT: the worst 30 % each copy one of the best (DexPBT): [(worse, better)]. fitness (A,); NaN is left out."""
    groups = optimizer.param_groups
    order = fitness.argsort(descending=True, stable=True)  # from the best to the worst
    order = order[fitness[order].isfinite()].tolist()
    count = min(math.ceil(0.3 * len(order)), len(order) // 2)
    best = order[:count]
    worst = order[len(order) - count :]
    pairs = harness.from_rank_0([(k, random.choice(best)) for k in worst])
    for worse, better in pairs:
        agent[worse].load_state_dict(agent[better].state_dict())  # normalisers too
        for copy, original in zip(groups[worse]["params"], groups[better]["params"]):
            optimizer.state[copy] = {key: value.clone() for key, value in optimizer.state[original].items()}
        mutated = {name: mutate(name, groups[better][name], rate) for name in MUTATED}
        groups[worse].update(harness.from_rank_0(mutated))
    return pairs


# ----------------------------------------------------------------------------------------------------------------------
# Loss
# ----------------------------------------------------------------------------------------------------------------------
def minibatch_loss(agent, mb, args):
    """The loss of a minibatch. mb: M columns of the batch; its entries are (T, M, ...) or (1, M, ...).

    Returns the loss, the mean KL(old policy, new policy), and the loss's terms for the log, name -> mean over the rows.
    """
    _, newlogprob, policy, newvalue, _ = agent.get_action_and_value(
        mb["obs"], mb["dones"], mb["lstm_state"], mb["actions"]
    )
    advantages = mb["advantages"]
    ratio = (newlogprob - mb["logprobs"]).clamp(max=MAX_LOG_RATIO).exp()  # (T, M)
    clipped_ratio = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
    pg_loss = -torch.min(ratio * advantages, clipped_ratio * advantages)
    v_loss = 0.5 * (newvalue - mb["returns"]) ** 2
    if args.clip_vloss:
        clipped_value = mb["values"] + (newvalue - mb["values"]).clamp(-args.clip_coef, args.clip_coef)
        v_loss = torch.max(v_loss, 0.5 * (clipped_value - mb["returns"]) ** 2)
    entropy = policy.entropy().sum(-1)
    bounds_loss = (policy.mean.abs() - 1.1).clamp(min=0.0).square().sum(-1)
    loss = pg_loss + args.vf_coef * v_loss - args.ent_coef * entropy + args.bounds_coef * bounds_loss
    loss = loss.mean()

    with torch.no_grad():
        old_policy = Normal(mb["means"], mb["logstds"].exp(), validate_args=False)
        kl = kl_divergence(old_policy, policy).sum(-1).mean()
        terms = {
            "policy_loss": pg_loss.mean(),
            "value_loss": v_loss.mean(),
            "entropy": entropy.mean(),
            "bounds_loss": bounds_loss.mean(),
            "clipfrac": (clipped_ratio != ratio).float().mean(),
        }
    return loss, kl, terms


def main(argv=None):
    args, saved = harness.parse_args(Args, hyperparameters.PBT, check_args, argv)
    harness.seed_everything(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    env = harness.make_env(args)
    device = args.device
    T = args.num_steps
    N = env.num_envs
    A = args.num_agents  # PBT
    agent = Agent(env.num_obs, env.num_actions, args).to(device)
    optimizer = torch.optim.Adam(parameter_groups(agent, args), fused=True)
    agent_ids = torch.arange(A, device=device).repeat_interleave(N // A)[None]  # (1, N)

    # Storage: entry T of obs, dones, values and lstm_states is the step after the window
    obs = torch.zeros(T + 1, N, env.num_obs, device=device)
    dones = torch.zeros(T + 1, N, dtype=torch.bool, device=device)  # obs[t] begins an episode
    values = torch.zeros(T + 1, N, device=device)
    actions = torch.zeros(T, N, env.num_actions, device=device)
    means = torch.zeros(T, N, env.num_actions, device=device)
    logprobs = torch.zeros(T, N, device=device)
    rewards = torch.zeros(T, N, device=device)
    terminated = torch.zeros(T, N, dtype=torch.bool, device=device)
    # What each action led to, before any reset. ppo.py needs its value where an episode was truncated; in sapg.py the
    # leader, which learns from others' actions, needs its own value of what every one of them led to
    next_obs = torch.zeros(T, N, env.num_obs, device=device)
    final_values = torch.zeros(T, N, device=device)  # V(next_obs) where an episode was truncated
    lstm_states = torch.zeros(T + 1, N, agent.state_size, device=device)  # before obs[t]

    obs[0] = env.reset()
    dones[0] = True
    episodes = harness.EpisodeStatistics(N, A, device)
    tracker = harness.FitnessTracker(N, A, device)  # PBT
    copied_at = torch.tensor(0)  # PBT: global_step at the last copies
    # What --resume restores, beside the random generators: whatever else has a state belongs in one of these dicts.
    # Tensors are restored in place, so change them in place: obs[0] is a view of what the next rollout begins with
    learner = {"agent": agent, "optimizer": optimizer}  # the same in every process
    rollout = {"env": env, "episodes": episodes, "obs": obs[0], "dones": dones[0], "lstm_state": lstm_states[0]}
    learner["copied_at"] = copied_at  # PBT
    rollout["tracker"] = tracker  # PBT
    run = harness.Run(args, learner, rollout, saved)
    global_step = run.global_step
    for iteration in range(run.iteration + 1, args.num_iterations + 1):
        # ---------------------------------------------------------------- PBT: exploit and explore
        fitness = tracker.fitness()  # (A,)
        judged_share = tracker.judged_share()  # of each agent's environments (A,)
        copies_are_due = global_step >= args.pbt_start and global_step - copied_at >= args.pbt_interval
        pairs = []
        if copies_are_due and tracker.can_compare(fitness, slice(0, A), at_least=2):
            pairs = exploit_and_explore(agent, optimizer, fitness, args.mutation_rate)
            for worse, _ in pairs:  # what the replaced network has written into its LSTM means nothing to the copy
                lstm_states[0, agent_ids[0] == worse] = 0.0
            copied_at.fill_(global_step)
            tracker.restart()

        # ---------------------------------------------------------------- Rollout
        rollout_start = time.perf_counter()
        with torch.no_grad():
            for t in range(T):
                action, logprobs[t], policy, values[t], lstm_states[t + 1] = agent.get_action_and_value(
                    obs[t : t + 1], agent_ids, dones[t : t + 1], lstm_states[t : t + 1]
                )
                actions[t] = action
                means[t] = policy.mean
                obs[t + 1], reward, terminated[t], truncated, info = env.step(action[0])
                rewards[t] = args.reward_scale * reward
                dones[t + 1] = terminated[t] | truncated
                next_obs[t] = info["final_obs"]
                episodes.record(info["episode"])
                tracker.record(dones[t], info["episode"])  # PBT
            values[T] = agent.get_value(obs[T:], agent_ids, dones[T:], lstm_states[T:])
            # Where an episode was truncated: each final observation as a column of its own, of one step
            steps, columns = (dones[1:] & ~terminated).nonzero(as_tuple=True)
            final_obs = next_obs[steps, columns]
            if len(steps):
                final_values[steps, columns] = agent.get_value(
                    final_obs[None], agent_ids[:, columns], None, lstm_states[None, steps + 1, columns]
                )[0]
        global_step += T * args.num_envs
        harness.share_curriculum(env)

        # ---------------------------------------------------------------- Advantages and batch
        update_start = time.perf_counter()
        raw_values = agent.value_rms.denormalize(values)
        next_values = torch.where(dones[1:], agent.value_rms.denormalize(final_values), raw_values[1:]) * ~terminated
        groups = optimizer.param_groups  # PBT: each column has its agent's own gamma and lambda (N,)
        gamma = torch.tensor([group["gamma"] for group in groups], device=device)[agent_ids[0]]
        gae_lambda = torch.tensor([group["gae_lambda"] for group in groups], device=device)[agent_ids[0]]
        advantages = compute_gae(rewards, raw_values[:-1], next_values, dones[1:], gamma, gae_lambda)
        returns = advantages + raw_values[:-1]
        explained_variance = 1 - advantages.var() / returns.var()
        if args.critic_n_step:
            returns = n_step_returns(rewards, next_values, dones[1:], gamma, args.critic_n_step)
        batch = {  # every entry (T or 1, N, ...): columns are dimension 1
            "obs": obs[:-1],
            "dones": dones[:-1],
            "lstm_state": lstm_states[:1],
            "actions": actions,
            "logprobs": logprobs,
            "means": means,
            "logstds": torch.cat([network.actor_logstd.detach() for network in agent])[agent_ids],
            "values": values[:-1],
            "advantages": advantages,
            "returns": returns,
        }
        agent.value_rms.update(raw_values[:-1])  # the released code takes in values beside the returns
        agent.value_rms.update(returns)  # from here on the critic's outputs are in the new units
        batches = [{key: value.chunk(A, 1)[k] for key, value in batch.items()} for k in range(A)]  # PBT: of each agent
        for network, own in zip(agent, batches):
            own["returns"] = network.value_rms.normalize(own["returns"])
            mean, std = harness.mean_and_std(own["advantages"])  # over all processes
            own["advantages"] = (own["advantages"] - mean) / (std + 1e-8)
        # obs_rms takes in observations after the update, so that the policy that learns is the policy that acted. Only
        # a new run's first come before it: obs_rms is the identity then, and the update would learn from raw ones
        normalise_first = iteration == 1 and not args.load
        if normalise_first:
            agent.obs_rms.update(obs[:-1])

        # ---------------------------------------------------------------- Update
        losses = defaultdict(list)  # name -> one number per gradient step
        epoch_kls = torch.zeros(A)  # PBT: of each agent
        for epoch, k in itertools.product(range(args.update_epochs), range(A)):  # PBT: only agent k has gradients
            network = agent[k]
            batch = batches[k]
            group = groups[k]
            own_args = SimpleNamespace(**vars(args))
            own_args.clip_coef = group["clip_coef"]
            own_args.ent_coef = group["ent_coef"]
            kls = []
            order = torch.randperm(batch["obs"].shape[1], device=device)
            for columns in order.tensor_split(args.num_minibatches):
                mb = {key: value[:, columns] for key, value in batch.items()}
                loss, kl, terms = minibatch_loss(network, mb, own_args)
                optimizer.zero_grad()
                loss.backward()
                harness.average_gradients(agent)
                terms["grad_norm"] = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
                with torch.no_grad():
                    network.actor_logstd.clamp_(max=math.log(MAX_STD))
                kls.append(kl)
                for name, value in terms.items():
                    losses[f"losses/{name}"].append(value)
            epoch_kl = harness.average(torch.stack(kls).mean()).item()
            epoch_kls[k] = epoch_kl
            if epoch or args.num_minibatches > 1:  # with one minibatch, the first KL is measured before any step
                group["lr"] = adapt_learning_rate(group["lr"], epoch_kl, group["kl_threshold"])
        if not normalise_first:
            agent.obs_rms.update(obs[:-1])
        losses = {name: torch.stack(numbers) for name, numbers in losses.items()}
        run.check_finite(iteration, {"observations": obs, "final_obs": final_obs, "rewards": rewards, **losses})
        obs[0] = obs[T]
        dones[0] = dones[T]
        lstm_states[0] = lstm_states[T]

        # ---------------------------------------------------------------- Log
        action_std = torch.cat([network.actor_logstd.detach().exp().mean(1) for network in agent])  # of each agent
        logs = {
            **{f"charts/{name}": value for name, value in info["metrics"].items()},
            **episodes.end_iteration(),
            "charts/reward_per_step": rewards.mean() / args.reward_scale,
            "charts/action_std": action_std[0],
            "charts/action_std_max": action_std.max(),
            "charts/learning_rate": sum(group["lr"] for group in groups) / A,
            **losses,
            "losses/approx_kl": epoch_kls,
            "losses/explained_variance": explained_variance,
            **harness.population_scalars(agent, episodes),  # PBT
            "pbt/judged_share": judged_share.mean(),
            "pbt/judged_share_min": judged_share.min(),
            "perf/rollout_s": update_start - rollout_start,
            "perf/update_s": time.perf_counter() - update_start,
        }
        for name in MUTATED:  # PBT
            logs[f"pbt/{name}_min"] = min(group[name] for group in groups)
            logs[f"pbt/{name}_max"] = max(group[name] for group in groups)
        if pairs:  # PBT
            logs["pbt/copies"] = ", ".join(f"{worse} <- {better}" for worse, better in pairs)
        run.checkpoint(iteration, global_step)
        run.log(iteration, global_step, logs)
        if run.stopping:
            break
    run.close()


if __name__ == "__main__":
    main()
