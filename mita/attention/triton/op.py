"""MiTA attention in Triton, forward: the functions of a backend (see `eager.py`), without float64.

Short sequences take one launch. Others take four steps, each linear in the number of tokens:

1. landmarks probe the keys (`probe.py`): the keys each selects, and landmark values;
2. queries choose experts (`route.py`);
3. queries are sorted by expert (`route.py`);
4. queries read the landmarks and their expert's keys (`attend.py`).

All shapes are static and nothing waits for the GPU, so a CUDA graph can hold it. Memory beyond inputs and outputs: a list of
about 2k entries a landmark and part of the keys, no larger than the keys in all if there are several parts; 4 bytes a query and
slot; with s > 1 experts a query, s times the output. Tensors may be strided, but their last dimension must be dense, or they are
copied.
"""

import torch
import triton
from torch import Tensor

from . import config
from .attend import attend_kernel
from .backward import backward as backward_on_device
from .common import combine_kernel
from .probe import merge_kernel, probe_kernel
from .route import gate_kernel, sort_queries
from .short import short_kernel


def forward(
    q: Tensor, k: Tensor, v: Tensor, landmarks: Tensor, key_mask: Tensor | None, landmark_mask: Tensor | None,
    top_k: int, experts_per_query: int, scale: float, landmark_key_scale: float, branches: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """See `eager.forward`."""
    (B, H, Nq, _), m, dv = q.shape, landmarks.shape[2], v.shape[3]
    probes = 0 if branches == "route" else m
    wide, index = ({"dtype": dtype, "device": q.device} for dtype in (torch.float32, torch.int32))
    o = torch.empty(B, H, Nq, dv, dtype=q.dtype, device=q.device)
    lse = torch.empty(B, H, Nq, **wide)
    values, values_lse = torch.empty(B, H, probes, dv, **wide), torch.empty(B, H, probes, **wide)
    selected = torch.empty(B, H, m, top_k, **index)
    experts = torch.empty(B, H, Nq, experts_per_query, **index)
    outputs = o, lse, values, values_lse, selected, experts
    if o.numel():
        q, k, v = (t if t.stride(3) == 1 else t.contiguous() for t in (q, k, v))
        landmarks, key_mask, landmark_mask = (
            None if t is None else t.contiguous() for t in (landmarks, key_mask, landmark_mask)
        )
        with torch.cuda.device_of(q):
            masked = key_mask is not None or landmark_mask is not None
            sizes = k.shape[2], m, top_k, _dim(q, v), experts_per_query, branches, masked
            run = _short if config.is_short(q.dtype, *sizes) else _long
            run(q, k, v, landmarks, key_mask, landmark_mask, scale, landmark_key_scale * scale, branches, *outputs)
    return outputs


def backward(grad_o: Tensor, *arguments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `eager.backward`."""
    with torch.cuda.device_of(grad_o):
        return backward_on_device(grad_o, *arguments)


def _pad(width: int) -> int:
    return max(16, triton.next_power_of_2(width))


def _dim(q: Tensor, v: Tensor) -> int:
    return max(_pad(q.shape[3]), _pad(v.shape[3]))


def _dims(q: Tensor, v: Tensor) -> dict[str, int]:
    d, e = q.shape[3], v.shape[3]
    return {"d": d, "e": e, "D": _pad(d), "E": _pad(e)}


def _strides(*tensors: Tensor) -> list[int]:
    return [stride for t in tensors for stride in t.stride()[:3]]


def _short(
    q, k, v, landmarks, key_mask, landmark_mask, scale, factor, branches, o, lse, values, values_lse, selected, experts
):
    (B, H, Nq, _), Nk, (m, top_k) = q.shape, k.shape[2], selected.shape[2:]
    sizes = config.short(Nk, m, top_k)
    shares = config.shares(B * H, Nq)
    share = triton.cdiv(triton.cdiv(Nq, shares), sizes["BQ"]) * sizes["BQ"]
    if branches == "route":
        values = values_lse = None
    short_kernel[(B * H * shares,)](
        q, k, v, landmarks, key_mask, landmark_mask, o, lse, values, values_lse, selected, experts,
        Nq, Nk, m, top_k, H, shares, share, *_strides(q, k, v), factor, scale, **_dims(q, v) | sizes,
    )  # fmt: skip


def _long(
    q, k, v, landmarks, key_mask, landmark_mask, scale, factor, branches, o, lse, values, values_lse, selected, experts
):
    shared = routed = None
    _probe(landmarks, k, v, key_mask, scale, values, values_lse, selected)
    if branches != "route":
        shared = landmarks, values.to(q.dtype), landmark_mask
    if experts.numel():
        _route(q, landmarks, landmark_mask, experts)
    if branches != "compress":
        order, starts = sort_queries(experts.flatten(0, 1), landmarks.shape[2])
        routed = selected, order, starts
    _attend(q, k, v, landmarks.shape[2], shared, routed, factor, scale, o, lse)


def _probe(landmarks, k, v, key_mask, scale, values, values_lse, selected) -> None:
    """Write selected, values and values_lse; the last two, or the first, may be of no size, and then are not wanted."""
    (B, H, N, _), m, e, top_k = k.shape, landmarks.shape[2], v.shape[3], selected.shape[3]
    G = B * H
    sizes = config.probe(k.dtype, _dim(k, v), top_k)
    capacity = sizes["CAPACITY"]
    slack = (
        capacity - sizes["BN"] - top_k
    ) // 2  # so that a cut leaves room for a tile, and half of what else there is
    tiles = triton.cdiv(m, sizes["BM"])
    parts = config.parts(G * tiles, N, k.nbytes, G * m * capacity * 8 * bool(top_k))
    length = triton.cdiv(triton.cdiv(N, parts), sizes["BN"]) * sizes["BN"]
    parts = triton.cdiv(N, length)
    lists, parts_of_values, out = [None] * 3, [None] * 2, None
    if top_k:
        lists = [torch.empty(G, parts, m, capacity, dtype=torch.int64, device=k.device)]
        lists += [torch.empty(G, parts, m, dtype=torch.int32, device=k.device) for _ in range(2)]
        out = selected if parts == 1 else None
    if values.numel():
        parts_of_values = values, values_lse
        if parts > 1:
            parts_of_values = values.new_empty(G, parts, m, e), values.new_empty(G, parts, m)
    probe_kernel[(G * parts * tiles,)](
        landmarks, k, v, key_mask, *parts_of_values, out, *lists, N, m, H, tiles, parts, length,
        *_strides(k, v), scale, top_k, slack, **_dims(k, v), **sizes,
    )  # fmt: skip
    if parts > 1 and top_k:
        merge = config.merge(capacity)
        tiles = triton.cdiv(m, merge["BM"])
        merge_kernel[(G * tiles,)](*lists, selected, m, tiles, parts, top_k, slack, **merge)
    if parts > 1 and values.numel():
        _combine(*parts_of_values, values, values_lse, m, parts, 1, m)


def _combine(parts_of_o, parts_of_lse, o, lse, rows: int, parts: int, row_stride: int, part_stride: int) -> None:
    """Write o and lse from their parts."""
    e, BQ = o.shape[3], 16
    tiles = triton.cdiv(rows, BQ)
    combine_kernel[(o.shape[0] * o.shape[1] * tiles,)](
        parts_of_o,
        parts_of_lse,
        o,
        lse,
        rows,
        tiles,
        parts,
        row_stride,
        part_stride,
        e=e,
        E=_pad(e),
        BQ=BQ,
        num_warps=4,
    )


def _route(q, landmarks, landmark_mask, experts) -> None:
    """Write experts."""
    (B, H, N, d), m = q.shape, landmarks.shape[2]
    sizes = config.gate(q.dtype, _pad(d))
    tiles = triton.cdiv(N, sizes["BQ"])
    gate_kernel[(B * H * tiles,)](
        q,
        landmarks,
        landmark_mask,
        experts,
        N,
        m,
        H,
        tiles,
        *_strides(q),
        SLOTS=experts.shape[3],
        d=d,
        D=_pad(d),
        **sizes,
    )


def _attend(q, k, v, m, shared, routed, factor, scale, o, lse) -> None:
    """Write o and lse. shared: landmarks, their values in q's type and their mask; routed: selected, order and starts."""
    (B, H, N, _), e, top_k, slots = q.shape, v.shape[3], 0, 1
    if routed:
        top_k, slots = routed[0].shape[3], routed[1].shape[1] // N
    sizes = config.attend(q.dtype, _dim(q, v), N * slots // m)
    tiles = N * slots // sizes["BQ"] + m + 1 if routed else triton.cdiv(N, sizes["BQ"])
    out = (o, lse) if slots == 1 else (o.new_empty(B, H, N * slots, e), lse.new_empty(B, H, N * slots))
    attend_kernel[(B * H * tiles,)](
        q, k, v, *(shared or [None] * 3), *(routed or [None] * 3), *out, N, m, top_k, slots, H, tiles,
        *_strides(q, k, v), factor, scale, **_dims(q, v), **sizes,
    )  # fmt: skip
    if slots > 1:
        _combine(*out, o, lse, N, slots, slots, 1)
