"""Mixture of block attention: every query reads its own block of keys and those whose mean key suits it best."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import cost
from ..attention.precision import no_autocast
from ..attention.routed import routed_attention
from ..attention.selection import best_experts
from ..layout import TokenLayout
from .base import Mechanism


class MoBA(Mechanism):
    """softmax(q k^T / sqrt(d)) v over the keys of `top_blocks` blocks of the sequence (Lu et al., 2025, arXiv:2502.13189), not
    causal.

    The score of a block is q times the mean of its real keys; a query's own block is always among the chosen ones, as in the
    original. Of equal scores the first block is taken. The choice carries no gradient.

    Args:
        block_size: tokens of a block; the last may be shorter.
        top_blocks: blocks a query reads, its own included.

    Raises:
        ValueError: an option below 1.
    """

    def __init__(self, num_heads: int, head_dim: int, block_size: int = 64, top_blocks: int = 4) -> None:
        super().__init__(num_heads, head_dim)
        if min(block_size, top_blocks) < 1:
            raise ValueError(f"block_size and top_blocks are at least 1, got {block_size} and {top_blocks}")
        self.block_size, self.top_blocks = block_size, top_blocks

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout, key_mask: Tensor | None) -> Tensor:
        B, H, N, _ = q.shape
        position = torch.arange(N, device=q.device)
        real = torch.ones(B, N, dtype=torch.bool, device=q.device) if key_mask is None else key_mask
        blocks = -(-N // self.block_size)
        fill = blocks * self.block_size - N
        members = F.pad(torch.where(real, position, -1), (0, fill), value=-1).view(B, blocks, self.block_size)
        with torch.no_grad(), no_autocast(q.device.type):
            wide = torch.promote_types(q.dtype, torch.float32)
            count = (members >= 0).sum(-1)
            sums = F.pad(k.to(wide), (0, 0, 0, fill)).unflatten(2, (blocks, self.block_size)).sum(3)
            means = sums / count.clamp(min=1)[:, None, :, None]
            gate = (q.to(wide) @ means.mT).masked_fill((count == 0)[:, None, None, :], -torch.inf)
            own = position // self.block_size == torch.arange(blocks, device=q.device)[:, None]
            gate = gate.masked_fill(own.T & (count > 0)[:, None, None, :], torch.inf)
            experts = best_experts(gate, min(self.top_blocks, blocks))
        return routed_attention(q, k, v, members[:, None].expand(-1, H, -1, -1), experts)

    def multiply_adds(self, layout: TokenLayout) -> int:
        N = layout.num_tokens
        blocks = -(-N // self.block_size)
        read = min(self.top_blocks * self.block_size, N)
        return self.num_heads * cost.matmul(N, self.head_dim, blocks + 2 * read)
