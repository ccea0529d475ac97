"""What a run logs: TensorBoard, Weights & Biases, and one line per iteration on the terminal."""

import math
import os
import sys
import time
import uuid
from datetime import timedelta

import envs  # noqa: F401, before torch: Isaac Gym must be imported first
from envs.terminal import say

import numpy as np
import torch
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import SummaryWriter

MIN_LEARNING_RATE = 1e-6  # the lower bound of adapt_learning_rate, which each script defines; a test compares them
LOW_RATE_ITERATIONS = 100  # at the minimum, after which a line says so
NO_GENERATION_ITERATIONS = 500  # without a generation of EPO, after which a line says so
SPEED_WINDOW = 60.0  # seconds over which charts/SPS is measured
TIME_LEFT_WINDOW = 600.0  # seconds; longer, so that the time left is steady


class Log:
    """The TensorBoard log in a run's folder, mirrored by Weights & Biases with --track. For rank 0 alone."""

    def __init__(self, folder, args, global_step, wandb_id=None):
        """global_step: the first step of the log, or that of the checkpoint. wandb_id: of the run that is resumed."""
        self.args = args
        self.wandb_id = wandb_id
        if args.track:  # before the writer, which it watches
            import wandb

            # One of our own if none is known, since what wandb.init returns may have none. A sweep sets WANDB_RUN_ID
            self.wandb_id = wandb_id or os.environ.get("WANDB_RUN_ID") or uuid.uuid4().hex
            wandb.init(
                project=args.wandb_project_name,
                name=os.path.basename(folder),
                id=self.wandb_id,
                resume="allow",
                config=vars(args),
                sync_tensorboard=True,
            )
        self.writer = SummaryWriter(folder, purge_step=global_step + 1)  # what a resumed run logs again
        rows = "\n".join(f"|{key}|{value}|" for key, value in vars(args).items())
        self.writer.add_text("hyperparameters", f"|flag|value|\n|-|-|\n{rows}", global_step)
        self.clock = [(time.monotonic(), global_step)]  # of the last ten minutes' iterations, or of the one before
        self.low_rate_iterations = 0  # so many in a row had the minimal learning rate
        self.generation = None
        self.generation_iterations = 0  # so many had this generation

    def write(self, global_step, numbers, others):
        """Log numbers, name -> float, and others, name -> list (a histogram), image or text; print a line.

        Returns whether the line could be printed: False where nobody reads standard output any more.
        """
        now = time.monotonic()
        self.clock = [entry for entry in self.clock if now - entry[0] < TIME_LEFT_WINDOW] or self.clock[-1:]
        self.clock.append((now, global_step))
        speed = self.steps_per_second(SPEED_WINDOW)
        for key, value in others.items():
            if isinstance(value, str):
                self.writer.add_text(key, value, global_step)
            elif isinstance(value, torch.Tensor):
                self.writer.add_image(key, value, global_step)
            elif all(map(math.isfinite, value)):  # else some agent has finished no episode yet
                self.writer.add_histogram(key, np.array(value, np.float64), global_step, bins=30)
        for key, value in {**numbers, "charts/SPS": speed}.items():
            if math.isfinite(value):  # else no episode has finished yet
                self.writer.add_scalar(key, value, global_step)
        self.writer.flush()
        by_gap = not getattr(self.args, "ga_interval", 0.0)
        total_steps = self.args.num_iterations * self.args.num_envs * self.args.num_steps
        left = timedelta(seconds=int((total_steps - global_step) / self.steps_per_second(TIME_LEFT_WINDOW)))
        printed = say(f"{global_step:>10,} steps | {describe(numbers, by_gap)} | {speed:,.0f}/s | {left} left")
        self.warn_of_low_rate(numbers)
        if "evolution/generation" in numbers:
            self.warn_of_no_generation(numbers, by_gap)
        return printed

    def steps_per_second(self, seconds):
        """Environment steps per second over the last so many seconds, or over the last iteration if that is longer."""
        last_time, last_step = self.clock[-1]
        recent = [entry for entry in self.clock[:-1] if last_time - entry[0] < seconds]
        first_time, first_step = recent[0] if recent else self.clock[-2]
        return (last_step - first_step) / max(last_time - first_time, 1e-9)

    def warn_of_low_rate(self, numbers):
        """Say once in a row of iterations that the adaptive learning rate (in PBT every agent's) is at its minimum."""
        adaptive = getattr(self.args, "kl_threshold", 0.0) > 0.0
        low = adaptive and numbers["charts/learning_rate"] < 1.01 * MIN_LEARNING_RATE
        self.low_rate_iterations = self.low_rate_iterations + 1 if low else 0
        if self.low_rate_iterations == LOW_RATE_ITERATIONS:
            say(
                f"the learning rate has been at its minimum for {LOW_RATE_ITERATIONS} iterations, since every update"
                " changes the policy too much: try a higher --kl-threshold or fewer --update-epochs",
                file=sys.stderr,
            )

    def warn_of_no_generation(self, numbers, by_gap):
        """Say once in each generation of EPO that the next one has not come for long, and why."""
        if self.generation != numbers["evolution/generation"]:
            self.generation = numbers["evolution/generation"]
            self.generation_iterations = 0
        self.generation_iterations += 1
        gap = numbers["evolution/fitness_gap"]
        waits_for_time = math.isfinite(gap) and not by_gap
        if self.generation_iterations != NO_GENERATION_ITERATIONS or waits_for_time:
            return
        if math.isfinite(gap):
            reason = f"a fitness gap of {gap:.2g} where {numbers['evolution/threshold']:.2g} is needed (--ga-threshold)"
        else:
            reason = f"a follower with {numbers['evolution/judged_share_min']:.0%} of its environments judged"
        say(f"no generation for {NO_GENERATION_ITERATIONS} iterations: {reason}", file=sys.stderr)

    def write_film(self, path, global_step):
        """Show a .gif among TensorBoard's images."""
        with open(path, "rb") as file:
            value = Summary.Value(tag="charts/leader", image=Summary.Image(encoded_image_string=file.read()))
        self.writer.file_writer.add_summary(Summary(value=[value]), global_step)

    def close(self):
        self.writer.close()


def describe(numbers, generations_by_gap=True):
    """The middle of the terminal's line: one agent's return and objective, or how the agents of a population stand."""
    objective = numbers["charts/leader_objective"]
    reward = f"reward/step {numbers['charts/reward_per_step']:.3g}"
    if not math.isfinite(objective):
        return f"{reward}, no episode of agent 0 yet"
    if "population/objective_median" not in numbers:
        age = numbers["charts/leader_age"]
        ago = f" ({age:.0f} iteration{'s' * (age > 1)} ago)" if age else ""
        return f"return {numbers['charts/leader_return']:9.2f} | objective {objective:7.2f}{ago}"
    text = f"{reward} | "
    if "pbt/lr_min" not in numbers:  # PBT has no leader
        text += f"leader {objective:.4g}, "
    text += f"median {numbers['population/objective_median']:.4g}"
    if "evolution/generation" in numbers:
        text += f" | gen {numbers['evolution/generation']:.0f}"
        gap = numbers["evolution/fitness_gap"]
        threshold = numbers["evolution/threshold"]
        if math.isnan(gap):
            text += ", followers unjudged"
        elif generations_by_gap and gap <= threshold:
            text += f", gap {gap:.2g} of {threshold:.2g}"
    return text
