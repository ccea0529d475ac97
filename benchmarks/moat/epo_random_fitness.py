"""epo.py with fitness replaced by random numbers: what remains of EPO when the genetic algorithm selects nothing.

The generations still come when the true fitness says so (EPO Eq. 3); only who survives them is left to chance.
"""

import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import epo  # noqa: E402

evolve = epo.genetic_algorithm_step


def evolve_at_random(latents, fitness, optimizer, args):
    return evolve(latents, torch.rand_like(fitness), optimizer, args)


epo.genetic_algorithm_step = evolve_at_random

if __name__ == "__main__":
    epo.main()
