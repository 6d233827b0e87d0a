"""Generated data sets: drawn in chunks, each from its own seed, by any number of processes, resumable."""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from itertools import chain, islice
from pathlib import Path

import numpy as np
from tqdm import tqdm

from .store import Store, Writer, cached

# draws n examples with a generator: tokens (sum of lengths,) uint8, lengths (n,), targets (n,)
Draw = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray, np.ndarray]]


def generated(
    cache: str | Path | None,
    name: str,
    draw: Draw,
    counts: Mapping[str, int],
    *,
    chunk_size: int,
    settings: dict,
    seed: int,
    workers: int | None,
) -> Store:
    """A store of distinct examples in splits of the given sizes, made when the cache does not hold it.

    Chunk c is drawn from a generator seeded with (seed, c), so the examples do not depend on `workers` and a larger set
    begins with a smaller one. A finished chunk is a file, so an interrupted call goes on where it was.

    Args:
        cache: folder of stores, None for the default.
        name: of the data set; seed and size are appended.
        draw: makes the examples of a chunk; a picklable function.
        counts: examples in each split, in order.
        chunk_size: examples in a chunk; another size makes other examples.
        settings: what else the examples depend on, kept with the store.
        seed: of the data.
        workers: processes, None for one a core.

    Raises:
        ValueError: a count is negative or the first is 0, `workers` is not positive, or `draw` runs out of distinct
            examples.
    """
    sizes = list(counts.values())
    if min(sizes) < 0 or sizes[0] < 1:
        raise ValueError(f"data.counts={sizes} must be numbers of items ({', '.join(counts)}), the first at least 1")
    if workers is not None and workers < 1:
        raise ValueError(f"data.workers={workers} must be at least 1, or null for one process a core")
    settings = {**settings, "seed": seed, "chunk_size": chunk_size, "counts": dict(counts)}
    make = partial(_make_chunk, draw=draw, chunk_size=chunk_size, seed=seed)
    workers = workers or os.cpu_count() or 1

    def write(writer: Writer) -> None:
        folder = writer.folder / "chunks"
        folder.mkdir(exist_ok=True)
        with tqdm(total=sum(sizes), desc=name, unit=" examples") as bar:
            examples = _distinct(folder, make, chunk_size, sum(sizes), workers, bar)
            for split, size in counts.items():
                writer.begin(split)
                for sequence, target in islice(examples, size):
                    writer.add(sequence, target)
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()

    return cached(cache, f"{name}-seed{seed}-{'-'.join(map(str, sizes))}", settings, write)


def _distinct(
    folder: Path, make: Callable[[Path, int], None], chunk_size: int, total: int, workers: int, bar: tqdm
) -> Iterator[tuple[bytes, int]]:
    """Distinct examples of chunks 0, 1, ..., `total` of them: as many chunks as it takes."""
    seen: set[bytes] = set()
    begin = 0
    while len(seen) < total:
        before = len(seen)
        numbers = range(begin, begin + math.ceil((total - before) / chunk_size))
        for _ in _made(folder, make, numbers, workers):
            bar.update(min(chunk_size, total - bar.n))
        for sequence, target in chain.from_iterable(_examples(folder / f"{number}.npz") for number in numbers):
            key = hashlib.blake2b(sequence, digest_size=16).digest()
            if key not in seen and len(seen) < total:
                seen.add(key)
                yield sequence, target
        if len(seen) == before:
            raise ValueError(f"no more than {before} distinct examples were found, and {total} were asked for")
        begin = numbers.stop


def _made(folder: Path, make: Callable[[Path, int], None], numbers: range, workers: int) -> Iterator[None]:
    """Make the chunks that are not there; one step a chunk."""
    missing = [number for number in numbers if not (folder / f"{number}.npz").exists()]
    yield from (None for _ in range(len(numbers) - len(missing)))
    if workers == 1 or len(missing) < 2:
        yield from (make(folder, number) for number in missing)
        return
    context = multiprocessing.get_context("spawn")  # forking a process that runs threads is not safe
    pool = ProcessPoolExecutor(min(workers, len(missing)), mp_context=context)
    try:
        yield from (future.result() for future in as_completed(pool.submit(make, folder, n) for n in missing))
    finally:
        pool.shutdown(cancel_futures=True)


def _make_chunk(folder: Path, number: int, *, draw: Draw, chunk_size: int, seed: int) -> None:
    tokens, lengths, targets = draw(np.random.default_rng([seed, number]), chunk_size)
    part = folder / f"{number}.part.npz"
    np.savez(part, tokens=tokens, lengths=lengths, targets=targets)
    part.rename(folder / f"{number}.npz")


def _examples(path: Path) -> Iterator[tuple[bytes, int]]:
    with np.load(path) as arrays:
        tokens, lengths, targets = arrays["tokens"], arrays["lengths"], arrays["targets"]
    for sequence, target in zip(np.split(tokens, np.cumsum(lengths)[:-1]), targets.tolist()):
        yield sequence.tobytes(), target
