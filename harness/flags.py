"""The command line: a script's Args over the task's tuned values; what cannot work is refused in one line."""

import functools
import os
import pathlib
import sys
import typing
from dataclasses import fields

import envs  # before torch: Isaac Gym must be imported first
from envs import checks, uncaught

import torch
import tyro

from harness import checkpoints, distributed
from harness.checkpoints import load_checkpoint, refuse
from harness.hyperparameters import CPU
from harness.run import script_name

LARGEST = {"learning_rate": 1.0, "gamma": 1.0, "gae_lambda": 1.0, "update_epochs": 1_000}
SIZES = "num_envs num_steps hidden_sizes discriminator_sizes lstm_size latent_dim num_agents".split()
MAY_CHANGE = "total_timesteps checkpoint_interval diagnostics_interval resume cuda device num_iterations".split()


def parse_args(Args, tuned, check_args=None, argv=None):
    """Parse the command line. Flags that are not given come from the checkpoint (--resume) or the task's tuned row.

    tuned: the script's table of harness/hyperparameters.py. check_args(args): the script's own refusals.
    Returns args and the checkpoint, None for a new run. Ends with status 2 and one line where flags cannot work.
    Rank 0 does this for all processes, and alone has the checkpoint.
    """
    args = saved = None
    distributed.start()
    with distributed.Rank0First():
        if distributed.RANK == 0:
            args, saved = parse_flags(Args, tuned, check_args, argv)
    args = distributed.from_rank_0(args)
    uncaught.env_id = args.env_id
    if args.device != "cpu" and distributed.WORLD_SIZE > 1:
        args.device = f"cuda:{distributed.LOCAL_RANK}"
        torch.cuda.set_device(args.device)
    return args, saved


def parse_flags(Args, tuned, check_args, argv):
    """parse_args in one process."""
    given = tyro.cli(Args, args=argv, add_help=False, return_unknown_args=True)[0]
    on_gpu = given.cuda and torch.cuda.is_available()
    saved, cpu_row = None, {} if on_gpu else dict(CPU.get(given.env_id, {}))
    tuned_row = {"num_envs": Args.num_envs, **tuned.get(given.env_id, {})}
    blocks = getattr(given, "num_agents", 1) * distributed.WORLD_SIZE
    for row in filter(None, (tuned_row, cpu_row)):  # equal blocks
        row["num_envs"] -= row["num_envs"] % max(1, min(blocks, row["num_envs"]))
    if given.resume is not None:
        saved = load_checkpoint(given.resume, script_name(Args), lambda saved: check_saved_flags(Args, saved["args"]))
    defaults = saved["args"] if saved else {**tuned_row, **cpu_row, "env_id": given.env_id}
    defaults = {f.name: defaults[f.name] for f in fields(Args) if f.init and f.name in defaults}  # a copy may lack some
    args = tyro.cli(Args, args=argv, default=Args(**defaults))
    args.device, uncaught.env_id = "cuda" if args.cuda and torch.cuda.is_available() else "cpu", args.env_id
    check_common_args(args)
    if check_args:
        check_args(args)
    check_memory(args)
    args.num_iterations = max(1, args.total_timesteps // (args.num_envs * args.num_steps))
    check_saved_flags(Args, vars(args))  # what a copy's own flags cannot be would end the resuming
    if saved:
        check_resumable(args, saved)
        try:
            saved["lock"] = checkpoints.lock_folder(checkpoints.run_folder(args.resume))
        except OSError as error:
            refuse("--resume", args.resume, error)
    elif cpu_row:
        uncaught.say(describe_cpu_defaults(args, cpu_row, tuned_row))
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
            if uncaught.raised_in(error, args.env_id):
                raise
            refuse(flag(names[0]), getattr(args, names[0]), error)
    if args.engine == "warp" and args.cuda and args.device == "cpu":
        refuse("--engine", "warp", "needs a CUDA GPU, none was found; with --no-cuda it runs on the CPU, slowly")
    for f in fields(args):
        value = getattr(args, f.name)
        if isinstance(value, float) and not (-1e18 if f.name == "ent_coef" else 0.0) <= value <= 1e18:
            refuse(flag(f.name), value, "must be a finite number" + ", at least 0" * (f.name != "ent_coef"))
        if f.name in ("reward_scale", "max_grad_norm") and not value:
            refuse(flag(f.name), value, "must be above 0")
        if any(isinstance(x, int) and x >= 2**63 for x in (value if isinstance(value, tuple) else (value,))):
            refuse(flag(f.name), value, "must be below 2**63")
        if f.name in LARGEST and value > LARGEST[f.name]:
            refuse(flag(f.name), value, f"must be at most {LARGEST[f.name]:g}")
    for name in ("num_envs", "total_timesteps", "num_steps", "num_minibatches", "update_epochs", "lstm_size"):
        if getattr(args, name, 1) < 1:
            refuse(flag(name), getattr(args, name), "must be at least 1")
    for name in ("seed", "critic_n_step", "checkpoint_interval", "diagnostics_interval"):
        if getattr(args, name, 0) < 0:
            refuse(flag(name), getattr(args, name), "must be at least 0")
    if getattr(args, "critic_n_step", 0) > args.num_steps:
        refuse("--critic-n-step", args.critic_n_step, f"must be at most --num-steps, {args.num_steps}")
    if args.seed >= 2**32:
        refuse("--seed", args.seed, "must be below 2**32, numpy's limit")
    processes, agents = distributed.WORLD_SIZE, max(1, getattr(args, "num_agents", 1))
    columns = args.num_envs // processes
    if args.num_envs % (processes * agents):
        blocks = " times ".join(f"{k} {what}" for k, what in ((processes, "processes"), (agents, "agents")) if k > 1)
        refuse("--num-envs", args.num_envs, f"must be a multiple of {processes * agents}: {blocks}")
    if columns * args.num_steps < 2:
        refuse("--num-steps", args.num_steps, "must be at least 2 with one environment: advantages are normalised")
    if args.num_minibatches > columns:
        owner = "--num-envs" if processes == 1 else "a process"
        refuse("--num-minibatches", args.num_minibatches, f"must be at most the {columns} columns of {owner}")
    if args.device == "cuda" and distributed.LOCAL_WORLD_SIZE > max(1, torch.cuda.device_count()):
        gpus = f"must be at most {torch.cuda.device_count()}, the number of GPUs; or use --no-cuda"
        refuse("--nproc-per-node", distributed.LOCAL_WORLD_SIZE, gpus)
    for name in ("hidden_sizes", "discriminator_sizes"):
        sizes = getattr(args, name, (1,))
        if not sizes or min(sizes) < 1:
            refuse(flag(name), sizes, "must be one or more widths, each at least 1")
    if getattr(args, "lstm", False) and getattr(args, "separate_critic", False):
        refuse("--separate-critic", True, "with --lstm policy and value share one trunk; add --no-lstm")
    runs = os.path.abspath("runs")
    folder = runs if os.path.exists(runs) else os.path.dirname(runs)
    if not args.resume and not (os.path.isdir(folder) and os.access(folder, os.W_OK)):
        print(f"{runs}: must be a folder that can be written to, or created", file=sys.stderr)
        sys.exit(2)


def host_memory(groups="/proc/self/cgroup", root="/sys/fs/cgroup"):
    """Bytes of memory: the machine's, or the smallest limit of the control groups (v1, v2) that this process is in."""
    machine, limits = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), []
    for line in open(groups) if os.path.isfile(groups) else ():  # number:controllers:path; Linux only
        _, controllers, path = line.strip().split(":", 2)
        folder = pathlib.Path(root, controllers, path.strip("/"))
        for name in ("memory.max", "memory.limit_in_bytes"):
            files = [each / name for each in (folder, *folder.parents)]  # in a container the path may be the host's
            limits += [file.read_text().strip() for file in files if file.is_file()]
    return min([machine, *(int(limit) for limit in limits if limit.isdigit())])  # "max": no limit


def memory_needed(flags, num_obs, num_actions, engine=None):
    """Bytes that a process needs beside Python, torch and the task: 0.8 to 1.5 times what runs on a CPU took.

    engine: as MujocoCpu, if its worlds are in the same memory; what another one needs is not known.
    """
    columns, lstm = flags["num_envs"] // distributed.WORLD_SIZE, flags["lstm_size"] if flags.get("lstm") else 0
    rows, minibatches = columns * flags["num_steps"], flags["num_minibatches"]
    agents, latent = flags.get("num_agents", 1), flags.get("latent_dim", 0)
    width, hidden, on_cpu = num_obs + latent, flags["hidden_sizes"], flags["device"] == "cpu"
    discriminator = flags["discriminator_sizes"] if flags.get("adversarial_coef") else ()
    layers = list(zip((lstm or width, *hidden), (*hidden, num_actions))) * (1 + flags.get("separate_critic", 0))
    layers += zip((num_obs + num_actions, *discriminator), (*discriminator, agents)) if discriminator else ()
    weights = sum(a * b for a, b in layers) + 4 * lstm * (width + lstm) + agents * (latent + num_actions)
    row = num_obs + 2 * num_actions + 12  # floats of a row of the batch: actions, their means, values, advantages, ...
    needed = rows * (row + 2 * num_obs)  # the rollout; a normaliser's copy of all observations in float64
    learners = agents if flags.get("aggregation") == "symmetric" else 1
    off_policy = rows * flags.get("off_policy_ratio", 0) * learners / agents
    if "num_agents" in flags:  # next observations; a batch with off-policy columns appended, and these by themselves
        needed += rows * num_obs + (rows + 2 * off_policy) * row
    forward = width + 2 * max((*hidden, *discriminator)) + 6 * lstm  # of a row, without gradient
    # two minibatches, the next one being gathered, and what the gradient of one needs: of torch's LSTM on a CPU 48 H,
    # measured; on a GPU cuDNN keeps less, 20 H by counting its tensors
    gradient = width + 2 * max(sum(hidden) * (1 + flags.get("separate_critic", 0)), sum(discriminator))
    gradient += 12 * num_actions + 30 + (48 if on_cpu else 20) * lstm
    whole = rows if discriminator else off_policy  # not in minibatches
    needed += max((rows + off_policy) / minibatches * (2 * row + gradient), whole * forward)
    needed += columns * (2 * num_obs + forward)  # a control step
    # with gradients and Adam's moments 4; `Run.remember` 3; on the host a checkpoint's bytes and their trial loading 6
    copies = 13 if on_cpu else 7
    physics = engine.bytes_for(columns) if hasattr(engine, "bytes_for") else 0
    return int(4 * (1.1 * needed + copies * weights)) + physics  # 1.1: what is freed is not all used again


def check_memory(args, env=None):
    """Refuse what cannot fit: the flag that takes the most, with the largest value that fits beside the others.

    env: environments, of any number; None: before there are any. What a custom task allocates is not known.
    """
    memory = host_memory() // distributed.LOCAL_WORLD_SIZE
    if args.device != "cpu":
        memory = torch.cuda.mem_get_info()[0]
    task = env
    if env is None and args.env_id.partition(":")[0] not in envs.ADAPTERS:
        task = envs.find_class(args.env_id)  # most say their sizes already
    sizes = [x if isinstance(x, int) else 1 for x in (getattr(task, name, 1) for name in ("num_obs", "num_actions"))]
    sizes.append(getattr(env, "engine", None) if args.device == "cpu" else None)

    def needed(name, most):
        value = getattr(args, name)
        value = tuple(min(x, most) for x in value) if isinstance(value, tuple) else min(value, most)
        return memory_needed({**vars(args), name: value}, *sizes)

    need = memory_needed(vars(args), *sizes)
    if need > memory:
        name = min((name for name in SIZES if hasattr(args, name)), key=lambda name: needed(name, 1))
        least = getattr(args, "num_agents", 1) if name == "num_envs" else 1
        fits = max((least * 2**k for k in range(40) if needed(name, least * 2**k) <= memory), default="nothing")
        found = f"needs {need / 1e9:,.1f} GB of memory, there are {memory / 1e9:,.1f}"
        refuse(flag(name), getattr(args, name), f"{found}; beside the other flags {fits} fits")


def check_saved_flags(Args, saved):
    """Raises ValueError (one line) where an entry of a checkpoint is no value of a flag of the script."""
    kinds = typing.get_type_hints(Args)
    for name, value in saved.items():
        kind = kinds.get(name)
        options = getattr(kind, "__args__", (kind,))  # of Optional, Tuple, Literal
        values = value if isinstance(value, tuple) and getattr(kind, "__origin__", None) is tuple else (value,)
        if not all(type(x) in options or x in options or type(x) is int and float in options for x in values):
            raise ValueError(f"args.{name} is {value!r}, which is not what this flag of the script can be")


def check_resumable(args, saved):
    """Refuse flags that contradict the checkpoint."""
    for name, value in saved["args"].items():
        if name not in MAY_CHANGE and getattr(args, name, None) != value:
            refuse(flag(name), getattr(args, name, None), f"must be {value}, as in the checkpoint")
    if args.num_iterations <= saved["iteration"]:
        least = saved["global_step"] + args.num_envs * args.num_steps
        refuse("--total-timesteps", args.total_timesteps, f"must be at least {least}, one more iteration")


def describe_cpu_defaults(args, cpu_row, tuned_row):
    """What stands in for the papers' settings on a CPU, and the flags that bring these back."""
    changed = {k: tuned_row[k] for k in cpu_row if k in tuned_row and getattr(args, k, tuned_row[k]) != tuned_row[k]}
    flags, network = [], "-".join(map(str, args.hidden_sizes))
    for name, value in changed.items():
        words = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        flags.append(flag(name if value else f"no_{name}") if isinstance(value, bool) else f"{flag(name)} {words}")
    timed = {"update_epochs": tuned_row["update_epochs"], "separate_critic": False, "adversarial_coef": 0.0, **cpu_row}
    as_timed = all(getattr(args, name, value) == value for name, value in timed.items())
    return (
        f"no GPU: {args.num_envs:,} environments, {'LSTM and ' if getattr(args, 'lstm', False) else ''}MLP {network}, "
        f"{args.total_timesteps:,} steps{', about two hours on two idle cores' if as_timed else ''}"
        f"{'; as tuned for a GPU: ' if flags else ''}{' '.join(flags)}"
    )


def make_checked(flag, value, env_id, num_envs, *inputs, **options):
    """envs.make. Its first calls will be checked; a ValueError that is not the custom task's refuses the flag."""
    try:
        env = envs.make(env_id, num_envs, *inputs, **options)
    except ValueError as error:
        if uncaught.raised_in(error, env_id):
            raise
        refuse(flag, value, error)
    except SystemExit:
        refuse("--env-id", env_id, "its constructor calls sys.exit, must return")
    checks.check_first_calls(env, num_envs, functools.partial(refuse, "--env-id", env_id))
    return env


def make_env(args):
    """The environments of this process. Prints the run's first line; refuses what the engine cannot hold."""
    num_envs, seed = args.num_envs // distributed.WORLD_SIZE, (args.seed + distributed.SEED_OFFSET) % 2**32
    flags, rest = ("--num-envs", args.num_envs, args.env_id), (args.device, seed, args.engine)
    with distributed.Rank0First():
        if args.device == "cpu" and args.engine != "isaacgym" and args.env_id in envs.TASKS:
            check_memory(args, make_checked(*flags, 1, *rest))  # one world tells what all of them need
        env = make_checked(*flags, num_envs, *rest, training=True)
        check_memory(args, env)
    engine = getattr(env, "engine_name", "its own")
    if engine == "mujoco" and args.device != "cpu":
        engine += " on the CPU (for MuJoCo Warp on the GPU: pip install -r requirements-gpu.txt)"
    workers = f"{distributed.WORLD_SIZE} processes, " if distributed.WORLD_SIZE > 1 else ""
    workers += f"{torch.get_num_threads()} threads"
    uncaught.say(f"{args.env_id}: engine {engine}, {args.device}, {workers}, {args.num_envs:,} environments")
    return env
