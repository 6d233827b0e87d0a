"""Which implementations of the core exist, and for each why it cannot run a given problem."""

import importlib.util
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .native import library
from .problem import Problem


@dataclass(frozen=True)
class Backend:
    """name, one line about it, and `why_not(problem)`: the reasons, as sentences, why it cannot run; none if it can."""

    name: str
    about: str
    why_not: Callable[[Problem], list[str]]


def _reference(problem: Problem) -> list[str]:
    return []


def _eager(problem: Problem) -> list[str]:
    return []


def _triton(problem: Problem) -> list[str]:
    reasons = []
    if not _has_triton():
        reasons.append("Triton is not installed; it comes with PyTorch for Linux.")
    if problem.device == "cuda":
        capability = _capability()
        if capability < (8, 0):
            reasons.append(
                f"It needs a GPU of compute capability 8.0 or more, but this one has {capability[0]}.{capability[1]}."
            )
    elif os.environ.get("TRITON_INTERPRET") != "1":
        reasons.append(
            f"It needs a CUDA device, but the tensors are on {problem.device} (to try it there, slowly, set TRITON_INTERPRET=1)."
        )
    if problem.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        reasons.append(f"It takes bfloat16, float16 and float32, but the tensors are {problem.dtype}.")
    return reasons


@torch.compiler.assume_constant_result
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@torch.compiler.assume_constant_result
def _capability() -> tuple[int, int]:
    return torch.cuda.get_device_capability()


def _native(problem: Problem) -> list[str]:
    reasons = []
    if problem.device != "cpu":
        reasons.append(f"It runs on the processor, but the tensors are on {problem.device}.")
    if problem.dtype == torch.float64:
        reasons.append("It computes in float32, but the tensors are float64.")
    if problem.experts_per_query > 1:
        reasons.append(f"It routes a query to one expert, but experts_per_query is {problem.experts_per_query}.")
    if not (reasons or library.is_built() or library.can_be_built()):
        reasons.append(library.NO_COMPILER)
    return reasons


def _flash(problem: Problem) -> list[str]:
    reasons = []
    if problem.device != "cuda":
        reasons.append(f"It needs a GPU, but the tensors are on {problem.device}.")
    if problem.dtype not in (torch.float16, torch.bfloat16):
        reasons.append(f"It takes float16 or bfloat16, but the tensors are {problem.dtype}.")
    if problem.masked:
        reasons.append("It has no masks.")
    if problem.head_dim != problem.value_dim or problem.head_dim % 8:
        reasons.append(
            f"It needs one head dim, a multiple of 8, but it is {problem.head_dim}, and {problem.value_dim} of the values."
        )
    if importlib.util.find_spec("flash_attn") is None:
        reasons.append("flash-attn is not installed: pip install flash-attn, with a CUDA compiler.")
    return reasons


BACKENDS = {
    b.name: b
    for b in (
        Backend("native", "C++ on the processor, built by the machine's compiler (`mita.attention.native`)", _native),
        Backend("flash", "two calls of flash-attn, merged; only when asked for", _flash),
        Backend("triton", "kernels for NVIDIA GPUs", _triton),
        Backend("eager", "PyTorch on any device, memory linear in the number of tokens", _eager),
        Backend("reference", "the equations, dense; memory grows with queries x keys", _reference),
    )
}


def choose(name: str, problem: Problem) -> str:
    """The backend to run. The environment variable MITA_BACKEND stands in for `auto`.

    `auto` takes the fastest that can run: in half precision on a GPU Triton, on a processor native, once that is built.
    If it cannot, that is said once.
    Raises ValueError for an unknown name, or for a named backend that cannot run the problem, with its reasons.
    """
    said = "backend"
    if name == "auto":
        said, name = "MITA_BACKEND in the environment", os.environ.get("MITA_BACKEND") or "auto"
    if name == "auto":
        return _automatic(problem)
    if name not in BACKENDS:
        raise ValueError(f"{said} must be one of auto, {', '.join(BACKENDS)}, but it is {name!r}.")
    reasons = BACKENDS[name].why_not(problem)
    if reasons:
        raise ValueError(f"The backend {name!r} cannot run this problem: {' '.join(reasons)}")
    return name


def _automatic(problem: Problem) -> str:
    """Float32 on a GPU is left to PyTorch: there the kernels, which do not round to TF32, have no tensor cores."""
    if problem.device == "cuda" and problem.dtype in (torch.float16, torch.bfloat16):
        reasons = _triton(problem)
        if not reasons:
            return "triton"
        _say_once(f"MiTA attention runs in PyTorch on this GPU, slower than by its kernels. {' '.join(reasons)}")
    if _native(problem):
        return "eager"
    if not library.is_built():
        _say_once(
            "MiTA attention runs in PyTorch on this processor, slower than in C++. python -m mita.attention.native builds "
            "that in seconds (again after an update of its source)."
        )
        return "eager"
    return "native"


_SAID: set[str] = set()


@torch.compiler.assume_constant_result
def _say_once(text: str) -> None:
    if text not in _SAID:
        _SAID.add(text)
        warnings.warn(text, stacklevel=4)
