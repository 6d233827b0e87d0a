"""Text: is a film review of IMDB for or against the film, read byte by byte?"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..data import Data, fingerprint
from .folders import check_count, listing, locate, signature
from .items import token_data
from .store import Store, Writer, cached

CONTENT, LENGTH = 4000, 4096
LABELS = {"neg": 0, "pos": 1}
PER_SPLIT = 25_000
DEV_PART = 10  # one review in so many


def text(
    *,
    root: str | None = None,
    seed: int = 0,
    limit: int | None = None,
    imdb_dev_is_test: bool = False,
    partial: bool = False,
    cache: str | None = None,
) -> Data:
    """Items of N = 4096 tokens: the first 4,000 bytes of a review, each plus 1 (models use a vocabulary of 512).

    One training review in ten, the same for every seed and as many against as for, is held out as "dev".

    Args:
        root: the folder of the "Large Movie Review Dataset" (Maas et al., 2011), aclImdb, or one that holds it.
        seed: not used, the split is fixed.
        limit: keep so many items of every split.
        imdb_dev_is_test: legacy: train on all training reviews and choose the checkpoint on the test reviews, as the
            benchmark's code did.
        partial: accept another number of reviews than 25,000 and 25,000.
        cache: folder for the compact copy; None is data/lra.

    Raises:
        ValueError: there is no root, or the files cannot be used.
    """
    if root is None:
        raise ValueError(
            "the text task reads IMDB's reviews from a folder: set data.root to aclImdb (of aclImdb_v1.tar.gz, "
            "ai.stanford.edu/~amaas/data/sentiment), holding train/pos, train/neg, test/pos and test/neg"
        )
    folder = locate(root, (".", "aclImdb"), "train", "IMDB's reviews")
    files = {(split, name): _files(folder / split / name) for split in ("train", "test") for name in LABELS}

    def write(writer: Writer) -> None:
        for split in ("train", "test"):
            writer.begin(split)
            for name, label in LABELS.items():
                for path in files[split, name]:
                    writer.add(path.read_bytes()[:CONTENT], label)

    every = (path for paths in files.values() for path in paths)
    store = cached(cache, "text", {"files": fingerprint(map(str, signature(every, folder)))}, write)
    short = [
        check_count(len(files[split, name]), PER_SPLIT // 2, f"reviews in {folder / split / name}", partial)
        for split, name in files
    ]
    train, test = store.range("train"), store.range("test")
    if imdb_dev_is_test:
        splits = {"train": train, "dev": test, "test": test}
    else:
        dev = held_out(store, train)
        splits = {"train": np.setdiff1d(train, dev), "dev": dev, "test": test}
    return token_data(
        "text",
        store,
        splits,
        length=LENGTH,
        num_classes=2,
        limit=limit,
        shift=1,
        short=short,
        switches={"imdb_dev_is_test": True} if imdb_dev_is_test else None,
    )


def held_out(store: Store, numbers: np.ndarray) -> np.ndarray:
    """One in ten of the items of each class, at random but always the same, ascending."""
    generator = np.random.default_rng(0)
    targets = np.asarray(store.targets)[numbers]
    parts = [generator.permutation(numbers[targets == target]) for target in np.unique(targets)]
    return np.sort(np.concatenate([part[: len(part) // DEV_PART] for part in parts]))


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise ValueError(
            f"IMDB's reviews: the folder {folder} was looked for and is not there; {folder.parent} holds "
            f"{listing(folder.parent) if folder.parent.is_dir() else 'nothing'}"
        )
    files = sorted(folder.glob("*.txt"))
    if not files:
        raise ValueError(f"IMDB's reviews: {folder} holds no .txt file; unpack the archive again")
    return files
