"""Photographs and their label maps in ADE20K's folders: images/training/x.jpg beside annotations/training/x.png."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from .class_folders import some
from .lra.folders import listing

SPLITS = ("training", "validation")
LAYOUT = "images/{training,validation}/*.jpg and annotations/{training,validation}/*.png"
GET = "get ADEChallengeData2016.zip of sceneparsing.csail.mit.edu (the full ADE20K release has another form)"


def find_scenes(root: str | None, inside: Sequence[str] = (".", "ADEChallengeData2016")) -> Path:
    """The folder under `root` that holds images and annotations.

    Raises:
        ValueError: the root is not given or not there, or it does not hold both.
    """
    if root is None:
        raise ValueError(f"ADE20K is read from your disk: give its folder with data.root=..., which holds {LAYOUT}")
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise ValueError(f"data.root={root} is not a folder; expected one that holds {LAYOUT}")
    for sub in inside:
        if (folder / sub / "images").is_dir() and (folder / sub / "annotations").is_dir():
            return folder / sub
    missing = " and ".join(name for name in ("images", "annotations") if not (folder / name).is_dir())
    raise ValueError(f"{folder} has no folder {missing}; expected {LAYOUT}; found {listing(folder)}; {GET}")


def scene_names(folder: Path, split: str) -> list[str]:
    """Names, without suffix and sorted, of the photographs of a split, each of which has a label map.

    Raises:
        ValueError: a folder is missing or empty, or a name stands in only one of the two.
    """
    found = []
    for kind, suffix in (("images", ".jpg"), ("annotations", ".png")):
        part = folder / kind / split
        if not part.is_dir():
            inside = listing(folder / kind)
            raise ValueError(f"{folder} has no {kind}/{split}; expected {LAYOUT}; {kind} holds {inside}; {GET}")
        found.append({path.stem for path in part.glob(f"*{suffix}") if not path.name.startswith(".")})
        if not found[-1]:
            raise ValueError(f"{part} has no {suffix} file; expected {LAYOUT}; found {listing(part)}; {GET}")
    photographs, maps = found
    lonely = [
        f"{some(sorted(names))} {what}"
        for names, what in ((photographs - maps, "without a label map"), (maps - photographs, "without a photograph"))
        if names
    ]
    if lonely:
        raise ValueError(
            f"images/{split} and annotations/{split} of {folder} do not hold the same names: {'; '.join(lonely)}; "
            "every x.jpg needs its x.png, so extract the archive again"
        )
    return sorted(photographs)


def check_colours(folder: Path, split: str, names: Sequence[str], looks: int = 20) -> None:
    """Hold photographs of a split, spread over it, to having colours: a few of ADE20K's are grey, but never all.

    Raises:
        ValueError: all that were looked at have a single channel.
    """
    spread = [names[i * len(names) // min(looks, len(names))] for i in range(min(looks, len(names)))]
    paths = [folder / "images" / split / f"{name}.jpg" for name in spread]
    if all(is_grey(path) for path in paths):
        raise ValueError(
            f"{paths[0]} is grey, and so is every other photograph of images/{split} that was looked at ({len(paths)}); "
            "photographs in colour are expected, so give the originals, or store yours as RGB if grey is meant"
        )


def is_grey(path: Path) -> bool:
    """Whether an image file has a single channel of grey values. False for what cannot be read, which reading it will say."""
    try:
        with Image.open(path) as image:
            return len(image.getbands()) == 1 and image.mode != "P"
    except (OSError, SyntaxError, Image.DecompressionBombError):
        return False


def check_label_map(path: str | Path, labels: np.ndarray, size: Sequence[int], num_classes: int) -> None:
    """Hold a label map to its photograph and classes.

    Args:
        path: of its file.
        labels: the map as mmsegmentation reads it, (h, w) uint8: classes from 0, 255 where the file has 0 (or 255).
        size: (height, width) of the photograph.
        num_classes: K; the file has 0 for pixels of no class, and 1 to K.

    Raises:
        ValueError: the file has colours or more than a byte a pixel, another size, or a label above K.
    """
    with Image.open(path) as image:
        mode = image.mode
    if mode not in ("L", "P"):
        raise ValueError(
            f"{path} is no label map: its pixels are {mode}, where one byte a pixel, 0 to {num_classes}, is expected; {GET}"
        )
    if labels.shape != tuple(size):
        raise ValueError(
            f"{path} is {labels.shape[1]}x{labels.shape[0]} pixels and its photograph {size[1]}x{size[0]}; "
            "both must be of one size, so extract the archive again"
        )
    highest = int((labels + np.uint8(1)).max())  # 255 wraps around to the 0 of no class
    if highest > num_classes:
        raise ValueError(
            f"{path} has the label {highest}, where 0 (no class) to {num_classes} are expected; "
            "is it of another data set, or of the full ADE20K release?"
        )


def sizes_of(folder: Path, split: str, names: Sequence[str]) -> list[str]:
    """Name and size in bytes of every file of a split, a line each."""
    return [
        f"{path.relative_to(folder)} {path.stat().st_size}"
        for kind, suffix in (("images", ".jpg"), ("annotations", ".png"))
        for path in (folder / kind / split / f"{name}{suffix}" for name in names)
    ]
