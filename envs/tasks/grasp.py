"""Grasp: a toy task with the stages of AllegroKuka (reach, grasp, lift, carry), but without a physics engine."""

import math

import torch

from envs.base import VectorEnv

FINGERS = 3
POSTURE = (0.598, -0.734, 0.394)  # of a grasp; its magnitudes were drawn once, uniformly in [0.35, 0.85]
POSTURE_TOLERANCE = 0.4
HAND_SPEED = 0.08  # per step
FINGER_SPEED = 0.1  # per step
FALL_SPEED = 0.1  # per step
ARENA = 1.2  # largest |coordinate| of the hand
START_HEIGHT = 0.7  # of the hand
OBJECT_RADIUS = 0.1  # in pictures
REACH = 0.2  # from hand to object to hold it, from object to goal for a success, and height of a lifted object
LIFT_BONUS = 3.0
SUCCESS_BONUS = 5.0
CARRY_WEIGHT = 2.0
ACTION_COST = 0.0005
REWARD_SCALE = 0.3


class Grasp(VectorEnv):
    """A hand carries an object to one goal after another.

    Observation (16): hand, fingers, object - hand, goal - object, held, object. Action (6): velocity of the hand (3)
    and of the fingers (3).
    The object is held while it is within 0.2 of the hand and every finger is within 0.4 of the grasp posture. A held
    object moves with the hand; otherwise it falls to the ground.
    The reward is 0.3 times the sum of: the progress of the hand to the object until it is lifted; 3 when it is first
    lifted above 0.2; from then on, 2 x its progress to the goal; 5 for a success, which is within 0.2 of the goal;
    -0.0005 |action|^2. Progress is the amount by which the smallest distance so far shrinks.
    After a success a new goal is drawn and the episode goes on. Episodes are truncated after exactly 128 steps.
    Objective: the number of successes in the episode.
    """

    num_obs = 13 + FINGERS
    num_actions = 3 + FINGERS
    max_episode_steps = 128

    def __init__(self, num_envs, device, seed):
        super().__init__(num_envs, device, seed)
        self.hand = self.zeros(3)
        self.fingers = self.zeros(FINGERS)
        self.object = self.zeros(3)
        self.goal = self.zeros(3)
        self.held = self.zeros(dtype=torch.bool)
        self.lifted = self.zeros(dtype=torch.bool)
        self.nearest_hand = self.zeros()  # smallest distances so far, at first inf
        self.nearest_goal = self.zeros()
        self.successes = self.zeros()
        self.posture = self.constant(POSTURE)
        self.lowest = self.constant([-ARENA, -ARENA, 0.0])

    def reset_where(self, mask):
        row = mask[:, None]
        height = torch.full_like(self.hand[:, :1], START_HEIGHT)
        hand = torch.cat([self.uniform(-0.5, 0.5, 2), height], 1)
        object_ = torch.cat([self.uniform(-0.6, 0.6, 2), torch.zeros_like(height)], 1)
        self.hand = torch.where(row, hand, self.hand)
        self.fingers = torch.where(row, self.uniform(-0.2, 0.2, FINGERS), self.fingers)
        self.object = torch.where(row, object_, self.object)
        self.goal = torch.where(row, self.draw_goals(), self.goal)
        self.held = self.held & ~mask
        self.lifted = self.lifted & ~mask
        self.nearest_hand = self.nearest_hand.masked_fill(mask, math.inf)
        self.nearest_goal = self.nearest_goal.masked_fill(mask, math.inf)
        self.successes = self.successes.masked_fill(mask, 0.0)

    def draw_goals(self):
        return torch.cat([self.uniform(-1.0, 1.0, 2), self.uniform(0.4, 1.0, 1)], 1)

    def advance(self, action):
        self.hand = (self.hand + HAND_SPEED * action[:, :3]).clamp(max=ARENA).maximum(self.lowest)
        self.fingers = (self.fingers + FINGER_SPEED * action[:, 3:]).clamp(-1.0, 1.0)
        grasped = ((self.fingers - self.posture).abs() < POSTURE_TOLERANCE).all(1)
        self.held = grasped & ((self.hand - self.object).norm(dim=1) < REACH)
        fallen = torch.cat([self.object[:, :2], (self.object[:, 2:] - FALL_SPEED).clamp(min=0.0)], 1)
        self.object = torch.where(self.held[:, None], self.hand, fallen)

        newly_lifted = ~self.lifted & (self.object[:, 2] > REACH)
        to_hand = (self.hand - self.object).norm(dim=1)
        to_goal = (self.goal - self.object).norm(dim=1)
        self.nearest_hand, reached = break_record(self.nearest_hand, to_hand, ~self.lifted)
        self.lifted = self.lifted | newly_lifted
        self.nearest_goal, carried = break_record(self.nearest_goal, to_goal, self.lifted)
        success = self.lifted & (to_goal < REACH)
        reward = reached + CARRY_WEIGHT * carried + LIFT_BONUS * newly_lifted + SUCCESS_BONUS * success
        reward = REWARD_SCALE * (reward - ACTION_COST * action.square().sum(1))

        self.successes = self.successes + success
        self.goal = torch.where(success[:, None], self.draw_goals(), self.goal)
        self.nearest_goal = self.nearest_goal.masked_fill(success, math.inf)
        never = torch.zeros_like(success)
        return reward, never, never

    def observe(self):
        return torch.cat(
            [
                self.hand,
                self.fingers,
                self.object - self.hand,
                self.goal - self.object,
                self.held[:, None].float(),
                self.object,
            ],
            1,
        )

    def objective(self):
        return self.successes

    def render(self, index):
        """The scene from the front. A bar per finger shows its range for a grasp; there is a dot per success."""
        state = (self.hand, self.fingers, self.object, self.goal, self.successes)
        return draw_grasp(*(x[index].cpu() for x in state)).numpy()


def break_record(record, distance, counts):
    """The new record (the smallest distance so far) and the progress, by how much it shrinks; each (N,).

    Records change only where `counts` (N,) bool is set. The first distance, where the record is inf, is no progress.
    """
    progress = torch.where(counts & record.isfinite(), (record - distance).clamp(min=0.0), torch.zeros_like(record))
    return torch.where(counts, torch.minimum(record, distance), record), progress


def draw_grasp(hand, fingers, object_, goal, successes):
    """The scene as a (480, 640, 3) uint8 tensor. hand, object_ and goal (3,), fingers (3,), successes ().

    The object is orange. The goal is a green ball whose radius is the tolerance. A finger is green while it is within
    its range for a grasp.
    """
    sky = torch.tensor([0.80, 0.89, 0.97])
    tile = torch.tensor([0.96, 0.95, 0.92])
    dark = torch.tensor([0.25, 0.28, 0.33])
    green = torch.tensor([0.16, 0.65, 0.32])
    orange = torch.tensor([0.95, 0.50, 0.12])
    grey = torch.tensor([0.55, 0.58, 0.63])
    gold = torch.tensor([0.98, 0.78, 0.10])
    eye = torch.tensor([0.0, -4.6, 2.5])
    forward = torch.tensor([0.0, 0.924, -0.3824])
    focal = 740.0  # pixels
    right = torch.tensor([1.0, 0.0, 0.0])
    centre = torch.tensor([320.0, 240.0])
    axes = torch.stack([right, torch.linalg.cross(forward, right), forward])  # right, down, forward
    rows, columns = torch.meshgrid(torch.arange(480.0), torch.arange(640.0), indexing="ij")
    pixels = torch.stack([columns, rows], -1)

    # the ground with shadows, as far as the hand reaches, and low enough for the object to lie on it
    rays = torch.cat([(pixels - centre) / focal, torch.ones_like(rows)[..., None]], -1) @ axes
    ground = eye[:2] - rays[..., :2] * ((eye[2] + OBJECT_RADIUS) / rays[..., 2:].clamp(max=-1e-3))
    image = (1.0 - 0.1 * ((ground / 0.4).floor().sum(-1, keepdim=True) % 2)) * tile
    for place, radius in ((hand, 0.15), (object_, OBJECT_RADIUS), (goal, REACH)):
        distance = (ground - place[:2]).norm(dim=-1, keepdim=True)
        image *= 1.0 - 0.3 * ((radius - distance) / 0.04).clamp(0.0, 1.0)
    image[(ground.abs() > ARENA).any(-1)] = sky

    # everything else is a rod with round ends (from, to, radius, colour, opacity), the farthest first
    palm = hand + torch.tensor([0.0, 0.0, 0.2])
    parts = [
        (goal, goal, REACH, green, 0.5),
        (torch.tensor([*goal[:2], -OBJECT_RADIUS]), goal, 0.01, green, 0.9),
        (object_, object_, OBJECT_RADIUS, orange, 1.0),
        (palm, palm, 0.08, dark, 1.0),
        (palm, torch.tensor([*palm[:2], 2.5]), 0.03, dark, 1.0),
    ]
    for i, error in enumerate((fingers - torch.tensor(POSTURE)).abs().tolist()):
        angle = 2.0 * math.pi * i / FINGERS - 0.5 * math.pi
        outwards = torch.tensor([math.cos(angle), math.sin(angle), 0.0])
        knuckle = palm + (0.13 + 0.15 * error) * outwards
        tip = hand + (0.08 + 0.3 * error) * outwards - torch.tensor([0.0, 0.0, 0.06])
        colour = green if error < POSTURE_TOLERANCE else grey
        parts += [(palm, knuckle, 0.035, colour, 1.0), (knuckle, tip, 0.03, colour, 1.0)]
    for start, end, radius, colour, opacity in sorted(parts, key=lambda part: -float((part[0] - eye) @ forward)):
        ends = (torch.stack([start, end]) - eye) @ axes.T
        scale = focal / ends[:, 2:]
        paint_rod(image, pixels, centre + scale * ends[:, :2], float(scale[0]) * radius, colour, opacity)

    for i, (position, middle) in enumerate(zip(fingers.tolist(), POSTURE)):
        places = (middle - POSTURE_TOLERANCE, middle + POSTURE_TOLERANCE, position)
        low, high, marker = (round(120 + 100 * min(max(place, -1.0), 1.0)) for place in places)
        top = 16 + 22 * i
        image[top : top + 14, 20:220] = 0.98
        image[top : top + 14, low:high] = 0.5 + 0.5 * green
        image[top - 2 : top + 16, marker - 3 : marker + 3] = dark
    for i in range(int(successes)):
        place = torch.tensor([620.0 - 24.0 * (i % 10), 24.0 + 24.0 * (i // 10)])
        paint_rod(image, pixels, place.expand(2, 2), 9.0, gold, 1.0)
    return (image * 255.0).byte()


def paint_rod(image, pixels, ends, radius, colour, opacity):
    """Blend a rod with round ends into an image (H, W, 3). pixels (H, W, 2), ends (2, 2) and radius are in pixels."""
    left, top = (ends.amin(0) - radius - 1.0).long().clamp(min=0).tolist()
    right, bottom = (ends.amax(0) + radius + 2.0).long().clamp(min=0).tolist()
    image = image[top:bottom, left:right]
    pixels = pixels[top:bottom, left:right]
    along = ends[1] - ends[0]
    share = ((pixels - ends[0]) @ along / along.square().sum().clamp(min=1e-6)).clamp(0.0, 1.0)
    offset = (pixels - ends[0] - share[..., None] * along) / radius
    distance = offset.norm(dim=-1, keepdim=True)
    light = 0.75 - 0.2 * offset.sum(-1, keepdim=True) + 0.15 * (1.0 - distance.square()).clamp(min=0.0).sqrt()
    cover = opacity * ((1.0 - distance) * radius + 0.5).clamp(0.0, 1.0)
    image += cover * ((colour * light).clamp(0.0, 1.0) - image)
