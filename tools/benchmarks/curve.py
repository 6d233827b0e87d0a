"""The paper's Figure 5: samples a second of three layers of width 128 against full attention, m k = N / 4, batch tuned per point.

The paper does not say more: here two heads, an MLP of four times the width, m = k, and the forward pass unless --train.
"""

from __future__ import annotations

import argparse
import math
import time
from functools import partial

import torch
from torch import nn

from mita import MultiHeadAttention, TokenLayout, mechanisms
from models.transformer import Transformer

from .timing import Times, ratio, side_by_side

WIDTH, DEPTH, HEADS = 128, 3, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sizes = [1 << i for i in range(10, 21)]
    parser.add_argument("--tokens", type=int, nargs="+", default=sizes, help="default: 1K to 1M by doubling")
    parser.add_argument("--train", action="store_true", help="time forward and backward")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each; default: %(default)s")
    parser.add_argument(
        "--limit", type=float, default=120, help="seconds that a sample may take to be measured; default: %(default)s"
    )


def measure(arguments: argparse.Namespace) -> list[dict]:
    rows, device = [], arguments.device
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    spent = {}  # seconds of a sample at the length before
    for N in sorted(arguments.tokens):
        m = max(1, math.isqrt(N // 4))
        options = {"softmax": {}, "mita": {"num_landmarks": m, "top_k": m}}
        # doubling N makes full attention four times slower; what would take too long is left out, never guessed
        runs = {
            name: Tuned(trunk(name, device, dtype, **o), N, arguments, dtype)
            for name, o in options.items()
            if 4 * spent.get(name, 0) <= arguments.limit
        }
        if not runs:
            break
        quick = all(run.seconds * run.batch < 5 for run in runs.values())
        times = side_by_side(
            {n: r.once for n, r in runs.items()}, arguments.repeats if quick else 1, device, warm_up=False
        )
        per_sample = {n: Times(tuple(s / runs[n].batch for s in t.seconds)) for n, t in times.items()}
        spent = {n: t.median for n, t in per_sample.items()} | {n: math.inf for n in options if n not in runs}
        row = {"N": N, "m": m, "k": m, "dtype": str(dtype)[6:], "pass": "fwd+bwd" if arguments.train else "fwd"}
        for name, t in per_sample.items():
            row |= {f"{name}_samples_per_second": 1 / t.median, f"{name}_batch": runs[name].batch}
        if len(per_sample) == 2:
            row["ratio"], row["noise"] = ratio(per_sample["softmax"], per_sample["mita"])
        rows.append(row)
        shown = ", ".join(f"{n} {1 / t.median:.3g} samples/s (batch {runs[n].batch})" for n, t in per_sample.items())
        print(f"N = {N:>8}, m = k = {m:>4}: {shown}" + (f", {row['ratio']:.2f}x" if "ratio" in row else ""), flush=True)
    return rows


def trunk(name: str, device: str, dtype: torch.dtype, **options) -> Transformer:
    """The layers with one mechanism."""
    attention = partial(MultiHeadAttention, WIDTH, HEADS, partial(mechanisms.build, name, **options))
    return Transformer(WIDTH, DEPTH, attention, 4, nn.LayerNorm).to(device, dtype)


class Tuned:
    """A model at the batch, of 1, 2, 4, ..., that gives the most samples a second; `seconds` a sample then takes."""

    def __init__(self, model: Transformer, N: int, arguments: argparse.Namespace, dtype: torch.dtype) -> None:
        self.model, self.layout, self.train = model, TokenLayout((N,)), arguments.train
        self.device, self.dtype = arguments.device, dtype
        self.batch, self.seconds = 1, math.inf
        batch = 1
        while batch <= 1024:
            try:
                seconds = self._seconds(batch)
            except torch.OutOfMemoryError:
                break
            if seconds > 0.97 * self.seconds:
                break
            self.batch, self.seconds = batch, seconds
            if seconds * batch > 2:  # the machine is busy with it
                break
            batch *= 2
        self._take(self.batch)

    def once(self) -> None:
        with torch.set_grad_enabled(self.train):
            o = self.model(self.x, self.layout)
        if self.train:
            o.sum().backward()

    def _take(self, batch: int) -> None:
        self.x = torch.randn(batch, self.layout.num_tokens, WIDTH, device=self.device, dtype=self.dtype)

    def _seconds(self, batch: int) -> float:
        self._take(batch)
        if self.device == "cuda":  # the first run of a shape compiles its kernels
            self.once()
            torch.cuda.synchronize()
        began = time.perf_counter()
        self.once()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / batch
