"""What tests of scripts share: processes, checkpoints compared bit by bit."""

import os
import pathlib
import subprocess
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def start(script, flags, **options):
    """A script as a process of its own, on one thread."""
    options = {**dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT), **options}
    return subprocess.Popen([sys.executable, str(ROOT / f"{script.__name__}.py"), *flags.split()], **options)


def train(script, flags):
    """The script in this process; returns its exit status."""
    try:
        script.main(flags.split())
    except SystemExit as end:
        return end.code if end.code is not None else 0
    return 0


def refused(script, flags, capsys):
    """The one line that a refused command prints."""
    capsys.readouterr()
    assert train(script, flags) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def checkpoint(folder, name="checkpoint.pt"):
    return torch.load(folder / name, weights_only=True)


def make_best(folder, agent):
    """Of a saved run of four agents: as if this one had ended with the highest objective."""
    saved = checkpoint(pathlib.Path(folder))
    saved["state"]["episodes"]["means"][2] = torch.eye(4)[agent]
    torch.save(saved, pathlib.Path(folder) / "checkpoint.pt")


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) or (a.is_floating_point() and torch.equal(a.nan_to_num(7.7), b.nan_to_num(7.7)))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def assert_same_state(a, b):
    """Two checkpoints hold the same run, however often it was resumed."""
    assert a.keys() == b.keys()
    for key in set(a) - {"args"}:
        assert same(a[key], b[key]), key
    ignored = {"resume", "checkpoint_interval", "total_timesteps", "num_iterations"}
    assert all(b["args"][key] == value for key, value in a["args"].items() if key not in ignored)
