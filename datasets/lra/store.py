"""Token sequences of one data set in a few flat files: written once, then opened in no time."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from filelock import FileLock

from ..data import fingerprint

log = logging.getLogger(__name__)

DEFAULT_CACHE = Path(__file__).resolve().parents[2] / "data" / "lra"


class Store:
    """Read-only sequences of bytes with a target for each item, mapped from a folder, not loaded.

    Attributes:
        targets: (items,) uint8.
        pairs: (items, 2) int32 numbers of sequences, or None when item i is sequence i.
        splits: name -> (first item, one past the last).
        fingerprint: twelve hexadecimal digits of the content.
        notes: what the reader had to say, such as skipped files; said again whenever the store is opened.
    """

    def __init__(self, folder: Path):
        meta = json.loads((folder / "meta.json").read_text())
        self.folder = folder
        self.splits, self.notes = meta["splits"], meta["notes"]
        self.fingerprint = meta["fingerprint"]
        self.offsets = np.load(folder / "offsets.npy", mmap_mode="r")
        self.targets = np.load(folder / "targets.npy", mmap_mode="r")
        self.pairs = np.load(folder / "pairs.npy", mmap_mode="r") if (folder / "pairs.npy").exists() else None
        size = int(self.offsets[-1])
        path = folder / "tokens.bin"
        self.tokens = np.memmap(path, np.uint8, "r", shape=(size,)) if size else np.empty(0, np.uint8)

    def __reduce__(self):
        return Store, (self.folder,)  # a loader's worker maps the files again instead of being sent a copy

    def sequence(self, number: int) -> np.ndarray:
        """Sequence `number`, (length,) uint8."""
        return self.tokens[self.offsets[number] : self.offsets[number + 1]]

    def range(self, split: str) -> np.ndarray:
        """Numbers of the items of a split, int64."""
        return np.arange(*self.splits[split])


class Writer:
    """Fills a folder that `Store` opens. Items belong to the split last named with `begin`."""

    def __init__(self, folder: Path, file: BinaryIO):
        self.folder = folder
        self.notes: list[str] = []
        self._file = file
        self._lengths: list[int] = []
        self._targets: list[int] = []
        self._pairs: list[tuple[int, int]] = []
        self._numbers: dict[bytes, int] = {}
        self._begins: dict[str, int] = {}

    def begin(self, split: str) -> None:
        self._begins[split] = len(self._targets)

    def add(self, tokens: bytes, target: int) -> None:
        self._append(tokens)
        self._targets.append(target)

    def add_pair(self, first: bytes, second: bytes, target: int) -> None:
        """An item of two sequences; equal sequences are written once, as a paper stands in many pairs."""
        for tokens in (first, second):
            if tokens not in self._numbers:
                self._numbers[tokens] = len(self._lengths)
                self._append(tokens)
        self._pairs.append((self._numbers[first], self._numbers[second]))
        self._targets.append(target)

    def _append(self, tokens: bytes) -> None:
        self._file.write(tokens)
        self._lengths.append(len(tokens))

    def finish(self, settings: dict[str, Any]) -> None:
        """Write the rest. meta.json comes last: a folder without it is not finished."""
        self._file.flush()
        arrays = {
            "offsets": np.concatenate([[0], np.cumsum(self._lengths, dtype=np.int64)]).astype(np.int64),
            "targets": np.asarray(self._targets, np.uint8),
        }
        if self._pairs:
            arrays["pairs"] = np.asarray(self._pairs, np.int32)
        digest = hashlib.sha256()
        with open(self.folder / "tokens.bin", "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        for name, array in arrays.items():
            np.save(self.folder / f"{name}.npy", array)
            digest.update(array.tobytes())
        ends = [*list(self._begins.values())[1:], len(self._targets)]
        meta = {
            "settings": settings,
            "fingerprint": digest.hexdigest()[:12],
            "splits": {name: [begin, end] for (name, begin), end in zip(self._begins.items(), ends)},
            "notes": self.notes,
        }
        (self.folder / "meta.json").write_text(json.dumps(meta, indent=1))


def cached(cache: str | Path | None, name: str, settings: dict[str, Any], write: Callable[[Writer], None]) -> Store:
    """The store of `settings` in the folder `cache` (None: data/lra beside the code), made by `write` if it is missing.

    Its folder is called after `name` and a hash of `settings`. It is written under another name and renamed when
    complete; processes that want the same store wait for the first. What an interrupted `write` left beside the
    writer's own files (finished parts) is there again at the next call. A complete store is opened without writing
    anything, as it may lie in a folder that can only be read.
    """
    cache = DEFAULT_CACHE if cache is None else Path(cache)
    name = f"{name}-{fingerprint([json.dumps(settings, sort_keys=True)])[:8]}"
    folder, unfinished = cache / name, cache / f"{name}.unfinished"
    if not (folder / "meta.json").exists():
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{name}.lock"):
            if not (folder / "meta.json").exists():  # another process may have been faster
                _make(folder, unfinished, settings, write)
    store = Store(folder)
    for note in store.notes:
        log.warning("%s: %s", name, note)
    return store


def _make(folder: Path, unfinished: Path, settings: dict[str, Any], write: Callable[[Writer], None]) -> None:
    unfinished.mkdir(exist_ok=True)
    try:
        with open(unfinished / "tokens.bin", "wb") as file:
            writer = Writer(unfinished, file)
            write(writer)
            writer.finish(settings)
    except ValueError:  # what was found is of no use, unlike after an interrupt
        shutil.rmtree(unfinished)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
