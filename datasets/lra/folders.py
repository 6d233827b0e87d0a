"""Finding a data set in a user's folder, and saying what is wrong with one that cannot be used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path


def locate(root: str | Path, inside: Sequence[str], needed: str, what: str) -> Path:
    """The first of the folders `root/inside[i]` that holds `needed` (a file or a folder).

    Raises:
        ValueError: none does; the sentence tells what was looked for and what is in `root`.
    """
    root = Path(root).expanduser()
    if not root.is_dir():
        raise ValueError(f"{what} is looked for in data.root={root}, which is not a folder")
    for sub in inside:
        if (root / sub / needed).exists():
            return root / sub
    places = " or ".join(str(Path(sub) / needed) for sub in inside)
    raise ValueError(f"{what}: {places} was looked for in {root}, which holds {listing(root)}")


def listing(folder: Path, most: int = 8) -> str:
    """The first names in a folder, for a message."""
    names = sorted(path.name + "/" * path.is_dir() for path in folder.iterdir())
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "nothing") + more


def signature(files: Iterable[Path], root: Path) -> list[list]:
    """Name, size and time of change of each file: what a store made of them depends on."""
    return [[str(path.relative_to(root)), path.stat().st_size, path.stat().st_mtime_ns] for path in files]


def check_count(found: int, expected: int, what: str, partial: bool) -> str | None:
    """None when `found` is `expected`; a reason for `Data.short` when `partial` allows another number.

    Raises:
        ValueError: the numbers differ and `partial` is not set.
    """
    if found == expected:
        return None
    if partial:
        return f"{found:,} of {expected:,} {what}"
    raise ValueError(
        f"found {found:,} {what} where {expected:,} are expected, so the files are cut or mixed; "
        "get them again, or set data.partial=true to use what is there"
    )
