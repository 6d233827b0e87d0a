"""Data sets by name. A new one is a file here, a line in `DATASETS` and in `SHAPES`, and a yaml of the same name.

Every builder takes `root`, `seed` and `limit` beside its own options, and says in one sentence what is wrong with a
folder it cannot use.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from mita import registry

from .ade20k import NUM_CLASSES as SCENE_CLASSES
from .ade20k import ade20k
from .data import Data, Shape
from .digit_scenes import CLASSES as DIGIT_CLASSES
from .digit_scenes import digit_scenes
from .digits import IMAGE_SIZE, digits
from .imagenet import CLASSES, imagenet
from .longdoc import CLASSES as FIELDS
from .longdoc import longdoc
from .lra import image, listops, padded_length, pathfinder, retrieval, text
from .synthetic import synthetic

DATASETS: dict[str, Callable[..., Data]] = {
    "ade20k": ade20k,
    "digit_scenes": digit_scenes,
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

# what a data set is for a model, from its options alone; nothing is read
SHAPES: dict[str, Callable[[dict[str, Any]], Shape]] = {
    "ade20k": lambda options: Shape((3, options["crop_size"], options["crop_size"]), SCENE_CLASSES),
    "digit_scenes": lambda options: Shape((3, options["crop_size"], options["crop_size"]), len(DIGIT_CLASSES)),
    "digits": lambda options: Shape((1, IMAGE_SIZE, IMAGE_SIZE), 10),
    "image": lambda options: Shape((1024,), 10),
    "imagenet": lambda options: Shape((3, options["image_size"], options["image_size"]), CLASSES),
    "listops": lambda options: Shape((padded_length(options["max_length"]),), 10),
    "longdoc": lambda options: Shape((options["length"],), len(FIELDS)),
    "pathfinder": lambda options: Shape((1024,), 2),
    "retrieval": lambda options: Shape((4096,), 2),
    "synthetic": lambda options: Shape(
        (options["channels"], options["image_size"], options["image_size"]), options["num_classes"]
    ),
    "text": lambda options: Shape((4096,), 2),
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


def shape_of(name: str, **options: Any) -> Shape:
    """Input size and classes of the data set `name` with these options (its own defaults for the rest), reading nothing.

    Raises:
        ValueError: the name is unknown.
    """
    if name not in SHAPES:
        raise ValueError(registry.unknown("data set", name, SHAPES))
    parameters = inspect.signature(DATASETS[name]).parameters.values()
    defaults = {p.name: p.default for p in parameters}
    return SHAPES[name](defaults | options)


def classes_of(name: str) -> tuple[Sequence[str], Sequence[tuple[int, int, int]]]:
    """Name and colour (red, green, blue; 0 to 255) of every class of a data set of labelled pixels."""
    module = importlib.import_module(f".{name}", __name__)
    return module.CLASSES, module.PALETTE


__all__ = ["DATASETS", "SHAPES", "Data", "Shape", "build", "classes_of", "shape_of"]
