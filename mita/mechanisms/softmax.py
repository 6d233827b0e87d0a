"""Standard attention."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .. import cost
from ..layout import TokenLayout
from .base import Mechanism


class SoftmaxAttention(Mechanism):
    """softmax(q k^T / sqrt(d)) v through PyTorch, which runs FlashAttention where the device has it."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout, key_mask: Tensor | None) -> Tensor:
        if key_mask is None:
            return F.scaled_dot_product_attention(q, k, v)
        # A sequence without any real token reads its zeroed values, so it gives 0 instead of 0/0.
        readable = key_mask | ~key_mask.any(1, keepdim=True)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=readable[:, None, None, :])

    def multiply_adds(self, layout: TokenLayout) -> int:
        return self.num_heads * 2 * cost.matmul(layout.num_tokens, self.head_dim, layout.num_tokens)
