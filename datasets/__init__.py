"""Data sets by name. A new one is a file here, a line in `DATASETS`, and a yaml of the same name.

Every builder takes `root`, `seed` and `limit` beside its own options, and says in one sentence what is wrong with a
folder it cannot use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mita import registry

from .data import Data
from .digits import digits
from .imagenet import imagenet
from .longdoc import longdoc
from .lra import image, listops, pathfinder, retrieval, text
from .synthetic import synthetic

DATASETS: dict[str, Callable[..., Data]] = {
    "digits": digits,
    "image": image,
    "imagenet": imagenet,
    "listops": listops,
    "longdoc": longdoc,
    "pathfinder": pathfinder,
    "retrieval": retrieval,
    "synthetic": synthetic,
    "text": text,
}


def build(name: str, *, root: str | None = None, seed: int = 0, limit: int | None = None, **options: Any) -> Data:
    """The data set registered under `name`.

    Args:
        name: a key of `DATASETS`.
        root: folder the data are read from; None for those that need no folder.
        seed: of what a generated data set draws. A split of real data never depends on it.
        limit: keep so many items of every split, for short tries; `Data.short` then says so.
        options: the data set's own.

    Raises:
        ValueError: the name or an option is unknown (the nearest known names are given), or the folder cannot be used.
    """
    return registry.build("data set", DATASETS, name, root=root, seed=seed, limit=limit, **options)


__all__ = ["DATASETS", "Data", "build"]
