"""Kernels of the backward pass in which keys stay and queries pass by: gradients of landmarks, of experts' keys, of all keys.

P = exp(factor * q.k - lse) are weights of a softmax that may run over more keys than a kernel sees, delta = rowsum(dO * O) and
dS = P * (dO.v - delta); then dV = P^T dO and dK = factor * dS^T Q. The order of every sum is fixed.
"""

import triton
import triton.language as tl

from .backward_common import load_lse, place_of, real_rows, store_tile
from .common import head_of, load_tile


@triton.jit
def _add_queries(
    dk, dv, k, v, real, Q, DO, LSE, DELTA, ORDER, low, high, slots, factor, q_row, do_row,
    d: tl.constexpr, e: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """Add to (dk, dv) of the keys (k, v) what the queries in rows low ... high - 1, of ORDER if there is one, give them.

    The factor of dk is left to the caller.
    """
    for start in range(low, high, BQ):
        rows = start + tl.arange(0, BQ)
        there = rows < high
        if ORDER is not None:
            rows = tl.load(ORDER + rows, mask=there, other=0) // slots
        q = load_tile(Q, rows, there, q_row, d, D)
        do = load_tile(DO, rows, there, do_row, e, E)
        lse = load_lse(LSE, rows, there)
        delta = tl.load(DELTA + rows, mask=there, other=0.0)
        logits = tl.dot(k, tl.trans(q), input_precision="ieee") * factor
        p = tl.exp(tl.where(real[:, None], logits - lse[None, :], float("-inf")))
        dv += tl.dot(p.to(do.dtype), do, input_precision="ieee")
        ds = p * (tl.dot(v, tl.trans(do), input_precision="ieee") - delta[None, :])
        dk += tl.dot(ds.to(q.dtype), q, input_precision="ieee")
    return dk, dv


@triton.jit
def landmarks_kernel(
    Q, DO, LSE, DELTA, L, VALUES, MASK, DL, DVALUES, N, m, heads, tiles, length, factor,
    q_batch, q_head, q_row, do_batch, do_head, do_row,
    d: tl.constexpr, e: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BN: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """Gradients of landmarks and landmark values in the shared branch, a part for each `length` queries.

    Grid: heads x parts x tiles of BN landmarks. DL (G, parts, m, d) and DVALUES (G, parts, m, e) float32.
    """
    parts = tl.cdiv(N, length)
    g, place = place_of(parts * tiles)
    part = place // tiles
    columns = place % tiles * BN + tl.arange(0, BN)
    there = columns < m
    dl, dvalues = _add_queries(
        tl.zeros([BN, D], tl.float32), tl.zeros([BN, E], tl.float32),
        load_tile(L + g * m * d, columns, there, d, d, D), load_tile(VALUES + g * m * e, columns, there, e, e, E),
        real_rows(MASK, g // heads * m, columns, there),
        head_of(Q, g, heads, q_batch, q_head), head_of(DO, g, heads, do_batch, do_head), LSE + g * N, DELTA + g * N, None,
        part * length, tl.minimum(part * length + length, N), 1, factor, q_row, do_row, d, e, D, E, BQ,
    )  # fmt: skip
    first = (g * parts + part) * m
    store_tile(DL + first * d, columns, there, dl * factor, d, D)
    store_tile(DVALUES + first * e, columns, there, dvalues, e, E)


@triton.jit(do_not_specialize=["first_head"])
def expert_kernel(
    Q, DO, LSE, DELTA, K, V, SELECTED, ORDER, STARTS, DK, DV, N, Nk, m, top_k, slots, heads, first_head, tiles, scale,
    q_batch, q_head, q_row, do_batch, do_head, do_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    d: tl.constexpr, e: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BN: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """Gradients of the keys and values that each expert selected, from the queries routed to it.

    Grid: heads from first_head on x experts x tiles of BN selected keys. DK (heads, m, top_k, d), DV (heads, m, top_k, e);
    rows of absent entries are 0.
    """
    h, place = place_of(m * tiles)
    g = first_head + h
    expert = place // tiles
    entries = place % tiles * BN + tl.arange(0, BN)
    there = entries < top_k
    keys = tl.load(SELECTED + (g * m + expert) * top_k + entries, mask=there, other=-1)
    real = keys >= 0
    starts = STARTS + g * (m + 1) + expert
    dk, dv = _add_queries(
        tl.zeros([BN, D], tl.float32), tl.zeros([BN, E], tl.float32),
        load_tile(head_of(K, g, heads, k_batch, k_head), keys, real, k_row, d, D),
        load_tile(head_of(V, g, heads, v_batch, v_head), keys, real, v_row, e, E), real,
        head_of(Q, g, heads, q_batch, q_head), head_of(DO, g, heads, do_batch, do_head), LSE + g * N, DELTA + g * N,
        ORDER + g * N * slots, tl.load(starts), tl.load(starts + 1), slots, scale, q_row, do_row, d, e, D, E, BQ,
    )  # fmt: skip
    first = (h * m + expert) * top_k
    store_tile(DK + first * d, entries, there, dk * scale, d, D)
    store_tile(DV + first * e, entries, there, dv, e, E)


@triton.jit
def _count_below(SELECTED, lists, there, limit, top_k, STEPS: tl.constexpr):
    """For each list, an ascending row of SELECTED with absent entries (-1) last: how many of its keys are below limit."""
    count = tl.zeros_like(lists)
    for i in tl.static_range(STEPS):  # binary search; STEPS is the number of bits of top_k
        tried = count + (1 << (STEPS - 1 - i))
        key = tl.load(SELECTED + lists * top_k + tried - 1, mask=there & (tried <= top_k), other=-1)
        count = tl.where((key >= 0) & (key < limit), tried, count)
    return count


@triton.jit
def _add_entries(
    dk, dv, first_key, SELECTED, DK, DV, m, top_k,
    d: tl.constexpr, e: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BN: tl.constexpr, BE: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Add to (dk, dv) of BN keys from first_key on the rows of DK and DV that belong to them, expert by expert.

    A tile's keys are one run in each ascending list. The runs of BE lists are read as one, as many entries at a time, and a
    product with a matrix of zeros and ones, which is exact, brings every entry to its key.
    """
    keys_here = first_key + tl.arange(0, BN)
    for start in range(0, m, BE):
        lists = start + tl.arange(0, BE)
        there = lists < m
        begin = _count_below(SELECTED, lists, there, first_key, top_k, STEPS)
        run = _count_below(SELECTED, lists, there, first_key + BN, top_k, STEPS) - begin
        ends = tl.cumsum(run, 0)
        shift = lists * top_k + begin - (ends - run)  # entry p of all runs is at shift + p of SELECTED
        total = tl.sum(run, 0)
        for p in range(0, total, BE):
            entries = p + tl.arange(0, BE)
            valid = entries < total
            in_run = (entries[:, None] < ends[None, :]) & (entries[:, None] >= (ends - run)[None, :])
            entries += tl.sum(tl.where(in_run, shift[None, :], 0), 1)
            keys = tl.load(SELECTED + entries, mask=valid, other=-1)
            rows = load_tile(DK, entries, valid, d, d, D)
            belongs = (keys[None, :] == keys_here[:, None]).to(rows.dtype)
            dk += tl.dot(belongs, rows, input_precision="ieee")
            dv += tl.dot(belongs, load_tile(DV, entries, valid, e, e, E), input_precision="ieee")
    return dk, dv


@triton.jit(do_not_specialize=["first_head"])
def keys_kernel(
    L, DVALUES, LSE, DELTA, K, V, MASK, SELECTED, DK_SELECTED, DV_SELECTED, DK, DV,
    Nk, m, top_k, heads, first_head, tiles, scale, k_batch, k_head, k_row, v_batch, v_head, v_row,
    d: tl.constexpr, e: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BN: tl.constexpr, BQ: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Gradients of all keys and values: from the landmarks that probe them, if L is given, and from experts, if SELECTED is.

    Grid: heads from first_head on x tiles of BN keys. DK (G, Nk, d), DV (G, Nk, e); LSE and DELTA (G, m) are the landmarks'.
    """
    h, place = place_of(tiles)
    g = first_head + h
    columns = place * BN + tl.arange(0, BN)
    there = columns < Nk
    dk = tl.zeros([BN, D], tl.float32)
    dv = tl.zeros([BN, E], tl.float32)
    if L is not None:
        k = load_tile(head_of(K, g, heads, k_batch, k_head), columns, there, k_row, d, D)
        v = load_tile(head_of(V, g, heads, v_batch, v_head), columns, there, v_row, e, E)
        real = real_rows(MASK, g // heads * Nk, columns, there)
        dk, dv = _add_queries(
            dk, dv, k, v, real, L + g * m * d, DVALUES + g * m * e, LSE + g * m, DELTA + g * m, None, 0, m, 1, scale, d, e,
            d, e, D, E, BQ,
        )  # fmt: skip
        dk *= scale
    if SELECTED is not None:
        rows = h * m * top_k
        dk, dv = _add_entries(
            dk, dv, place * BN, SELECTED + g * m * top_k, DK_SELECTED + rows * d, DV_SELECTED + rows * e, m, top_k,
            d, e, D, E, BN, BQ, STEPS,
        )  # fmt: skip
    store_tile(DK + g * Nk * d, columns, there, dk, d, D)
    store_tile(DV + g * Nk * e, columns, there, dv, e, E)
