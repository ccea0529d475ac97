"""AllegroKuka with two arms, one at either end of a longer table; the goal may lie on the other arm's side.

What differs from one arm is stated below; all else is in allegro_kuka.py. The obstacles are described in EPO's first
version (2503.19037v1) in a sentence each. The boards of `...Hole` are those that EPO's released code puts into its
two-arm reorientation; the sizes of the other two are ours.
"""

from envs.models import allegro_kuka_scene as scene
from envs.tasks.allegro_kuka import REWARD_TERMS, AllegroKukaBase, AllegroKukaRegrasping, AllegroKukaReorientation


class AllegroKukaTwoArms(AllegroKukaBase):
    """What the tasks with two arms share: observation (160 + 9K), action (46), both the left arm's first."""

    layout = scene.TWO_ARMS
    # MuJoCo Warp's buffers, per world: random hands made 7.6 contacts on average and at most 46 rows of constraints
    max_contacts, max_constraints = 32, 256
    start_side, goal_side = 0.35, 0.75  # m, each drawn by itself
    goal_box = ((-0.2, -0.5, 0.68), (0.2, 0.5, 1.05))
    observes_records = False
    reward_names = REWARD_TERMS  # speed costs nothing
    fingertips_once_lifted = True

    def next_target(self, action):
        """All joints are absolute, those of the arms as well."""
        return self.joint_lower + (action + 1.0) * (self.joint_upper - self.joint_lower) / 2.0


class AllegroKukaTwoArmsRegrasping(AllegroKukaTwoArms, AllegroKukaRegrasping):
    """Lift the object and hold its centre at a point in the air; after every success it lies on the table again."""


class AllegroKukaTwoArmsReorientation(AllegroKukaTwoArms, AllegroKukaReorientation):
    """Bring the object to a pose in the air; after every success to the next one, with the object where it is."""

    def lost(self, near, fingertip_distance):
        return AllegroKukaBase.lost(self, near, fingertip_distance)  # however far from the hands


class AllegroKukaTwoArmsReorientationPartition(AllegroKukaTwoArmsReorientation):
    """A board stands loose between the arms and has to be removed first; only a reset puts it up again."""

    obstacle = scene.Obstacle(width=0.4, height=0.4, loose=True)


class AllegroKukaTwoArmsReorientationHole(AllegroKukaTwoArmsReorientation):
    """Two fixed boards, one above the other, leave a slot that every object fits through, to throw or hand it over."""

    obstacle = scene.Obstacle(width=0.4, height=1.47, opening=(0.4, 0.27, 0.47), thickness=0.05)
    thrown = True


class AllegroKukaTwoArmsReorientationBarrier(AllegroKukaTwoArmsReorientation):
    """A fixed board between the arms has no opening: one hand passes the object round its side to the other."""

    obstacle = scene.Obstacle(width=0.24, height=0.5)
    thrown = True
