"""The vision transformer of DeiT, with any attention mechanism and for images of any height and width."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from timm.layers import PatchEmbed, resample_abs_pos_embed, trunc_normal_
from torch import Tensor, nn

from mita import MultiHeadAttention, TokenLayout, cost

from .transformer import Transformer, init_weights


class VisionTransformer(nn.Module):
    """Patches and a class token through the trunk to logits (DeiT, arXiv:2012.12877). State-dict keys are timm's.

    Args:
        mechanism_factory: (num_heads, head_dim) -> attention mechanism of a block.
        num_classes: number of logits; 0 leaves the head out.
        input_size: (channels, height, width) in pixels of the images that the position embedding is made for.
        patch_size: side of a patch in pixels.
        embed_dim, depth, num_heads, mlp_ratio: size of the trunk.
        qkv_bias, depthwise_conv, gate: see `mita.MultiHeadAttention`.
        qk_norm: LayerNorm (with `norm_eps`) on each head of q and k.
        norm_eps: epsilon of the LayerNorms.
        drop_path, drop_path_schedule, layer_scale, gradient_checkpointing: see `Transformer`.
        attention_init: "torch_default" (released MiTA-DeiT) or "trunc_normal" (DeiT, timm), see `init_weights`.

    Raises:
        ValueError: the items are no images, the image size is no multiple of the patch size, or the width none of the
            number of heads.
    """

    def __init__(
        self,
        mechanism_factory: Callable[[int, int], nn.Module],
        num_classes: int = 1000,
        input_size: tuple[int, int, int] = (3, 224, 224),
        patch_size: int = 16,
        embed_dim: int = 768,
        depth: int = 12,
        num_heads: int = 12,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        depthwise_conv: bool = False,
        gate: bool = False,
        norm_eps: float = 1e-6,
        drop_path: float = 0.0,
        drop_path_schedule: str = "linear",
        layer_scale: float | None = None,
        attention_init: str = "torch_default",
        gradient_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        if len(input_size) != 3:
            raise ValueError(f"this model reads images (channels, height, width), but an item is of shape {input_size}")
        norm = partial(nn.LayerNorm, eps=norm_eps)
        attention = partial(
            MultiHeadAttention, embed_dim, num_heads, mechanism_factory,
            qkv_bias=qkv_bias, qk_norm=norm if qk_norm else None, depthwise_conv=depthwise_conv, gate=gate,
        )  # fmt: skip
        self.patch_size = patch_size
        self.grid = self.layout(tuple(input_size[1:])).grid
        self.patch_embed = PatchEmbed(None, patch_size, input_size[0], embed_dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + self.grid[0] * self.grid[1], embed_dim))
        self.blocks = Transformer(
            embed_dim, depth, attention, mlp_ratio, norm,
            drop_path=drop_path, drop_path_schedule=drop_path_schedule, layer_scale=layer_scale,
            gradient_checkpointing=gradient_checkpointing,
        )  # fmt: skip
        self.norm = norm(embed_dim)
        self.head = nn.Linear(embed_dim, num_classes) if num_classes else nn.Identity()

        trunc_normal_(self.cls_token, std=0.02)
        trunc_normal_(self.pos_embed, std=0.02)
        init_weights(self, attention_init)

    def layout(self, image_size: tuple[int, int]) -> TokenLayout:
        """Token layout of an image of (height, width) pixels.

        Raises:
            ValueError: the size is no multiple of the patch size.
        """
        height, width = image_size
        if height < 1 or width < 1 or height % self.patch_size or width % self.patch_size:
            raise ValueError(
                f"an image of {height}x{width} pixels does not divide into patches of side {self.patch_size}; "
                f"resize or pad it to multiples of {self.patch_size}"
            )
        return TokenLayout((height // self.patch_size, width // self.patch_size), num_prefix=1)

    def forward_features(self, images: Tensor) -> Tensor:
        """(B, channels, H, W) -> normed tokens (B, 1 + N, C), class token first.

        The position embedding is resampled (bicubic, antialiased) when the grid is not the one it was made for.
        """
        layout = self.layout(images.shape[-2:])
        x = self.patch_embed(images)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
        x = x + resample_abs_pos_embed(self.pos_embed, layout.grid, self.grid, num_prefix_tokens=1)
        return self.norm(self.blocks(x, layout))

    def forward(self, images: Tensor) -> Tensor:
        """(B, channels, H, W) -> logits (B, num_classes), from the class token."""
        return self.head(self.forward_features(images)[:, 0])

    def no_weight_decay(self) -> set[str]:
        """Parameters, besides biases and norms, that weight decay leaves alone."""
        return {"cls_token", "pos_embed"}

    def multiply_adds(self, input_size: tuple[int, int, int]) -> int:
        """Multiply-adds for one image of (channels, height, width) (convention: `mita.cost`)."""
        layout = self.layout(tuple(input_size[1:]))
        total = cost.convolution(self.patch_embed.proj, layout.num_grid) + self.blocks.multiply_adds(layout)
        return total + (cost.linear(self.head, 1) if isinstance(self.head, nn.Linear) else 0)
