"""Checkpoint files: always one that is whole, checked before anything is touched, and unable to run code."""

import contextlib
import fcntl
import hashlib
import io
import os
import random
import shutil
import sys

import envs  # before torch: Isaac Gym must be imported first
from envs import uncaught

import numpy as np
import torch

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAYOUT = dict(script=str, args=dict, iteration=int, global_step=int, seconds=float, state=dict, random=dict)
LAYOUT.update(other_processes=list)
COUNTERS = ("iteration", "global_step", "seconds")
COMMENT_LENGTH = b"\x20\x00"  # of a SHA-256, as the last field of a zip file
ALLOWED = "tensors, Python's numbers, strings, None, and dicts, lists and tuples of these"


def encode(checkpoint):
    """The bytes of a file that torch.load reads: a zip file, whose comment is the SHA-256 of what stands before it.

    Raises ValueError with one line that names the entry if it could not be loaded again.
    """
    buffer = io.BytesIO()
    try:
        torch.save(checkpoint, buffer)
        buffer.seek(0)
        torch.load(buffer, map_location="cpu", weights_only=True)
    except Exception as error:  # of a dozen kinds
        found = ", ".join(find_unloadable(checkpoint)) or " ".join(str(error).split())
        raise ValueError(f"{found} cannot be loaded again; allowed are {ALLOWED}")
    digest = hashlib.sha256(buffer.getbuffer()[:-2]).digest()  # torch's zip files end with two zeros: no comment
    buffer.seek(-2, os.SEEK_END)
    buffer.write(COMMENT_LENGTH + digest)
    return buffer.getbuffer()


def decode(data):
    """What `encode` made bytes of. Raises an exception if a single bit is wrong, or of any kind if more is."""
    has_comment = data[-22:-18] != b"PK\x05\x06"  # else torch.save's own ending: no checksum to compare with
    if has_comment and data[-34:] != COMMENT_LENGTH + hashlib.sha256(data[:-34]).digest():
        raise ValueError("its checksum is wrong")
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def find_unloadable(value, name=""):
    """Names of the entries of nested dicts, lists and tuples that torch.load refuses."""
    if isinstance(value, (dict, list, tuple)):
        children = value.items() if isinstance(value, dict) else enumerate(value)
        return [found for key, child in children for found in find_unloadable(child, f"{name}.{key}".lstrip("."))]
    plain = isinstance(value, torch.Tensor) or type(value) in (int, float, bool, str, bytes, type(None))
    return [] if plain else [f"{name} ({type(value).__module__}.{type(value).__qualname__})"]


def save_checkpoint(folder, data):
    """Write folder/checkpoint.pt and keep the one before as checkpoint_previous.pt. Raises OSError.

    At every moment checkpoint.pt is a whole one: the new one replaces it in one step, when it is on the disk.
    """
    path, previous = (os.path.join(folder, name) for name in ("checkpoint.pt", "checkpoint_previous.pt"))
    try:
        with open(path + ".tmp", "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if os.path.exists(path):
            with contextlib.suppress(FileNotFoundError):
                os.remove(previous)
            try:
                os.link(path, previous)
            except OSError:  # a file system without hard links
                shutil.copyfile(path, previous)
        os.replace(path + ".tmp", path)
    except OSError:
        with contextlib.suppress(OSError):
            os.remove(path + ".tmp")  # half a checkpoint on a full disk
        raise


def load_checkpoint(path, script=None, accept=None, locked=False):
    """The newest valid checkpoint of a run's folder, or the one in a file; plain tensors and numbers, nothing else.

    script: which script must have written it, for --resume; None: any, for evaluate.py. accept(checkpoint) raises an
    exception for one that does not fit; checkpoint_previous.pt is tried next. locked: whether this process may write to
    the folder: if it goes on from checkpoint_previous.pt, checkpoint.pt becomes checkpoint_rejected.pt, so that it does
    not replace the better one. Ends with exit status 2 and one line where no checkpoint is valid, or where resuming or
    evaluating it would run code that lies with the run.
    """
    flag = "--resume" if script else "run"
    paths, reason = [path], "no such file or folder"
    if os.path.isdir(path):
        paths = [os.path.join(path, name) for name in ("checkpoint.pt", "checkpoint_previous.pt")]
        reason = "must be a folder with a checkpoint.pt"
    for each in filter(os.path.isfile, paths):
        env_id = ""
        try:
            with open(each, "rb") as file:
                saved = decode(file.read())
            check_layout(saved)
            if script not in (None, saved["script"]):
                refuse(flag, path, f"must be a checkpoint that {script}.py wrote, {saved['script']}.py wrote this one")
            if script and "optimizer" not in saved["state"]:
                raise ValueError("no optimizer's state: evaluate.py --save-policy wrote it, to be played alone")
            env_id = saved["args"]["env_id"]
            for file in envs.find_files(env_id):
                if comes_with_run(file, path):
                    refuse(flag, path, f"would run code that came with it: {file}, for --env-id {env_id}")
            if accept:
                accept(saved)
        except Exception as error:  # damage shows as one of a dozen kinds
            if uncaught.raised_in(error, env_id):
                raise
            message = " ".join(str(error).split()) if isinstance(error, (ValueError, RuntimeError)) else repr(error)
            if each == paths[0] or not os.path.exists(paths[0]):
                reason = f"{os.path.basename(each)} cannot be read: {message[:300]}"
            continue
        if each != paths[0] and (locked or not script):
            print(f"going on from {each}: {reason}", file=sys.stderr)
        newest = os.path.join(run_folder(path), "checkpoint.pt")
        if locked and os.path.basename(each) == "checkpoint_previous.pt" and os.path.lexists(newest):
            os.replace(newest, os.path.join(run_folder(path), "checkpoint_rejected.pt"))
        return saved
    refuse(flag, repr(path) if path == "" else path, reason)


def check_layout(saved):
    """Raises ValueError (one line) where a checkpoint lacks what every script writes."""
    saved = saved if isinstance(saved, dict) else {}
    wrong = [key for key, kind in LAYOUT.items() if not isinstance(saved.get(key), kind)]
    wrong += [key for key in COUNTERS if key not in wrong and not 0 <= saved[key] < 2**63]
    env_id = None if wrong else saved["args"].get("env_id")
    wrong += [] if wrong or isinstance(env_id, str) and env_id.isprintable() else ["args.env_id"]
    # evaluate.py runs the script of that name: no path
    if wrong or not saved["script"].replace("-", "_").isidentifier():
        raise ValueError(f"must be a checkpoint of a training script; wrong: {', '.join(wrong or ['script'])}")


def run_folder(path):
    """The folder of a run, given that or a checkpoint in it."""
    return path if os.path.isdir(path) else os.path.dirname(path) or "."


def comes_with_run(file, path):
    """Whether a file lies in runs/, in the run's folder, the one above, or what holds them in the working directory.

    path: the run's folder or a file in it. Not counted: where this repository lies and, but for the run, the user is.
    """
    root, cwd = os.path.realpath(ROOT), os.getcwd()
    runs = [os.path.abspath(run_folder(path)), os.path.realpath(run_folder(path))]
    tops = [os.path.join(cwd, os.path.relpath(run, cwd).split(os.sep)[0]) for run in runs]
    folders = [os.path.join(cwd, "runs"), os.path.join(root, "runs"), *runs, *map(os.path.dirname, runs), *tops]
    folders = [f for f in folders if not is_below(root, f) and (f in runs or not is_below(cwd, f))]
    return any(is_below(file, f) for f in folders)


def is_below(path, folder):
    """Whether a path lies in a folder, each as written or with links followed."""
    paths, folders = ([os.path.abspath(each), os.path.realpath(each)] for each in (path, folder))
    return any(os.path.commonpath([p, f]) == f for p in paths for f in folders)


def refuse(flag, value, reason):
    """End with exit status 2 and one line that names the flag, its value and what would be valid."""
    line = f"{flag} {value}: {reason}"  # maybe of somebody else's checkpoint: no commands to the terminal
    print("".join(c if c.isprintable() else ascii(c)[1:-1] for c in line), file=sys.stderr)
    sys.exit(2)


def lock_folder(folder):
    """Lock a run's folder for this process; held until the file that is returned is closed. Raises OSError.

    Refuses the folder if another process trains in it.
    """
    for name in ("lock", "checkpoint.pt.tmp", "checkpoint_rejected.pt", "nan_dump.pt"):
        path = os.path.join(folder, name)
        if os.path.islink(path) or os.path.exists(path) and not os.path.isfile(path):  # of somebody else's run
            refuse("--resume", path, "must be a plain file")
    file = open(os.path.join(folder, "lock"), "a")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        refuse("--resume", folder, "another process is training in this folder")
    except OSError as error:  # some network file systems have no locks
        print(f"{folder} is not locked against a second process: {error}", file=sys.stderr)
    return file


def seed_everything(seed):
    """Seed the global generators of Python, numpy and torch; environments have generators of their own."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def random_state():
    """The state of all global random generators, as plain tensors and numbers."""
    name, keys, *rest = np.random.get_state()
    cuda = [torch.cuda.get_rng_state()] if torch.cuda.is_available() else []  # of the GPU in use
    return {
        "python": random.getstate(), "numpy": [name, keys.tolist(), *rest], "torch": torch.get_rng_state(), "cuda": cuda
    }


def set_random_state(state):
    random.setstate(state["python"])
    np.random.set_state(tuple(state["numpy"]))
    torch.set_rng_state(state["torch"])
    for cuda in state["cuda"][: min(1, torch.cuda.device_count())]:  # there may be none any more
        torch.cuda.set_rng_state(cuda)
