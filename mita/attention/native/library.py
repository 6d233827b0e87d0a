"""Builds and loads `kernels.cpp`: plain C++ behind a C interface, so it needs a compiler, but no headers of PyTorch.

`python -m mita.attention.native` builds it (seconds). Naming the backend builds it too; `auto` only uses what is built.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("kernels.cpp")
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-std=c++17", "-shared", "-fPIC")


def compiler() -> str | None:
    """The C++ compiler: $CXX, or g++, or clang++."""
    return next(
        (path for name in (os.environ.get("CXX"), "g++", "clang++") if name and (path := shutil.which(name))), None
    )


@functools.cache
def path() -> Path:
    """Where the built library lies: $XDG_CACHE_HOME/mita, under a name that changes with source, flags and processor."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = SOURCE.read_bytes() + " ".join(FLAGS).encode() + _processor().encode()
    return cache / "mita" / f"kernels-{hashlib.sha256(key).hexdigest()[:16]}.so"


@torch.compiler.assume_constant_result  # so that a compiled model may ask
def is_built() -> bool:
    return path().exists()


@torch.compiler.assume_constant_result
def can_be_built() -> bool:
    return compiler() is not None


def build() -> Path:
    """Compile it unless that is done. Raises ValueError when there is no compiler, or with what the compiler says."""
    if is_built():
        return path()
    cxx = compiler()
    if cxx is None:
        raise ValueError("The native backend is built by a C++ compiler, and there is none: install g++ or set CXX.")
    path().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path().parent) as folder:  # renamed when whole: processes may build at once
        made = Path(folder) / "kernels.so"
        done = subprocess.run([cxx, *FLAGS, str(SOURCE), "-o", str(made)], capture_output=True, text=True)
        if done.returncode:
            raise ValueError(f"{cxx} could not build the native backend: {done.stderr.strip()[-800:]}")
        made.rename(path())
    return path()


@functools.cache
def load() -> ctypes.CDLL:
    """The library, built if need be. Raises ValueError as `build`."""
    return ctypes.CDLL(str(build()))


def _processor() -> str:
    """What -march=native depends on; the cache may be on a disk that many machines share."""
    info = Path("/proc/cpuinfo")
    flags = [x for x in info.read_text().splitlines() if x.startswith(("flags", "Features"))] if info.exists() else []
    return platform.machine() + platform.processor() + (flags[0] if flags else "")
