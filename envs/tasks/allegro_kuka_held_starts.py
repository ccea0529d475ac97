"""AllegroKuka with held starts, ours: a share of the training episodes begins with the object in the closed hand.

Throwing the object pays the lift bonus at once, holding it pays only a policy that can hold already: these episodes
show it what holding pays. Evaluation plays the original starts. All else is in allegro_kuka.py, shape letters too; S is
the number of held states that an environment keeps.
"""

import torch

from envs.models import allegro_kuka_scene as scene
from envs.rotations import rotate
from envs.tasks.allegro_kuka import (
    ARM_SPEED,
    JOINTS_PER_ROBOT,
    NUM_ARM,
    OBJECT,
    AllegroKukaRegrasping,
    AllegroKukaReorientation,
)

HAND_STEP = 0.1  # rad per control step at an action of 1, where the hand's targets are relative

# Joint angles (rad) of a grasp of a 5 cm cube with thumb and fingers, and of the arm that lifts it off the table.
ARM_LOW = (-1.613, 1.644, 0.033, 1.307, 0.04, 1.354, 2.312)
ARM_HIGH = (-1.631, 0.725, 0.026, 0.02, 0.033, 0.939, 2.323)
HAND_OPEN = (-0.124, 0.821, 0.243, 0.281, 0.091, 0.787, 0.304, 0.335, 0, 0.3, 0.3, 0.3, 1.406, 0.441, -0.059, 1.068)
HAND_SHUT = (-0.077, 1.03, 0.759, 0.789, -0.002, 1.09, 0.78, 0.45, 0, 1.03, 0.759, 0.789, 1.57, -0.17, 0.467, -0.271)
# How they are varied
ARM_SHARE, ARM_NOISE = (0.5, 1.5), 0.3  # of the way from low to high; rad
OPEN_NOISE, SHUT_EXTRA = 0.15, (0.0, 0.5)  # rad; the hand closes farther than around a cube
TOWARDS_PALM, CENTRE_NOISE = (0.0, 0.5), 0.015  # share of the way there from between the fingertips; m
POSE_DRAWS, GRASP_HEIGHT = 4, scene.TABLE_TOP + 0.27  # at most, until the fingertips are as high, m

BANK_SIZE = 8  # S, at most
BANK_STEPS, CHECK_STEPS, HELD_STEPS = 300, 15, 75  # control steps: in all, between checks, that a grasp has to last
HELD_DISTANCE, HELD_SPEED, HELD_HEIGHT = 0.16, 0.1, scene.TABLE_TOP + 0.2  # m from the palm, m/s, m: high enough to
# count as lifted. With lower ones PPO learns more slowly; where these pay the bonus it learns to throw from the hand.


class HeldStarts:
    """To be put before a task with one arm. An environment's held states are found by closing its hand around its
    object in the air; some objects have none. They are part of the state that is saved.
    """

    held_share = 0.5  # of the training episodes, where there are held states
    relative_hand = True  # whether the hand's targets are relative to its last ones too: an action of 0 keeps it shut

    def __init__(self, num_envs, device, seed, engine="mujoco"):
        super().__init__(num_envs, device, seed, engine)
        self.held_qpos = self.zeros(BANK_SIZE, self.engine.qpos.shape[1])
        self.held_target = self.zeros(BANK_SIZE, self.num_joints)
        self.held_count = self.zeros(dtype=torch.long)
        hand_step = [HAND_STEP] * (JOINTS_PER_ROBOT - NUM_ARM)
        self.target_step = self.tensor([ARM_SPEED * scene.CONTROL_PERIOD] * NUM_ARM + hand_step)  # rad

    def reset(self):
        if self.training and not self.held_count.any():
            self.find_held_states()
        return super().reset()

    def next_target(self, action):
        if not self.relative_hand:
            return super().next_target(action)
        return (self.target + self.target_step * action).clamp(self.joint_lower, self.joint_upper)

    def reset_where(self, mask):
        super().reset_where(mask)
        if not (self.training and mask.any()):
            return
        held = mask & (self.held_count > 0) & (self.uniform(0.0, 1.0) < self.held_share)
        drawn = (self.uniform(0.0, 1.0) * self.held_count).long()
        rows = torch.arange(self.num_envs, device=self.device)
        self.engine.set_state(held, self.held_qpos[rows, drawn], torch.zeros_like(self.engine.qvel))
        self.target = torch.where(held[:, None], self.held_target[rows, drawn], self.target)
        self.lifted = self.lifted | held
        self.closest_fingertip = torch.where(held[:, None], self.fingertip_distance(), self.closest_fingertip)
        self.closest_keypoint = torch.where(held, self.keypoint_distance(), self.closest_keypoint)

    # ---------------------------------------------------------------- held states

    def find_held_states(self):
        """Fill the bank: hands close around objects; what is held after HELD_STEPS is kept, what falls is redrawn."""
        print(f"held starts: {self.num_envs:,} hands grasp their objects", flush=True)
        age = self.zeros(dtype=torch.long)  # control steps since the hand began to close
        target = self.begin_grasps(age == 0, self.target)
        for _ in range(BANK_STEPS // CHECK_STEPS):
            for _ in range(CHECK_STEPS):
                self.engine.step(target)
            age += CHECK_STEPS
            position = self.engine.body_pos[:, OBJECT]
            near = (position - self.palm_centre()).norm(dim=1) < HELD_DISTANCE
            over = self.engine.broken | ~near | (age >= HELD_STEPS)
            still = self.engine.body_linvel[:, OBJECT].norm(dim=1) < HELD_SPEED
            held = near & still & ~self.engine.broken & (position[:, 2] > HELD_HEIGHT) & (age >= HELD_STEPS)
            rows = (held & (self.held_count < BANK_SIZE)).nonzero().squeeze(1)
            self.held_qpos[rows, self.held_count[rows]] = self.engine.qpos[rows]
            self.held_target[rows, self.held_count[rows]] = target[rows]
            self.held_count[rows] += 1
            target = self.begin_grasps(over, target)
            age.masked_fill_(over, 0)
        share, mean = (self.held_count > 0).float().mean(), self.held_count.float().mean()
        print(f"held starts: {share:.0%} of the environments have some, {mean:.1f} on average", flush=True)

    def begin_grasps(self, mask, target):
        """Put the objects of mask (N,) bool between the fingers of open hands in the air, at rest.

        Returns the targets (N, J) rad that close these hands; all others are those of `target`.
        """
        low, high, opened, shut = map(self.tensor, (ARM_LOW, ARM_HIGH, HAND_OPEN, HAND_SHUT))
        at_rest = torch.zeros_like(self.engine.qvel)
        far = self.tensor((0.0, 0.0, 3.0, 1.0, 0.0, 0.0, 0.0)).expand(self.num_envs, 7)
        pose = self.zeros(self.num_joints)
        beneath = mask
        for _ in range(POSE_DRAWS):
            arm = low + self.uniform(*ARM_SHARE, 1) * (high - low) + self.uniform(-ARM_NOISE, ARM_NOISE, NUM_ARM)
            hand = opened + self.uniform(-OPEN_NOISE, OPEN_NOISE, len(HAND_OPEN))
            drawn = torch.cat([arm, hand], 1).clamp(self.joint_lower, self.joint_upper)
            pose = torch.where(beneath[:, None], drawn, pose)
            self.engine.set_state(beneath, torch.cat([pose, far], 1), at_rest)
            index, middle, _, thumb = self.fingertips().unbind(1)
            centre = 0.5 * thumb + 0.25 * (index + middle)
            beneath = beneath & (centre[:, 2] < GRASP_HEIGHT)
        centre = centre + self.uniform(*TOWARDS_PALM, 1) * (self.palm_centre() - centre)
        centre = centre + self.uniform(-CENTRE_NOISE, CENTRE_NOISE, 3)
        self.engine.set_state(mask, torch.cat([pose, centre, self.random_rotation(self.num_envs)], 1), at_rest)
        closed = torch.cat([pose[:, :NUM_ARM], shut + self.uniform(*SHUT_EXTRA, len(HAND_SHUT))], 1)
        return torch.where(mask[:, None], closed.clamp(self.joint_lower, self.joint_upper), target)

    def palm_centre(self):
        """(N, 3) m."""
        return self.engine.body_pos[:, 0] + rotate(self.engine.body_quat[:, 0], self.palm_offset)


class AllegroKukaRegraspingHeldStarts(HeldStarts, AllegroKukaRegrasping):
    """AllegroKukaRegrasping with held starts."""


class AllegroKukaReorientationHeldStarts(HeldStarts, AllegroKukaReorientation):
    """AllegroKukaReorientation with held starts."""
