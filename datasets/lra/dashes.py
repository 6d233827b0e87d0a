"""What Pathfinder images are made of, drawn once: dashes, the room each needs, and end markers.

Geometry of Linsley et al. (2018) and Kim et al. (2020) at the size Long Range Arena uses: 32x32 pixels, dashes 2 long,
margin 1. Coordinates are (row, column); angles go from columns to rows; a move rounds up, `ceil(coordinate + move)`.
"""

from __future__ import annotations

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
    """(n, 2) whole pixels that a move of `distance` at each angle goes, rounded up."""
    # around a coordinate of an image: next to 0 the rounding errors of sine and cosine would count as a pixel
    middle = SIDE // 2
    return np.ceil(middle + distance * np.stack([np.sin(angles), np.cos(angles)], 1)).astype(int) - middle


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
    row, column = np.ceil(centre + DASH_LENGTH * FINE * np.array([np.sin(angle), np.cos(angle)])).astype(int)
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
