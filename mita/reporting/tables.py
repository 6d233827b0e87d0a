"""Tables from records: reported beside measured, nothing typed by hand."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from .records import Record, load_all
from .sheet import Block, Sheet, beside, over_seeds, text
from .specs import TABLES, Reported, Row, Table, TaskTable
from .task_table import task_sheet

COLUMNS = (
    "row", "experiment", "parameters", "reported_parameters_m", "parameters_difference_m",
    "multiply_adds", "reported_gflops", "gflops_difference",
    "reported", "measured", "difference", "sd", "seeds", "best", "steps_per_second",
)  # fmt: skip
HEAD = (
    "row", "params (M)", "reported M", "G multiply-adds", "reported G", "reported", "measured", "difference", "best round",
    "steps/s",
)  # fmt: skip


def render_all(
    results: Path | str,
    reported: Path | str,
    costs: Mapping[str, tuple[int, int]],
    changes: Callable[[Record], Mapping],
    check: bool = False,
) -> list[Path]:
    """Write every table as md, csv and tex into `results`/tables from `results`/records and `results`/controls.

    Args:
        results: folder of records, controls and tables.
        reported: file of the paper's numbers.
        costs: experiment to (parameters, multiply-adds of one item), for tables with a row an experiment.
        changes: what a run's settings have that those of the experiment it is named after have not, by key.
        check: write nothing.

    Returns:
        the files that changed, or that would.
    """
    results = Path(results)
    paper = yaml.safe_load(Path(reported).read_text())
    controls = {path.stem: read_control(path) for path in sorted((results / "controls").glob("*.json"))}
    runs = load_all(results / "records")
    changed = {id(run): dict(changes(run)) for run in runs}
    full = [run for run in runs if not _why_not(run, changed[id(run)])]
    latest = {(run.name, run.seed): run for run in sorted(full, key=lambda run: run.date)}
    full = [run for run in full if run is latest[run.name, run.seed]]
    stale = []
    for table in TABLES:
        if isinstance(table, TaskTable):
            sheet = task_sheet(table, full, paper, controls)
        else:
            sheet = run_sheet(table, full, paper, costs)
        others = others_note(table, runs, full, changed, controls)
        sheet = Sheet(sheet.title, sheet.blocks, sheet.columns, sheet.raw, (*sheet.notes, *others))
        for suffix, content in sheet.texts().items():
            path = results / "tables" / f"{table.name}.{suffix}"
            if not path.exists() or path.read_text() != content:
                stale.append(path)
                if not check:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(content)
    return stale


def read_control(path: Path) -> dict:
    """What tools/lra_controls.py wrote. Raises ValueError, naming the file, when it is not that."""
    try:
        control = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(
            f"{path} is not JSON: {error}; write it again with tools/lra_controls.py {path.stem}"
        ) from None
    if not isinstance(control, dict):
        raise ValueError(f"{path} is no control; write it again with tools/lra_controls.py {path.stem}")
    return control


def others_note(
    table: Table | TaskTable,
    runs: list[Record],
    full: list[Record],
    changed: Mapping[int, dict],
    controls: Mapping[str, dict],
) -> list[str]:
    """The runs of the table's experiments that fill no cell, and why, with the control of the same data if there is one."""
    lines = []
    for run in runs:
        why = _why_not(run, changed[id(run)])
        if run.name not in table.runs and not why:
            why = ["no row of this table"]
        if not why and run not in full:
            why = ["a later run of this seed fills the cell"]
        if run.experiment in table.experiments and why:
            control = controls.get(run.experiment, {})
            same = run.data.get("fingerprint") is not None and control.get("fingerprint") == run.data["fingerprint"]
            control = control.get("first_token") if same else None
            aside = "" if control is None else f", where the first token alone gives {control:.2f}"
            lines.append(f"- {run.name}, seed {run.seed}: {run.metrics[run.metric]:.2f}{aside} ({'; '.join(why)})")
    return ["Short runs and runs of other settings, which fill no cell:", "\n".join(lines)] if lines else []


def _why_not(run: Record, changed: dict) -> list[str]:
    """Why a run is no full one of the experiment and the choices that it is named after."""
    why = [*run.short, *(f"{key} = {mine!r} in place of {own!r}" for key, (own, mine) in changed.items())]
    return why or (
        [] if run.name.split(",")[0] == run.experiment else [f"a run of {run.experiment} under another name"]
    )


def run_sheet(table: Table, full: list[Record], paper: dict, costs: Mapping[str, tuple[int, int]]) -> Sheet:
    """A table with a row an experiment."""
    rows = [fill(row, table, full, paper, costs) for row in table.rows]
    note = (
        f"{table.measure}. Reported: by the paper's authors. Measured: by this project, from `results/records`, mean ± sd over "
        f"seeds, {table.when}. Multiply-adds and parameters are computed, beside those reported with the difference."
    )
    notes = [note, *([table.note] if table.note else [])]
    return Sheet(table.title, [Block(HEAD, [_cells(row) for row in rows])], COLUMNS, rows, notes)


def fill(row: Row, table: Table, full: list[Record], paper: dict, costs: Mapping[str, tuple[int, int]]) -> dict:
    """The raw values of a row: None where nothing is reported or measured. Only runs of the experiment itself count.

    measured: mean of the main metric over seeds (see `Record`); best: mean of what the best round was selected by.
    """
    own = [run for run in full if run.name == row.experiment]
    last, best = ([run.metrics[run.metric] for run in own], [run.best["value"] for run in own])
    parameters, multiply_adds = costs[row.experiment]
    reported, gflops, millions = (
        lookup(paper, table, row, where) for where in (row.result, row.gflops, row.parameters)
    )
    measured = statistics.fmean(last) if last else None
    return {
        "row": row.label, "experiment": row.experiment,
        "parameters": parameters, "reported_parameters_m": millions,
        "parameters_difference_m": None if millions is None else parameters / 1e6 - millions,
        "multiply_adds": multiply_adds, "reported_gflops": gflops,
        "gflops_difference": None if gflops is None else multiply_adds / 1e9 - gflops,
        "reported": reported, "measured": measured,
        "difference": None if None in (reported, measured) else measured - reported,
        "sd": statistics.stdev(last) if len(last) > 1 else None, "seeds": len(own),
        "best": statistics.fmean(best) if best else None,
        "steps_per_second": statistics.fmean(run.steps_per_second for run in own) if own else None,
    }  # fmt: skip


def lookup(paper: dict, table: Table, row: Row, where: Reported) -> float | None:
    """The reported number `where` of a row (see `Row`), None where the paper's sources give none.

    Raises ValueError when reported.yaml does not have what the row names.
    """
    if table.reported is None or where is None:
        return None
    section = paper[table.reported]
    if isinstance(where, tuple):
        mapping, key = where
        if key not in section.get(mapping, {}):
            raise ValueError(f"reported.yaml has no {mapping}.{key} in {table.reported}.")
        return section[mapping][key]
    for cells in section["rows"]:
        if tuple(cells[: len(row.names)]) == row.names:
            return cells[section["columns"].index(where)]
    raise ValueError(f"reported.yaml has no row {row.names} in {table.reported}.")


def _cells(row: dict) -> list[str]:
    return [
        row["row"],
        f"{row['parameters'] / 1e6:.2f}", beside(row["reported_parameters_m"], row["parameters_difference_m"], ".1f", "+.2f"),
        f"{row['multiply_adds'] / 1e9:.4f}", beside(row["reported_gflops"], row["gflops_difference"], ".1f", "+.3f"),
        text(row["reported"], ".1f"), over_seeds(row["measured"], row["sd"], row["seeds"]), text(row["difference"], "+.2f"),
        text(row["best"]), text(row["steps_per_second"]),
    ]  # fmt: skip
