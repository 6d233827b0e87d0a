"""Names to things, with an error that helps when a name is wrong."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """One sentence for an unknown `name`: the nearest known names first, else all of them."""
    known = sorted(known)
    nearest = difflib.get_close_matches(str(name), known, n=3)
    if nearest:
        return f"unknown {kind} {name!r}; did you mean {' or '.join(nearest)}?"
    return f"unknown {kind} {name!r}; there are: {', '.join(known) or 'none'}"


def build(kind: str, registry: Mapping[str, Callable], name: str, *args: Any, **options: Any) -> Any:
    """`registry[name](*args, **options)`.

    Raises:
        ValueError: the name is not registered, or an option is not a keyword of what is registered under it.
    """
    if name not in registry:
        raise ValueError(unknown(kind, name, registry))
    parameters = list(inspect.signature(registry[name]).parameters.values())[len(args) :]
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for option in options:
        if option not in known:
            raise ValueError(unknown(f"option of {kind} {name!r}:", option, known))
    return registry[name](*args, **options)
