"""The tables: which experiment fills which row, and where the paper's numbers for it are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A row: its label, the experiment that measures it, and the keys of the reported numbers in `reported.yaml`.

    reported: (columns holding the row's names and their values, column of the result, column of the FLOPs or None).
    """

    label: str
    experiment: str
    names: tuple[str, ...] = ()
    result: str | None = None
    gflops: str | None = None


@dataclass(frozen=True)
class Table:
    """A table: file name, title, the key of its reported numbers, and its rows."""

    name: str
    title: str
    reported: str | None
    rows: tuple[Row, ...]


def _deit(size: str, letter: str) -> tuple[Row, ...]:
    rows = [
        ("softmax", "standard", ("standard", "none")),
        ("mita", "MiTA", ("mita", "none")),
        ("mita_released", "MiTA, as released", ("mita", "none")),
        ("mita_dwc", "MiTA + DWC", ("mita", "dwc")),
    ]
    if letter == "s":
        rows.append(("mita_dwc_gate", "MiTA + DWC + gate", ("mita", "dwc+gate")))
    gflops = "small_gflops" if letter == "s" else None
    return tuple(
        Row(f"DeiT-{size}, {label}", f"deit_{letter}_{name}", names, f"{size.lower()}_top1", gflops)
        for name, label, names in rows
    )


TABLES = (
    Table(
        "table2_deit", "Table 2: ImageNet-1K, 300 epochs from scratch", "imagenet_1k_deit",
        _deit("Tiny", "t") + _deit("Small", "s"),
    ),
    Table(
        "digits", "Handwritten digits (scikit-learn), a 4-layer ViT", None,
        (Row("softmax", "digits_softmax"), Row("MiTA, m = k = 16", "digits_mita")),
    ),
)  # fmt: skip
