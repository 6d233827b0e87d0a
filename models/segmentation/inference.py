"""Prediction of a whole image: windows that slide over it, at several scales and mirrored, as the authors evaluate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

WINDOWS_AT_ONCE = 4


def starts(length: int, window: int, stride: int) -> list[int]:
    """Where windows begin on a side of `length` pixels: every `stride`, the last one moved back to end with the side.

    Raises:
        ValueError: the stride is not in 1 ... window, so that pixels would be left out.
    """
    if not 1 <= stride <= window:
        raise ValueError(f"windows of {window} pixels leave none out with a stride from 1 to {window}, got {stride}")
    last = max(length - window, 0)
    return [*range(0, last, stride), last]


def slide(model: Callable[[Tensor], Tensor], image: Tensor, window: int, stride: int) -> Tensor:
    """Mean over all windows of the scores that each gives a pixel.

    Args:
        model: images (B, C, h, w) to class scores (B, K, h, w).
        image: (C, H, W); both sides of at least `window`.
        window, stride: in pixels; windows are square.

    Returns:
        (K, H, W) float32.
    """
    corners = [(y, x) for y in starts(image.shape[1], window, stride) for x in starts(image.shape[2], window, stride)]
    total = count = None
    for first in range(0, len(corners), WINDOWS_AT_ONCE):
        chunk = corners[first : first + WINDOWS_AT_ONCE]
        scores = model(torch.stack([image[:, y : y + window, x : x + window] for y, x in chunk])).float()
        if total is None:
            total, count = scores.new_zeros(scores.shape[1], *image.shape[1:]), scores.new_zeros(image.shape[1:])
        for (y, x), part in zip(chunk, scores, strict=True):
            total[:, y : y + window, x : x + window] += part
            count[y : y + window, x : x + window] += 1
    return total / count


@torch.no_grad()
def predict(
    model: Callable[[Tensor], Tensor],
    image: Tensor,
    size: tuple[int, int],
    *,
    window: int,
    stride: int,
    scales: Sequence[float] = (1.0,),
    flip: bool = False,
    original: Tensor | None = None,
) -> Tensor:
    """Class probabilities of every pixel: the mean over scales, and with `flip` over the mirrored image too.

    Scales other than 1 are made of the original, so that pixels are resampled once, as in the authors' evaluation. What is then
    smaller than the window on its shorter side is enlarged to it, so that a window always has as many tokens as in training.

    Args:
        model: images (B, C, h, w) to class scores (B, K, h, w).
        image: (C, H, W), normalised.
        size: (height, width) in pixels of the answer.
        window, stride: see `slide`.
        scales: factors on the image's sides.
        original: (C, H', W'), of which `image` is a resized copy; None when `image` is itself the original.

    Returns:
        (K, height, width) float32.
    """
    total = 0
    for scale in scales:
        scaled = image
        if scale != 1:
            scaled = _resize(
                image if original is None else original, [max(1, round(scale * n)) for n in image.shape[1:]]
            )
        shorter = min(scaled.shape[1:])
        if shorter < window:
            scaled = _resize(scaled, [side * window // shorter for side in scaled.shape[1:]])
        for mirrored in (False, True)[: 1 + flip]:
            scores = slide(model, scaled.flip(2) if mirrored else scaled, window, stride)
            total = total + _resize(scores.flip(2) if mirrored else scores, size).softmax(0)
    return total / (len(scales) * (1 + flip))


def _resize(image: Tensor, sides: Sequence[int]) -> Tensor:
    return F.interpolate(image[None], size=tuple(sides), mode="bilinear", align_corners=False)[0]
