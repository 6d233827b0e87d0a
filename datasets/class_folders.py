"""Images in one folder a class: `train/n01440764/x.JPEG`, `val/n01440764/y.JPEG`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from timm.data.readers.img_extensions import get_img_extensions, is_img_extension
from timm.utils.misc import natural_key

from .images import class_counts


class ClassFolder:
    """The images in the folders `folder/classes[i]`, an `ImageSource` of these classes.

    Raises:
        ValueError: a class has no image, or has images in a folder within it.
    """

    def __init__(self, folder: Path, classes: list[str]):
        self.folder, self.classes = folder, classes
        found, deeper = [], []
        for target, name in enumerate(classes):
            _, inner, files = next(os.walk(folder / name), ("", [], []))  # one that cannot be listed holds no image
            found += [(os.path.join(name, file), target) for file in images_of(files)]
            within = [os.path.join(name, sub) for sub in inner if not sub.startswith(".")]
            deeper += [path for path in within if holds_images(folder / path)]
        found.sort(key=lambda item: natural_key(item[0]))  # of whole paths, as timm does: runs drew from this order
        # flat arrays: a list of a million strings would be copied into every loader process as it is touched
        self.paths = np.array([os.fsencode(path) for path, _ in found], dtype=np.bytes_)
        self.targets = np.array([target for _, target in found], dtype=np.int64)
        empty = [name for name, count in zip(classes, class_counts(self), strict=True) if count == 0]
        if empty:
            raise ValueError(
                f"no image ({', '.join(get_img_extensions())}) lies in these class folders of {folder}: {some(empty)}; "
                "every class folder must hold its images itself, so extract or move them there"
            )
        if deeper:
            raise ValueError(
                f"images lie deeper than in the class folders of {folder}, in these folders within them: {some(deeper)}; "
                "every class folder must hold its images itself, so move them there, or elsewhere"
            )

    def where(self, index: int) -> str:
        return os.path.join(self.folder, os.fsdecode(self.paths[index]))

    def read(self, index: int) -> bytes:
        return Path(self.where(index)).read_bytes()


def read_class_folders(train: Path, val: Path) -> tuple[ClassFolder, ClassFolder]:
    """The training and the validation images, once everything about their folders is as it should be.

    Raises:
        ValueError: a folder is empty, flat or numbered, or the two do not hold the same classes.
    """
    train_classes, val_classes = class_names(train), class_names(val)
    only = {train: set(train_classes) - set(val_classes), val: set(val_classes) - set(train_classes)}
    if any(only.values()):
        differences = [f"only in {folder.name}: {some(sorted(names))}" for folder, names in only.items() if names]
        raise ValueError(
            f"{train} has {len(train_classes)} classes and {val} has {len(val_classes)}, which are not the same "
            f"({'; '.join(differences)}); both must hold a folder of the same name for every class"
        )
    return ClassFolder(train, train_classes), ClassFolder(val, train_classes)


def images_of(names: Iterable[str]) -> list[str]:
    """Those of some files' names that have a suffix of an image."""
    return [name for name in names if is_img_extension(os.path.splitext(name)[1].lower())]


def holds_images(folder: Path) -> bool:
    """Whether an image lies in a folder, at any depth."""
    return any(images_of(files) for _, _, files in os.walk(folder, followlinks=True))


def class_names(folder: Path) -> list[str]:
    """The names of the class folders in `folder`, in natural order (n2 before n10).

    Raises:
        ValueError: there is none, or images lie beside them, or they are plain numbers.
    """
    with os.scandir(folder) as entries:
        entries = [entry for entry in entries if not entry.name.startswith(".")]
    names = sorted((entry.name for entry in entries if entry.is_dir()), key=natural_key)
    images = images_of(entry.name for entry in entries)
    if images:
        raise ValueError(
            f"{folder} holds {len(images)} images directly ({some(sorted(images))}), so their classes are not known; "
            "move each into a folder of its class (for ImageNet's val: valprep.sh of soumith/imagenetloader.torch)"
        )
    if not names:
        raise ValueError(f"{folder} is empty; expected one folder a class, as in {folder}/n01440764/*.JPEG")
    if all(name.isdigit() for name in names):
        raise ValueError(
            f"the class folders of {folder} are plain numbers ({some(names)}), which do not say the class or its "
            "place among the 1,000; rename them to their WordNet ids, such as n01440764"
        )
    return names


def some(names: list[str], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
