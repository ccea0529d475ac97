"""CPO: SAPG's leader and followers, with followers that stay close to the leader (arXiv 2603.01741, ICLR 2026).

The leader cannot use the data of followers that are far from it. So each follower also imitates the leader's actions,
weighted by its own advantages (AWAC, arXiv 2006.09359); optionally, a discriminator rewards it for being recognisable.
Read ppo.py and sapg.py, then `diff sapg.py cpo.py`: what CPO adds is marked `# CPO` with the paper's equation.

Who learns what from which columns, in every minibatch:

    the leader's own                    leader: PPO's loss
    each follower's own                 that follower: PPO's loss, with its entropy bonus and adversarial reward
    those of one follower, at random    leader: the off-policy loss (SAPG Eq. 3), with its own values
    the leader's, once per follower     that follower: imitation (CPO Eq. 10), with its own advantages

Imitation takes no gradient steps of its own, so CPO and SAPG take the same number.

Shape letters: T num_steps, N environments of this process, A num_agents (the paper's M), n = N / A, D observation, U
action, L latent, H lstm_size, C off-policy columns, M columns of a minibatch, P = (A - 1) n columns to imitate. Layout
is always time-major (T, N, ...). A column is all T steps of one environment, and a minibatch is a random set of
columns; a row is one step of one environment.

If you change a copy of this file, keep the names that docs/algorithms.md lists under "Names to keep".
"""

import math
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal, Optional, Tuple

import harness  # before torch: Isaac Gym must be imported first
from harness import hyperparameters

import torch
import torch.nn as nn
import tyro
from torch.distributions import Normal, kl_divergence

MAX_STD = 2.0  # of an action: the environment clamps actions, so that more and more noise would cost nothing
MAX_LOG_RATIO = 20.0  # bound on log(pi_new / pi_old), against overflow; no useful ratio comes near it
LEADER = 0  # SAPG 4.3: agent 0, which acts in the first n environments, also learns from the others' data
MAX_AWAC_WEIGHT = 100.0  # CPO: released code


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

    # SAPG
    num_agents: int = 6
    """A: number of policies, each with num_envs / num_agents environments (SAPG: 6)"""
    latent_dim: int = 32
    """L: size of the latent of each agent (SAPG 4.4: 32, on easy tasks 16)"""
    max_ent_coef: float = 0.0
    """entropy bonus of the last follower on top of ent_coef; linear from 0 at the leader (SAPG 4.5)"""
    off_policy_ratio: float = 1.0
    """followers' columns that the leader learns from, in multiples of its own n (SAPG Algorithm 1: 1); 0: none"""
    off_policy_coef: float = 1.0
    """weight of an off-policy row relative to an on-policy one; times off_policy_ratio it is lambda (SAPG Eq. 4)"""
    off_policy_lambda: float = 0.95
    """lambda of advantages and critic targets of other agents' data (ours); 0: one step (SAPG Eq. 6, EPO Eq. 8)"""
    off_policy_mu: bool = False
    """centre the off-policy clip window on mu (SAPG Eq. 3); off: on 1, as released"""
    aggregation: Literal["leader-follower", "one-follower", "symmetric"] = "one-follower"
    """who learns: the leader from all followers (SAPG 4.3) or a random one (CPO Eq. 2), or all from all (SAPG 4.2)"""
    diagnostics_interval: int = 50
    """iterations between measurements of the distances between agents (harness/diagnostics.py); 0: never"""

    # CPO
    awac_coef: float = 0.001
    """beta: weight of the followers' imitation of the leader (CPO Eq. 11; Tables 3-6: 0.0005 or 0.001); 0: none"""
    awac_temperature: float = 0.2
    """lambda_f: an imitated action weighs exp(A / lambda_f), at most 100 (CPO Eq. 10, Tables 3-6: 0.1 or 0.2)"""
    reverse_kl_coef: float = 0.0
    """lambda_r: weight of log(pi_follower / pi_leader) in a follower's advantage (CPO Eq. 25; Tables 3-6: 0)"""
    adversarial_coef: float = 0.0
    """lambda_adv: weight of log D, added to a follower's scaled reward: being recognised pays (CPO Eq. 12); 0: none"""
    discriminator_sizes: Tuple[int, ...] = (1024, 1024, 512, 512)
    """widths of the discriminator's hidden layers, ELU after each (CPO A.7.3)"""

    device: tyro.conf.Suppress[str] = field(init=False, default="cpu")
    num_iterations: tyro.conf.Suppress[int] = field(init=False, default=0)


def check_args(args):
    """Refuse what the population cannot work with."""
    # SAPG
    most = 1 if args.aggregation == "one-follower" else max(args.num_agents - 1, 1)  # other agents' data over one's own
    if args.off_policy_ratio > most:
        harness.refuse("--off-policy-ratio", args.off_policy_ratio, f"must be at most {most} with {args.aggregation}")
    own_columns = args.num_envs // args.num_agents // harness.WORLD_SIZE
    if args.off_policy_ratio and round(args.off_policy_ratio * own_columns) == 0:
        reason = f"rounds to nothing of an agent's {own_columns} environments; 0: no off-policy data"
        harness.refuse("--off-policy-ratio", args.off_policy_ratio, reason)
    # CPO
    if args.awac_temperature == 0:
        harness.refuse("--awac-temperature", args.awac_temperature, "must be above 0; --awac-coef 0: no imitation")


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


class Agent(nn.Module):
    """All agents' network: action distribution, and value in normalised units; one trunk unless --separate-critic."""

    leader = LEADER  # SAPG: whom evaluate.py plays

    def __init__(self, num_obs, num_actions, args):
        super().__init__()
        self.obs_rms = RunningMeanStd(num_obs)
        self.value_rms = RunningMeanStd()
        self.bf16 = args.bf16
        self.latents = nn.Parameter(torch.randn(args.num_agents, args.latent_dim))  # SAPG: one phi per agent
        width = num_obs + args.latent_dim
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
        # SAPG: one std per agent
        self.actor_logstd = nn.Parameter(torch.full((args.num_agents, num_actions), math.log(args.init_std)))

    def encode(self, obs, agent_ids, dones, lstm_state):
        """Normalise obs (T, N, D), append the agents' latents and, with --lstm, run the LSTM over the T steps.

        agent_ids (1, N): whose latent each column gets. dones (T, N): whether obs begins an episode; None: it never
        does. lstm_state (1, N, 2H): the LSTM's before the first step.
        Returns the MLPs' input (T, N, F) and the LSTM's state after each step (T, N, 2H).
        """
        x = self.obs_rms.normalize(obs)
        x = torch.cat([x, self.latents[agent_ids].expand(len(x), -1, -1)], -1)  # SAPG 4.4
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

    def get_value(self, obs, agent_ids, dones, lstm_state):
        """Normalised value (T, N)."""
        x, _ = self.encode(obs, agent_ids, dones, lstm_state)
        features = self.mlp(x) if self.critic_mlp is None else self.critic_mlp(x)
        return self.critic(features).squeeze(-1)

    def get_action_and_value(self, obs, agent_ids, dones, lstm_state, action=None):
        """Act, or evaluate `action` if it is given.

        Returns action (T, N, U), its log-probability (T, N), the Normal policy, normalised value (T, N), and the LSTM's
        states after each step (T, N, 2 H).
        """
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.bf16 and torch.is_grad_enabled()):
            x, lstm_states = self.encode(obs, agent_ids, dones, lstm_state)
            features = self.mlp(x)
            mean = self.actor(features).float()
            critic_features = features if self.critic_mlp is None else self.critic_mlp(x)
            value = self.critic(critic_features).squeeze(-1).float()
        policy = Normal(mean, self.actor_logstd[agent_ids].exp().expand_as(mean), validate_args=False)
        if action is None:
            action = mean + policy.stddev * torch.randn_like(mean)  # on a GPU policy.sample() waits for the device
        return action, policy.log_prob(action).sum(-1), policy, value, lstm_states


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
# SAPG: learning from other agents' data
# ----------------------------------------------------------------------------------------------------------------------
def sample_offpolicy_columns(agent_ids, num_agents, ratio, aggregation):
    """Which columns are learned from off-policy, and by whom: columns (C,) and their learners' ids (C,).

    agent_ids (N,): who acted in each column. Each learner gets ratio * n columns, drawn uniformly without replacement
    from those of all other agents (SAPG Algorithm 1; 4.3 leader-follower, 4.2 symmetric), or the leader alone from
    those of one follower, drawn uniformly too (CPO Eq. 2).
    """
    n = len(agent_ids) // num_agents
    count = round(ratio * n) if num_agents > 1 else 0
    columns = []
    learners = []
    for learner in range(num_agents) if aggregation == "symmetric" else [LEADER]:
        others = (agent_ids != learner).nonzero().squeeze(1)
        others = others[torch.randperm(len(others), device=agent_ids.device)]
        if aggregation == "one-follower":
            # Blocks are equal, so the owner of a random column is a random follower; all processes take rank 0's
            follower = harness.broadcast(agent_ids[others[:1]])
            others = others[agent_ids[others] == follower]
        columns.append(others[:count])
        learners.append(torch.full_like(columns[-1], learner))
    return torch.cat(columns), torch.cat(learners)


def offpolicy_advantages(rewards, values, next_values, ends, ratios, gamma, off_policy_lambda):
    """Advantages of data that another agent collected. All (T, C); next_values and ends as of compute_gae.

    With off_policy_lambda = 0 they look one step ahead, r + gamma V(s') - V(s), as do the papers' critic targets (SAPG
    Eq. 6, EPO Eq. 8) and the released code. Ours look further, as GAE does, but weigh each later action by
    min(1, pi_learner / pi_behaviour) (Retrace, arXiv 1606.02647), so that what followed actions which the learner would
    not have taken counts little. Unlike V-trace, they do not weigh the first action.
    ratios: pi_learner,old / pi_behaviour of each action.
    """
    deltas = rewards + gamma * next_values - values
    advantages = torch.zeros_like(rewards)
    tail = torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        advantages[t] = deltas[t] + gamma * tail * ~ends[t]
        tail = off_policy_lambda * ratios[t].clamp(max=1.0) * advantages[t]  # ours; 0 with off_policy_lambda 0
    return advantages


@torch.no_grad()
def offpolicy_batch(agent, batch, rewards, next_obs, terminated, ends, columns, learners, args):
    """Relabel columns (C,) of the on-policy batch for their learners (C,): a batch of the same fields, C columns.

    Kept: observation, action, behaviour log-probability, LSTM state before the window. Recomputed with the learner's
    latent: old policy, values, advantages and critic targets (SAPG Eq. 6, EPO Eq. 8), mu (SAPG Eq. 3, EPO Eq. 4).
    rewards (T, C): what the learners get for the actions. terminated, ends (T, N); next_obs (T, N, D): what each action
    led to, final_obs at an episode's end.
    """
    off = {key: value[:, columns] for key, value in batch.items()}
    ids = learners[None]
    off["agent_ids"] = ids
    _, old_logprob, old_policy, values, lstm_states = agent.get_action_and_value(
        off["obs"], ids, off["dones"], off["lstm_state"], off["actions"]
    )
    # (1, T C, D): all as columns of one step, each with the LSTM state that precedes it
    flat_next_obs = next_obs[:, columns].flatten(0, 1)[None]
    next_values = agent.get_value(flat_next_obs, ids.repeat(1, len(rewards)), None, lstm_states.flatten(0, 1)[None])
    next_values = agent.value_rms.denormalize(next_values.view(len(rewards), -1))
    next_values = torch.where(terminated[:, columns], 0.0, next_values)
    raw_values = agent.value_rms.denormalize(values)
    ratios = (old_logprob - off["logprobs"]).clamp(max=MAX_LOG_RATIO).exp()  # pi_learner,old / pi_behaviour
    off["means"] = old_policy.mean
    off["logstds"] = agent.actor_logstd[ids]
    off["values"] = values
    off["advantages"] = offpolicy_advantages(
        rewards, raw_values, next_values, ends[:, columns], ratios, args.gamma, args.off_policy_lambda
    )
    off["returns"] = raw_values + off["advantages"]
    if args.off_policy_mu:
        off["mu"] = ratios
    off["is_offpolicy"] = torch.ones_like(values)
    return off


# ----------------------------------------------------------------------------------------------------------------------
# CPO: followers near the leader, and apart from each other
# ----------------------------------------------------------------------------------------------------------------------
def awac_batch(agent, batch, agent_rewards, next_obs, terminated, ends, args):
    """Data of CPO Eq. 10: every follower imitates all of the leader's columns, P = (A - 1) n pairs of the two.

    agent_rewards (T, N, A): what each agent gets for each action; other arguments as in offpolicy_batch. Returns for
    each pair the leader's column (P,), the follower's id (P,) and the follower's own advantages (T, P). Columns are
    indices, not copies of observations, and working in chunks bounds the memory whatever A is.
    """
    device = agent_rewards.device
    n = agent_rewards.shape[1] // args.num_agents
    num_imitators = args.num_agents - 1 if args.awac_coef else 0
    columns = torch.arange(LEADER * n, (LEADER + 1) * n, device=device).repeat(num_imitators)
    followers = LEADER + 1 + torch.arange(num_imitators, device=device).repeat_interleave(n)
    chunk_size = max(n, agent_rewards.shape[1] // args.num_minibatches)
    advantages = [torch.zeros_like(agent_rewards[:, :0, LEADER])]  # for torch.cat, where nobody imitates
    for chunk, learners in zip(columns.split(chunk_size), followers.split(chunk_size)):
        if len(chunk):
            rewards = agent_rewards[:, chunk, learners]
            relabelled = offpolicy_batch(agent, batch, rewards, next_obs, terminated, ends, chunk, learners, args)
            advantages.append(relabelled["advantages"])
    return {"columns": columns, "followers": followers, "advantages": torch.cat(advantages, 1)}


def awac_minibatch(awac, batch, chosen):
    """A minibatch of imitation: the leader's observations and actions, and the followers that imitate them.

    chosen (P',): indices of awac_batch's P pairs. Entries are (T, P', ...) or (1, P', ...).
    """
    columns = awac["columns"][chosen]
    mb = {key: batch[key][:, columns] for key in ("obs", "dones", "lstm_state", "actions")}
    mb["agent_ids"] = awac["followers"][None, chosen]
    mb["advantages"] = awac["advantages"][:, chosen]
    return mb


class Discriminator(nn.Module):
    """D(y | s, a): which agent acted (CPO Eq. 12)."""

    def __init__(self, num_obs, num_actions, args):
        super().__init__()
        self.mlp = make_mlp(num_obs + num_actions, (*args.discriminator_sizes, args.num_agents))[:-1]  # ends linear

    def forward(self, obs, actions):
        """Log-probability of each agent (..., A); obs (..., D) normalised, actions (..., U)."""
        return self.mlp(torch.cat([obs, actions], -1)).log_softmax(-1)


def discriminator_step(discriminator, optimizer, obs, actions, agent_ids, num_minibatches):
    """One pass over a window that the discriminator has not seen.

    obs (T, N, D) normalised, actions (T, N, U), agent_ids (1, N). Returns, from before it learned: log D of each agent
    (T, N, A), and the share of rows it got right.
    """
    labels = agent_ids.expand(len(obs), -1)  # (T, N)
    with torch.no_grad():
        log_d = discriminator(obs, actions)
    accuracy = (log_d.argmax(-1) == labels).float().mean()
    for columns in torch.randperm(labels.shape[1], device=obs.device).tensor_split(num_minibatches):
        outputs = discriminator(obs[:, columns], actions[:, columns])
        loss = nn.functional.nll_loss(outputs.flatten(0, 1), labels[:, columns].flatten())
        optimizer.zero_grad()
        loss.backward()
        harness.average_gradients(discriminator)
        optimizer.step()
    return log_d, accuracy


def of_acting_agents(values, agent_ids):
    """Select from values (T, N, A) those of the agents that acted, agent_ids (1, N): (T, N)."""
    return values.gather(-1, agent_ids[..., None].expand(len(values), -1, -1)).squeeze(-1)


# ----------------------------------------------------------------------------------------------------------------------
# Loss
# ----------------------------------------------------------------------------------------------------------------------
def minibatch_loss(agent, mb, awac_mb, ent_coefs, args):
    """The loss of a minibatch. mb: M columns of the batch; its entries are (T, M, ...) or (1, M, ...).

    ent_coefs (A,): the entropy coefficient of each agent.
    awac_mb: what the followers imitate, see awac_minibatch.

    Returns the loss, the mean KL(old policy, new policy), and the loss's terms for the log, name -> mean over the rows.
    """
    _, newlogprob, policy, newvalue, _ = agent.get_action_and_value(
        mb["obs"], mb["agent_ids"], mb["dones"], mb["lstm_state"], mb["actions"]
    )
    advantages = mb["advantages"]
    if args.reverse_kl_coef:  # CPO Eq. 25, with the follower's gradient through the advantage, as released
        with torch.no_grad():
            leader_ids = torch.full_like(mb["agent_ids"], LEADER)
            leader_logprob = agent.get_action_and_value(
                mb["obs"], leader_ids, mb["dones"], mb["lstm_state"], mb["actions"]
            )[1]
        is_followers_own = (mb["agent_ids"] != LEADER) * (1 - mb["is_offpolicy"])
        advantages = advantages - args.reverse_kl_coef * is_followers_own * (newlogprob - leader_logprob)
    ratio = (newlogprob - mb["logprobs"]).clamp(max=MAX_LOG_RATIO).exp()  # (T, M)
    # SAPG Eq. 3: mu is 1 on-policy, which is PPO's clip, and off-policy too unless --off-policy-mu
    clipped_ratio = ratio.clamp(mb["mu"] * (1 - args.clip_coef), mb["mu"] * (1 + args.clip_coef))
    pg_loss = -torch.min(ratio * advantages, clipped_ratio * advantages)
    v_loss = 0.5 * (newvalue - mb["returns"]) ** 2
    if args.clip_vloss:
        clipped_value = mb["values"] + (newvalue - mb["values"]).clamp(-args.clip_coef, args.clip_coef)
        v_loss = torch.max(v_loss, 0.5 * (clipped_value - mb["returns"]) ** 2)
    entropy = policy.entropy().sum(-1)
    bounds_loss = (policy.mean.abs() - 1.1).clamp(min=0.0).square().sum(-1)
    ent_coef = ent_coefs[mb["agent_ids"]] * (1 - mb["is_offpolicy"])  # SAPG 4.5: part of the on-policy loss
    loss = pg_loss + args.vf_coef * v_loss - ent_coef * entropy + args.bounds_coef * bounds_loss
    weight = 1 + (args.off_policy_coef - 1) * mb["is_offpolicy"]  # SAPG Eq. 4, 9
    loss = (loss * weight / harness.average(weight.mean()).clamp(min=1e-8)).mean()
    awac_loss = torch.zeros_like(loss)
    if awac_mb["obs"].shape[1]:  # CPO Eq. 10, 11: a follower's log-likelihood of the leader's actions
        awac_logprob = agent.get_action_and_value(
            awac_mb["obs"], awac_mb["agent_ids"], awac_mb["dones"], awac_mb["lstm_state"], awac_mb["actions"]
        )[1]
        awac_weight = (awac_mb["advantages"] / args.awac_temperature).exp().clamp(max=MAX_AWAC_WEIGHT)
        total_weight = harness.average(weight.sum())  # of SAPG's rows: an imitated row counts as one of these
        awac_loss = -(awac_weight * awac_logprob).sum() / total_weight.clamp(min=1e-8)
    loss = loss + args.awac_coef * awac_loss

    with torch.no_grad():
        old_policy = Normal(mb["means"], mb["logstds"].exp(), validate_args=False)
        kl = kl_divergence(old_policy, policy).sum(-1).mean()
        terms = {
            "policy_loss": pg_loss.mean(),
            "value_loss": v_loss.mean(),
            "entropy": entropy.mean(),
            "bounds_loss": bounds_loss.mean(),
            "clipfrac": (clipped_ratio != ratio).float().mean(),
            "awac_loss": awac_loss.detach(),  # CPO Eq. 10, 11
        }
    return loss, kl, terms


def main(argv=None):
    args, saved = harness.parse_args(Args, hyperparameters.CPO, check_args, argv)
    harness.seed_everything(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    env = harness.make_env(args)
    device = args.device
    T = args.num_steps
    N = env.num_envs
    agent = Agent(env.num_obs, env.num_actions, args).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, fused=True)
    if args.adversarial_coef:  # CPO Eq. 12
        discriminator = Discriminator(env.num_obs, env.num_actions, args).to(device)
        discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=args.learning_rate, fused=True)
    # SAPG 4.3, 4.5: the agent of each environment, and the entropy coefficient of each agent
    agent_ids = torch.arange(args.num_agents, device=device).repeat_interleave(N // args.num_agents)[None]  # (1, N)
    ent_coefs = args.ent_coef + torch.linspace(0.0, args.max_ent_coef, args.num_agents, device=device)  # (A,)

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
    episodes = harness.EpisodeStatistics(N, args.num_agents, device, LEADER)
    # What --resume restores, beside the random generators: whatever else has a state belongs in one of these dicts.
    # Tensors are restored in place, so change them in place: obs[0] is a view of what the next rollout begins with
    learner = {"agent": agent, "optimizer": optimizer}  # the same in every process
    rollout = {"env": env, "episodes": episodes, "obs": obs[0], "dones": dones[0], "lstm_state": lstm_states[0]}
    if args.adversarial_coef:  # CPO Eq. 12
        learner["discriminator"] = discriminator
        learner["discriminator_optimizer"] = discriminator_optimizer
    run = harness.Run(args, learner, rollout, saved)
    global_step = run.global_step
    for iteration in range(run.iteration + 1, args.num_iterations + 1):
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
        # CPO Eq. 12: the followers get a reward on top; the leader does not, whoever acted
        agent_rewards = rewards[..., None].expand(T, N, args.num_agents)  # what each agent gets for each action
        adversarial = {}
        if args.adversarial_coef:
            log_d, accuracy = discriminator_step(
                discriminator,
                discriminator_optimizer,
                agent.obs_rms.normalize(obs[:-1]),
                actions,
                agent_ids,
                args.num_minibatches,
            )
            is_follower = torch.arange(args.num_agents, device=device) != LEADER
            agent_rewards = agent_rewards + args.adversarial_coef * log_d * is_follower
            adversarial["losses/discriminator_loss"] = -of_acting_agents(log_d, agent_ids).mean()
            adversarial["population/discriminator_accuracy"] = accuracy  # 1 / A: no better than chance
        onpolicy_rewards = of_acting_agents(agent_rewards, agent_ids)
        advantages = compute_gae(onpolicy_rewards, raw_values[:-1], next_values, dones[1:], args.gamma, args.gae_lambda)
        returns = advantages + raw_values[:-1]
        explained_variance = 1 - advantages.var() / returns.var()
        if args.critic_n_step:
            returns = n_step_returns(onpolicy_rewards, next_values, dones[1:], args.gamma, args.critic_n_step)
        batch = {  # every entry (T or 1, N, ...): columns are dimension 1
            "obs": obs[:-1],
            "dones": dones[:-1],
            "lstm_state": lstm_states[:1],
            "actions": actions,
            "logprobs": logprobs,
            "means": means,
            "logstds": agent.actor_logstd.detach()[agent_ids],
            "values": values[:-1],
            "advantages": advantages,
            "returns": returns,
            "agent_ids": agent_ids,  # SAPG 4.4
            "mu": torch.ones_like(returns),  # SAPG Eq. 3
            "is_offpolicy": torch.zeros_like(returns),  # SAPG Eq. 4
        }
        awac = awac_batch(agent, batch, agent_rewards, next_obs, terminated, dones[1:], args)  # CPO Eq. 10
        # SAPG Eq. 3, 6: append what is learned from other agents' data, by default by the leader from the followers'
        off_columns, off_ids = sample_offpolicy_columns(
            agent_ids[0], args.num_agents, args.off_policy_ratio, args.aggregation
        )
        if len(off_columns):
            off_rewards = agent_rewards[:, off_columns, off_ids]  # CPO Eq. 12
            off = offpolicy_batch(
                agent, batch, off_rewards, next_obs, terminated, dones[1:], off_columns, off_ids, args
            )
            batch = {key: torch.cat([batch[key], off[key]], 1) for key in batch}  # (T or 1, N + C, ...)
        agent.value_rms.update(raw_values[:-1])  # the released code takes in values beside the returns
        agent.value_rms.update(returns)  # from here on the critic's outputs are in the new units
        batch["returns"] = agent.value_rms.normalize(batch["returns"])
        all_advantages = torch.cat([batch["advantages"], awac["advantages"]], 1)  # CPO: one scale for all
        mean, std = harness.mean_and_std(all_advantages)  # over all processes
        awac["advantages"] = (awac["advantages"] - mean) / (std + 1e-8)
        batch["advantages"] = (batch["advantages"] - mean) / (std + 1e-8)
        diagnosis = harness.diagnose(iteration, agent, batch, args)  # SAPG; before the first gradient step
        # obs_rms takes in observations after the update, so that the policy that learns is the policy that acted. Only
        # a new run's first come before it: obs_rms is the identity then, and the update would learn from raw ones
        normalise_first = iteration == 1 and not args.load
        if normalise_first:
            agent.obs_rms.update(obs[:-1])

        # ---------------------------------------------------------------- Update
        losses = defaultdict(list)  # name -> one number per gradient step
        for epoch in range(args.update_epochs):
            kls = []
            order = torch.randperm(batch["obs"].shape[1], device=device)
            awac_order = torch.randperm(len(awac["columns"]), device=device)  # CPO Eq. 10
            awac_chunks = awac_order.tensor_split(args.num_minibatches)
            for columns, chosen in zip(order.tensor_split(args.num_minibatches), awac_chunks):
                mb = {key: value[:, columns] for key, value in batch.items()}
                awac_mb = awac_minibatch(awac, batch, chosen)  # CPO Eq. 10
                loss, kl, terms = minibatch_loss(agent, mb, awac_mb, ent_coefs, args)
                optimizer.zero_grad()
                loss.backward()
                harness.average_gradients(agent)
                terms["grad_norm"] = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
                with torch.no_grad():
                    agent.actor_logstd.clamp_(max=math.log(MAX_STD))
                kls.append(kl)
                for name, value in terms.items():
                    losses[f"losses/{name}"].append(value)
            epoch_kl = harness.average(torch.stack(kls).mean()).item()
            group = optimizer.param_groups[0]
            if epoch or args.num_minibatches > 1:  # with one minibatch, the first KL is measured before any step
                group["lr"] = adapt_learning_rate(group["lr"], epoch_kl, args.kl_threshold)
        if not normalise_first:
            agent.obs_rms.update(obs[:-1])
        losses = {name: torch.stack(numbers) for name, numbers in losses.items()}
        run.check_finite(iteration, {"observations": obs, "final_obs": final_obs, "rewards": rewards, **losses})
        obs[0] = obs[T]
        dones[0] = dones[T]
        lstm_states[0] = lstm_states[T]

        # ---------------------------------------------------------------- Log
        action_std = agent.actor_logstd.detach().exp().mean(1)  # of each agent
        logs = {
            **{f"charts/{name}": value for name, value in info["metrics"].items()},
            **episodes.end_iteration(),
            "charts/reward_per_step": rewards.mean() / args.reward_scale,
            "charts/action_std": action_std[0],
            "charts/action_std_max": action_std.max(),
            "charts/learning_rate": group["lr"],
            **losses,
            "losses/approx_kl": epoch_kl,
            "losses/explained_variance": explained_variance,
            **harness.population_scalars(agent, episodes),  # SAPG
            **adversarial,  # CPO
            **diagnosis,
            "perf/rollout_s": update_start - rollout_start,
            "perf/update_s": time.perf_counter() - update_start,
        }
        run.checkpoint(iteration, global_step)
        run.log(iteration, global_step, logs)
        if run.stopping:
            break
    run.close()


if __name__ == "__main__":
    main()
