"""Pathfinder images: two long contours of dashes, five short ones, two end markers; do the markers share a contour?

The process is that of Linsley et al. (2018), with the settings of Long Range Arena's `curv_contour_length_14`. A pair
of contours of 14 dashes comes off about once in 300 attempts. Eleven in twelve fail for their first angle alone
(`USABLE`) and are not made here. The others go forward together, a thousand at a time, dash by dash, in arrays; each
leaves the moment it fails, and nothing is drawn before a pair is complete. What the original does by accident is kept,
as it shapes the images: the room of a dash is reserved one dash late; the footprint test of a first dash is one pixel
off and leaves only `USABLE` angles, so that most images have few short contours; and short contours are brighter than
long ones.

Rooms are kept on a canvas with a border of `REACH` pixels, (attempts, 40 * 40) uint8, 255 for taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .dashes import (
    ANGLES,
    DASH_LENGTH,
    DEGREES,
    LINES,
    MARGIN,
    MARKERS,
    OFFSETS,
    PATCH,
    REACH,
    ROOMS,
    SEED_DISTANCE,
    SIDE,
    TURNS,
    moved,
    moves,
    opposite,
)

CONTOUR_LENGTH = 14
SHORT_LENGTH = CONTOUR_LENGTH // 3
SHORT_COUNT = 20 // SHORT_LENGTH
SHORT_TRIES = 5
DASH_TRIES = 3
TARGET_CONTRAST, SHORT_CONTRAST = 2 * 0.75, 2.0
OVERLAP = 459  # two rooms may add up to less than 1.8 * 255
TAKEN = 76  # a first dash needs pixels of room at most 0.3 * 255
LEAST_FREE = 0.01 * SIDE**2
ATTEMPTS = 1024  # that go forward together

WIDTH = SIDE + 2 * REACH
AREA = WIDTH**2
INSIDE = np.pad(np.full((SIDE, SIDE), 255, np.uint8), REACH).ravel()
EMPTY = np.pad(np.pad(np.zeros((SIDE - 2, SIDE - 2), np.uint8), 1, constant_values=255), REACH).ravel()
AROUND = np.array([0, -1, 1, -WIDTH, WIDTH])
PATCH_OFFSETS = (np.arange(-REACH, REACH + 1)[:, None] * WIDTH + np.arange(-REACH, REACH + 1)).ravel()

STEPS = moves(ANGLES, DASH_LENGTH + 2 * MARGIN)  # from one pivot to the next
# from the tail of a first dash to its head, and from there back to its pivot, a little behind the tail
FORWARD, BACK = moves(DEGREES, DASH_LENGTH), moves(opposite(DEGREES), DASH_LENGTH + MARGIN)
_BEND = np.abs(ANGLES[:, None] - TURNS)
WEIGHTS = np.cos(np.minimum(np.minimum(_BEND, 2 * np.pi - _BEND), np.pi / 2)) ** 2  # (360 + K, K)
# pixels (7, 7) a first dash covers; the original's window sits one pixel off its tail
FOOTPRINTS = (ROOMS.reshape(-1, PATCH, PATCH)[: len(DEGREES), :7, :7] == 255).reshape(len(DEGREES), 49)

# A first dash at another angle has a footprint that lies outside the image for some tails, and the original then finds
# no tail at all. So a pair never begins with it, and a short contour loses a try with it.
USABLE = np.flatnonzero(FOOTPRINTS[:, 7 * 3 + 3])


@dataclass
class Ends:
    """Where n contours stand: pivot (n, 2), and of the last dash its shape (n,) and its place on the canvas (n,)."""

    pivot: np.ndarray
    shape: np.ndarray
    place: np.ndarray

    def __getitem__(self, rows: np.ndarray) -> Ends:
        return Ends(self.pivot[rows], self.shape[rows], self.place[rows])


def place_of(points: np.ndarray) -> np.ndarray:
    """Canvas index of image pixels (..., 2)."""
    return (points[..., 0] + REACH) * WIDTH + points[..., 1] + REACH


def first_dash(tail: np.ndarray, degree: np.ndarray) -> Ends:
    """Contours of one dash at pixels `tail` (n, 2), at angles `DEGREES[degree]`."""
    return Ends(moved(moved(tail, FORWARD[degree]), BACK[degree]), degree, place_of(tail))


def fits_image(tail: np.ndarray, degree: np.ndarray) -> np.ndarray:
    """(n,) bool: tail (n, 2), head and pivot of a first dash are pixels of the image."""
    head = moved(tail, FORWARD[degree])
    points = np.stack([tail, head, moved(head, BACK[degree])])
    return ((points >= 0) & (points < SIDE)).all((0, 2))


def reserve(rooms: np.ndarray, rows: np.ndarray, ends: Ends) -> None:
    """Take the room of the last dash of each contour, in rows `rows` (n,) of `rooms`, inside the image only."""
    where = ends.place[:, None] + PATCH_OFFSETS
    flat = rooms.reshape(-1)
    index = rows[:, None] * AREA + where
    flat[index] = np.maximum(flat[index], ROOMS[ends.shape] & INSIDE[where])


def extend(generator: np.random.Generator, rooms: np.ndarray, rows: np.ndarray, ends: Ends) -> tuple[np.ndarray, Ends]:
    """One more dash for each contour; the room of the dash before is reserved where that succeeds.

    The next end is a free pixel on a circle round the next pivot, the likelier the straighter; it is drawn up to three
    times until the dash's room overlaps none.

    Returns:
        the contours (numbers below n, ascending) that succeeded, and their ends.
    """
    pivot = moved(ends.pivot, STEPS[ends.shape])
    points = pivot[:, None] + OFFSETS
    inside = ((points >= 0) & (points < SIDE)).all(-1)
    places = place_of(points)
    flat = rooms.reshape(-1)
    index = np.where(inside, rows[:, None] * AREA + places, REACH * (WIDTH + 1))
    taken = flat[index]
    for step in AROUND[1:]:
        taken = np.maximum(taken, flat[index + step])
    weight = WEIGHTS[ends.shape] * inside * ((255 - taken) / 255)
    total = weight.sum(1)
    choice = np.full(len(rows), -1)
    waiting = np.flatnonzero(total >= 1e-4)
    below = np.cumsum(weight, 1) / np.maximum(total, 1e-4)[:, None]
    for _ in range(DASH_TRIES):
        pick = (below[waiting] > generator.random((len(waiting), 1))).argmax(1)
        patch = rows[waiting, None] * AREA + places[waiting, pick][:, None] + PATCH_OFFSETS
        fits = (flat[patch].astype(np.int16) + ROOMS[len(DEGREES) + pick]).max(1, initial=0) < OVERLAP
        choice[waiting[fits]] = pick[fits]
        waiting = waiting[~fits]
    done = np.flatnonzero(choice >= 0)
    reserve(rooms, rows[done], ends[done])
    return done, Ends(pivot[done], len(DEGREES) + choice[done], places[done, choice[done]])


def free_places(rooms: np.ndarray, degree: np.ndarray) -> np.ndarray:
    """(n, 32, 32) bool: where a first dash at angle `degree` (n,) finds room in `rooms` (n, 1600)."""
    taken = (rooms > TAKEN).reshape(-1, WIDTH, WIDTH)
    blocked = np.zeros((len(degree), SIDE, SIDE), bool)
    for number, (y, x) in enumerate(np.ndindex(7, 7)):
        uses = FOOTPRINTS[degree, number]
        begin_y, begin_x = y + REACH - 3, x + REACH - 3
        blocked[uses] |= taken[uses, begin_y : begin_y + SIDE, begin_x : begin_x + SIDE]
    return ~blocked


def _central_places() -> tuple[np.ndarray, np.ndarray]:
    """Pixels a long contour may begin at, for each usable angle: how many (u,), and which (u, most, 2)."""
    canvas = np.full((SIDE, SIDE), 255, np.uint8)
    canvas[2 * SEED_DISTANCE : -2 * SEED_DISTANCE, 2 * SEED_DISTANCE : -2 * SEED_DISTANCE] = 0
    rooms = np.repeat(np.pad(canvas, REACH).reshape(1, -1), len(USABLE), 0)
    places = [np.argwhere(free) for free in free_places(rooms, USABLE)]
    count = np.array([len(place) for place in places])
    table = np.zeros((len(USABLE), count.max(), 2), int)
    for row, place in zip(table, places):
        row[: len(place)] = place
    return count, table


CENTRAL_COUNT, CENTRAL = _central_places()


@dataclass
class Pairs:
    """n pairs of complete contours: shape, place (n, 2, 14) of the dashes, tail, tip (n, 2, 2), rooms (n, 1600)."""

    shape: np.ndarray
    place: np.ndarray
    tail: np.ndarray
    tip: np.ndarray
    rooms: np.ndarray


def draw_pairs(generator: np.random.Generator, attempts: int = ATTEMPTS) -> Pairs:
    """The pairs that come of `attempts` attempts, in order."""
    n = attempts
    usable = generator.integers(0, len(USABLE), n)
    degree = np.stack([USABLE[usable], generator.integers(0, len(DEGREES), n)], 1)
    first = CENTRAL[usable, generator.integers(0, CENTRAL_COUNT[usable])]
    around = generator.integers(0, 360, n) * np.pi / 180
    circle = SEED_DISTANCE * np.stack([np.sin(around), np.cos(around)], 1)
    tail = np.stack([first, np.round(first + circle).astype(int)], 1)

    rooms = np.repeat(EMPTY[None], n, 0)
    ends = [first_dash(tail[:, i], degree[:, i]) for i in (0, 1)]
    shape, place = np.zeros((2, n, 2, CONTOUR_LENGTH), int)
    alive = np.arange(n)
    for dash in range(CONTOUR_LENGTH):
        for i in (0, 1):
            if dash:
                done, ends[i] = extend(generator, rooms, alive, ends[i])
                ends[1 - i], alive = ends[1 - i][done], alive[done]
            shape[alive, i, dash], place[alive, i, dash] = ends[i].shape, ends[i].place
    reserve(rooms, alive, ends[1])
    tip = np.stack([pixel_of(end.place) for end in ends], 1)
    return Pairs(shape[alive], place[alive], tail[alive], tip, rooms[alive])


def pixel_of(place: np.ndarray) -> np.ndarray:
    """Image pixel (..., 2) of a canvas index: the reverse of `place_of`."""
    return np.stack([place // WIDTH - REACH, place % WIDTH - REACH], -1)


def begin_short(generator: np.random.Generator, rooms: np.ndarray) -> tuple[np.ndarray, Ends]:
    """First dashes anywhere there is room: the rows that got one, and its ends."""
    room_left = (rooms.reshape(-1, WIDTH, WIDTH)[:, REACH:-REACH, REACH:-REACH] <= TAKEN).sum((1, 2)) >= LEAST_FREE
    degree, tail = np.zeros(len(rooms), int), np.zeros((len(rooms), 2), int)
    began = np.zeros(len(rooms), bool)
    waiting = np.flatnonzero(room_left)
    for _ in range(DASH_TRIES):
        degree[waiting] = generator.integers(0, len(DEGREES), len(waiting))
        waiting = waiting[np.isin(degree[waiting], USABLE)]
        free = free_places(rooms[waiting], degree[waiting]).reshape(-1, SIDE**2)
        count = free.sum(1)
        waiting, free, count = waiting[count > 0], free[count > 0], count[count > 0]
        nth = generator.integers(0, count)
        index = (np.cumsum(free, 1) > nth[:, None]).argmax(1)
        tail[waiting] = np.stack(np.divmod(index, SIDE), 1)
        fits = fits_image(tail[waiting], degree[waiting])
        began[waiting[fits]] = True
        waiting = waiting[~fits]
    rows = np.flatnonzero(began)
    return rows, first_dash(tail[rows], degree[rows])


def add_short(generator: np.random.Generator, rooms: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Short contours in each of n `rooms`; up to five, each tried five times.

    Returns:
        shape and place (n, 5, 4) of the dashes, and which contours there are (n, 5) bool.
    """
    n = len(rooms)
    shape, place = np.zeros((2, n, SHORT_COUNT, SHORT_LENGTH), int)
    there = np.zeros((n, SHORT_COUNT), bool)
    for contour in range(SHORT_COUNT):
        for _ in range(SHORT_TRIES):
            waiting = np.flatnonzero(~there[:, contour])
            trial = rooms[waiting]
            rows, ends = begin_short(generator, trial)
            for dash in range(SHORT_LENGTH):
                if dash:
                    done, ends = extend(generator, trial, rows, ends)
                    rows = rows[done]
                shape[waiting[rows], contour, dash], place[waiting[rows], contour, dash] = ends.shape, ends.place
            reserve(trial, rows, ends)
            rooms[waiting[rows]] = trial[rows]
            there[waiting[rows], contour] = True
    return shape, place, there


def paint(canvas: np.ndarray, rows: np.ndarray, shape: np.ndarray, place: np.ndarray, contrast: float) -> None:
    """Lay dashes (n, ...) over rows `rows` (n,) of `canvas` (images, 1600) float, the brighter pixel winning."""
    flat = canvas.reshape(-1)
    for number in np.ndindex(shape.shape[1:]):
        index = rows[:, None] * AREA + place[(slice(None), *number)][:, None] + PATCH_OFFSETS
        flat[index] = np.maximum(flat[index], LINES[shape[(slice(None), *number)]] * (contrast / 255))


def stretch(images: np.ndarray) -> np.ndarray:
    """Each image (n, 32, 32) float stretched from its least to its greatest value over 0 to 255, uint8."""
    low, high = images.min((1, 2), keepdims=True), images.max((1, 2), keepdims=True)
    return ((images - low) * (255 / (high - low)) + 0.5).astype(np.uint8)


def draw_images(generator: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (count, 32, 32) uint8 and labels (count,) int64: 1 when both markers are on one contour."""
    found, have = [], 0
    while have < count:
        found.append(draw_pairs(generator))
        have += len(found[-1].tail)
    shape, place, tail, tip, rooms = (
        np.concatenate([getattr(pairs, name) for pairs in found])[:count]
        for name in ("shape", "place", "tail", "tip", "rooms")
    )
    canvas = np.zeros((count, AREA))
    rows = np.arange(count)
    paint(canvas, rows, shape, place, TARGET_CONTRAST)
    shape, place, there = add_short(generator, rooms)
    for contour in range(SHORT_COUNT):
        rows_there = np.flatnonzero(there[:, contour])
        paint(canvas, rows_there, shape[rows_there, contour], place[rows_there, contour], SHORT_CONTRAST)

    marked, label = choose_ends(generator, tail, tip)
    images = canvas.reshape(-1, WIDTH, WIDTH)[:, REACH:-REACH, REACH:-REACH]
    for points in marked:
        images = np.maximum(images, MARKERS[points[:, 0], points[:, 1]] / 255)
    return stretch(images), label


def choose_ends(
    generator: np.random.Generator, tail: np.ndarray, tip: np.ndarray
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """The two pixels to mark, (n, 2) each, and the label (n,) that follows.

    The first is the tail of one of the contours (n, 2, 2), either at random; the second the tip of the same contour for
    label 1, of the other for label 0.
    """
    label, origin = generator.integers(0, 2, (2, len(tail)))
    terminal = np.where(label == 1, origin, 1 - origin)
    rows = np.arange(len(tail))
    return (tail[rows, origin], tip[rows, terminal]), label
