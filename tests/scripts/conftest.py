"""What tests of scripts share: processes, checkpoints compared bit by bit."""

import os
import pathlib
import shlex
import subprocess
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def start(script, flags):
    """A script as a process of its own, on one thread."""
    command = [sys.executable, str(ROOT / f"{script.__name__}.py"), *flags.split()]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


def train(script, flags):
    """The script in this process; returns its exit status."""
    try:
        script.main(shlex.split(flags))
    except SystemExit as end:
        if isinstance(end.code, str):  # a message for standard error
            return 1
        return end.code or 0
    return 0


def refused(script, flags, capsys):
    """The one line that a refused command prints."""
    capsys.readouterr()
    assert train(script, flags) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def checkpoint(folder, name="checkpoint.pt"):
    return torch.load(folder / name, weights_only=True)


def differences(a, b, path=""):
    """Where two states differ, as paths such as ['agent']['latents']; NaN equals NaN."""
    if isinstance(a, dict) and isinstance(b, dict):
        of_one = [f"{path}[{key!r}]" for key in a.keys() ^ b.keys()]
        return of_one + [found for key in a if key in b for found in differences(a[key], b[key], f"{path}[{key!r}]")]
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        return [found for i in range(len(a)) for found in differences(a[i], b[i], f"{path}[{i}]")]
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        equal = a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
    else:
        equal = a == b
    return [] if equal else [path]


def same(a, b):
    return not differences(a, b)


def assert_same_state(a, b):
    """Two checkpoints hold the same run, however often it was resumed."""
    may_differ = {
        f"['args']['{name}']" for name in ("resume", "checkpoint_interval", "total_timesteps", "num_iterations")
    }
    assert set(differences(a, b)) - may_differ == set()
