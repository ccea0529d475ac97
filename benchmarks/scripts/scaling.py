"""Two processes of one thread against one process of two threads: seconds per iteration, from runs taken in turn.

    python benchmarks/scripts/scaling.py --pairs 5 --flags="--env-id Moat --num-agents 6"
"""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass

import tyro
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclass
class Args:
    script: str = "sapg"
    """which script, without .py"""
    flags: str = "--env-id Moat --num-agents 6 --total-timesteps 983040"
    """its flags: the same for both, 20 iterations of Moat unless said otherwise"""
    pairs: int = 5
    """how often both are run"""
    processes: int = 2
    """processes of one thread, against one process with as many threads"""


def seconds_per_iteration(command, threads):
    """Median over the iterations, without the first, of a run in a folder of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
        (run,) = pathlib.Path(folder, "runs").iterdir()
        events = EventAccumulator(str(run), size_guidance={"scalars": 0})
        events.Reload()
    parts = [[event.value for event in events.Scalars(f"perf/{part}_s")] for part in ("rollout", "update")]
    return statistics.median([sum(both) for both in zip(*parts)][1:])


def main():
    args = tyro.cli(Args)
    script = [str(ROOT / f"{args.script}.py"), "--no-cuda", *args.flags.split()]
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={args.processes}"]
    ratios = []
    print("| one process, s | several, s | ratio |\n|-|-|-|")
    for _ in range(args.pairs):
        one = seconds_per_iteration([sys.executable, *script], args.processes)
        several = seconds_per_iteration([sys.executable, *torchrun, *script], 1)
        ratios.append(one / several)
        print(f"| {one:.3f} | {several:.3f} | {ratios[-1]:.2f} |", flush=True)
    print(f"median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
