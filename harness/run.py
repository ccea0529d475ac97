"""A run's folder: its log, checkpoints, resuming, stop signals, and the dump of a non-finite update."""

import copy
import inspect
import io
import math
import os
import random
import signal
import sys
import time
from datetime import timedelta

import numpy as np
import torch
import torch.nn as nn
from torch.utils.tensorboard import SummaryWriter


class Run:
    """One training run. `state` names all that it is; what is missing there is lost on --resume.

    state: name -> an object with state_dict and load_state_dict, or a tensor, which is saved as it is and restored in
    place. Tensors must belong to the running episodes: where the environment cannot restore those, they are left alone.
    saved: the checkpoint to go on from, or None. Attributes: iteration, global_step (environment steps), stopping (the
    number of the signal that ends the run, or 0).
    """

    def __init__(self, args, state, saved=None):
        self.args, self.state, self.snapshot = args, state, None
        self.script = script_name(type(args))
        self.iteration = self.global_step = self.stopping = 0
        self.start_time = time.time()
        name = f"{args.env_id.replace(':', '-')}__{self.script}__{args.seed}__{int(self.start_time)}"
        self.folder = os.path.join("runs", name)
        if saved:
            self.folder = args.resume if os.path.isdir(args.resume) else os.path.dirname(args.resume) or "."
            self.load(saved)
        # what was logged after the checkpoint is logged again
        self.writer = SummaryWriter(self.folder, purge_step=self.global_step + 1 if saved else None)
        rows = "\n".join(f"|{key}|{value}|" for key, value in vars(args).items())
        self.writer.add_text("hyperparameters", f"|flag|value|\n|-|-|\n{rows}", self.global_step)
        self.signum = 0
        self.handlers = {number: signal.signal(number, self.stop) for number in (signal.SIGINT, signal.SIGTERM)}

    def load(self, saved):
        """Go on from a checkpoint."""
        exact = getattr(self.state["env"], "resumes_exactly", True)
        for name, value in self.state.items():
            if not isinstance(value, torch.Tensor):
                value.load_state_dict(saved["state"][name])
            elif exact:
                value.copy_(saved["state"][name])
        self.state["optimizer"].param_groups[0]["fused"] = self.args.device == "cuda"  # not where it was written
        self.iteration, self.global_step = saved["iteration"], saved["global_step"]
        self.start_time -= saved["seconds"]
        set_random_state(saved["random"])

    def stop(self, signum, frame):
        """SIGINT, SIGTERM: a checkpoint after the present iteration ends the run; a second signal ends it at once."""
        self.signum = signum
        self.restore_handlers()

    def restore_handlers(self):
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def remember(self):
        """Keep what an update begins with, for the dump of `check_finite`."""
        parts = {name: self.state[name].state_dict() for name in ("agent", "optimizer")}
        self.snapshot = {**copy.deepcopy(parts), "random": random_state()}

    def check_finite(self, iteration, tensors, **dump):
        """End the run where a tensor (name -> tensor) is not finite; nan_dump.pt holds `dump` and `remember`'s."""
        broken = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
        if broken:
            path = os.path.join(self.folder, "nan_dump.pt")
            torch.save({"args": vars(self.args), "iteration": iteration, **dump, **self.snapshot}, path)
            found = f"iteration {iteration}: {', '.join(broken)} not finite"
            print(f"{found}; {path} has the batch and what the update began with", file=sys.stderr)
            self.restore_handlers()
            sys.exit(1)

    def log(self, iteration, global_step, values):
        """Write name -> number (or tensor, of which the mean), image (3, H, W) or text; and a line to the terminal."""
        self.iteration, self.global_step = iteration, global_step
        seconds = time.time() - self.start_time
        values = {**values, "charts/SPS": global_step / seconds}
        images = {key: value for key, value in values.items() if isinstance(value, torch.Tensor) and value.dim() == 3}
        texts = {key: value for key, value in values.items() if isinstance(value, str)}
        numbers = {
            key: torch.as_tensor(value).float().mean().item()
            for key, value in values.items()
            if key not in images and key not in texts
        }
        try:
            for key, value in texts.items():
                self.writer.add_text(key, value, global_step)
            for key, value in images.items():
                self.writer.add_image(key, value, global_step)
            for key, value in numbers.items():
                if math.isfinite(value):  # no episode has finished yet: nothing to say
                    self.writer.add_scalar(key, value, global_step)
            self.writer.flush()
        except OSError as error:
            print(f"no log: {error}; training goes on", file=sys.stderr)
        result = f"reward per step {numbers['charts/reward_per_step']:.4f}"
        if math.isfinite(numbers["charts/leader_return"]):
            objective = numbers["charts/leader_objective"]
            result = f"return {numbers['charts/leader_return']:9.2f} | objective {objective:7.2f}"
        left = timedelta(seconds=int(seconds / iteration * (self.args.num_iterations - iteration)))
        print(
            f"{global_step:>13,} steps {iteration / self.args.num_iterations:6.1%} | {result} | "
            f"{numbers['charts/SPS']:>7,.0f} SPS | {left} left",
            flush=True,
        )

    def checkpoint(self, iteration, global_step):
        """Save where one is due: every --checkpoint-interval iterations, at the end, and when a signal has come."""
        self.stopping = self.signum  # a signal that comes after this waits for the next iteration
        interval = self.args.checkpoint_interval or math.inf
        if self.stopping or iteration == self.args.num_iterations or iteration % interval == 0:
            state = {
                name: value.clone() if isinstance(value, torch.Tensor) else value.state_dict()
                for name, value in self.state.items()
            }
            save_checkpoint(self.folder, {
                "script": self.script, "args": vars(self.args), "iteration": iteration, "global_step": global_step,
                "seconds": time.time() - self.start_time, "state": state, "random": random_state(),
            })  # fmt: skip

    def close(self):
        """End the run; the exit status is 128 + the number of the signal that stopped it."""
        self.restore_handlers()
        self.writer.close()
        if self.stopping:
            print(f"stopped; to go on: --resume {self.folder}", flush=True)
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
        per_agent = self.sums.view(4, self.means.shape[1], -1).sum(2)
        self.means = torch.where(per_agent[0] > 0, per_agent[1:] / per_agent[0], self.means)
        count, *totals = self.sums.sum(1)
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


def save_checkpoint(folder, checkpoint):
    """Write folder/checkpoint.pt, whole or not at all, and keep the one before as checkpoint_previous.pt.

    A disk that is full or may not be written is no reason to end a run: it is reported, and the old files stay.
    """
    path, buffer = os.path.join(folder, "checkpoint.pt"), io.BytesIO()
    torch.save(checkpoint, buffer)
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


def load_checkpoint(path, script=None):
    """The newest readable checkpoint of a run's folder, or the one in a file; plain tensors and numbers, nothing else.

    script: which script must have written it, for --resume; None: any, for evaluate.py. Ends with exit status 2 and one
    line where there is none.
    """
    flag = "--resume" if script else "run"
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
        if not isinstance(saved, dict) or not {"script", "args", "state"} <= set(saved):
            refuse(flag, path, "must be a checkpoint of a training script")
        if script not in (None, saved["script"]):
            refuse(flag, path, f"must be a checkpoint that {script}.py wrote, {saved['script']}.py wrote this one")
        if each != paths[0]:
            print(f"going on from {each}: {reason}", file=sys.stderr)
        return saved
    refuse(flag, path, reason)


def refuse(flag, value, reason):
    """End with exit status 2 and one line that names the flag, its value and what would be valid."""
    print(f"{flag} {value}: {reason}", file=sys.stderr)
    sys.exit(2)


def script_name(Args):
    """The file that defines Args, without folder and ending: a copy of epo.py has a name of its own."""
    return os.path.splitext(os.path.basename(inspect.getfile(Args)))[0]


def random_state():
    """The state of all global random generators, as plain tensors and numbers."""
    name, keys, *rest = np.random.get_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "python": random.getstate(), "numpy": [name, keys.tolist(), *rest], "torch": torch.get_rng_state(), "cuda": cuda
    }


def set_random_state(state):
    random.setstate(state["python"])
    np.random.set_state(tuple(state["numpy"]))
    torch.set_rng_state(state["torch"])
    torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])  # there may have been more GPUs
