"""MiTA: landmarks averaged from the queries, then the attention core."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from .. import cost
from ..attention import mita_attention
from ..attention.backends import BACKENDS
from ..landmarks import average_pool
from ..layout import TokenLayout
from .base import Mechanism


class MiTA(Mechanism):
    """Mixture-of-top-k attention (arXiv:2602.01219) with average-pooled landmarks.

    Args:
        num_landmarks: m. On a 2-D grid m is a square, or `landmark_grid` says its two sides.
        top_k: k, entries per expert.
        experts_per_query: s, between 1 and m.
        branches: "both", "route" (experts only) or "compress" (landmarks only).
        landmark_scale: "single" as in the paper, or "double": the shared branch's landmark keys are multiplied by
            d ** -0.5 once more, as in the released code.
        landmark_tokens: what landmarks are pooled from: "grid" as in the paper, or "first": as many tokens as the grid
            has, from the first of the sequence on, class token included, as in the released DeiT and segmenter.
        landmark_grid: (a, b), replaces `num_landmarks` by a * b.
        backend: see `mita.mita_attention`.

    Raises:
        ValueError: an option out of range.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_landmarks: int = 25,
        top_k: int = 25,
        experts_per_query: int = 1,
        branches: str = "both",
        landmark_scale: str = "single",
        landmark_tokens: str = "grid",
        landmark_grid: Sequence[int] | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(num_heads, head_dim)
        if landmark_grid is not None:
            if len(landmark_grid) != 2:
                raise ValueError(f"landmark_grid is (a, b), got {tuple(landmark_grid)}; on sequences use num_landmarks")
            num_landmarks = math.prod(landmark_grid)
        if num_landmarks < 1 or top_k < 1:
            raise ValueError(f"num_landmarks and top_k are at least 1, got {num_landmarks} and {top_k}")
        if not 1 <= experts_per_query <= num_landmarks:
            raise ValueError(f"experts_per_query is between 1 and {num_landmarks} (landmarks), got {experts_per_query}")
        for option, value, choices in (
            ("branches", branches, ("both", "route", "compress")),
            ("landmark_scale", landmark_scale, ("single", "double")),
            ("landmark_tokens", landmark_tokens, ("grid", "first")),
            ("backend", backend, ("auto", *BACKENDS)),
        ):
            if value not in choices:
                raise ValueError(f"{option} is one of {', '.join(choices)}, got {value!r}")
        self.num_landmarks = num_landmarks
        self.landmark_grid = None if landmark_grid is None else tuple(landmark_grid)
        self.top_k = top_k
        self.experts_per_query = experts_per_query
        self.branches = branches
        self.landmark_key_scale = head_dim**-0.5 if landmark_scale == "double" else 1.0
        self.landmark_tokens = landmark_tokens
        self.backend = backend

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout, key_mask: Tensor | None) -> Tensor:
        if self.landmark_tokens == "first":
            pooled = replace(layout, num_prefix=0, num_suffix=layout.num_prefix + layout.num_suffix)
        else:
            pooled = layout
        landmarks, landmark_mask = average_pool(q, pooled, self._landmark_grid(layout), key_mask)
        return mita_attention(
            q, k, v, landmarks,
            top_k=self.top_k, experts_per_query=self.experts_per_query, branches=self.branches,
            landmark_key_scale=self.landmark_key_scale,
            key_mask=key_mask, landmark_mask=landmark_mask, backend=self.backend,
        )  # fmt: skip

    def multiply_adds(self, layout: TokenLayout) -> int:
        """(4m + 2ks) N d a head with both branches: landmark-key and query-landmark scores serve both of them."""
        self._landmark_grid(layout)  # refuses what the forward would, before anything is trained
        N, m = layout.num_tokens, self.num_landmarks
        entries = 2 * m  # landmarks @ k^T and q @ landmarks^T
        if self.branches != "route":
            entries += 2 * m  # landmark values, and their part of the output
        if self.branches != "compress":
            entries += 2 * min(self.top_k, N) * self.experts_per_query
        return self.num_heads * cost.matmul(N, self.head_dim, entries)

    def _landmark_grid(self, layout: TokenLayout) -> tuple[int, ...]:
        if not layout.is_2d:
            return (self.num_landmarks,)
        if self.landmark_grid is not None:
            return self.landmark_grid
        side = math.isqrt(self.num_landmarks)
        if side * side != self.num_landmarks:
            raise ValueError(
                f"num_landmarks = {self.num_landmarks} is no square, so it says no grid of landmarks over a "
                f"{layout.grid[0]}x{layout.grid[1]} grid of tokens; give landmark_grid=(a, b)"
            )
        return (side, side)

    def extra_repr(self) -> str:
        return f"m={self.num_landmarks}, k={self.top_k}, s={self.experts_per_query}, branches={self.branches}"
