"""What the forward kernels share: heads of strided tensors, and softmaxes in steps and in parts."""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def head_of(X, g, heads, stride_batch, stride_head):
    """Where head g of a (batch, heads, ...) tensor begins."""
    return X + g // heads * stride_batch + g % heads * stride_head


@triton.jit
def load_tile(X, rows, there, stride, width: tl.constexpr, WIDTH: tl.constexpr):
    """Rows of a matrix of `width` columns, with zero columns up to WIDTH; rows that are not there are zeros."""
    columns = tl.arange(0, WIDTH)
    mask = there[:, None]
    if width < WIDTH:
        mask = mask & (columns[None, :] < width)
    return tl.load(X + rows[:, None].to(tl.int64) * stride + columns[None, :], mask=mask, other=0.0)


@triton.jit
def softmax_step(logits, v, top, total, acc):
    """Take one tile into an online softmax: logits (rows, keys), -inf for what is not read, and v (keys, width).

    The weights are exp(logits - top), total is their sum and acc their product with v, where top is the largest logit so far.
    """
    higher = tl.maximum(top, tl.max(logits, 1))
    origin = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp2((logits - origin[:, None]) * LOG2E)
    shrink = tl.exp2((top - origin) * LOG2E)
    acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
    return higher, total * shrink + tl.sum(weights, 1), acc


@triton.jit
def softmax_end(top, total, acc):
    """(the softmax's output, its log-sum-exp); 0 and -inf for a row that has read nothing."""
    some = tl.where(total > 0, total, 1.0)
    return acc / some[:, None], tl.where(total > 0, top + tl.log2(some) / LOG2E, float("-inf"))


@triton.jit
def combine_kernel(
    PARTS,
    PARTS_LSE,
    O,
    LSE,
    n,
    tiles,
    parts,
    row_stride,
    part_stride,
    e: tl.constexpr,
    E: tl.constexpr,
    BQ: tl.constexpr,
):
    """Put parts of one softmax together by their log-sum-exps, in order: o = sum of exp(lse_p - lse) o_p.

    Grid: heads x tiles of BQ of the n rows. Part p of row r is row r * row_stride + p * part_stride of a head's n * parts rows of
    PARTS (width e) and PARTS_LSE.
    """
    g, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    rows = tile * BQ + tl.arange(0, BQ)
    there = rows < n
    columns = tl.arange(0, E)
    mask = there[:, None] & (columns[None, :] < e)
    top = tl.zeros([BQ], tl.float32) - float("inf")
    total = tl.zeros([BQ], tl.float32)
    acc = tl.zeros([BQ, E], tl.float32)
    for part in range(parts):
        source = g * n * parts + rows * row_stride + part * part_stride
        lse = tl.load(PARTS_LSE + source, mask=there, other=float("-inf"))
        o = tl.load(PARTS + source[:, None] * e + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        higher = tl.maximum(top, lse)
        origin = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp2((lse - origin) * LOG2E)
        shrink = tl.exp2((top - origin) * LOG2E)
        acc = acc * shrink[:, None] + weight[:, None] * o
        total = total * shrink + weight
        top = higher
    o, lse = softmax_end(top, total, acc)
    at = g * n + rows
    tl.store(O + at[:, None] * e + columns[None, :], o.to(O.dtype.element_ty), mask=mask)
    tl.store(LSE + at, lse, mask=there)
