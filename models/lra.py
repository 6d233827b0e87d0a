"""The model of Long Range Arena's PyTorch lineage (Xiong et al., Nyströmformer, 2021): two layers of width 64 over tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from mita import MultiHeadAttention, TokenLayout, cost

from .transformer import Transformer


class SequenceEncoder(nn.Module):
    """Tokens to one vector a sequence: token and position embeddings, the pre-norm trunk, a norm, the mean of real tokens.

    Args:
        mechanism_factory: (num_heads, head_dim) -> attention mechanism of a layer.
        max_length: greatest N; the table of learned positions has the next power of two of rows.
        vocab_size: number of tokens, 0 (padding) included.
        embed_dim, depth, num_heads, mlp_dim: size of the trunk.
        drop: dropout of the embeddings, after attention's projection, and after both layers of the MLP.
        pool_over_padding: legacy: divide the sum of the real tokens by N in place of their number, with N = `max_length`.
        zero_is_padding: legacy: take every token 0 for padding, so that black pixels are neither attended to nor pooled.
        gradient_checkpointing: see `Transformer`.
    """

    def __init__(
        self,
        mechanism_factory: Callable[[int, int], nn.Module],
        max_length: int,
        vocab_size: int,
        embed_dim: int,
        depth: int,
        num_heads: int,
        mlp_dim: int,
        drop: float,
        pool_over_padding: bool,
        zero_is_padding: bool,
        gradient_checkpointing: bool,
    ) -> None:
        super().__init__()
        self.max_length, self.pool_over_padding, self.zero_is_padding = max_length, pool_over_padding, zero_is_padding
        self.tokens = nn.Embedding(vocab_size, embed_dim)
        self.positions = nn.Embedding(1 << (max_length - 1).bit_length(), embed_dim)
        self.drop = nn.Dropout(drop)
        attention = partial(MultiHeadAttention, embed_dim, num_heads, mechanism_factory, proj_drop=drop)
        self.blocks = Transformer(
            embed_dim, depth, attention, mlp_dim / embed_dim, nn.LayerNorm,
            drop=drop, gradient_checkpointing=gradient_checkpointing,
        )  # fmt: skip
        self.norm = nn.LayerNorm(embed_dim)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor, length: Tensor | None = None) -> Tensor:
        """tokens (B, N) int64, length (B,) int64 of real tokens (they come first; None: all N are real) -> (B, C).

        A sequence without any real token gives zeros.

        Raises:
            ValueError: N is greater than the table of positions.
        """
        N = tokens.shape[1]
        if N > self.positions.num_embeddings:
            raise ValueError(f"a sequence of {N} tokens, but the model has {self.positions.num_embeddings} positions")
        mask = self.mask(tokens, length)
        x = self.drop(self.tokens(tokens) + self.positions.weight[:N])
        x = self.norm(self.blocks(x, TokenLayout((N,)), mask))
        if mask is None:
            return x.mean(1)
        total = x.masked_fill(~mask[:, :, None], 0).sum(1)
        return total / (self.max_length if self.pool_over_padding else mask.sum(1, keepdim=True).clamp(min=1))

    def mask(self, tokens: Tensor, length: Tensor | None) -> Tensor | None:
        """(B, N) bool, True for a real token; None when all are."""
        mask = None
        if length is not None:
            mask = torch.arange(tokens.shape[1], device=tokens.device) < length[:, None]
        if self.zero_is_padding:
            mask = tokens.ne(0) if mask is None else mask & tokens.ne(0)
        return mask

    def multiply_adds(self, num_tokens: int) -> int:
        return self.blocks.multiply_adds(TokenLayout((num_tokens,)))


class SequenceClassifier(nn.Module):
    """A sequence to logits: the encoder and a two-layer head. Options as in `SequenceEncoder`.

    Args:
        input_size: (N,), the length of the sequences.
        num_classes: number of logits.
        head_dim: hidden width of the head.

    Parameters with 10 classes, N = 2048 and a vocabulary of 32 (ListOps): 209,802.
    """

    sequences = 1
    features = 1  # vectors that the head reads

    def __init__(
        self,
        mechanism_factory: Callable[[int, int], nn.Module],
        num_classes: int,
        input_size: tuple[int, ...],
        vocab_size: int = 512,
        embed_dim: int = 64,
        depth: int = 2,
        num_heads: int = 2,
        mlp_dim: int = 128,
        head_dim: int = 128,
        drop: float = 0.1,
        pool_over_padding: bool = False,
        zero_is_padding: bool = False,
        gradient_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        if len(input_size) != 1:
            raise ValueError(f"this model reads sequences of tokens, but an item is of shape {tuple(input_size)}")
        self.encoder = SequenceEncoder(
            mechanism_factory, input_size[0], vocab_size, embed_dim, depth, num_heads, mlp_dim, drop,
            pool_over_padding, zero_is_padding, gradient_checkpointing,
        )  # fmt: skip
        self.head = nn.Sequential(
            nn.Linear(self.features * embed_dim, head_dim), nn.ReLU(), nn.Linear(head_dim, num_classes)
        )
        legacy = {"pool_over_padding": pool_over_padding, "zero_is_padding": zero_is_padding}
        self.switches = {name: True for name, on in legacy.items() if on}

    def forward(self, tokens: Tensor, length: Tensor | None = None) -> Tensor:
        """tokens (B, N) int64, length (B,) of real tokens or None for all -> logits (B, num_classes)."""
        return self.head(self.encoder(tokens, length))

    def multiply_adds(self, input_size: tuple[int, ...]) -> int:
        """Multiply-adds for one item of sequences of (N,) tokens (convention: `mita.cost`)."""
        head = sum(cost.linear(layer, 1) for layer in self.head if isinstance(layer, nn.Linear))
        return self.sequences * self.encoder.multiply_adds(input_size[0]) + head


class PairClassifier(SequenceClassifier):
    """Two sequences through one encoder to logits; the head reads [a, b, a * b, a - b]. No attention between the two."""

    sequences = 2
    features = 4

    def forward(self, tokens_a: Tensor, length_a: Tensor, tokens_b: Tensor, length_b: Tensor) -> Tensor:
        """tokens (B, N) int64 and length (B,) of each -> logits (B, num_classes)."""
        a, b = self.encoder(torch.cat([tokens_a, tokens_b]), torch.cat([length_a, length_b])).chunk(2)
        return self.head(torch.cat([a, b, a * b, a - b], 1))
