"""A run's folder: its log, checkpoints, resuming, stop signals, and the dump of a non-finite update."""

import copy
import inspect
import itertools
import math
import os
import signal
import sys
import tempfile
import time
from datetime import timedelta

from envs import uncaught  # before torch: Isaac Gym must be imported first
from envs.base import check_tensors

import numpy as np
import torch
import torch.nn as nn
from torch.utils.tensorboard import SummaryWriter

from harness import checkpoints, distributed
from harness.checkpoints import load_checkpoint, random_state, refuse, seed_everything, set_random_state


class Run:
    """One training run. `state` names all that it is; what is missing there is lost on --resume.

    In several processes, all call the same methods and rank 0 alone writes. All begin with its network; their random
    numbers differ from here on.

    state: name -> an object with state_dict and load_state_dict, or a tensor, which is saved as it is and restored in
    place. Tensors must belong to the running episodes: where the environment cannot restore those, they are left alone.
    saved: the checkpoint to go on from, or None. Attributes: iteration, global_step (environment steps), stopping (the
    number of the signal that ends the run, or 0).
    """

    def __init__(self, args, state, saved=None):
        self.args, self.state, self.snapshot = args, state, None
        self.script = script_name(type(args))
        self.iteration = self.global_step = self.stopping = self.signum = 0
        self.saving, self.failing = False, set()  # what could not be written last time: "log", "checkpoint"
        self.start_time, self.folder = time.monotonic(), ""
        networks = [value for value in state.values() if is_shared(value) and isinstance(value, nn.Module)]
        distributed.share([tensor for network in networks for tensor in network.state_dict().values()])
        if distributed.RANK:
            seed_everything((args.seed + distributed.SEED_OFFSET) % 2**32)
        with distributed.Rank0First():
            if distributed.RANK == 0:
                saved = self.open_folder(saved)
        self.folder, saved = distributed.from_rank_0((self.folder, saved))
        distributed.run_folder = self.folder
        if saved and distributed.RANK:
            self.load(saved)
        signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # nohup
            signals.remove(signal.SIGHUP)
        self.handlers = {number: signal.signal(number, self.stop) for number in signals}

    def open_folder(self, saved):
        """A new folder, or the one to go on in, whose checkpoint is loaded and returned; its lock and its log."""
        args = self.args
        try:  # what cannot be saved and loaded is refused now
            first = checkpoints.decode(self.encode(0, 0, [{}] * (distributed.WORLD_SIZE - 1)))
            if getattr(self.state["env"], "resumes_exactly", True):
                self.load(first)
        except Exception as error:
            if uncaught.raised_in(error, args.env_id):
                raise
            message = error if isinstance(error, ValueError) else repr(error)
            refuse("--env-id", args.env_id, f"cannot be saved and loaded: {message}")
        if saved:
            self.folder, self.lock = checkpoints.run_folder(args.resume), saved["lock"]
            # again: nobody else can write it any more
            saved = load_checkpoint(args.resume, self.script, self.load, locked=True)
        try:
            if not saved:
                self.folder = make_folder(f"{args.env_id}__{self.script}__{args.seed}")
                self.lock = checkpoints.lock_folder(self.folder)
            # what was logged after the checkpoint is logged again
            self.writer = SummaryWriter(self.folder, purge_step=self.global_step + 1 if saved else None)
        except OSError as error:
            refuse("runs", "cannot be written", error)
        rows = "\n".join(f"|{key}|{value}|" for key, value in vars(args).items())
        self.writer.add_text("hyperparameters", f"|flag|value|\n|-|-|\n{rows}", self.global_step)
        return saved

    def load(self, saved):
        """Go on from a checkpoint. Raises an exception if it does not fit, and may then be called with another one."""
        parts = [saved, *saved["other_processes"]]
        same = len(parts) == distributed.WORLD_SIZE
        own = parts[distributed.RANK] if same else saved
        exact = same and getattr(self.state["env"], "resumes_exactly", True)
        for name, value in self.state.items():
            if name not in saved["state"]:
                raise ValueError(f"has no {name}, which the script has in its state")
            loaded = (saved if is_shared(value) else own)["state"][name]
            if isinstance(value, torch.Tensor):
                if same:
                    check_tensors({name: loaded}, {name: value})
                value.copy_(loaded if exact else value)
                continue
            if not same and not is_shared(value):  # all episodes begin anew, a curriculum goes on
                for tensor in getattr(value, "curriculum", ()):
                    getattr(value, tensor).copy_(loaded[tensor])
                continue
            if isinstance(value, nn.Module):
                check_tensors(loaded, value.state_dict())
            value.load_state_dict(loaded)
            if isinstance(value, torch.optim.Optimizer):
                try_step(value)
        self.iteration, self.global_step = saved["iteration"], saved["global_step"]
        self.start_time = time.monotonic() - saved["seconds"]
        if same or distributed.RANK == 0:
            set_random_state(own["random"])
        if not same and distributed.RANK == 0:
            there = f"the checkpoint has the environments of {len(parts)} processes, here are {distributed.WORLD_SIZE}"
            print(f"{there}: all episodes begin anew", flush=True)

    def stop(self, signum, frame):
        """A checkpoint after the present iteration ends the run; a second signal ends it at once, or after writing."""
        if self.signum not in (0, signal.SIGPIPE) and not self.saving:
            sys.exit(128 + signum)
        self.signum = signum

    def restore_handlers(self):
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def remember(self):
        """Keep what an update begins with, for the dump of `check_finite`."""
        parts = {name: self.state[name].state_dict() for name in ("agent", "optimizer")}
        self.snapshot = {**copy.deepcopy(parts), "random": random_state()}

    def check_finite(self, iteration, tensors, **dump):
        """End the run where a tensor (name -> tensor) is not finite; nan_dump.pt holds `dump` and `remember`'s.

        Of several processes, the one with the most such numbers writes and reports it: there it began.
        """
        extremes = torch.stack([x for tensor in tensors.values() for x in tensor.aminmax()])  # NaN where any is
        if distributed.of_each(extremes.isfinite().all().float().cpu()).all():  # the same in all processes
            return
        counts = torch.stack([(~tensor.isfinite()).sum() for tensor in tensors.values()])
        counts = distributed.of_each(counts.cpu())  # (W, names)
        if counts.sum(1).argmax() == distributed.RANK:
            broken = [name for name, count in zip(tensors, counts[distributed.RANK]) if count]
            path = os.path.join(self.folder, "nan_dump.pt")
            outcome = f"{path} has the batch and what the update began with"
            try:
                torch.save({"args": vars(self.args), "iteration": iteration, **dump, **self.snapshot}, path)
            except (OSError, RuntimeError) as error:
                outcome = f"no {path}: {str(error).splitlines()[0]}"
            print(f"iteration {iteration}: {', '.join(broken)} not finite; {outcome}", file=sys.stderr, flush=True)
        self.restore_handlers()
        if distributed.RANK == 0:
            self.lock.close()
        distributed.finish()
        sys.exit(1)

    def log(self, iteration, global_step, values):
        """Log values, name -> number, tensor (its mean), list (a histogram), image (3, H, W) or text; print a line.

        Numbers are means over the processes, the others are rank 0's.
        """
        self.iteration, self.global_step = iteration, global_step
        seconds = time.monotonic() - self.start_time
        values = {**values, "charts/SPS": global_step / seconds}
        numbers = {
            key: torch.as_tensor(value).float().mean().item()
            for key, value in values.items()
            if not isinstance(value, (str, list)) and not (isinstance(value, torch.Tensor) and value.dim() == 3)
        }
        means = distributed.average(torch.tensor(list(numbers.values()), dtype=torch.float64))
        if distributed.RANK:
            return
        numbers = dict(zip(numbers, means.tolist()))
        try:
            if "log" in self.failing:
                with tempfile.TemporaryFile(dir=self.folder) as file:
                    file.write(bytes(2**16))  # raises OSError while the disk is full
                self.writer = SummaryWriter(self.folder)  # the old one never recovers
            for key, value in values.items():
                if isinstance(value, str):
                    self.writer.add_text(key, value, global_step)
                elif isinstance(value, list):
                    if value and all(abs(x) < 1e12 for x in value):  # beyond it bins would be too narrow for float64
                        self.writer.add_histogram(key, np.array(value, np.float64), global_step, bins=30)
                elif key not in numbers:
                    self.writer.add_image(key, value, global_step)
                elif math.isfinite(numbers[key]):  # no episode has finished yet: nothing to say
                    self.writer.add_scalar(key, numbers[key], global_step)
            self.writer.flush()
            self.note("log")
        except OSError as error:
            self.note("log", error)
        result = f"reward per step {numbers['charts/reward_per_step']:.4f}"
        objective = numbers["charts/leader_objective"]
        if math.isfinite(numbers["charts/leader_return"] + objective):
            result = f"return {numbers['charts/leader_return']:9.2f} | objective {objective:7.2f}"
        left = min(seconds / iteration * (self.args.num_iterations - iteration), 1e10)  # 317 years
        try:
            print(
                f"{global_step:>13,} steps {iteration / self.args.num_iterations:6.1%} | {result} | "
                f"{numbers['charts/SPS']:>7,.0f} SPS | {timedelta(seconds=int(left))} left",
                flush=True,
            )
            self.note("output")
        except BrokenPipeError:  # `epo.py | head` has read enough
            uncaught.discard(sys.stdout)
            self.signum = signal.SIGPIPE
        except OSError as error:  # `epo.py > log` on a full disk
            self.note("output", error)

    def note(self, what, error=None):
        """Say once that `what` cannot be written, and once that it can be again."""
        if bool(error) != (what in self.failing):
            uncaught.warn(f"no {what}: {error}; training goes on" if error else f"the {what} is written again")
            self.failing ^= {what}

    def encode(self, iteration, global_step, others=()):
        """The bytes of a checkpoint. Raises ValueError where it could not be loaded again.

        others: what the other processes have of their own, state and random state, by rank.
        """
        return checkpoints.encode({
            "script": self.script, "args": vars(self.args), "iteration": iteration, "global_step": global_step,
            "seconds": time.monotonic() - self.start_time, "state": state_dicts(self.state), "random": random_state(),
            "other_processes": list(others),
        })  # fmt: skip

    def checkpoint(self, iteration, global_step):
        """Save where one is due: every --checkpoint-interval iterations, at the end, and when a signal has come.

        A disk that is full or may not be written is no reason to end a run: it is reported, and the old files stay.
        """
        # a signal to any process; one that comes after this waits for the next iteration
        self.stopping = int(distributed.of_each(torch.tensor(self.signum)).max())
        interval = self.args.checkpoint_interval or math.inf
        if self.stopping or iteration == self.args.num_iterations or iteration % interval == 0:
            self.saving = True
            own = {name: value for name, value in self.state.items() if distributed.RANK and not is_shared(value)}
            others = distributed.gather({"state": state_dicts(own), "random": random_state()})
            if distributed.RANK == 0:
                try:
                    checkpoints.save_checkpoint(self.folder, self.encode(iteration, global_step, others))
                    self.note("checkpoint")
                except (OSError, ValueError) as error:
                    self.note("checkpoint", error)
            self.saving = False

    def close(self):
        """End the run; the exit status is 128 + the number of the signal that stopped it."""
        if distributed.RANK == 0:
            try:
                self.writer.close()
            except OSError as error:
                self.note("log", error)
            self.lock.close()
            if "output" in self.failing:
                uncaught.discard(sys.stdout)
            if self.stopping not in (0, signal.SIGPIPE):
                print(f"stopped; to go on: --resume {self.folder}", flush=True)
        distributed.finish()
        self.restore_handlers()
        if self.stopping:
            sys.exit(128 + self.stopping)


class EpisodeStatistics(nn.Module):
    """Return, length and objective of the episodes that finish, per agent."""

    def __init__(self, num_envs, num_agents, device):
        super().__init__()
        self.register_buffer("sums", torch.zeros(4, num_envs, device=device))  # count, return, length, objective
        # per agent, of the latest iteration in which an episode of it finished
        self.register_buffer("means", torch.full((3, num_agents), math.nan, device=device))

    def record(self, episode):
        """episode: `info["episode"]` of a step, done (N,) and return, length, objective (N,)."""
        values = [torch.ones_like(episode["return"])] + [episode[key] for key in ("return", "length", "objective")]
        self.sums += torch.where(episode["done"], torch.stack(values), 0.0)

    def end_iteration(self):
        """Scalars of the episodes that finished since the last call; where an agent had none its last value stands."""
        per_agent = distributed.total(self.sums.view(4, self.means.shape[1], -1).sum(2))
        self.means = torch.where(per_agent[0] > 0, per_agent[1:] / per_agent[0], self.means)
        count, *totals = distributed.total(self.sums.sum(1))
        self.sums.zero_()
        return {
            "charts/episodes": count,
            "charts/episodic_return": totals[0] / count,
            "charts/episodic_length": totals[1] / count,
            "charts/objective": totals[2] / count,
            "charts/leader_return": self.means[0, 0],
            "charts/leader_objective": self.means[2, 0],
            "charts/best_agent_objective": self.means[2].nan_to_num(-math.inf).max(),
        }


def is_shared(value):
    """Whether all processes hold the same: networks, optimizers, lineage; not what belongs to environments."""
    of_environments = isinstance(value, torch.Tensor) or hasattr(value, "reset")
    return not of_environments and (not isinstance(value, nn.Module) or any(True for _ in value.parameters()))


def state_dicts(state):
    """What a checkpoint holds of `state` (name -> tensor or object), name -> copy or state_dict."""
    return {n: value.clone() if isinstance(value, torch.Tensor) else value.state_dict() for n, value in state.items()}


def make_folder(name):
    """A new folder runs/{name}__{unix time}, with a suffix where another run was faster."""
    path = folder = os.path.join("runs", f"{name.replace(':', '-').replace('/', '-')}__{int(time.time())}")
    for i in itertools.count(2):
        try:
            os.makedirs(folder)
            return folder
        except FileExistsError:
            folder = f"{path}_{i}"


def try_step(optimizer):
    """One step of a copy, with gradient 0: raises an exception where the state does not fit the parameters."""
    trial = copy.deepcopy(optimizer)
    for parameter in itertools.chain(*(group["params"] for group in trial.param_groups)):
        parameter.grad = torch.zeros_like(parameter)
    trial.step()
    if not all(parameter.isfinite().all() for group in trial.param_groups for parameter in group["params"]):
        raise ValueError("the optimizer's state is not finite")


def script_name(Args):
    """The file that defines Args, without folder and ending: a copy of epo.py has a name of its own."""
    return os.path.splitext(os.path.basename(inspect.getfile(Args)))[0]
