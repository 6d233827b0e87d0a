"""Peak memory of this process."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch

STATUS = Path("/proc/self/status")


def peak_memory_mib(device: torch.device) -> float:
    """MiB: allocated at most on a GPU; held in RAM at most on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    if STATUS.exists():  # getrusage, on Linux, starts from the peak of the process that started this one
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)
