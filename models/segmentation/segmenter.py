"""A segmenter: backbone, CBT head, and the scores brought back to the size of the image."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from .backbone import Backbone
from .cbt_head import CBTHead
from .inference import predict
from .weights import load_backbone


class Segmenter(nn.Module):
    """Images to a score of every class at every pixel (Table 4). State-dict keys are `encoder.*` (timm's) and `decoder.*`.

    Args:
        mechanism_factory: (num_heads, head_dim) -> attention mechanism of a block of the backbone.
        num_classes: K.
        input_size: (channels, height, width) in pixels of the crops that the position embedding is made for.
        patch_size, embed_dim, depth, num_heads, mlp_ratio, qkv_bias, qk_norm, depthwise_conv, gate, norm_eps, drop_path,
        drop_path_schedule, layer_scale, attention_init, gradient_checkpointing: of the backbone, see `VisionTransformer`.
        decoder_depth, decoder_heads, decoder_head_dim, representatives: of the head, see `CBTHead`.
        pretrained: where the backbone's weights come from, see `load_backbone`; None for random ones. Not read when the
            model is built on the meta device.

    Raises:
        ValueError: an option does not fit, or the pretrained weights are missing or of another size.
    """

    def __init__(
        self,
        mechanism_factory: Callable[[int, int], nn.Module],
        num_classes: int = 150,
        input_size: tuple[int, int, int] = (3, 512, 512),
        patch_size: int = 16,
        embed_dim: int = 192,
        depth: int = 12,
        num_heads: int = 3,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        depthwise_conv: bool = False,
        gate: bool = False,
        norm_eps: float = 1e-5,
        drop_path: float = 0.0,
        drop_path_schedule: str = "linear",
        layer_scale: float | None = None,
        attention_init: str = "trunc_normal",
        gradient_checkpointing: bool = False,
        decoder_depth: int = 3,
        decoder_heads: int = 3,
        decoder_head_dim: int = 100,
        representatives: Sequence[int] = (10, 10),
        pretrained: str | None = None,
    ) -> None:
        super().__init__()
        self.encoder = Backbone(
            mechanism_factory, input_size, norm_eps, attention_init,
            patch_size=patch_size, embed_dim=embed_dim, depth=depth, num_heads=num_heads, mlp_ratio=mlp_ratio,
            qkv_bias=qkv_bias, qk_norm=qk_norm, depthwise_conv=depthwise_conv, gate=gate,
            drop_path=drop_path, drop_path_schedule=drop_path_schedule, layer_scale=layer_scale,
            gradient_checkpointing=gradient_checkpointing,
        )  # fmt: skip
        self.decoder = CBTHead(
            embed_dim, num_classes, decoder_depth, decoder_heads, decoder_head_dim, tuple(representatives)
        )
        if pretrained is not None and not self.encoder.pos_embed.is_meta:
            report = load_backbone(self.encoder, pretrained)
            if report.missing or report.unused:
                warnings.warn(str(report), stacklevel=2)

    def forward(self, images: Tensor) -> Tensor:
        """(B, channels, H, W) -> class scores (B, K, H, W), for any H and W; bilinear from the patch grid."""
        height, width = images.shape[-2:]
        scores = self.decoder(self.encoder(images))
        padded = [side * self.encoder.patch_size for side in scores.shape[-2:]]
        return F.interpolate(scores, size=padded, mode="bilinear", align_corners=False)[..., :height, :width]

    def predict(self, image: Tensor, size: tuple[int, int], **windows) -> Tensor:
        """Probabilities (K, height, width) of an image (channels, H, W) of any size; see `inference.predict`."""
        return predict(self, image, size, **windows)

    def no_weight_decay(self) -> set[str]:
        """Parameters, besides biases and norms, that weight decay leaves alone."""
        parts = (("encoder", self.encoder), ("decoder", self.decoder))
        return {f"{prefix}.{name}" for prefix, part in parts for name in part.no_weight_decay()}

    def multiply_adds(self, input_size: tuple[int, int, int]) -> int:
        """Multiply-adds for one image of (channels, height, width); resizing is not counted (convention: `mita.cost`)."""
        grid = self.encoder.layout(tuple(input_size[1:])).grid
        return self.encoder.multiply_adds(input_size) + self.decoder.multiply_adds(grid)
