"""Images in WebDataset shards, tar files that hold `key.jpg` and `key.cls` of every image one after the other.

A shard is usually read as a stream, which shuffles only within a buffer and gives each process its own number of items.
Here the place of every image is found once and images are read one by one, so the exact samplers work as on folders.
"""

from __future__ import annotations

import os
import sys
import tarfile
from pathlib import Path

import numpy as np

from .data import fingerprint
from .images import class_counts

IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp")


class Shards:
    """The images in the tar files `paths`, in order: an `ImageSource` whose classes are the numbers in `key.cls`.

    Raises:
        ValueError: a file is not a tar file or not a shard, or a class below the largest has no image.
    """

    def __init__(self, paths: list[Path]):
        self.paths = paths
        index = cached_index(paths)
        self.shard, self.offset, self.size = index["shard"], index["offset"], index["size"]
        self.names, self.targets = index["names"], index["targets"]
        self.classes = [str(i) for i in range(int(self.targets.max()) + 1)]
        empty = np.flatnonzero(class_counts(self) == 0)
        if len(empty):
            raise ValueError(
                f"the {len(paths)} shards beside {paths[0]} hold classes up to {len(self.classes) - 1}, but no image "
                f"of class {empty[0]}; a shard is probably missing, so copy them all"
            )

    def where(self, index: int) -> str:
        return f"{os.fsdecode(self.names[index])} in {self.paths[self.shard[index]]}"

    def read(self, index: int) -> bytes:
        # opened anew each time: a shared file position would be moved by the other loader processes
        with open(self.paths[self.shard[index]], "rb") as file:
            file.seek(int(self.offset[index]))
            return file.read(int(self.size[index]))


def read_shards(train: list[Path], val: list[Path]) -> tuple[Shards, Shards]:
    """The training and the validation images.

    Raises:
        ValueError: they cannot be read (`Shards`), or do not hold the same number of classes.
    """
    train_images, val_images = Shards(train), Shards(val)
    if train_images.classes != val_images.classes:
        raise ValueError(
            f"the training shards hold {len(train_images.classes)} classes and the validation shards "
            f"{len(val_images.classes)}; both must hold the same, so a shard is missing or belongs to another data set"
        )
    return train_images, val_images


def cached_index(paths: list[Path]) -> dict[str, np.ndarray]:
    """`index_shards(paths)`, kept in the user's cache folder until a shard changes."""
    states = [(str(path.resolve()), path.stat()) for path in paths]
    key = fingerprint(f"{path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in states)
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mita"
    cache = folder / f"shards-{key}.npz"
    if cache.is_file():
        with np.load(cache, allow_pickle=False) as file:
            return dict(file)
    print(f"finding the images in {len(paths)} shards beside {paths[0]} (once; kept in {cache})", file=sys.stderr)
    index = index_shards(paths)
    own = folder / f"{key}-{os.getpid()}.npz"  # several processes may write at once; a rename is all or nothing
    try:
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(own, **index)
        os.replace(own, cache)
    except OSError as error:
        print(f"the places could not be kept and will be searched again ({error})", file=sys.stderr)
    return index


def index_shards(paths: list[Path]) -> dict[str, np.ndarray]:
    """Where every image is: arrays `shard`, `offset` and `size` (bytes), `targets` and `names` (n,).

    Raises:
        ValueError: a file is not a tar file, or an image has no class or a class no image.
    """
    rows = [(number, *row) for number, path in enumerate(paths) for row in index_shard(path)]
    shard, offset, size, targets, names = zip(*rows, strict=True)
    places = {"shard": shard, "offset": offset, "size": size, "targets": targets}
    return {"names": np.array(names, dtype=np.bytes_)} | {k: np.array(v, dtype=np.int64) for k, v in places.items()}


def index_shard(path: Path) -> list[tuple[int, int, int, bytes]]:
    """(offset, size, class, name) of every image in one tar file."""
    images: dict[str, tarfile.TarInfo] = {}
    classes: dict[str, int] = {}
    try:
        with tarfile.open(path, "r:") as tar:
            while member := tar.next():
                tar.members = []  # it would keep a record of every file it passed
                key, _, extension = os.path.basename(member.name).partition(".")
                key = os.path.join(os.path.dirname(member.name), key)
                if member.isfile() and extension.lower() in IMAGE_EXTENSIONS:
                    images[key] = member
                elif member.isfile() and extension.lower() == "cls":
                    classes[key] = class_number(tar.extractfile(member).read(), member.name)
    except (tarfile.TarError, ValueError) as error:
        raise ValueError(f"{path} is not a shard that can be read ({error}); copy or make it again") from error
    unpaired = sorted(images.keys() ^ classes.keys())
    if unpaired or not images:
        found = f"{unpaired[0]} has only one of them" if unpaired else "it holds no image"
        raise ValueError(
            f"{path} is not a WebDataset shard: an image needs key.jpg and key.cls (its class as a number), and {found}"
        )
    return [(member.offset_data, member.size, classes[key], os.fsencode(member.name)) for key, member in images.items()]


def class_number(text: bytes, name: str) -> int:
    """The class in a .cls file."""
    if not text.strip().isdigit():
        raise ValueError(f"{name} holds {text[:20]!r}, not a class number from 0")
    return int(text)
