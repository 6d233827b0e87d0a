"""Rotary position embedding of the tokens on a grid, and of the registers after it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .layout import TokenLayout


class RotaryEmbedding(nn.Module):
    """Turns q and k by angles that grow with the position on the grid (RoFormer, arXiv:2104.09864; axial, as in ViT-5).

    The head dims are shared out evenly among the sides of the grid: rows first, then columns. Of the p dims of a side,
    the pair (2i, 2i + 1) turns by position * theta ** (-2i / p). The g positions of a side are 0, span / g, 2 span / g, ...:
    they stay below `span` on any grid, so that images of another size are interpolated, not extrapolated.

    Tokens after the grid (registers) lie on a grid of their own with as many sides, all equal, from 0 to `register_span`.
    Tokens before it (a class token) are not turned. Nothing is learnt or stored, so one module serves all layers.

    Args:
        span, theta: of the grid.
        register_span, register_theta: of the tokens after it.
    """

    def __init__(
        self, span: float = 14.0, theta: float = 1e4, register_span: float = 2.0, register_theta: float = 100.0
    ) -> None:
        super().__init__()
        self.span, self.theta = span, theta
        self.register_span, self.register_theta = register_span, register_theta

    def forward(self, q: Tensor, k: Tensor, layout: TokenLayout) -> tuple[Tensor, Tensor]:
        """q, k (B, H, N, d) -> the same, turned, in their own types; half types are turned in float32.

        Raises:
            ValueError: see `check`, or the layout does not hold N tokens.
        """
        layout.check(q.shape[2])
        self.check(q.shape[-1], layout)
        angles = self.angles(q.shape[-1], layout, torch.promote_types(q.dtype, torch.float32), q.device)
        cos, sin = angles.cos(), angles.sin()
        return turn(q, cos, sin), turn(k, cos, sin)

    def angles(self, head_dim: int, layout: TokenLayout, dtype: torch.dtype, device: torch.device) -> Tensor:
        """(N, d / 2) angles in radians, one for each pair of dims of each token."""
        still = torch.zeros(layout.num_prefix, head_dim // 2, dtype=dtype, device=device)
        parts = [still, _angles(layout.grid, head_dim, self.span, self.theta, dtype, device)]
        if layout.num_suffix:
            grid = _register_grid(layout)
            parts.append(_angles(grid, head_dim, self.register_span, self.register_theta, dtype, device))
        return torch.cat(parts)

    def check(self, head_dim: int, layout: TokenLayout) -> None:
        """Raises ValueError when the head dim does not divide into pairs for each side, or the registers into a grid."""
        sides = len(layout.grid)
        if head_dim % (2 * sides):
            raise ValueError(
                f"a rotary embedding on a {sides}-D grid needs a head dim that is a multiple of {2 * sides}, got {head_dim}"
            )
        _register_grid(layout)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (..., N, d) with each pair of dims turned by its angle; cos, sin (N, d / 2). In x's type."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2).to(x.dtype)


def _angles(
    grid: tuple[int, ...], head_dim: int, span: float, theta: float, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """(number of tokens, d / 2), tokens in raster order."""
    dims = head_dim // len(grid)
    frequencies = theta ** (-torch.arange(0, dims, 2, dtype=dtype, device=device) / dims)
    positions = [torch.arange(side, dtype=dtype, device=device) / side * span for side in grid]
    coordinates = torch.stack(torch.meshgrid(*positions, indexing="ij"), -1)
    return (coordinates[..., None] * frequencies).reshape(-1, head_dim // 2)


def _register_grid(layout: TokenLayout) -> tuple[int, ...]:
    sides = len(layout.grid)
    side = round(layout.num_suffix ** (1 / sides))
    if side**sides != layout.num_suffix:
        raise ValueError(
            f"a rotary embedding places the registers on a square, so their number is 0, 1, 4, 9, ..., "
            f"not {layout.num_suffix}"
        )
    return (side,) * sides
