"""Landmark queries: how m of them are made from the queries of a layout's grid."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .layout import TokenLayout


def average_pool(
    q: Tensor, layout: TokenLayout, landmark_grid: tuple[int, ...], key_mask: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Average queries over the cells of a landmark grid, as adaptive pooling cuts them.

    On a 1-D grid, segment i of a sequence with L real tokens covers its real tokens floor(iL/m) ... ceil((i+1)L/m), so that
    padding changes nothing, wherever it stands. On a 2-D grid a cell averages the real tokens in its window.

    Args:
        q: (B, H, N, d) queries; tokens before and after the grid are left out.
        layout: where the grid sits.
        landmark_grid: (m,) for a 1-D grid, (a, b) for a 2-D grid. Cells overlap where it does not divide the grid.
        key_mask: (B, N) bool, True for a real token.

    Returns:
        landmarks (B, H, m, d) in q's type, and (B, m) bool, False where a landmark averages no token (None without a mask).

    Raises:
        ValueError: the sequence does not fit the layout, or the landmark grid has another number of dimensions.
    """
    layout.check(q.shape[2])
    if len(landmark_grid) != len(layout.grid):
        raise ValueError(
            f"a {len(layout.grid)}-D token grid needs as many sides in the landmark grid, got {tuple(landmark_grid)}"
        )
    grid = q[:, :, layout.grid_slice]
    if key_mask is None:
        return (
            _pool_image(grid, layout.grid, landmark_grid) if layout.is_2d else _pool_sequence(grid, *landmark_grid)
        ), None
    real = key_mask[:, layout.grid_slice]
    grid = grid.masked_fill(~real[:, None, :, None], 0)
    if layout.is_2d:
        share = _pool_image(
            real[:, None, :, None].to(grid.dtype), layout.grid, landmark_grid
        )  # real tokens in each window
        return _pool_image(grid, layout.grid, landmark_grid) / share.masked_fill(share == 0, 1), share[:, 0, :, 0] > 0
    return _pool_real_tokens(grid, real, *landmark_grid)


def _pool_image(tokens: Tensor, grid: tuple[int, int], landmark_grid: tuple[int, int]) -> Tensor:
    B, H, _, d = tokens.shape
    image = tokens.mT.reshape(B, H * d, *grid)
    return F.adaptive_avg_pool2d(image, landmark_grid).view(B, H, d, math.prod(landmark_grid)).mT.contiguous()


def _pool_sequence(tokens: Tensor, m: int) -> Tensor:
    B, H, n, d = tokens.shape
    if n % m == 0:
        return tokens.unflatten(2, (m, n // m)).mean(3)
    return F.adaptive_avg_pool1d(tokens.mT.reshape(B, H * d, n), m).view(B, H, d, m).mT.contiguous()


def _pool_real_tokens(tokens: Tensor, real: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Segments of the real tokens alone, by differences of running sums (in float64, which 10^6 tokens do not wear out)."""
    count = real.cumsum(1)
    length = count[:, -1:]
    segment = torch.arange(m, device=real.device)
    first = segment * length // m
    last = -(-(segment + 1) * length // m)
    running = F.pad(tokens.double().cumsum(2), (0, 0, 1, 0))

    def sum_of_first(tokens_counted: Tensor) -> Tensor:
        position = torch.searchsorted(count, tokens_counted).add(1).masked_fill(tokens_counted == 0, 0)
        return running.take_along_dim(position[:, None, :, None], 2)

    members = (last - first).clamp(min=1)[:, None, :, None]
    landmarks = (sum_of_first(last) - sum_of_first(first)) / members
    return landmarks.to(tokens.dtype), (length > 0).expand(-1, m)
