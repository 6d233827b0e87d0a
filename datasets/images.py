"""Labelled image files as items, whatever they are stored in."""

from __future__ import annotations

import io
from collections.abc import Callable
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
        """Raises ValueError naming the file when it cannot be read or decoded; no other item ever stands in for it."""
        try:
            image = Image.open(io.BytesIO(self.source.read(index))).convert("RGB")
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            where = self.source.where(index)
            raise ValueError(f"cannot read the image {where} ({error}); copy it again from the archive") from error
        return {"image": self.transform(image), "target": torch.tensor(int(self.source.targets[index]))}


def class_counts(source: ImageSource) -> np.ndarray:
    """Images of each class, (classes,) int64."""
    return np.bincount(source.targets, minlength=len(source.classes))
