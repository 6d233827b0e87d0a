"""Exact top-k of streamed scores: of equal scores the lowest index, in memory that does not grow with the stream.

Each row has a list of CAPACITY entries in memory, an entry being a score's key (`sortable`) above its index in 64 bits. The
scores of a tile that are above the row's bound are appended, in order of index; when the next tile may not fit, the lists are
cut. A cut finds, by bisection, a bound that at least top_k and at most `limit` keys reach, and keeps these: in between any such
bound will do, and few steps find one; at the end the limit is top_k. A later score that only equals the bound is not among the
first top_k, so the tie rule holds.
"""

import triton
import triton.language as tl

NOTHING = tl.constexpr(-(2**31))  # below the key of every score
NO_ENTRY = tl.constexpr(-(2**63))


@triton.jit
def sortable(scores):
    """Integers that order as the float32 scores do; -0.0 equals 0.0, and nan, the caller's fault, counts as inf."""
    scores = tl.where(scores == scores, scores, float("inf"))
    bits = tl.where(scores == 0.0, 0.0, scores).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def entry_of(keys, indices):
    """Keys above indices."""
    return (keys.to(tl.int64) << 32) | indices.to(tl.int64)


@triton.jit
def key_of(entries):
    return (entries >> 32).to(tl.int32)


@triton.jit
def append(LISTS, rows, entries, take, count, CAPACITY: tl.constexpr):
    """Append to each row's list what it takes of a tile; returns the new lengths."""
    one = take.to(tl.int32)
    place = rows[:, None] * CAPACITY + count[:, None] + tl.cumsum(one, 1) - one
    tl.store(LISTS + place, entries, mask=take)
    return count + tl.sum(one, 1)


@triton.jit
def _load(LISTS, rows, start, count, CAPACITY: tl.constexpr, WIDE: tl.constexpr):
    """Entries start ... start + WIDE - 1 of the lists, NO_ENTRY past their ends."""
    columns = start + tl.arange(0, WIDE)
    at = rows[:, None] * CAPACITY + columns[None, :]
    return tl.load(LISTS + at, mask=columns[None, :] < count[:, None], other=NO_ENTRY)


@triton.jit
def _reach(LISTS, rows, first, count, bound, longest, CAPACITY: tl.constexpr, WIDE: tl.constexpr):
    """How many keys of each list are at least its bound; `first` holds the first WIDE of them."""
    n = tl.sum((first >= bound[:, None]).to(tl.int32), 1)
    if CAPACITY > WIDE:
        for start in range(WIDE, longest, WIDE):
            keys = key_of(_load(LISTS, rows, start, count, CAPACITY, WIDE))
            n += tl.sum((keys >= bound[:, None]).to(tl.int32), 1)
    return n


@triton.jit
def find_bound(LISTS, rows, first, count, top_k, limit, longest, CAPACITY: tl.constexpr, WIDE: tl.constexpr):
    """For each list (bound, how many keys exceed it, how many that equal it are to be kept).

    At least top_k keys reach the bound, and at most `limit` unless ties forbid it; in a list within the limit all do.
    `first` holds the first WIDE keys of the lists; `longest` is the length of the longest.
    """
    full = count > limit
    low = tl.where(full, NOTHING + 1, NOTHING)
    high = tl.where(full, tl.max(first, 1), NOTHING)
    if CAPACITY > WIDE:
        for start in range(WIDE, longest, WIDE):
            more = tl.max(key_of(_load(LISTS, rows, start, count, CAPACITY, WIDE)), 1)
            high = tl.where(full, tl.maximum(high, more), high)
    n = count
    while tl.max(((n > limit) & (low < high)).to(tl.int32), 0) > 0:
        middle = (low | high) - ((low ^ high) >> 1)  # their mean, rounded up, which cannot overflow
        reached = _reach(LISTS, rows, first, count, middle, longest, CAPACITY, WIDE)
        enough = reached >= top_k
        search = n > limit
        n = tl.where(search & enough, reached, n)
        high = tl.where(search & ~enough, middle - 1, high)
        low = tl.where(search & enough, middle, low)
    above = _reach(LISTS, rows, first, count, low + 1, longest, CAPACITY, WIDE)
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
    LISTS, COUNTS, BOUNDS, SELECTED, first_row, rows_end, top_k, limit,
    CAPACITY: tl.constexpr, ROWS: tl.constexpr, HEIGHT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Cut the lists of ROWS rows to at most `limit` entries or, where ties forbid that, to top_k; updates COUNTS and BOUNDS.

    If SELECTED (top_k a row) is given, the indices kept go there, and -1 behind them; the lists are left as they are.
    """
    tl.debug_barrier()  # what other threads have appended
    for start_row in range(first_row, tl.minimum(first_row + ROWS, rows_end), HEIGHT):
        rows = start_row + tl.arange(0, HEIGHT)
        there = rows < rows_end
        count = tl.load(COUNTS + rows, mask=there, other=0)
        longest = tl.max(count, 0)
        entries = _load(LISTS, rows, 0, count, CAPACITY, WIDE)
        bound, above, equals = find_bound(
            LISTS, rows, key_of(entries), count, top_k, limit, longest, CAPACITY, WIDE
        )  # fmt: skip
        kept_above = tl.zeros([HEIGHT], tl.int32)
        kept_equal = tl.zeros([HEIGHT], tl.int32)
        for start in range(0, longest, WIDE):
            if start > 0:
                entries = _load(LISTS, rows, start, count, CAPACITY, WIDE)
            valid = (start + tl.arange(0, WIDE))[None, :] < count[:, None]
            take, place, kept_above, kept_equal = kept_of(key_of(entries), valid, bound, equals, kept_above, kept_equal)
            tl.debug_barrier()  # all have read before any writes
            if SELECTED is None:
                tl.store(LISTS + rows[:, None] * CAPACITY + place, entries, mask=take)
            else:
                tl.store(SELECTED + rows[:, None] * top_k + place, entries.to(tl.int32), mask=take)
            tl.debug_barrier()
        tl.store(COUNTS + rows, above + equals, mask=there)
        tl.store(BOUNDS + rows, tl.maximum(bound, tl.load(BOUNDS + rows, mask=there, other=NOTHING)), mask=there)
        if SELECTED is not None:
            for start in range(0, top_k, WIDE):
                columns = start + tl.arange(0, WIDE)[None, :]
                absent = there[:, None] & (columns >= (above + equals)[:, None]) & (columns < top_k)
                tl.store(
                    SELECTED + rows[:, None] * top_k + columns, tl.zeros([HEIGHT, WIDE], tl.int32) - 1, mask=absent
                )
    tl.debug_barrier()
