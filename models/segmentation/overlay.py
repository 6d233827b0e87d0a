"""Label maps as colours over the image, with a legend."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Color = tuple[int, int, int]
LINE = 18  # pixels of a line of the legend


def draw(
    pixels: np.ndarray,
    labels: np.ndarray,
    names: Sequence[str],
    palette: Sequence[Color],
    alpha: float = 0.5,
    truth: np.ndarray | None = None,
) -> Image.Image:
    """The image with `alpha` of each pixel's class colour, beside it the same of the true labels, and the classes that are there.

    Args:
        pixels: (H, W, 3) uint8.
        labels: (H, W), classes from 0.
        names, palette: name and colour of every class.
        truth: (H, W), true labels, of which those without a colour (255) leave the pixel as it is; None for no second image.
    """
    height, width = labels.shape
    font = ImageFont.load_default(LINE - 6)
    lines = {i: f"{names[i]}  {100 * share:.1f} %" for i, share in shares(labels).items()}
    legend = 2 * LINE + round(max(font.getlength(line) for line in lines.values()))
    maps = [labels] if truth is None else [labels, truth]
    canvas = Image.new("RGB", (width * len(maps) + legend, max(height, LINE * len(lines))), "white")
    for column, values in enumerate(maps):
        canvas.paste(Image.fromarray(blend(pixels, values, palette, alpha)), (column * width, 0))
    pen = ImageDraw.Draw(canvas)
    for row, (i, line) in enumerate(lines.items()):
        left, top, side = width * len(maps) + 3, LINE * row + 3, LINE - 7
        pen.rectangle((left, top, left + side, top + side), fill=tuple(palette[i]), outline="black")
        pen.text((left + LINE, top - 2), line, fill="black", font=font)
    return canvas


def blend(pixels: np.ndarray, labels: np.ndarray, palette: Sequence[Color], alpha: float) -> np.ndarray:
    """(H, W, 3) uint8: `pixels` with `alpha` of the colours of their labels (H, W), where those have one."""
    there = labels < len(palette)
    colors = np.array(palette)[np.where(there, labels, 0)]
    return np.where(there[..., None], (1 - alpha) * pixels + alpha * colors, pixels).round().astype(np.uint8)


def shares(labels: np.ndarray) -> dict[int, float]:
    """Share of the pixels by class, the largest first, of the classes that are there."""
    counts = np.bincount(labels.ravel())
    return {int(i): counts[i] / labels.size for i in np.argsort(-counts, kind="stable") if counts[i]}
