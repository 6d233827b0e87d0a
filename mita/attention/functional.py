"""`mita_attention`: validate, choose a backend, run."""

import torch
import torch.nn.functional as F
from torch import Tensor

from . import op
from .backends import choose
from .precision import autocast_dtype, no_autocast
from .problem import Problem, Routing
from .reference import reference_attention


def mita_attention(
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
    backend: str = "auto",
    return_routing: bool = False,
) -> Tensor | tuple[Tensor, Routing]:
    """Mixture-of-top-k attention (arXiv:2602.01219): every query reads m landmarks and the k keys of each of its s experts.

    Each landmark probes all keys once, S = scale * landmarks k^T; its k best keys are an expert, and
    softmax(S) v is its landmark value. A query is routed to the s landmarks with the largest q . landmark, and one softmax
    runs over [landmarks ; keys of its experts] with values [landmark values ; values of those keys]. A key in two chosen
    experts counts twice (Eq. 10). Of equal scores the lowest index is taken. Not causal.

    Args:
        q: (B, H, Nq, d) queries; float64, float32, float16 or bfloat16 (half types: logits and softmax in float32).
        k: (B, H, Nk, d) keys.
        v: (B, H, Nk, dv) values.
        landmarks: (B, H, m, d) landmark queries, for example pooled queries (`mita.landmarks`).
        top_k: k, how many keys an expert keeps. More than there are is fine: what is absent weighs nothing.
        experts_per_query: s, between 1 and m.
        scale: factor on all logits; default d ** -0.5.
        landmark_key_scale: extra factor on the landmark keys of the shared branch (the released code has d ** -0.5).
        branches: "both", "route" (experts only) or "compress" (landmarks only).
        key_mask: (B, Nk) bool, True for a real token. A query whose sequence has no real key gives 0, and zero gradients.
        landmark_mask: (B, m) bool, False for a landmark that stands for no token; it is neither read nor routed to.
        backend: "auto", or one of `mita.attention.backends.BACKENDS`.
        return_routing: also return what was chosen.

    Returns:
        o (B, H, Nq, dv) in q's type, or (o, Routing). No gradient flows through selection and routing.

    Raises:
        ValueError: an argument that does not fit, or a named backend that cannot run the problem, with the reason.
    """
    device = q.device.type
    dtype = autocast_dtype(device)  # as PyTorch's own attention does
    if dtype is not None and torch.float64 not in (t.dtype for t in (q, k, v, landmarks)):
        q, k, v, landmarks = (t.to(dtype) for t in (q, k, v, landmarks))
    problem = Problem.of(
        q, k, v, landmarks,
        top_k=top_k, experts_per_query=experts_per_query, branches=branches, key_mask=key_mask, landmark_mask=landmark_mask,
    )  # fmt: skip
    kept = top_k if top_k < k.shape[2] else k.shape[2]  # not `min`, which would make a compiled top_k dynamic
    for name, factor in (("scale", scale), ("landmark_key_scale", landmark_key_scale)):
        if isinstance(factor, Tensor):
            raise ValueError(f"{name} must be a number; a factor that is learned belongs into q, k and landmarks.")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    backend = choose(backend, problem)

    with no_autocast(device):
        if backend == "reference":
            o, routing = reference_attention(
                q, k, v, landmarks, top_k=kept, experts_per_query=experts_per_query, branches=branches,
                scale=scale, landmark_key_scale=landmark_key_scale, key_mask=key_mask, landmark_mask=landmark_mask,
            )  # fmt: skip
            return (o, Routing(_pad(routing.selected, top_k), routing.experts)) if return_routing else o
        if key_mask is not None:
            # What stands in padding must not matter, not even through 0 * nan; without a key there is nothing to read.
            k, v = (t.masked_fill(~key_mask[:, None, :, None], 0) for t in (k, v))
            alive = key_mask.any(1, keepdim=True).expand(-1, landmarks.shape[2])
            landmark_mask = alive if landmark_mask is None else landmark_mask & alive
        if landmark_mask is not None:
            landmarks = landmarks.masked_fill(~landmark_mask[:, None, :, None], 0)
        if branches == "compress" and not return_routing:
            kept = experts_per_query = 0  # nothing is selected or routed
        o, _, _, _, selected, experts = op.attention(
            q, k, v, landmarks, key_mask, landmark_mask,
            kept, experts_per_query, float(scale), float(landmark_key_scale), branches, backend,
        )  # fmt: skip
    if not return_routing:
        return o
    selected = _pad(selected.long(), top_k)
    if landmark_mask is not None:
        selected = selected.masked_fill(~landmark_mask[:, None, :, None], -1)
    return o, Routing(selected, experts.long())


def _pad(selected: Tensor, top_k: int) -> Tensor:
    """Lists of keys with top_k places, the last of which are -1."""
    return F.pad(selected, (0, top_k - selected.shape[3]), value=-1)
