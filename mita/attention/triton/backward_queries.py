"""Kernels of the backward pass in which queries stay and keys pass by: gradients of queries, and of landmarks as queries.

Notation as in `backward_keys.py`; dQ = factor * dS K.
"""

import triton
import triton.language as tl

from .backward_common import find_tile, load_lse, place_of, real_rows, store_tile
from .common import head_of, load_tile


@triton.jit
def delta_kernel(
    DO, O, DELTA, N, heads, tiles, do_batch, do_head, do_row, e: tl.constexpr, E: tl.constexpr, BQ: tl.constexpr
):  # fmt: skip
    """DELTA (G, N) = rowsum(DO * O) in float32. Grid: heads x tiles of BQ rows."""
    g, place = place_of(tiles)
    rows = place * BQ + tl.arange(0, BQ)
    there = rows < N
    do = load_tile(head_of(DO, g, heads, do_batch, do_head), rows, there, do_row, e, E)
    o = load_tile(O + g * N * e, rows, there, e, e, E)
    tl.store(DELTA + g * N + rows, tl.sum(do.to(tl.float32) * o.to(tl.float32), 1), mask=there)


@triton.jit
def _add_keys(
    dq, q, do, lse, delta, K, V, INDEX, MASK, first, low, high, factor, k_row, v_row,
    d: tl.constexpr, e: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Add to dq what the keys low ... high - 1 give, or those that INDEX has there; MASK, from `first` on, hides keys."""
    for start in range(low, high, BN):
        keys = start + tl.arange(0, BN)
        there = keys < high
        if INDEX is not None:
            keys = tl.load(INDEX + keys, mask=there, other=-1)
            there = keys >= 0
        k = load_tile(K, keys, there, k_row, d, D)
        v = load_tile(V, keys, there, v_row, e, E)
        logits = tl.dot(q, tl.trans(k), input_precision="ieee") * factor
        p = tl.exp(tl.where(real_rows(MASK, first, keys, there)[None, :], logits - lse[:, None], float("-inf")))
        ds = p * (tl.dot(do, tl.trans(v), input_precision="ieee") - delta[:, None]) * factor
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")
    return dq


@triton.jit
def queries_kernel(
    Q, DO, LSE, DELTA, L, VALUES, MASK, K, V, SELECTED, ORDER, STARTS, DQ,
    N, m, top_k, slots, heads, tiles, factor, scale,
    q_batch, q_head, q_row, do_batch, do_head, do_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    d: tl.constexpr, e: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BQ: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Gradient of the queries: through the landmarks, if L is given, and through their expert's keys, if SELECTED is.

    Grid: heads x tiles of BQ rows. With experts, rows are pairs (query, slot) sorted by expert; the first slot has the
    landmarks' part. DQ (G, N * slots, d).
    """
    g, place = place_of(tiles)
    if SELECTED is None:
        expert, start, end = 0, place * BQ, N
    else:
        expert, start, end = find_tile(STARTS + g * (m + 1), place, m, N * slots, BQ)
    if start < end:
        rows = start + tl.arange(0, BQ)
        there = rows < end
        if SELECTED is not None:
            rows = tl.load(ORDER + g * N * slots + rows, mask=there, other=0)
        queries = rows // slots
        q = load_tile(head_of(Q, g, heads, q_batch, q_head), queries, there, q_row, d, D)
        do = load_tile(head_of(DO, g, heads, do_batch, do_head), queries, there, do_row, e, E)
        lse = load_lse(LSE + g * N, queries, there)
        delta = tl.load(DELTA + g * N + queries, mask=there, other=0.0)
        dq = tl.zeros([BQ, D], tl.float32)
        reads = expert < m  # a query without an expert has no landmark either
        if L is not None:
            once = tl.where(rows % slots == 0, lse, float("inf"))
            dq = _add_keys(
                dq, q, do, once, delta, L + g * m * d, VALUES + g * m * e, None, MASK, g // heads * m,
                0, tl.where(reads, m, 0), factor, d, e, d, e, D, E, BN,
            )  # fmt: skip
        if SELECTED is not None:
            dq = _add_keys(
                dq, q, do, lse, delta, head_of(K, g, heads, k_batch, k_head), head_of(V, g, heads, v_batch, v_head),
                SELECTED + (g * m + expert) * top_k, None, 0, 0, tl.where(reads, top_k, 0), scale, k_row, v_row,
                d, e, D, E, BN,
            )  # fmt: skip
        store_tile(DQ + g * N * slots * d, rows, there, dq, d, D)


@triton.jit
def probes_kernel(
    L, DVALUES, LSE, DELTA, K, V, MASK, DL, Nk, m, heads, tiles, length, scale,
    k_batch, k_head, k_row, v_batch, v_head, v_row,
    d: tl.constexpr, e: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BQ: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Gradient of the landmarks that probe the keys, a part for each `length` keys.

    Grid: heads x parts x tiles of BQ landmarks. DL (G, parts, m, d) float32.
    """
    parts = tl.cdiv(Nk, length)
    g, place = place_of(parts * tiles)
    part = place // tiles
    rows = place % tiles * BQ + tl.arange(0, BQ)
    there = rows < m
    dl = _add_keys(
        tl.zeros([BQ, D], tl.float32), load_tile(L + g * m * d, rows, there, d, d, D),
        load_tile(DVALUES + g * m * e, rows, there, e, e, E), load_lse(LSE + g * m, rows, there),
        tl.load(DELTA + g * m + rows, mask=there, other=0.0),
        head_of(K, g, heads, k_batch, k_head), head_of(V, g, heads, v_batch, v_head), None, MASK, g // heads * Nk,
        part * length, tl.minimum(part * length + length, Nk), scale, k_row, v_row, d, e, D, E, BN,
    )  # fmt: skip
    store_tile(DL + (g * parts + part) * m * d, rows, there, dl, d, D)
