"""Fault injection: nothing is lost, nothing runs that a checkpoint brought along, every mistake is one line."""

import abc
import dataclasses
import functools
import itertools
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import cpo
import epo
import evaluate
import harness.checkpoints
import harness.flags
import harness.run
import ppo
import sapg
from benchmarks.scripts.torture import (
    EXTRA, FLAGS, ROOT, broken_files, damages, odd_files, refused, start,
)  # fmt: skip
from envs import uncaught
from envs.base import VectorEnv
from harness.checkpoints import decode, encode
from tests.conftest import scalars, the_run

LONG = "--env-id Moat --total-timesteps 1000000000 --checkpoint-interval 1"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")


def train(script=ppo, flags="--env-id Moat"):
    """Runs a script; returns the exit status."""
    try:
        script.main(f"{FLAGS} {EXTRA[script]} {flags}".split())
    except SystemExit as end:
        return end.code
    return 0


def resume(script, folder, flags="--total-timesteps 2048"):
    try:
        script.main(f"--no-cuda --resume {folder} {flags}".split())
    except SystemExit as end:
        return end.code
    return 0


def checkpoint(folder, name="checkpoint.pt"):
    return decode((folder / name).read_bytes())


def contents(folder="."):
    return {path: path.read_bytes() for path in pathlib.Path(folder).rglob("*") if path.is_file()}


# ---------------------------------------------------------------- folders and files


def test_two_runs_that_start_in_one_second_have_two_folders(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1.7e9)
    assert train() == train() == train() == 0
    assert sorted(path.name for path in pathlib.Path("runs").iterdir()) == [
        "Moat__ppo__1__1700000000", "Moat__ppo__1__1700000000_2", "Moat__ppo__1__1700000000_3",
    ]  # fmt: skip


@pytest.mark.parametrize("resumed", [False, True], ids=["new", "resumed"])
def test_a_second_process_on_a_folder_is_refused(resumed, capsys):
    flags = f"{FLAGS} {LONG}".replace("--no-cuda", "")
    if resumed:
        assert train() == 0
        flags = f"--resume {the_run()} --total-timesteps 1000000000"
    process = start(ppo, flags)
    try:
        for _ in range(5):
            process.stdout.readline()
        capsys.readouterr()
        assert resume(ppo, the_run(), "--total-timesteps 2000000000") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line == f"--resume {the_run()}: another process is training in this folder"
        process.kill()
        process.wait()
        done = checkpoint(the_run())["global_step"]
        assert resume(ppo, the_run(), f"--total-timesteps {done + 128}") == 0  # the lock went with the process
    finally:
        process.kill()


def test_at_every_moment_checkpoint_pt_is_a_whole_one(monkeypatch, tmp_path):
    seen = []

    def watched(function):
        def call(*args, **kwargs):
            seen.append(checkpoint(tmp_path)["i"])
            result = function(*args, **kwargs)
            seen.append(checkpoint(tmp_path)["i"])
            return result

        return call

    harness.checkpoints.save_checkpoint(tmp_path, encode({"i": 0}))
    for name in ("replace", "link", "remove", "fsync"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    for i in range(1, 4):
        harness.checkpoints.save_checkpoint(tmp_path, encode({"i": i}))
        assert checkpoint(tmp_path)["i"] == i and checkpoint(tmp_path, "checkpoint_previous.pt")["i"] == i - 1
    assert set(seen) == {0, 1, 2, 3} and seen == sorted(seen)


def test_a_file_system_without_hard_links(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "link", lambda *paths: (_ for _ in ()).throw(PermissionError(1, "not permitted")))
    for i in range(3):
        harness.checkpoints.save_checkpoint(tmp_path, encode({"i": i}))
    assert checkpoint(tmp_path)["i"] == 2 and checkpoint(tmp_path, "checkpoint_previous.pt")["i"] == 1


# ---------------------------------------------------------------- other people's checkpoints

PAYLOAD = """
import pathlib
pathlib.Path("PAYLOAD").touch()
class E:
    def reset(self): ...
    def step(self): ...
class Agent: ...
"""


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    """The bytes of a checkpoint of ppo.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("valid"))
        assert train() == 0
        return (the_run() / "checkpoint.pt").read_bytes()


@pytest.fixture
def forged(valid):
    """forged(folder, **changes): a valid checkpoint with some entries replaced, in that folder."""
    return functools.partial(forge, valid)


def forge(valid, folder, **changes):
    saved = decode(valid)
    for key, value in changes.items():
        (saved["args"] if key in saved["args"] else saved)[key] = value
    path = pathlib.Path(folder)
    path.mkdir(parents=True)
    (path / "checkpoint.pt").write_bytes(bytes(encode(saved)))
    return path


@pytest.mark.parametrize("folder", ["runs/x", "downloads/x"])
@pytest.mark.parametrize("depth, changes", [
    ("", {"script": "{abs}/payload"}),
    ("", {"script": "../{folder}/payload"}),
    ("", {"script": "{folder}/payload"}),
    ("", {"script": "payload.py/../payload"}),
    ("", {"script": ""}),
    ("", {"env_id": "{module}.payload:E"}),
    ("", {"env_id": "gymnasium:{module}.payload:E"}),
    ("sub/", {"env_id": "{module}.sub.payload:E"}),
    ("package/__init__", {"env_id": "{module}.package:E"}),
    ("package/__init__", {"env_id": "{module}.package.missing:E"}),
    ("../", {"env_id": "{parent}.payload:E"}),  # beside the run, in what was downloaded with it
    ("sub/", {"env_id": "gymnasium:{module}.sub.payload:E-v0"}),
    ("", {"env_id": "x:{module}.payload:E"}),
    ("", {"env_id": "{module}.payload:E:F"}),
    ("", {"script": "payload\n"}),
    ("", {"script": "runs.x.payload"}),
    ("", {"script": "./{folder}/payload"}),
])  # fmt: skip
def test_a_checkpoint_runs_no_code_that_came_with_it(folder, depth, changes, capsys, forged):
    parent, module = folder.split("/")[0], folder.replace("/", ".")
    values = dict(abs=os.path.abspath(folder), folder=folder, parent=parent, module=module)
    path = forged(folder, **{key: value.format(**values) for key, value in changes.items()})
    payload = path / (depth + ".py" if depth.endswith("init__") else depth + "payload.py")
    payload.parent.mkdir(exist_ok=True)
    payload.write_text(PAYLOAD)
    for play in (lambda: evaluate.main([str(path), "--no-cuda"]), lambda: ppo.main(["--resume", str(path)])):
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            play()
        (line,) = capsys.readouterr().err.splitlines()
        assert end.value.code == 2 and str(path) in line
    assert not pathlib.Path("PAYLOAD").exists()


@pytest.mark.parametrize("linked", ["", "downloads", "downloads/pack", "downloads/pack/runs/x"])
def test_nor_code_from_the_top_of_what_was_downloaded(linked, capsys, forged, tmp_path_factory):
    """Also where a part of the path is a link to another disk."""
    path = forged("downloads/pack/runs/x", env_id="downloads.pack.payload:E")
    pathlib.Path("downloads/pack/payload.py").write_text(PAYLOAD)
    if linked:
        target = tmp_path_factory.mktemp("disk") / "there"
        pathlib.Path(linked).rename(target)
        pathlib.Path(linked).symlink_to(target)
    for play in (lambda: evaluate.main([str(path), "--no-cuda"]), lambda: ppo.main(["--resume", str(path)])):
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            play()
        (line,) = capsys.readouterr().err.splitlines()
        assert end.value.code == 2 and "would run code that came with it" in line
    assert not pathlib.Path("PAYLOAD").exists()


@pytest.mark.parametrize("changes", [{"script": "payload"}, {"env_id": "payload:E"}])
def test_nor_does_it_from_within_the_runs_folder(changes, monkeypatch, capsys, forged):
    path = forged("downloads/x", **changes)
    (path / "payload.py").write_text(PAYLOAD)
    monkeypatch.chdir(path)
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        evaluate.main([".", "--no-cuda"])
    assert end.value.code == 2 and len(capsys.readouterr().err.splitlines()) == 1
    assert not pathlib.Path("PAYLOAD").exists()


@pytest.mark.parametrize("name", ["checkpoint.pt.tmp", "checkpoint_rejected.pt", "lock", "nan_dump.pt"])
def test_links_in_somebody_elses_run_are_not_followed(name, capsys, forged):
    path = forged("downloads/x")
    pathlib.Path("mine.txt").write_text("precious")
    (path / name).symlink_to(os.path.abspath("mine.txt"))
    capsys.readouterr()
    assert resume(ppo, path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"--resume {path / name}: must be a plain file"
    assert pathlib.Path("mine.txt").read_text() == "precious"


@pytest.mark.parametrize("env_id", ["subprocess:Popen", "os:system", "pathlib:Path"])
def test_a_class_that_is_no_environment_is_not_called(env_id, capsys, forged):
    path = forged("runs/x", env_id=env_id)
    assert resume(ppo, path) == 2
    assert "not a class with reset and step" in capsys.readouterr().err.splitlines()[-1]


def test_a_refusal_sends_nothing_else_to_the_terminal(capsys, forged):
    assert resume(ppo, forged("runs/x", engine="\x1b[2J\nok")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable() and line.startswith("--engine \\x1b[2J\\nok: ")


def test_a_pickle_payload_is_refused(tmp_path, capsys, forged):
    class Payload:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "PAYLOAD"),))

    path = forged("runs/x")
    torch.save({**checkpoint(path), "state": Payload()}, path / "checkpoint.pt")
    assert resume(ppo, path) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1 and not (tmp_path / "PAYLOAD").exists()


def test_the_users_own_environment_in_the_working_directory_is_found(capsys):
    pathlib.Path("my_task.py").write_text("from tests.scripts.test_faults import Still\n")
    assert train(ppo, "--env-id my_task:Still") == 0 == resume(ppo, the_run())
    evaluate.main([str(the_run()), "--episodes", "2", "--no-cuda"])
    assert "my_task:Still" in capsys.readouterr().out


# ---------------------------------------------------------------- full disks


def logged(folder):
    return [event.step // 128 for event in scalars(folder, "charts/learning_rate")]


def between(monkeypatch, actions):
    """actions: iteration -> what is done before that iteration's checkpoint and log."""
    save = harness.run.Run.checkpoint

    def checkpoint(self, iteration, global_step):
        actions.get(iteration, lambda: None)()
        save(self, iteration, global_step)

    monkeypatch.setattr(harness.run.Run, "checkpoint", checkpoint)


@pytest.fixture
def small_disk(tmp_path, monkeypatch):
    """The working directory on a disk of 1 MB; fill() and free() it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("may not mount a tmpfs")
    monkeypatch.chdir(disk)

    def fill():
        with pytest.raises(OSError), open("filler", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    yield fill, lambda: os.remove("filler")
    monkeypatch.chdir(tmp_path)
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_costs_the_log_not_the_run(small_disk, monkeypatch, capsys):
    fill, free = small_disk
    between(monkeypatch, {3: fill, 7: free})
    assert train() == 0
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == [
        "no checkpoint", "no log", "the log is written again", "the checkpoint is written again",
    ]  # fmt: skip
    assert checkpoint(the_run())["iteration"] == 8
    assert {1, 2, 7, 8} <= set(logged(the_run()))  # what fits into the last page of the file is written
    assert not list(the_run().glob("*tmp*"))


def test_a_disk_that_stays_full_to_the_end(small_disk, monkeypatch, capsys):
    fill, _ = small_disk
    between(monkeypatch, {4: fill})
    assert train() == 0
    assert len(capsys.readouterr().err.splitlines()) == 2
    assert checkpoint(the_run())["iteration"] == 3


@pytest.mark.parametrize("error_too", [False, True], ids=["stdout", "both"])
def test_output_to_a_full_disk_costs_the_output_not_the_run(error_too):
    with open("/dev/full", "w") as full:
        options = dict(stdout=full, stderr=full) if error_too else dict(stdout=full)
        process = start(ppo, f"{FLAGS} --env-id Moat", **options)
        err = process.communicate(timeout=120)[1]
    assert process.returncode == 0 and checkpoint(the_run())["iteration"] == 8
    assert error_too or set(err.splitlines()) == {"no output: [Errno 28] No space left on device; training goes on"}


def test_two_outages_are_reported_twice(monkeypatch, capsys):
    """Without mount: the writer's thread dies in iterations 2 and 5, as it does on a full disk."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    write, full = RecordWriter.write, []

    def broken(self, data):
        if full:
            raise OSError(28, "No space left on device")
        write(self, data)

    monkeypatch.setattr(RecordWriter, "write", broken)
    between(monkeypatch, {i: full.clear if i in (3, 6) else lambda: full.append(1) for i in (2, 3, 5, 6)})
    assert train() == 0
    lines = capsys.readouterr().err.splitlines()
    assert ["again" in line for line in lines] == [False, True, False, True]
    assert logged(the_run()) == [1, 3, 4, 6, 7, 8]


def test_a_run_does_not_start_on_a_full_disk(monkeypatch, capsys):
    monkeypatch.setattr(os, "makedirs", lambda *args, **kwargs: (_ for _ in ()).throw(OSError(28, "No space left")))
    assert train() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "No space left" in line


# ---------------------------------------------------------------- every checkpoint can be loaded


class Still(VectorEnv):
    """Nothing moves; episodes of five steps."""

    num_obs, num_actions, max_episode_steps = 3, 2, 5

    def reset_where(self, mask):
        pass

    def advance(self, action):
        no = torch.zeros(self.num_envs, dtype=torch.bool)
        return action.sum(1), no, no.clone()

    def observe(self):
        return torch.ones(self.num_envs, 3)


class WithNumpy(Still):
    late = 0

    def state_dict(self):
        self.calls = getattr(self, "calls", 0) + 1
        counts = np.zeros(3) if self.calls > self.late else None
        return {**super().state_dict(), "mine": {"counts": [1, counts]}}


class WithNumpyLater(WithNumpy):
    late = 2  # at the start and in iteration 3


def test_a_state_that_cannot_be_loaded_is_refused_at_the_start(capsys):
    assert train(ppo, f"--env-id {__name__}:WithNumpy") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "state.env.mine.counts.1 (numpy.ndarray)" in line and "tensors" in line
    assert not pathlib.Path("runs").exists()


def test_one_that_cannot_later_replaces_no_good_one(capsys):
    assert train(ppo, f"--env-id {__name__}:WithNumpyLater") == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("no checkpoint: state.env.mine.counts.1 (numpy.ndarray)")
    assert checkpoint(the_run())["iteration"] == 3


def test_no_flipped_bit_is_loaded():
    data = bytes(encode({"weights": torch.randn(500), "more": {"a": [1, 2.0, "x", None, (True,)]}}))
    decode(data)
    bits = random.Random(0).sample(range(8 * len(data)), 300) + list(range(8 * len(data) - 8 * 60, 8 * len(data)))
    for bit in bits:  # the last 60 bytes: end of the zip's directory, length of the comment, checksum
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Exception):
            decode(bytes(flipped))


@pytest.mark.parametrize("script", [cpo, epo], ids=["cpo", "epo"])
def test_a_damaged_checkpoint_is_one_line_and_nothing_is_touched(script, capsys):
    assert train(script) == 0
    folder = the_run()
    saved = checkpoint(folder)
    (folder / "checkpoint_previous.pt").unlink()
    cases = list(damages(saved))
    assert len(cases) > 250
    wrong = {}
    for what, damaged in cases[::9]:
        (folder / "checkpoint.pt").write_bytes(bytes(encode(damaged)))
        wrong[what] = refused(script, folder)
        for path in folder.glob("*previous*"):
            path.unlink()
    assert {what: error for what, error in wrong.items() if error} == {}


@pytest.mark.parametrize("values", [("a",), (1.5,), (True,), (None,), ((8,),)], ids=str)
def test_a_flag_in_a_checkpoint_has_its_type_throughout(values):
    assert train() == 0
    saved = checkpoint(the_run())
    (the_run() / "checkpoint_previous.pt").unlink()
    saved["args"]["hidden_sizes"] = values
    (the_run() / "checkpoint.pt").write_bytes(bytes(encode(saved)))
    assert refused(ppo, the_run()) == ""


def test_what_is_no_checkpoint_is_one_line():
    assert train() == 0
    path = the_run() / "checkpoint.pt"
    data, wrong = path.read_bytes(), {}
    (the_run() / "checkpoint_previous.pt").unlink()
    for what, broken in broken_files(data):
        path.write_bytes(broken)
        wrong[what] = refused(ppo, the_run())
    for what, make in odd_files(path):
        path.rmdir() if path.is_dir() else path.unlink()
        make()
        wrong[what] = refused(ppo, the_run())
    assert len(wrong) > 25 and {what: error for what, error in wrong.items() if error} == {}


def test_the_one_before_is_taken_where_it_is_whole(capsys):
    assert train(epo) == 0
    folder = the_run()
    saved, files = checkpoint(folder), contents(folder)
    for entry in ("agent", "optimizer", "obs", "lineage_stats"):
        for path, data in files.items():
            path.write_bytes(data)
        state = {name: value for name, value in saved["state"].items() if name != entry}
        (folder / "checkpoint.pt").write_bytes(bytes(encode({**saved, "state": state})))
        capsys.readouterr()
        assert resume(epo, folder) == 0
        captured = capsys.readouterr()
        (line,) = captured.err.splitlines()
        assert line.startswith(f"going on from {folder}/checkpoint_previous.pt: checkpoint.pt") and entry in line
        assert captured.out.splitlines()[1].split()[0] == "896"  # iteration 7 of 128 steps each


@pytest.mark.parametrize("which", ["the run", "the file"])
@pytest.mark.parametrize("damage", ["cut", "entry missing"])
def test_a_damaged_checkpoint_replaces_no_good_one(damage, which, monkeypatch, capsys):
    assert train() == 0
    folder = the_run()
    path, saved = folder / "checkpoint.pt", checkpoint(folder)
    del saved["state"]["agent"]
    damaged = path.read_bytes()[:-100] if damage == "cut" else bytes(encode(saved))
    path.write_bytes(damaged)
    save, good = harness.checkpoints.save_checkpoint, []

    def watched(folder, data):
        save(folder, data)
        good.append([checkpoint(folder, name)["iteration"] for name in names if (folder / name).exists()])
        assert all("agent" in checkpoint(folder, name)["state"] for name in names if (folder / name).exists())

    names = ("checkpoint.pt", "checkpoint_previous.pt")
    monkeypatch.setattr(harness.checkpoints, "save_checkpoint", lambda run, data: watched(pathlib.Path(run), data))
    capsys.readouterr()
    resumed = folder if which == "the run" else folder / "checkpoint_previous.pt"
    assert resume(ppo, resumed, "--total-timesteps 1280 --checkpoint-interval 9") == 0
    assert good == [[9, 6], [10, 9]] and (folder / "checkpoint_rejected.pt").read_bytes() == damaged
    assert len(capsys.readouterr().err.splitlines()) == (1 if which == "the run" else 0)


# ---------------------------------------------------------------- signals, pipes, the clock


def stopped(process):
    out, err = process.communicate(timeout=60)
    assert err == ""
    saved = checkpoint(the_run())
    assert f"{saved['global_step']:,}" in out.splitlines()[-2]
    return process.returncode


def test_a_signal_to_a_process_saves():
    process = start(ppo, f"{FLAGS} {LONG} --checkpoint-interval 0")
    for _ in range(4):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert stopped(process) == 128 + signal.SIGINT


@pytest.mark.parametrize("signum", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves(signum, monkeypatch, capsys):
    """And the run goes on from there."""
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where tests run under nohup
    with monkeypatch.context() as patch:
        between(patch, {3: lambda: os.kill(os.getpid(), signum)})
        assert train(ppo, f"{LONG} --checkpoint-interval 0") == 128 + signum
    signal.signal(signal.SIGHUP, hangup)
    out, err = capsys.readouterr()
    *_, last, farewell = out.splitlines()
    assert farewell == f"stopped; to go on: --resume {the_run()}" and last.split()[0] == "384" and err == ""
    assert checkpoint(the_run())["global_step"] == 384
    assert resume(ppo, the_run(), "--total-timesteps 512") == 0 and checkpoint(the_run())["iteration"] == 4


def test_nohup_outlives_the_terminal():
    process = start(ppo, f"{FLAGS} {LONG} --checkpoint-interval 0", prefix="nohup")
    for _ in range(4):
        process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    for _ in range(20):
        assert process.stdout.readline()
    process.terminate()
    process.communicate()
    assert process.returncode == 128 + signal.SIGTERM


def test_a_pipe_that_is_closed_saves_and_ends_quietly():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    flags = f"{FLAGS} {LONG} --checkpoint-interval 0"
    command = f"{sys.executable} {ROOT}/ppo.py {flags} | head -3; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 128 + signal.SIGPIPE and done.stderr == "" and len(done.stdout.splitlines()) == 3
    assert checkpoint(the_run())["iteration"] >= 2


@pytest.mark.parametrize("delay", [0.0, 0.5])
def test_ctrl_c_while_starting_is_one_line(delay):
    """From the moment at which torch's libraries are loaded; the interpreter's own start is not ours."""
    process = start(ppo, f"{FLAGS} --env-id Cartpole")
    while "libtorch" not in pathlib.Path(f"/proc/{process.pid}/maps").read_text():
        time.sleep(0.01)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "interrupted\n") or "stopped" in out


@pytest.mark.parametrize("moment", ["interval", "stop"])
def test_a_second_signal_waits_for_the_checkpoint(moment, monkeypatch, capsys):
    save, handler = harness.checkpoints.save_checkpoint, signal.getsignal(signal.SIGINT)

    def interrupted(folder, data):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        save(folder, data)

    monkeypatch.setattr(harness.checkpoints, "save_checkpoint", interrupted)
    if moment == "stop":
        between(monkeypatch, {2: lambda: os.kill(os.getpid(), signal.SIGTERM)})
    assert train() == 128 + signal.SIGTERM and capsys.readouterr().err == ""
    assert checkpoint(the_run())["iteration"] == (2 if moment == "stop" else 4)
    assert signal.getsignal(signal.SIGINT) == handler


def test_a_second_signal_ends_a_run_at_once_without_traceback(monkeypatch, capsys):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    between(monkeypatch, {4: twice})
    assert train() == 130 and capsys.readouterr().err == ""
    assert checkpoint(the_run())["iteration"] == 3


def test_a_clock_that_is_set_back_changes_nothing(monkeypatch, capsys):
    clock, offset = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: clock() + offset[0])
    between(monkeypatch, {2: lambda: offset.append(offset.pop() - 864000.0)})
    assert train() == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    speeds = [int(re.search(r"([\d,]+) SPS", line).group(1).replace(",", "")) for line in lines]
    assert all(speed > 0 for speed in speeds) and all("day" not in line for line in lines)
    assert checkpoint(the_run())["seconds"] < 60


@pytest.mark.parametrize("script", [ppo, sapg, cpo, epo], ids=lambda script: script.__name__)
def test_a_clock_that_runs_backwards_leaves_the_durations(script, monkeypatch):
    ticks = itertools.count(int(time.time()), -1)
    monkeypatch.setattr(time, "time", lambda: float(next(ticks)))
    assert train(script) == 0
    for key in ("perf/rollout_s", "perf/update_s"):
        assert all(0 < event.value < 60 for event in scalars(the_run(), key))


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("flags, name, fits", [
    ("--num-envs 1000000000 --num-agents 1000", "--num-envs", True),
    ("--num-steps 100000000", "--num-steps", True),
    ("--lstm --lstm-size 100000000", "--lstm-size", True),
    ("--latent-dim 1000000000", "--latent-dim", True),
    ("--hidden-sizes 64 100000000", "--hidden-sizes", True),
    ("--adversarial-coef 1 --discriminator-sizes 100000000 100000000", "--discriminator-sizes", True),
    ("--learning-rate 1e300", "--learning-rate", False),
    ("--learning-rate nan", "--learning-rate", False),
    ("--max-grad-norm 1e300", "--max-grad-norm", False),
    ("--max-grad-norm 0", "--max-grad-norm", False),
    ("--reward-scale 0", "--reward-scale", False),
    ("--critic-n-step 1000000000", "--critic-n-step", False),
    ("--update-epochs 1000000000", "--update-epochs", False),
    (f"--hidden-sizes 64 {10**400}", "--hidden-sizes", False),
    ("--seed 100000000000", "--seed", False),
])  # fmt: skip
def test_what_cannot_work_is_refused_before_anything_is_created(flags, name, fits, capsys):
    assert train(cpo, f"--env-id Moat {flags}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(name) and not pathlib.Path("runs").exists()
    assert not fits or "GB" in line and int(line.split("flags ")[1].split()[0]) >= 1


NUMBERS = ("nan", "inf", "-inf", "-1", "1e300", "1" + "0" * 30, "-1" + "0" * 400, "1" + "0" * 400, str(2**63))
NUMERIC = [f.name for f in dataclasses.fields(cpo.Args) if f.init and type(f.default) in (int, float)]


@pytest.mark.parametrize("name", NUMERIC)
def test_numbers_that_no_flag_can_take(name, capsys):
    """Of those that tyro takes for a number; it says itself what is none."""
    integer = isinstance(getattr(cpo.Args, name), int)
    for value in NUMBERS:
        if integer and not value.lstrip("-").isdigit() or name == "ent_coef" and value == "-1":  # that is a penalty
            continue
        assert train(cpo, f"--env-id Moat {harness.flags.flag(name)} {value}") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("--") and not pathlib.Path("runs").exists()


@pytest.mark.parametrize("script", [ppo, cpo], ids=lambda script: script.__name__)
@pytest.mark.parametrize("flag, value", [
    ("--num-envs", 6144), ("--num-steps", 4096), ("--hidden-sizes", 65536), ("--lstm --lstm-size", 4096),
])  # fmt: skip
def test_the_number_that_is_named_fits(script, flag, value, monkeypatch, capsys):
    """On a machine of 16 MB. Twice the number does not."""
    sizes = {"SC_PHYS_PAGES": 2**12, "SC_PAGE_SIZE": 2**12}
    sysconf = os.sysconf
    monkeypatch.setattr(os, "sysconf", lambda name: sizes.get(name) or sysconf(name))
    flags = f"--env-id Moat --total-timesteps 1 {flag}"
    assert train(script, f"{flags} {value}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{flag.split()[-1]} ") and not pathlib.Path("runs").exists()
    fits = int(line.split("flags ")[1].split()[0])
    assert train(script, f"{flags} {2 * fits}") == 2 and train(script, f"{flags} {fits}") == 0


def test_the_memory_of_the_physics_counts(monkeypatch, capsys):
    """On a machine of 64 MB: the rollout of 100,000 Cartpoles takes 32 MB, their physics more than there is."""
    sizes = {"SC_PHYS_PAGES": 2**14, "SC_PAGE_SIZE": 2**12}
    sysconf = os.sysconf
    monkeypatch.setattr(os, "sysconf", lambda name: sizes.get(name) or sysconf(name))
    flags = "--env-id Cartpole --num-steps 2 --num-minibatches 100 --total-timesteps 1 --num-envs"
    assert train(ppo, f"{flags} 100000") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("--num-envs 100000: needs 0.2 GB of memory") and not pathlib.Path("runs").exists()
    fits = int(line.split("flags ")[1].split()[0])
    assert fits > 1000 and train(ppo, f"{flags} {2 * fits}") == 2 and train(ppo, f"{flags} {fits}") == 0


@pytest.mark.parametrize("env_id, num_envs", [("Ant", 8192), ("AllegroKukaRegrasping", 128)])
def test_the_memory_of_the_physics_is_estimated_from_one_world(env_id, num_envs):
    """Within a factor of two of what the process takes. AllegroKuka's worlds have models of their own."""
    code = f"""
import envs, pathlib, re, torch
def play(num_envs):
    env = envs.make("{env_id}", num_envs)
    env.reset(), env.step(torch.zeros(num_envs, env.num_actions))
    return env, 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text()).group(1))
(one, before), (_, after) = play(1), play({num_envs})
print(one.engine.bytes_for({num_envs}) / (after - before))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert 0.5 < float(done.stdout) < 2.0


@pytest.mark.parametrize("group, name, limit, expected", [
    ("0::/job/step", "job/memory.max", "1000000", 1_000_000),
    ("0::/job", "job/memory.max", "max", None),
    ("0::/elsewhere", "memory.max", "1000000", 1_000_000),  # the path on the host, seen from a container
    ("7:memory:/job", "memory/job/memory.limit_in_bytes", "1000000", 1_000_000),
    ("7:memory:/job", "memory/job/memory.limit_in_bytes", "9223372036854771712", None),
    ("5:cpuset:/job", "memory/job/memory.limit_in_bytes", "1000000", None),
])  # fmt: skip
def test_the_limit_of_a_control_group_counts(group, name, limit, expected, tmp_path):
    path = tmp_path / "cgroup" / name
    path.parent.mkdir(parents=True)
    path.write_text(limit + "\n")
    (tmp_path / "own").write_text(f"3:cpu,cpuacct:/\n{group}\n")
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert harness.flags.host_memory(tmp_path / "own", tmp_path / "cgroup") == (expected or machine)
    assert harness.flags.host_memory(tmp_path / "missing", tmp_path / "cgroup") == machine


@pytest.mark.parametrize("value", ["", "nowhere", "runs"])
def test_resume_needs_a_run(value, capsys):
    with pytest.raises(SystemExit) as end:
        ppo.main(["--resume", value])
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and line.startswith("--resume ") and not pathlib.Path("runs").exists()


def test_any_number_of_steps_may_be_asked_for(monkeypatch, capsys):
    between(monkeypatch, {2: lambda: os.kill(os.getpid(), signal.SIGTERM)})
    assert train(epo, "--env-id Moat --total-timesteps 1000000000000000000") == 143
    assert capsys.readouterr().err == ""


# ---------------------------------------------------------------- a user's own environment

TASK = """
import torch
from envs.base import VectorEnv

class Mine(VectorEnv):
    num_obs, num_actions, max_episode_steps = 3, 2, 5
    def __init__(self, num_envs, device, seed):
        super().__init__(num_envs, device, seed)
        {constructor}
        self.calls = 0
    def reset_where(self, mask):
        {reset_where}
    def advance(self, action):
        self.calls += 1
        {advance}
        no = torch.zeros(self.num_envs, dtype=torch.bool)
        return action.sum(1), no, no.clone()
    def observe(self):
        return torch.ones(self.num_envs, 3)
    def state_dict(self):
        {save}
        return super().state_dict()
    def load_state_dict(self, state):
        {load}
        super().load_state_dict(state)
"""


def write_task(**lines):
    slots = dict.fromkeys(("constructor", "reset_where", "advance", "save", "load"), "pass")
    pathlib.Path("mine.py").write_text(TASK.format(**{**slots, **lines}))


@pytest.fixture
def outcome(capsys):
    """outcome(train or resume, ...) -> exit status, output, errors, as of a process of its own."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}

    def call(function, *inputs):
        capsys.readouterr()
        sys.modules.pop("mine", None)
        try:
            status = function(*inputs)
        except Exception:
            sys.excepthook(*sys.exc_info())
            status = 1
        return (status, *capsys.readouterr())

    yield call
    sys.modules.pop("mine", None)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("method, line, error", [
    ("constructor", 'raise ValueError("constructor wants a file")', "ValueError in Mine.__init__"),
    ("reset_where", "{}[3]", "KeyError in Mine.reset_where"),
    ("advance", "if self.calls == 20: self.position", "AttributeError in Mine.advance"),
    ("advance", "if self.calls == 20: raise BrokenPipeError", "BrokenPipeError in Mine.advance"),
    ("advance", "if self.calls == 20: __import__('sys').exit(0)", "RuntimeError in Mine.advance"),
    ("advance", "__import__('argparse').ArgumentParser().exit()", "RuntimeError in Mine.advance"),
    ("reset_where", "raise SystemExit", "RuntimeError in Mine.reset_where"),
    ("save", "if self.calls == 24: quit()", "RuntimeError in Mine.state_dict"),
    ("load", "__import__('sys').exit(3)", "RuntimeError in Mine.load_state_dict"),
])  # fmt: skip
def test_an_error_in_the_users_environment_is_shown_as_it_is(method, line, error, outcome):
    write_task(**{method: line})
    status, _, err = outcome(train, ppo, "--env-id mine:Mine")
    *trace, last = err.splitlines()
    assert status == 1 and trace[0].startswith("Traceback") and "mine.py\", line" in err
    assert any(text.strip() == line.replace("if self.calls == 20: ", "") or line in text for text in trace)
    assert last == f"--env-id mine:Mine: {error}"


def test_methods_need_not_call_their_environment_self(outcome):
    write_task(constructor='raise ValueError("constructor wants a file")')
    text = pathlib.Path("mine.py").read_text()
    pathlib.Path("mine.py").write_text(text.replace("(self, num_envs", "(this, num_envs"))
    status, _, err = outcome(train, ppo, "--env-id mine:Mine")
    assert status == 1 and err.splitlines()[-1] == "--env-id mine:Mine: ValueError in Mine.__init__"


def test_a_function_of_ours_that_is_given_an_environment_is_not_its_method(monkeypatch):
    def play(env):
        raise ValueError("ours")

    with pytest.raises(ValueError) as error:
        play(Still(1, "cpu", 1))
    assert uncaught.raised_in(error.value, f"{__name__}:Still", inherited=True) == ""


def evaluated():
    """Exit status of evaluate.py on the only run, and the lines that it writes to standard error."""
    process = start(evaluate, f"{the_run()} --episodes 2")
    err = process.communicate(timeout=120)[1]
    return process.returncode, err.splitlines()


def test_a_constructor_that_calls_exit_is_one_line(outcome):
    write_task()
    assert outcome(train, ppo, "--env-id mine:Mine")[0] == 0
    write_task(constructor="import sys; sys.exit(0)")
    line = "--env-id mine:Mine: its constructor calls sys.exit, must return"
    assert evaluated() == (2, [line])
    status, _, err = outcome(train, ppo, "--env-id mine:Mine")
    assert (status, err.splitlines()) == (2, [line]) and the_run()


@pytest.mark.parametrize("place", ["constructor", "module"])
def test_evaluate_shows_an_error_in_the_users_environment_as_it_is(place, outcome):
    write_task()
    assert outcome(train, ppo, "--env-id mine:Mine")[0] == 0
    error = 'raise ValueError("wants a file")'
    if place == "module":
        pathlib.Path("mine.py").write_text(error)
    else:
        write_task(constructor=error)
    status, lines = evaluated()
    where = "Mine.__init__" if place == "constructor" else "mine"
    assert status == 1 and lines[0].startswith("Traceback") and any(line.strip() == error for line in lines)
    assert lines[-1] == f"--env-id mine:Mine: ValueError in {where}"


def test_evaluate_checks_the_first_calls(outcome):
    write_task()
    assert outcome(train, ppo, "--env-id mine:Mine")[0] == 0
    write_task(advance="return action.sum(1, keepdim=True), None, None")
    status, (line,) = evaluated()
    assert status == 2 and line.startswith("--env-id mine:Mine: reward is a torch.float32 tensor of shape (2, 1) on")


def test_an_error_in_the_users_load_state_dict_is_theirs(outcome):
    write_task()
    assert outcome(train, ppo, "--env-id mine:Mine")[0] == 0
    write_task(load="1 / 0")
    status, _, err = outcome(resume, ppo, the_run())
    assert status == 1
    assert err.startswith("Traceback") and err.splitlines()[-1].endswith("ZeroDivisionError in Mine.load_state_dict")


@pytest.mark.parametrize("text, status, last", [
    ("import sys\nsys.exit(0)", 2, "calls sys.exit when imported"),
    ("def f(:", 2, "invalid syntax"),
    ("import no_such_package", 2, "No module named 'no_such_package'"),
    ("class Other: pass", 2, "no attribute 'Mine'"),
    ("Mine = 3", 2, "not a class"),
    ("x = 1 / 0", 1, "--env-id mine:Mine: ZeroDivisionError in mine"),
    ("raise ValueError('the module wants a file')", 1, "--env-id mine:Mine: ValueError in mine"),
])  # fmt: skip
def test_a_module_that_cannot_be_imported(text, status, last, outcome):
    pathlib.Path("mine.py").write_text(text)
    code, out, err = outcome(train, ppo, "--env-id mine:Mine")
    assert code == status and out == "" and last in err.splitlines()[-1]
    assert len(err.splitlines()) == 1 or status == 1
    assert not pathlib.Path("runs").exists()


def changed(**changes):
    """A subclass of Still with attributes or methods replaced; a result that a function changes."""
    return type("Broken", (Still,), changes)


def step_with(**changes):
    def step(self, action):
        names = ("obs", "reward", "terminated", "truncated", "info")
        result = dict(zip(names, Still.step(self, action)))
        for name, change in changes.items():
            info = result["info"]
            target = next(x for x in (result, info, info["episode"]) if name in x)
            target[name] = change(target[name])
        return tuple(result[name] for name in names)

    return changed(step=step)


def with_device(device):
    return changed(__init__=lambda self, *inputs: VectorEnv.__init__(self, *inputs) or setattr(self, "device", device))


def advancing(change):
    """A subclass of Still whose advance() returns change(reward, terminated, truncated)."""
    return changed(advance=lambda self, action: change(*Still.advance(self, action)))


N = 16
BROKEN = {
    "num_obs 0": (changed(num_obs=0), "num_obs is 0"),
    "num_obs missing": (changed(num_obs=None), "num_obs is None"),
    "num_actions 0": (changed(num_actions=0), "num_actions is 0"),
    "num_actions float": (changed(num_actions=2.0), "num_actions is 2.0"),
    "reset None": (changed(reset=lambda self: None), "a NoneType"),
    "reset numpy": (changed(reset=lambda self: np.ones((N, 3))), "a ndarray"),
    "reset shape": (changed(reset=lambda self: torch.ones(N, 1)), "shape (16, 1)"),
    "reset double": (changed(reset=lambda self: torch.ones(N, 3).double()), "float64"),
    "reset nan": (changed(reset=lambda self: torch.full((N, 3), float("nan"))), "not finite"),
    "reset device": (changed(reset=lambda self: torch.ones(N, 3, device="meta")), "on meta"),
    "reset tuple": (changed(reset=lambda self: (torch.ones(N, 3), {})), "a tuple"),
    "step None": (changed(step=lambda self, action: None), "a NoneType"),
    "step of four": (changed(step=lambda self, action: Still.step(self, action)[:4]), "a tuple of 4"),
    "obs shape": (step_with(obs=lambda x: x[:, :1]), "shape (16, 1)"),
    "obs numpy": (step_with(obs=lambda x: x.numpy()), "a ndarray"),
    "obs inf": (step_with(obs=lambda x: x / 0), "not finite"),
    "reward scalar": (step_with(reward=lambda x: x.mean()), "reward is a torch.float32 tensor of shape ()"),
    "reward column": (step_with(reward=lambda x: x[:, None]), "shape (16, 1)"),
    "reward list": (step_with(reward=lambda x: x.tolist()), "a list"),
    "reward int": (step_with(reward=lambda x: x.long()), "int64"),
    "reward nan": (step_with(reward=lambda x: x * float("nan")), "reward is not finite"),
    "terminated float": (step_with(terminated=lambda x: x.float()), "terminated is a torch.float32"),
    "terminated bool": (step_with(terminated=lambda x: False), "terminated is a bool"),
    "truncated shape": (step_with(truncated=lambda x: x[:3]), "shape (3,)"),
    "both": (step_with(terminated=lambda x: ~x & True, truncated=lambda x: x | True), "both terminated and truncated"),
    "info None": (step_with(info=lambda x: None), "info is a NoneType"),
    "info empty": (step_with(info=lambda x: {}), "without final_obs, episode, metrics"),
    "final_obs missing": (step_with(info=lambda x: {k: x[k] for k in ("episode", "metrics")}), "without final_obs"),
    "final_obs shape": (step_with(final_obs=lambda x: x[0]), "shape (3,)"),
    "episode None": (step_with(episode=lambda x: None), "a NoneType"),
    "no objective": (step_with(episode=lambda x: {k: x[k] for k in ("done", "return", "length")}), "without objective"),
    "done float": (step_with(done=lambda x: x.float()), '["done"] is a torch.float32'),
    "length int": (step_with(length=lambda x: x.long()), '["length"] is a torch.int64'),
    "objective scalar": (step_with(objective=lambda x: x.mean()), '["objective"]'),
    "metrics list": (step_with(metrics=lambda x: []), '["metrics"] is a list'),
    "metric text": (step_with(metrics=lambda x: {"a": "b"}), '["a"] is a str'),
    "metric vector": (step_with(metrics=lambda x: {"a": torch.ones(3)}), '["a"] is a Tensor of shape (3,)'),
    "no state_dict": (changed(state_dict=None), "the method state_dict is missing"),
    "num_obs bool": (changed(num_obs=True), "num_obs is True"),
    "num_obs numpy": (changed(num_obs=np.int64(3)), "num_obs is "),
    "no device": (with_device(None), "device is None"),
    "device unknown": (with_device("moon"), "reset() ends with RuntimeError"),
    "no time limit": (changed(max_episode_steps=None), "max_episode_steps is None"),
    "time limit 0": (changed(max_episode_steps=0), "max_episode_steps is 0"),
    "time limit float": (changed(max_episode_steps=2.5), "max_episode_steps is 2.5"),
    "no observe": (changed(observe=VectorEnv.observe), "the method observe is missing"),
    "no advance": (changed(advance=VectorEnv.advance), "the method advance is missing"),
    "no reset_where": (changed(reset_where=VectorEnv.reset_where), "the method reset_where is missing"),
    "observe with an argument": (changed(observe=lambda self, seed: None), "reset() ends with TypeError"),
    "observe tuple": (changed(observe=lambda self: (torch.ones(N, 3), {})), "a tuple"),
    "observe gradient": (changed(observe=lambda self: torch.ones(N, 3, requires_grad=True)), "requires grad"),
    "observe sparse": (changed(observe=lambda self: torch.ones(N, 3).to_sparse()), "sparse"),
    "observe half": (changed(observe=lambda self: torch.ones(N, 3).half()), "float16"),
    "reset with an argument": (changed(reset=lambda self, seed: None), "reset() ends with TypeError"),
    "step without an argument": (changed(step=lambda self: None), "step() ends with TypeError"),
    "step list": (changed(step=lambda self, action: list(Still.step(self, action))), "the result of step() is a list"),
    "step of six": (changed(step=lambda self, action: (*Still.step(self, action), 1)), "a tuple of 6"),
    "advance None": (advancing(lambda *result: None), "the result of advance() is a NoneType"),
    "advance two": (advancing(lambda *result: result[:2]), "the result of advance() is a tuple of 2"),
    "advance four": (advancing(lambda *result: (*result, {})), "the result of advance() is a tuple of 4"),
    "advance dict": (advancing(lambda *result: dict(enumerate(result))), "the result of advance() is a dict"),
    "advance numpy": (advancing(lambda r, end, cut: (r.numpy(), end, cut)), "reward is a ndarray"),
    "advance scalar": (advancing(lambda r, end, cut: (1.0, end, cut)), "reward is a float"),
    "advance column": (advancing(lambda r, end, cut: (r[:, None], end, cut)), "shape (16, 1)"),
    "advance double": (advancing(lambda r, end, cut: (r.double(), end, cut)), "float64"),
    "advance list": (advancing(lambda r, end, cut: (r.tolist(), end, cut)), "reward is a list"),
    "advance infinite": (advancing(lambda r, end, cut: (r / 0, end, cut)), "reward is not finite"),
    "advance False": (advancing(lambda r, end, cut: (r, False, False)), "terminated is a bool"),
    "advance None, None": (advancing(lambda r, end, cut: (r, None, None)), "terminated is a NoneType"),
    "advance int": (advancing(lambda r, end, cut: (r, end.int(), cut.int())), "terminated is a torch.int32"),
    "advance float": (advancing(lambda r, end, cut: (r, end.float(), cut)), "terminated is a torch.float32"),
    "advance shape": (advancing(lambda r, end, cut: (r, end, cut[:3])), "truncated is a torch.bool tensor of shape (3"),
    "done differs": (step_with(done=lambda x: ~x), 'info["episode"]["done"] is true in running episodes'),
    "objective None": (changed(objective=lambda self: None), '["objective"] is a NoneType'),
    "metrics None": (changed(metrics=lambda self: None), '["metrics"] is a NoneType'),
    "metric complex": (changed(metrics=lambda self: {"a": torch.ones(()) * 1j}), '["a"] is a Tensor'),
    "metric meta": (changed(metrics=lambda self: {"a": torch.ones((), device="meta")}), '["a"] is a Tensor'),
    "metric huge": (changed(metrics=lambda self: {"a": 10**400}), '["a"] is a int'),
    "curriculum text": (changed(curriculum="level"), "curriculum is 'level'"),
    "curriculum float": (changed(curriculum=("level",), level=0.5), "curriculum is ('level',)"),
    "num_envs": (changed(num_envs=property(lambda self: 3, lambda self, n: None)), "num_envs is 3"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_environment_is_one_line(name, monkeypatch, capsys):
    broken, expected = BROKEN[name]
    monkeypatch.setattr(sys.modules[__name__], "Broken", broken, raising=False)
    assert train(sapg, f"--env-id {__name__}:Broken") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"--env-id {__name__}:Broken: ") and expected in line and ", must be " in line


class WithoutArguments(Still):
    def __init__(self):
        pass


class WithKeywords(Still):
    def __init__(self, *, num_envs, device, seed):
        super().__init__(num_envs, device, seed)


class Abstract(Still, abc.ABC):
    @abc.abstractmethod
    def goal(self): ...


class Slots:
    """Nothing can be put into its place."""

    __slots__ = ()
    num_envs, num_obs, num_actions, device = N, 3, 2, "cpu"

    def __init__(self, num_envs, device, seed):
        pass

    reset = step = state_dict = load_state_dict = lambda self: None


@pytest.mark.parametrize("task, expected", [
    (WithoutArguments, "its constructor must take (num_envs, device, seed)"),
    (WithKeywords, "its constructor must take (num_envs, device, seed)"),
    (Abstract, "an abstract class, without goal"),
    (Slots, "replacing reset ends with AttributeError"),
])  # fmt: skip
def test_a_constructor_that_cannot_be_called(task, expected, capsys):
    assert train(ppo, f"--env-id {__name__}:{task.__name__}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line and not pathlib.Path("runs").exists()


@pytest.mark.parametrize("state", [None, [1], {}, {"generator": 1}], ids=["None", "list", "{}", "generator"])
def test_a_state_that_the_environment_cannot_load_is_refused_at_the_start(state, monkeypatch, capsys):
    monkeypatch.setattr(sys.modules[__name__], "Broken", changed(state_dict=lambda self: state), raising=False)
    assert train(ppo, f"--env-id {__name__}:Broken") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be saved and loaded" in line and not pathlib.Path("runs").exists()


def test_an_error_after_the_first_step_names_the_class():
    """One that comes from the contract's own code, not from the task's; in a process."""
    write_task(advance="if self.calls == 20: return None")
    process = start(ppo, f"{FLAGS} --env-id mine:Mine")
    err = process.communicate(timeout=120)[1]
    assert process.returncode == 1 and err.splitlines()[-1] == "--env-id mine:Mine: TypeError in Mine.step"


def test_a_second_signal_ends_a_custom_task_at_once():
    """Also from within its methods, in which sys.exit is an error."""
    write_task(advance="if self.calls == 20: [__import__('os').kill(__import__('os').getpid(), 15) for _ in 'ab']")
    process = start(ppo, f"{FLAGS} --env-id mine:Mine")
    assert process.communicate(timeout=120)[1] == "" and process.returncode == 143


def test_after_its_first_calls_an_environment_is_left_alone(monkeypatch):
    """But for sys.exit in a custom task's."""
    made = []
    make = harness.flags.envs.make
    monkeypatch.setattr(harness.flags.envs, "make", lambda *args, **flags: made.append(make(*args, **flags)) or made[0])
    assert train(ppo, f"--env-id {__name__}:Still") == 0
    assert made[0].step.__wrapped__.__func__ is VectorEnv.step
    assert made[0].reset.__wrapped__.__func__ is VectorEnv.reset
    assert made[0].advance.__func__ is Still.advance
