"""Builds and loads `kernels.cpp`: plain C++ behind a C interface, so it needs a compiler, but no headers of PyTorch.

`python -m mita.attention.native` builds it (seconds). Naming the backend builds it too; `auto` only uses what is built.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("kernels.cpp")
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-std=c++17", "-shared", "-fPIC")


NO_COMPILER = "It is built by a C++ compiler, and there is none: install g++, or set CXX to one."


def compiler() -> list[str] | None:
    """The C++ compiler: $CXX (which may have arguments) if set, otherwise g++ or clang++; None where there is none."""
    named = shlex.split(os.environ.get("CXX", ""))
    for command in [named] if named else [["g++"], ["clang++"]]:
        if shutil.which(command[0]):
            return command
    return None


@functools.cache
def path() -> Path:
    """Where the built library lies: $XDG_CACHE_HOME/mita, under a name that changes with source, flags and processor.

    Raises RuntimeError where neither XDG_CACHE_HOME nor a home folder is known.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = SOURCE.read_bytes() + " ".join(FLAGS).encode() + _processor().encode()
    return cache / "mita" / f"kernels-{hashlib.sha256(key).hexdigest()[:16]}.so"


@torch.compiler.assume_constant_result  # so that a compiled model may ask
def is_built() -> bool:
    """Whether the library is there and can be loaded: a home folder may be shared with a machine that lacks its OpenMP."""
    try:
        return path().exists() and bool(_loaded())
    except (OSError, RuntimeError):
        return False


@torch.compiler.assume_constant_result
def can_be_built() -> bool:
    return compiler() is not None


def build() -> Path:
    """Compile it unless that is done.

    Raises ValueError when there is no compiler or no place for it, with what the compiler says, or when the result cannot
    be loaded.
    """
    if is_built():
        return path()
    command = compiler()
    if command is None:
        raise ValueError(f"The native backend cannot be built. {NO_COMPILER}")
    try:
        folder = path().parent
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:  # renamed when whole: processes may build at once
            made = Path(scratch) / "kernels.so"
            done = subprocess.run([*command, *FLAGS, str(SOURCE), "-o", str(made)], capture_output=True, text=True)
            if done.returncode:
                raise ValueError(
                    f"{shlex.join(command)} could not build the native backend: {done.stderr.strip()[-800:]}"
                )
            made.rename(path())
    except (OSError, RuntimeError) as error:
        raise ValueError(
            f"The native backend has no place: {error}. Set XDG_CACHE_HOME to a folder that can be written."
        ) from None
    try:
        _loaded()
    except OSError as error:
        raise ValueError(f"The native backend was built, but cannot be loaded: {error}") from None
    return path()


@functools.cache
def load() -> ctypes.CDLL:
    """The library, built if need be. Raises ValueError as `build`."""
    build()
    return _loaded()


@functools.cache  # of successes only
def _loaded() -> ctypes.CDLL:
    return ctypes.CDLL(str(path()))


def _processor() -> str:
    """What -march=native depends on; the cache may be on a disk that many machines share."""
    info = Path("/proc/cpuinfo")
    flags = [x for x in info.read_text().splitlines() if x.startswith(("flags", "Features"))] if info.exists() else []
    return platform.machine() + platform.processor() + (flags[0] if flags else "")
