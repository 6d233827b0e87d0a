"""Retrieval: does one paper of the ACL Anthology Network cite the other, both read byte by byte?"""

from __future__ import annotations

from pathlib import Path

from ..data import Data
from .folders import check_count, locate, signature
from .items import token_data
from .store import Writer, cached

CONTENT, LENGTH = 4000, 4096
FILES = {"train": "new_aan_pairs.train.tsv", "dev": "new_aan_pairs.eval.tsv", "test": "new_aan_pairs.test.tsv"}
COUNTS = {"train": 147_086, "dev": 18_090, "test": 17_437}
PLACES = (".", "tsv_data", "lra_release/tsv_data", "lra_release/lra_release/tsv_data")
COLUMNS = 5


def retrieval(
    *,
    root: str | None = None,
    seed: int = 0,
    limit: int | None = None,
    partial: bool = False,
    cache: str | None = None,
) -> Data:
    """Items of twice N = 4096 tokens: the first 4,000 bytes of each text, plus 1 (models use a vocabulary of 512).

    Args:
        root: a folder with new_aan_pairs.train.tsv, .eval.tsv and .test.tsv, or a release that holds it.
        seed: not used, the splits are given.
        limit: keep so many items of every split.
        partial: accept another number of pairs than the published ones.
        cache: folder for the compact copy; None is data/lra.

    Raises:
        ValueError: there is no root, or the files cannot be used.
    """
    if root is None:
        raise ValueError(
            "the retrieval task reads pairs of papers from a folder: set data.root to the tsv_data folder of the Long "
            f"Range Arena release, holding {', '.join(FILES.values())}"
        )
    folder = locate(root, PLACES, FILES["train"], "AAN's pairs of papers")
    files = {split: folder / name for split, name in FILES.items()}
    for path in files.values():
        locate(folder, (".",), path.name, "AAN's pairs of papers")

    def write(writer: Writer) -> None:
        for split, path in files.items():
            writer.begin(split)
            read_tsv(path, writer)

    store = cached(cache, "retrieval", {"files": signature(files.values(), folder)}, write)
    sizes = {split: end - begin for split, (begin, end) in store.splits.items()}
    return token_data(
        "retrieval",
        store,
        {split: store.range(split) for split in FILES},
        length=LENGTH,
        num_classes=2,
        limit=limit,
        shift=1,
        short=[check_count(sizes[split], COUNTS[split], f"pairs in {files[split]}", partial) for split in FILES],
    )


def read_tsv(path: Path, writer: Writer) -> None:
    """Add the pairs of one file: label, two ids and two texts a line, without a header.

    Labels are written as floats. Quotation marks are letters like any other: nothing is quoted, and a field can be
    longer than a csv reader takes.

    Raises:
        ValueError: a line without its five columns, or a label that is neither 0 nor 1.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            columns = line.rstrip(b"\r\n").split(b"\t")
            if len(columns) != COLUMNS:
                hint = "these are the ids without texts" if len(columns) == 3 else "is the file cut?"
                raise ValueError(
                    f"{path}, line {number} has {len(columns)} columns where {COLUMNS} are expected (label, two ids, "
                    f"two texts); {hint}"
                )
            try:
                label = float(columns[0])
            except ValueError:
                label = None
            if label not in (0, 1):
                shown = columns[0][:20].decode(errors="replace")
                raise ValueError(f"{path}, line {number}: the label is {shown!r} where 0.0 or 1.0 is expected")
            writer.add_pair(columns[3][:CONTENT], columns[4][:CONTENT], int(label))
