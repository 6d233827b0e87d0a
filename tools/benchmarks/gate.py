"""The regression gate: is any case slower, relative to its base, than it was when it was stored?"""

from __future__ import annotations

MEASURED = {"error", "ratio", "noise", "peak_in_q", "rows_off", "heads"}
LEAST = 0.05  # no repeat of a measurement is closer than that


def slower(stored: dict, report: dict, chosen: bool = False) -> list[str]:
    """One line for every case whose ratio fell by more than the noise of the two measurements, and for every stored backend of
    which none ran, unless the backends were `chosen`. Other cases that were not measured are left out.

    Raises ValueError when the two reports are not of the same processor, which ratios depend on.
    """
    for key in ("command", "machine", "device", "vector_instructions"):
        if stored[key] != report[key]:
            raise ValueError(
                f"The stored ratios are of {key} {stored[key]!r}, this run is of {report[key]!r}; ratios are compared on "
                "one machine. Store this machine's with a run without --gate."
            )
    now = {case(row): row for row in report["rows"] if "ratio" in row}
    backends, ran = ({row["backend"] for row in rows if "backend" in row} for rows in (stored["rows"], report["rows"]))
    lines = [] if chosen else [f"{backend}: stored, but it did not run" for backend in sorted(backends - ran)]
    for row in stored["rows"]:
        if "ratio" not in row:
            continue
        other = now.get(case(row))
        if other is None:
            continue
        slack = max(LEAST, row["noise"] + other["noise"])
        if other["ratio"] < row["ratio"] * (1 - slack):
            lines.append(f"{name(row)}: {other['ratio']:.2f}x, stored {row['ratio']:.2f}x, noise {slack:.0%}")
    if not any(case(row) in now for row in stored["rows"]):
        lines.append("no case of this run is among the stored ones")
    return lines


def case(row: dict) -> tuple:
    """What is measured, without what was found."""
    kept = {k: v for k, v in row.items() if k not in MEASURED and not k.endswith(("_ms", "_mib", "_second", "_batch"))}
    return tuple(sorted(kept.items()))


def name(row: dict) -> str:
    return ", ".join(f"{key} {value}" for key, value in case(row))
