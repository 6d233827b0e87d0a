"""Images in one folder a class: `train/n01440764/x.JPEG`, `val/n01440764/y.JPEG`."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from timm.data.readers.img_extensions import get_img_extensions
from timm.data.readers.reader_image_folder import find_images_and_targets
from timm.utils.misc import natural_key

from .images import class_counts


class ClassFolder:
    """The images below `folder`, an `ImageSource` whose class i is the folder named `classes[i]`.

    Raises:
        ValueError: a class has no image.
    """

    def __init__(self, folder: Path, classes: list[str]):
        self.folder, self.classes = folder, classes
        found, _ = find_images_and_targets(str(folder), class_to_idx={name: i for i, name in enumerate(classes)})
        # flat arrays: a list of a million strings would be copied into every loader process as it is touched
        self.paths = np.array([os.fsencode(os.path.relpath(path, folder)) for path, _ in found], dtype=np.bytes_)
        self.targets = np.array([target for _, target in found], dtype=np.int64)
        empty = [name for name, count in zip(classes, class_counts(self), strict=True) if count == 0]
        if empty:
            raise ValueError(
                f"no image ({', '.join(get_img_extensions())}) lies in these class folders of {folder}: {some(empty)}; "
                "every class folder must hold its images itself, so extract or move them there"
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


def class_names(folder: Path) -> list[str]:
    """The names of the class folders in `folder`, in natural order (n2 before n10).

    Raises:
        ValueError: there is none, or images lie beside them, or they are plain numbers.
    """
    with os.scandir(folder) as entries:
        entries = [entry for entry in entries if not entry.name.startswith(".")]
    names = sorted((entry.name for entry in entries if entry.is_dir()), key=natural_key)
    images = [e.name for e in entries if os.path.splitext(e.name)[1].lower() in get_img_extensions(as_set=True)]
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
