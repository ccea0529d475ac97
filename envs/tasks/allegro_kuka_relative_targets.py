"""AllegroKuka with relative hand targets, ours: the hand's actions move its targets, as the arm's do with one arm.

With the original's absolute targets a new policy's mean action, 0, moves every finger joint to the middle of its range,
so that a hand lets go of what it holds. Here it keeps the hand as it is.
"""

import torch

from envs.models import allegro_kuka_scene as scene
from envs.tasks.allegro_kuka import ARM_SPEED, JOINTS_PER_ROBOT, NUM_ARM, AllegroKukaRegrasping

HAND_STEP = 0.1  # rad per control step at an action of 1


class RelativeHandTargets:
    """Mixin for AllegroKuka tasks, named before the task. It changes the action and extends the observation by J."""

    def __init__(self, num_envs, device, seed, engine="mujoco"):
        super().__init__(num_envs, device, seed, engine)
        self.num_obs += self.num_joints
        arm_step = ARM_SPEED * scene.CONTROL_PERIOD
        robot_step = [arm_step] * NUM_ARM + [HAND_STEP] * (JOINTS_PER_ROBOT - NUM_ARM)
        self.target_step = self.constant(robot_step * self.num_robots)  # rad

    def next_target(self, action):
        return (self.target + self.target_step * action).clamp(self.joint_lower, self.joint_upper)

    def observe(self):
        """The original's and how far the target of each joint is ahead of its angle (N, J) rad.

        Without it only a policy with memory can tell how far a joint will go on by itself.
        """
        ahead = self.target - self.engine.qpos[:, : self.num_joints]
        return torch.cat([super().observe(), ahead], 1)


class AllegroKukaRegraspingRelativeTargets(RelativeHandTargets, AllegroKukaRegrasping):
    """AllegroKukaRegrasping with relative hand targets and the original starts."""

    cpu_note = (
        "on a CPU, PPO lifts the object in half of its episodes after 20 M steps, but reaches hardly any goals; with "
        "AllegroKukaRegraspingHeldStarts it reaches 6.7 per episode in 60 M steps, 4 hours"
    )
