"""The backward pass in Triton: weights are recomputed from the log-sum-exps, and every sum has a fixed order.

With delta = rowsum(dO * O), heads flattened to G = B * H:

1. landmarks and landmark values, as the shared branch reads them: parts of queries, added up in order;
2. landmarks, as they probe the keys: parts of keys, added up in order;
3. the keys and values of each expert: compact rows, (m, k, d) a head;
4. all keys and values: from landmarks and compact rows, in one pass that writes each row once;
5. queries, sorted by expert.

Memory beyond inputs and outputs, in half types with N queries and keys: the parts of 1, half the size of q if m <= N / 8; the
compact rows of 3, for as many heads at a time as fit in the size of q or in SCRATCH_BYTES, but at least one head's; for s > 1
experts a query, s times q in 5. A tensor whose last dimension is not contiguous is copied.
"""

import torch
import triton
from torch import Tensor

from .backward_config import sizes
from .backward_keys import expert_kernel, keys_kernel, landmarks_kernel
from .backward_queries import delta_kernel, probes_kernel, queries_kernel
from .route import sort_queries

SCRATCH_BYTES = 32 << 20
DELTA_TILE = 64


def backward(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, landmarks: Tensor, key_mask: Tensor | None, landmark_mask: Tensor | None,
    o: Tensor, lse: Tensor, landmark_values: Tensor, landmark_lse: Tensor, selected: Tensor, experts: Tensor,
    scale: float, landmark_key_scale: float, branches: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v and landmarks, from the forward's outputs: the contract of `eager.backward`, without float64."""
    grads = tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, k, v, landmarks))
    if q.numel() == 0:
        return grads
    key_mask, landmark_mask = (None if mask is None else mask.contiguous() for mask in (key_mask, landmark_mask))
    grad_o, q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (grad_o, q, k, v))
    landmarks, o, lse, landmark_values, landmark_lse, selected, experts = (
        t.flatten(0, 1).contiguous() for t in (landmarks, o, lse, landmark_values, landmark_lse, selected, experts)
    )
    dq, dk, dv, dl = (t.flatten(0, 1) for t in grads)
    reads = grad_o, q, lse, _delta(grad_o, o)
    shared = probes = routed = None
    if branches == "route":
        dl.zero_()
    else:
        shared = landmarks, landmark_values.to(q.dtype), landmark_mask, scale * landmark_key_scale
        dl_shared, d_values = _landmarks(*reads, *shared)
        probes = landmarks, d_values.to(q.dtype), landmark_lse, (d_values * landmark_values).sum(-1)
        dl.copy_(dl_shared.add_(_probes(*probes, k, v, key_mask, scale)))
    if branches != "compress":
        routed = selected, *sort_queries(experts, landmarks.shape[1])
    _keys(*reads, k, v, probes, key_mask, routed, scale, dk, dv)
    _queries(*reads, k, v, shared, routed, scale, dq)
    return grads


def _options(kernel, q: Tensor, v: Tensor, rows: int) -> dict:
    """Dims and tile sizes of a kernel in which `rows` rows stay, and how it is launched."""
    d, e = q.shape[-1], v.shape[-1]
    D, E = _pad(d), _pad(e)
    return {"d": d, "e": e, "D": D, "E": E, **sizes(kernel, q.dtype, max(D, E), rows)}


def _pad(width: int) -> int:
    return max(16, triton.next_power_of_2(width))


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    """Batch, head and row strides of each (B, H, n, d)."""
    return tuple(stride for t in tensors for stride in t.stride()[:3])


def _part_length(m: int) -> int:
    """Rows to a part, so that the parts of all landmarks take little beside the rows."""
    return max(1024, 8 * triton.next_power_of_2(m))


def _delta(grad_o: Tensor, o: Tensor) -> Tensor:
    """rowsum(dO * O), (G, N) float32."""
    H, (G, N, e) = grad_o.shape[1], o.shape
    delta = torch.empty(G, N, dtype=torch.float32, device=o.device)
    tiles = triton.cdiv(N, DELTA_TILE)
    delta_kernel[(G * tiles,)](
        grad_o, o, delta, N, H, tiles, *_strides(grad_o), e=e, E=_pad(e), BQ=DELTA_TILE, num_warps=4
    )
    return delta


def _landmarks(grad_o, q, lse, delta, landmarks, values, mask, factor) -> tuple[Tensor, Tensor]:
    """Gradients of landmarks (G, m, d) and landmark values (G, m, dv) in the shared branch, float32."""
    (_, H, N, d), (G, m, e), length = q.shape, values.shape, _part_length(values.shape[1])
    options = _options(landmarks_kernel, q, values, m)
    parts, tiles = triton.cdiv(N, length), triton.cdiv(m, options["BN"])
    dl, d_values = (torch.empty(G, parts, m, n, dtype=torch.float32, device=q.device) for n in (d, e))
    landmarks_kernel[(G * parts * tiles,)](
        q, grad_o, lse, delta, landmarks, values, mask, dl, d_values, N, m, H, tiles, length, factor,
        *_strides(q, grad_o), **options,
    )  # fmt: skip
    return dl.sum(1), d_values.sum(1)


def _probes(landmarks, d_values, lse, delta, k, v, mask, scale) -> Tensor:
    """Gradient of the landmarks (G, m, d) through their weights on the keys, float32."""
    (_, H, Nk, d), (G, m, _), length = k.shape, landmarks.shape, _part_length(landmarks.shape[1])
    options = _options(probes_kernel, k, v, m)
    parts, tiles = triton.cdiv(Nk, length), triton.cdiv(m, options["BQ"])
    dl = torch.empty(G, parts, m, d, dtype=torch.float32, device=k.device)
    probes_kernel[(G * parts * tiles,)](
        landmarks, d_values, lse, delta, k, v, mask, dl, Nk, m, H, tiles, length, scale, *_strides(k, v), **options
    )
    return dl.sum(1)


def _keys(grad_o, q, lse, delta, k, v, probes, mask, routed, scale, dk, dv) -> None:
    """Write dk and dv, for as many heads at a time as the experts' compact rows allow."""
    (B, H, Nk, d), N, e = k.shape, q.shape[2], v.shape[3]
    options = _options(keys_kernel, k, v, Nk)
    tiles, G, probing = triton.cdiv(Nk, options["BN"]), B * H, probes or (None,) * 4
    if routed is None:
        m = probes[0].shape[1]
        keys_kernel[(G * tiles,)](
            *probing, k, v, mask, None, None, None, dk, dv, Nk, m, 0, H, 0, tiles, scale, *_strides(k, v), STEPS=0, **options
        )  # fmt: skip
        return
    selected, order, starts = routed
    m, top_k = selected.shape[1:]
    at_once = min(G, _heads_at_once(q.nbytes, m * top_k * (d + e) * q.itemsize))
    rows = tuple(q.new_empty(at_once, m, top_k, n) for n in (d, e))
    expert_options = _options(expert_kernel, k, v, top_k)
    expert_tiles = triton.cdiv(top_k, expert_options["BN"])
    for first in range(0, G, at_once):
        heads = min(at_once, G - first)
        expert_kernel[(heads * m * expert_tiles,)](
            q, grad_o, lse, delta, k, v, selected, order, starts, *rows,
            N, Nk, m, top_k, order.shape[1] // N, H, first, expert_tiles, scale, *_strides(q, grad_o, k, v), **expert_options,
        )  # fmt: skip
        keys_kernel[(heads * tiles,)](
            *probing, k, v, mask, selected, *rows, dk, dv, Nk, m, top_k, H, first, tiles, scale, *_strides(k, v),
            STEPS=top_k.bit_length(), **options,
        )  # fmt: skip


def _heads_at_once(bytes_of_q: int, bytes_of_rows: int) -> int:
    """Of how many heads the compact rows of experts, so many bytes a head, are held at once."""
    return max(1, max(SCRATCH_BYTES, bytes_of_q) // bytes_of_rows)


def _queries(grad_o, q, lse, delta, k, v, shared, routed, scale, dq) -> None:
    """Write dq."""
    B, H, N, d = q.shape
    landmarks, values, mask, factor = shared or (None, None, None, 0.0)
    selected, order, starts = routed or (None, None, None)
    if routed is None:
        m, top_k, slots = landmarks.shape[1], 0, 1
        options = _options(queries_kernel, q, v, N)
        tiles = triton.cdiv(N, options["BQ"])
    else:
        m, top_k, slots = *selected.shape[1:], order.shape[1] // N
        options = _options(queries_kernel, q, v, 2 * N * slots // (3 * m))  # an expert's last tile is half empty
        tiles = N * slots // options["BQ"] + m + 1
    rows = dq if slots == 1 else q.new_empty(B * H, N * slots, d)
    queries_kernel[(B * H * tiles,)](
        q, grad_o, lse, delta, landmarks, values, mask, k, v, selected, order, starts, rows,
        N, m, top_k, slots, H, tiles, factor, scale, *_strides(q, grad_o, k, v), **options,
    )  # fmt: skip
    if slots > 1:
        torch.sum(rows.view(B * H, N, slots, d), 2, out=dq)
