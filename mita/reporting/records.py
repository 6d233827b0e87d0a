"""What a run was, what it ran on, and what came out: one JSON file a run."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Record:
    """One finished run.

    short: why it is no full run, as sentences; empty for a full run. Only full runs fill a table.
    metric: the main metric, "<split>/<name>"; accuracies in percent. metrics: the last round's; where the best round was
        selected on another split than that of `metric`, that of `metric` is the best round's, tested at the end.
    best: epoch, step and value of the best round, and the metric that selected it.
    hours: training with evaluation. steps_per_second: without evaluation and warm-up.
    multiply_adds: of one item. commit, dirty: of the code, None and False outside git. switches: legacy behaviours in force.
    """

    experiment: str
    name: str
    seed: int
    short: list[str]
    task: str
    metric: str
    metrics: dict
    best: dict
    epochs: float
    steps: int
    steps_per_second: float
    peak_memory_mib: float
    hours: float
    parameters: int
    multiply_adds: int
    config: dict
    commit: str | None
    dirty: bool
    device: str
    num_devices: int
    precision: str
    torch: str
    versions: dict
    data: dict
    switches: dict
    date: str

    def save(self, path: Path | str) -> None:
        """Write the record whole or not at all."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")
        os.replace(part, path)

    @classmethod
    def load(cls, path: Path | str) -> Record:
        """Read a record. Raises ValueError, naming the file, when it is not one."""
        try:
            values = json.loads(Path(path).read_text())
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not JSON: {error}") from None
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(values, dict) or values.keys() != names:
            found = set(values) if isinstance(values, dict) else set()
            raise ValueError(
                f"{path} is not a record: missing {sorted(names - found)}, unknown {sorted(found - names)}."
            )
        wrong = _wrong(values)
        if wrong:
            raise ValueError(f"{path} is not a record: {wrong}.")
        return cls(**values)


def _wrong(values: dict) -> str | None:
    """What is wrong with the values that the tables read, if anything."""
    if not isinstance(values["short"], list):
        return f"short is {values['short']!r}, expected a list of reasons"
    if not isinstance(values["seed"], int):
        return f"seed is {values['seed']!r}, expected an integer"
    if not isinstance(values["metrics"], dict) or not isinstance(values["best"], dict):
        return "metrics and best must be objects"
    numbers = {
        "steps_per_second": values["steps_per_second"],
        f"metrics[{values['metric']!r}]": values["metrics"].get(str(values["metric"])),
        "best['value']": values["best"].get("value"),
    }
    for key, value in numbers.items():
        if not isinstance(value, (int, float)):
            return f"{key} is {value!r}, expected a number"
    return None


def load_all(folder: Path | str) -> list[Record]:
    """All records of a folder, in the order of their file names."""
    return [Record.load(path) for path in sorted(Path(folder).glob("*.json"))]


def record_name(name: str, folder: str, short: bool = False, changed: bool = False) -> str:
    """The file name of a record, of its run's name and folder (seed0, seed0-2); no short run or one of other settings than
    the experiment's replaces a full one."""
    return f"{name}-{folder}{'-short' if short else '-changed' if changed else ''}.json"


def git_state() -> tuple[str | None, bool]:
    """(commit, whether the code differs from it); (None, False) outside git."""
    here = Path(__file__).parents[2]
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True
        ).stdout.strip()
        code = ["status", "--porcelain", "--untracked-files=no", "--", ".", ":!results"]
        changed = subprocess.run(["git", *code], cwd=here, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None, False
    return commit, bool(changed)
