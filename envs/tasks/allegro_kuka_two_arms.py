"""AllegroKuka with two arms, one at either end of a longer table. The goal may lie on the other arm's side.

This file contains only the differences from the tasks with one arm, which are in allegro_kuka.py. The first version of
the EPO paper (2503.19037v1) describes each obstacle in a sentence. The boards of `...Hole` are those in EPO's released
code for two arms. The sizes of the other two obstacles are our choice.
"""

from envs.models import allegro_kuka_scene as scene
from envs.tasks.allegro_kuka import REWARD_TERMS, AllegroKukaBase, AllegroKukaRegrasping, AllegroKukaReorientation


class AllegroKukaTwoArms(AllegroKukaBase):
    """The base class of the tasks with two arms.

    Observation (160 + 9K) and action (46) begin with the left arm.
    """

    layout = scene.TWO_ARMS
    cpu_note = "no training on a CPU is known to have a success"
    # MuJoCo Warp's buffers per world. Hands that moved at random made 10.4 contacts on average and 90 rows of
    # constraints at most.
    max_contacts = 32
    max_constraints = 256
    start_side = 0.35  # m, drawn independently of the goal's
    goal_side = 0.75  # m
    goal_box = ((-0.2, -0.5, 0.68), (0.2, 0.5, 1.05))
    observes_records = False
    reward_names = REWARD_TERMS  # speed costs nothing
    fingertips_once_lifted = True

    def next_target(self, action):
        """The actions of all joints are absolute targets, those of the arms as well."""
        return self.joint_lower + (action + 1.0) * (self.joint_upper - self.joint_lower) / 2.0


class AllegroKukaTwoArmsRegrasping(AllegroKukaTwoArms, AllegroKukaRegrasping):
    """Lift the object and hold its centre at a point in the air. After each success it is put back on the table."""

    cpu_note = (
        "no training on a CPU is known to have a success; in AllegroKukaTwoArmsRegraspingHeldStarts goals also begin "
        "with the object in a hand"
    )


class AllegroKukaTwoArmsReorientation(AllegroKukaTwoArms, AllegroKukaReorientation):
    """Bring the object into a pose in the air. After each success a new pose follows; the object stays where it is."""

    def lost(self, near, fingertip_distance):
        return AllegroKukaBase.lost(self, near, fingertip_distance)  # however far from the hands


class AllegroKukaTwoArmsReorientationPartition(AllegroKukaTwoArmsReorientation):
    """A loose board stands between the arms and has to be removed first. Only a reset puts it up again."""

    obstacle = scene.Obstacle(width=0.4, height=0.4, loose=True)


class AllegroKukaTwoArmsReorientationHole(AllegroKukaTwoArmsReorientation):
    """Two fixed boards leave a slot between them. Every object fits through it and can be thrown or handed over."""

    obstacle = scene.Obstacle(width=0.4, height=1.47, opening=(0.4, 0.27, 0.47), thickness=0.05)
    thrown = True


class AllegroKukaTwoArmsReorientationBarrier(AllegroKukaTwoArmsReorientation):
    """A fixed board without an opening stands between the arms. One hand passes the object around it to the other."""

    obstacle = scene.Obstacle(width=0.24, height=0.5)
    thrown = True
