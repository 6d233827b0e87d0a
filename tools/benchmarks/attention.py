"""Time of fused softmax attention over that of MiTA: N, m = k, type, pass and backend, with the length from which MiTA wins."""

from __future__ import annotations

import argparse
import itertools
import math

import torch
import torch.nn.functional as F

from mita.attention.backends import BACKENDS
from mita.attention.problem import Problem

from .core import checked, mita, problem
from .memory import peak_in_q
from .timing import ratio, side_by_side

CASES = ["197/25", "400/25", "1024/49", "1024/128", "2048/128", "4096/128", "16384/128", "65536/128"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cases", nargs="+", metavar="N/m", default=CASES, help="tokens and m = k; default: %(default)s"
    )
    parser.add_argument("--repeats", type=int, default=7, help="turns of each up to N = 4096; default: %(default)s")
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16", "float16"), default=["float32"])
    parser.add_argument(
        "--backends", nargs="+", choices=sorted(BACKENDS), help="default: all that can run, less reference"
    )
    parser.add_argument("--heads", type=int, help="batch times heads; default: 96 on a GPU, few on a processor")


def measure(arguments: argparse.Namespace) -> list[dict]:
    device, rows = arguments.device, []
    print(
        f"{'backend':>8} {'type':>9} {'N':>7} {'m=k':>5} {'pass':>8} {'softmax ms':>11} {'MiTA ms':>9} {'ratio':>7} {'memory':>7}"
    )
    for dtype, case in itertools.product(arguments.dtypes, arguments.cases):
        N, m = map(int, case.split("/"))
        heads = arguments.heads or (96 if device == "cuda" else max(1, min(4, 16384 // N)))
        tensors = problem(N, heads, 64, getattr(torch, dtype), device)
        backends = arguments.backends or able(tensors, m)
        errors = {backend: checked(*tensors, m, m, backend) for backend in backends}
        for backward in (False, True):
            repeats = arguments.repeats if N <= 4096 else 3 if N <= 16384 or device == "cuda" else 1
            # where one turn takes minutes there is none to spare for warming up
            times = side_by_side(
                candidates(tensors, m, backends, backward), repeats, device, N <= 16384 or device == "cuda"
            )
            for backend in backends:
                speed, noise = ratio(times["softmax"], times[backend])
                row = {
                    "backend": backend, "dtype": dtype, "N": N, "m": m, "k": m, "heads": heads,
                    "pass": "fwd+bwd" if backward else "fwd", "error": errors[backend],
                    "softmax_ms": 1e3 * times["softmax"].median, "mita_ms": 1e3 * times[backend].median,
                    "ratio": speed, "noise": noise, "peak_in_q": peak_in_q(N, heads, 64, m, backward, backend, dtype, device),
                }  # fmt: skip
                rows.append(row)
                print(
                    f"{backend:>8} {dtype:>9} {N:>7} {m:>5} {row['pass']:>8} {row['softmax_ms']:>11.2f} {row['mita_ms']:>9.2f} "
                    f"{speed:>6.2f}x {row['peak_in_q']:>5.1f} q",
                    flush=True,
                )
    for line in break_even(rows):
        print(line)
    return rows


def able(tensors: list[torch.Tensor], m: int) -> list[str]:
    """The backends that can run it, without the dense reference."""
    q, k, v = tensors
    options = {"top_k": m, "experts_per_query": 1, "branches": "both", "key_mask": None, "landmark_mask": None}
    asked = Problem.of(q, k, v, q[:, :, :m], **options)
    return [
        name for name, backend in BACKENDS.items() if name not in ("reference", "flash") and not backend.why_not(asked)
    ]


def candidates(tensors: list[torch.Tensor], m: int, backends: list[str], backward: bool) -> dict:
    """What takes turns: softmax attention and MiTA in every backend."""
    q, k, v = leaves = [t.requires_grad_(backward) for t in tensors]

    def with_gradients(attend):
        return lambda: torch.autograd.grad(attend().sum(), leaves) if backward else attend()

    attend = {"softmax": lambda: F.scaled_dot_product_attention(q, k, v)}
    attend |= {backend: lambda b=backend: mita(q, k, v, m, m, backend=b) for backend in backends}
    return {name: with_gradients(function) for name, function in attend.items()}


def break_even(rows: list[dict]) -> list[str]:
    """For each m: between which lengths MiTA overtakes softmax attention, the length itself by the line between the two."""
    lines, groups = [], {}
    for row in rows:
        groups.setdefault((row["backend"], row["dtype"], row["pass"], row["m"]), []).append(row)
    for (backend, dtype, passes, m), group in groups.items():
        group.sort(key=lambda row: row["N"])
        where = f"{backend}, {dtype}, {passes}, m = k = {m}"
        if group[0]["ratio"] >= 1:
            lines.append(f"{where}: faster from N = {group[0]['N']}, the shortest measured")
        for a, b in zip(group, group[1:]):
            if a["ratio"] < 1 <= b["ratio"]:
                share = -math.log(a["ratio"]) / (math.log(b["ratio"]) - math.log(a["ratio"]))
                lines.append(f"{where}: faster from N = {a['N'] * (b['N'] / a['N']) ** share:.0f} on")
        if group[-1]["ratio"] < 1:
            lines.append(f"{where}: slower up to N = {group[-1]['N']}, the longest measured")
    return lines
