"""Scenes of real handwritten digits on textured canvases, labelled to the pixel: segmentation without a download."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from tqdm import tqdm

from .ade20k import View, prepare_mmseg, read_scenes
from .data import Data, fingerprint
from .digits import enlarged, read_digits
from .scene_folders import SPLITS

DEFAULT_ROOT = Path(__file__).resolve().parents[1] / "data"
COUNTS = (1000, 200)
VERSION = 1  # goes up when other scenes are drawn
CLASSES = ("background", *(f"digit {i}" for i in range(10)))
PALETTE = (
    (40, 40, 40), (230, 25, 75), (60, 180, 75), (255, 225, 25), (0, 130, 200), (245, 130, 48),
    (145, 30, 180), (70, 240, 240), (240, 50, 230), (210, 245, 60), (250, 190, 212),
)  # fmt: skip
SHORT_SIDE, ASPECT, DIGIT_SIDE, DIGITS = (112, 144), (1.0, 1.4), (24, 40), (4, 8)  # least and greatest
INK, EDGE = 0.5, 0.25  # from so much ink on a pixel belongs to the digit; between the two it is of no class
# of all pixels of the digits to train on, in grey values: what a backbone that was trained on them has seen
MEAN, STD = 77.87, 82.53


class Place(NamedTuple):
    """Where a digit stands: its number among those given, its corner and its side in pixels."""

    digit: int
    top: int
    left: int
    side: int


def digit_scenes(
    *,
    root: str | None = None,
    seed: int = 0,
    limit: int | None = None,
    counts: tuple[int, int] = COUNTS,
    crop_size: int = 64,
    scale: Sequence[int] = (512, 128),
    ratio_range: Sequence[float] = (0.75, 1.33),
    flip: float = 0.0,
    mean: Sequence[float] = (MEAN, MEAN, MEAN),
    std: Sequence[float] = (STD, STD, STD),
) -> Data:
    """Scenes of 112 to 201 pixels a side with up to 8 digits of 24 to 40 pixels, in ADE20K's folders and with its items.

    Eleven classes: background, then the digits 0 to 9. The pixels of a digit's edge, where its ink is between a quarter
    and a half, are of no class. Scenes to train on hold only digits of the training part of `digits`, and those of the
    split "test" only digits of its test part. They are the same on every machine and for every seed, and written once.

    Args:
        root: folder that keeps the scenes, written there when they are missing; None for data/ beside the code.
        seed: not used.
        limit: keep so many scenes of either split.
        counts: scenes to train and to test on.
        crop_size, scale, ratio_range, flip, mean, std: as in `ade20k`; with these defaults a digit has about its size in
            `digits` and the same grey values. A mirrored digit is another sign, so there is no flip.

    Raises:
        ValueError: an option does not fit, or mmsegmentation is not installed.
    """
    view = View(crop_size, scale, ratio_range, flip, mean, std)
    if len(counts) != 2 or min(counts) < 1:
        raise ValueError(f"data.counts={list(counts)} must be two numbers of scenes from 1: to train and to test on")
    prepare_mmseg()  # what is missing is said before anything is written
    folder = scenes_folder(root, counts)
    return read_scenes(
        "digit_scenes",
        folder,
        view,
        limit=limit,
        counts=COUNTS,
        metainfo={"classes": CLASSES, "palette": [list(color) for color in PALETTE]},
        content=(folder / "fingerprint.txt").read_text(),
    )


def scenes_folder(root: str | None, counts: tuple[int, int]) -> Path:
    """The folder of the scenes, written if it is missing: under another name, then renamed, so it is always complete."""
    folder = (
        DEFAULT_ROOT if root is None else Path(root).expanduser()
    ) / f"digit_scenes-{counts[0]}-{counts[1]}-v{VERSION}"
    if (folder / "fingerprint.txt").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}-", dir=folder.parent) as place:
        made = Path(place) / folder.name
        content = fingerprint(write_scenes(made, counts))
        (made / "fingerprint.txt").write_text(content)
        try:
            made.rename(folder)
        except OSError as error:
            if not (folder / "fingerprint.txt").is_file():  # if it is there, another process was faster
                raise ValueError(f"{folder} is in the way of the digit scenes ({error}); remove it") from error
    return folder


def write_scenes(folder: Path, counts: tuple[int, int]) -> Iterator[bytes]:
    """Write the scenes of both splits, and yield the pixels and labels of each."""
    raw, digit_labels, *parts = read_digits()
    with tqdm(total=sum(counts), desc="digit_scenes", unit=" scenes") as bar:
        for number, (split, count, part) in enumerate(zip(SPLITS, counts, parts)):
            for kind in ("images", "annotations"):
                (folder / kind / split).mkdir(parents=True)
            for i in range(count):
                generator = np.random.default_rng([VERSION, number, i])
                pixels, labels, _ = draw_scene(generator, raw[part], digit_labels[part])
                Image.fromarray(pixels).save(folder / "images" / split / f"{i:05}.jpg", quality=95, subsampling=0)
                Image.fromarray(labels).save(folder / "annotations" / split / f"{i:05}.png")
                yield pixels.tobytes() + labels.tobytes()
                bar.update()


def draw_scene(
    generator: np.random.Generator, raw: np.ndarray, digit_labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[Place]]:
    """A scene made of some of the digits `raw` (n, 64), 0 to 16, with labels (n,).

    Returns:
        pixels (h, w, 3) uint8; labels (h, w) uint8: 0 no class, 1 background, 2 + d the digit d; where each digit stands.
    """
    short = generator.integers(*SHORT_SIDE, endpoint=True)
    long = round(short * generator.uniform(*ASPECT))
    height, width = generator.permutation([short, long]).tolist()
    pixels = draw_canvas(generator, height, width)
    labels = np.ones((height, width), np.uint8)
    places = draw_places(generator, height, width, len(raw))
    for place in places:
        box = np.s_[place.top : place.top + place.side, place.left : place.left + place.side]
        ink = (
            enlarged(raw[place.digit : place.digit + 1], place.side)[0, 0].numpy().round(9)
        )  # ties fall alike everywhere
        color = generator.uniform(0.85, 1.0) * generator.uniform(0.9, 1.0, 3)
        pixels[box] += ink[..., None] * (color - pixels[box])
        labels[box][ink >= EDGE] = 0
        labels[box][ink >= INK] = 2 + digit_labels[place.digit]
    return (255 * pixels).round().astype(np.uint8), labels, places


def draw_canvas(generator: np.random.Generator, height: int, width: int) -> np.ndarray:
    """A dark, faintly coloured texture of coarse and fine grains, (height, width, 3), 0 to 1."""
    grey = np.full((height, width), generator.uniform(0.02, 0.2))
    for grain in (3, 8, 24):
        noise = generator.normal(size=(height // grain + 2, width // grain + 2)).astype(np.float32)
        smooth = Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)
        grey += generator.uniform(0.01, 0.06) * np.asarray(smooth)
    return (grey[..., None] * generator.uniform(0.8, 1.2, 3)).clip(0, 1)


def draw_places(generator: np.random.Generator, height: int, width: int, num_digits: int) -> list[Place]:
    """Squares that do not overlap, for digits drawn at random: as many as wanted, or as find a place in 20 tries each."""
    taken = np.zeros((height, width), bool)
    places = []
    for _ in range(generator.integers(*DIGITS, endpoint=True)):
        side = int(generator.integers(*DIGIT_SIDE, endpoint=True))
        for _ in range(20):
            top, left = (int(generator.integers(0, end - side, endpoint=True)) for end in (height, width))
            box = np.s_[top : top + side, left : left + side]
            if not taken[box].any():
                taken[box] = True
                places.append(Place(int(generator.integers(num_digits)), top, left, side))
                break
    return places
