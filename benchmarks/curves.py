"""Scalars of one run as csv and plot: `python benchmarks/curves.py RUN_FOLDER OUT KEY...` writes OUT.csv and OUT.png.

Of a run of more than 500 iterations every second one is written, of more than 1,000 every third, and so on.
Needs matplotlib, which is not among the requirements.
"""

import argparse
import csv

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

MAX_ROWS = 500  # per key


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("out")
    parser.add_argument("keys", nargs="+")
    args = parser.parse_args()
    events = EventAccumulator(args.run, size_guidance={"scalars": 0})
    events.Reload()
    figure, axes = plt.subplots(1, len(args.keys), figsize=(4 * len(args.keys), 3), squeeze=False)
    with open(args.out + ".csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["key", "step", "seconds", "value"])
        for axis, key in zip(axes[0], args.keys):
            scalars = events.Scalars(key)
            scalars = scalars[:: 1 + len(scalars) // MAX_ROWS]
            start = scalars[0].wall_time
            writer.writerows((key, e.step, round(e.wall_time - start, 1), round(e.value, 5)) for e in scalars)
            axis.plot([e.step for e in scalars], [e.value for e in scalars], lw=0.8)
            axis.set(title=key, xlabel="environment steps")
    figure.tight_layout()
    figure.savefig(args.out + ".png", dpi=100)


if __name__ == "__main__":
    main()
