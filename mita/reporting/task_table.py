"""Table 5: a row a mechanism, a column a task; accuracy, speed beside both kinds of standard attention, and controls."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from .records import Record
from .sheet import Block, Sheet, beside, over_seeds, text
from .specs import TaskRow, TaskTable

COLUMNS = (
    "row", "task", "run", "reported", "measured", "difference", "sd", "seeds",
    "steps_per_second", "times_fused", "times_naive", "reported_times", "hours", "peak_memory_mib", "device", "precision",
)  # fmt: skip
CONTROLS = {"majority": "majority class", "first_token": "first token only", "first_token_train": "the same, on train"}
NOTE = (
    "Accuracy in % on the whole test set, with the weights that are best on dev; mean ± sd over seeds. Reported: by the "
    "paper's authors, on one RTX 4090, where standard attention is presumably the lineage's own, unfused in float32 with "
    "recomputation: the naive row. Speed: training steps, without evaluation and warm-up, set against standard attention on "
    "the same device and in the same precision; hours with evaluation. A mean and a total need all five tasks."
)
CONTROL_NOTE = (
    "Controls, on this project's data: the most frequent class of the training set, and for ListOps the best guess from the "
    "outermost operator (on 2,000 test expressions chance alone moves an accuracy by a point). Published: standard attention "
    "by others with the same model (Xiong et al. 2021; xFormers; Chen et al. 2021, Skyformer), from least to greatest."
)


def task_sheet(table: TaskTable, full: list[Record], paper: dict, controls: Mapping[str, dict]) -> Sheet:
    """The table from full runs, the paper's section "lra" and the controls by experiment."""
    cells = {
        (row.label, task): fill(table, row, task, full, paper["lra"]) for row in table.rows for task in table.tasks
    }
    for cell in cells.values():
        cell["times_fused"] = _ratio(cell, cells[table.fused, cell["task"]], "steps_per_second")
        cell["times_naive"] = _ratio(cell, cells[table.naive, cell["task"]], "steps_per_second")
    return Sheet(
        table.title,
        [
            _accuracy(table, cells, paper),
            _totals(table, cells, paper),
            _speed(table, cells),
            _controls(table, paper, controls),
        ],
        COLUMNS,
        list(cells.values()),
        [NOTE, CONTROL_NOTE],
    )


def fill(table: TaskTable, row: TaskRow, task: str, full: list[Record], section: dict) -> dict:
    """The raw values of one mechanism on one task; None where nothing is reported or measured."""
    name = row.run.format(task)
    own = [run for run in full if run.name == name]
    values = [run.metrics[run.metric] for run in own]
    measured = statistics.fmean(values) if values else None
    columns = dict(zip(section["columns"], next(line for line in section["rows"] if line[0] == task)))
    reported = {"standard": columns["full_acc"], "mita": columns["mita_acc"]}.get(row.reported)

    def mean(attribute: str) -> float | None:
        return statistics.fmean(getattr(run, attribute) for run in own) if own else None

    return {
        "row": row.label, "task": task, "run": name, "reported": reported, "measured": measured,
        "difference": None if None in (reported, measured) else measured - reported,
        "sd": statistics.stdev(values) if len(values) > 1 else None, "seeds": len(own),
        "steps_per_second": mean("steps_per_second"),
        "reported_times": columns["steps_per_s_speedup"] if row.reported == "mita" else None,
        "hours": mean("hours"), "peak_memory_mib": mean("peak_memory_mib"),
        "device": _same(f"{run.num_devices} x {run.device}" for run in own), "precision": _same(run.precision for run in own),
    }  # fmt: skip


def _accuracy(table: TaskTable, cells: dict, paper: dict) -> Block:
    totals = paper["lra"]["mean_accuracy_and_total_hours"]
    lines = []
    for row in table.rows:
        line = [row.label]
        own = [cells[row.label, task] for task in table.tasks]
        for cell in own:
            line.append(over_seeds(cell["measured"], cell["sd"], cell["seeds"]))
            line.append(beside(cell["reported"], cell["difference"], ".2f", "+.2f"))
        mean = _over_tasks(own, "measured", statistics.fmean)
        reported = totals[row.reported][0] if row.reported else None
        difference = None if None in (mean, reported) else mean - reported
        lines.append([*line, text(mean), beside(reported, difference, ".2f", "+.2f")])
    titles = [*table.tasks.values(), "mean"]
    return Block(["row", *(head for title in titles for head in (title, "reported"))], lines, "Accuracy in %")


def _totals(table: TaskTable, cells: dict, paper: dict) -> Block:
    totals = paper["lra"]["mean_accuracy_and_total_hours"]
    hours = {row.label: _total(cells, table, row.label) for row in table.rows}
    lines = []
    for row in table.rows:
        own, reported = hours[row.label], totals[row.reported][1] if row.reported else None
        against = [_ratio(hours[reference], own, "hours") for reference in (table.fused, table.naive)]
        relative = None if reported is None else totals["standard"][1] / reported
        lines.append([row.label, text(own["hours"]), *map(text, against), text(reported, ".1f"), text(relative, ".1f")])
    head = ["row", "hours", "× fused", "× naive", "reported hours", "reported ×"]
    return Block(head, lines, "Time for five tasks, and how many times faster than standard attention")


def _speed(table: TaskTable, cells: dict) -> Block:
    lines = [
        [
            cell["row"], table.tasks[cell["task"]], text(cell["steps_per_second"]), text(cell["times_fused"]),
            text(cell["times_naive"]), text(cell["reported_times"], ".1f"), text(cell["hours"]),
            text(cell["peak_memory_mib"], ",.0f"), cell["device"] or "several", cell["precision"] or "several",
        ]
        for cell in cells.values()
        if cell["seeds"]
    ]  # fmt: skip
    head = ["row", "task", "steps/s", "× fused", "× naive", "reported ×", "hours", "peak MiB", "device", "precision"]
    return Block(head, lines, "Speed and memory of what was run")


def _controls(table: TaskTable, paper: dict, controls: Mapping[str, dict]) -> Block:
    whole = {name: values for name, values in controls.items() if not values["short"]}
    lines = [
        [title, *(text(whole.get(f"lra_{task}", {}).get(key)) for task in table.tasks)]
        for key, title in CONTROLS.items()
    ]
    published = paper["lra_standard_attention_elsewhere"]["same_model"].values()
    spread = [[run[task] for run in published] for task in table.tasks]
    lines.append(["standard attention, published", *(f"{min(values):.2f} to {max(values):.2f}" for values in spread)])
    return Block(["control", *table.tasks.values()], lines, "Controls")


def _over_tasks(cells: list[dict], key: str, combine) -> float | None:
    values = [cell[key] for cell in cells]
    return None if None in values else combine(values)


def _total(cells: dict, table: TaskTable, label: str) -> dict:
    own = [cells[label, task] for task in table.tasks]
    return {
        "hours": _over_tasks(own, "hours", sum),
        **{key: _same(cell[key] for cell in own) for key in ("device", "precision")},
    }


def _ratio(above: dict, below: dict, key: str) -> float | None:
    """Of two cells measured alike; None where one is missing, or on another device or in another precision."""
    alike = all(above[name] == below[name] is not None for name in ("device", "precision"))
    return above[key] / below[key] if alike and None not in (above[key], below[key]) and below[key] else None


def _same(values) -> str | None:
    """The one value that all have; None for none or several."""
    values = set(values)
    return values.pop() if len(values) == 1 else None
