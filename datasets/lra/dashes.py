"""What Pathfinder images are made of, drawn once: dashes, the room each needs, and end markers.

Geometry of Linsley et al. (2018) and Kim et al. (2020) at the size Long Range Arena uses: 32x32 pixels, dashes 2 long,
margin 1. Coordinates are (row, column); angles go from columns to rows; a move rounds up, `ceil(coordinate + move)`.
"""

from __future__ import annotations

import math

import numpy as np
from PIL import Image, ImageDraw

SIDE = 32  # of an image
REACH = 4  # a dash is drawn in the 9x9 pixels around its start
PATCH = 2 * REACH + 1
DASH_LENGTH = 2
MARGIN = 1
FINE = 2  # shapes are drawn so much larger, then reduced
MARKER_RADIUS = 1.5
SEED_DISTANCE = 7

# Angles a dash can have: whole degrees for a first dash, then those of the pixels on a circle round the last end.
DEGREES = np.arange(-180, 180) * np.pi / 180


def _circle_offsets() -> np.ndarray:
    """(K, 2) distinct pixels, relative to the centre pixel, at points one pixel apart on the circle of radius 3."""
    radius = DASH_LENGTH + MARGIN
    angles = np.arange(0, 360, 360 / (2 * np.pi * radius)) * np.pi / 180
    return np.unique(np.floor(radius * np.stack([np.sin(angles), np.cos(angles)], 1)).astype(int), axis=0)


def moves(angles: np.ndarray, distance: float) -> np.ndarray:
    """(n, 2) rows and columns that `distance` at each angle goes, not rounded."""
    return np.array([[distance * math.sin(angle), distance * math.cos(angle)] for angle in angles])


def moved(points: np.ndarray, move: np.ndarray) -> np.ndarray:
    """Pixels (n, 2) after a move (n, 2).

    Rounded up after the addition, as in the original: whether the rounding error of a level or upright move counts as a
    pixel depends on how near to 0 the coordinate is, and contours along the upper and left edges turn on it.
    """
    return np.ceil(points + move).astype(int)


def opposite(angles: np.ndarray) -> np.ndarray:
    return np.where(angles < 0, angles + np.pi, angles - np.pi)


def _disc(radius: int) -> np.ndarray:
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    return np.argwhere(y**2 + x**2 <= radius**2) - radius


def _reduced(image: np.ndarray, side: int) -> np.ndarray:
    return np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.LANCZOS))


def _dash(angle: float) -> tuple[np.ndarray, np.ndarray]:
    """Line and room, both (9, 9) uint8, of a dash from the middle at `angle`."""
    centre, side = REACH * FINE, 2 * REACH * FINE + 1
    row, column = moved(np.full(2, centre), moves([angle], DASH_LENGTH * FINE)[0])
    line = Image.new("L", (side, side))
    ImageDraw.Draw(line).line([(centre, centre), (column, row)], fill=255, width=1)
    line = np.asarray(line)
    room = np.zeros_like(line)
    for y, x in (np.argwhere(line)[:, None] + _disc(MARGIN * FINE)).reshape(-1, 2):
        room[y, x] = 255
    return _reduced(line, PATCH), _reduced(room, PATCH)


def _marker(row: int, column: int) -> np.ndarray:
    """(32, 32) uint8: a disc round a pixel."""
    y, x = np.mgrid[: SIDE * FINE, : SIDE * FINE]
    inside = (y - row * FINE) ** 2 + (x - column * FINE) ** 2 <= (MARKER_RADIUS * FINE) ** 2
    return _reduced(inside.astype(np.uint8) * 255, SIDE)


OFFSETS = _circle_offsets()
TURNS = np.arctan2(OFFSETS[:, 0], OFFSETS[:, 1])
ANGLES = np.concatenate([DEGREES, TURNS])  # angle a dash goes on with; numbered: degrees, then circle pixels

# The first dash is drawn forward from its tail, every other backward from its end.
_LINES, _ROOMS = zip(*[_dash(angle) for angle in np.concatenate([DEGREES, opposite(TURNS)])])
LINES = np.stack(_LINES).reshape(-1, PATCH**2)  # (360 + K, 81) uint8
ROOMS = np.stack(_ROOMS).reshape(-1, PATCH**2)  # (360 + K, 81) uint8, 255 where nothing else may be
MARKERS = np.stack([[_marker(row, column) for column in range(SIDE)] for row in range(SIDE)])  # (32, 32, 32, 32) uint8
