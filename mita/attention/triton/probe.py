"""Landmarks probe the keys, in one pass: S = scale * L K^T gives each landmark its k best keys and its value, softmax(S) V.

A program reads a part of the keys for a tile of landmarks; the parts are then put together in order.
"""

import triton
import triton.language as tl

from .common import head_of, load_tile, softmax_end, softmax_step
from .select import NOTHING, append, cut, fill, sortable


@triton.jit
def probe_kernel(
    L, K, V, MASK, VALUES, LSE, SELECTED, KEYS, INDICES, COUNTS, BOUNDS, N, m, heads, tiles, parts, length,
    k_batch, k_head, k_row, v_batch, v_head, v_row, scale, top_k, capacity, slack,
    d: tl.constexpr, e: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, HEIGHT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """A tile of BM landmarks of one head reads one part, `length` keys.

    Grid: heads x parts x tiles. VALUES (G, parts, m, e) and LSE (G, parts, m) float32, the part's softmax, are written if
    given, and so are the lists KEYS, INDICES (G, parts, m, capacity) with COUNTS, BOUNDS (G, parts, m); the part's best top_k
    are left at their front, or go to SELECTED (G, m, top_k) if it is given (a single part).
    """
    pid = tl.program_id(0)
    g, part, tile = (pid // (parts * tiles)).to(tl.int64), pid // tiles % parts, pid % tiles
    rows = tile * BM + tl.arange(0, BM)
    there = rows < m
    l = load_tile(L + g * m * d, rows, there, d, d, D)
    K = head_of(K, g, heads, k_batch, k_head)
    V = head_of(V, g, heads, v_batch, v_head)
    first = (g * parts + part) * m
    if KEYS is not None:
        KEYS += first * capacity
        INDICES += first * capacity
        COUNTS += first
        BOUNDS += first
        tl.store(COUNTS + rows, tl.zeros([BM], tl.int32), mask=there)
        tl.store(BOUNDS + rows, tl.zeros([BM], tl.int32) + NOTHING, mask=there)
    count = tl.zeros([BM], tl.int32)
    bound = tl.zeros([BM], tl.int32) + NOTHING
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
        if VALUES is not None:
            v = load_tile(V, keys, keys < N, v_row, e, E)
            top, total, acc = softmax_step(tl.where(real[None, :], s, float("-inf")), v, top, total, acc)
        if KEYS is not None:
            if tl.max(count, 0) > capacity - BN:
                tl.store(COUNTS + rows, count, mask=there)
                cut(
                    KEYS, INDICES, COUNTS, BOUNDS, KEYS, INDICES, tile * BM, m, capacity, capacity, top_k, top_k + slack,
                    BM, HEIGHT, WIDE,
                )  # fmt: skip
                count = tl.load(COUNTS + rows, mask=there, other=0)
                bound = tl.load(BOUNDS + rows, mask=there, other=NOTHING)
            x = sortable(s)
            take = there[:, None] & real[None, :] & (x > bound[:, None])
            count = append(KEYS, INDICES, rows, x, keys[None, :], take, count, capacity)
    if VALUES is not None:
        values, lse = softmax_end(top, total, acc)
        columns = tl.arange(0, E)
        at = VALUES + (first + rows[:, None]) * e + columns[None, :]
        tl.store(at, values, mask=there[:, None] & (columns[None, :] < e))
        tl.store(LSE + first + rows, lse, mask=there)
    if KEYS is not None:
        tl.store(COUNTS + rows, count, mask=there)
        if SELECTED is None:
            cut(
                KEYS, INDICES, COUNTS, BOUNDS, KEYS, INDICES, tile * BM, m, capacity, capacity, top_k, top_k,
                BM, HEIGHT, WIDE,
            )  # fmt: skip
        else:
            SELECTED += g * m * top_k
            cut(
                KEYS, INDICES, COUNTS, BOUNDS, None, SELECTED, tile * BM, m, capacity, top_k, top_k, top_k,
                BM, HEIGHT, WIDE,
            )  # fmt: skip
            fill(SELECTED, COUNTS, tile * BM, m, top_k, BM, HEIGHT, WIDE)


@triton.jit
def merge_kernel(
    KEYS, INDICES, COUNTS, BOUNDS, SELECTED, m, tiles, parts, top_k, capacity, slack,
    BM: tl.constexpr, BN: tl.constexpr, HEIGHT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Continue the lists of the first part with the best of the others, in order, and write SELECTED. Grid: heads x tiles."""
    g, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    rows = tile * BM + tl.arange(0, BM)
    there = rows < m
    first = g * parts * m
    KEYS += first * capacity
    INDICES += first * capacity
    COUNTS += first
    BOUNDS += first
    count = tl.load(COUNTS + rows, mask=there, other=0)
    bound = tl.load(BOUNDS + rows, mask=there, other=NOTHING)
    for part in range(1, parts):
        there_are = tl.load(COUNTS + part * m + rows, mask=there, other=0)
        for start in range(0, tl.max(there_are, 0), BN):
            if tl.max(count, 0) > capacity - BN:
                tl.store(COUNTS + rows, count, mask=there)
                cut(
                    KEYS, INDICES, COUNTS, BOUNDS, KEYS, INDICES, tile * BM, m, capacity, capacity, top_k, top_k + slack,
                    BM, HEIGHT, WIDE,
                )  # fmt: skip
                count = tl.load(COUNTS + rows, mask=there, other=0)
                bound = tl.load(BOUNDS + rows, mask=there, other=NOTHING)
            columns = start + tl.arange(0, BN)
            at = (part * m + rows[:, None]) * capacity + columns[None, :]
            real = columns[None, :] < there_are[:, None]
            x = tl.load(KEYS + at, mask=real, other=NOTHING)
            indices = tl.load(INDICES + at, mask=real, other=-1)
            count = append(KEYS, INDICES, rows, x, indices, x > bound[:, None], count, capacity)
    tl.store(COUNTS + rows, count, mask=there)
    SELECTED += g * m * top_k
    cut(
        KEYS, INDICES, COUNTS, BOUNDS, None, SELECTED, tile * BM, m, capacity, top_k, top_k, top_k, BM, HEIGHT, WIDE
    )  # fmt: skip
    fill(SELECTED, COUNTS, tile * BM, m, top_k, BM, HEIGHT, WIDE)
