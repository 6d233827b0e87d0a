"""Compile every kernel that the Triton backend launches, for GPUs that need not be here, and look at the machine code.

A kernel fails if it spills registers, needs more shared memory than a program can have, or multiplies matrices of a half type
without tensor cores. Writes results/benchmarks/kernels.json unless told to --check only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
os.environ.pop("TRITON_INTERPRET", None)  # before triton is imported: kernels are compiled here, not interpreted

import torch

from mita.attention.triton import op
from mita.attention.triton.ahead_of_time import SHARED_MEMORY, compile_for, faults, record
from mita.reporting.records import git_state

PROBLEMS = {  # what decides which kernels are launched: N, m = k, experts a query, branches, masks
    "short": (197, 25, 1, "both", False),
    "short, masked": (197, 25, 1, "both", True),
    "long": (4096, 128, 1, "both", False),
    "longest": (1 << 18, 128, 1, "both", False),
    "masked, two experts": (4096, 128, 2, "both", True),
    "route": (4096, 128, 1, "route", False),
    "route, masked, two experts": (4096, 128, 2, "route", True),
    "compress": (4096, 128, 1, "compress", False),
    "compress, masked": (4096, 128, 1, "compress", True),
}
BATCH, HEADS = 16, 6
NUMBERS = ["registers", "spill_stores", "shared", "tensor_core"]  # of each target
COLUMNS = ["kernel", "dtype", "d", "problem", "constants", "targets", "faults"]


def step(name: str, dtype: torch.dtype, d: int) -> None:
    """Forward and backward of one layer on tensors without data."""
    N, m, s, branches, masked = PROBLEMS[name]
    q, k, v, grad_o = (torch.empty(BATCH, HEADS, N, d, dtype=dtype) for _ in range(4))
    landmarks = torch.empty(BATCH, HEADS, m, d, dtype=dtype)
    masks = [torch.empty(BATCH, n, dtype=torch.bool) if masked else None for n in (N, m)]
    options = d**-0.5, 1.0, branches
    top_k, experts = (0, 0) if branches == "compress" else (m, s)
    outputs = op.forward(q, k, v, landmarks, *masks, top_k, experts, *options)
    op.backward(grad_o, q, k, v, landmarks, *masks, *outputs, *options)


def compiled(arguments: argparse.Namespace) -> list[list]:
    """A row of COLUMNS for each different launch, printed target by target as it comes."""
    print(
        f"{'kernel':18} {'dtype':8} {'target':6} {'registers':>9} {'spills':>6} {'shared':>7} {'tensor cores':>12}  constants"
    )
    rows, seen = [], set()
    for dtype in arguments.dtypes:
        for d in arguments.dims:
            for name in arguments.problems:
                for launch in record(lambda: step(name, getattr(torch, dtype), d)):  # noqa: B023
                    if launch in seen or arguments.kernels and launch.name not in arguments.kernels:
                        continue
                    seen.add(launch)
                    results, wrong = {}, {}
                    for target in arguments.targets:
                        result = compile_for(launch, target)
                        results[f"sm_{target}"] = [getattr(result, number) for number in NUMBERS]
                        found = faults(result, target, half=dtype != "float32")
                        if found:
                            wrong[f"sm_{target}"] = found
                        print(
                            f"{launch.name:18} {dtype:8} sm_{target:<3} {result.registers:>9} {result.spill_stores:>6} "
                            f"{result.shared:>7} {result.tensor_core:>12}  {launch.describe()} {' '.join(found).upper()}",
                            flush=True,
                        )
                    rows.append([launch.name, dtype, d, name, launch.describe(), results, wrong])
    return rows


def text(report: dict) -> str:
    """JSON with a line for each key, and one for each of the rows."""
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in report.items() if key != "rows"]
    rows = ",\n".join(f"  {json.dumps(row)}" for row in report["rows"])
    return "{\n" + ",\n".join([*lines, f' "rows": [\n{rows}\n ]']) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, values in (
        ("dtypes", ["bfloat16", "float16", "float32"]), ("dims", [16, 32, 64, 128, 256]),
        ("targets", list(SHARED_MEMORY)), ("problems", list(PROBLEMS)),
    ):  # fmt: skip
        parser.add_argument(
            f"--{name}", nargs="+", type=type(values[0]), choices=values, default=values, metavar=name[:-1].upper(),
            help=f"of {', '.join(repr(value) for value in values)}; default: all",
        )  # fmt: skip
    parser.add_argument("--kernels", nargs="+", help="names of the kernels to compile; default: all; only with --check")
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    if arguments.kernels and not arguments.check:
        parser.error("--kernels leaves kernels out, so the record would not be whole: add --check.")
    rows = compiled(arguments)
    failed = sum(len(row[-1]) for row in rows)
    print(f"{len(rows) * len(arguments.targets)} compiled, {failed} with faults")
    if not arguments.check:
        commit, dirty = git_state()
        report = {
            "torch": torch.__version__, "triton": version("triton"), "commit": commit, "dirty": dirty,
            "columns": COLUMNS, "numbers of a target": NUMBERS, "rows": rows,
        }  # fmt: skip
        path = ROOT / "results/benchmarks/kernels.json"
        path.write_text(text(report))
        print(f"written: {path.relative_to(ROOT)}")
    sys.exit(bool(failed) or not rows)


if __name__ == "__main__":
    main()
