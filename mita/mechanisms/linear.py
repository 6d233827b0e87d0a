"""Linear attention: a feature map in place of the softmax, so that keys and values are summed once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import cost
from ..attention.precision import no_autocast
from ..layout import TokenLayout
from .base import Mechanism

FEATURES = {"elu": lambda x: F.elu(x) + 1, "relu": F.relu}


class LinearAttention(Mechanism):
    """f(q) (f(k)^T v) / (f(q) sum f(k)) with f(x) = elu(x) + 1 (Katharopoulos et al., 2020, arXiv:2006.16236).

    Long Range Arena's PyTorch lineage leaves the normaliser out; here it is in.

    Args:
        feature: "elu" (elu + 1), or "relu" as in the MiTA release, which norms q and k before.
        eps: added to the normaliser, 0/0 with "relu" otherwise.

    Raises:
        ValueError: an unknown feature map.
    """

    def __init__(self, num_heads: int, head_dim: int, feature: str = "elu", eps: float = 1e-6) -> None:
        super().__init__(num_heads, head_dim)
        if feature not in FEATURES:
            raise ValueError(f"feature is one of {', '.join(FEATURES)}, got {feature!r}")
        self.feature, self.eps = feature, eps

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout, key_mask: Tensor | None) -> Tensor:
        f = FEATURES[self.feature]
        return of_features(f(q), f(k), v, key_mask, self.eps)

    def multiply_adds(self, layout: TokenLayout) -> int:
        return self.num_heads * 2 * cost.matmul(layout.num_tokens, self.head_dim, self.head_dim)


def of_features(f_q: Tensor, f_k: Tensor, v: Tensor, key_mask: Tensor | None, eps: float) -> Tensor:
    """f(q) (f(k)^T v) / (f(q) sum f(k) + eps) in float32 or wider: features (B, H, N, r), v (B, H, N, d) to (B, H, N, d)."""
    wide = torch.promote_types(v.dtype, torch.float32)
    if key_mask is not None:  # the features of a zeroed key need not be zero
        f_k = f_k.masked_fill(~key_mask[:, None, :, None], 0)
    with no_autocast(v.device.type):
        f_q, f_k = f_q.to(wide), f_k.to(wide)
        total = f_q @ f_k.sum(2).unsqueeze(-1)
        return (f_q @ (f_k.mT @ v.to(wide)) / (total + eps)).to(v.dtype)
