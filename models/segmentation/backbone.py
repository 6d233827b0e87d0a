"""The vision transformer as a backbone of dense prediction: images of any size in, a feature map out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from mita import TokenLayout

from ..vit import VisionTransformer


class Backbone(VisionTransformer):
    """`VisionTransformer` without classifier, for images of any height and width; state-dict keys are timm's.

    The epsilon of its LayerNorms is torch's 1e-5, as in the authors' segmenters, although the AugReg weights that these
    start from were trained with 1e-6.

    Args:
        mechanism_factory: (num_heads, head_dim) -> attention mechanism of a block.
        input_size: (channels, height, width) in pixels of the crops that the position embedding is made for; other sizes
            resample it.
        **options: of `VisionTransformer`.
    """

    def __init__(
        self,
        mechanism_factory: Callable[[int, int], nn.Module],
        input_size: tuple[int, int, int] = (3, 512, 512),
        norm_eps: float = 1e-5,
        attention_init: str = "trunc_normal",
        **options: Any,
    ) -> None:
        super().__init__(
            mechanism_factory,
            num_classes=0,
            input_size=input_size,
            norm_eps=norm_eps,
            attention_init=attention_init,
            **options,
        )

    def layout(self, image_size: tuple[int, int]) -> TokenLayout:
        """Token layout of an image of (height, width) pixels, after padding to whole patches."""
        return super().layout(tuple(-(-side // self.patch_size) * self.patch_size for side in image_size))

    def forward(self, images: Tensor) -> Tensor:
        """(B, channels, H, W) -> (B, C, ceil(H / patch), ceil(W / patch)): the normed patch tokens on their grid.

        Images that do not divide into patches are padded with zeros to the right and below.
        """
        layout = self.layout(images.shape[-2:])
        height, width = (self.patch_size * side for side in layout.grid)
        padded = F.pad(images, (0, width - images.shape[-1], 0, height - images.shape[-2]))
        return self.forward_features(padded)[:, layout.grid_slice].mT.unflatten(2, layout.grid)
