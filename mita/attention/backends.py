"""Which implementations of the core exist, and for each why it cannot run a given problem."""

from collections.abc import Callable
from dataclasses import dataclass

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


BACKENDS = {
    b.name: b
    for b in (
        Backend("eager", "PyTorch on any device, memory linear in the number of tokens", _eager),
        Backend("reference", "the equations, dense; memory grows with queries x keys", _reference),
    )
}


def choose(name: str, problem: Problem) -> str:
    """The backend to run; `auto` takes the fastest that can and says once why a faster one could not.

    Raises ValueError for an unknown name, or for a named backend that cannot run the problem, with its reasons.
    """
    if name == "auto":
        return "eager"
    if name not in BACKENDS:
        raise ValueError(f"backend must be one of auto, {', '.join(BACKENDS)}, but it is {name!r}.")
    reasons = BACKENDS[name].why_not(problem)
    if reasons:
        raise ValueError(f"The backend {name!r} cannot run this problem: {' '.join(reasons)}")
    return name
