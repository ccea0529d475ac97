"""The learner's speed in two checkouts: `python benchmarks/scripts/update_speed.py ../old-checkout [--script epo.py]`.

Both checkouts run the script with Ant's sizes, 1,024 environments and one thread, on observations and rewards that are
random numbers: no physics. They take turns, one iteration each. What is compared is the CPU time, which other processes
disturb less than the clock, between the last environment step of an iteration and the first of the next: advantages,
update epochs, log, and two forward passes of the rollout. Prints a Markdown table with the medians over the iterations
and of the ratios of the pairs. Arguments that are not known here are flags for both, after FLAGS.
"""

import argparse
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from envs.base import VectorEnv  # noqa: E402, the checkout's whose script imports this file

NUM_ENVS, NUM_STEPS = 1_024, 16
FLAGS = (
    f"--env-id benchmarks.scripts.update_speed:Noise --no-cuda --num-envs {NUM_ENVS} --num-steps {NUM_STEPS}"
    " --update-epochs 4 --num-minibatches 4 --hidden-sizes 256 128 64 --checkpoint-interval 0"
)
SECONDS = struct.Struct("d")


class Noise(VectorEnv):
    """Ant's sizes, without an ant. Before each iteration it reports the seconds that the learner took and waits."""

    num_obs, num_actions, max_episode_steps = 60, 8, 1_000

    def __init__(self, num_envs, device, seed):
        super().__init__(num_envs, device, seed)
        self.obs, self.steps, self.since = torch.zeros(num_envs, self.num_obs), 0, 0.0

    def reset_where(self, mask):
        pass

    def advance(self, action):
        if self.steps and self.steps % NUM_STEPS == 0:
            os.write(1, SECONDS.pack(time.process_time() - self.since))
            if not os.read(0, 1):
                sys.exit()  # nobody listens any more
        self.steps += 1
        self.obs = torch.randn(self.num_envs, self.num_obs, generator=self.generator)
        reward, never = torch.randn(self.num_envs, generator=self.generator), torch.zeros(self.num_envs) > 0
        self.since = time.process_time()
        return reward, never, never

    def observe(self):
        return self.obs


def start(repository, script, flags, folder):
    """Start a script, which waits before its second iteration."""
    # Noise writes to the standard output; what the script prints goes to a file
    code = (
        "import os, runpy, sys; log = open('log.txt', 'w'); sys.stdout = log; sys.argv = sys.argv[1:];"
        " sys.path[0] = os.path.dirname(sys.argv[0]); runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", code, str(repository.resolve() / script), *flags],
        cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
    )  # fmt: skip


def seconds(process):
    """What the script reports next. Ends the program where it does not."""
    data = process.stdout.read(SECONDS.size)
    if len(data) < SECONDS.size:
        sys.exit(f"{' '.join(process.args[3:])}: ended with status {process.wait()}")
    return SECONDS.unpack(data)[0]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=pathlib.Path, help="the other checkout")
    parser.add_argument("--script", default="ppo.py")
    parser.add_argument("--pairs", type=int, default=40, help="iterations of each, after the two that are left out")
    args, flags = parser.parse_known_args(argv)
    flags = [*FLAGS.split(), "--total-timesteps", str((args.pairs + 4) * NUM_ENVS * NUM_STEPS), *flags]
    with tempfile.TemporaryDirectory() as old_folder, tempfile.TemporaryDirectory() as new_folder:
        old, new = start(args.old, args.script, flags, old_folder), start(ROOT, args.script, flags, new_folder)
        seconds(old), seconds(new)  # the first iteration
        times = {old: [], new: []}
        for pair in range(args.pairs + 1):
            for process in (old, new) if pair % 2 else (new, old):
                process.stdin.write(b"\n")
                times[process].append(seconds(process))
        old.kill(), new.kill()
        old.wait(), new.wait()
    before, after = times[old][1:], times[new][1:]
    ratios = [b / a for a, b in zip(before, after)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    print("| script | old, CPU ms | new, CPU ms | new / old, median (quartiles) |\n|-|-|-|-|")
    milliseconds = " | ".join(f"{1e3 * statistics.median(x):.0f}" for x in (before, after))
    print(f"| {args.script} | {milliseconds} | {middle:.3f} ({low:.3f} to {high:.3f}) |")


if __name__ == "__main__":
    main()
