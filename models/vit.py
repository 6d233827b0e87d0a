"""The vision transformer of DeiT, DeiT III and ViT-5, with any attention mechanism, for images of any height and width."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from timm.layers import PatchEmbed, resample_abs_pos_embed, trunc_normal_
from torch import Tensor, nn

from mita import MultiHeadAttention, TokenLayout, cost
from mita.rope import RotaryEmbedding

from .transformer import RMSNorm, Transformer, init_weights

NORMS = {"layer_norm": nn.LayerNorm, "rms_norm": RMSNorm}


class VisionTransformer(nn.Module):
    """Patches and a class token through the trunk to logits (DeiT, arXiv:2012.12877). State-dict keys are timm's.

    Tokens are [class | patches | registers]. The defaults are DeiT's; DeiT III (arXiv:2204.07118) and ViT-5 are options.

    Args:
        mechanism_factory: (num_heads, head_dim) -> attention mechanism of a block.
        num_classes: number of logits; 0 leaves the head out.
        input_size: (channels, height, width) in pixels of the images that the position embedding is made for.
        patch_size: side of a patch in pixels.
        embed_dim, depth, num_heads, mlp_ratio: size of the trunk.
        qkv_bias, depthwise_conv, gate: see `mita.MultiHeadAttention`.
        norm, norm_eps: "layer_norm" or "rms_norm", and its epsilon.
        qk_norm: the same norm on each head of q and k.
        class_position: whether the class token has a position embedding of its own, as patches do.
        num_registers: learned tokens after the patches, without absolute position. With `rope_span` 0, 1, 4, 9, ...
        rope_span: where positions end in the rotary embedding of q and k (see `mita.rope`), None for none.
        drop_path, drop_path_schedule, layer_scale, gradient_checkpointing: see `Transformer`.
        attention_init: "torch_default" (released MiTA-DeiT) or "trunc_normal" (DeiT, timm), see `init_weights`.

    Raises:
        ValueError: the items are no images, the image size is no multiple of the patch size, the width none of the
            number of heads, the norm is unknown, or a rotary embedding does not fit the head dim or the registers.
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
        norm: str = "layer_norm",
        norm_eps: float = 1e-6,
        qk_norm: bool = False,
        class_position: bool = True,
        num_registers: int = 0,
        rope_span: float | None = None,
        depthwise_conv: bool = False,
        gate: bool = False,
        drop_path: float = 0.0,
        drop_path_schedule: str = "linear",
        layer_scale: float | None = None,
        attention_init: str = "torch_default",
        gradient_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        if len(input_size) != 3:
            raise ValueError(f"this model reads images (channels, height, width), but an item is of shape {input_size}")
        if norm not in NORMS:
            raise ValueError(f"norm is one of {', '.join(NORMS)}, got {norm!r}")
        make_norm = partial(NORMS[norm], eps=norm_eps)
        rope = None if rope_span is None else RotaryEmbedding(rope_span)
        attention = partial(
            MultiHeadAttention, embed_dim, num_heads, mechanism_factory, qkv_bias=qkv_bias,
            qk_norm=make_norm if qk_norm else None, rope=rope, depthwise_conv=depthwise_conv, gate=gate,
        )  # fmt: skip
        self.patch_size, self.class_position, self.num_registers = patch_size, class_position, num_registers
        layout = self.layout(tuple(input_size[1:]))
        if rope is not None:
            rope.check(embed_dim // num_heads, layout)
        self.grid = layout.grid
        self.patch_embed = PatchEmbed(None, patch_size, input_size[0], embed_dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.reg_token = nn.Parameter(torch.zeros(1, num_registers, embed_dim)) if num_registers else None
        self.pos_embed = nn.Parameter(torch.zeros(1, class_position + layout.num_grid, embed_dim))
        self.blocks = Transformer(
            embed_dim, depth, attention, mlp_ratio, make_norm,
            drop_path=drop_path, drop_path_schedule=drop_path_schedule, layer_scale=layer_scale,
            gradient_checkpointing=gradient_checkpointing,
        )  # fmt: skip
        self.norm = make_norm(embed_dim)
        self.head = nn.Linear(embed_dim, num_classes) if num_classes else nn.Identity()

        trunc_normal_(self.cls_token, std=0.02)
        trunc_normal_(self.pos_embed, std=0.02)
        if self.reg_token is not None:
            trunc_normal_(self.reg_token, std=0.02)
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
        grid = (height // self.patch_size, width // self.patch_size)
        return TokenLayout(grid, num_prefix=1, num_suffix=self.num_registers)

    def forward_features(self, images: Tensor) -> Tensor:
        """(B, channels, H, W) -> normed tokens (B, 1 + patches + registers, C), class token first, registers last.

        The position embedding is resampled (bicubic, antialiased) when the grid is not the one it was made for.
        """
        layout = self.layout(images.shape[-2:])
        on_class = int(self.class_position)
        positions = resample_abs_pos_embed(self.pos_embed, layout.grid, self.grid, num_prefix_tokens=on_class)
        patches = self.patch_embed(images) + positions[:, on_class:]
        first = self.cls_token + positions[:, :1] if self.class_position else self.cls_token
        tokens = [first.expand(len(patches), -1, -1), patches]
        if self.reg_token is not None:
            tokens.append(self.reg_token.expand(len(patches), -1, -1))
        return self.norm(self.blocks(torch.cat(tokens, dim=1), layout))

    def forward(self, images: Tensor) -> Tensor:
        """(B, channels, H, W) -> logits (B, num_classes), from the class token."""
        return self.head(self.forward_features(images)[:, 0])

    def no_weight_decay(self) -> set[str]:
        """Parameters, besides biases and norms, that weight decay leaves alone."""
        return {"cls_token", "pos_embed", "reg_token"}

    def multiply_adds(self, input_size: tuple[int, int, int]) -> int:
        """Multiply-adds for one image of (channels, height, width) (convention: `mita.cost`)."""
        layout = self.layout(tuple(input_size[1:]))
        total = cost.convolution(self.patch_embed.proj, layout.num_grid) + self.blocks.multiply_adds(layout)
        return total + (cost.linear(self.head, 1) if isinstance(self.head, nn.Linear) else 0)
