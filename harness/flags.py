"""The command line: a script's Args over the task's tuned values; what cannot work is refused in one line."""

import math
import os
import random
import sys
from dataclasses import fields

import envs  # before torch: Isaac Gym must be imported first

import numpy as np
import torch
import tyro

from harness.hyperparameters import CPU
from harness.run import load_checkpoint, refuse, script_name

MAY_CHANGE = "total_timesteps checkpoint_interval diagnostics_interval resume cuda device num_iterations".split()


def parse_args(Args, tuned, check_args=None, argv=None):
    """Parse the command line. Flags that are not given come from the checkpoint (--resume) or the task's tuned row.

    tuned: the script's table of harness/hyperparameters.py. check_args(args): the script's own refusals.
    Returns args and the checkpoint, None for a new run. Ends with status 2 and one line where flags cannot work.
    """
    given = tyro.cli(Args, args=argv, add_help=False, return_unknown_args=True)[0]
    device = "cuda" if given.cuda and torch.cuda.is_available() else "cpu"
    saved, cpu_row = None, CPU.get(given.env_id, {}) if device == "cpu" else {}
    if given.resume is not None:
        saved = load_checkpoint(given.resume, script_name(Args))
        defaults = {f.name: saved["args"][f.name] for f in fields(Args) if f.init and f.name in saved["args"]}
    else:
        defaults = {"num_envs": Args.num_envs, **tuned.get(given.env_id, {}), **cpu_row, "env_id": given.env_id}
        agents = getattr(given, "num_agents", 1)
        defaults["num_envs"] -= defaults["num_envs"] % max(1, min(agents, defaults["num_envs"]))  # equal blocks
    args = tyro.cli(Args, args=argv, default=Args(**defaults))
    args.device = device
    check_common_args(args)
    if check_args:
        check_args(args)
    args.num_iterations = max(1, args.total_timesteps // (args.num_envs * args.num_steps))
    if saved:
        check_resumable(args, saved)
    elif cpu_row:
        print(describe_cpu_defaults(args, cpu_row, tuned[args.env_id]), flush=True)
    return args, saved


def flag(name):
    """A field of Args as it is spelled on the command line."""
    return "--" + name.replace("_", "-")


def check_common_args(args):
    """Refuse what no script can work with, before anything is created."""
    for check, *names in ((envs.check_env_id, "env_id"), (envs.find_engine, "engine", "env_id", "device")):
        try:
            check(*(getattr(args, name) for name in names))
        except ValueError as error:
            refuse(flag(names[0]), getattr(args, names[0]), error)
    if args.engine == "warp" and args.cuda and args.device == "cpu":
        refuse("--engine", "warp", "needs a CUDA GPU, none was found; with --no-cuda it runs on the CPU, slowly")
    for f in fields(args):
        value = getattr(args, f.name)
        if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
            refuse(flag(f.name), value, "must be a finite number, at least 0")
    for name in ("num_envs", "total_timesteps", "num_steps", "num_minibatches", "update_epochs", "lstm_size"):
        if getattr(args, name) < 1:
            refuse(flag(name), getattr(args, name), "must be at least 1")
    for name in ("gamma", "gae_lambda"):
        if getattr(args, name) > 1:
            refuse(flag(name), getattr(args, name), "must be at most 1")
    for name in ("seed", "critic_n_step", "checkpoint_interval", "diagnostics_interval"):
        if getattr(args, name, 0) < 0:
            refuse(flag(name), getattr(args, name), "must be at least 0")
    if args.seed >= 2**32:
        refuse("--seed", args.seed, "must be below 2**32, numpy's limit")
    if args.num_envs * args.num_steps < 2:
        refuse("--num-steps", args.num_steps, "must be at least 2 with one environment: advantages are normalised")
    if args.num_minibatches > args.num_envs:
        refuse("--num-minibatches", args.num_minibatches, f"must be at most the {args.num_envs} columns of --num-envs")
    for name in ("hidden_sizes", "discriminator_sizes"):
        sizes = getattr(args, name, (1,))
        if not sizes or min(sizes) < 1:
            refuse(flag(name), sizes, "must be one or more widths, each at least 1")
    if args.lstm and args.separate_critic:
        refuse("--separate-critic", True, "with --lstm policy and value share one trunk")
    runs = os.path.abspath("runs")
    folder = runs if os.path.exists(runs) else os.path.dirname(runs)
    if not args.resume and not (os.path.isdir(folder) and os.access(folder, os.W_OK)):
        print(f"{runs}: must be a folder that can be written to, or created", file=sys.stderr)
        sys.exit(2)


def check_resumable(args, saved):
    """Refuse flags that contradict the checkpoint."""
    for name, value in saved["args"].items():
        if name not in MAY_CHANGE and getattr(args, name, None) != value:
            refuse(flag(name), getattr(args, name, None), f"must be {value}, as in the checkpoint")
    if args.num_iterations <= saved["iteration"]:
        refuse("--total-timesteps", args.total_timesteps, f"must be more than the checkpoint's {saved['global_step']}")


def describe_cpu_defaults(args, cpu_row, tuned_row):
    """What stands in for the papers' settings on a CPU, and the flags that bring these back."""
    changed = {k: tuned_row[k] for k in cpu_row if k in tuned_row and getattr(args, k) != tuned_row[k]}
    network = "-".join(map(str, args.hidden_sizes))
    flags = []
    for name, value in changed.items():
        words = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        switch = flag(name if value else f"no_{name}")
        flags.append(switch if isinstance(value, bool) else f"{flag(name)} {words}")
    as_timed = all(getattr(args, name) == value for name, value in cpu_row.items() if name != "num_envs")
    return (
        f"no GPU: {args.num_envs:,} environments, {'LSTM and ' if args.lstm else ''}MLP {network}, "
        f"{args.total_timesteps:,} steps{', about two hours on two cores' if as_timed else ''}"
        f"{'; as tuned for a GPU: ' if flags else ''}{' '.join(flags)}"
    )


def seed_everything(seed):
    """Seed the global generators of Python, numpy and torch; environments have generators of their own."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def make_env(args):
    """The environments of a run. Prints its first line; refuses what the engine cannot hold."""
    try:
        env = envs.make(args.env_id, args.num_envs, args.device, args.seed, args.engine)
    except ValueError as error:
        refuse("--num-envs", args.num_envs, error)
    engine = getattr(env, "engine_name", "its own")
    print(
        f"{args.env_id}: engine {engine}, {args.device}, {torch.get_num_threads()} threads, "
        f"{args.num_envs:,} environments",
        flush=True,
    )
    return env
