"""Reformer: every token reads the tokens that locality-sensitive hashing puts near it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import cost
from ..attention.precision import no_autocast
from ..layout import TokenLayout
from .base import Mechanism

SELF = -1e5  # added to a token's logit with itself: read only when there is nothing else


class Reformer(Mechanism):
    """LSH attention (Kitaev et al., 2020, arXiv:2001.04451), not causal. Keys are the queries at length one; k is not used.

    In each round the tokens are sorted by the bucket of a random rotation and cut into chunks; a token reads those of its bucket
    in its chunk and in the one before. Rounds are weighed by their normalisers. Padding is sorted last, and the first chunk
    has none before it, so that padding changes nothing. The rotations are drawn once, at construction, and are a buffer.

    Args:
        num_hashes: rounds.
        num_buckets: buckets of a round, even, or 1.
        chunk_length: tokens of a chunk.

    Raises:
        ValueError: an option out of range.
    """

    def __init__(
        self, num_heads: int, head_dim: int, num_hashes: int = 2, num_buckets: int = 64, chunk_length: int = 64
    ) -> None:
        super().__init__(num_heads, head_dim)
        if min(num_hashes, num_buckets, chunk_length) < 1 or (num_buckets > 1 and num_buckets % 2):
            raise ValueError(
                "num_hashes and chunk_length are at least 1, and num_buckets is even or 1, got "
                f"{num_hashes}, {chunk_length} and {num_buckets}"
            )
        self.num_buckets, self.chunk_length = num_buckets, chunk_length
        self.register_buffer("rotations", torch.randn(num_hashes, num_heads, head_dim, num_buckets // 2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout, key_mask: Tensor | None) -> Tensor:
        B, H, N, _ = q.shape
        wide = torch.promote_types(q.dtype, torch.float32)
        real = torch.ones(B, N, dtype=torch.bool, device=q.device) if key_mask is None else key_mask
        outputs, normalisers = [], []
        with no_autocast(q.device.type):
            q, v_ = q.to(wide), v.to(wide)
            for rotation in self.rotations.to(wide):
                o, lse = self._round(q, v_, real, self._buckets(q, rotation, real))
                outputs.append(o)
                normalisers.append(lse)
            weights = torch.stack(normalisers).softmax(0).unsqueeze(-1)
            return (weights * torch.stack(outputs)).sum(0).to(v.dtype)

    def multiply_adds(self, layout: TokenLayout) -> int:
        N, read = layout.num_tokens, min(2 * self.chunk_length, layout.num_tokens)
        return self.num_heads * len(self.rotations) * cost.matmul(N, self.head_dim, self.num_buckets // 2 + 2 * read)

    def _buckets(self, q: Tensor, rotation: Tensor, real: Tensor) -> Tensor:
        """(B, H, N): the bucket of each token, padding in one of its own behind all others."""
        if self.num_buckets == 1:
            bucket = torch.zeros(q.shape[:3], dtype=torch.int64, device=q.device)
        else:
            turned = q.detach() @ rotation
            bucket = torch.cat([turned, -turned], -1).argmax(-1)
        return bucket.masked_fill(~real[:, None], self.num_buckets)

    def _round(self, q: Tensor, v: Tensor, real: Tensor, bucket: Tensor) -> tuple[Tensor, Tensor]:
        """One round: o (B, H, N, d) and its log-normaliser (B, H, N)."""
        N, c = q.shape[2], self.chunk_length
        order = bucket.argsort(dim=-1, stable=True)
        chunks = -(-N // c)

        def cut(t: Tensor, value: float = 0) -> Tensor:
            """(B, H, N, ...) in sorted order, cut into (B, H, chunks, c, ...)."""
            index = order.view(*order.shape, *[1] * (t.dim() - 3)).expand(t.shape)
            padding = (0, 0) * (t.dim() - 3) + (0, chunks * c - N)
            return F.pad(t.gather(2, index), padding, value=value).unflatten(2, (chunks, c))

        def with_previous(t: Tensor, value: float) -> Tensor:
            """(B, H, chunks, 2c, ...): a chunk behind the one before it."""
            before = F.pad(t[:, :, :-1], (0, 0) * (t.dim() - 3) + (1, 0), value=value)
            return torch.cat([before, t], 3)

        queries, place = cut(q), cut(torch.arange(N, device=q.device).expand(order.shape), -1)
        label = cut(bucket, self.num_buckets)
        keys = F.normalize(with_previous(queries, 0.0), dim=-1)
        scores = self.head_dim**-0.5 * queries @ keys.mT
        key_label, key_place = with_previous(label, self.num_buckets), with_previous(place, -1)
        scores = scores + SELF * (place.unsqueeze(-1) == key_place.unsqueeze(-2))
        # a padded query reads its own kind, finite and of no use to anyone
        scores = scores.masked_fill(label.unsqueeze(-1) != key_label.unsqueeze(-2), -torch.inf)
        o, lse = scores.softmax(-1) @ with_previous(cut(v), 0.0), scores.logsumexp(-1)
        undo = order.argsort(-1)
        o, lse = (t.flatten(2, 3)[:, :, :N] for t in (o, lse))
        return o.gather(2, undo.unsqueeze(-1).expand(-1, -1, -1, o.shape[-1])), lse.gather(2, undo)
