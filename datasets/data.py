"""What a data set hands to training, and the few things every data set needs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch.utils.data import Dataset, Subset


class Shape(NamedTuple):
    """What a model must know of a data set before it is read.

    Attributes:
        input_size: (C, H, W) of an image, (N,) of a token sequence (of each, where an item has two).
        num_classes: number of classes.
    """

    input_size: tuple[int, ...]
    num_classes: int


@dataclass
class Data:
    """A data set, ready to train on.

    Items are dicts of tensors with at least "target" (int64 scalar); images are under "image", (C, H, W) float32, and
    sequences under "tokens", (N,) int64, with "length" (pairs of them under "tokens_a", "length_a", "tokens_b", "length_b").
    Sequences of unlike length are grouped by length on their way through the model where the data set has `lengths`, one number
    an item; `collate` can then leave out what is padding in a whole group.
    Items may draw from Python's, numpy's and torch's global generators; the loader seeds all three for every item.

    Attributes:
        name: registry name.
        train: map-style training items, augmented.
        evaluate: map-style evaluation items by split, in order; the first selects the best checkpoint, and the others are
            evaluated once, at the end, with that checkpoint.
        num_classes, input_size: see `Shape`.
        fingerprint: short hash of what was read, before any `limit`.
        counts: items in each split, after any `limit`.
        collate: makes a batch of a list of items; None is torch's default.
        short: why this is not the full data set, or None when it is.
        switches: legacy behaviours in force; empty is correct behaviour.
    """

    name: str
    train: Dataset
    evaluate: dict[str, Dataset]
    num_classes: int
    input_size: tuple[int, ...]
    fingerprint: str
    counts: dict[str, int]
    collate: Callable | None = None
    short: str | None = None
    switches: dict = field(default_factory=dict)


def fingerprint(parts: Iterable[bytes | str]) -> str:
    """Twelve hexadecimal digits that follow from `parts`, in order."""
    digest = hashlib.sha256()
    for part in parts:
        part = part.encode() if isinstance(part, str) else part
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:12]


def limited(dataset: Dataset | Sequence, limit: int | None) -> Dataset | Sequence:
    """The first `limit` items of one fixed shuffled order (the same for every run), or all of them for None.

    Raises:
        ValueError: `limit` is not a positive whole number.
    """
    if limit is None:
        return dataset
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ValueError(f"data.limit={limit!r} is not a number of items; give a whole number from 1, or null for all")
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))
    return Subset(dataset, order[:limit].tolist())


def reasons(*parts: str | None) -> str | None:
    """The given reasons as one line, or None when there is none."""
    return "; ".join(part for part in parts if part) or None
