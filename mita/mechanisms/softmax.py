"""Standard attention."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .. import cost
from ..layout import TokenLayout
from .base import Mechanism


class SoftmaxAttention(Mechanism):
    """softmax(q k^T / sqrt(d)) v through PyTorch, which runs FlashAttention where the device has it.

    Args:
        dropout: rate at which attention weights are dropped in training.

    Raises:
        ValueError: the rate does not lie in [0, 1).
    """

    def __init__(self, num_heads: int, head_dim: int, dropout: float = 0.0) -> None:
        super().__init__(num_heads, head_dim)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is a rate in [0, 1), got {dropout}")
        self.dropout = dropout

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout, key_mask: Tensor | None) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        if key_mask is None:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        # A sequence without any real token reads its zeroed values, so it gives 0 instead of 0/0.
        readable = key_mask | ~key_mask.any(1, keepdim=True)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=readable[:, None, None, :], dropout_p=dropout)

    def multiply_adds(self, layout: TokenLayout) -> int:
        return self.num_heads * 2 * cost.matmul(layout.num_tokens, self.head_dim, layout.num_tokens)
