"""Reads experiments, `benchmarks/experiments/NAME.txt`: a question, settings, and a command for each variant.

    Does a population help?

    seeds: 1-10
    score: charts/leader_objective

    # PPO
    python ppo.py --env-id Moat --no-cuda

    # SAPG-6
    seeds: 1-20
    python sapg.py --env-id Moat --num-agents 6 --no-cuda

Commands are as one would type them in the repository's root, but for --seed, which `run.py` adds. Settings:

    seeds        1-10, or 1 2 5; a variant with other seeds has a line of its own
    score        the tag by which variants are compared
    tags         more tags whose curves are collected; * stands for anything
    final share  a final value is the mean over this share of the curve, at its end (0.05)
    first above  also collect the first step at which the score exceeds this
    evaluate     yes: when a run is finished, evaluate.py plays 100 episodes
"""

import pathlib
import re
import shlex
from typing import List, NamedTuple, Optional

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXPERIMENTS = ROOT / "benchmarks" / "experiments"
RUNS = ROOT / "benchmarks" / "runs"
RESULTS = ROOT / "benchmarks" / "results"
SETTINGS = ("seeds", "score", "tags", "final share", "first above", "evaluate")


class Variant(NamedTuple):
    """A command that is run once per seed."""

    name: str
    command: List[str]  # python, the script and its flags
    seeds: List[int]


class Experiment(NamedTuple):
    """Variants that are compared with each other."""

    name: str
    variants: List[Variant]
    score: str
    tags: List[str]
    final_share: float
    first_above: Optional[float]
    evaluate: bool

    @property
    def csv(self):
        """The path of its results."""
        return RESULTS / f"{self.name}.csv"


class Run:
    """A variant with one of its seeds. Its folder has log.txt, which begins with commit and command, and runs/."""

    def __init__(self, experiment, variant, seed):
        self.variant = variant.name
        self.seed = seed
        self.title = f"{experiment.name}: {variant.name}, seed {seed}"
        self.command = [*variant.command, "--seed", str(seed)]
        self.folder = RUNS / experiment.name / re.sub(r"[^\w.-]+", "_", variant.name) / str(seed)
        self.log = self.folder / "log.txt"

    def read_log(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def starts(self):
        """[(commit, command), ...] of each time that it was started or resumed."""
        return re.findall(r"^commit (\S+): (python .*)$", self.read_log(), re.MULTILINE)

    def has_other_flags(self):
        return any(command != shlex.join(self.command) for _, command in self.starts())

    def is_finished(self):
        return "\nfinished: " in self.read_log() and not self.has_other_flags()


def experiment_names():
    return sorted(path.stem for path in EXPERIMENTS.glob("*.txt"))


def read_experiment(name):
    """The experiment of `benchmarks/experiments/NAME.txt`. Raises ValueError where that is not as described above."""
    path = EXPERIMENTS / f"{name}.txt"
    head, *sections = re.split(r"^# ", path.read_text(), flags=re.MULTILINE)
    settings = {}
    for line in head.strip().split("\n\n")[-1].splitlines():
        key, _, value = line.partition(": ")
        if key not in SETTINGS:
            raise ValueError(f"{path}: {key} is no setting; there are {', '.join(SETTINGS)}")
        settings[key] = value
    return Experiment(
        name=name,
        variants=[read_variant(section, settings["seeds"]) for section in sections],
        score=settings["score"],
        tags=settings.get("tags", "").split(),
        final_share=float(settings.get("final share", 0.05)),
        first_above=float(settings["first above"]) if "first above" in settings else None,
        evaluate=settings.get("evaluate") == "yes",
    )


def read_variant(section, seeds):
    """section: its name, perhaps its seeds, and its command, a line each."""
    name, *lines = section.strip().splitlines()
    if len(lines) == 2 and lines[0].startswith("seeds: "):
        seeds = lines.pop(0)[len("seeds: ") :]
    if len(lines) != 1 or not lines[0].startswith("python "):
        raise ValueError(f"# {name}: must be followed by one line with its command, python SCRIPT.py ...")
    return Variant(name, shlex.split(lines[0]), read_seeds(seeds))


def read_seeds(text):
    """1-3 are [1, 2, 3], and so are 1 2 3."""
    first, _, last = text.partition("-")
    if last:
        return list(range(int(first), int(last) + 1))
    return [int(seed) for seed in text.split()]


def find_runs(experiment):
    """All its runs, seed by seed, so that an unfinished experiment has the same seeds of every variant."""
    runs = [Run(experiment, variant, seed) for variant in experiment.variants for seed in variant.seeds]
    return sorted(runs, key=lambda run: run.seed)
