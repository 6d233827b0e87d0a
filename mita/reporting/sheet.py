"""A table as text: Markdown for readers, CSV with the raw numbers, LaTeX for papers."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Block:
    """A rectangle of cells under a head, with a heading of its own where a sheet has several."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    heading: str | None = None


@dataclass(frozen=True)
class Sheet:
    """A table ready to be written.

    blocks: what readers see; notes: paragraphs (or whole lists) under them.
    columns, raw: the numbers behind them, a dict a row; None stays empty.
    """

    title: str
    blocks: Sequence[Block]
    columns: Sequence[str]
    raw: Sequence[dict]
    notes: Sequence[str] = field(default=())

    def texts(self) -> dict[str, str]:
        """File suffix to content."""
        return {"md": self.markdown(), "csv": self.csv(), "tex": self.latex()}

    def markdown(self) -> str:
        parts = [f"# {self.title}"]
        for block in self.blocks:
            if block.heading:
                parts.append(f"## {block.heading}")
            lines = [f"| {' | '.join(block.head)} |", "|" + " --- |" * len(block.head)]
            parts.append("\n".join(lines + [f"| {' | '.join(row)} |" for row in block.rows]))
        return "\n\n".join([*parts, *self.notes]) + "\n"

    def csv(self) -> str:
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.raw)
        return buffer.getvalue()

    def latex(self) -> str:
        """A tabular with booktabs rules for each block."""
        lines = [f"% {self.title}"]
        for block in self.blocks:
            if block.heading:
                lines.append(f"% {block.heading}")
            lines += [rf"\begin{{tabular}}{{l{'r' * (len(block.head) - 1)}}}", r"\toprule"]
            lines += [" & ".join(map(escape, block.head)) + r" \\", r"\midrule"]
            lines += [" & ".join(map(escape, row)) + r" \\" for row in block.rows]
            lines += [r"\bottomrule", r"\end{tabular}"]
        return "\n".join(lines) + "\n"


def text(value: float | None, form: str = ".2f") -> str:
    """A number, or nothing where there is none."""
    return "" if value is None else format(value, form)


def beside(reported: float | None, difference: float | None, form: str, difference_form: str) -> str:
    """A reported number, with how far ours is from it where there is one of ours."""
    if reported is None or difference is None:
        return text(reported, form)
    return f"{reported:{form}} ({difference:{difference_form}})"


def over_seeds(mean: float | None, sd: float | None, seeds: int) -> str:
    """Mean and standard deviation, and how many seeds are behind them."""
    if mean is None:
        return ""
    return f"{mean:.2f} (1 seed)" if sd is None else f"{mean:.2f} ± {sd:.2f} ({seeds} seeds)"


def escape(cell: str) -> str:
    """Text that LaTeX prints as it stands."""
    return cell.translate(_TEX)


_TEX = str.maketrans({plain: "\\" + plain for plain in "%_&#${}"}) | str.maketrans({
    "\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "±": r"$\pm$", "×": r"$\times$",
})  # fmt: skip
