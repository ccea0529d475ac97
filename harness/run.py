"""A run's folder: its log, checkpoints, resuming and stop signals; and statistics of finished episodes."""

import contextlib
import inspect
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from datetime import timedelta

import envs  # noqa: F401, before torch: Isaac Gym must be imported first

import numpy as np
import torch
import torch.nn as nn
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import SummaryWriter

from harness import distributed
from harness.checkpoints import lock_folder, random_state, save_checkpoint, seed_everything, set_random_state

EVALUATE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "evaluate.py")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)  # USR1: Slurm's warning before the time limit


class Run:
    """One training run: its folder, log, checkpoints and stop signals.

    state: name -> a tensor, restored in place, or an object with state_dict and load_state_dict; --resume restores
    nothing else. Where episodes begin anew tensors are not restored, nor, with another number of processes, modules
    without parameters. saved: the checkpoint to resume, or None. Attributes: iteration, global_step (environment
    steps), stopping (the number of the signal that ends the run, or 0). Of several processes rank 0 alone writes.
    """

    def __init__(self, args, state, saved=None):
        self.args, self.state, self.script = args, state, script_name(type(args))
        self.iteration = self.global_step = self.saved_iteration = self.stopping = self.signum = 0
        self.failing = set()  # what could not be written last time: "log", "checkpoint"
        networks = [value for value in state.values() if isinstance(value, nn.Module) and distributed.is_shared(value)]
        distributed.share([tensor for network in networks for tensor in network.state_dict().values()])
        groups = [group for value in state.values() for group in getattr(value, "param_groups", ())]
        trained = {id(parameter) for group in groups for parameter in group["params"]}
        if any(id(parameter) not in trained for network in networks for parameter in network.parameters()):
            print("state lacks the optimizer of some parameters: --resume would start it anew", file=sys.stderr)
        if distributed.RANK:
            seed_everything((args.seed + distributed.SEED_OFFSET) % 2**32)
        else:
            name = f"{args.env_id}__{args.exp_name or self.script}".replace(":", "-").replace("/", "-")
            folders = (os.path.abspath(f"runs/{name}__{args.seed}__{i}") for i in range(int(time.time()), sys.maxsize))
            self.folder = args.resume if saved else next(x for x in folders if not os.path.exists(x))  # the first free
            os.makedirs(self.folder, exist_ok=bool(saved))
            self.lock = lock_folder(self.folder)
        if saved:
            self.load(saved)
        if distributed.RANK == 0:
            if args.track:  # before the writer, which it watches
                import wandb

                options = dict(config=vars(args), sync_tensorboard=True)
                wandb.init(project=args.wandb_project_name, name=os.path.basename(self.folder), **options)
            self.writer = SummaryWriter(self.folder, purge_step=self.global_step + 1)  # what a resumed run logs again
            rows = "\n".join(f"|{key}|{value}|" for key, value in vars(args).items())
            self.writer.add_text("hyperparameters", f"|flag|value|\n|-|-|\n{rows}", self.global_step)
        self.saved_time = time.monotonic()
        self.clock = [(self.saved_time, self.global_step)]  # of the iterations of the last minute
        # nohup ignores SIGHUP
        self.handlers = {n: signal.signal(n, self.stop) for n in SIGNALS if signal.getsignal(n) != signal.SIG_IGN}

    def stop(self, signum, frame):
        """The first signal ends the run after this iteration, with a checkpoint; another, unless SIGHUP, at once."""
        if self.signum and signum != signal.SIGHUP:  # which a closing terminal may send twice
            sys.exit(128 + signum)
        self.signum, lost = self.signum or signum, self.iteration + 1 - self.saved_iteration
        with contextlib.suppress(OSError):  # the terminal may be gone
            if distributed.RANK == 0:  # print could be interrupted halfway, and may not be called again then
                os.write(2, f"stopping after this iteration (Ctrl-C again: now, iterations lost: {lost})\n".encode())

    def load(self, saved):
        """Go on from a checkpoint. One of another number of processes restores the learner; all episodes begin anew."""
        own, same = distributed.own_part(saved)
        exact = same and getattr(self.state["env"], "resumes_exactly", True)
        for name, value in self.state.items():
            loaded = (saved if distributed.is_shared(value) else own)["state"][name]
            if isinstance(value, torch.Tensor):
                value.copy_(loaded if exact else value)
            elif same or distributed.is_shared(value):
                if isinstance(value, torch.optim.Optimizer):
                    check_moments(value, loaded)
                value.load_state_dict(loaded)
            for tensor in getattr(value, "curriculum", ()):
                getattr(value, tensor).copy_(loaded[tensor])
        self.iteration = self.saved_iteration = saved["iteration"]
        self.global_step = saved["global_step"]
        if same or distributed.RANK == 0:
            set_random_state(own["random"])

    def check_finite(self, iteration, tensors):
        """Raises FloatingPointError with the name of the first tensor (name -> tensor) that is not finite."""
        if iteration == 1 and 0.0 < tensors["rewards"].abs().max() < 1e-3:  # the normalisers have floors
            print("rewards times --reward-scale are below 1e-3, too small to learn from: raise it", file=sys.stderr)
        extremes = torch.stack([x for tensor in tensors.values() for x in tensor.aminmax()])  # NaN where any is
        if not extremes.isfinite().all():
            first = next(name for name, tensor in tensors.items() if not tensor.isfinite().all())
            raise FloatingPointError(f"iteration {iteration}: {first} not finite; the last checkpoint is from before")

    def checkpoint(self, iteration, global_step):
        """Save every --checkpoint-interval minutes, at the end, and when a signal has come to any process."""
        minutes, interval = (time.monotonic() - self.saved_time) / 60.0, self.args.checkpoint_interval or math.inf
        signum = self.signum if iteration < self.args.num_iterations else 0  # at the end there is nothing to stop
        self.stopping, due = distributed.of_each(torch.tensor([signum, minutes >= interval])).amax(0).tolist()
        if not (due or self.stopping or iteration == self.args.num_iterations):
            return
        own = {name: value for name, value in self.state.items() if not distributed.is_shared(value)}
        others = distributed.gather(lambda: {"state": state_dicts(own), "random": random_state()})
        self.saved_time = time.monotonic()
        if distributed.RANK == 0:
            checkpoint = {
                "script": self.script, "args": vars(self.args), "iteration": iteration, "global_step": global_step,
                "state": state_dicts(self.state), "random": random_state(), "other_processes": others,
            }  # fmt: skip
            self.attempt("checkpoint", save_checkpoint, os.path.join(self.folder, "checkpoint.pt"), checkpoint)
            self.saved_iteration = self.saved_iteration if "checkpoint" in self.failing else iteration
            if self.args.capture_video and self.saved_iteration == iteration and not (self.stopping or self.signum):
                self.attempt("film", self.film, global_step)

    def film(self, step):
        """Let evaluate.py film the leader as it was saved, and show the film among TensorBoard's images."""
        path, no_cuda = os.path.join(self.folder, "leader.gif"), ["--no-cuda"] * (self.args.device == "cpu")
        if subprocess.run([sys.executable, EVALUATE, self.folder, "--video", path, *no_cuda]).returncode:
            raise OSError("evaluate.py failed")
        with open(path, "rb") as file:
            value = Summary.Value(tag="charts/leader", image=Summary.Image(encoded_image_string=file.read()))
        self.writer.file_writer.add_summary(Summary(value=[value]), step)

    def attempt(self, what, write, *inputs, **options):
        """Call write(*inputs, **options). What a full disk refuses is reported once, and training goes on."""
        try:
            write(*inputs, **options)
            self.failing.discard(what)
        except (OSError, RuntimeError) as error:  # RuntimeError: torch.save's
            with contextlib.suppress(OSError):  # the terminal may be gone, its file's disk full
                if what not in self.failing:
                    print(f"no {what}: {error}; training goes on", file=sys.stderr)
            self.failing.add(what)

    def log(self, iteration, global_step, values):
        """Log values, name -> number, tensor (its mean), list (a histogram), image (3, H, W) or text; print a line."""
        self.iteration, self.global_step, now = iteration, global_step, time.monotonic()
        self.clock = [(t, step) for t, step in self.clock if now - t < 60.0] or self.clock[-1:]
        speed = (global_step - self.clock[0][1]) / (now - self.clock[0][0])
        self.clock.append((now, global_step))
        shown = {k: v for k, v in values.items() if isinstance(v, (str, list)) or torch.is_tensor(v) and v.dim() == 3}
        numbers = {key: value for key, value in values.items() if key not in shown}
        means = [torch.as_tensor(value, device=self.args.device).float().mean() for value in numbers.values()]
        numbers = dict(zip(numbers, distributed.average(torch.stack(means).double()).tolist()))
        if distributed.RANK == 0:
            self.attempt("log", self.write, global_step, {**numbers, "charts/SPS": speed}, shown)
            self.attempt("line", print, self.describe(numbers, speed), flush=True)

    def write(self, step, numbers, shown):
        if "log" in self.failing:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                file.write(bytes(2**16))  # raises OSError while the disk is full
            self.writer = SummaryWriter(self.folder)  # the old one never recovers
        for key, value in shown.items():
            if isinstance(value, str):
                self.writer.add_text(key, value, step)
            elif isinstance(value, torch.Tensor):
                self.writer.add_image(key, value, step)
            elif all(map(math.isfinite, value)):  # else some agent has finished no episode yet
                self.writer.add_histogram(key, np.array(value, np.float64), step, bins=30)
        for key, value in numbers.items():
            if math.isfinite(value):  # else no episode has finished yet
                self.writer.add_scalar(key, value, step)
        self.writer.flush()

    def describe(self, numbers, speed):
        """The terminal's line, within 120 columns: return and objective of one agent, or objectives of a population."""
        objective, age = numbers["charts/leader_objective"], numbers["charts/leader_age"]
        ago = f" ({age:.0f} iteration{'s' * (age > 1)} ago)" if age else ""
        result = f"return {numbers['charts/leader_return']:9.2f} | objective {objective:7.2f}{ago}"
        if not math.isfinite(objective):
            result = f"no episode of agent 0 yet, reward per step {numbers['charts/reward_per_step']:.4f}"
        elif "population/objective_median" in numbers:
            n = numbers["charts/leader_episodes"]
            source = ago or f" ({n:.0f} episode{'s' * (n > 1)})"
            leader = "" if "pbt/lr_min" in numbers else f"leader {objective:.2f}{source}, "
            median, best = numbers["population/objective_median"], numbers["charts/best_agent_objective"]
            result = f"{leader}median {median:.2f}, best {best:.2f}"
        if "evolution/generation" in numbers:
            result += f" | generation {numbers['evolution/generation']:.0f}"
        steps = self.args.num_iterations * self.args.num_envs * self.args.num_steps
        left = timedelta(seconds=int((steps - self.global_step) / speed))
        return f"{self.global_step:>11,} steps | {result} | {speed:,.0f}/s | {left} left"

    def close(self):
        """End the run: status 128 + the signal that stopped it, 1 if the last checkpoint could not be written."""
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        distributed.finish()
        if distributed.RANK == 0:
            self.attempt("log", self.writer.close)
            self.lock.close()
            if "checkpoint" in self.failing:
                sys.exit("the last checkpoint could not be written")
            resume, evaluate = f"stopped; to resume: python {self.script}.py --resume", "finished: python evaluate.py"
            self.attempt("line", print, resume if self.stopping else evaluate, self.folder, flush=True)
        if self.stopping:
            sys.exit(128 + self.stopping)


class EpisodeStatistics(nn.Module):
    """Return, length and objective of the episodes that finish, per agent."""

    def __init__(self, num_envs, num_agents, device):
        super().__init__()
        self.register_buffer("counts", torch.zeros(num_envs, device=device))  # of this iteration's episodes
        self.register_buffer("sums", torch.zeros(3, num_envs, device=device))  # of return, length, objective
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
            "charts/episodes": counts.sum(), "charts/episodic_return": episodic_return,
            "charts/episodic_length": length, "charts/objective": objective,
            "charts/leader_return": self.means[0, 0], "charts/leader_objective": self.means[2, 0],
            "charts/leader_episodes": counts[0], "charts/leader_age": self.ages[0],
            "charts/best_agent_objective": self.means[2].nan_to_num(-math.inf).max(),
        }  # fmt: skip


def check_moments(optimizer, saved):
    """Raises ValueError where a moment has another shape than its parameter: torch's next step would crash."""
    for index, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        for moment in saved["state"].get(index, {}).values():
            if moment.dim() and moment.shape != parameter.shape:
                raise ValueError(f"optimizer's state {index} is {tuple(moment.shape)}, not {tuple(parameter.shape)}")


def state_dicts(state):
    return {n: value.clone() if isinstance(value, torch.Tensor) else value.state_dict() for n, value in state.items()}


def script_name(Args):
    """The file that defines Args, without folder and ending: a copy of epo.py has a name of its own."""
    return os.path.splitext(os.path.basename(inspect.getfile(Args)))[0]
