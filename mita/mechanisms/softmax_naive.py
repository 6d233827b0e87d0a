"""Standard attention without a fused kernel, as Long Range Arena's PyTorch lineage ran and timed it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..attention.precision import no_autocast
from ..layout import TokenLayout
from .softmax import SoftmaxAttention


class NaiveSoftmaxAttention(SoftmaxAttention):
    """softmax(q k^T / sqrt(d)) v with all N x N weights in float32, computed once more in the backward pass.

    Options and results are `SoftmaxAttention`'s; only time and memory differ (Xiong et al., 2021, code of the Nyströmformer).
    """

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout, key_mask: Tensor | None) -> Tensor:
        if not torch.is_grad_enabled():
            return self._dense(q, k, v, key_mask)
        return checkpoint(self._dense, q, k, v, key_mask, use_reentrant=False)

    def _dense(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        with no_autocast(q.device.type):
            scores = self.head_dim**-0.5 * q.to(wide) @ k.to(wide).mT
            if key_mask is not None:
                readable = key_mask | ~key_mask.any(1, keepdim=True)  # see SoftmaxAttention
                scores = scores.masked_fill(~readable[:, None, None, :], -torch.inf)
            weights = F.dropout(scores.softmax(-1), self.dropout, self.training)
            return (weights @ v.to(wide)).to(q.dtype)
