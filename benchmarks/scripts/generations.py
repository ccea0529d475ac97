"""Draw what the generations of an EPO run did, as three plots. Needs matplotlib.

    python epo.py --env-id Moat --no-cuda --num-minibatches 16
    python -m benchmarks.scripts.generations runs/RUN [--out docs/images/generations.png]

Left: the leader and the agents, with a line at each generation. Middle: both sides of EPO Eq. 3, which decides when a
generation comes. Right: the fitness of all followers at each generation, with parents and the one that is replaced.
"""

import argparse
import pathlib
import re

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks.scripts.collect import read_curves
from benchmarks.scripts.help import HelpFormatter
from benchmarks.scripts.plot import Figure, save

LINEAGE = "evolution/lineage/text_summary"
AGENTS = {  # tag -> its name in the plot
    "charts/best_agent_objective": "best agent",
    "charts/leader_objective": "leader",
    "population/objective_median": "median",
    "population/objective_worst": "worst agent",
}
TRIGGER = {"evolution/fitness_gap": "best − worst", "evolution/threshold": "threshold"}


def parse_lineage(text):
    """What EPO logs of a generation: [(child, parent, parent), ...] and the fitness of all agents [A]."""
    children, fitness = text.split("; fitness ")
    families = re.findall(r"(\d+) <- (\d+), (\d+)", children)
    return [tuple(map(int, family)) for family in families], [float(number) for number in fitness.split()]


def read_generations(folder):
    """The generations of a run: [(environment steps, families, fitness), ...], see `parse_lineage`."""
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    if LINEAGE not in events.Tags()["tensors"]:
        raise SystemExit(f"{folder}: no generation has been logged")
    found = []
    for event in events.Tensors(LINEAGE):
        found.append((event.step, *parse_lineage(event.tensor_proto.string_val[0].decode())))
    return found


def draw_curves(axis, curves, names, generations):
    for tag, name in names.items():
        steps, values = curves[tag]
        axis.plot(steps / 1e6, values, "o-", label=name, lw=1.3, ms=2)
    for step, _, _ in generations:
        axis.axvline(step / 1e6, color="0.8", lw=0.8, zorder=0)
    axis.set_xlabel("million environment steps")
    axis.legend(fontsize=7)


def draw_generations(axis, generations):
    """A column of dots per generation; agent 0, the leader, takes no part."""
    for i, (_, families, fitness) in enumerate(generations, 1):
        children = [child for child, _, _ in families]
        parents = [parent for family in families for parent in family[1:]]
        followers = range(1, len(fitness))
        for name, agents, colour in (
            ("followers", followers, "0.75"),
            ("parents", parents, "C0"),
            ("replaced", children, "C3"),
        ):
            label = name if i == 1 else None
            axis.plot([i] * len(agents), [fitness[k] for k in agents], "o", ms=3.5, color=colour, label=label)
    axis.set_xlim(0.5, len(generations) + 0.5)
    axis.set_xticks(range(1, len(generations) + 1))
    axis.set_xlabel("generation")
    axis.legend(fontsize=7)


def draw(folder, path):
    curves = read_curves(folder, [*AGENTS, *TRIGGER])
    generations = read_generations(folder)
    figure = Figure(figsize=(12.0, 3.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    draw_curves(left, curves, AGENTS, generations)
    left.set_title("objective; grey: generations", fontsize=9)
    draw_curves(middle, curves, TRIGGER, generations)
    middle.set_title("a generation comes when the followers differ enough", fontsize=9)
    draw_generations(right, generations)
    right.set_title("the worst is replaced by a child of two others", fontsize=9)
    save(figure, path)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="the folder of a run of epo.py")
    parser.add_argument("--out", type=pathlib.Path, default="generations.png", help="the picture")
    args = parser.parse_args(argv)
    draw(args.folder, args.out)


if __name__ == "__main__":
    main()
