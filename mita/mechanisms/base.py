"""What every attention mechanism has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from ..layout import TokenLayout


class Mechanism(nn.Module, ABC):
    """Attention between given heads: (q, k, v) of shape (B, H, N, d) to o of the same shape. Not causal.

    A mechanism implements `attend` and `multiply_adds`. It has no projections: those are `MultiHeadAttention`'s.
    """

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout, key_mask: Tensor | None = None) -> Tensor:
        """Attention of the tokens of `layout`.

        Args:
            q, k, v: (B, H, N, d), any floating type.
            layout: where the grid sits among the N tokens.
            key_mask: (B, N) bool, True for a real token. What stands in padding, NaN included, reaches no real token.

        Returns:
            (B, H, N, d); rows of padded positions hold nothing of use.

        Raises:
            ValueError: the layout does not hold N tokens.
        """
        layout.check(q.shape[2])
        if key_mask is not None:
            pads = ~key_mask[:, None, :, None]
            q, k, v = (t.masked_fill(pads, 0) for t in (q, k, v))
        return self.attend(q, k, v, layout, key_mask)

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout, key_mask: Tensor | None) -> Tensor:
        """As `forward`, after the checks and with q, k and v zero at padded positions."""

    @abstractmethod
    def multiply_adds(self, layout: TokenLayout) -> int:
        """Multiply-adds of all heads for one sequence of this layout (convention: `mita.cost`)."""
