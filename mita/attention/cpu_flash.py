"""PyTorch's fused CPU attention with its log-sum-exp.

`torch.ops.aten._scaled_dot_product_flash_attention_for_cpu` is internal to PyTorch, so its use is confined to this file,
and `usable` says no where it is missing; the caller then takes plain matrix products.
"""

import torch
from torch import Tensor

_FORWARD = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_BACKWARD = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


def usable(q: Tensor, v: Tensor) -> bool:
    """Whether the fused operator can take these (c, t, d) tensors."""
    there = _FORWARD is not None and _BACKWARD is not None
    return there and q.device.type == "cpu" and q.dtype == torch.float32 and q.shape[-1] == v.shape[-1]


def forward(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """softmax(scale q k^T) v and its log-sum-exp; q (c, t, d), k and v (c, n, d) to (c, t, d) and (c, t)."""
    o, lse = _FORWARD(q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1), 0.0, False, scale=scale)
    return o.squeeze(1), lse.squeeze(1)


def backward(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v. (o, lse) may be those of a softmax over more keys than k: this is then k's part of them."""
    grads = _BACKWARD(*(t.unsqueeze(1) for t in (grad_o, q, k, v, o, lse)), 0.0, False, scale=scale)
    return tuple(grad.squeeze(1) for grad in grads)
