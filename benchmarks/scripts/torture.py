"""Kill, fill the disk, damage, look: `python benchmarks/scripts/torture.py --minutes 5`. Prints a table of figures.

Everything happens to epo.py on Moat in a temporary folder. The full disk is a tmpfs and needs the right to mount one.
"""

import argparse
import contextlib
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from harness.checkpoints import decode  # noqa: E402

FLAGS = (
    "--no-cuda --env-id Moat --num-envs 192 --num-steps 16 --num-minibatches 4 --update-epochs 1 --hidden-sizes 16"
    " --num-agents 48 --total-timesteps 1000000000000 --checkpoint-interval 1"
)


class Figures:
    """Rows of the table: what was done, how often, how often it went wrong."""

    def __init__(self):
        self.rows = {}

    def add(self, name, wrong):
        tried, failed = self.rows.get(name, (0, 0))
        self.rows[name] = tried + 1, failed + bool(wrong)

    def print(self):
        print("| what | tried | wrong |\n|-|-|-|")
        for name, (tried, failed) in self.rows.items():
            print(f"| {name} | {tried:,} | {failed:,} |")


def start(flags, folder):
    command = [sys.executable, str(ROOT / "epo.py"), *flags.split()]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return subprocess.Popen(command, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes)


def run_of(folder):
    return next((pathlib.Path(folder) / "runs").iterdir())


def read(path):
    """The iteration of a checkpoint, or None where there is no whole one."""
    try:
        return decode(path.read_bytes())["iteration"]
    except Exception:
        return None


def kill_and_resume(folder, deadline, figures, draw):
    """SIGKILL, SIGTERM, SIGHUP and SIGINT at random moments; each time the run goes on from what it last printed."""
    signals = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    flags, before = FLAGS, 0
    while time.monotonic() < deadline:
        process, signum = start(flags, folder), draw.choice(signals)
        lines = [process.stdout.readline() for _ in range(2)]  # training
        end = time.monotonic() + draw.uniform(0.0, 2.0)
        while time.monotonic() < end:
            lines.append(process.stdout.readline())
        process.send_signal(signum)
        out, err = process.communicate()
        lines += out.splitlines()
        printed = [int(line.split()[0].replace(",", "")) // 3072 for line in lines if re.match(r" *[\d,]+ steps", line)]
        iteration = read(run_of(folder) / "checkpoint.pt")
        figures.add(f"{signum.name} at a random moment: no checkpoint of the last iteration printed",
                    iteration is None or iteration < max(printed, default=before))  # fmt: skip
        figures.add("resumed: an iteration missing or traceback", printed[:1] != [before + 1] or "Traceback" in err)
        flags, before = f"--resume {run_of(folder)} --total-timesteps 1000000000000", iteration or before


def look(folder, seconds, figures):
    """Is there a whole checkpoint.pt, at every moment of a run that writes one each iteration?"""
    process = start(FLAGS, folder)
    process.stdout.readline(), process.stdout.readline()
    path, end = run_of(folder) / "checkpoint.pt", time.monotonic() + seconds
    while not path.exists():
        time.sleep(0.001)
    while time.monotonic() < end:
        figures.add("looks for checkpoint.pt: absent", not path.exists())
    process.kill()
    process.communicate()


def fill_disk(folder, figures):
    """A disk that is full for 4 s, and one that stays full: the log may be lost, the run may not."""
    for stays in (False, True):
        disk = pathlib.Path(folder) / f"disk{stays}"
        disk.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)]).returncode:
            print("no right to mount a tmpfs: full disk left out")
            return
        process = start(FLAGS.replace("1000000000000", str(3072 * 80)), disk)
        try:
            for _ in range(20):
                process.stdout.readline()
            with open(disk / "filler", "wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError:
                    pass
            if not stays:
                time.sleep(4)
                (disk / "filler").unlink()
            err = process.communicate()[1]
            wrong = process.returncode != 0 or "Traceback" in err or read(run_of(disk) / "checkpoint.pt") is None
            figures.add("disk full: status not 0, a traceback, or no checkpoint", wrong)
            figures.add("disk full: more than four lines about it", len(err.splitlines()) > 4)
        finally:
            process.kill()
            process.wait()
            subprocess.run(["umount", str(disk)], check=True)


def flip_bits(folder, count, figures, draw):
    """Single bits of a checkpoint, anywhere in the file."""
    data = (run_of(folder) / "checkpoint.pt").read_bytes()
    whole = decode(data)
    for _ in range(count):
        flipped, bit = bytearray(data), draw.randrange(8 * len(data))
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            figures.add("single flipped bits: loaded", decode(bytes(flipped)) is not None)
        except Exception:
            figures.add("single flipped bits: loaded", False)
    assert whole


def soak(folder, seconds, figures):
    """One run left alone: memory, file handles and checkpoints stay as they are."""
    process = start(FLAGS, folder)
    process.stdout.readline(), process.stdout.readline()
    end, first = time.monotonic() + seconds, None
    while time.monotonic() < end:
        process.stdout.readline()
        if first is None and time.monotonic() > end - 0.8 * seconds:
            first = usage(process.pid)
    last = usage(process.pid)
    process.terminate()
    process.communicate()
    print(f"soak of {seconds:.0f} s: memory {first[0]} -> {last[0]} MB, open files {first[1]} -> {last[1]}")
    figures.add("soak: status not 143 or more open files than before", process.returncode != 143 or last[1] > first[1])


def usage(pid):
    """Resident memory in MB, open files."""
    memory = re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())
    return int(memory.group(1)) // 1024, len(os.listdir(f"/proc/{pid}/fd"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="in all; half of it kills, a quarter soak")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    draw, figures, seconds = random.Random(args.seed), Figures(), 60 * args.minutes
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as at_end:
        at_end.callback(figures.print)
        for name in ("kills", "looks", "soak", "disk"):
            os.mkdir(os.path.join(folder, name))
        kill_and_resume(f"{folder}/kills", time.monotonic() + 0.5 * seconds, figures, draw)
        flip_bits(f"{folder}/kills", 600, figures, draw)
        look(f"{folder}/looks", 0.1 * seconds, figures)
        fill_disk(f"{folder}/disk", figures)
        soak(f"{folder}/soak", 0.25 * seconds, figures)


if __name__ == "__main__":
    main()
