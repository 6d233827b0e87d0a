"""Measurements, each made side by side in one run and written to results/benchmarks.

attention   time of fused softmax attention over that of MiTA, each result checked against the reference first
mechanisms  the same of every mechanism, each checked against itself in float64
memory      peak memory of MiTA beyond its inputs, in units of the q tensor
growth      exponents of time and memory in N
model       items a second of whole models
lra         training steps a second of every mechanism on the shapes of Long Range Arena
curve       Figure 5: samples a second against full attention, 1K to 1M tokens

On a processor one thread is timed by the time that it computed; on a GPU, CUDA events. `--gate` compares with the stored ratios
instead of writing, and fails if a single case is slower by more than its noise.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import torch
from benchmarks import attention, curve, gate, growth, lra, mechanisms, memory, model

from mita.reporting.records import git_state

COMMANDS = {m.__name__.split(".")[-1]: m for m in (attention, mechanisms, memory, growth, model, lra, curve)}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for command, module in COMMANDS.items():
        part = commands.add_parser(command, help=module.__doc__.splitlines()[0], description=module.__doc__)
        part.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
        part.add_argument("--output", type=Path, help="default: results/benchmarks/<command>_<device>.json")
        part.set_defaults(gate=False)
        if module not in (memory, growth):  # they have no ratio
            part.add_argument("--gate", action="store_true", help="compare with that file; write nothing")
        module.add_arguments(part)
    arguments = parser.parse_args(words)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda, but torch sees no GPU here; give --device cpu")
    torch.set_num_threads(1)
    path = arguments.output or ROOT / "results/benchmarks" / f"{arguments.command}_{arguments.device}.json"
    try:
        stored = read(path) if arguments.gate else None
        report = described(arguments.command, arguments.device, COMMANDS[arguments.command].measure(arguments))
        lines = [] if stored is None else gate.slower(stored, report, bool(getattr(arguments, "backends", None)))
    except ValueError as error:
        raise SystemExit(f"benchmark: {error}") from None
    if lines:
        raise SystemExit("slower than stored, or missing:\n" + "\n".join(lines))
    if stored is not None:
        print("no case is slower than stored")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written: {path}")


def read(path: Path) -> dict:
    """A report to compare with. Raises ValueError when there is none."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"--gate compares with {path}, which is no report ({error}); write one without --gate"
        ) from None


def described(command: str, device: str, rows: list[dict]) -> dict:
    """The report: rows, and what they were measured on."""
    commit, dirty = git_state()
    return {
        "command": command, "rows": rows, "device": device,
        "machine": torch.cuda.get_device_name() if device == "cuda" else cpu_name(), "threads": 1,
        "vector_instructions": torch.backends.cpu.get_cpu_capability(), "torch": torch.__version__,
        "python": platform.python_version(), "commit": commit, "dirty": dirty,
    }  # fmt: skip


def cpu_name() -> str:
    """What the processor calls itself, where Linux tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
