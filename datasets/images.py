"""Labelled image files as items, whatever they are stored in."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset


class ImageSource(Protocol):
    """Encoded images with labels: image i is `read(i)`, of class `classes[targets[i]]`, and stands in `where(i)`."""

    classes: list[str]
    targets: np.ndarray

    def read(self, index: int) -> bytes: ...

    def where(self, index: int) -> str: ...


class Images(Dataset):
    """Items {"image": what `transform` makes of the RGB image, "target": int64 scalar} of an image source."""

    def __init__(self, source: ImageSource, transform: Callable[[Image.Image], Tensor]):
        self.source, self.transform = source, transform

    def __len__(self) -> int:
        return len(self.source.targets)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Raises ValueError naming the file when it cannot be read or used; no other item ever stands in for it."""
        try:
            image = Image.open(io.BytesIO(self.source.read(index)))
            pixels = image.convert("RGB")
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            where = self.source.where(index)
            raise ValueError(f"cannot read the image {where} ({error}); copy it again from the archive") from error
        check_depth(image, self.source.where(index))
        return {"image": self.transform(pixels), "target": torch.tensor(int(self.source.targets[index]))}


def check_depth(image: Image.Image, where: str | Path) -> None:
    """Hold an image of the file `where` to bytes, as Pillow clips whatever is above 255 when it makes it RGB.

    Raises:
        ValueError: its pixels are integers of 16 or 32 bits, or floats.
    """
    if image.mode.startswith(("I", "F")):
        raise ValueError(
            f"{where} has more than 8 bits a channel (Pillow's mode {image.mode}), and nearly all of it would turn white; "
            "save it with 8 bits a channel"
        )


def class_counts(source: ImageSource) -> np.ndarray:
    """Images of each class, (classes,) int64."""
    return np.bincount(source.targets, minlength=len(source.classes))
