"""The command line: a script's Args over the task's tuned values; what cannot work is refused in one line."""

import os
import shlex
import sys
import textwrap
from dataclasses import fields
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

import envs  # before torch: Isaac Gym must be imported first
from envs.terminal import needs_output

import torch
import tyro

from harness import distributed
from harness.checkpoints import load_checkpoint
from harness.errors import refuse
from harness.help import print_help
from harness.hyperparameters import CPU
from harness.run import script_name

# Flags that a resumed run may change: how long, where and how it is logged, not what it learns
MAY_CHANGE = (
    "total_timesteps checkpoint_interval diagnostics_interval resume cuda device num_iterations"
    " exp_name track wandb_project_name capture_video"
).split()
# Ranges of the known flags; a flag of your own may have any value
POSITIVE = (
    "num_envs total_timesteps num_steps num_minibatches update_epochs num_agents reward_scale max_grad_norm init_std"
    " lstm_size"
).split()
NOT_NEGATIVE = (
    "seed checkpoint_interval learning_rate kl_threshold gamma gae_lambda critic_n_step clip_coef vf_coef bounds_coef"
    " latent_dim max_ent_coef off_policy_ratio off_policy_coef off_policy_lambda diagnostics_interval"
    " mutation_std ga_threshold ga_warmup ga_interval awac_coef awac_temperature reverse_kl_coef adversarial_coef"
    " pbt_start pbt_interval mutation_rate"
).split()
WRAP = dict(subsequent_indent="    ", break_on_hyphens=False, break_long_words=False)


class Presets(NamedTuple):
    """The flags of a run where the command line gives none, name -> value."""

    here: Dict[str, Any]  # on this machine
    on_gpu: Dict[str, Any]  # on a machine with a GPU
    requested_envs: int  # the num_envs of `here` before it was rounded down to equal blocks


@needs_output()
def parse_args(
    Args: type,
    tuned: Dict[str, Dict[str, Any]],
    check_args: Callable[[Any], None] = lambda args: None,
    argv: Optional[Sequence[str]] = None,
) -> Tuple[Any, Optional[Dict[str, Any]]]:
    """The flags of a run. Those that are not given come from the checkpoint (--resume) or from the task's presets.

    tuned: the script's table of hyperparameters.py. check_args(args): the script's own refusals.
    Returns args, an Args, and the checkpoint that --resume names, or None.
    """
    distributed.start()
    given, unknown = tyro.cli(Args, args=argv, add_help=False, return_unknown_args=True)
    saved = find_checkpoint(Args, given)
    presets = saved_presets(saved) if saved else tuned_presets(Args, given, tuned)
    if "--help" in unknown or "-h" in unknown:
        show_help(Args, given, presets, saved)
        sys.exit(0)
    args = resolve(Args, argv, presets)
    validate(args, saved, check_args)
    announce(Args, args, presets)
    return args, saved


def find_checkpoint(Args, given):
    """The checkpoint that --resume names, or None. Refuses it where another script wrote it or --load is given too."""
    saved = None if given.resume is None else load_checkpoint(given.resume)
    if saved and given.load is not None:
        refuse("--load", given.load, "must not be given with --resume: it starts a new run")
    if given.load == "":
        refuse("--load", "", "must be a folder or a file")
    if saved:
        check_script(Args, given, saved)
    return saved


def show_help(Args, given, presets, saved):
    """Print all flags with these presets as their defaults."""
    check_env_id(given.env_id)
    if saved:
        source = "the checkpoint"
    else:
        device = "a GPU" if has_gpu(given) else "a CPU"
        source = f"{given.env_id} on {device}; those of another task: --env-id TASK --help"
    print_help(Args, script_name(Args), presets.here, source)


def resolve(Args, argv, presets):
    """The flags of the command line over the presets, and the device of this process."""
    defaults = {name: presets.here[name] for name in flag_names(Args) if name in presets.here}
    args = tyro.cli(Args, args=argv, default=Args(**defaults))
    if has_gpu(args) and distributed.LOCAL_RANK >= torch.cuda.device_count():
        num_processes = os.environ.get("LOCAL_WORLD_SIZE", distributed.WORLD_SIZE)
        refuse("--nproc-per-node", num_processes, f"must be at most {torch.cuda.device_count()}, one per GPU")
    args.device = f"cuda:{distributed.LOCAL_RANK}" if has_gpu(args) else "cpu"
    if args.device != "cpu":
        torch.cuda.set_device(args.device)
    return args


def validate(args, saved, check_args):
    """Refuse what cannot work, and set what follows from valid flags: num_iterations, and the folder of --resume."""
    check_common_args(args)
    args.num_iterations = max(1, args.total_timesteps // (args.num_envs * args.num_steps))
    check_args(args)
    if saved:
        check_resumable(args, saved)
        args.resume = os.path.abspath(args.resume if os.path.isdir(args.resume) else os.path.dirname(args.resume))


def has_gpu(args):
    return args.cuda and torch.cuda.is_available()


def saved_presets(saved):
    """The flags of a checkpoint, which are the same on every machine."""
    return Presets(here=saved["args"], on_gpu=saved["args"], requested_envs=saved["args"]["num_envs"])


def tuned_presets(Args, given, tuned):
    """The tuned values of the task, smaller without a GPU. Agents and processes get equal blocks of environments."""
    on_gpu = {"env_id": given.env_id, "num_envs": Args.num_envs, **tuned.get(given.env_id, {})}
    here = on_gpu if has_gpu(given) else {**on_gpu, **CPU.get(given.env_id, {})}
    requested_envs = here["num_envs"]
    blocks = getattr(given, "num_agents", 1) * distributed.WORLD_SIZE
    for row in (on_gpu, here):
        if 0 < blocks <= row["num_envs"]:  # others are refused later
            row["num_envs"] -= row["num_envs"] % blocks
    return Presets(here, on_gpu, requested_envs)


def announce(Args, args, presets):
    """Print the command line that gives this run without presets, and what a GPU's presets would add."""
    changed = {}
    for name in flag_names(Args):
        if name == "env_id" or getattr(args, name) != getattr(Args, name):
            changed[name] = getattr(args, name)
    if args.resume:  # the network is the checkpoint's; together, the flags are refused
        changed.pop("load", None)
    print(textwrap.fill(f"{script_name(Args)}.py {spell(changed)}", 120, **WRAP))
    is_rounded = presets.here["num_envs"] != presets.requested_envs
    if is_rounded and args.num_envs == presets.here["num_envs"]:
        blocks = distributed.WORLD_SIZE * getattr(args, "num_agents", 1)
        rounded = f"{args.num_envs:,} environments, not {presets.requested_envs:,}"
        print(f"{rounded}: a multiple of {blocks}, agents times processes")
    larger = {}
    for name in flag_names(Args):
        if name not in presets.on_gpu:
            continue
        default = presets.here[name]
        if presets.on_gpu[name] != default and getattr(args, name) == default:
            larger[name] = presets.on_gpu[name]
    if larger:
        print(textwrap.fill(f"sized for a CPU; for a GPU: {spell(larger)}", 120, **WRAP))


def flag_names(Args):
    return [field.name for field in fields(Args) if field.init]


def flag(name):
    """A field of Args as it is spelled on the command line."""
    return "--" + name.replace("_", "-")


def spell(flags):
    """name -> value as words of a command line."""
    words = []
    for name, value in flags.items():
        if isinstance(value, bool):
            words.append(flag(name if value else f"no_{name}"))
        elif isinstance(value, tuple):
            words += [flag(name), *map(str, value)]
        else:
            words += [flag(name), str(value)]
    return shlex.join(words)


def check_script(Args, given, saved):
    """Refuse a checkpoint that another script or export.py wrote; say which of its flags are gone."""
    name = script_name(Args)
    if saved["script"] != name or "optimizer" not in saved["learner"]:
        refuse("--resume", given.resume, f"must be a checkpoint that {name}.py wrote")
    say_what_is_ignored(Args, saved)


def say_what_is_ignored(Args, saved):
    """Print a line for each flag of a checkpoint that the script no longer has."""
    names = {field.name for field in fields(Args)}
    for name in saved["args"]:
        if name not in names:
            print(f"{flag(name)} of the checkpoint is ignored: {saved['script']}.py has no such flag")


def check_env_id(env_id):
    """Refuse a task that does not exist."""
    try:
        envs.check_env_id(env_id)
    except ValueError as error:
        refuse("--env-id", env_id, error)


def check_common_args(args):
    """Refuse what no script can work with, before anything is created."""
    check_env_id(args.env_id)
    try:
        envs.find_engine(args.engine, args.env_id, args.device)
    except ValueError as error:
        refuse("--engine", args.engine, error)
    for name, value in vars(args).items():
        if value is None:
            continue
        if name in POSITIVE and not value > 0:
            refuse(flag(name), value, "must be above 0")
        if name in NOT_NEGATIVE and not value >= 0:  # written so that nan is refused
            refuse(flag(name), value, "must be at least 0")
    if args.track:
        try:
            import wandb  # noqa: F401
        except ModuleNotFoundError:
            refuse("--track", True, "needs Weights & Biases: pip install wandb")
    if args.seed >= 2**32:
        refuse("--seed", args.seed, "must be below 2^32")
    sizes = {"--hidden-sizes": args.hidden_sizes, "--discriminator-sizes": getattr(args, "discriminator_sizes", (1,))}
    for name, widths in sizes.items():
        if not widths or min(widths) < 1:
            refuse(name, " ".join(map(str, widths)), "must be one or more widths, each at least 1")
    blocks = distributed.WORLD_SIZE * getattr(args, "num_agents", 1)
    if args.num_envs % blocks:
        refuse("--num-envs", args.num_envs, f"must be a multiple of {blocks}, agents times processes")
    if args.num_minibatches > args.num_envs // distributed.WORLD_SIZE:
        refuse("--num-minibatches", args.num_minibatches, "must be at most the number of environments per process")
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
