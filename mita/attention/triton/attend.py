"""Every query reads the landmarks and the keys of its expert: one online softmax over [landmarks ; selected keys]."""

import triton
import triton.language as tl

from .backward_common import find_tile
from .common import head_of, load_tile, softmax_end, softmax_step


@triton.jit
def attend_kernel(
    Q, K, V, L, VALUES, MASK, SELECTED, ORDER, STARTS, O, LSE, N, m, top_k, slots, heads, tiles,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, factor, scale,
    d: tl.constexpr, e: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BQ: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Landmarks are read if L is given, an expert's keys if SELECTED is.

    Grid: heads x tiles of BQ rows. With experts, rows are pairs (query, slot) sorted by expert, and only the first slot reads
    the landmarks. O (G, N * slots, e) and LSE (G, N * slots) are written at the rows' own places.
    """
    g, t = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    if SELECTED is None:
        expert, start, end = 0, t * BQ, N
    else:
        expert, start, end = find_tile(STARTS + g * (m + 1), t, m, N * slots, BQ)
    if start < end:
        rows = start + tl.arange(0, BQ)
        there = rows < end
        if SELECTED is not None:
            rows = tl.load(ORDER + g * N * slots + rows, mask=there, other=0)
        q = load_tile(head_of(Q, g, heads, q_batch, q_head), rows // slots, there, q_row, d, D)
        top = tl.zeros([BQ], tl.float32) - float("inf")
        total = tl.zeros([BQ], tl.float32)
        acc = tl.zeros([BQ, E], tl.float32)
        reads = expert < m  # a query without an expert has no landmark either
        if L is not None:
            for column in range(0, tl.where(reads, m, 0), BN):
                columns = column + tl.arange(0, BN)
                real = columns < m
                l = load_tile(L + g * m * d, columns, real, d, d, D)
                values = load_tile(VALUES + g * m * e, columns, real, e, e, E)
                if MASK is not None:
                    real = real & (tl.load(MASK + g // heads * m + columns, mask=real, other=0) != 0)
                logits = tl.dot(q, tl.trans(l), input_precision="ieee") * factor
                logits = tl.where(real[None, :] & (rows % slots == 0)[:, None], logits, float("-inf"))
                top, total, acc = softmax_step(logits, values, top, total, acc)
        if SELECTED is not None:
            K = head_of(K, g, heads, k_batch, k_head)
            V = head_of(V, g, heads, v_batch, v_head)
            SELECTED += (g * m + expert) * top_k
            for column in range(0, tl.where(reads, top_k, 0), BN):
                columns = column + tl.arange(0, BN)
                keys = tl.load(SELECTED + columns, mask=columns < top_k, other=-1)
                real = keys >= 0
                k = load_tile(K, keys, real, k_row, d, D)
                v = load_tile(V, keys, real, v_row, e, E)
                logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
                top, total, acc = softmax_step(tl.where(real[None, :], logits, float("-inf")), v, top, total, acc)
        o, lse = softmax_end(top, total, acc)
        columns = tl.arange(0, E)
        at = g * N * slots + rows
        mask = there[:, None] & (columns[None, :] < e)
        tl.store(O + at[:, None] * e + columns[None, :], o.to(O.dtype.element_ty), mask=mask)
        tl.store(LSE + at, lse, mask=there)
