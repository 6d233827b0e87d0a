"""Which implementations of the core exist, and for each why it cannot run a given problem."""

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


def _native(problem: Problem) -> list[str]:
    reasons = []
    if not (library.is_built() or library.can_be_built()):
        reasons.append("It is built by a C++ compiler, and there is none: install g++ or set CXX.")
    if problem.device != "cpu":
        reasons.append(f"It runs on the processor, but the tensors are on {problem.device}.")
    if problem.dtype == torch.float64:
        reasons.append("It computes in float32, but the tensors are float64.")
    if problem.experts_per_query > 1:
        reasons.append(f"It routes a query to one expert, but experts_per_query is {problem.experts_per_query}.")
    return reasons


BACKENDS = {
    b.name: b
    for b in (
        Backend(
            "native", "C++ on the processor, built by the machine's compiler (`mita.attention.native.library`)", _native
        ),
        Backend("eager", "PyTorch on any device, memory linear in the number of tokens", _eager),
        Backend("reference", "the equations, dense; memory grows with queries x keys", _reference),
    )
}


def choose(name: str, problem: Problem) -> str:
    """The backend to run; `auto` takes the fastest that can and says once why a faster one could not.

    Raises ValueError for an unknown name, or for a named backend that cannot run the problem, with its reasons.
    """
    if name == "auto":
        return "native" if library.is_built() and not _native(problem) else "eager"
    if name not in BACKENDS:
        raise ValueError(f"backend must be one of auto, {', '.join(BACKENDS)}, but it is {name!r}.")
    reasons = BACKENDS[name].why_not(problem)
    if reasons:
        raise ValueError(f"The backend {name!r} cannot run this problem: {' '.join(reasons)}")
    return name
