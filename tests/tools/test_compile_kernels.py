"""Kernels compiled for GPUs that are not here: no spilled register, memory within bounds, tensor cores where matrices are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def compile_kernels(*arguments: str) -> set[str]:
    """Names of the kernels that the tool has compiled in bfloat16, none of them with a fault."""
    pytest.importorskip("triton")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "tools/compile_kernels.py", "--check", "--dtypes", "bfloat16", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert ", 0 with faults" in done.stdout
    return {line.split()[0] for line in done.stdout.splitlines()[1:-1]}


@pytest.mark.parametrize(("target", "problem"), [("80", "long"), ("89", "short"), ("90", "long")])
def test_kernels_of_a_vision_transformer_and_of_a_long_sequence(target, problem):
    """The rest is in results/benchmarks/kernels.json, written by the same tool."""
    kernels = compile_kernels("--dims", "64", "--targets", target, "--problems", problem)
    long = {"probe_kernel", "attend_kernel", "keys_kernel", "queries_kernel"}
    assert ({"short_kernel"} if problem == "short" else long) <= kernels


def test_where_registers_and_shared_memory_are_scarcest():
    """Narrow heads in the short kernel, and wide heads with many queries an expert, on the GPU with the least memory."""
    problems = ["short", "longest"]
    kernels = ["attend_kernel", "short_kernel"]
    found = compile_kernels("--dims", "32", "256", "--targets", "89", "--problems", *problems, "--kernels", *kernels)
    assert found == set(kernels)


def test_the_record_is_whole_and_without_faults():
    """A record of only some dims or targets, or with faults, must not be kept."""
    report = json.loads((ROOT / "results/benchmarks/kernels.json").read_text())
    rows = [dict(zip(report["columns"], row, strict=True)) for row in report["rows"]]
    assert not report["dirty"] and not any(row["faults"] for row in rows)
    assert {row["d"] for row in rows} == {16, 32, 64, 128, 256}
    assert all(row["targets"].keys() == {"sm_80", "sm_89", "sm_90"} for row in rows)
