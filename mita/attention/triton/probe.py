"""Landmarks probe the keys, in one pass: S = scale * L K^T gives each landmark its k best keys and its value, softmax(S) V.

A program reads a part of the keys for a tile of landmarks; the parts are then put together in order.
"""

import triton
import triton.language as tl

from .common import head_of, load_tile, softmax_end, softmax_step
from .select import NOTHING, append, cut, entry_of, key_of, sortable


@triton.jit
def probe_kernel(
    L, K, V, MASK, VALUES, LSE, SELECTED, LISTS, COUNTS, BOUNDS, N, m, heads, tiles, parts, length,
    k_batch, k_head, k_row, v_batch, v_head, v_row, scale, top_k, slack,
    d: tl.constexpr, e: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, CAPACITY: tl.constexpr, HEIGHT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """A tile of BM landmarks of one head reads one part, `length` keys.

    Grid: heads x parts x tiles. VALUES (G, parts, m, e) and LSE (G, parts, m) float32, the part's softmax, are written if given.
    With LISTS (G, parts, m, CAPACITY), COUNTS and BOUNDS (G, parts, m), the part's best top_k are left at the lists' front or, if
    SELECTED (G, m, top_k) is given (a single part), written there.
    """
    pid = tl.program_id(0)
    g, part, tile = (pid // (parts * tiles)).to(tl.int64), pid // tiles % parts, pid % tiles
    rows = tile * BM + tl.arange(0, BM)
    there = rows < m
    l = load_tile(L + g * m * d, rows, there, d, d, D)
    K = head_of(K, g, heads, k_batch, k_head)
    V = head_of(V, g, heads, v_batch, v_head)
    first = (g * parts + part) * m
    count = tl.zeros([BM], tl.int32)
    bound = tl.zeros([BM], tl.int32) + NOTHING
    if LISTS is not None:
        LISTS += first * CAPACITY
        COUNTS += first
        BOUNDS += first
        tl.store(BOUNDS + rows, bound, mask=there)
    top = tl.zeros([BM], tl.float32) - float("inf")
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, E], tl.float32)
    for start in range(part * length, tl.minimum((part + 1) * length, N), BN):
        keys = start + tl.arange(0, BN)
        real = keys < N
        k = load_tile(K, keys, real, k_row, d, D)
        s = tl.dot(l, tl.trans(k), input_precision="ieee") * scale
        if MASK is not None:
            real = real & (tl.load(MASK + g // heads * N + keys, mask=real, other=0) != 0)
        if LISTS is not None:
            if tl.max(count, 0) > CAPACITY - BN:
                tl.store(COUNTS + rows, count, mask=there)
                cut(LISTS, COUNTS, BOUNDS, None, tile * BM, m, top_k, top_k + slack, CAPACITY, BM, HEIGHT, WIDE)
                count = tl.load(COUNTS + rows, mask=there, other=0)
                bound = tl.load(BOUNDS + rows, mask=there, other=NOTHING)
            x = sortable(s)
            take = there[:, None] & real[None, :] & (x > bound[:, None])
            count = append(LISTS, rows, entry_of(x, keys[None, :]), take, count, CAPACITY)
        if VALUES is not None:
            v = load_tile(V, keys, keys < N, v_row, e, E)
            top, total, acc = softmax_step(tl.where(real[None, :], s, float("-inf")), v, top, total, acc)
    if VALUES is not None:
        values, lse = softmax_end(top, total, acc)
        columns = tl.arange(0, E)
        at = VALUES + (first + rows[:, None]) * e + columns[None, :]
        tl.store(at, values, mask=there[:, None] & (columns[None, :] < e))
        tl.store(LSE + first + rows, lse, mask=there)
    if LISTS is not None:
        tl.store(COUNTS + rows, count, mask=there)
        if SELECTED is not None:
            SELECTED += g * m * top_k
        cut(LISTS, COUNTS, BOUNDS, SELECTED, tile * BM, m, top_k, top_k, CAPACITY, BM, HEIGHT, WIDE)


@triton.jit
def merge_kernel(
    LISTS, COUNTS, BOUNDS, SELECTED, m, tiles, parts, top_k, slack,
    BM: tl.constexpr, BN: tl.constexpr, CAPACITY: tl.constexpr, HEIGHT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Continue the lists of the first part with those of the others, in order, and write SELECTED. Grid: heads x tiles."""
    g, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    rows = tile * BM + tl.arange(0, BM)
    there = rows < m
    first = g * parts * m
    LISTS += first * CAPACITY
    COUNTS += first
    BOUNDS += first
    count = tl.load(COUNTS + rows, mask=there, other=0)
    bound = tl.load(BOUNDS + rows, mask=there, other=NOTHING)
    for part in range(1, parts):
        more = tl.load(COUNTS + part * m + rows, mask=there, other=0)
        for start in range(0, tl.max(more, 0), BN):
            if tl.max(count, 0) > CAPACITY - BN:
                tl.store(COUNTS + rows, count, mask=there)
                cut(LISTS, COUNTS, BOUNDS, None, tile * BM, m, top_k, top_k + slack, CAPACITY, BM, HEIGHT, WIDE)
                count = tl.load(COUNTS + rows, mask=there, other=0)
                bound = tl.load(BOUNDS + rows, mask=there, other=NOTHING)
            columns = start + tl.arange(0, BN)
            at = (part * m + rows[:, None]).to(tl.int64) * CAPACITY + columns[None, :]
            real = columns[None, :] < more[:, None]
            entries = tl.load(LISTS + at, mask=real, other=0)
            count = append(LISTS, rows, entries, real & (key_of(entries) > bound[:, None]), count, CAPACITY)
    tl.store(COUNTS + rows, count, mask=there)
    SELECTED += g * m * top_k
    cut(LISTS, COUNTS, BOUNDS, SELECTED, tile * BM, m, top_k, top_k, CAPACITY, BM, HEIGHT, WIDE)
