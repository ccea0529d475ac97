"""One training run: its folder, checkpoints, log, stop signals and resuming, for one process or several."""

import inspect
import math
import os
import shlex
import sys
import time
from typing import Any, Dict, Optional

import envs  # noqa: F401, before torch: Isaac Gym must be imported first
from envs.check import find_unreadable
from envs.terminal import say

import torch

from harness import distributed
from harness.checkpoints import VERSION, load_network, restore, save_checkpoint, state_of
from harness.environments import OBJECTIVE
from harness.film import film_agent
from harness.folder import create_folder, lock_folder
from harness.log import Log
from harness.seeding import random_state, seed_everything, set_random_state
from harness.signals import StopSignals


# Entries of `rollout` that only an environment which goes on with its episodes can use after a resume
OF_RUNNING_EPISODES = ("obs", "dones", "lstm_state")


class Run:
    """One training run; of several processes rank 0 alone writes.

    Attributes: iteration and global_step (environment steps) so far, stopping: the number of the signal that ends the
    run, or 0. The run's folder, its lock and the logger exist in rank 0 only.
    """

    def __init__(
        self, args: Any, learner: Dict[str, Any], rollout: Dict[str, Any], saved: Optional[Dict[str, Any]] = None
    ):
        """Start a run, with the network of --load if it is given, or resume the checkpoint `saved`.

        learner: name -> what is the same in all processes: networks, optimizers, lineage.
        rollout: name -> what belongs to this process's environments; "env" is one of them.
        The values are tensors, which are restored in place, or objects with state_dict and load_state_dict. --resume
        restores nothing else.
        """
        self.args = args
        self.learner = learner
        self.rollout = rollout
        self.script = script_name(type(args))
        self.iteration = 0
        self.global_step = 0
        self.stopping = 0
        self.unsaved = False  # whether the last checkpoint could not be written
        if args.load and not saved:
            load_network(learner["agent"], args.load)
        for part in learner.values():
            if isinstance(part, torch.nn.Module):
                distributed.share(list(part.state_dict().values()))
        if not saved:
            unreadable = find_unreadable([vars(args), state_of(learner), state_of(rollout)])
            if unreadable:
                sys.exit(f"this run's checkpoints could not be read again, because they would hold a {unreadable}")
        if distributed.RANK:
            seed_everything((args.seed + distributed.SEED_OFFSET) % 2**32)
        else:
            self.folder = args.resume if saved else create_folder(args, self.script)
            self.lock = lock_folder(self.folder)
        if saved:
            self.load(saved)
        if distributed.RANK == 0:
            self.logger = Log(self.folder, args, self.global_step, saved["wandb_id"] if saved else None)
        self.saved_time = time.monotonic()
        self.signals = StopSignals(quiet=distributed.RANK > 0)

    def load(self, saved: Dict[str, Any]) -> None:
        """Go on from a checkpoint. With another number of processes only the learner does: all episodes begin anew."""
        self.iteration = saved["iteration"]
        self.global_step = saved["global_step"]
        for name, part in self.learner.items():
            restore(part, saved["learner"][name])
        processes = len(saved["rollout"])
        if processes == distributed.WORLD_SIZE:
            resumes_exactly = getattr(self.rollout["env"], "resumes_exactly", True)
            if not resumes_exactly and distributed.RANK == 0:
                say(f"{self.args.env_id} cannot resume its episodes: all begin anew", file=sys.stderr)
            for name, part in self.rollout.items():
                if resumes_exactly or name not in OF_RUNNING_EPISODES:
                    restore(part, saved["rollout"][distributed.RANK][name])
            set_random_state(saved["random"][distributed.RANK])
        else:
            if distributed.RANK == 0:
                number = f"{processes} processes, not {distributed.WORLD_SIZE}"
                say(f"the checkpoint is of {number}: all episodes begin anew")
            env = self.rollout["env"]
            for name in getattr(env, "curriculum", ()):
                restore(getattr(env, name), saved["rollout"][0]["env"][name])
            if distributed.RANK == 0:  # the others have to differ
                set_random_state(saved["random"][0])

    def check_finite(self, iteration: int, tensors: Dict[str, torch.Tensor]) -> None:
        """Raises FloatingPointError with the name of the first tensor (name -> tensor) that is not finite.

        They are first written to nan_dump.pt in the run's folder, those of rank 0 alone.
        Tensors may be empty. In the first iteration it also warns of rewards that are too small to learn from.
        """
        if iteration == 1 and distributed.RANK == 0:
            warn_of_small_rewards(tensors["rewards"])
        not_empty = [tensor for tensor in tensors.values() if tensor.numel()]
        extremes = torch.stack([x for tensor in not_empty for x in tensor.aminmax()])  # NaN where any is
        if not extremes.isfinite().all():
            first = next(name for name, tensor in tensors.items() if not tensor.isfinite().all())
            try:
                if distributed.RANK == 0:
                    torch.save(tensors, os.path.join(self.folder, "nan_dump.pt"))
            finally:  # a full disk must not hide what went wrong
                raise FloatingPointError(
                    f"iteration {iteration}: {first} not finite; the last checkpoint, if there is one, is from before"
                )

    def checkpoint(self, iteration: int, global_step: int) -> None:
        """Save every --checkpoint-interval minutes, at the end, and when a signal has come to any process."""
        minutes = (time.monotonic() - self.saved_time) / 60.0
        due = minutes >= (self.args.checkpoint_interval or math.inf)
        last = iteration == self.args.num_iterations
        signum = 0 if last else self.signals.received  # at the end there is nothing to stop
        # All processes stop, or save, as soon as one of them has to
        self.stopping, due = distributed.of_each(torch.tensor([signum, due])).amax(0).tolist()
        if not (due or self.stopping or last):
            return
        rollouts = distributed.gather({"rollout": state_of(self.rollout), "random": random_state()})
        self.saved_time = time.monotonic()
        if distributed.RANK == 0:
            self.save(
                {
                    "version": VERSION,
                    "script": self.script,
                    "args": vars(self.args),
                    "iteration": iteration,
                    "global_step": global_step,
                    "wandb_id": self.logger.wandb_id,
                    "learner": state_of(self.learner),
                    "rollout": [process["rollout"] for process in rollouts],
                    "random": [process["random"] for process in rollouts],
                }
            )
            if self.args.capture_video and not (self.unsaved or self.stopping):
                self.film(global_step)

    def save(self, checkpoint: Dict[str, Any]) -> None:
        """Write the checkpoint. A full disk does not end a long run, whose next checkpoint may fit again."""
        try:
            save_checkpoint(os.path.join(self.folder, "checkpoint.pt"), checkpoint)
            self.unsaved = False
        except (OSError, RuntimeError) as error:  # RuntimeError: torch.save's
            say(f"no checkpoint: {error}; training goes on", file=sys.stderr)
            self.unsaved = True

    def film(self, global_step: int) -> None:
        """Film the policy of the checkpoint: the leader's, if there is one."""
        # Where nobody leads: the best in training, because evaluations of all would hold the training up
        objectives = self.rollout["episodes"].means[OBJECTIVE].nan_to_num(-math.inf)
        agent = getattr(self.learner["agent"], "leader", objectives.argmax().item())
        film = film_agent(self.folder, agent, self.args.device)
        if film:
            self.logger.write_film(film, global_step)

    def log(self, iteration: int, global_step: int, values: Dict[str, Any]) -> None:
        """Log values, name -> number, tensor (its mean), list (a histogram), image (3, H, W) or text; print a line.

        Numbers are averaged over the processes that have one, not NaN.
        """
        self.iteration = iteration
        self.global_step = global_step
        others = {}
        means = {}
        for key, value in values.items():
            if isinstance(value, (str, list)) or (isinstance(value, torch.Tensor) and value.dim() == 3):
                others[key] = value
            else:
                means[key] = torch.as_tensor(value, device=self.args.device).float().mean()
        numbers = distributed.of_each(torch.stack(list(means.values())).double()).nanmean(0)
        means = dict(zip(means, numbers.tolist()))
        if distributed.RANK == 0 and not self.logger.write(global_step, means, others):
            self.signals.output_closed()

    def close(self) -> None:
        """End the run: status 128 + the signal that stopped it, 1 if the last checkpoint could not be written."""
        self.signals.close()
        distributed.finish()
        if distributed.RANK == 0:
            self.logger.close()
            self.lock.close()
            if self.unsaved:
                sys.exit("the last checkpoint could not be written")
            folder = shlex.quote(self.folder)
            resume = f"stopped; to resume: python {program(self.script)} --resume {folder}"
            evaluate = f"finished: python {program('evaluate')} {folder}"
            say(resume if self.stopping else evaluate)
        if self.stopping:
            sys.exit(128 + self.stopping)


def warn_of_small_rewards(rewards):
    """Say that --reward-scale is too small for rewards, already multiplied by it, of any shape.

    The value normaliser adds 1e-5 to the variance before it takes the root that it divides by. Returns that vary by
    much less than 3e-3, the root of that floor, therefore stay near 0 and teach the critic nothing. Rewards that are
    all 0 are no reason to warn, since a task may give its first one late.
    """
    if 0.0 < rewards.abs().max() < 1e-3:
        say("rewards times --reward-scale are below 1e-3, too small to learn from: raise it", file=sys.stderr)


def program(name):
    """How Python starts a script or program from the working directory, where its file need not be."""
    return f"{name}.py" if os.path.isfile(f"{name}.py") else f"-m {name}"


def script_name(Args):
    """The file that defines Args, without folder and ending: a copy of epo.py has a name of its own."""
    return os.path.splitext(os.path.basename(inspect.getfile(Args)))[0]
