"""Everything that is known to break a run, in number: `python benchmarks/scripts/torture.py`.

Prints one table: fault, how often it was tried, how often the outcome was wrong. The exit status is 1 if anything was.
--parts runs some of the parts alone. Processes are forked from this one, in which torch is loaded, so that a start
takes a fraction of a second; `full_disk` and `soak` start Python as a user does. Linux only. No part needs root: the
full disk is a tmpfs in a user namespace (`unshare -Urm`), and is left out where the system has none.

Folders are made below $TMPDIR. A checkpoint is flushed to the disk in every iteration: on a slow disk use

    TMPDIR=/dev/shm/tmp python benchmarks/scripts/torture.py

Nothing that it starts outlives it, also when it is killed. A part that cannot be finished counts as wrong.
"""

import argparse
import collections
import contextlib
import ctypes
import gzip
import hashlib
import io
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import xml.etree.ElementTree

os.environ.setdefault("OMP_NUM_THREADS", "1")  # runs are compared bit for bit; before torch
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import cpo  # noqa: E402
import epo  # noqa: E402
import evaluate  # noqa: E402
import harness.checkpoints  # noqa: E402
import harness.run  # noqa: E402
import ppo  # noqa: E402
import sapg  # noqa: E402
from harness.checkpoints import decode, encode  # noqa: E402

import torch  # noqa: E402

FLAGS = (
    "--no-cuda --num-envs 16 --num-steps 8 --num-minibatches 2 --update-epochs 1 --no-lstm --hidden-sizes 8"
    " --total-timesteps 1024 --checkpoint-interval 3"  # 8 iterations, checkpoints at 3, 6 and 8
)
POPULATION = "--num-agents 4 --latent-dim 5"
EXTRA = {
    ppo: "",
    sapg: POPULATION,
    cpo: f"{POPULATION} --adversarial-coef 0.1 --discriminator-sizes 8",
    epo: f"{POPULATION} --ga-interval 0.1 --ga-warmup 0.1",
}
ENDLESS = "--total-timesteps 1000000000000 --checkpoint-interval 1"
STEPS = 16 * 8  # of an iteration with FLAGS
TASKS = {ppo: "Cartpole", sapg: "Moat", cpo: "Cartpole", epo: "Moat"}
# row of the table -> the tests of tests/scripts/test_faults.py that try it, one case each
TESTS = {
    "code that came with a checkpoint runs": "test_a_checkpoint_runs_no_code_that_came_with_it"
    " test_nor_does_it_from_within_the_runs_folder test_a_class_that_is_no_environment_is_not_called"
    " test_a_pickle_payload_is_refused test_links_in_somebody_elses_run_are_not_followed",
    "broken environment is not one line": "test_a_broken_environment_is_one_line"
    " test_a_module_that_cannot_be_imported test_a_constructor_that_cannot_be_called",
    "error in an environment is not shown as it is": "test_an_error_in_the_users_environment_is_shown_as_it_is"
    " test_an_error_in_the_users_load_state_dict_is_theirs test_an_error_after_the_first_step_names_the_class",
    "state that cannot be loaded is saved": "test_a_state_that_cannot_be_loaded_is_refused_at_the_start"
    " test_one_that_cannot_later_replaces_no_good_one"
    " test_a_state_that_the_environment_cannot_load_is_refused_at_the_start",
    "flag that cannot work is not refused in one line": "test_what_cannot_work_is_refused_before_anything_is_created"
    " test_numbers_that_no_flag_can_take test_resume_needs_a_run",
    "clock set back: speed or time left is wrong": "test_a_clock_that_is_set_back_changes_nothing",
    "second signal while a checkpoint is written": "test_a_second_signal_waits_for_the_checkpoint",
    "second process on a folder is not refused": "test_a_second_process_on_a_folder_is_refused",
}


class Figures(dict):
    """Row of the table -> how often it was tried, how often the outcome was wrong."""

    def add(self, row, wrong, about=""):
        tried, failed = self.get(row, (0, 0))
        self[row] = tried + 1, failed + bool(wrong)
        if wrong:
            print(f"wrong: {row}: {about}"[:2000], file=sys.stderr, flush=True)

    def print(self):
        print("| fault | tried | wrong |\n|-|-|-|")
        for row, (tried, failed) in self.items():
            print(f"| {row} | {tried:,} | {failed:,} |", flush=True)


# ---------------------------------------------------------------- processes


PR_SET_PDEATHSIG = 1  # prctl(2)
forked, started = set(), []  # ids of `fork`'s processes that nobody has waited for; `popen`'s


def prepare_child():
    """Signals as in a terminal, also where this runs in the background or under nohup; an end with the parent."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end_children():
    """Kill what still runs of `fork`'s and `popen`'s."""
    for pid in [*forked]:
        os.kill(pid, signal.SIGKILL)
        status_of(pid)
    for process in started:
        process.kill()
        process.wait()


def wait_for(condition, seconds=120.0):
    """The first value of condition() that is true. Raises TimeoutError."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.005)
    raise TimeoutError(f"nothing happened for {seconds:g} s")


def start(script, flags, prefix="", **options):
    """A script as a process of its own."""
    command = f"exec {prefix} {sys.executable} {ROOT / script.__name__}.py --no-cuda {flags}"
    return popen(["bash", "-c", command], **options)


def popen(command, **options):
    """subprocess.Popen with pipes, of a process that does not outlive this one."""
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    options = {**pipes, "preexec_fn": prepare_child, "env": {**os.environ, "OMP_NUM_THREADS": "1"}, **options}
    started.append(subprocess.Popen(command, **options))
    return started[-1]


def fork(function, folder, output):
    """Run function() in a process of its own, in `folder`; returns its id.

    output: the path or the descriptor that its standard output and error go to.
    """
    file = output if isinstance(output, int) else os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    sys.stdout.flush(), sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(file)
        forked.add(pid)
        return pid
    status = 1
    try:
        prepare_child()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(folder)
        os.dup2(file, 1), os.dup2(file, 2)
        function()
        status = 0
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        try:
            sys.excepthook(*sys.exc_info())
        except SystemExit as end:  # Ctrl-C, a closed pipe
            status = end.code
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(status)


def status_of(pid):
    """Waits for one of `fork`'s. Its exit status, or minus the number of the signal that killed it."""
    end = wait_for(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG), 1200.0)
    forked.discard(pid)
    return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status


def outcome(script, argv):
    """Runs a script in this process; returns its exit status and what it wrote to standard error."""
    error = io.StringIO()
    with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()):
        try:
            script.main(argv)
            status = 0
        except SystemExit as end:
            status = end.code
        except Exception:
            traceback.print_exc()
            status = 1
    return status, error.getvalue()


def run_of(folder):
    """The only run below a folder, or None."""
    return next((path for path in pathlib.Path(folder).glob("runs/*")), None)


def printed(text):
    """The iterations that a run of FLAGS reported."""
    return [int(steps.replace(",", "")) // STEPS for steps in re.findall(r"^ *([\d,]+) steps", text, re.MULTILINE)]


# ---------------------------------------------------------------- kills


def digest(saved):
    """SHA-256 of all that a checkpoint says about a run; its flags and the time that it took are left out."""
    sha = hashlib.sha256()

    def feed(value):
        if isinstance(value, torch.Tensor):
            sha.update(f"{value.dtype}{tuple(value.shape)}".encode() + value.contiguous().numpy().tobytes())
        elif isinstance(value, (dict, list, tuple)):
            for each in value.items() if isinstance(value, dict) else value:
                feed(each)
        else:
            sha.update(repr(value).encode())

    feed([saved[key] for key in ("iteration", "global_step", "state", "random")])
    return sha.hexdigest()


def digests(script, flags, path, iterations):
    """Runs a script, uninterrupted; path: a json file for the digests of the checkpoints after these iterations."""
    found, checkpoint = {}, harness.run.Run.checkpoint

    def checkpoint_some(run, iteration, global_step):
        if iteration in iterations:
            checkpoint(run, iteration, global_step)

    def save(folder, data):
        saved = decode(bytes(data))
        found[saved["iteration"]] = digest(saved)

    harness.run.Run.checkpoint, harness.checkpoints.save_checkpoint = checkpoint_some, save
    script.main(flags.split())
    pathlib.Path(path).write_text(json.dumps(found))


def kills(folder, args, figures, draw):
    """Signals at random moments, from the start on; each time the run is resumed from what the signal left."""
    signals = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    for script, task in TASKS.items():
        place, out = f"{folder}/{script.__name__}", f"{folder}/{script.__name__}.txt"
        os.mkdir(place)
        fresh = f"{FLAGS} {EXTRA[script]} --env-id {task} {ENDLESS}"
        before, seen = 0, {}
        for i in range(-(-args.kills // len(TASKS))):
            run = run_of(place)
            resumed = before > 0
            if run and not resumed:  # killed before the first checkpoint
                shutil.rmtree(run)
            flags = f"--no-cuda --resume {run} {ENDLESS}" if resumed else fresh
            pid, signum = fork(lambda: script.main(flags.split()), place, out), draw.choice(signals)
            at_start, seconds = draw.random() < 0.25, draw.uniform(0.0, 1.0)
            if not at_start:
                wait_for(lambda: printed(pathlib.Path(out).read_text()))
            time.sleep(seconds)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)
            status, text = status_of(pid), pathlib.Path(out).read_text()
            lines = printed(text)
            about = f"{script.__name__} {i}, status {status}, {before} iterations before: {text[-1500:]}"
            wanted = (-signum,) if signum == signal.SIGKILL else (128 + signum, -signum)[: 1 if lines else 2]
            figures.add(f"{signum.name}: exit status or traceback", status not in wanted or "Traceback" in text, about)
            try:
                path = run_of(place) / "checkpoint.pt"
                saved = decode(path.read_bytes()) if path.exists() else {"iteration": 0}
            except Exception as error:
                saved, about = {"iteration": -1}, repr(error)
            iteration = saved["iteration"]
            figures.add("killed or stopped: an iteration lost", iteration < max(lines, default=before), about)
            if resumed and lines:
                figures.add("resumed: not from the last checkpoint on", lines[0] != before + 1, about)
            if iteration > 0:
                before = iteration
                seen[before] = digest(saved)
        flags = f"{fresh} --total-timesteps {before * STEPS}"
        assert status_of(fork(lambda: digests(script, flags, f"{place}.json", seen), place, out)) == 0, out
        whole = json.loads(pathlib.Path(f"{place}.json").read_text())
        for iteration, found in seen.items():
            wrong = whole[str(iteration)] != found
            figures.add("resumed: differs from an uninterrupted run", wrong, f"{script.__name__} {iteration}")


def looks(folder, args, figures, draw):
    """Is there a checkpoint.pt at every moment of a run that writes one in every iteration?"""
    pid = fork(lambda: epo.main(f"{FLAGS} {EXTRA[epo]} --env-id Moat {ENDLESS}".split()), folder, f"{folder}/out.txt")
    wait_for(lambda: run_of(folder) and (run_of(folder) / "checkpoint.pt").exists())
    path, end = str(run_of(folder) / "checkpoint.pt"), time.monotonic() + 10.0
    while time.monotonic() < end:
        figures.add("checkpoint.pt absent when looked for", not os.path.exists(path))
    os.kill(pid, signal.SIGKILL)
    status_of(pid)


def starts(folder, args, figures, draw):
    """Two runs that start at the same moment."""
    flags = f"{FLAGS} --env-id Moat".split()
    for i in range(10):
        os.mkdir(f"{folder}/{i}")
        pids = [fork(lambda: ppo.main(flags), f"{folder}/{i}", f"{folder}/{i}-{j}.txt") for j in range(2)]
        ended = [status_of(pid) for pid in pids]
        runs = list(pathlib.Path(f"{folder}/{i}/runs").iterdir())
        wrong = ended != [0, 0] or len(runs) != 2
        figures.add("two starts in one second share a folder", wrong or len({run.stat().st_ino for run in runs}) != 2)


def pipes(folder, args, figures, draw):
    """`epo.py ... | head -n`."""
    for i in range(10):
        os.mkdir(f"{folder}/{i}")
        reading, writing = os.pipe()

        def train():
            os.close(reading)  # else there is still a reader
            epo.main(f"{FLAGS} {EXTRA[epo]} --env-id Moat {ENDLESS}".split())

        pid = fork(train, f"{folder}/{i}", writing)
        with open(reading) as file:
            text = "".join(file.readline() for _ in range(draw.randrange(2, 7)))
        status, saved = status_of(pid), decode((run_of(f"{folder}/{i}") / "checkpoint.pt").read_bytes())
        wrong = status != 128 + signal.SIGPIPE or saved["iteration"] < max(printed(text), default=0)
        figures.add("`| head`: exit status, or no checkpoint", wrong, f"status {status}: {text}")


# ---------------------------------------------------------------- the disk


def full_disk(folder, args, figures, draw):
    """A disk that is full for 2 s, and one that stays full, with the output in a pipe or on the same disk."""
    for stays, redirect in ((False, ""), (True, ""), (False, "> log 2>&1"), (True, "> log 2>&1")):
        disk = f"{folder}/disk"
        os.makedirs(disk, exist_ok=True)
        flags = f"{FLAGS} {EXTRA[epo]} --env-id Moat {ENDLESS} --total-timesteps {STEPS * 400}"
        command = f"mount -t tmpfs -o size=4m none {disk} && cd {disk} && exec {sys.executable} {ROOT}/epo.py {flags}"
        process = popen(["unshare", "-Urm", "bash", "-c", f"{command} {redirect}"])
        inside = pathlib.Path(f"/proc/{process.pid}/root{disk}")
        lines = (lambda: process.stdout.readline()) if not redirect else (lambda: time.sleep(0.1))
        while process.poll() is None and not (run_of(inside) and (run_of(inside) / "checkpoint.pt").exists()):
            lines()
        if process.poll() is not None:
            print(f"full disk left out: {process.stderr.read().strip()}", file=sys.stderr)
            return
        filler, before = inside / "filler", read_iteration(inside)
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        time.sleep(2.0)
        kept = read_iteration(inside)
        if not stays:
            filler.unlink()
        folder_fd = os.open(inside, os.O_RDONLY)  # keeps the disk when the process has ended
        out, err = process.communicate(timeout=900)
        at_end = read_iteration(pathlib.Path(f"/proc/self/fd/{folder_fd}"))
        os.close(folder_fd)
        about = f"status {process.returncode}, checkpoint {before}, {kept}, {at_end}: {err[-1000:]}"
        what = f"disk full {'to the end' if stays else 'for 2 s'}{', output on it too' if redirect else ''}"
        lost = kept < before or at_end < kept or not stays and at_end != 400
        wrong = process.returncode or "Traceback" in err or lost
        figures.add(f"{what}: status, traceback or lost checkpoint", wrong, about)
        figures.add(f"{what}: more than four lines about it", len(err.splitlines()) > 4, about)


def read_iteration(folder):
    """The iteration of the only run's checkpoint, or -1 where there is no whole one."""
    try:
        return decode((run_of(folder) / "checkpoint.pt").read_bytes())["iteration"]
    except Exception:
        return -1


# ---------------------------------------------------------------- damaged checkpoints


def flipped_bits(folder, args, figures, draw):
    """Single bits of a checkpoint, anywhere in the file."""
    data = trained(epo, folder)[1]
    decode(data)
    for _ in range(600):
        flipped, bit = bytearray(data), draw.randrange(8 * len(data))
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            figures.add("single flipped bit loaded", decode(bytes(flipped)) is not None, f"bit {bit}")
        except Exception:  # damage shows as one of a dozen kinds
            figures.add("single flipped bit loaded", False)


def trained(script, folder):
    """The folder of a short run of a script, and its checkpoint's bytes."""
    flags = f"{FLAGS} {EXTRA[script]} --env-id Moat".split()
    assert status_of(fork(lambda: script.main(flags), folder, f"{folder}/out.txt")) == 0
    return run_of(folder), (run_of(folder) / "checkpoint.pt").read_bytes()


def entries(value, path=()):
    """All paths to the leaves and dicts of nested dicts."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, child in value.items():
            yield from entries(child, path + (key,))


def damages(saved):
    """(what, checkpoint): each entry missing, of another type; a tensor of another dtype, shape, or not finite."""
    for path in entries(saved):
        if path[-1] in ("device", "num_iterations", "resume"):  # of the process, not of the run
            continue
        if "optimizer" in str(path[1:2]) and (path[-1] == "state" or isinstance(path[-1], int)):
            continue  # a parameter may be frozen, which has no moments
        if path[0] == "args" and path[1:] not in [(), ("env_id",)]:
            kinds = ["type"]  # a flag that is missing has its default: older checkpoints
        elif "param_groups" in path or path[0] in ("random", "seconds"):
            kinds = ["missing", "type"]
        else:
            kinds = ["missing", "type", "shape", "dtype"]
            kinds += ["finite"] if path[1:3] in (("agent", "latents"), ("agent", "actor.weight")) else []
        for kind in kinds:
            root = parent = {**saved}
            for key in path[:-1]:
                parent[key] = {**parent[key]}
                parent = parent[key]
            old = parent[path[-1]]
            tensor = isinstance(old, torch.Tensor) and path[-1] != "generator"
            if kind == "missing":
                del parent[path[-1]]
            elif kind == "type":
                parent[path[-1]] = {"what": "ever"}
            elif kind == "shape" and tensor:
                parent[path[-1]] = torch.zeros(*old.shape, 2)
            elif kind == "dtype" and tensor and "optimizer" not in path[1]:  # torch casts those
                parent[path[-1]] = old.to(torch.float16)
            elif kind == "finite" and tensor:
                parent[path[-1]] = old * float("nan")
            else:
                continue
            yield f"{kind} {'.'.join(map(str, path))}", root
    for name, value in FORGED:
        yield f"forged args.{name} {value!r}", {**saved, "args": {**saved["args"], name: value}}


EVALUATED = ("args", "script", "state.agent", "state.episodes", "state.env")  # what evaluate.py reads
# flags in a checkpoint that have the right type at first sight
FORGED = [
    ("hidden_sizes", ("a",)), ("hidden_sizes", (1.5,)), ("hidden_sizes", (None,)), ("hidden_sizes", ((8,),)),
    ("hidden_sizes", (True,)), ("hidden_sizes", [8]), ("num_envs", True), ("num_envs", (16,)), ("num_envs", 16.0),
    ("seed", None), ("learning_rate", None), ("env_id", "Mo\nat"), ("env_id", "a\0b:E"), ("env_id", "a\ud800:E"),
    ("env_id", ".x:E"), ("no_such_flag", 1), (5, 1), (None, 1), ("lstm", 1), ("lstm", "no"), ("engine", None),
]  # fmt: skip


def broken_files(data):
    """(what, bytes): files that are no checkpoint, or a part of one."""
    legacy = io.BytesIO()
    torch.save({"a": 1}, legacy, _use_new_zipfile_serialization=False)
    for length in (0, 1, 4, 100, len(data) // 2, len(data) - 56, len(data) - 34, len(data) - 1):
        yield f"the first {length} bytes", data[:length]
    yield from {
        "zeros": bytes(len(data)), "a byte more": data + b"x", "a byte before": b"x" + data, "twice": data + data,
        "gzip": gzip.compress(data), "json": b'{"script": "epo"}', "torch's old format": legacy.getvalue(),
        "an empty zip file": b"PK\5\6" + bytes(18), "the last half": data[len(data) // 2 :], "text": b"hello\n" * 1000,
        "halves exchanged": data[len(data) // 2 :] + data[: len(data) // 2],
    }.items()  # fmt: skip
    for value in (None, 1, [1], {}, torch.ones(3), {"script": "epo"}):
        yield f"another object, {value}", bytes(encode(value))


def odd_files(path):
    """(what, a function that makes it): a directory entry that is no plain file."""
    yield "a folder", lambda: path.mkdir()
    yield "a fifo", lambda: os.mkfifo(path)
    yield "a link to nowhere", lambda: path.symlink_to("nowhere")
    yield "a link to an endless file", lambda: path.symlink_to("/dev/zero")
    yield "a link to itself", lambda: path.symlink_to(path.name)


def refused(script, folder):
    """Resumes a run; what is wrong if that is not refused in one line, with nothing touched; else ""."""

    def listing():
        return {p.name: p.read_bytes() if p.is_file() else None for p in folder.iterdir() if not p.name == "lock"}

    before = listing() if not (folder / "checkpoint.pt").is_symlink() else None
    status, err = outcome(script, f"--no-cuda --resume {folder} --total-timesteps 2048".split())
    untouched = before is None or listing() == before
    right = status == 2 and err.startswith("--") and err.count("\n") == 1 and untouched
    return "" if right else f"status {status}, {'un' * untouched}touched: {err[-1000:]}"


def damaged(folder, args, figures, draw):
    """Every damage of every entry, of whole files, and of directory entries."""
    for script in (cpo, epo):
        place = f"{folder}/{script.__name__}"
        os.mkdir(place)
        run, data = trained(script, place)
        out = f"{place}.json"
        assert status_of(fork(lambda: damage_all(script, run, data, out), folder, f"{place}.txt")) == 0
        for row, wrong, what in json.loads(pathlib.Path(out).read_text()):
            figures.add(row, wrong, f"{script.__name__} {what} {wrong}")


def damage_all(script, run, data, out):
    path, found = run / "checkpoint.pt", []

    def attempt(row, what, write):
        if os.path.lexists(path):
            path.rmdir() if path.is_dir() else path.unlink()
        with contextlib.suppress(FileNotFoundError):
            (run / "checkpoint_previous.pt").unlink()
        write()
        found.append((row, refused(script, run), what))

    for what, saved in damages(decode(data)):
        attempt("damaged entry: not refused in one line", what, lambda: path.write_bytes(bytes(encode(saved))))
        if what.split(" ", 1)[1].startswith(EVALUATED):
            status, err = outcome(evaluate, [str(run), "--episodes", "1", "--no-cuda"])
            wrong = "" if status in (0, 2) and err.count("\n") <= 1 else f"status {status}: {err[-1000:]}"
            found.append(("damaged entry: evaluate.py says more than one line", wrong, what))
    for what, broken in broken_files(data):
        attempt("damaged file: not refused in one line", what, lambda: path.write_bytes(broken))
    for what, make in odd_files(path):
        attempt("checkpoint.pt is no file: not refused in one line", what, make)
    pathlib.Path(out).write_text(json.dumps(found))


# ---------------------------------------------------------------- what the tests try


def tests(folder, args, figures, draw):
    """The rows of TESTS: one case of a test is one try."""
    names = [name for names in TESTS.values() for name in names.split()]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command += [f"--junitxml={folder}/all.xml", "tests/scripts/test_faults.py", "-k", " or ".join(names)]
    popen(command, cwd=ROOT, stdout=subprocess.DEVNULL).communicate()
    cases = collections.defaultdict(list)
    for case in xml.etree.ElementTree.parse(f"{folder}/all.xml").iter("testcase"):
        cases[case.get("name").split("[")[0]].append(case)
    for row, names in TESTS.items():
        for case in [case for name in names.split() for case in cases[name]]:
            figures.add(row, case.find("failure") is not None or case.find("error") is not None, case.get("name"))


# ---------------------------------------------------------------- a soak, and what all this costs


def usage(pid, run):
    """Memory in MB, open files, the log's size in KB, iterations and seconds of CPU time of a run."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    log = sum(path.stat().st_size for path in run.glob("events*"))
    iteration, seconds = read_iteration(run.parents[1]), sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    memory, files = int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024, len(os.listdir(f"/proc/{pid}/fd"))
    return dict(memory=memory, files=files, log=log / 1024, iteration=iteration, cpu=seconds)


def soak(folder, args, figures, draw):
    """One run left alone: memory, open files, size of a checkpoint and speed stay as they are.

    The first fifth is not counted. Speed is iterations per second of CPU time.
    """
    process = start(epo, f"{FLAGS} {EXTRA[epo]} --env-id Moat {ENDLESS}", cwd=folder, stdout=subprocess.DEVNULL)
    wait_for(lambda: run_of(folder) and (run_of(folder) / "checkpoint.pt").exists())
    run, begin, looks = run_of(folder), time.monotonic(), []
    for fifth in range(1, 6):
        time.sleep(max(0.0, begin + fifth * 12.0 * args.soak - time.monotonic()))
        looks.append(usage(process.pid, run))
        print("soak:", {key: round(value, 1) for key, value in looks[-1].items()}, file=sys.stderr, flush=True)
    sizes = {path.name: path.stat().st_size for path in run.iterdir()}
    process.terminate()
    err = process.communicate()[1]
    first, second, *_, last_but_one, last = looks
    iterations = last["iteration"] - first["iteration"]
    figures.add("soak: exit status or output", process.returncode != 128 + signal.SIGTERM or err, err)
    figures.add("soak: more open files", last["files"] > first["files"], looks)
    leak = (last["memory"] - first["memory"]) * 1024 / iterations
    figures.add("soak: memory grows by 1 KB or more in an iteration", leak >= 1.0, looks)
    names = {name for name in sizes if not name.startswith("events")}
    figures.add("soak: files left over", names != {"lock", "checkpoint.pt", "checkpoint_previous.pt"}, names)
    pairs = ((first, second), (last_but_one, last))
    speed = [(b["iteration"] - a["iteration"]) / (b["cpu"] - a["cpu"]) for a, b in pairs]
    figures.add("soak: slower by a tenth or more at the end", speed[1] < 0.9 * speed[0], speed)
    log, size = (last["log"] - first["log"]) / iterations, sizes["checkpoint.pt"] / 1024
    print(
        f"soak of {args.soak:g} minutes, {last['iteration']:,} iterations: memory "
        f"{first['memory']:.1f} MB after a fifth "
        f"and {last['memory']:.1f} MB at the end, {leak:.3f} KB per iteration; open files {first['files']} and "
        f"{last['files']}; log {log:.2f} KB per iteration, checkpoint {size:.0f} KB; {speed[0]:.1f} and "
        f"{speed[1]:.1f} iterations per second of CPU time in the second and the last fifth"
    )


def cost(folder, args, figures, draw):
    """CPU time of what keeps a run whole, as a share of epo.py on Moat with its defaults, 48 agents."""
    status = status_of(fork(measure_cost, folder, f"{folder}/cost.txt"))
    text = pathlib.Path(f"{folder}/cost.txt").read_text()
    share = float(re.search(r"([\d.]+) % in all", text).group(1)) if status == 0 else 100.0
    figures.add("cost: 1 % of the run time or more", share >= 1.0, text)
    print(text.splitlines()[-1])


def measure_cost(iterations=12):
    """Prints shares. A checkpoint is written in every iteration, and counted once in 100, the default interval."""
    spent, run = collections.defaultdict(float), harness.run.Run

    def timed(owner, name):
        function = getattr(owner, name)

        def call(*inputs, **options):
            begin = time.process_time()
            try:
                return function(*inputs, **options)
            finally:
                spent[name] += time.process_time() - begin

        setattr(owner, name, call)

    for name in ("checkpoint", "check_finite", "remember"):
        timed(run, name)
    begin = time.process_time()
    flags = "--no-cuda --env-id Moat --num-agents 48 --checkpoint-interval 1 --total-timesteps"
    epo.main([*flags.split(), str(3072 * 16 * iterations)])
    rest = time.process_time() - begin - spent["checkpoint"]
    shares = {name: seconds / rest / (100 if name == "checkpoint" else 1) for name, seconds in spent.items()}
    print(
        f"cost: {', '.join(f'{name} {100 * share:.3f} %' for name, share in shares.items())} of "
        f"{rest / iterations:.3f} s of CPU time per iteration; {100 * sum(shares.values()):.3f} % in all; a checkpoint "
        f"{1000 * spent['checkpoint'] / iterations:.0f} ms"
    )


PARTS = (kills, looks, starts, pipes, full_disk, flipped_bits, damaged, tests, cost, soak)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [part.__name__ for part in PARTS]
    parser.add_argument("--parts", nargs="*", default=names, choices=names, help="default: all")
    parser.add_argument("--kills", type=int, default=100, help="kills and stops")
    parser.add_argument("--soak", type=float, default=20.0, help="minutes")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    figures, parent = Figures(), os.environ.get("TMPDIR")
    if parent:
        os.makedirs(parent, exist_ok=True)
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(dir=parent) as folder, contextlib.ExitStack() as at_end:
        at_end.callback(figures.print)
        at_end.callback(end_children)
        for part in [part for part in PARTS if part.__name__ in args.parts]:
            os.mkdir(f"{folder}/{part.__name__}")
            begin = time.monotonic()
            try:
                part(f"{folder}/{part.__name__}", args, figures, random.Random(args.seed))
            except Exception:
                figures.add(f"{part.__name__}: not finished", True, traceback.format_exc())
            end_children()
            print(f"{part.__name__}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    sys.exit(any(failed for _, failed in figures.values()))


if __name__ == "__main__":
    main()
