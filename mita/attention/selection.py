"""Top-k, routing and their tie rule: of equal scores the lowest index wins, and -0.0 equals 0.0."""

from collections.abc import Iterator

import torch
from torch import Tensor


def top_k(scores: Tensor, k: int) -> Tensor:
    """Positions of the k largest scores of each row, in ascending order.

    scores: (R, N), k <= N. Returns (R, k) int64. `torch.topk` promises no order among equal scores, so the rows
    where more than k scores reach the k-th largest are decided again, exactly.
    """
    R, N = scores.shape
    if k == N:
        return torch.arange(N, device=scores.device).expand(R, N).clone()
    positions, tied = _fast_top_k(scores, k)
    positions = positions.sort(-1).values
    tied = tied.nonzero().squeeze(-1)
    if tied.numel():
        positions[tied] = _tied_top_k(scores[tied], k)
    return positions


def _fast_top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Positions of k largest scores in any order, and whether the row has a tie for the last place.

    On long rows it is faster to go by blocks: the k strided blocks with the largest maxima hold all candidates.
    Each of the two steps is a smaller top-k, so it is taken in the same way.
    """
    R, N = scores.shape
    block = 1 << int(max(1, N // k) ** 0.5).bit_length() >> 1
    if scores.device.type != "cpu" or block < 4 or N % block:
        kth, positions = scores.topk(k, sorted=False)
        return positions, (scores >= kth.amin(-1, keepdim=True)).sum(-1) > k
    blocks = scores.view(R, block, N // block)  # block j holds the scores j, j + N/block, ...
    maxima = blocks.amax(1)
    best, _ = _fast_top_k(maxima, k)
    candidates = blocks.gather(2, best.unsqueeze(1).expand(R, block, k)).view(R, block * k)
    position, tied = _fast_top_k(candidates, k)
    kth = candidates.gather(1, position).amin(-1, keepdim=True)
    tied = tied | ((maxima >= kth).sum(-1) > k)
    row = position.div(k, rounding_mode="floor")
    return row * (N // block) + best.gather(1, position - row * k), tied


def _tied_top_k(scores: Tensor, k: int) -> Tensor:
    """The tie rule in full: everything above the k-th largest score, then the first scores equal to it."""
    scores = torch.where(scores.isnan(), torch.inf, scores)  # the caller's fault, but never a crash
    kth = scores.topk(k).values[:, -1:]
    above, equal = scores > kth, scores == kth
    keep = above | (equal & (equal.cumsum(-1) <= k - above.sum(-1, keepdim=True)))
    return keep.nonzero()[:, 1].view(-1, k)


def best_experts(gate: Tensor, s: int) -> Tensor:
    """The s landmarks with the largest gate score, best first; -1 where none is left (-inf).

    gate: (..., m). Returns (..., s) int64. `max` gives the first of equal scores.
    """
    experts = []
    for slot in range(s):
        score, expert = gate.max(-1)
        experts.append(expert.masked_fill(score == -torch.inf, -1))
        if slot + 1 < s:
            gate = gate.scatter(-1, expert.unsqueeze(-1), -torch.inf)
    return torch.stack(experts, -1)


def group_rows(experts: Tensor, num_experts: int, tile: int, limit: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batch the rows that share an expert, without padding to the largest expert.

    experts: (R,) int64, the expert of each row, -1 for none. Experts are bucketed by their count of rows rounded up to
    whole tiles; each bucket is one batch (several, if it exceeds `limit` rows).
    Yields (expert (c,), rows (c, t)); a place that holds no row has the number R. Counts, not sorted positions, give
    the offsets, and rows are the original ones, so nothing has to be undone.
    """
    R = experts.numel()
    order = experts.argsort(stable=True)
    counts = torch.bincount(experts + 1, minlength=num_experts + 1)
    offsets = counts.cumsum(0)[:-1]  # rows without an expert sort first
    counts = counts[1:]
    tiles, by_size = counts.add(tile - 1).div(tile, rounding_mode="floor").sort(stable=True)
    sizes, repeats = tiles.unique_consecutive(return_counts=True)
    start = 0
    for size, repeat in zip(sizes.tolist(), repeats.tolist(), strict=True):
        bucket = by_size[start : start + repeat]
        start += repeat
        if size == 0:
            continue
        place = torch.arange(size * tile, device=experts.device)
        for expert in bucket.split(max(1, limit // (size * tile))):
            rows = order[(offsets[expert, None] + place).clamp_(max=R - 1)]
            yield expert, rows.masked_fill_(place >= counts[expert, None], R)
