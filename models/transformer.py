"""The one trunk: pre-norm transformer blocks over a token sequence of known layout."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from timm.layers import DropPath, LayerScale, Mlp, trunc_normal_
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mita import MultiHeadAttention, TokenLayout, cost

LayerNorm = partial(nn.LayerNorm, eps=1e-6)


class RMSNorm(nn.RMSNorm):
    """torch's, in the type of its input: under autocast a weight of another type would keep it from the fused kernel."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); LayerScale and stochastic depth on both. Names as in timm."""

    def __init__(
        self,
        dim: int,
        attention: MultiHeadAttention,
        mlp_ratio: float,
        norm: Callable[[int], nn.Module],
        activation: Callable[[], nn.Module],
        drop: float,
        drop_path: float,
        layer_scale: float | None,
    ) -> None:
        super().__init__()
        self.norm1 = norm(dim)
        self.attn = attention
        self.ls1 = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.norm2 = norm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), act_layer=activation, drop=drop)
        self.ls2 = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, layout: TokenLayout, key_mask: Tensor | None = None) -> Tensor:
        x = x + self.drop_path(self.ls1(self.attn(self.norm1(x), layout, key_mask)))
        return x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))

    def multiply_adds(self, layout: TokenLayout) -> int:
        N = layout.num_tokens
        return self.attn.multiply_adds(layout) + cost.linear(self.mlp.fc1, N) + cost.linear(self.mlp.fc2, N)


class Transformer(nn.ModuleList):
    """`depth` blocks. A ModuleList, so that a model that calls it `blocks` has timm's names: blocks.3.attn.qkv.weight.

    Args:
        dim: C.
        depth: number of blocks.
        attention: builds the attention layer of one block, as `partial(MultiHeadAttention, dim, num_heads, mechanism)`.
        mlp_ratio: hidden width of the MLP over C.
        norm: dim -> module.
        activation: of the MLP.
        drop: dropout in the MLP.
        drop_path: rate of stochastic depth.
        drop_path_schedule: "linear" (from 0 in the first block to `drop_path` in the last) or "constant".
        layer_scale: initial value of LayerScale, None for none.
        gradient_checkpointing: recompute each block in the backward pass; the same gradients with less memory.

    Raises:
        ValueError: an unknown drop_path_schedule.
    """

    def __init__(
        self,
        dim: int,
        depth: int,
        attention: Callable[[], MultiHeadAttention],
        mlp_ratio: float = 4.0,
        norm: Callable[[int], nn.Module] = LayerNorm,
        activation: Callable[[], nn.Module] = nn.GELU,
        drop: float = 0.0,
        drop_path: float = 0.0,
        drop_path_schedule: str = "linear",
        layer_scale: float | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        if drop_path_schedule not in ("linear", "constant"):
            raise ValueError(f"drop_path_schedule is linear or constant, got {drop_path_schedule!r}")
        linear = drop_path_schedule == "linear"
        rates = [drop_path * i / max(depth - 1, 1) if linear else drop_path for i in range(depth)]
        super().__init__(
            Block(dim, attention(), mlp_ratio, norm, activation, drop, rate, layer_scale) for rate in rates
        )
        self.gradient_checkpointing = gradient_checkpointing

    def forward(self, x: Tensor, layout: TokenLayout, key_mask: Tensor | None = None) -> Tensor:
        """x (B, N, C), layout of the N tokens, key_mask (B, N) bool with True for a real token -> (B, N, C).

        What stands in padding reaches no real token; rows at padded positions hold nothing of use.
        """
        if key_mask is not None:
            x = x.masked_fill(~key_mask[:, :, None], 0)
        for block in self:
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, x, layout, key_mask, use_reentrant=False)
            else:
                x = block(x, layout, key_mask)
        return x

    def multiply_adds(self, layout: TokenLayout) -> int:
        """Multiply-adds for one sequence of this layout (convention: `mita.cost`)."""
        return sum(block.multiply_adds(layout) for block in self)


def init_weights(model: nn.Module, attention_init: str) -> None:
    """Initialise every linear layer as timm and DeiT do: weights truncated-normal with sd .02, biases 0.

    attention_init: "trunc_normal" includes the projections of attention; "torch_default" leaves them at `nn.Linear`'s
        own (uniform, sd 1 / sqrt(3 C), biases not 0), as in the released MiTA-DeiT. Mechanisms initialise their own
        parameters.

    Raises:
        ValueError: an unknown attention_init.
    """
    if attention_init not in ("trunc_normal", "torch_default"):
        raise ValueError(f"attention_init is trunc_normal or torch_default, got {attention_init!r}")
    own = set()
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            own.update((module if attention_init == "torch_default" else module.mechanism).modules())
    for module in model.modules():
        if isinstance(module, nn.Linear) and module not in own:
            trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
