"""Tasks whose first episodes begin in phase, to measure what staggering them does.

    python ppo.py --env-id benchmarks.scripts.in_phase:Anymal
"""

from envs.tasks import anymal, in_hand


class InPhase:
    """Mixed into a task: its clocks all start at 0, in training too."""

    def reset(self):
        self.training = False
        return super().reset()


class AllegroHand(InPhase, in_hand.AllegroHand):
    """AllegroHand in phase."""


class Anymal(InPhase, anymal.Anymal):
    """Anymal in phase."""
