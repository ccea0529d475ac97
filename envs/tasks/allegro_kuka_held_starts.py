"""AllegroKuka with held starts, ours: many training goals begin with the object in the hand or beneath it.

Throwing the object pays the lift bonus at once, holding it pays only a policy that can hold already: these starts show
it what holding pays. Evaluation plays the original starts. All else is in allegro_kuka.py, shape letters too; S is the
number of states of a kind that an environment keeps.
"""

import torch

from envs.models import allegro_kuka_scene as scene
from envs.rotations import rotate
from envs.tasks.allegro_kuka import NUM_ARM, OBJECT, AllegroKukaRegrasping, AllegroKukaReorientation, half_height
from envs.tasks.allegro_kuka_relative_targets import RelativeHandTargets

DROPPED = 0.2  # m that all fingertips are farther from the object than at best: beyond it a training episode ends

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

# Held in the air; held over the table; on it between fingers that open (in thirds); beneath the open hand on its way to
# the original start (in thirds); the original start. After a success only: on the table, the robot moved back to thirds
# of the way from a start pose to where it was; as in the original task.
KIND_NAMES = "high low ajar half_open open near halfway far original home midway away next".split()
KINDS = range(len(KIND_NAMES))
HIGH, LOW, AJAR, HALF_OPEN, OPEN, NEAR, HALFWAY, FAR, ORIGINAL, HOME, MIDWAY, AWAY, NEXT = KINDS
FACTORS = {ORIGINAL: 3.0, MIDWAY: 0.2, AWAY: 0.2, NEXT: 0.15}  # of weights: most for what evaluations begin with
UNSOLVED = 0.01  # added to shares in weights, so that kinds that were never solved are still tried
RECENT = 500.0  # goals over which successes are averaged
PATIENCE = 200  # control steps since a goal was set, after which a training episode ends
BANK_SIZE = 4  # S, at most
GRASP_STEPS, CHECK_STEPS, HELD_STEPS = 300, 15, 75  # control steps: in all, between checks, that a grasp has to last
PUT_DOWNS, LOWER_STEPS, MOVE_STEPS, SETTLE_STEPS = 2, 120, 15, 10  # times; control steps
HELD_DISTANCE, OPEN_DISTANCE, REACH, HELD_SPEED = 0.16, 0.19, 0.4, 0.1  # from the palm, m; m/s
HELD_HEIGHT = scene.TABLE_TOP + 0.2  # m: high enough to count as lifted
SPREAD = {HALFWAY: 0.5, FAR: 1.0}  # share of the way that an object is moved to where an original episode could begin
TABLE_GAP, TIP_GAP, LAID_GAP = 0.003, 0.012, 0.01  # m above the table: of object or fingertips the hand stops; on it


class HeldStarts:
    """Mixin for tasks with one arm, named before the task. An environment's held states are found by closing its hand
    around its object in the air and putting it down; some objects have none. They are part of the state that is saved.
    """

    def __init__(self, num_envs, device, seed, engine="mujoco"):
        super().__init__(num_envs, device, seed, engine)
        self.held_qpos = self.zeros(ORIGINAL, BANK_SIZE, self.engine.qpos.shape[1])
        self.held_target = self.zeros(ORIGINAL, BANK_SIZE, self.num_joints)
        self.held_count = self.zeros(ORIGINAL, dtype=torch.long)
        self.searched = False
        self.kind = self.zeros(dtype=torch.long).fill_(ORIGINAL)  # of the start that the goal began with
        self.solved_share = torch.full((len(KINDS),), 0.5, device=self.device)  # of the recent goals of each kind

    def reset(self):
        super().reset()
        if self.training:  # goals' time ends earlier
            self.episode_step.mul_(PATIENCE).div_(self.max_episode_steps, rounding_mode="floor")
        return self.observe()

    def advance(self, action):
        if self.training and not self.searched:  # not in reset: a resumed run has its states by now
            self.searched = True
            if not self.held_count.any():
                before = self.engine.state_dict()
                self.find_held_states()
                self.engine.load_state_dict(before)
        return super().advance(action)

    def set_goal(self, mask):
        reached = self.near_steps >= self.success_steps
        super().set_goal(mask)
        if self.training:
            self.begin_held(mask, reached)

    def begin_held(self, mask, reached):
        """Draw a kind of start for each goal of mask (N,) bool, with weight (p + UNSOLVED) (1 - p)^4 for a share p of
        goals reached, times the kind's factor: what is within reach first, then what is still left to learn.

        reached (N,) bool: whether the goals before these were.
        """
        ended = mask & (self.episode_length > 0) & ~self.shortened
        ended = ended[:, None] & (self.kind[:, None] == torch.arange(len(KINDS), device=self.device))
        count, successes = ended.sum(0), (ended & reached[:, None]).sum(0)
        self.solved_share = self.solved_share + (successes - count * self.solved_share) / (count + RECENT)
        again = self.successes[:, None] > 0
        possible = torch.cat([self.held_count > 0, ~again, again.expand(-1, NEXT - ORIGINAL)], 1)
        exponential = self.uniform(1e-6, 1.0 - 1e-6, len(KINDS)).log().neg()  # never 0
        weight = (self.solved_share + UNSOLVED) * (1.0 - self.solved_share).pow(4)
        for kind, factor in FACTORS.items():  # no tensor, which a resumed run would restore
            weight[kind] *= factor
        kind = (weight * possible / exponential).argmax(1)  # drawn with these weights
        self.begin_with(mask, kind)

    def begin_with(self, mask, kind):
        """Begin the goals of mask (N,) bool with states of `kind` (N,); a high one makes its goal nearer."""
        self.kind = torch.where(mask, kind, self.kind)
        self.move_back(mask & (kind >= HOME) & (kind < NEXT), (kind - HOME) / (NEXT - HOME))
        held, kind = mask & (kind < ORIGINAL), kind.clamp(max=FAR)
        rows = torch.arange(self.num_envs, device=self.device)
        state = rows, kind, (self.uniform(0.0, 1.0) * self.held_count[rows, kind]).long()
        self.engine.set_state(held, self.held_qpos[state], torch.zeros_like(self.engine.qvel))
        self.target = torch.where(held[:, None], self.held_target[state], self.target)
        high = held & (kind == HIGH)
        self.lifted = torch.where(held, high, self.lifted)
        position = self.engine.body_pos[:, OBJECT]
        nearer = position + self.uniform(0.0, 1.0, 1) * (self.goal[:, :3] - position)
        self.goal[:, :3] = torch.where(high[:, None], nearer, self.goal[:, :3])
        self.engine.set_mocap(high, self.goal[:, None])
        self.closest_fingertip = torch.where(held[:, None], self.fingertip_distance(), self.closest_fingertip)
        self.closest_keypoint = torch.where(mask, self.keypoint_distance(), self.closest_keypoint)

    def move_back(self, mask, share):
        """Put the robots of mask (N,) bool on the way from a start pose to where they are, at `share` (N,) of it or up
        to a third farther, and their objects on the table.
        """
        share = share[:, None] + self.uniform(0.0, 1.0 / (NEXT - HOME), 1)
        start, joints = self.draw_pose(), slice(self.num_joints)
        qpos, qvel = self.engine.qpos.clone(), self.engine.qvel.clone()
        qpos[:, joints] = start.lerp(qpos[:, joints], share)
        qvel[:, joints] *= share
        self.target = torch.where(mask[:, None], start.lerp(self.target, share), self.target)
        self.place_object(mask, qpos, qvel)

    def lost(self, near, fingertip_distance):
        farther = (fingertip_distance - self.closest_fingertip).amin(1)
        return super().lost(near, fingertip_distance) | (self.training & (farther > DROPPED))

    def given_up(self):
        return self.training & (self.episode_step >= PATIENCE)

    def metrics(self):
        solved = {f"solved_from_{KIND_NAMES[kind]}": self.solved_share[kind] for kind in KINDS}
        return {**super().metrics(), **solved}

    # ---------------------------------------------------------------- held states

    def find_held_states(self):
        """Fill the bank: hands close around objects; what is held after HELD_STEPS is kept, what falls is redrawn."""
        print(f"held starts: {self.num_envs:,} hands grasp their objects and put them down", flush=True)
        age = self.zeros(dtype=torch.long)  # control steps since the hand began to close
        target = self.begin_grasps(age == 0, self.target)
        for _ in range(GRASP_STEPS // CHECK_STEPS):
            for _ in range(CHECK_STEPS):
                self.engine.step(target)
            age += CHECK_STEPS
            near = self.palm_distance() < HELD_DISTANCE
            high = self.engine.body_pos[:, OBJECT, 2] > HELD_HEIGHT
            over = self.engine.broken | ~near | (age >= HELD_STEPS)
            self.keep(HIGH, self.rests_at(HELD_DISTANCE) & high & (age >= HELD_STEPS), target)
            target = self.begin_grasps(over, target)
            age.masked_fill_(over, 0)
        for _ in range(PUT_DOWNS):
            self.put_down()
        shares = ", ".join(f"{share:.0%}" for share in (self.held_count > 0).float().mean(0).tolist())
        print(f"held starts: environments with states of each kind: {shares}", flush=True)

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

    def put_down(self):
        """Lower what is held high to the table, open the hand and lead it away; keep states on the way."""
        low, high, hand_open = map(self.tensor, (ARM_LOW, ARM_HIGH, HAND_OPEN))
        has_some = self.held_count[:, HIGH] > 0
        rows = torch.arange(self.num_envs, device=self.device)
        state = rows, HIGH, (self.uniform(0.0, 1.0) * self.held_count[:, HIGH]).long()
        self.engine.set_state(has_some, self.held_qpos[state], torch.zeros_like(self.engine.qvel))
        target = self.held_target[state]
        arm = target[:, :NUM_ARM].clone()
        way = high - low
        aside = arm - low - ((arm - low) @ way / (way @ way))[:, None] * way
        lowest = low - 0.2 * way + 0.5 * aside
        down = ~has_some
        for step in range(LOWER_STEPS + SETTLE_STEPS):
            down = down | (self.gap() < TABLE_GAP) | (self.fingertips()[..., 2].amin(1) < scene.TABLE_TOP + TIP_GAP)
            lowered = arm + min((step + 1) / LOWER_STEPS, 1.0) * (lowest - arm)
            target[:, :NUM_ARM] = torch.where(down[:, None], target[:, :NUM_ARM], lowered)
            target = target.clamp(self.joint_lower, self.joint_upper)
            self.engine.step(target)
        self.keep(LOW, has_some & self.rests_at(HELD_DISTANCE), target)
        shut, away = target, self.draw_pose()
        opened = torch.cat([target[:, :NUM_ARM], hand_open.expand(self.num_envs, -1)], 1)
        for start, end, distance, kinds in (
            (shut, opened, OPEN_DISTANCE, (AJAR, HALF_OPEN, OPEN)),
            (opened, away, REACH, (NEAR, HALFWAY, FAR)),
        ):
            for part, kind in enumerate(kinds):
                before = target
                after = start + (part + self.uniform(0.0, 1.0, 1)) / len(kinds) * (end - start)
                for step in range(MOVE_STEPS + SETTLE_STEPS):
                    if step == MOVE_STEPS and kind in SPREAD:
                        self.spread_objects(SPREAD[kind])
                    target = before + min((step + 1) / MOVE_STEPS, 1.0) * (after - before)
                    target = target.clamp(self.joint_lower, self.joint_upper)
                    self.engine.step(target)
                rests = self.rests_at(distance)
                share = self.uniform(0.0, 1.0, 1) * (kind < NEAR)  # of the way back that an action of 0 goes by itself
                back = target + share * (start - target)
                self.keep(kind, has_some & rests & ((kind == AJAR) | (self.gap() < LAID_GAP)), back)

    def spread_objects(self, share):
        """Move objects that lie on the table a share of the way to where an original episode could begin."""
        qpos, place = self.engine.qpos.clone(), slice(self.num_joints, self.num_joints + 2)
        start = self.object_start + self.uniform(-1.0, 1.0, 3) * self.start_range
        qpos[:, place] += share * (start[:, :2] - qpos[:, place])
        self.engine.set_state(self.gap() < LAID_GAP, qpos, torch.zeros_like(self.engine.qvel))

    def keep(self, kind, mask, target):
        """Add the present states of mask (N,) bool, with target (N, J) rad, to the bank where it has room."""
        rows = (mask & (self.held_count[:, kind] < BANK_SIZE)).nonzero().squeeze(1)
        state = rows, kind, self.held_count[rows, kind]
        self.held_qpos[state] = self.engine.qpos[rows]
        self.held_target[state] = target[rows]
        self.held_count[rows, kind] += 1

    def rests_at(self, distance):
        """Whether the object is within `distance` (m) of the palm and hardly moves (N,) bool."""
        slow = self.engine.body_linvel[:, OBJECT].norm(dim=1) < HELD_SPEED
        return (self.palm_distance() < distance) & slow & ~self.engine.broken

    def gap(self):
        """Between the table and the object's lowest corner (N,) m."""
        lowest = self.engine.body_pos[:, OBJECT, 2] - half_height(self.engine.body_quat[:, OBJECT], self.object_size)
        return lowest - scene.TABLE_TOP

    def palm_centre(self):
        """(N, 3) m."""
        return self.engine.body_pos[:, 0] + rotate(self.engine.body_quat[:, 0], self.palm_offset)

    def palm_distance(self):
        """From the palm's centre to the object's (N,) m."""
        return (self.engine.body_pos[:, OBJECT] - self.palm_centre()).norm(dim=1)


class AllegroKukaRegraspingHeldStarts(HeldStarts, RelativeHandTargets, AllegroKukaRegrasping):
    """AllegroKukaRegrasping with held starts and relative hand targets."""


class AllegroKukaReorientationHeldStarts(HeldStarts, RelativeHandTargets, AllegroKukaReorientation):
    """AllegroKukaReorientation with held starts and relative hand targets."""
