"""What a run logs: TensorBoard, Weights & Biases, and one line per iteration on the terminal."""

import math
import os
import sys
import time
import uuid
from collections import defaultdict
from datetime import timedelta

import envs  # noqa: F401, before torch: Isaac Gym must be imported first
from envs.terminal import say

import numpy as np
import torch
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import SummaryWriter

from harness.fitness import AGENT_SHARE, MAX_WAIT, TOTAL_SHARE

MIN_LEARNING_RATE = 1e-6  # the lower bound of adapt_learning_rate, which each script defines; a test compares them
# A line warns of what has lasted for so many iterations in a row
LOW_RATE_ITERATIONS = 100  # a learning rate at its minimum
NO_GENERATION_ITERATIONS = 500  # no generation in EPO
NO_COPIES_ITERATIONS = 500  # agents that PBT cannot judge
NEEDED = f"{TOTAL_SHARE:.0%} and {AGENT_SHARE:.0%} are needed, or {MAX_WAIT:.0f} episodes per environment"
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
        self.lasted = defaultdict(int)  # what a warning is about -> for how many iterations in a row

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
        self.warn_of_what_lasts(numbers, others, by_gap)
        return printed

    def steps_per_second(self, seconds):
        """Environment steps per second over the last so many seconds, or over the last iteration if that is longer."""
        last_time, last_step = self.clock[-1]
        recent = [entry for entry in self.clock[:-1] if last_time - entry[0] < seconds]
        first_time, first_step = recent[0] if recent else self.clock[-2]
        return (last_step - first_step) / max(last_time - first_time, 1e-9)

    def warn_of_what_lasts(self, numbers, others, by_gap):
        """Say once what has been wrong in so many iterations in a row."""
        for name, iterations, warning in (
            ("learning rate", LOW_RATE_ITERATIONS, low_rate(numbers, self.args)),
            ("generation", NO_GENERATION_ITERATIONS, no_generation(numbers, by_gap)),
            ("copies", NO_COPIES_ITERATIONS, no_copies(numbers, others)),
        ):
            self.lasted[name] = self.lasted[name] + 1 if warning else 0
            if self.lasted[name] == iterations:
                say(f"for {iterations} iterations, {warning}", file=sys.stderr)

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
        whose = "" if "population/objective_median" not in numbers else " of agent 0"
        return f"{reward}, no episode{whose} has ended yet"
    if "population/objective_median" not in numbers:
        age = numbers["charts/leader_age"]
        ago = f" ({age:.0f} iteration{'s' * (age > 1)} ago)" if age else ""
        return f"return {numbers['charts/leader_return']:9.2f} | objective {objective:7.2f}{ago}"
    text = f"{reward} | "
    has_leader = "pbt/lr_min" not in numbers  # PBT's agents are equals
    if has_leader:
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


def low_rate(numbers, args):
    """What to say where the adaptive learning rate, in PBT an agent's, is at its minimum; else None."""
    rate = numbers.get("pbt/lr_min", numbers["charts/learning_rate"])
    if getattr(args, "kl_threshold", 0.0) > 0.0 and rate < 1.01 * MIN_LEARNING_RATE:
        return (
            "the learning rate (in PBT: of an agent) has been at its minimum, since every update changes the policy too"
            " much: try a higher --kl-threshold or fewer --update-epochs, and look for an observation that grows"
        )
    return None


def no_generation(numbers, by_gap):
    """What to say where EPO lacks fitness or a fitness gap; None where a generation comes or waits for its time."""
    if "evolution/generation" not in numbers:
        return None
    if math.isnan(numbers["evolution/fitness_gap"]):
        return (
            f"no generation, since {numbers['evolution/judged_share']:.0%} of the followers' environments and"
            f" {numbers['evolution/judged_share_min']:.0%} of one follower's have finished an episode after the last"
            f" one ({NEEDED})"
        )
    if by_gap and numbers["evolution/fitness_gap"] <= numbers["evolution/threshold"]:
        return (
            f"no generation, since the fitness gap is {numbers['evolution/fitness_gap']:.2g} where"
            f" {numbers['evolution/threshold']:.2g} is needed (--ga-threshold)"
        )
    return None


def no_copies(numbers, others):
    """What to say where PBT cannot judge its agents; else None."""
    if "pbt/judged_share" not in numbers or "pbt/copies" in others:
        return None
    if numbers["pbt/judged_share"] >= TOTAL_SHARE and numbers["pbt/judged_share_min"] >= AGENT_SHARE:
        return None
    return (
        f"no copies, since {numbers['pbt/judged_share']:.0%} of the environments and"
        f" {numbers['pbt/judged_share_min']:.0%} of one agent's have finished an episode after the last ones ({NEEDED})"
    )
