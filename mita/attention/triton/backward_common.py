"""What the kernels of the backward pass share, beside `common.py`."""

import triton
import triton.language as tl


@triton.jit
def place_of(programs):
    """(head as int64, number within the head) of this program, where each head has `programs` of them."""
    pid = tl.program_id(0)
    return (pid // programs).to(tl.int64), pid % programs


@triton.jit
def store_tile(X, rows, there, values, width: tl.constexpr, WIDTH: tl.constexpr):
    """Write rows of a contiguous matrix, rounded to its type: the opposite of `load_tile`."""
    columns = tl.arange(0, WIDTH)
    mask = there[:, None]
    if width < WIDTH:
        mask = mask & (columns[None, :] < width)
    tl.store(X + rows[:, None] * width + columns[None, :], values.to(X.dtype.element_ty), mask=mask)


@triton.jit
def load_lse(LSE, rows, there):
    """Log-sum-exps; +inf, so that every weight is 0, where there is no row or the row has read nothing (-inf)."""
    lse = tl.load(LSE + rows, mask=there, other=float("-inf"))
    return tl.where(lse == float("-inf"), float("inf"), lse)


@triton.jit
def real_rows(MASK, first, rows, there):
    """Whether rows are there and, if there is a MASK, are real; `first` is the place of row 0 in it."""
    if MASK is not None:
        there = there & (tl.load(MASK + first + rows, mask=there, other=0) != 0)
    return there


@triton.jit
def find_tile(STARTS, tile, m, rows, BQ: tl.constexpr):
    """A tile of the rows sorted by expert: its expert (m for rows that have none), first row, and the end of the expert's rows.

    Expert i owns the tiles from starts[i] // BQ + i on: room for all its rows whatever the counts, and rows // BQ + m + 1
    tiles in all. A tile may be empty (first row >= end).
    """
    low, high = 0, m + 1
    while high - low > 1:
        middle = (low + high) // 2
        owned = tl.load(STARTS + middle) // BQ + middle <= tile
        low, high = tl.where(owned, middle, low), tl.where(owned, high, middle)
    begin = tl.load(STARTS + low)
    end = tl.load(STARTS + low + 1, mask=low < m, other=rows)
    return low, begin + (tile - begin // BQ - low) * BQ, end
