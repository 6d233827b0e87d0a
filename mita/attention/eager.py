"""MiTA attention in PyTorch, on any device, forward and backward, with memory linear in the number of tokens.

Every stage works through tiles of a bounded number of scores. Queries are grouped by expert, so that the keys of an
expert are gathered once for all its queries (never once a query). The backward recomputes the weights from the
log-sum-exps. Both are plain functions on tensors; `op.py` makes an operator of them.

Notation inside: G = B*H heads; factor = the scale of a branch's logits.
"""

import torch
from torch import Tensor

from . import cpu_flash
from .selection import best_experts, group_rows, top_k

TILE_SCORES = 1 << 20  # scores held at once (4 MiB in float32), unless one row needs more
PROBE_SCORES = 1 << 22  # the same where landmarks probe keys: choosing from a long row is cheaper than merging choices
GROUP_SCORES = 1 << 18  # scores of one batch of experts: what it gathers stays in the cache


def forward(
    q: Tensor, k: Tensor, v: Tensor, landmarks: Tensor, key_mask: Tensor | None, landmark_mask: Tensor | None,
    top_k: int, experts_per_query: int, scale: float, landmark_key_scale: float, branches: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The forward pass; arguments as `mita_attention`, with masked keys and landmarks zeroed by the caller.

    top_k is at most the number of keys; top_k = 0 and experts_per_query = 0 (only with branches="compress") skip both choices.
    Returns o (B, H, Nq, dv) in q's type; in float32 (float64 for float64) lse (B, H, Nq), landmark_values (B, H, m, dv) and
    landmark_lse (B, H, m), the last two with m = 0 for branches="route"; selected (B, H, m, k), experts (B, H, Nq, s) int32.
    """
    B, H, Nq, _ = q.shape
    m, dv, s = landmarks.shape[2], v.shape[3], experts_per_query
    q_, k_, v_, l_ = (flat(t) for t in (q, k, v, landmarks))
    key_mask, landmark_mask = (_per_head(mask, H) for mask in (key_mask, landmark_mask))

    selected, landmark_values, landmark_lse = probe(l_, k_, v_, key_mask, top_k, scale, branches != "route")
    factor = scale * landmark_key_scale if branches != "route" else None
    o, lse, experts = _read_landmarks(q_, l_, landmark_values, landmark_mask, factor, s)
    if branches != "compress":
        o, lse = add_experts(o, lse, q_, k_, v_, selected, experts, scale)

    probes = landmark_values.shape[1]
    return (
        o.view(B, H, Nq, dv).to(q.dtype), lse.view(B, H, Nq), landmark_values.view(B, H, probes, dv),
        landmark_lse.view(B, H, probes), selected.view(B, H, m, top_k).int(), experts.view(B, H, Nq, s).int(),
    )  # fmt: skip


def backward(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, landmarks: Tensor, key_mask: Tensor | None, landmark_mask: Tensor | None,
    o: Tensor, lse: Tensor, landmark_values: Tensor, landmark_lse: Tensor, selected: Tensor, experts: Tensor,
    scale: float, landmark_key_scale: float, branches: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v and landmarks, from the forward's outputs; selection and routing carry none."""
    shapes = [(t.shape, t.dtype) for t in (q, k, v, landmarks)]
    H = q.shape[1]
    grad_o, q, k, v, landmarks, o, landmark_values = (flat(t) for t in (grad_o, q, k, v, landmarks, o, landmark_values))
    lse, landmark_lse = lse.flatten(0, 1), landmark_lse.flatten(0, 1)
    key_mask, landmark_mask = (_per_head(mask, H) for mask in (key_mask, landmark_mask))
    if branches == "route":
        dq, dk, dv, dl = (torch.zeros_like(t) for t in (q, k, v, landmarks))
    else:
        factor = scale * landmark_key_scale
        dq, dl, d_values = _dense_backward(grad_o, q, landmarks, landmark_values, landmark_mask, o, lse, factor)
        dl_probe, dk, dv = _dense_backward(d_values, landmarks, k, v, key_mask, landmark_values, landmark_lse, scale)
        dl += dl_probe
    if branches != "compress":
        selected, experts = selected.flatten(0, 1).long(), experts.flatten(0, 1).long()
        _add_experts_backward(grad_o, q, k, v, selected, experts, o, lse, scale, dq, dk, dv)
    return tuple(grad.view(shape).to(dtype) for grad, (shape, dtype) in zip((dq, dk, dv, dl), shapes, strict=True))


def flat(t: Tensor) -> Tensor:
    """(B, H, N, d) to contiguous (B*H, N, d), half types to float32."""
    return t.to(torch.float64 if t.dtype == torch.float64 else torch.float32).flatten(0, 1).contiguous()


def _per_head(mask: Tensor | None, heads: int) -> Tensor | None:
    """(B, N) to (B*H, 1, N)."""
    return None if mask is None else mask.repeat_interleave(heads, 0).unsqueeze(1)


def _tiles(heads: int, rows: int, columns: int, limit: int):
    """Cut heads x rows into slices whose rows x columns scores stay within the limit."""
    rows_at_once = max(1, min(rows, limit // columns))
    heads_at_once = max(1, limit // (rows_at_once * columns))
    for g in range(0, heads, heads_at_once):
        for r in range(0, rows, rows_at_once):
            yield slice(g, min(g + heads_at_once, heads)), slice(r, min(r + rows_at_once, rows))


def _scores(a: Tensor, b: Tensor, mask: Tensor | None, factor: float) -> Tensor:
    """factor * a b^T with masked columns -inf."""
    scores = torch.bmm(a, b.mT).mul_(factor)
    return scores if mask is None else scores.masked_fill_(~mask, -torch.inf)


def _normalised(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """exp(scores - max) (in place), its sum and the log-sum-exp, both (..., 1); finite even where all are -inf."""
    limits = torch.finfo(scores.dtype)
    top = scores.amax(-1, keepdim=True).clamp_(min=limits.min)
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True).clamp_(min=limits.tiny)
    return weights, total, top + total.log()


def probe(l: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, n: int, scale: float, values: bool):
    """Each landmark probes the keys: selected (G, m, n), landmark values (G, m, dv) and their lse (G, m), over key tiles.

    n is at most the number of keys.
    """
    G, m, _ = l.shape
    N, dv = k.shape[1], v.shape[2]
    landmark_values = v.new_zeros(G, m if values else 0, dv)
    landmark_lse = v.new_full((G, m if values else 0), -torch.inf)
    best_score = k.new_full((G, m, n), -torch.inf)
    selected = torch.full((G, m, n), N, device=k.device)
    for heads, keys in _tiles(G, N, m, PROBE_SCORES):
        S = _scores(l[heads], k[heads, keys], None if mask is None else mask[heads, :, keys], scale)
        if n:
            _keep_best(best_score[heads], selected[heads], S, keys.start)
        if values:
            weights, total, lse = _normalised(S)
            merge(
                landmark_values[heads],
                landmark_lse[heads],
                torch.bmm(weights, v[heads, keys]).div_(total),
                lse.squeeze(-1),
            )
    absent = best_score == -torch.inf
    if absent.any():  # absent entries go last, as -1; all others are in ascending order already
        selected = selected.masked_fill_(absent, N).sort(-1).values
        selected.masked_fill_(selected == N, -1)
    return selected, landmark_values, landmark_lse


def _keep_best(best_score: Tensor, best_index: Tensor, S: Tensor, start: int) -> None:
    """Merge a tile of scores into the best so far (in place). Candidates stay in index order, so the tie rule holds."""
    g, m, kept = best_score.shape
    n = S.shape[-1]
    position = top_k(S.reshape(g * m, n), min(kept, n)).view(g, m, -1)
    score, index = S.gather(-1, position), position + start
    if start:
        score, index = torch.cat([best_score, score], -1), torch.cat([best_index, index], -1)
        position = top_k(score.view(g * m, -1), kept).view(g, m, kept)
        score, index = score.gather(-1, position), index.gather(-1, position)
    best_score[..., : score.shape[-1]] = score
    best_index[..., : score.shape[-1]] = index


def merge(o: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Combine two softmax parts by their normalisers, in place: (Z o + Z' o') / (Z + Z')."""
    share = torch.sigmoid(part_lse - lse).unsqueeze(
        -1
    )  # lse may be -inf (nothing read yet), part_lse is finite or -inf
    o.lerp_(part, share.nan_to_num_(0.0))
    torch.logaddexp(lse, part_lse, out=lse)


def _read_landmarks(q: Tensor, l: Tensor, values: Tensor, mask: Tensor | None, factor: float | None, s: int):
    """Shared branch and routing from the same product: o (G, Nq, dv), lse (G, Nq), experts (G, Nq, s).

    factor None (branches="route") gives o = 0, lse = -inf.
    """
    G, N, _ = q.shape
    m = l.shape[1]
    o = q.new_zeros(G, N, values.shape[2])
    lse = q.new_full((G, N), -torch.inf)
    experts = torch.empty(G, N, s, dtype=torch.int64, device=q.device)
    for heads, rows in _tiles(G, N, m, TILE_SCORES):
        gate = _scores(q[heads, rows], l[heads], None if mask is None else mask[heads], 1.0)
        if s:
            experts[heads, rows] = best_experts(gate, s)
        if factor is not None:
            weights, total, tile_lse = _normalised(_rescale(gate, factor))
            o[heads, rows] = torch.bmm(weights, values[heads]).div_(total)
            lse[heads, rows] = tile_lse.squeeze(-1)
    if mask is not None and factor is not None:
        lse.masked_fill_(~mask.any(-1), -torch.inf)
    return o, lse, experts


def _rescale(gate: Tensor, factor: float) -> Tensor:
    """Multiply in place; a masked landmark stays at -inf whatever the sign of the factor."""
    masked = gate == -torch.inf if factor <= 0 else None
    gate.mul_(factor)
    return gate if masked is None else gate.masked_fill_(masked, -torch.inf)


def _dense_backward(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, o: Tensor, lse: Tensor, factor: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v where every query reads every key (as part of a softmax with (o, lse)), by tiles."""
    if mask is None and cpu_flash.usable(q, v):
        return tuple(grad.contiguous() for grad in cpu_flash.backward(grad_o, q, k, v, o, lse, factor))
    dq, dk, dv = (torch.zeros_like(t) for t in (q, k, v))
    delta = (grad_o * o).sum(-1)
    G, whole, n_q, n_k = q.shape[0], slice(None), q.shape[1], k.shape[1]
    for heads, part in _tiles(G, max(n_q, n_k), min(n_q, n_k), TILE_SCORES):
        rows, columns = (part, whole) if n_q >= n_k else (whole, part)
        hidden = None if mask is None else mask[heads, :, columns]
        P = _weights(_scores(q[heads, rows], k[heads, columns], hidden, factor), lse[heads, rows])
        dv[heads, columns].baddbmm_(P.mT, grad_o[heads, rows])
        dS = _softmax_backward(P, grad_o[heads, rows], v[heads, columns], delta[heads, rows], factor)
        dq[heads, rows].baddbmm_(dS, k[heads, columns])
        dk[heads, columns].baddbmm_(dS.mT, q[heads, rows])
    return dq, dk, dv


def _weights(scores: Tensor, lse: Tensor) -> Tensor:
    """Softmax weights from the log-sum-exp (in place); a row that read nothing (lse = -inf) has none."""
    return scores.sub_(lse.masked_fill(lse == -torch.inf, torch.inf).unsqueeze(-1)).exp_()


def _softmax_backward(P: Tensor, grad_o: Tensor, v: Tensor, delta: Tensor, factor: float) -> Tensor:
    """Gradient of the unscaled logits: factor * P * (dO v^T - delta)."""
    return torch.bmm(grad_o, v.mT).sub_(delta.unsqueeze(-1)).mul_(P).mul_(factor)


def _expert_batches(q: Tensor, k: Tensor, selected: Tensor, experts: Tensor):
    """Batches of (rows (c, t), queries (c, t), keys (c, n), absent (c, 1, n) or None), all indices flat over heads.

    A row is a (query, slot) pair; rows * s + slot. Rows past the last are padding: their query is any.
    """
    G, Nq, s = experts.shape
    m, n, Nk = selected.shape[1], selected.shape[2], k.shape[1]
    head = torch.arange(G, device=q.device).view(G, 1, 1)
    expert_of_row = (experts + head * m).masked_fill_(experts < 0, -1).view(-1)
    absent = selected < 0
    any_absent = bool(absent.any())
    keys = (selected.masked_fill(absent, 0) + head * Nk).view(G * m, n)
    absent = absent.view(G * m, 1, n)
    typical = Nq * s // m  # rows an expert has on average; small tiles waste less, large tiles make fewer batches
    tile = 8 if typical < 32 else 16 if typical < 128 else 32
    for expert, rows in group_rows(expert_of_row, G * m, tile, max(tile, GROUP_SCORES // n)):
        queries = rows.div(s, rounding_mode="floor").clamp_(max=G * Nq - 1)
        yield rows, queries, keys[expert], absent[expert] if any_absent else None


def _rows(t: Tensor, index: Tensor) -> Tensor:
    """Gather rows of (G, N, d) by flat index (c, t) into (c, t, d)."""
    return t.flatten(0, 1).index_select(0, index.view(-1)).view(*index.shape, t.shape[-1])


def add_experts(
    o: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, selected: Tensor, experts: Tensor, scale: float
):
    """Add the routed branch to (o, lse), in place."""
    G, N, s = experts.shape
    part = o.new_zeros(G * N * s + 1, o.shape[2])  # the last row takes what the padding writes
    part_lse = lse.new_full((G * N * s + 1,), -torch.inf)
    for rows, queries, keys, absent in _expert_batches(q, k, selected, experts):
        out, out_lse = _attend(_rows(q, queries), _rows(k, keys), _rows(v, keys), absent, scale)
        part.index_copy_(0, rows.view(-1), out.flatten(0, 1))
        part_lse.index_copy_(0, rows.view(-1), out_lse.view(-1))
    part, part_lse = part[:-1].view(G, N, s, o.shape[2]), part_lse[:-1].view(G, N, s)
    for slot in range(s):
        merge(o, lse, part[:, :, slot], part_lse[:, :, slot])
    return o, lse


def _attend(q: Tensor, k: Tensor, v: Tensor, absent: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Softmax attention of small batches with its log-sum-exp, -inf where every key is absent."""
    if absent is None and cpu_flash.usable(q, v):
        return cpu_flash.forward(q, k, v, scale)
    weights, total, lse = _normalised(_scores(q, k, None if absent is None else ~absent, scale))
    if absent is not None:
        lse.masked_fill_(absent.all(-1, keepdim=True), -torch.inf)
    return torch.bmm(weights, v).div_(total), lse.squeeze(-1)


def _add_experts_backward(grad_o, q, k, v, selected, experts, o, lse, scale, dq, dk, dv) -> None:
    """Backward of the routed branch; adds to dq, dk and dv in place."""
    rows_in_all = experts.numel()
    unread = torch.full((1,), torch.inf, dtype=lse.dtype, device=lse.device)  # exp(x - inf) = 0: padding weighs nothing
    lse = torch.cat([lse.masked_fill(lse == -torch.inf, torch.inf).view(-1), unread])
    for rows, queries, keys, absent in _expert_batches(q, k, selected, experts):
        parts = _rows(grad_o, queries), _rows(q, queries), _rows(k, keys), _rows(v, keys), _rows(o, queries)
        row_lse = lse[torch.where(rows < rows_in_all, queries, lse.numel() - 1)]
        grads = _attend_backward(*parts, row_lse, absent, scale)
        for grad, part, index in zip((dq, dk, dv), grads, (queries, keys, keys), strict=True):
            grad.view(-1, grad.shape[2]).index_add_(0, index.view(-1), part.flatten(0, 1))


def _attend_backward(grad_o, q, k, v, o, lse, absent: Tensor | None, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v of small batches that are part of a softmax with (o, lse)."""
    if absent is None and cpu_flash.usable(q, v):
        return cpu_flash.backward(grad_o, q, k, v, o, lse, scale)
    P = _weights(_scores(q, k, None if absent is None else ~absent, scale), lse)
    dS = _softmax_backward(P, grad_o, v, (grad_o * o).sum(-1), scale)
    return torch.bmm(dS, k), torch.bmm(dS.mT, q), torch.bmm(P.mT, grad_o)
