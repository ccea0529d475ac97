"""Kills, signals and full disks: what was saved is never lost, and what could not be saved is said."""

import os
import pathlib
import random
import resource
import shutil
import signal
import time

import pytest
import torch

import epo
import harness.checkpoints
import harness.run
import ppo
from tests.conftest import scalars, the_run
from tests.scripts.conftest import assert_same_state, checkpoint, start, train

STEPS = 16 * 8  # of an iteration
FLAGS = "--no-cuda --env-id Moat --num-envs 16 --num-steps 8 --num-minibatches 2 --update-epochs 1 --hidden-sizes 8"
EIGHT = f"--total-timesteps {8 * STEPS}"  # iterations
EVERY_ITERATION = "--checkpoint-interval 1e-9"  # minutes
ENDLESS = f"--total-timesteps 1000000000000 {EVERY_ITERATION}"
POPULATION = {ppo: "", epo: "--num-agents 4 --latent-dim 5 --ga-interval 0.1 --ga-warmup 0.1"}


def between(monkeypatch, actions):
    """actions: iteration -> what is done before that iteration's checkpoint and log."""
    save = harness.run.Run.checkpoint

    def checkpoint(self, iteration, global_step):
        actions.get(iteration, lambda: None)()
        save(self, iteration, global_step)

    monkeypatch.setattr(harness.run.Run, "checkpoint", checkpoint)


def send(*signals):
    for number in signals:
        os.kill(os.getpid(), number)


def started(script, flags):
    """A process that has finished an iteration, and that iteration's line."""
    process = start(script, flags)
    while " steps " not in (line := process.stdout.readline()):
        assert line, process.stderr.read()
    return process, line


# ---------------------------------------------------------------- kills


@pytest.mark.parametrize("script, kills", [
    (ppo, 2), (epo, 2), pytest.param(epo, 40, marks=pytest.mark.slow),
], ids=["ppo", "epo", "forty"])  # fmt: skip
def test_a_killed_run_loses_nothing(script, kills):
    """SIGKILL at random moments; what is left is whole, resumes, and is an uninterrupted run, bit by bit."""
    moments, fresh, folder = random.Random(kills), f"{FLAGS} {POPULATION[script]}", None
    for _ in range(kills):
        process, line = started(script, f"--no-cuda --resume {folder} {ENDLESS}" if folder else f"{fresh} {ENDLESS}")
        time.sleep(moments.uniform(0.0, 0.3))
        process.kill()
        rest, err = process.communicate()
        assert err == ""
        printed = [line, *rest.splitlines()[:-1]]  # the last line may be half of one
        folder, last = the_run(), int(printed[-1].split()[0].replace(",", ""))
        saved = harness.load_checkpoint(str(folder))
        assert saved["global_step"] >= last
    folder.rename("killed")
    train(script, f"{fresh} --total-timesteps {saved['global_step']} --checkpoint-interval 0")
    assert_same_state(checkpoint(the_run()), saved)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("module, name", [
    (torch, "save"), (os, "fsync"), (shutil, "copyfile"), (os, "replace"),
], ids=lambda x: x if isinstance(x, str) else "")  # fmt: skip
def test_at_every_moment_checkpoint_pt_is_a_whole_one(module, name, after, monkeypatch):
    call = getattr(module, name)

    def killed(*inputs, **options):
        if after:
            call(*inputs, **options)
        raise KeyboardInterrupt

    harness.checkpoints.save_checkpoint("checkpoint.pt", {"iteration": 1})
    harness.checkpoints.save_checkpoint("checkpoint.pt", {"iteration": 2})
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, name, killed)
        harness.checkpoints.save_checkpoint("checkpoint.pt", {"iteration": 3})
    found = checkpoint(pathlib.Path())["iteration"]
    assert found == (3 if name == "replace" and after else 2)
    harness.checkpoints.save_checkpoint("checkpoint.pt", {"iteration": 4})
    assert checkpoint(pathlib.Path())["iteration"] == 4
    assert checkpoint(pathlib.Path(), "checkpoint_previous.pt")["iteration"] == found


def test_a_second_process_on_a_folder_is_refused(capsys):
    first, _ = started(ppo, f"{FLAGS} {ENDLESS}")
    status, folder = train(ppo, f"--no-cuda --resume {the_run()} {ENDLESS}"), the_run()
    first.kill()
    first.communicate()
    assert status == 2
    assert capsys.readouterr().err == f"--resume {folder.resolve()}: another process is training in this folder\n"
    assert train(ppo, f"--no-cuda --resume {folder} --total-timesteps {checkpoint(folder)['global_step'] + STEPS}") == 0


# ---------------------------------------------------------------- signals


@pytest.fixture
def hangup():
    """SIGHUP as in a terminal, also where tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_the_first_signal_saves_and_the_run_goes_on_from_there(signum, hangup, monkeypatch, capfd):
    handler, times = signal.getsignal(signum), 2 if signum == signal.SIGHUP else 1  # as bash may send it
    with monkeypatch.context() as patch:
        between(patch, {3: lambda: send(*[signum] * times)})
        assert train(ppo, f"{FLAGS} {EIGHT} --capture-video") == 128 + signum  # and waits for no film
    out, err = capfd.readouterr()
    assert signal.getsignal(signum) == handler and checkpoint(the_run())["iteration"] == 3
    assert out.splitlines()[-1] == f"stopped; to resume: python ppo.py --resume {the_run().resolve()}"
    assert err == "stopping after this iteration (Ctrl-C again: now, iterations lost: 3)\n" * times
    between(monkeypatch, {8: lambda: send(signum)})  # in the last iteration there is nothing to stop
    assert train(ppo, f"--no-cuda --resume {the_run()}") == 0 and checkpoint(the_run())["iteration"] == 8


def test_the_second_signal_ends_the_run_at_once(monkeypatch):
    between(monkeypatch, {5: lambda: send(signal.SIGINT, signal.SIGTERM)})
    assert train(ppo, f"{FLAGS} {EIGHT} {EVERY_ITERATION}") == 128 + signal.SIGTERM
    assert checkpoint(the_run())["iteration"] == 4


def test_nohup_outlives_the_terminal(hangup, monkeypatch):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    between(monkeypatch, {3: lambda: send(signal.SIGHUP)})
    assert train(ppo, f"{FLAGS} {EIGHT}") == 0 and checkpoint(the_run())["iteration"] == 8


@pytest.mark.parametrize("gone", [False, True])
def test_ctrl_c_in_a_terminal(gone):
    """Standard error may be gone: `2>&1 | tee log` ends first."""
    process, _ = started(epo, f"{FLAGS} {POPULATION[epo]} --total-timesteps 1000000000000")
    if gone:
        process.stderr.close()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and (gone or len(err.splitlines()) == 1)
    assert f"{checkpoint(the_run())['global_step']:,} steps" in out.splitlines()[-2]


# ---------------------------------------------------------------- full disks


thread_of_the_log = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture
def disk():
    """fill(), free(): no file can grow beyond a few bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield (
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8, before[1])),
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before),
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@thread_of_the_log
def test_a_full_disk_is_said_once_each_time_and_training_goes_on(disk, monkeypatch, capsys):
    fill, free = disk
    between(monkeypatch, {2: fill, 4: free, 5: fill, 7: free})
    assert train(ppo, f"{FLAGS} {EIGHT} {EVERY_ITERATION}") == 0
    said = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in said] == ["no checkpoint", "no log"] * 2
    assert all("File too large" in line and line.endswith("; training goes on") for line in said)
    assert checkpoint(the_run())["iteration"] == 8 and not list(the_run().glob("*.tmp"))
    logged = {event.step // STEPS for event in scalars(the_run(), "charts/learning_rate")}
    assert {1, 4, 7, 8} <= logged


@thread_of_the_log
def test_training_goes_on_where_nothing_can_be_said(disk, monkeypatch):
    """The log of the terminal may be on the full disk."""
    between(monkeypatch, {2: disk[0], 4: disk[1]})
    monkeypatch.setattr("sys.stderr", open("/dev/full", "w", buffering=1))
    assert train(ppo, f"{FLAGS} {EIGHT} {EVERY_ITERATION}") == 0 and checkpoint(the_run())["iteration"] == 8


@thread_of_the_log
def test_a_run_whose_last_checkpoint_could_not_be_written_does_not_end_well(disk, monkeypatch, capsys):
    """With capsys what is printed goes to memory: a full disk refuses pytest's own file."""
    between(monkeypatch, {4: disk[0]})
    status = train(ppo, f"{FLAGS} {EIGHT} {EVERY_ITERATION}")
    disk[1]()
    assert status == "the last checkpoint could not be written"  # exit status 1, and the line on standard error
    assert checkpoint(the_run())["iteration"] == 3
