"""Short sequences: one program does everything for a head, with all keys at hand and no memory in between.

Every query is scored against every key, and what its expert did not select is masked: cheaper than to sort and gather.
"""

import triton
import triton.language as tl

from .common import head_of, load_tile, softmax_end, softmax_step
from .select import NOTHING, find_bound, kept_of, sortable


@triton.jit
def short_kernel(
    Q, K, V, L, MASK, LANDMARK_MASK, O, LSE, VALUES, VALUES_LSE, SELECTED, EXPERTS, N, Nk, m, top_k, heads, shares, share,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, factor, scale,
    d: tl.constexpr, e: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BQ: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """All of Nk <= BN keys and m <= BM landmarks of a head, for a share of its queries; one expert a query, top_k <= BK.

    Grid: heads x shares. Without VALUES the landmarks are not read, only routed to. The first share writes what is the head's.
    """
    g, part = (tl.program_id(0) // shares).to(tl.int64), tl.program_id(0) % shares
    landmarks, keys, columns = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, E)
    there, real = landmarks < m, keys < Nk
    l = load_tile(L + g * m * d, landmarks, there, d, d, D)
    k = load_tile(head_of(K, g, heads, k_batch, k_head), keys, real, k_row, d, D)
    v = load_tile(head_of(V, g, heads, v_batch, v_head), keys, real, v_row, e, E)
    readable = there
    if MASK is not None:
        real = real & (tl.load(MASK + g // heads * Nk + keys, mask=real, other=0) != 0)
    if LANDMARK_MASK is not None:
        readable = there & (tl.load(LANDMARK_MASK + g // heads * m + landmarks, mask=there, other=0) != 0)

    # Landmarks probe the keys: `member` says which keys each has selected.
    s = tl.dot(l, tl.trans(k), input_precision="ieee") * scale
    x = tl.where(real[None, :], sortable(s), NOTHING)
    count = tl.zeros([BM], tl.int32) + tl.sum(real.to(tl.int32), 0)
    bound, above, equals = find_bound(None, landmarks, x, count, top_k, top_k, BN, BN, BN)
    none = tl.zeros([BM], tl.int32)
    take, place, _, _ = kept_of(x, real[None, :], bound, equals, none, none)
    member = take.to(Q.dtype.element_ty)
    first = there & (part == 0)
    index = tl.zeros([BM, BN], tl.int32) + keys[None, :]
    tl.store(SELECTED + (g * m + landmarks[:, None]) * top_k + place, index, mask=take & first[:, None])
    entries = tl.arange(0, BK)
    absent = first[:, None] & (entries[None, :] >= (above + equals)[:, None]) & (entries[None, :] < top_k)
    tl.store(
        SELECTED + (g * m + landmarks[:, None]) * top_k + entries[None, :],
        tl.zeros([BM, BK], tl.int32) - 1,
        mask=absent,
    )
    if VALUES is not None:
        nothing = tl.zeros([BM], tl.float32)
        s = tl.where(real[None, :], s, float("-inf"))
        values, values_lse = softmax_end(
            *softmax_step(s, v, nothing - float("inf"), nothing, tl.zeros([BM, E], tl.float32))
        )
        own = g * m + landmarks
        tl.store(VALUES + own[:, None] * e + columns[None, :], values, mask=first[:, None] & (columns[None, :] < e))
        tl.store(VALUES_LSE + own, values_lse, mask=first)
        values = values.to(v.dtype)

    Q = head_of(Q, g, heads, q_batch, q_head)
    for start in range(part * share, tl.minimum((part + 1) * share, N), BQ):
        rows = start + tl.arange(0, BQ)
        q = load_tile(Q, rows, rows < N, q_row, d, D)
        gate = tl.where(readable[None, :], tl.dot(q, tl.trans(l), input_precision="ieee"), float("-inf"))
        best, expert = tl.max(gate, 1, return_indices=True)
        expert = tl.where(best == float("-inf"), -1, expert)
        top = tl.zeros([BQ], tl.float32) - float("inf")
        total = tl.zeros([BQ], tl.float32)
        acc = tl.zeros([BQ, E], tl.float32)
        if VALUES is not None:
            logits = tl.where(readable[None, :], gate * factor, float("-inf"))
            top, total, acc = softmax_step(logits, values, top, total, acc)
        chosen = (expert[:, None] == landmarks[None, :]).to(member.dtype)
        read = tl.dot(chosen, member, input_precision="ieee") > 0.5
        logits = tl.where(read, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
        top, total, acc = softmax_step(logits, v, top, total, acc)
        o, lse = softmax_end(top, total, acc)
        at = g * N + rows
        mask = (rows < N)[:, None] & (columns[None, :] < e)
        tl.store(O + at[:, None] * e + columns[None, :], o.to(O.dtype.element_ty), mask=mask)
        tl.store(LSE + at, lse, mask=rows < N)
        tl.store(EXPERTS + at, expert, mask=rows < N)
