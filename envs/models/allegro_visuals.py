"""How the KUKA arm and the Allegro hand look: colours of their solid shapes, and shapes that are only drawn."""

import numpy as np

from envs.models.visuals import BLACK, GREY, HIDDEN, ORANGE, SILVER, WHITE, draw

PALM_QUAT = (0, 0.38268, 0.92388, 0)  # of the palm's box, whose x axis points across the fingers and y axis to the back
PALM_AXES = np.array([[-1, 1, 0], [1, 1, 0], [0, 0, np.sqrt(2.0)]]) / np.sqrt(2.0)  # rows, in axes of the body


def draw_base(body):
    """Draw the arm's pedestal."""
    paint(body, SILVER)
    draw(body, "cylinder", (0, 0, 0), (0, 0, 0.02), 0.125, colour=GREY)
    draw(body, "cylinder", (0, 0, 0.1), (0, 0, 0.15), 0.075, colour=SILVER)


def draw_arm_link(body, i):
    """Draw link i (1 to 7): a tube to the next joint, round housings at joints 2, 4 and 6, rings at the others."""
    paint(body, SILVER)
    if i in (1, 3, 5):
        if i < 5:
            draw(body, "cylinder", (0, 0, 0), (0, -0.03, 0.17), 0.0670, colour=SILVER)
        draw(body, "cylinder", (0, 0, -0.012), (0, 0, 0.004), 0.0715, colour=ORANGE)
    elif i in (2, 4):
        draw(body, "cylinder", (0, 0.12, 0.012), (0, 0.20, 0), 0.0670, colour=SILVER)
        draw(body, "cylinder", (0, 0, -0.03), (0, 0, 0.09), 0.0675, colour=SILVER)
        draw(body, "cylinder", (0, 0, 0.0), (0, 0, 0.115), 0.055, colour=GREY)
        draw(body, "cylinder", (0, 0, -0.006), (0, 0, 0.006), 0.0715, colour=ORANGE)
    elif i == 6:
        draw(body, "cylinder", (0, 0, -0.07), (0, 0, 0.09), 0.057, colour=SILVER)
        draw(body, "cylinder", (0, 0, 0.0), (0, 0, 0.122), 0.05, colour=GREY)
        draw(body, "cylinder", (0, 0.02, 0.0607), (0, 0.075, 0.0607), 0.052, colour=SILVER)
    else:
        draw(body, "cylinder", (0, 0, -0.004), (0, 0, 0.006), 0.0535, colour=ORANGE)
        draw(body, "cylinder", (0, 0, 0.06), (0, 0, 0.1), 0.034, colour=GREY)


def draw_palm(body, box, centre):
    """Hide the palm's box, which is its convex hull, and draw the palm in its place.

    centre (3,) m: of the box, in the body. The fingers bend towards negative y of the box.
    """
    box.group = HIDDEN

    def part(low, high, colour):  # (3,) m, in axes of the box about its centre
        low = np.asarray(low)
        high = np.asarray(high)
        pos = centre + (low + high) / 2.0 @ PALM_AXES
        draw(body, "box", pos, (high - low) / 2.0, PALM_QUAT, colour=colour)

    def edge(first, second, radius, colour):
        ends = (centre + np.asarray(end) @ PALM_AXES for end in (first, second))
        draw(body, "capsule", *ends, radius, colour=colour)

    part((-0.0551, -0.0470, -0.0463), (0.0551, -0.012, 0.0463), BLACK)
    part((-0.0450, -0.0495, -0.036), (0.0450, -0.0468, 0.036), GREY)
    for side in (-1, 1):
        edge((side * 0.0551, -0.0295, -0.036), (side * 0.0551, -0.0295, 0.036), 0.0175, BLACK)
    part((-0.0430, -0.012, -0.040), (0.0430, 0.036, 0.030), SILVER)
    part((-0.0430, -0.012, 0.030), (0.0430, 0.010, 0.042), BLACK)
    edge((0, 0.012, -0.052), (0, 0.012, -0.035), 0.033, GREY)


def draw_finger_link(body, i, thumb, pad=False):
    """Draw link i (0 to 3) of a finger: black, with the motor at the joint and a pale tip."""
    paint(body, BLACK)
    if thumb and i < 2:
        draw(body, "cylinder", (0, 0, -0.012), (0, 0, 0.012), 0.0125, colour=GREY)
        if i == 1:
            draw(body, "box", (0, 0.0008, 0.026), (0.0115, 0.009, 0.026), colour=BLACK)
        return
    if i == 0:
        draw(body, "box", (-0.0009, 0, -0.010), (0.0085, 0.0125, 0.016), colour=BLACK)
        return
    draw(body, "cylinder", (0, -0.002, -0.0142), (0, -0.002, 0.0142), 0.0120, colour=GREY)
    if i == 3:
        tip = np.array([0.0368, -0.0012, 0]) if thumb else np.array([0.0232, -0.0007, 0])
        radius = 0.0145 if thumb else 0.0133
        if pad:
            body.geoms[1].rgba = (*WHITE, 1)
            draw(body, "ellipsoid", tip + (0.010, 0.002, 0), (0.028, radius - 0.001, radius - 0.001), colour=WHITE)
        draw(body, "capsule", tip - (0.006, 0, 0), tip - (0.002 * pad, 0, 0), radius, colour=WHITE)


def paint(body, colour):
    """Give all shapes of a body the colour (3,)."""
    for geom in body.geoms:
        geom.rgba = (*colour, 1)
