"""Mixup and CutMix on a batch, for batches of any size, with randomness that the caller owns."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor


class Mix:
    """Blends each image with its mirror in the batch (the first with the last), and their labels alike.

    Mixup (Zhang et al., 2018) weighs two images with lam ~ Beta(mixup, mixup). CutMix (Yun et al., 2019) pastes a box
    of about the part 1 - lam of the other image, lam ~ Beta(cutmix, cutmix), and weighs the labels by the box's true
    area after clipping. One draw serves the whole batch, as in DeiT. The middle image of an odd batch, and so a batch
    of one, meets itself and keeps its label.

    Args:
        num_classes: number of classes.
        mixup: parameter of mixup's Beta distribution; 0 leaves mixup out.
        cutmix: parameter of CutMix's; 0 leaves it out.
        prob: probability that a batch is mixed at all.
        switch_prob: probability of CutMix where both are on.
        smoothing: label smoothing; this part of a label is spread over all classes.

    Raises:
        ValueError: a Beta parameter is negative, or a probability does not lie in [0, 1].
    """

    def __init__(
        self,
        num_classes: int,
        *,
        mixup: float = 0.8,
        cutmix: float = 1.0,
        prob: float = 1.0,
        switch_prob: float = 0.5,
        smoothing: float = 0.1,
    ):
        for name, value in (("mixup", mixup), ("cutmix", cutmix)):
            if value < 0:
                raise ValueError(f"{name}={value} is a parameter of a Beta distribution and must be 0 (off) or more")
        for name, value in (("prob", prob), ("switch_prob", switch_prob), ("smoothing", smoothing)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name}={value} must lie in [0, 1]")
        self.num_classes, self.smoothing = num_classes, smoothing
        self.mixup, self.cutmix, self.prob, self.switch_prob = mixup, cutmix, prob, switch_prob

    def __call__(self, images: Tensor, targets: Tensor, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Images (B, C, H, W) and targets (B,) int64 to new images and soft targets (B, num_classes) float32.

        Everything random comes from `generator`; its state says how the batch is mixed, on every device.
        """
        soft = soft_targets(targets, self.num_classes, self.smoothing)
        if not (self.mixup or self.cutmix) or generator.random() >= self.prob:
            return images, soft
        if self.cutmix and (not self.mixup or generator.random() < self.switch_prob):
            top, bottom, left, right = cut_box(generator, generator.beta(self.cutmix, self.cutmix), *images.shape[-2:])
            mixed = images.clone()
            mixed[..., top:bottom, left:right] = images.flip(0)[..., top:bottom, left:right]
            lam = 1 - (bottom - top) * (right - left) / (images.shape[-2] * images.shape[-1])
        else:
            lam = generator.beta(self.mixup, self.mixup)
            mixed = images * lam + images.flip(0) * (1 - lam)
        return mixed, soft * lam + soft.flip(0) * (1 - lam)


def soft_targets(targets: Tensor, num_classes: int, smoothing: float = 0.0) -> Tensor:
    """(B,) int64 to (B, num_classes) float32: smoothing / num_classes each, and 1 - smoothing more at the target."""
    rest = smoothing / num_classes
    soft = torch.full((len(targets), num_classes), rest, device=targets.device)
    return soft.scatter_(1, targets[:, None], 1 - smoothing + rest)


def cut_box(generator: np.random.Generator, lam: float, height: int, width: int) -> tuple[int, int, int, int]:
    """(top, bottom, left, right) of a box of the part 1 - lam, round a uniform centre, clipped to the image."""
    part = math.sqrt(1 - lam)
    edges = []
    for length in (height, width):
        cut, centre = int(length * part), int(generator.integers(length))
        edges += [max(centre - cut // 2, 0), min(centre + (cut + 1) // 2, length)]
    return tuple(edges)
