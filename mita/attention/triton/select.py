"""Exact top-k of streamed scores: of equal scores the lowest index, in memory that does not grow with the stream.

Each row has a list in memory of `capacity` >= top_k + a tile. A tile's scores above the row's bound are appended, in order of
index; when the next tile may not fit, the lists are cut back. The cut finds, by bisection on integers that order as the floats
do, a bound that at least top_k and at most `limit` scores reach, and keeps these: in between, any such bound will do, and few
steps find one; at the end the limit is top_k. A later score that only equals the bound cannot be among the first top_k.
"""

import triton
import triton.language as tl

NOTHING = tl.constexpr(-(2**31))  # below the key of every score


@triton.jit
def sortable(scores):
    """Integers that order as the float32 scores do; -0.0 equals 0.0, and nan, the caller's fault, counts as inf."""
    scores = tl.where(scores == scores, scores, float("inf"))
    bits = tl.where(scores == 0.0, 0.0, scores).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def append(KEYS, INDICES, rows, keys, indices, take, count, capacity):
    """Append to each row's list what it takes of a tile; returns the new lengths. `indices` broadcasts to the tile."""
    one = take.to(tl.int32)
    place = rows[:, None] * capacity + count[:, None] + tl.cumsum(one, 1) - one
    tl.store(KEYS + place, keys, mask=take)
    tl.store(INDICES + place, indices + tl.zeros_like(keys), mask=take)
    return count + tl.sum(one, 1)


@triton.jit
def _load_keys(KEYS, rows, start, count, capacity, WIDE: tl.constexpr):
    """Entries start ... start + WIDE - 1 of the lists, NOTHING past their ends."""
    columns = start + tl.arange(0, WIDE)
    return tl.load(
        KEYS + rows[:, None] * capacity + columns[None, :], mask=columns[None, :] < count[:, None], other=NOTHING
    )


@triton.jit
def _reach(KEYS, rows, first, count, capacity, bound, longest, WIDE: tl.constexpr):
    """How many keys of each list are at least its bound; `first` holds the first WIDE of them, or all if KEYS is None."""
    n = tl.sum((first >= bound[:, None]).to(tl.int32), 1)
    if KEYS is not None:
        for start in range(WIDE, longest, WIDE):
            keys = _load_keys(KEYS, rows, start, count, capacity, WIDE)
            n += tl.sum((keys >= bound[:, None]).to(tl.int32), 1)
    return n


@triton.jit
def find_bound(KEYS, rows, first, count, capacity, top_k, limit, longest, WIDE: tl.constexpr):
    """For each list (bound, how many keys exceed it, how many that equal it are to be kept).

    At least top_k keys reach the bound, and at most `limit` unless ties forbid it; in a list within the limit all do.
    `first` holds the first WIDE keys of the lists, or all if KEYS is None; `longest` is the length of the longest.
    """
    full = count > limit
    low = tl.where(full, NOTHING + 1, NOTHING)
    high = tl.where(full, tl.max(first, 1), NOTHING)
    if KEYS is not None:
        for start in range(WIDE, longest, WIDE):
            more = tl.max(_load_keys(KEYS, rows, start, count, capacity, WIDE), 1)
            high = tl.where(full, tl.maximum(high, more), high)
    n = count
    while tl.max(((n > limit) & (low < high)).to(tl.int32), 0) > 0:
        middle = (low | high) - ((low ^ high) >> 1)  # their mean, rounded up, which cannot overflow
        reached = _reach(KEYS, rows, first, count, capacity, middle, longest, WIDE)
        enough = reached >= top_k
        search = n > limit
        n = tl.where(search & enough, reached, n)
        high = tl.where(search & ~enough, middle - 1, high)
        low = tl.where(search & enough, middle, low)
    above = _reach(KEYS, rows, first, count, capacity, low + 1, longest, WIDE)
    return low, above, tl.where(n > limit, top_k, n) - above


@triton.jit
def kept_of(keys, valid, bound, equals, above_before, equal_before):
    """What is kept of a tile of keys and, in order, where: (take, place, keys above the bound, keys equal to it).

    `above_before` and `equal_before` count those of earlier tiles.
    """
    above = (keys > bound[:, None]).to(tl.int32)
    equal = ((keys == bound[:, None]) & valid).to(tl.int32)
    both = (above << 16) + equal
    before = tl.cumsum(both, 1) - both
    rank = equal_before[:, None] + (before & 0xFFFF)
    take = (above > 0) | ((equal > 0) & (rank < equals[:, None]))
    place = above_before[:, None] + (before >> 16) + tl.minimum(rank, equals[:, None])
    return take, place, above_before + tl.sum(above, 1), equal_before + tl.sum(equal, 1)


@triton.jit
def cut(
    KEYS, INDICES, COUNTS, BOUNDS, KEYS_OUT, OUT, first_row, rows_end, capacity, width_out, top_k, limit,
    ROWS: tl.constexpr, HEIGHT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Cut the lists of ROWS rows back to `limit` entries or, where ties leave no choice, to top_k; updates COUNTS and BOUNDS.

    The entries kept go, in the same order, to rows of width_out in OUT and KEYS_OUT, which may be the lists themselves.
    """
    tl.debug_barrier()  # what other threads have appended
    for start_row in range(first_row, tl.minimum(first_row + ROWS, rows_end), HEIGHT):
        rows = start_row + tl.arange(0, HEIGHT)
        there = rows < rows_end
        count = tl.load(COUNTS + rows, mask=there, other=0)
        longest = tl.max(count, 0)
        keys = _load_keys(KEYS, rows, 0, count, capacity, WIDE)
        bound, above, equals = find_bound(KEYS, rows, keys, count, capacity, top_k, limit, longest, WIDE)
        kept_above = tl.zeros([HEIGHT], tl.int32)
        kept_equal = tl.zeros([HEIGHT], tl.int32)
        for start in range(0, longest, WIDE):
            if start > 0:
                keys = _load_keys(KEYS, rows, start, count, capacity, WIDE)
            columns = start + tl.arange(0, WIDE)
            valid = columns[None, :] < count[:, None]
            indices = tl.load(INDICES + rows[:, None] * capacity + columns[None, :], mask=valid, other=-1)
            take, place, kept_above, kept_equal = kept_of(keys, valid, bound, equals, kept_above, kept_equal)
            place += rows[:, None] * width_out
            tl.debug_barrier()  # all have read before any writes
            tl.store(OUT + place, indices, mask=take)
            if KEYS_OUT is not None:
                tl.store(KEYS_OUT + place, keys, mask=take)
            tl.debug_barrier()
        tl.store(COUNTS + rows, above + equals, mask=there)
        tl.store(BOUNDS + rows, tl.maximum(bound, tl.load(BOUNDS + rows, mask=there, other=NOTHING)), mask=there)
    tl.debug_barrier()


@triton.jit
def fill(OUT, COUNTS, first_row, rows_end, top_k, ROWS: tl.constexpr, HEIGHT: tl.constexpr, WIDE: tl.constexpr):
    """Write -1 behind the entries of each row of OUT, up to top_k."""
    for start_row in range(first_row, tl.minimum(first_row + ROWS, rows_end), HEIGHT):
        rows = start_row + tl.arange(0, HEIGHT)
        count = tl.load(COUNTS + rows, mask=rows < rows_end, other=top_k)
        for start in range(0, top_k, WIDE):
            columns = start + tl.arange(0, WIDE)
            absent = (columns[None, :] >= count[:, None]) & (columns[None, :] < top_k)
            tl.store(
                OUT + rows[:, None] * top_k + columns[None, :], tl.zeros([HEIGHT, WIDE], tl.int32) - 1, mask=absent
            )
