"""Multiply-adds and parameters, analytically.

The convention of the papers' "FLOPs" columns: one multiply-add counts once (not as two operations). Counted are linear
layers, convolutions and the matrix products of attention, each as often as the method needs it (a score that serves two
purposes once). Not counted: biases, norms, activations, softmax, pooling, top-k and sorting. The `multiply_adds` of a
mechanism, a layer or a model adds these up for one item.
"""

from __future__ import annotations

import math

from torch import nn


def matmul(rows: int, inner: int, columns: int) -> int:
    """Multiply-adds of (rows, inner) @ (inner, columns)."""
    return rows * inner * columns


def linear(layer: nn.Linear, tokens: int) -> int:
    """Multiply-adds of a linear layer over `tokens` rows."""
    return matmul(tokens, layer.in_features, layer.out_features)


def convolution(layer: nn.Conv1d | nn.Conv2d, positions: int) -> int:
    """Multiply-adds of a convolution with `positions` output positions."""
    return matmul(positions, math.prod(layer.kernel_size) * layer.in_channels // layer.groups, layer.out_channels)


def parameters(model: nn.Module) -> int:
    """Number of parameters, each shared one once; buffers are none."""
    return sum(p.numel() for p in model.parameters())
