"""The backbone and the CBT head by name in mmsegmentation's registry; importing this file registers both.

An mmseg configuration says `custom_imports = dict(imports=["models.segmentation.mmseg"])`, as configs/mmseg does, and is run with
this project's root on PYTHONPATH. Nothing else here needs mmseg.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mita import mechanisms

from .backbone import Backbone
from .cbt_head import CBTHead
from .mmcv_ops import prepare_mmseg
from .weights import load_backbone

prepare_mmseg()

from mmengine.logging import print_log  # noqa: E402
from mmengine.model import BaseModule  # noqa: E402
from mmseg.models.decode_heads.decode_head import BaseDecodeHead  # noqa: E402
from mmseg.registry import MODELS  # noqa: E402


@MODELS.register_module()
class MiTABackbone(Backbone, BaseModule):
    """`Backbone` as mmseg's: (B, channels, H, W) to a tuple of one feature map (B, C, ceil(H / patch), ceil(W / patch)).

    Args:
        attention: name of an attention mechanism and its options, `dict(name="mita", num_landmarks=49, top_k=49)`.
        input_size: (channels, height, width) in pixels of the crops that the position embedding is made for.
        init_cfg: `dict(type="Pretrained", checkpoint=...)`, where `init_weights` finds weights: a file, a run folder or the
            name of a model of timm, see `load_backbone`. None for random weights.
        **options: of `Backbone`.

    Raises:
        ValueError: the mechanism or one of its options is unknown, or `init_cfg` is of another type.
    """

    def __init__(
        self,
        attention: Mapping[str, Any],
        input_size: tuple[int, int, int] = (3, 512, 512),
        init_cfg: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if "name" not in attention:
            raise ValueError(f"attention names its mechanism, dict(name='mita', ...), but it is {dict(attention)}")
        if init_cfg is not None and (init_cfg.get("type"), *sorted(init_cfg)) != ("Pretrained", "checkpoint", "type"):
            raise ValueError(
                "init_cfg of a MiTABackbone is dict(type='Pretrained', checkpoint=...) or None (random weights), got "
                f"{dict(init_cfg)}"
            )
        attention = dict(attention)
        super().__init__(partial(mechanisms.build, attention.pop("name"), **attention), tuple(input_size), **options)
        self.init_cfg = init_cfg

    def init_weights(self) -> None:
        """Load what `init_cfg` names, the first time. Nothing else is touched: weights that were loaded before stay.

        Raises:
            ValueError: the weights are missing or of another size.
        """
        if self.init_cfg is not None and not self.is_init:
            report = load_backbone(self, self.init_cfg["checkpoint"])
            complete = not (report.missing or report.unused)
            print_log(str(report), logger="current", level=logging.INFO if complete else logging.WARNING)
        self.is_init = True

    def forward(self, images: Tensor) -> tuple[Tensor]:
        """(B, channels, H, W) -> one map (B, C, ceil(H / patch), ceil(W / patch))."""
        return (super().forward(images),)


@MODELS.register_module()
class MiTACBTHead(BaseDecodeHead):
    """`CBTHead` as mmseg's: a tuple of feature maps (B, C, h, w) to class scores (B, K, h, w).

    Args:
        in_channels: C.
        num_classes: K.
        patch_size: side in pixels of what a place of the feature map stands for, as the backbone's.
        depth, num_heads, head_dim, representatives: see `CBTHead`.
        **options: of mmseg's `BaseDecodeHead`: loss_decode, ignore_index, sampler, in_index.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        patch_size: int = 16,
        depth: int = 3,
        num_heads: int = 3,
        head_dim: int = 100,
        representatives: Sequence[int] = (10, 10),
        **options: Any,
    ) -> None:
        super().__init__(
            in_channels, in_channels, num_classes=num_classes, out_channels=num_classes, dropout_ratio=0, init_cfg=None,
            **options,
        )  # fmt: skip
        del self.conv_seg  # the base class's own classifier; cosines with class tokens stand in its place
        self.patch_size = patch_size
        self.decoder = CBTHead(in_channels, num_classes, depth, num_heads, head_dim, tuple(representatives))

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """Feature maps (B, C, h, w), of which `in_index` is read -> class scores (B, K, h, w)."""
        return self.decoder(self._transform_inputs(inputs))

    def loss_by_feat(self, seg_logits: Tensor, batch_data_samples: Sequence[Any]) -> dict[str, Tensor]:
        """Losses of scores on the feature map's grid, at the size of the label maps."""
        size = batch_data_samples[0].gt_sem_seg.shape
        return super().loss_by_feat(self._cut(seg_logits, size), batch_data_samples)

    def predict_by_feat(self, seg_logits: Tensor, batch_img_metas: Sequence[Mapping[str, Any]]) -> Tensor:
        """Scores on the feature map's grid -> (B, K, H, W) at the size of the images, or of the window that slides."""
        return super().predict_by_feat(self._cut(seg_logits, self._size(batch_img_metas[0])), batch_img_metas)

    def _size(self, meta: Mapping[str, Any]) -> tuple[int, int]:
        """(height, width) in pixels of the backbone's input; a sliding window puts its own in "img_shape"."""
        sliding = isinstance(meta["img_shape"], torch.Size)
        return tuple(meta["img_shape" if sliding or "pad_shape" not in meta else "pad_shape"][:2])

    def _cut(self, scores: Tensor, size: tuple[int, int]) -> Tensor:
        """Scores at `size` where the backbone had to pad it to whole patches; else as they are, for mmseg to resize."""
        padded = tuple(side * self.patch_size for side in scores.shape[-2:])
        if padded == tuple(size):
            return scores
        return F.interpolate(scores, size=padded, mode="bilinear", align_corners=False)[..., : size[0], : size[1]]
