"""Tables from records: reported beside measured, nothing typed by hand."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping
from pathlib import Path

import yaml

from .records import Record, load_all
from .specs import TABLES, Row, Table

COLUMNS = (
    "row", "experiment", "parameters", "multiply_adds", "reported_gflops", "gflops_difference",
    "reported", "measured", "difference", "sd", "seeds", "best", "steps_per_second",
)  # fmt: skip


def render_all(
    records: Path | str,
    reported: Path | str,
    costs: Mapping[str, tuple[int, int]],
    out: Path | str,
    check: bool = False,
) -> list[Path]:
    """Write every table as md, csv and tex; returns the files that changed (with `check`, that would, writing nothing).

    costs: experiment to (parameters, multiply-adds of one item).
    """
    runs, paper, stale = load_all(records), yaml.safe_load(Path(reported).read_text()), []
    for table in TABLES:
        rows = [fill(row, table, runs, paper, costs) for row in table.rows]
        short = [run for run in runs if run.short and run.experiment in {row.experiment for row in table.rows}]
        for suffix, text in (("md", markdown(table, rows, short)), ("csv", to_csv(rows)), ("tex", latex(table, rows))):
            path = Path(out) / f"{table.name}.{suffix}"
            if not path.exists() or path.read_text() != text:
                stale.append(path)
                if not check:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text)
    return stale


def fill(row: Row, table: Table, runs: list[Record], paper: dict, costs: Mapping[str, tuple[int, int]]) -> dict:
    """The raw values of a row: None where nothing is reported or measured. Only full runs of the experiment itself count.

    measured: mean of the main metric at the end of training over seeds; best: mean of the best round's.
    """
    full = [run for run in runs if run.name == row.experiment and not run.short]
    last, best = ([run.metrics[run.metric] for run in full], [run.best["value"] for run in full])
    parameters, multiply_adds = costs[row.experiment]
    reported, gflops = lookup(paper, table, row, row.result), lookup(paper, table, row, row.gflops)
    measured = statistics.fmean(last) if last else None
    return {
        "row": row.label, "experiment": row.experiment, "parameters": parameters, "multiply_adds": multiply_adds,
        "reported_gflops": gflops, "gflops_difference": None if gflops is None else multiply_adds / 1e9 - gflops,
        "reported": reported, "measured": measured,
        "difference": None if None in (reported, measured) else measured - reported,
        "sd": statistics.stdev(last) if len(last) > 1 else None, "seeds": len(full),
        "best": statistics.fmean(best) if best else None,
        "steps_per_second": statistics.fmean(run.steps_per_second for run in full) if full else None,
    }  # fmt: skip


def lookup(paper: dict, table: Table, row: Row, column: str | None) -> float | None:
    """The reported number of a row's column, None where the paper's sources give none."""
    if table.reported is None or column is None:
        return None
    section = paper[table.reported]
    for cells in section["rows"]:
        if tuple(cells[: len(row.names)]) == row.names:
            return cells[section["columns"].index(column)]
    raise ValueError(f"reported.yaml has no row {row.names} in {table.reported}.")


def _text(value: float | None, form: str = ".2f") -> str:
    return "" if value is None else format(value, form)


HEAD = (
    "row",
    "params (M)",
    "G multiply-adds",
    "reported G",
    "reported",
    "measured",
    "difference",
    "best round",
    "steps/s",
)


def _cells(row: dict) -> list[str]:
    measured = _text(row["measured"])
    if row["sd"] is not None:
        measured += f" ± {row['sd']:.2f} ({row['seeds']} seeds)"
    elif row["seeds"]:
        measured += " (1 seed)"
    gflops = _text(row["reported_gflops"], ".1f")
    if gflops:
        gflops += f" ({row['gflops_difference']:+.3f})"
    return [
        row["row"], f"{row['parameters'] / 1e6:.2f}", f"{row['multiply_adds'] / 1e9:.4f}", gflops, _text(row["reported"], ".1f"),
        measured, _text(row["difference"], "+.2f"), _text(row["best"]), _text(row["steps_per_second"]),
    ]  # fmt: skip


def markdown(table: Table, rows: list[dict], short: list[Record]) -> str:
    """The table for readers; short runs are listed under it and fill no cell."""
    lines = [f"# {table.title}", "", f"| {' | '.join(HEAD)} |", "|" + " --- |" * len(HEAD)]
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows]
    lines += [
        "",
        "Top-1 in %. Reported: by the paper's authors. Measured: by this project, from `results/records`, at the end of "
        "training, mean ± sd over seeds; best round: chosen on the test split, as the paper does. Multiply-adds and "
        "parameters are computed.",
    ]
    if short:
        lines += ["", "Short runs, which fill no cell:", ""]
        lines += [
            f"- {run.name}, seed {run.seed}: {run.metrics[run.metric]:.2f} ({'; '.join(run.short)})" for run in short
        ]
    return "\n".join(lines) + "\n"


def to_csv(rows: list[dict]) -> str:
    """Raw numbers."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def latex(table: Table, rows: list[dict]) -> str:
    """A tabular with booktabs rules."""
    lines = [f"% {table.title}", rf"\begin{{tabular}}{{l{'r' * (len(HEAD) - 1)}}}", r"\toprule"]
    lines += [" & ".join(map(_escape, HEAD)) + r" \\", r"\midrule"]
    lines += [" & ".join(map(_escape, _cells(row))) + r" \\" for row in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _escape(text: str) -> str:
    return text.translate(_TEX)


_TEX = str.maketrans({plain: "\\" + plain for plain in "%_&#${}"}) | str.maketrans({
    "\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "±": r"$\pm$",
})  # fmt: skip
