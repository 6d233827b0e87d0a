"""Attention of queries to the keys of given experts: the routed branch alone, for routings that are not MiTA's."""

import torch
from torch import Tensor

from . import eager
from .op import attention_backward
from .precision import no_autocast


def routed_attention(
    q: Tensor, k: Tensor, v: Tensor, selected: Tensor, experts: Tensor, scale: float | None = None
) -> Tensor:
    """softmax(scale q k^T) v over the keys of each query's experts, without a gather per query.

    Args:
        q, k, v: (B, H, Nq, d), (B, H, Nk, d), (B, H, Nk, dv), any floating type.
        selected: (B, H, m, n) int64, the keys of each expert; -1 for an absent one.
        experts: (B, H, Nq, s) int64, the experts of each query; -1 for none. A key in two of them counts twice.
        scale: default d ** -0.5.

    Returns:
        (B, H, Nq, dv) in q's type; 0 for a query that reads nothing. No gradient flows into the choice of keys.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    with no_autocast(q.device.type):
        return _routed(q, k, v, selected.int(), experts.int(), float(scale))[0]


@torch.library.custom_op("mita::routed_attention", mutates_args=())
def _routed(q: Tensor, k: Tensor, v: Tensor, selected: Tensor, experts: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    B, H, Nq, _ = q.shape
    q_, k_, v_ = (eager.flat(t) for t in (q, k, v))
    o, lse = q_.new_zeros(B * H, Nq, v.shape[3]), q_.new_full((B * H, Nq), -torch.inf)
    eager.add_experts(o, lse, q_, k_, v_, selected.flatten(0, 1).long(), experts.flatten(0, 1).long(), scale)
    return o.view(B, H, Nq, v.shape[3]).to(q.dtype), lse.view(B, H, Nq)


@_routed.register_fake
def _(q, k, v, selected, experts, scale):
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3], dtype=wide)


def _setup_context(ctx, inputs, output):
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx, grad_o, _):
    if grad_o is None:
        return (None,) * 6
    q, k, v, selected, experts, o, lse = ctx.saved_tensors
    landmarks = q.new_zeros(*selected.shape[:3], q.shape[3])  # this branch has none
    nothing = lse.new_empty(*q.shape[:2], 0, v.shape[3]), lse.new_empty(*q.shape[:2], 0)
    grads = attention_backward(
        grad_o, q, k, v, landmarks, None, None, o, lse, *nothing, selected, experts, ctx.scale, 1.0, "route", "eager"
    )
    return *grads[:3], None, None, None


_routed.register_autograd(_backward, setup_context=_setup_context)
