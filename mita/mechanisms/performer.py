"""Performer: an unbiased estimate of softmax attention by positive random features."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import cost
from ..attention.precision import no_autocast
from ..layout import TokenLayout
from .base import Mechanism
from .linear import of_features


class Performer(Mechanism):
    """FAVOR+ (Choromanski et al., 2021, arXiv:2009.14794): linear attention with f(x) = exp(w x - |x|^2 / 2) / sqrt(r).

    x is q or k divided by d^(1/4), and the r rows of w are normal with orthogonal blocks: E[f(q) f(k)] = exp(q k / sqrt(d)).
    w is drawn once, at construction, and is a buffer: a checkpoint holds it.

    Args:
        num_features: r.
        eps: added to the normaliser.
    """

    def __init__(self, num_heads: int, head_dim: int, num_features: int = 256, eps: float = 1e-6) -> None:
        super().__init__(num_heads, head_dim)
        if num_features < 1:
            raise ValueError(f"num_features is at least 1, got {num_features}")
        self.eps = eps
        self.register_buffer("projection", orthogonal_normal(num_features, head_dim))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout, key_mask: Tensor | None) -> Tensor:
        with no_autocast(q.device.type):
            # A factor common to all features of a query, or of all keys of a head, cancels: it keeps exp in range.
            e_q, e_k = self._exponents(q), self._exponents(k)
            if key_mask is not None:
                e_k = e_k.masked_fill(~key_mask[:, None, :, None], -torch.inf)
            top = e_k.amax((2, 3), keepdim=True)
            f_q = (e_q - e_q.amax(3, keepdim=True)).exp()
            f_k = (e_k - top.masked_fill(top == -torch.inf, 0)).exp()
            return of_features(f_q, f_k, v, None, self.eps)

    def multiply_adds(self, layout: TokenLayout) -> int:
        r = len(self.projection)  # two projections, f(k)^T v and f(q) times it
        return self.num_heads * 4 * cost.matmul(layout.num_tokens, self.head_dim, r)

    def _exponents(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        x = x.to(wide) * self.head_dim**-0.25
        return x @ self.projection.to(wide).mT - x.square().sum(-1, keepdim=True) / 2


def orthogonal_normal(rows: int, columns: int) -> Tensor:
    """(rows, columns): every block of `columns` rows is orthogonal, and each row is as long as a normal vector's."""
    Q, R = torch.linalg.qr(torch.randn(math.ceil(rows / columns), columns, columns))
    Q = Q * R.diagonal(dim1=1, dim2=2).sign().unsqueeze(1)  # uniform only with these signs; biased features otherwise
    return Q.mT.flatten(0, 1)[:rows] * torch.randn(rows, columns).norm(dim=1, keepdim=True)
