"""MiTA attention on flash-attn (2.6 or newer), on explicit request: a cross-check of the Triton backend.

Shared branch and routed branch are each one call of `flash_attn_varlen_func` and are merged by their log-sum-exps. The routed
branch is a batch of sequences of unequal length: the queries of each expert, against its keys. Their cumulative lengths come from
counts of the expert labels, and the sorted order is undone by its inverse permutation (Algorithm 1 confuses the two).

No gradient flows through a log-sum-exp that flash-attn returns, so its own backward would be wrong here; the backward is
eager's, which recomputes the weights from the merged log-sum-exp.
"""

import torch
from torch import Tensor

from . import eager
from .selection import best_experts

backward = eager.backward


def forward(
    q: Tensor, k: Tensor, v: Tensor, landmarks: Tensor, key_mask: Tensor | None, landmark_mask: Tensor | None,
    top_k: int, experts_per_query: int, scale: float, landmark_key_scale: float, branches: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """See `eager.forward`; half types, without masks. Waits for the device: the calls need the largest group's size."""
    assert key_mask is None and landmark_mask is None
    B, H, Nq, d = q.shape
    m, dv, s = landmarks.shape[2], v.shape[3], experts_per_query
    q_, k_, v_, l_ = (t.flatten(0, 1) for t in (q, k, v, landmarks))
    selected, values, values_lse = eager.probe(
        l_.float(), k_.float(), v_.float(), None, top_k, scale, branches != "route"
    )
    gate = torch.bmm(q_.float(), l_.float().mT)
    experts = best_experts(gate, s) if s else gate.new_empty(B * H, Nq, 0, dtype=torch.int64)

    o, lse = q_.new_zeros(B * H, Nq, dv, dtype=torch.float32), gate.new_full((B * H, Nq), -torch.inf)
    if branches != "route":
        o, lse = _varlen(q_, l_, values.to(q.dtype), scale * landmark_key_scale)
    if branches != "compress":
        for part, part_lse in _experts(q_, k_, v_, selected, experts, scale):
            eager.merge(o, lse, part, part_lse)
    probes = values.shape[1]
    return (
        o.view(B, H, Nq, dv).to(q.dtype), lse.view(B, H, Nq), values.view(B, H, probes, dv),
        values_lse.view(B, H, probes), selected.view(B, H, m, top_k).int(), experts.view(B, H, Nq, s).int(),
    )  # fmt: skip


def _experts(q: Tensor, k: Tensor, v: Tensor, selected: Tensor, experts: Tensor, scale: float):
    """For each slot the routed branch: o (G, Nq, dv) and lse (G, Nq) in float32."""
    G, Nq, s = experts.shape
    m, n = selected.shape[1:]
    keys = (selected + torch.arange(G, device=q.device).view(G, 1, 1) * k.shape[1]).view(G * m, n)
    for slot in range(s):
        label = (experts[..., slot] + torch.arange(G, device=q.device).view(G, 1) * m).flatten()
        order = label.argsort(stable=True)
        counts = torch.bincount(label, minlength=G * m)
        read = counts.nonzero().squeeze(1)  # an expert that nobody reads is no sequence
        chosen = keys[read].flatten()
        part, part_lse = _call(
            q.flatten(0, 1)[order], k.flatten(0, 1)[chosen], v.flatten(0, 1)[chosen],
            counts[read], torch.full_like(read, n), scale,
        )  # fmt: skip
        undo = torch.empty_like(order)
        undo[order] = torch.arange(G * Nq, device=q.device)
        yield part[undo].view(G, Nq, v.shape[2]), part_lse[undo].view(G, Nq)


def _varlen(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention of every head as one sequence: o (G, Nq, dv) and lse (G, Nq) in float32."""
    G, Nq, _ = q.shape
    lengths = [torch.full((G,), n, device=q.device) for n in (Nq, k.shape[1])]
    o, lse = _call(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), *lengths, scale)
    return o.view(G, Nq, v.shape[2]), lse.view(G, Nq)


def _call(q: Tensor, k: Tensor, v: Tensor, q_lengths: Tensor, k_lengths: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """flash-attn over packed sequences of one head: q (total, d) to o (total, dv) and lse (total,) in float32."""
    from flash_attn import flash_attn_varlen_func

    if not len(q):  # an empty batch has no longest sequence
        return v.new_zeros(0, v.shape[1], dtype=torch.float32), q.new_zeros(0, dtype=torch.float32)
    ends = [torch.nn.functional.pad(n.cumsum(0), (1, 0)).int() for n in (q_lengths, k_lengths)]
    o, lse, _ = flash_attn_varlen_func(
        *(t.unsqueeze(1).contiguous() for t in (q, k, v)), *ends, int(q_lengths.max()), int(k_lengths.max()),
        softmax_scale=scale, return_attn_probs=True,
    )  # fmt: skip
    return o.squeeze(1).float(), lse.squeeze(0)
