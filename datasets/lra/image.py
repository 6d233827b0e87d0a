"""Image: the class of a CIFAR-10 image in grey, read pixel by pixel."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np

from ..data import Data
from .folders import check_count, locate, signature
from .items import token_data
from .store import Writer, cached

LENGTH = 1024
FOLDER = "cifar-10-batches-py"
FILES = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
COUNTS = {"train": 50_000, "test": 10_000}
GREY = np.array([0.2989, 0.5870, 0.1140], np.float32)  # BT.601, as TensorFlow's rgb_to_grayscale has them


def image(
    *,
    root: str | None = None,
    seed: int = 0,
    limit: int | None = None,
    partial: bool = False,
    cache: str | None = None,
) -> Data:
    """Items of N = 1024 tokens: grey values, 0 to 255, row by row, all of them real (models use a vocabulary of 512).

    The last tenth of the training images, in the order of the files, is "dev": 45,000, 5,000 and 10,000 images.

    Args:
        root: CIFAR-10 as torchvision keeps it: a folder that holds cifar-10-batches-py, or that folder.
        seed: not used, the split is fixed.
        limit: keep so many items of every split.
        partial: accept another number of images than 50,000 and 10,000.
        cache: folder for the compact copy; None is data/lra.

    Raises:
        ValueError: there is no root, or the files cannot be used.
    """
    if root is None:
        raise ValueError(
            "the image task reads CIFAR-10 from a folder: set data.root to the one that holds cifar-10-batches-py "
            "(torchvision.datasets.CIFAR10(root, download=True) makes it)"
        )
    folder = locate(root, (FOLDER, "."), FILES["train"][0], "CIFAR-10's python files")
    files = {split: [folder / name for name in names] for split, names in FILES.items()}
    every = [path for paths in files.values() for path in paths]
    for path in every:
        locate(folder, (".",), path.name, "CIFAR-10's python files")

    def write(writer: Writer) -> None:
        for split, paths in files.items():
            writer.begin(split)
            for path in paths:
                for pixels, label in zip(*read_batch(path)):
                    writer.add(pixels.tobytes(), label)

    store = cached(cache, "image", {"files": signature(every, folder)}, write)
    train, test = store.range("train"), store.range("test")
    cut = len(train) * 9 // 10
    return token_data(
        "image",
        store,
        {"train": train[:cut], "dev": train[cut:], "test": test},
        length=LENGTH,
        num_classes=10,
        limit=limit,
        short=[
            check_count(len(numbers), COUNTS[split], f"{split} images in {folder}", partial)
            for split, numbers in (("train", train), ("test", test))
        ],
    )


def grey(pixels: np.ndarray) -> np.ndarray:
    """(n, 3, 1024) uint8 red, green and blue to (n, 1024) uint8, rounded as TensorFlow rounds."""
    weighed = np.einsum("c,ncp->np", GREY, pixels.astype(np.float32) / 255)
    return (weighed * np.float32(255.5)).astype(np.uint8)


def read_batch(path: Path) -> tuple[np.ndarray, list[int]]:
    """Grey images (n, 1024) uint8 and labels of one of CIFAR-10's files.

    Raises:
        ValueError: the file is cut, or holds something else.
    """
    try:
        batch = OnlyArrays(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        data, labels = np.asarray(batch[b"data"]), [int(label) for label in batch[b"labels"]]
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} is not one of CIFAR-10's python files ({error}); is it cut?") from None
    if data.shape != (len(labels), 3 * LENGTH) or data.dtype != np.uint8:
        raise ValueError(
            f"{path} holds {data.dtype} images of shape {data.shape} for {len(labels)} labels; CIFAR-10 has uint8 of "
            f"shape ({len(labels)}, {3 * LENGTH})"
        )
    if labels and not 0 <= min(labels) <= max(labels) <= 9:
        raise ValueError(f"{path} holds labels {min(labels)} to {max(labels)}; CIFAR-10 has 0 to 9")
    return grey(data.reshape(-1, 3, LENGTH)), labels


class OnlyArrays(pickle.Unpickler):
    """An unpickler that makes arrays and plain values, and runs nothing else a file may ask for."""

    ALLOWED = ("_reconstruct", "ndarray", "dtype", "_frombuffer")

    def find_class(self, module: str, name: str):
        if module.split(".")[0] == "numpy" and name in self.ALLOWED:
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        if (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")
