"""Routing in Triton: the experts of each query, and rows sorted by expert.

The sort is a counting sort, stable and without atomics, so the order is the same every time: count the rows of each expert in
each block of rows, add up (expert first, block second), and put every row behind those before it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .common import head_of, load_tile

SORT_BLOCK = 256


@triton.jit
def gate_kernel(
    Q, L, MASK, EXPERTS, N, m, heads, tiles, q_batch, q_head, q_row,
    SLOTS: tl.constexpr, d: tl.constexpr, D: tl.constexpr, BQ: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """EXPERTS (G, N, SLOTS): the landmarks with the largest q.l, best first, the lowest index of equals; -1 where none is left.

    Grid: heads x tiles of BQ queries.
    """
    g, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    rows = tile * BQ + tl.arange(0, BQ)
    there = rows < N
    q = load_tile(head_of(Q, g, heads, q_batch, q_head), rows, there, q_row, d, D)
    last = tl.zeros([BQ], tl.float32) + float("inf")  # score and index of the slot before
    last_index = tl.zeros([BQ], tl.int32) - 1
    for slot in range(SLOTS):
        best = tl.zeros([BQ], tl.float32) - float("inf")
        best_index = tl.zeros([BQ], tl.int32) - 1
        for start in range(0, m, BN):
            columns = start + tl.arange(0, BN)
            real = columns < m
            l = load_tile(L + g * m * d, columns, real, d, d, D)
            score = tl.dot(q, tl.trans(l), input_precision="ieee")
            if MASK is not None:
                real = real & (tl.load(MASK + g // heads * m + columns, mask=real, other=0) != 0)
            allowed = real[None, :]
            if SLOTS > 1:
                behind = (score == last[:, None]) & (columns[None, :] > last_index[:, None])
                allowed = allowed & ((score < last[:, None]) | behind)
            highest, at = tl.max(tl.where(allowed, score, float("-inf")), 1, return_indices=True)
            best_index = tl.where(highest > best, start + at, best_index)
            best = tl.maximum(best, highest)
        tl.store(EXPERTS + (g * N + rows) * SLOTS + slot, best_index, mask=there)
        last, last_index = best, best_index


@triton.jit
def _others_like_it(EXPERTS, rows, n, m, first, BLOCK: tl.constexpr, COLUMNS: tl.constexpr):
    """(expert of each row with m for none, how many rows of the same expert stand before it in its block, how many after)."""
    expert = tl.load(EXPERTS + rows, mask=rows < n, other=0)
    before = tl.zeros([BLOCK], tl.int32)
    after = tl.zeros([BLOCK], tl.int32)
    for start in range(0, BLOCK, COLUMNS):
        others = first + start + tl.arange(0, COLUMNS)
        other = tl.load(EXPERTS + others, mask=others < n, other=-2)
        same = expert[:, None] == other[None, :]
        before += tl.sum((same & (others[None, :] < rows[:, None])).to(tl.int32), 1)
        after += tl.sum((same & (others[None, :] > rows[:, None])).to(tl.int32), 1)
    return tl.where(expert < 0, m, expert), before, after


@triton.jit
def count_kernel(EXPERTS, COUNTS, n, m, blocks, BLOCK: tl.constexpr, COLUMNS: tl.constexpr):
    """COUNTS[g, 1 + expert * blocks + block] = the expert's rows in the block, written by its last row there; zeros elsewhere.

    Grid: heads x blocks of rows. EXPERTS (G, n), -1 for none.
    """
    g, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    rows = block * BLOCK + tl.arange(0, BLOCK)
    expert, before, after = _others_like_it(EXPERTS + g * n, rows, n, m, block * BLOCK, BLOCK, COLUMNS)
    COUNTS += g * (1 + (m + 1) * blocks)
    tl.store(COUNTS + 1 + expert * blocks + block, before + 1, mask=(rows < n) & (after == 0))


@triton.jit
def place_kernel(EXPERTS, BEFORE, ORDER, n, m, blocks, BLOCK: tl.constexpr, COLUMNS: tl.constexpr):
    """ORDER[g, place of a row] = the row; BEFORE[g, expert * blocks + block] rows stand before the expert's in the block.

    Grid: heads x blocks of rows.
    """
    g, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    rows = block * BLOCK + tl.arange(0, BLOCK)
    expert, before, _ = _others_like_it(EXPERTS + g * n, rows, n, m, block * BLOCK, BLOCK, COLUMNS)
    BEFORE += g * (1 + (m + 1) * blocks)
    place = tl.load(BEFORE + expert * blocks + block, mask=rows < n, other=0) + before
    tl.store(ORDER + g * n + place, rows, mask=rows < n)


def sort_queries(experts: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Sort the rows (query, slot) of each head by expert, stably.

    experts: (G, Nq, s) int32 in -1 ... m - 1. Returns order (G, Nq * s) int32, the rows n * s + slot, those without an expert
    (-1) last; and starts (G, m + 1) int32, where the rows of each expert begin in it, and where those without one do.
    """
    G, n = experts.shape[0], experts[0].numel()
    experts = experts.contiguous()
    blocks = triton.cdiv(n, SORT_BLOCK)
    counts = torch.zeros(G, 1 + (m + 1) * blocks, dtype=torch.int32, device=experts.device)
    sizes = {"BLOCK": SORT_BLOCK, "COLUMNS": 32, "num_warps": 8}
    count_kernel[(G * blocks,)](experts, counts, n, m, blocks, **sizes)
    before = counts.cumsum(1, dtype=torch.int32)
    order = torch.empty(G, n, dtype=torch.int32, device=experts.device)
    place_kernel[(G * blocks,)](experts, before, order, n, m, blocks, **sizes)
    return order, before[:, :-1:blocks].contiguous()
