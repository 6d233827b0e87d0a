"""Networks by name. A new one is a file here, a line in `MODELS`, and a yaml of the same name.

Every one is called with `mechanism_factory`, `num_classes`, `input_size` and its own options, and has
`multiply_adds(input_size)` for one item.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from mita import registry

from .lra import PairClassifier, SequenceClassifier
from .segmentation import Segmenter
from .vit import VisionTransformer

_DEIT3 = partial(VisionTransformer, class_position=False, layer_scale=1e-4, attention_init="trunc_normal")
_VIT5 = partial(_DEIT3, qkv_bias=False, norm="rms_norm", qk_norm=True, num_registers=4, rope_span=14.0)

MODELS: dict[str, Callable[..., nn.Module]] = {
    "lra": SequenceClassifier,
    "lra_pair": PairClassifier,
    "vit": VisionTransformer,
    "deit_tiny": partial(VisionTransformer, embed_dim=192, depth=12, num_heads=3),
    "deit_small": partial(VisionTransformer, embed_dim=384, depth=12, num_heads=6),
    "deit_base": partial(VisionTransformer, embed_dim=768, depth=12, num_heads=12),
    "deit3_small": partial(_DEIT3, embed_dim=384, depth=12, num_heads=6),
    "vit5_small": partial(_VIT5, embed_dim=384, depth=12, num_heads=6),
    "vit5_base": partial(_VIT5, embed_dim=768, depth=12, num_heads=12),
    "vit5_large": partial(_VIT5, embed_dim=1024, depth=24, num_heads=16),
    "segmenter": Segmenter,
    "segmenter_tiny": partial(Segmenter, embed_dim=192, depth=12, num_heads=3, decoder_depth=3),
    "segmenter_small": partial(Segmenter, embed_dim=384, depth=12, num_heads=6, decoder_depth=3),
    "segmenter_base": partial(Segmenter, embed_dim=768, depth=12, num_heads=12, decoder_depth=6),
    "segmenter_large": partial(
        Segmenter, input_size=(3, 640, 640), embed_dim=1024, depth=24, num_heads=16, decoder_depth=9
    ),
}
SIZES = (  # options that are numbers from 1
    "embed_dim", "depth", "num_heads", "patch_size", "mlp_dim", "head_dim", "vocab_size", "decoder_heads", "decoder_head_dim",
)  # fmt: skip
RATES = ("drop", "drop_path")


def build(
    name: str, *, mechanism_factory: Callable[[int, int], nn.Module], num_classes: int, **options: Any
) -> nn.Module:
    """The model registered under `name`, with the attention that `mechanism_factory(num_heads, head_dim)` builds.

    Among the options is `input_size`: (C, H, W) of the images or (N,) of the token sequences it is made for.

    Raises:
        ValueError: the name or an option is unknown (the nearest known names are given), or an option does not fit.
    """
    for option, value in options.items():
        if option in SIZES and value < 1:
            raise ValueError(f"model.{option}={value} must be 1 or more")
        if option in RATES and not 0 <= value < 1:
            raise ValueError(f"model.{option}={value} must be a share, from 0 to below 1")
    options = dict(mechanism_factory=mechanism_factory, num_classes=num_classes, **options)
    return registry.build("model", MODELS, name, **options)


__all__ = ["MODELS", "Segmenter", "VisionTransformer", "build"]
