"""Kills, signals and a full disk: what was saved is never lost, and what could not be saved is said."""

import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

import epo
import harness.checkpoints
import harness.run
import ppo
from envs.terminal import needs_output, say
from tests.conftest import the_run
from tests.scripts.conftest import ENVIRONMENT, ROOT, assert_same_state, checkpoint, refused, start, train

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
    for line in process.stdout:
        if " steps " in line:
            return process, line
    raise AssertionError(process.stderr.read())


@pytest.fixture(autouse=True)
def terminal():
    """Signals are as in a terminal, also where tests run in the background or under nohup."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


# ---------------------------------------------------------------- kills


@pytest.mark.parametrize(
    "script, kills",
    [
        (ppo, 2),
        (epo, 2),
        pytest.param(epo, 40, marks=pytest.mark.slow),
    ],
    ids=["ppo", "epo", "forty"],
)
def test_a_killed_run_loses_nothing(script, kills):
    """SIGKILL at random moments; what is left is whole, resumes, and is an uninterrupted run, bit by bit."""
    moments = random.Random(kills)
    fresh = f"{FLAGS} {POPULATION[script]}"
    flags = fresh
    for _ in range(kills):
        process, line = started(script, f"{flags} {ENDLESS}")
        time.sleep(moments.uniform(0.0, 0.3))
        process.kill()
        rest, err = process.communicate()
        assert err == ""
        printed = [line, *rest.splitlines()[:-1]]  # the last line may be half of one
        saved = harness.load_checkpoint(str(the_run()))
        assert saved["global_step"] >= int(printed[-1].split()[0].replace(",", ""))
        flags = f"--no-cuda --resume {the_run()}"
    the_run().rename("killed")
    train(script, f"{fresh} --total-timesteps {saved['global_step']} --checkpoint-interval 0")
    assert_same_state(checkpoint(the_run()), saved)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    "module, name",
    [
        (torch, "save"),
        (os, "fsync"),
        (shutil, "copyfile"),
        (os, "replace"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
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
    folder = the_run()
    line = refused(ppo, f"--no-cuda --resume {folder} {ENDLESS}", capsys)
    first.kill()
    first.communicate()
    assert line.startswith(f"--resume {folder.resolve()}: ")
    assert train(ppo, f"--no-cuda --resume {folder} --total-timesteps {checkpoint(folder)['global_step'] + STEPS}") == 0


# ---------------------------------------------------------------- signals


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_the_first_signal_saves_and_the_run_goes_on_from_there(signum, monkeypatch, capsys):
    handler = signal.getsignal(signum)
    filmed = []
    monkeypatch.setattr(harness.run, "film_agent", lambda folder, agent, device: filmed.append((folder, agent)))
    with monkeypatch.context() as patch:
        between(patch, {3: lambda: send(signum)})
        assert train(ppo, f"{FLAGS} {EIGHT} --capture-video") == 128 + signum
    assert filmed == []  # a run that has to end waits for no film
    assert signal.getsignal(signum) == handler
    assert checkpoint(the_run())["iteration"] == 3
    assert capsys.readouterr().out.splitlines()[-1].endswith(f"python -m ppo --resume {the_run().resolve()}")
    between(monkeypatch, {8: lambda: send(signum)})  # in the last iteration there is nothing to stop
    assert train(ppo, f"--no-cuda --resume {the_run()}") == 0
    assert checkpoint(the_run())["iteration"] == 8
    assert filmed == [(str(the_run().resolve()), 0)]


def test_the_second_signal_ends_the_run_at_once(monkeypatch):
    between(monkeypatch, {5: lambda: send(signal.SIGINT, signal.SIGTERM)})
    assert train(ppo, f"{FLAGS} {EIGHT} {EVERY_ITERATION}") == 128 + signal.SIGTERM
    assert checkpoint(the_run())["iteration"] == 4


def test_a_terminal_that_closes_hangs_up_twice_and_the_run_saves(monkeypatch):
    """Once by the kernel, once by bash."""
    between(monkeypatch, {5: lambda: send(signal.SIGHUP, signal.SIGHUP)})
    assert train(ppo, f"{FLAGS} {EIGHT}") == 128 + signal.SIGHUP
    assert checkpoint(the_run())["iteration"] == 5


def test_nohup_outlives_the_terminal(monkeypatch):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    between(monkeypatch, {3: lambda: send(signal.SIGHUP)})
    assert train(ppo, f"{FLAGS} {EIGHT}") == 0
    assert checkpoint(the_run())["iteration"] == 8


@pytest.mark.parametrize("gone", [False, True])
def test_ctrl_c_in_a_terminal(gone):
    """Standard error may be gone: in `2>&1 | tee log` Ctrl-C ends tee first."""
    process, _ = started(epo, f"{FLAGS} {POPULATION[epo]} --total-timesteps 1000000000000")
    if gone:
        process.stderr.close()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    if not gone:
        assert len(err.splitlines()) == 1  # which says that the run is about to end
    assert f"{checkpoint(the_run())['global_step']:,} steps" in out.splitlines()[-2]


# ---------------------------------------------------------------- a closed output


def test_a_run_whose_output_nobody_reads_saves_and_stops(capsys):
    process, _ = started(epo, f"{FLAGS} {POPULATION[epo]} --total-timesteps 1000000000000")
    process.stdout.close()
    assert process.wait(timeout=60) == 128 + signal.SIGPIPE
    assert process.stderr.read() == ""
    iteration = checkpoint(the_run())["iteration"]
    assert train(epo, f"--no-cuda --resume {the_run()} --total-timesteps {(iteration + 1) * STEPS}") == 0
    assert checkpoint(the_run())["iteration"] == iteration + 1


@pytest.mark.parametrize("command", [
    f"{{root}}/ppo.py {FLAGS} {EIGHT}",
    "{root}/evaluate.py {root}/policies/Moat --episodes 2", "{root}/export.py {root}/policies/Moat policy",
    "{root}/view.py {root}/policies/Ant", "-m envs.check Moat",
])  # fmt: skip
def test_a_program_whose_output_nobody_reads_ends_quietly(command):
    words = command.format(root=ROOT).split()
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run([sys.executable, *words], stdout=writer, stderr=subprocess.PIPE, env=ENVIRONMENT)
    os.close(writer)
    assert process.stderr == b""
    assert process.returncode == 128 + signal.SIGPIPE


def test_a_stream_whose_reader_has_gone_stays_lost():
    """Whoever prints next notices, too, so that a run stops wherever its output was lost."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        assert not say("first", stream)
        assert not say("second", stream)


def test_a_closed_pipe_that_is_not_standard_output_is_an_error():
    with pytest.raises(BrokenPipeError), needs_output():
        raise BrokenPipeError


# ---------------------------------------------------------------- a full disk


@pytest.mark.parametrize("full, iteration, status", [({3, 4}, 8, 0), ({8}, 7, 1)], ids=["for a while", "at the end"])
def test_a_checkpoint_that_does_not_fit_on_the_disk_is_no_reason_to_end(full, iteration, status, monkeypatch, capsys):
    """Training goes on, and the next one may fit. Where the last one does not, the run does not end well."""
    save = harness.run.save_checkpoint
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def save_on_a_full_disk(path, saved):
        if saved["iteration"] in full:  # no file can grow beyond a few bytes
            resource.setrlimit(resource.RLIMIT_FSIZE, (8, before[1]))
        try:
            save(path, saved)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    monkeypatch.setattr(harness.run, "save_checkpoint", save_on_a_full_disk)
    assert train(ppo, f"{FLAGS} {EIGHT} {EVERY_ITERATION}") == status
    assert capsys.readouterr().err.count("no checkpoint: ") == len(full)
    assert checkpoint(the_run())["iteration"] == iteration
    assert not (the_run() / "checkpoint.pt.tmp").exists()  # else the disk stays full
