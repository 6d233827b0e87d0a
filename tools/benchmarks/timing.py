"""Timing side by side: candidates take turns, so that what the machine does meanwhile hits them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Times:
    """Seconds of each repeat of one candidate. On a processor the time that one thread computed, on a GPU that between events."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def side_by_side(
    candidates: dict[str, Callable[[], object]], repeats: int, device: str, warm_up: bool = True
) -> dict[str, Times]:
    """Run the candidates in turn, `repeats` times each after one untimed turn."""
    seconds = {name: [] for name in candidates}
    for turn in range(repeats + warm_up):
        for name, run in candidates.items():
            elapsed = _cuda_seconds(run) if device == "cuda" else _thread_seconds(run)
            if turn >= warm_up:
                seconds[name].append(elapsed)
    return {name: Times(tuple(values)) for name, values in seconds.items()}


def ratio(base: Times, other: Times) -> tuple[float, float]:
    """How many times faster `other` is by the medians, and its noise: half the relative spread of the middle half of turns."""
    value = base.median / other.median
    by_turn = sorted(b / o for b, o in zip(base.seconds, other.seconds, strict=True))
    if len(by_turn) < 3:
        return value, 0.15  # too few to tell; what repeated runs of one differ by
    low, _, high = statistics.quantiles(by_turn, n=4, method="inclusive")
    return value, (high - low) / 2 / value


def _thread_seconds(run: Callable[[], object]) -> float:
    began = time.thread_time()
    run()
    return time.thread_time() - began


def _cuda_seconds(run: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3
