"""Handwritten digits that ship inside scikit-learn: real images on every machine, without a download."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.utils.data import Dataset

from .data import Data, fingerprint, limited, reasons

IMAGE_SIZE = 32
TEST_COUNT = 360


class DigitImages(Dataset):
    """Images (n, 1, 32, 32) float32 with targets (n,) int64, bent a little by a random affine map when `augment`."""

    def __init__(self, images: Tensor, targets: Tensor, background: float, augment: bool):
        self.images, self.targets, self.background, self.augment = images, targets, background, augment

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        image = self.images[index]
        if self.augment:
            image = random_affine(image, self.background)
        return {"image": image, "target": self.targets[index]}


def random_affine(
    image: Tensor,
    background: float,
    *,
    degrees: float = 15.0,
    shear_degrees: float = 10.0,
    shift: float = 0.1,
    scale: float = 0.15,
) -> Tensor:
    """`image` (C, H, W) turned, sheared, scaled and moved at random, each uniformly up to plus or minus its limit.

    `shift` is a part of the image's side and `scale` a relative change. What comes from outside the image is
    `background`. Draws from torch's global generator.
    """
    turn, shear, grow, dx, dy = (torch.rand(5, dtype=torch.float64) * 2 - 1).tolist()
    turn, shear = math.radians(degrees * turn), math.tan(math.radians(shear_degrees * shear))
    zoom = 1 / (1 + scale * grow)
    cos, sin = math.cos(turn), math.sin(turn)
    # output to input coordinates, in units of half a side: rotation after shear, then zoom, then the shift
    rows = [
        [zoom * cos, zoom * (cos * shear - sin), 2 * shift * dx],
        [zoom * sin, zoom * (sin * shear + cos), 2 * shift * dy],
    ]
    grid = F.affine_grid(torch.tensor([rows], dtype=image.dtype), [1, *image.shape], align_corners=False)
    # grid_sample fills with zeros, so the background is moved to zero and back
    return F.grid_sample(image[None] - background, grid, align_corners=False)[0] + background


def read_digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Grey values (n, 64) of 0 to 16, labels (n,), and which are for training and which for testing, always the same."""
    raw, labels = load_digits(return_X_y=True)
    split = train_test_split(np.arange(len(labels)), test_size=TEST_COUNT, stratify=labels, random_state=0)
    return raw, labels, *split


def enlarged(raw: np.ndarray, side: int) -> Tensor:
    """Digits (n, 64) of 0 to 16 as (n, 1, side, side) float64 of 0 to 1, bilinear."""
    small = torch.from_numpy(raw).view(-1, 1, 8, 8) / 16
    return F.interpolate(small, (side, side), mode="bilinear", align_corners=False)


def digits(*, root: str | None = None, seed: int = 0, limit: int | None = None, augment: bool = True) -> Data:
    """The 1,797 digits of 8x8 grey values of the UCI "Optical Recognition of Handwritten Digits" test set.

    Upsampled once to (1, 32, 32) float32 (bilinear) and normalised with the training images' mean and deviation. The
    split is 1,437 for training and 360 for testing, stratified, the same for every seed; the same writers are on both
    sides of it, as the data do not say who wrote what. There is no third split, so a best epoch is chosen on "test",
    as the papers do on ImageNet's validation images: compare last with last where that matters.

    Args:
        root: not used; anything but None is refused.
        seed: not used, the split is fixed.
        limit: keep so many items of either split.
        augment: bend the training images at random (`random_affine`).

    Raises:
        ValueError: a root is given, or the limit is not a positive whole number.
    """
    if root is not None:
        raise ValueError(f"the digits come with scikit-learn and need no folder; leave out data.root={root}")
    raw, labels, train_index, test_index = read_digits()
    images = enlarged(raw, IMAGE_SIZE).float()
    mean, deviation = images[train_index].mean(), images[train_index].std()
    images, background = (images - mean) / deviation, float(-mean / deviation)
    targets = torch.from_numpy(labels).long()

    def items(index: np.ndarray, bend: bool) -> Dataset:
        return limited(DigitImages(images[index], targets[index], background, bend), limit)

    train, test = items(train_index, augment), items(test_index, False)
    parts = (raw.astype("uint8"), labels.astype("<i8"), train_index.astype("<i8"), test_index.astype("<i8"))
    return Data(
        name="digits",
        train=train,
        evaluate={"test": test},
        num_classes=10,
        input_size=(1, IMAGE_SIZE, IMAGE_SIZE),
        fingerprint=fingerprint(part.tobytes() for part in parts),
        counts={"train": len(train), "test": len(test)},
        short=reasons(limit and f"limit={limit}"),
    )
