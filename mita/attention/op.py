"""MiTA attention as one torch operator, `mita::attention`, whatever backend computes it.

The operator pair returns tensors of fixed shapes only, so that it can be traced, compiled (`fullgraph=True`, dynamic shapes) and
exported; everything data-dependent stays inside. A backend is a module with the functions `forward` and `backward` of
`eager.py`.
"""

import importlib

import torch
from torch import Tensor

MODULES = {
    "eager": "mita.attention.eager",
    "flash": "mita.attention.flash",
    "native": "mita.attention.native.op",
    "triton": "mita.attention.triton.op",
}


def _module(backend: str):
    return importlib.import_module(MODULES[backend])


@torch.library.custom_op("mita::attention", mutates_args=())
def attention(
    q: Tensor, k: Tensor, v: Tensor, landmarks: Tensor, key_mask: Tensor | None, landmark_mask: Tensor | None,
    top_k: int, experts_per_query: int, scale: float, landmark_key_scale: float, branches: str, backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """o and what the backward needs: lse, landmark values and their lse, selected, experts (see `eager.forward`)."""
    return _module(backend).forward(
        q, k, v, landmarks, key_mask, landmark_mask, top_k, experts_per_query, scale, landmark_key_scale, branches
    )


@attention.register_fake
def _(
    q, k, v, landmarks, key_mask, landmark_mask, top_k, experts_per_query, scale, landmark_key_scale, branches, backend
):
    B, H, Nq, _ = q.shape
    m, dv = landmarks.shape[2], v.shape[3]
    probes = 0 if branches == "route" else m
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return (
        q.new_empty(B, H, Nq, dv),
        q.new_empty(B, H, Nq, dtype=wide),
        q.new_empty(B, H, probes, dv, dtype=wide),
        q.new_empty(B, H, probes, dtype=wide),
        q.new_empty(B, H, m, top_k, dtype=torch.int32),
        q.new_empty(B, H, Nq, experts_per_query, dtype=torch.int32),
    )


@torch.library.custom_op("mita::attention_backward", mutates_args=())
def attention_backward(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, landmarks: Tensor, key_mask: Tensor | None, landmark_mask: Tensor | None,
    o: Tensor, lse: Tensor, landmark_values: Tensor, landmark_lse: Tensor, selected: Tensor, experts: Tensor,
    scale: float, landmark_key_scale: float, branches: str, backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v and landmarks."""
    return _module(backend).backward(
        grad_o, q, k, v, landmarks, key_mask, landmark_mask, o, lse, landmark_values, landmark_lse, selected, experts,
        scale, landmark_key_scale, branches,
    )  # fmt: skip


@attention_backward.register_fake
def _(grad_o, q, k, v, landmarks, *_):
    return tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, k, v, landmarks))


def _setup_context(ctx, inputs, output):
    q, k, v, landmarks, key_mask, landmark_mask, _, _, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, landmarks, key_mask, landmark_mask, *output)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _backward(ctx, grad_o, *_):
    grads = (None,) * 4 if grad_o is None else attention_backward(grad_o, *ctx.saved_tensors, *ctx.options)
    return *grads, *(None,) * 8


attention.register_autograd(_backward, setup_context=_setup_context)
