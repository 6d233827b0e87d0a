"""The attention layer: the only place with projections, so that every extra works with every mechanism."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from . import cost
from .layout import TokenLayout


class MultiHeadAttention(nn.Module):
    """proj(SiLU(g) * (attention(q, k, v) + dwc(v))), with q, k, v, g from one linear layer; dwc and gate are options.

    The order is: projection, qk-norm, rope, mechanism (which may pool q), head merge, depth-wise convolution, gate,
    projection. Parameter names are those of timm's `Attention`: `qkv`, `q_norm`, `k_norm`, `proj`; further `dwc`, and
    `qkvg` in place of `qkv` with a gate.

    Args:
        dim: C, a multiple of num_heads.
        num_heads: H.
        mechanism: (num_heads, head_dim) -> module, as `functools.partial(mita.mechanisms.build, "mita", top_k=25)`.
        qkv_bias: whether the first projection has a bias.
        qk_norm: head_dim -> module, applied to each head of q and of k; None for none.
        rope: module called as rope(q, k, layout) -> (q, k); None for none.
        depthwise_conv: add a 3x3 depth-wise convolution (with bias) of v on the grid tokens; needs a 2-D grid.
        gate: multiply by SiLU of a fourth projection before `proj`.
        proj_drop: dropout after `proj`.

    Raises:
        ValueError: dim is no multiple of num_heads.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mechanism: Callable[[int, int], nn.Module],
        qkv_bias: bool = True,
        qk_norm: Callable[[int], nn.Module] | None = None,
        rope: nn.Module | None = None,
        depthwise_conv: bool = False,
        gate: bool = False,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"the width {dim} does not divide into {num_heads} heads")
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.gate = gate
        if gate:
            self.qkvg = nn.Linear(dim, 4 * dim, bias=qkv_bias)
        else:
            self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.q_norm = qk_norm(self.head_dim) if qk_norm else nn.Identity()
        self.k_norm = qk_norm(self.head_dim) if qk_norm else nn.Identity()
        self.rope = rope
        self.mechanism = mechanism(num_heads, self.head_dim)
        self.dwc = nn.Conv2d(dim, dim, 3, padding=1, groups=dim) if depthwise_conv else None
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor, layout: TokenLayout, key_mask: Tensor | None = None) -> Tensor:
        """Attention over the tokens of `layout`.

        Args:
            x: (B, N, C).
            layout: where the grid sits among the N tokens.
            key_mask: (B, N) bool, True for a real token. What stands in padding, NaN included, reaches no real token's
                output and no gradient; outputs at padded positions hold nothing of use.

        Returns:
            (B, N, C).

        Raises:
            ValueError: the layout does not hold N tokens, or there is a depth-wise convolution and no 2-D grid.
        """
        B, N, C = x.shape
        layout.check(N)
        if key_mask is not None:
            x = x.masked_fill(~key_mask[:, :, None], 0)
        projected = self.qkvg(x) if self.gate else self.qkv(x)
        q, k, v, *g = projected.chunk(4 if self.gate else 3, dim=-1)
        q, k, v = (t.view(B, N, self.num_heads, self.head_dim).transpose(1, 2) for t in (q, k, v))
        q, k = self.q_norm(q), self.k_norm(k)
        if self.rope is not None:
            q, k = self.rope(q, k, layout)
        q, k = q.to(v.dtype), k.to(v.dtype)  # autocast leaves what the norms return in float32

        o = self.mechanism(q, k, v, layout, key_mask).transpose(1, 2).reshape(B, N, C)
        if self.dwc is not None:
            o = o + self._convolve(v.transpose(1, 2).reshape(B, N, C), layout, key_mask)
        if self.gate:
            o = o * F.silu(g[0])
        return self.proj_drop(self.proj(o))

    def multiply_adds(self, layout: TokenLayout) -> int:
        """Multiply-adds for one sequence of this layout (convention: `mita.cost`)."""
        N = layout.num_tokens
        total = cost.linear(self.qkvg if self.gate else self.qkv, N) + cost.linear(self.proj, N)
        if self.dwc is not None:
            total += cost.convolution(self.dwc, layout.num_grid)
        return total + self.mechanism.multiply_adds(layout)

    def _convolve(self, v: Tensor, layout: TokenLayout, key_mask: Tensor | None) -> Tensor:
        """Depth-wise convolution of v (B, N, C) on its grid tokens; zero for prefix and suffix tokens."""
        if not layout.is_2d:
            raise ValueError(f"depthwise_conv needs tokens on a 2-D grid (h, w), got the grid {layout.grid}")
        if key_mask is not None:  # as the zero padding around an image
            v = v.masked_fill(~key_mask[:, :, None], 0)
        image = v[:, layout.grid_slice].transpose(1, 2).unflatten(2, layout.grid)
        grid = self.dwc(image).flatten(2).transpose(1, 2)
        return F.pad(grid, (0, 0, layout.num_prefix, layout.num_suffix))
