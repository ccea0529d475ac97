"""The command line: a script's Args over the task's tuned values; what cannot work is refused in one line."""

import os
import sys
import textwrap
from dataclasses import fields

import envs  # before torch: Isaac Gym must be imported first

import torch
import tyro

from harness import distributed
from harness.checkpoints import load_checkpoint, refuse
from harness.hyperparameters import CPU
from harness.run import script_name

MAY_CHANGE = "total_timesteps checkpoint_interval diagnostics_interval resume cuda device num_iterations".split()
WRAP = dict(subsequent_indent="    ", break_on_hyphens=False)
POSITIVE = (
    "num_envs total_timesteps num_steps num_minibatches update_epochs num_agents reward_scale max_grad_norm init_std"
).split()


def parse_args(Args, tuned, check_args=lambda args: None, argv=None):
    """Args, with defaults from the checkpoint (--resume) or the task's row of `tuned`; and the checkpoint, or None.

    tuned: the script's table of hyperparameters.py; check_args(args): the script's own refusals.
    """
    distributed.start()
    given = tyro.cli(Args, args=argv, add_help=False, return_unknown_args=True)[0]
    saved, cpu_row, names = None, {}, [f.name for f in fields(Args) if f.init]
    if given.resume:
        saved = load_checkpoint(given.resume)
        if saved["script"] != script_name(Args) or "optimizer" not in saved["state"]:
            refuse("--resume", given.resume, f"must be a checkpoint that {script_name(Args)}.py wrote")
        defaults = saved["args"]
        for name in defaults:
            if not hasattr(Args, name):
                print(f"{flag(name)} of the checkpoint is ignored: {script_name(Args)}.py has no such flag")
    else:
        tuned_row = {"num_envs": Args.num_envs, **tuned.get(given.env_id, {})}
        cpu_row = {} if given.cuda and torch.cuda.is_available() else CPU.get(given.env_id, {})
        defaults = {"env_id": given.env_id, **tuned_row, **cpu_row}
        blocks = getattr(given, "num_agents", 1) * distributed.WORLD_SIZE  # of equal size
        for row in (tuned_row, defaults):
            row["num_envs"] -= row["num_envs"] % max(1, min(blocks, row["num_envs"]))
    default = Args(**{name: defaults[name] for name in names if name in defaults})
    args = tyro.cli(Args, args=argv, default=default, description=f"Tasks: {', '.join(envs.TASKS)}.")
    args.device = f"cuda:{distributed.LOCAL_RANK}" if args.cuda and torch.cuda.is_available() else "cpu"
    if args.device != "cpu":
        torch.cuda.set_device(args.device)
    check_common_args(args)
    args.num_iterations = max(1, args.total_timesteps // (args.num_envs * args.num_steps))
    check_args(args)
    changed = {k: getattr(args, k) for k in names if k == "env_id" or getattr(args, k) != getattr(Args, k)}
    if saved:
        check_resumable(args, saved)
        args.resume = os.path.abspath(args.resume if os.path.isdir(args.resume) else os.path.dirname(args.resume))
    print(textwrap.fill(f"{script_name(Args)}.py {spell(changed)}", 120, **WRAP))
    larger = {k: tuned_row[k] for k in cpu_row if getattr(args, k) == defaults[k] != tuned_row.get(k, defaults[k])}
    if larger:
        print(textwrap.fill(f"sized for a CPU; for a GPU: {spell(larger)}", 120, **WRAP))
    return args, saved


def flag(name):
    """A field of Args as it is spelled on the command line."""
    return "--" + name.replace("_", "-")


def spell(flags):
    """name -> value as words of a command line."""
    words = []
    for name, value in flags.items():
        if isinstance(value, bool):
            words.append(flag(name if value else f"no_{name}"))
        else:
            words += [flag(name), *map(str, value if isinstance(value, tuple) else (value,))]
    return " ".join(words)


def check_common_args(args):
    """Refuse what no script can work with, before anything is created."""
    for check, *names in ((envs.check_env_id, "env_id"), (envs.find_engine, "engine", "env_id", "device")):
        try:
            check(*(getattr(args, name) for name in names))
        except ValueError as error:
            refuse(flag(names[0]), getattr(args, names[0]), error)
    for name, value in vars(args).items():
        if name in POSITIVE and value <= 0:
            refuse(flag(name), value, "must be above 0")
        if isinstance(value, (int, float)) and name != "ent_coef" and not value >= 0:
            refuse(flag(name), value, "must be at least 0")
    blocks = distributed.WORLD_SIZE * getattr(args, "num_agents", 1)
    if args.num_envs % blocks:
        refuse("--num-envs", args.num_envs, f"must be a multiple of {blocks}, agents times processes")
    if args.num_minibatches > args.num_envs // distributed.WORLD_SIZE:
        refuse("--num-minibatches", args.num_minibatches, "must be at most the environments of a process")
    if args.bf16 and args.lstm and (args.device != "cpu" or torch.backends.cpu.get_cpu_capability() == "AVX2"):
        refuse("--bf16", True, "must be off with --lstm: PyTorch's LSTM is float16 on a GPU and needs AVX-512 on a CPU")


def check_resumable(args, saved):
    """Refuse flags that contradict the checkpoint."""
    for name, value in saved["args"].items():
        if name not in MAY_CHANGE and getattr(args, name, value) != value:
            refuse(flag(name), getattr(args, name), f"must be {value}, as in the checkpoint")
    if args.num_iterations <= saved["iteration"]:
        least = saved["global_step"] + args.num_envs * args.num_steps
        refuse("--total-timesteps", args.total_timesteps, f"must be at least {least}, one more iteration")


def make_env(args):
    """The environments of this process, for training; says what steps them."""
    num_envs, seed = args.num_envs // distributed.WORLD_SIZE, (args.seed + distributed.SEED_OFFSET) % 2**32
    env = envs.make(args.env_id, num_envs, args.device, seed, args.engine, training=True)
    engine = getattr(env, "engine_name", "its own")
    if engine == "mujoco" and args.device != "cpu":
        engine += " on the CPU (for MuJoCo Warp on the GPU: pip install -r requirements-gpu.txt)"
    print(f"{args.env_id}: engine {engine}, {args.device}, {args.num_envs:,} environments", flush=True)
    return env
