"""Long documents: the field of an arXiv paper from its whole text, read byte by byte, at any length."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from .data import Data
from .lra.folders import check_count, listing, signature
from .lra.items import token_data
from .lra.store import Writer, cached

# in the order of the labels of the Hugging Face copy
CLASSES = (
    "math.AC", "cs.CV", "cs.AI", "cs.SY", "math.GR", "cs.CE", "cs.PL", "cs.IT", "cs.DS", "cs.NE", "math.ST"
)  # fmt: skip
COUNTS = {"train": 28_388, "dev": 2_500, "test": 2_500}
NAMES = {"train": "train", "dev": "validation|valid|val|dev", "test": "test"}
CONFIGS = ("no_ref", "default")
KINDS = (".parquet", ".jsonl", ".txt")
STORED = 65_536  # bytes kept of a document
READER = 1  # goes up when other bytes are kept of the same files


def longdoc(
    *,
    root: str | None = None,
    seed: int = 0,
    limit: int | None = None,
    length: int = 16_384,
    config: str = "no_ref",
    partial: bool = False,
    cache: str | None = None,
) -> Data:
    """Items of N = `length` tokens: the first bytes of a document, each plus 1 (models use a vocabulary of 512).

    arXiv-classification (He et al., 2019; 11 classes; the Hugging Face copy is ccdv/arxiv-classification). Its
    documents are 58 kB on average. Read from files under `root`: parquet or jsonl files with the fields "text" and
    "label" (0 to 10, or a class name), or text files in folders .../<split>/<class name>/*.txt. A path names its split,
    and the configuration "no_ref" when it has it; any other path belongs to "default".

    Args:
        root: folder of the files.
        seed: not used, the splits are given.
        limit: keep so many items of every split.
        length: N, from 1 to 65,536; a longer document is cut.
        config: "no_ref" has the class names taken out of the texts. "default" has not, so that the label can be read in
            about two documents of three: a switch in the record.
        partial: accept another number of documents than 28,388, 2,500 and 2,500.
        cache: folder for the compact copy; None is data/lra.

    Raises:
        ValueError: there is no root, an option has no meaning, or the files cannot be used.
    """
    if root is None:
        raise ValueError(
            "longdoc reads arXiv-classification from a folder: set data.root to a copy of the files of "
            "huggingface.co/datasets/ccdv/arxiv-classification, configuration no_ref"
        )
    if config not in CONFIGS:
        raise ValueError(f"data.config={config!r} is none of longdoc's configurations, {' and '.join(CONFIGS)}")
    if not 1 <= length <= STORED:
        raise ValueError(f"data.length={length} must be between 1 and {STORED:,} tokens")
    folder = Path(root).expanduser()
    files = find_files(folder, config)

    def write(writer: Writer) -> None:
        for split, paths in files.items():
            writer.begin(split)
            for path in paths:
                for content, label in read_documents(path):
                    writer.add(content[:STORED], label)

    every = [path for paths in files.values() for path in paths]
    settings = {"files": signature(every, folder), "reader": READER}
    store = cached(cache, f"longdoc-{config}", settings, write)
    sizes = {split: end - begin for split, (begin, end) in store.splits.items()}
    return token_data(
        "longdoc",
        store,
        {split: store.range(split) for split in COUNTS},
        length=length,
        num_classes=len(CLASSES),
        limit=limit,
        shift=1,
        short=[check_count(sizes[split], COUNTS[split], f"{split} documents in {root}", partial) for split in COUNTS],
        switches={"label_in_text": True} if config == "default" else None,
    )


def find_files(root: Path, config: str) -> dict[str, list[Path]]:
    """The files of each split: of the first kind that has all three.

    Raises:
        ValueError: no kind has; the sentence tells what is there.
    """
    if not root.is_dir():
        raise ValueError(f"arXiv-classification is looked for in data.root={root}, which is not a folder")
    found = {kind: {split: [] for split in NAMES} for kind in KINDS}
    others = 0
    for path in sorted(root.rglob("*")):
        if path.suffix not in KINDS or not path.is_file():
            continue
        name = (Path(root.resolve().name) / path.relative_to(root)).as_posix()
        split = next(
            (split for split, names in NAMES.items() if re.search(rf"(^|[/_-])({names})([/_.-]|$)", name)), None
        )
        if split and ("no_ref" in name) == (config == "no_ref"):
            found[path.suffix][split].append(path)
        else:
            others += 1
    for kind in KINDS:
        if all(found[kind].values()):
            return found[kind]
    there = [f"{len(paths)} {kind} of {split}" for kind in KINDS for split, paths in found[kind].items() if paths]
    raise ValueError(
        f"arXiv-classification, configuration {config}: parquet, jsonl or text files for train, validation and test "
        f"were looked for in {root}, which holds {listing(root)}; of this configuration there are "
        f"{', '.join(there) or 'none'}, and {others} files of others"
    )


def read_documents(path: Path) -> Iterator[tuple[bytes, int]]:
    """Bytes and label of every document of a file: a text file's own, and the UTF-8 of a field "text".

    Raises:
        ValueError: a field is missing or wrong, or a parquet file cannot be read (pyarrow missing, or broken).
    """
    if path.suffix == ".txt":
        yield path.read_bytes(), label_of(path.parent.name, str(path.parent))
        return
    rows = _parquet_rows(path) if path.suffix == ".parquet" else _json_rows(path)
    for number, row in enumerate(rows, start=1):
        where = f"{path}, document {number}"
        if not isinstance(row, dict) or not isinstance(row.get("text"), str) or "label" not in row:
            raise ValueError(f'{where} has not the fields "text" and "label"')
        yield row["text"].encode(errors="replace"), label_of(row["label"], where)


def label_of(label: object, where: str) -> int:
    """A class number of a number or a class name.

    Raises:
        ValueError: it is neither.
    """
    if label in CLASSES:
        return CLASSES.index(label)
    if isinstance(label, int) and not isinstance(label, bool) and 0 <= label < len(CLASSES):
        return label
    raise ValueError(f"{where}: {label!r} is no class; there are 0 to {len(CLASSES) - 1}, or {', '.join(CLASSES)}")


def _json_rows(path: Path) -> Iterator[object]:
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                raise ValueError(f"{path}, line {number} is not a JSON object; is the file cut?") from None


def _parquet_rows(path: Path) -> Iterator[object]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise ValueError(f"{path} needs the package pyarrow: pip install pyarrow, or give .jsonl files") from None
    try:
        with ParquetFile(path) as file:
            missing = {"text", "label"} - set(file.schema_arrow.names)
            if missing:
                raise ValueError(
                    f"{path} has no column {' and '.join(sorted(missing))}, only {file.schema_arrow.names}"
                )
            for batch in file.iter_batches(batch_size=64, columns=["text", "label"]):
                yield from batch.to_pylist()
    except (ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a readable parquet file ({error}); copy it again") from None
