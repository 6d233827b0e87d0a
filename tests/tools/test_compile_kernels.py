"""Kernels compiled for GPUs that are not here: no spilled register, memory within bounds, tensor cores where matrices are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("target", "problems"), [("80", ["long"]), ("89", ["short"]), ("90", ["long"])])
def test_kernels_of_a_vision_transformer_and_of_a_long_sequence(target, problems):
    """The rest is in results/benchmarks/kernels.json, written by the same tool."""
    pytest.importorskip("triton")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "tools/compile_kernels.py", "--check", "--dtypes", "bfloat16", "--dims", "64"]
    done = subprocess.run(
        [*command, "--targets", target, "--problems", *problems],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert ", 0 with faults" in done.stdout
    kernels = {line.split()[0] for line in done.stdout.splitlines()[1:-1]}
    expected = (
        {"short_kernel"}
        if problems == ["short"]
        else {"probe_kernel", "attend_kernel", "keys_kernel", "queries_kernel"}
    )
    assert expected <= kernels
