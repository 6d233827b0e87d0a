"""Peak memory of MiTA beyond its inputs, in units of the q tensor; gradients and the output count in."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import torch

from .core import mita, problem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, default in (("tokens", 65536), ("heads", 2), ("dim", 64), ("landmarks", 128)):
        parser.add_argument(f"--{name}", type=int, default=default, help="default: %(default)s")
    parser.add_argument("--backends", nargs="+", default=["auto"], help="default: auto")


def measure(arguments: argparse.Namespace) -> list[dict]:
    rows = []
    for backend in arguments.backends:
        for backward in (False, True):
            sizes = (arguments.tokens, arguments.heads, arguments.dim, arguments.landmarks)
            peak = peak_in_q(*sizes, backward, backend, "float32", arguments.device)
            rows.append({
                "backend": backend, "N": arguments.tokens, "pass": "fwd+bwd" if backward else "fwd", "peak_in_q": peak
            })  # fmt: skip
            print(f"{backend}, N = {arguments.tokens}, {rows[-1]['pass']}: {peak:.2f} q tensors")
    return rows


def peak_in_q(N: int, H: int, d: int, m: int, backward: bool, backend: str, dtype: str, device: str) -> float:
    """Peak beyond the inputs in units of q; on a processor in a fresh process."""
    if device == "cuda":
        return _peak(N, H, d, m, backward, backend, dtype, device)
    call = f"_peak({N}, {H}, {d}, {m}, {backward}, {backend!r}, {dtype!r}, {device!r})"
    code = f"import sys; sys.path.insert(0, '..'); from benchmarks.memory import _peak; print({call})"
    tools = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=tools, capture_output=True, text=True, check=True)
    return float(done.stdout)


def _peak(N: int, H: int, d: int, m: int, backward: bool, backend: str, dtype: str, device: str) -> float:
    torch.set_num_threads(1)
    for size in (min(64, N), N):  # the small run loads what is needed
        leaves = [t.requires_grad_(backward) for t in problem(size, H, d, getattr(torch, dtype), device)]
        before = _high_water(device)
        o = mita(*leaves, min(m, size), min(m, size), backend=backend)
        if backward:
            torch.autograd.grad(o.sum(), leaves)
    return (_high_water(device) - before) / (leaves[0].numel() * leaves[0].element_size())


def _high_water(device: str) -> int:
    """Bytes that were in use at most, on a GPU since the last call."""
    if device == "cuda":
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return peak
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
