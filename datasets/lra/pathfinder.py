"""Pathfinder: are the two markers in a 32x32 picture the ends of one dashed contour? Generated, or read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from ..data import Data, reasons
from .contours import draw_images
from .dashes import SIDE
from .folders import check_count, locate, signature
from .generate import generated
from .items import token_data
from .store import Store, Writer, cached

COUNTS = (160_000, 20_000, 20_000)
SPLITS = ("train", "dev", "test")
LEVEL = "curv_contour_length_14"
PLACES = (".", "pathfinder32", "lra_release/pathfinder32", "lra_release/lra_release/pathfinder32")
CHUNK_SIZE = 500
GENERATOR = 1  # goes up when the same seed gives other images


def pathfinder(
    *,
    root: str | None = None,
    seed: int = 0,
    limit: int | None = None,
    counts: tuple[int, int, int] = COUNTS,
    generator_seed: int = 0,
    partial: bool = False,
    cache: str | None = None,
    workers: int | None = None,
) -> Data:
    """Items of N = 1024 tokens: grey values, 0 to 255, row by row, all of them real (models use a vocabulary of 512).

    The level is the hard one, contours of 14 dashes. Released images are split 80/10/10 in one fixed shuffled order.

    Args:
        root: a release (holding pathfinder32/curv_contour_length_14, or that folder); None generates.
        seed: not used: every seed of training sees the same data, as with read ones.
        limit: keep so many items of every split.
        counts: images to generate for train, dev and test.
        generator_seed: of the generated images.
        partial: accept another number of images than the published 200,000, and leave out empty files.
        cache: folder for the compact copy; None is data/lra.
        workers: processes to generate with; None for one a core.

    Raises:
        ValueError: an option has no meaning, or the files cannot be used.
    """
    if root is None:
        if len(counts) != 3:
            raise ValueError(f"data.counts={list(counts)} must be three numbers: train, dev and test")
        store = generated(
            cache,
            "pathfinder",
            draw_chunk,
            dict(zip(SPLITS, counts)),
            chunk_size=CHUNK_SIZE,
            settings={"level": LEVEL, "generator": GENERATOR},
            seed=generator_seed,
            workers=workers,
        )
        splits = {split: store.range(split) for split in SPLITS}
        short = None if tuple(counts) == COUNTS else f"counts={list(counts)}"
    else:
        store, empty = _read(root, cache, partial)
        found = len(store.targets)
        short = check_count(found, sum(COUNTS), f"images of {LEVEL} in {root}", partial)
        short = reasons(short, empty and f"{empty} empty image files")
        order = np.random.default_rng(0).permutation(found)
        splits = dict(zip(SPLITS, np.split(order, [found * 8 // 10, found * 9 // 10])))
    return token_data("pathfinder", store, splits, length=SIDE**2, num_classes=2, limit=limit, short=[short])


def draw_chunk(generator: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`count` images as `generate` wants them: pixels one image after the other, their number in each, labels."""
    images, labels = draw_images(generator, count)
    return images.ravel(), np.full(count, SIDE**2), labels


def _read(root: str, cache: str | None, partial: bool) -> tuple[Store, int]:
    """The released images in the order of their names, and how many were left out, being empty files."""
    places = [str(Path(place) / LEVEL) for place in PLACES]
    if Path(root).name == LEVEL:
        places.insert(0, ".")
    folder = locate(root, places, "metadata", f"Pathfinder's {LEVEL}")
    lists = sorted((folder / "metadata").glob("*.npy"), key=lambda path: (len(path.stem), path.stem))
    if not lists:
        raise ValueError(f"{folder / 'metadata'} holds none of Pathfinder's lists, 0.npy, 1.npy, ...; copy it again")

    def empty_files() -> list[str]:
        named = (image for path in lists for image, _ in read_list(path, folder))
        return [image.relative_to(folder).as_posix() for image in named if image.stat().st_size == 0]

    # a store is found by the lists alone, so one that leaves files out is also named by these: it is not that of a repaired copy
    empty = empty_files() if partial else []

    def write(writer: Writer) -> None:
        if not partial and (found := empty_files()):
            raise ValueError(
                f"{len(found)} of Pathfinder's image files in {folder} are empty, such as {found[0]}; the release has no empty "
                "file on this level, so copy it again, or set data.partial=true to leave them out"
            )
        if empty:
            writer.notes.append(f"skipped {len(empty)} empty image files: {', '.join(empty[:5])}")
        skipped = {folder / name for name in empty}
        writer.begin("all")
        for path in lists:
            for image, label in read_list(path, folder):
                if image not in skipped:
                    writer.add(read_image(image), label)

    return cached(cache, "pathfinder-read", {"files": signature(lists, folder), "empty": empty}, write), len(empty)


def read_list(path: Path, folder: Path) -> Iterator[tuple[Path, int]]:
    """The images that one metadata file names, each with its label.

    In spite of its name the file is text, a line an image: folder, file, number, label and seven settings.

    Raises:
        ValueError: a line has other columns, or an image is missing.
    """
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
        columns = line.split()
        if len(columns) != 11 or columns[3] not in ("0", "1"):
            raise ValueError(
                f"{path}, line {number} does not name an image: 11 columns with the label, 0 or 1, in the fourth are "
                f"expected, found {line[:60]!r}; is the file cut?"
            )
        image = folder / columns[0] / columns[1]
        if not image.is_file():
            raise ValueError(f"{path}, line {number} names {image}, which is not there; copy the release again")
        yield image, int(columns[3])


def read_image(path: Path) -> bytes:
    """The 1,024 grey values of an image file.

    Raises:
        ValueError: it is broken, or not 32x32 grey.
    """
    try:
        with Image.open(path) as image:
            pixels = np.asarray(image)
    except OSError as error:
        raise ValueError(f"{path} is not a readable image ({error}); copy the release again") from None
    if pixels.shape != (SIDE, SIDE) or pixels.dtype != np.uint8:
        raise ValueError(
            f"{path} is {pixels.dtype} of shape {pixels.shape}; Pathfinder's images are 8-bit grey of {SIDE}x{SIDE}"
        )
    return pixels.tobytes()
