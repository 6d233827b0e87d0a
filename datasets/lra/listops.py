"""ListOps: nested expressions of lists of digits, with one digit as the answer. Generated, or read from a release."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial as bound
from pathlib import Path

from ..data import Data
from .expressions import END, TOKENS, Rules, draw_chunk
from .folders import check_count, locate, signature
from .generate import generated
from .items import token_data
from .store import Store, Writer, cached

COUNTS = (96_000, 2_000, 2_000)
FILES = {"train": "basic_train.tsv", "dev": "basic_val.tsv", "test": "basic_test.tsv"}
PLACES = (".", "listops-1000", "lra_release/listops-1000", "lra_release/lra_release/listops-1000")
CHUNK_SIZE = 1000
GENERATOR = 1  # goes up when the same seed gives other expressions


def listops(
    *,
    root: str | None = None,
    seed: int = 0,
    limit: int | None = None,
    counts: tuple[int, int, int] = COUNTS,
    generator_seed: int = 0,
    min_length: int = 500,
    max_length: int = 2000,
    max_depth: int = 10,
    max_args: int = 10,
    brackets_dropped: bool = False,
    partial: bool = False,
    cache: str | None = None,
    workers: int | None = None,
) -> Data:
    """Items of N = 2048 tokens out of 15 symbols (`expressions.SYMBOLS`, ids from 1; models use a vocabulary of 32).

    Parentheses of the published text carry nothing and are not tokens; closing brackets are.

    Args:
        root: a release (holding basic_train.tsv, basic_val.tsv, basic_test.tsv); None generates.
        seed: not used: every seed of training sees the same data, as with read ones.
        limit: keep so many items of every split.
        counts: examples to generate for train, dev and test.
        generator_seed: of the generated examples.
        min_length, max_length: exclusive bounds on the number of tokens. N is the power of two from `max_length`.
        max_depth, max_args: of the generated trees.
        brackets_dropped: legacy: leave out the closing brackets, as the first public pipelines did. The task cannot be
            solved so.
        partial: accept files of other sizes than the published ones.
        cache: folder for the compact copy; None is data/lra.
        workers: processes to generate with; None for one a core.

    Raises:
        ValueError: an option has no meaning, or the files cannot be used.
    """
    rules = Rules(min_length, max_length, max_depth, max_args)
    if root is None:
        if len(counts) != 3:
            raise ValueError(f"data.counts={list(counts)} must be three numbers: train, dev and test")
        store = generated(
            cache,
            "listops",
            bound(draw_chunk, rules=rules),
            dict(zip(FILES, counts)),
            chunk_size=CHUNK_SIZE,
            settings={"rules": asdict(rules), "generator": GENERATOR},
            seed=generator_seed,
            workers=workers,
        )
        short = [None if rules == Rules() else f"ListOps by other rules: {rules}"]
        short += [None if tuple(counts) == COUNTS else f"counts={list(counts)}"]
    else:
        if rules != Rules():
            raise ValueError(f"data.root={root} is read as it is; {rules} is for generated ListOps, without a root")
        store, short = _read(root, cache, partial)
    return token_data(
        "listops",
        store,
        {split: store.range(split) for split in FILES},
        length=padded_length(max_length),
        num_classes=10,
        limit=limit,
        without=END if brackets_dropped else None,
        short=short,
        switches={"brackets_dropped": True} if brackets_dropped else None,
    )


def padded_length(max_length: int) -> int:
    """N: the power of two that holds expressions of fewer than `max_length` tokens."""
    return 1 << (max_length - 1).bit_length()


def _read(root: str, cache: str | None, partial: bool) -> tuple[Store, list[str | None]]:
    folder = locate(root, PLACES, FILES["train"], "a ListOps release")
    files = {split: folder / name for split, name in FILES.items()}
    for path in files.values():
        locate(folder, (".",), path.name, "a ListOps release")

    def write(writer: Writer) -> None:
        for split, path in files.items():
            writer.begin(split)
            read_tsv(path, writer)

    store = cached(cache, "listops-read", {"files": signature(files.values(), folder)}, write)
    sizes = {split: end - begin for split, (begin, end) in store.splits.items()}
    return store, [
        check_count(sizes[split], count, f"expressions in {files[split]}", partial)
        for split, count in zip(FILES, COUNTS)
    ]


def read_tsv(path: Path, writer: Writer) -> None:
    """Add the lines of one published file: header "Source<TAB>Target", then an expression and its value a line.

    Raises:
        ValueError: a line without its two columns, an unknown token, a value that is no digit, an expression longer
            than the rules allow.
    """
    ids = {symbol.encode(): number for symbol, number in TOKENS.items() if number} | {b"(": 0, b")": 0}
    with open(path, "rb") as file:
        header = file.readline().rstrip(b"\r\n")
        if header != b"Source\tTarget":
            raise ValueError(f"{path} must begin with the line 'Source<TAB>Target', not {header[:40]!r}")
        for number, line in enumerate(file, start=2):
            columns = line.rstrip(b"\r\n").split(b"\t")
            if len(columns) != 2 or len(columns[1]) != 1 or not columns[1].isdigit():
                raise ValueError(f"{path}, line {number} is not an expression, a tab and a digit; is the file cut?")
            try:
                tokens = bytes(map(ids.__getitem__, columns[0].split())).replace(b"\0", b"")
            except KeyError as unknown:
                symbol = unknown.args[0].decode(errors="replace")
                known = " ".join(key.decode() for key in ids)
                raise ValueError(f"{path}, line {number}: unknown token {symbol!r}; ListOps has {known}") from None
            if not 0 < len(tokens) < Rules.max_length:
                raise ValueError(
                    f"{path}, line {number}: an expression of {len(tokens)} tokens, where fewer than "
                    f"{Rules.max_length} and at least 1 are expected"
                )
            writer.add(tokens, int(columns[1]))
