"""Where the grid sits in a token sequence."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class TokenLayout:
    """A sequence laid out as `[prefix | grid | suffix]`.

    Args:
        grid: `(n,)` for a sequence or `(h, w)` for an image, in raster order. Every side is at least 1.
        num_prefix: tokens before the grid (a class token).
        num_suffix: tokens after the grid (registers placed last).

    Raises:
        ValueError: the grid is not 1-D or 2-D, or a number is negative or not an integer.
    """

    grid: tuple[int, ...]
    num_prefix: int = 0
    num_suffix: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid", tuple(self.grid))
        if len(self.grid) not in (1, 2):
            raise ValueError(f"a token grid is (n,) or (h, w), got {self.grid}")
        if not all(isinstance(side, int) and side >= 1 for side in self.grid):
            raise ValueError(f"every side of a token grid is an integer of at least 1, got {self.grid}")
        for name in ("num_prefix", "num_suffix"):
            number = getattr(self, name)
            if not (isinstance(number, int) and number >= 0):
                raise ValueError(f"{name} is an integer of at least 0, got {number!r}")

    @property
    def is_2d(self) -> bool:
        return len(self.grid) == 2

    @property
    def num_grid(self) -> int:
        return math.prod(self.grid)

    @property
    def num_tokens(self) -> int:
        return self.num_prefix + self.num_grid + self.num_suffix

    @property
    def grid_slice(self) -> slice:
        """The grid's positions along the token dimension."""
        return slice(self.num_prefix, self.num_prefix + self.num_grid)

    def check(self, num_tokens: int) -> None:
        """Raises ValueError, naming both numbers, when a sequence of `num_tokens` does not have this layout."""
        if num_tokens != self.num_tokens:
            grid = "x".join(map(str, self.grid))
            raise ValueError(
                f"the sequence has {num_tokens} tokens, but its layout holds {self.num_tokens}: "
                f"{self.num_prefix} before the grid, {grid} = {self.num_grid} on it, {self.num_suffix} after it"
            )
