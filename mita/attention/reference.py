"""The paper's equations, dense and slow: the oracle that every other implementation is held to.

Written to be read beside the paper (arXiv:2602.01219); memory grows with Nq x Nk. Imports no other implementation.
"""

import torch
from torch import Tensor

from .problem import Routing


def reference_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks: Tensor,
    *,
    top_k: int,
    experts_per_query: int = 1,
    scale: float | None = None,
    landmark_key_scale: float = 1.0,
    branches: str = "both",
    key_mask: Tensor | None = None,
    landmark_mask: Tensor | None = None,
    routing: Routing | None = None,
) -> tuple[Tensor, Routing]:
    """MiTA attention and what it chose; arguments as `mita.mita_attention`.

    routing: use this selection and routing in place of its own, to compare values where another
        implementation's rounding broke a near tie the other way.

    Half types are computed in float32, all others in their own type. Plain autograd gives the gradients.
    """
    dtype = q.dtype
    if dtype in (torch.float16, torch.bfloat16):
        q, k, v, landmarks = q.float(), k.float(), v.float(), landmarks.float()
    B, H, Nq, d = q.shape
    Nk, m = k.shape[2], landmarks.shape[2]
    scale = d**-0.5 if scale is None else scale

    real_keys = torch.ones(B, Nk, dtype=torch.bool, device=q.device) if key_mask is None else key_mask
    real_landmarks = torch.ones(B, m, dtype=torch.bool, device=q.device) if landmark_mask is None else landmark_mask
    real_landmarks = real_landmarks & real_keys.any(1, keepdim=True)  # without a key there is nothing to read
    # What stands in padding must not matter, not even through 0 * nan.
    k, v = (t.masked_fill(~real_keys[:, None, :, None], 0) for t in (k, v))
    landmarks = landmarks.masked_fill(~real_landmarks[:, None, :, None], 0)
    readable = real_landmarks[:, None, :, None] & real_keys[:, None, None, :]  # (B, 1, m, Nk)

    # Each landmark probes all keys once: S (B, H, m, Nk).
    S = (scale * (landmarks @ k.mT)).masked_fill(~readable, -torch.inf)
    landmark_values = _softmax(S) @ v

    if routing is None:
        gate = (q @ landmarks.mT).masked_fill(~real_landmarks[:, None, None, :], -torch.inf)
        routing = Routing(_ascending(_largest(S, top_k)), _largest(gate, experts_per_query))
    selected, experts = routing

    # times_read[b, h, i, n]: how often query i reads key n, over its s experts (Eq. 10 concatenates, so twice counts twice).
    holds = torch.zeros(
        B, H, m + 1, Nk + 1, dtype=q.dtype, device=q.device
    )  # index -1 falls into the spare row and column
    holds[:, :, :m].scatter_(3, selected % (Nk + 1), 1.0)
    chosen = torch.zeros(B, H, Nq, m + 1, dtype=q.dtype, device=q.device).scatter_(3, experts % (m + 1), 1.0)
    times_read = (chosen[..., :m] @ holds[:, :, :m, :Nk]).round()

    # One softmax over [landmarks ; selected keys].
    shared_logits = landmark_key_scale * scale * (q @ landmarks.mT)
    shared_logits = shared_logits.masked_fill(~real_landmarks[:, None, None, :], -torch.inf)
    routed_logits = scale * (q @ k.mT) + times_read.log()
    if branches == "route":
        o = _softmax(routed_logits) @ v
    elif branches == "compress":
        o = _softmax(shared_logits) @ landmark_values
    else:
        o = _softmax(torch.cat([shared_logits, routed_logits], 3)) @ torch.cat([landmark_values, v], 2)
    return o.to(dtype), routing


def _softmax(logits: Tensor) -> Tensor:
    """Softmax over the last dimension; a row of nothing but -inf gives zeros, and zero gradients."""
    empty = logits.detach().amax(-1, keepdim=True) == -torch.inf
    return logits.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0)


def _largest(scores: Tensor, n: int) -> Tensor:
    """Indices of the n largest scores, best first, ties to the lowest index; -1 where the score is -inf or absent."""
    scores = scores.detach() + 0.0  # -0.0 equals 0.0
    ordered, index = scores.sort(dim=-1, descending=True, stable=True)
    index = index.masked_fill(ordered == -torch.inf, -1)[..., :n]
    return torch.nn.functional.pad(index, (0, n - index.shape[-1]), value=-1)


def _ascending(index: Tensor) -> Tensor:
    """Sort indices, with -1 (absent) last."""
    last = torch.iinfo(index.dtype).max
    index = index.masked_fill(index < 0, last).sort(-1).values
    return index.masked_fill(index == last, -1)
