"""How time and memory of MiTA grow with N at fixed m and k: the exponents that fit them."""

from __future__ import annotations

import argparse
import math
import statistics

import torch

from .attention import able, candidates
from .core import problem
from .memory import peak_in_q
from .timing import side_by_side


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, nargs="+", default=[16384, 32768, 65536, 131072, 262144])
    parser.add_argument("--landmarks", type=int, default=128, help="m = k; default: %(default)s")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each; default: %(default)s")
    parser.add_argument("--backends", nargs="+", help="default: all that can run, less reference")


def measure(arguments: argparse.Namespace) -> list[dict]:
    rows, m, device = [], arguments.landmarks, arguments.device
    for N in arguments.tokens:
        tensors = problem(N, 1, 64, torch.float32, device)
        backends = arguments.backends or able(tensors, m)
        for backward in (False, True):
            runs = candidates(tensors, m, backends, backward)
            del runs["softmax"]
            for backend, times in side_by_side(runs, arguments.repeats, device).items():
                peak = peak_in_q(N, 1, 64, m, backward, backend, "float32", device)
                passes = "fwd+bwd" if backward else "fwd"
                rows.append({
                    "backend": backend, "N": N, "m": m, "k": m, "pass": passes,
                    "mita_ms": 1e3 * times.median, "peak_mib": peak * tensors[0].nbytes / 2**20,
                })  # fmt: skip
                print(
                    f"{backend:>8} {N:>7} {passes:>8} {rows[-1]['mita_ms']:>9.1f} ms {rows[-1]['peak_mib']:>8.1f} MiB",
                    flush=True,
                )
    for backend, passes in sorted({(row["backend"], row["pass"]) for row in rows}):
        some = [row for row in rows if (row["backend"], row["pass"]) == (backend, passes)]
        time, memory = (exponent(some, key) for key in ("mita_ms", "peak_mib"))
        print(f"{backend}, {passes}: time grows as N^{time:.3f}, memory as N^{memory:.3f}")
    return rows


def exponent(rows: list[dict], key: str) -> float:
    """Slope of log(key) over log(N), by least squares; nan when fewer than two rows have anything to measure."""
    points = [(math.log(row["N"]), math.log(row[key])) for row in rows if row[key] > 0]
    return statistics.linear_regression(*zip(*points)).slope if len(points) > 1 else math.nan
