"""Linformer: keys and values projected along the sequence to a fixed number of entries."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import cost
from ..layout import TokenLayout
from .base import Mechanism


class Linformer(Mechanism):
    """softmax(q (E k)^T / sqrt(d)) E v with a learned E (r, N) a head, shared by keys and values (Wang et al., 2020,
    arXiv:2006.04768).

    Shorter sequences use the first columns of E, and padding is zero before it is projected.

    Args:
        num_entries: r.
        max_length: greatest N.

    Raises:
        ValueError: in `forward`, a sequence longer than `max_length`.
    """

    def __init__(self, num_heads: int, head_dim: int, num_entries: int = 256, max_length: int = 4096) -> None:
        super().__init__(num_heads, head_dim)
        if min(num_entries, max_length) < 1:
            raise ValueError(f"num_entries and max_length are at least 1, got {num_entries} and {max_length}")
        self.projection = nn.Parameter(0.02 * torch.randn(num_heads, num_entries, max_length))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout, key_mask: Tensor | None) -> Tensor:
        N, longest = q.shape[2], self.projection.shape[2]
        if N > longest:
            raise ValueError(f"the sequence has {N} tokens, but Linformer projects at most max_length = {longest}")
        E = self.projection[:, :, :N].to(k.dtype)
        return F.scaled_dot_product_attention(q, (E @ k).to(q.dtype), (E @ v).to(q.dtype))

    def multiply_adds(self, layout: TokenLayout) -> int:
        r = self.projection.shape[1]  # two projections, scores and their sum of values
        return self.num_heads * 4 * cost.matmul(layout.num_tokens, self.head_dim, r)
