"""Weights for a backbone from elsewhere: a run of this project, a checkpoint of timm or its npz form."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import timm
import torch
from timm.layers import resample_abs_pos_embed
from timm.models import VisionTransformer as TimmVisionTransformer
from timm.models import adapt_input_conv
from torch import Tensor

from ..vit import VisionTransformer

PREFIXES = ("module.", "encoder.", "backbone.")  # of distributed training, the authors' segmenters, mmsegmentation
HEADS = ("head.", "head_dist.", "decoder.", "decode_head.", "pre_logits.")


@dataclass(frozen=True)
class LoadReport:
    """What `load_backbone` did: names of the model that were loaded, those of them that had to be adapted, names that the
    source did not have (they keep their initial values), and the source's names that the model has no use for."""

    source: str
    loaded: tuple[str, ...]
    adapted: tuple[str, ...]
    missing: tuple[str, ...]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        parts = [f"{self.source}: {len(self.loaded)} tensors loaded"]
        for label in ("adapted", "missing", "unused"):
            names = getattr(self, label)
            if names:
                parts.append(f"{label}: {', '.join(names[:4])}" + (f" and {len(names) - 4} more" * (len(names) > 4)))
        return "; ".join(parts)


def load_backbone(model: VisionTransformer, source: str | Path) -> LoadReport:
    """Load the weights of a vision transformer into `model`, whatever attention mechanism either has.

    The position embedding is resampled to the model's grid (bilinear, as the authors' segmenters do at loading), from a
    square grid where its length allows one; the filter of the patches is summed or repeated to the model's channels. A
    classifier or another head is left out. What else is not in both is told in the report.

    Args:
        model: to be changed in place.
        source: a file (.npz of AugReg; .safetensors; anything else as torch saves it: last.ckpt and best.ckpt of a run, or a
            checkpoint with "model" or "state_dict", read with `weights_only=True`); a run folder, for its best.ckpt; or the
            name of a model of timm, which is downloaded.

    Raises:
        ValueError: there is no such file, it cannot be read, or it is of a transformer of another size.
    """
    state, own = _strip(_read(source)), model.state_dict()
    loaded = {name: _fit(name, tensor, model) for name, tensor in state.items() if name in own}
    if "patch_embed.proj.weight" not in loaded or not any(name.startswith("blocks.") for name in loaded):
        raise ValueError(
            f"{source} holds no vision transformer with timm's names (patch_embed.proj.weight, blocks.0.attn.qkv.weight, "
            f"...); its first names are {', '.join(list(state)[:3]) or 'none'}"
        )
    for name, tensor in loaded.items():
        if tensor.shape != own[name].shape:
            raise ValueError(
                f"{source} is of another size than this backbone: {name} is {tuple(tensor.shape)} there and "
                f"{tuple(own[name].shape)} here; choose the model of that size"
            )
    model.load_state_dict(loaded, strict=False)
    return LoadReport(
        str(source),
        loaded=tuple(loaded),
        adapted=tuple(name for name, tensor in loaded.items() if tensor is not state[name]),
        missing=tuple(name for name in own if name not in loaded),
        unused=tuple(name for name in state if name not in own and not name.startswith(HEADS)),
    )


def _read(source: str | Path) -> dict[str, Tensor]:
    path = Path(source)
    if path.is_dir():
        path = path / "best.ckpt"
    if not path.is_file():
        if timm.is_model(str(source)):
            return _from_timm(str(source))
        raise ValueError(
            f"there are no weights {source}: it is neither a file or run folder nor the name of a model of timm; "
            "give one, or null for random weights"
        )
    try:
        if path.suffix == ".npz":
            return _read_npz(path)
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        with torch.serialization.safe_globals([argparse.Namespace]):  # DeiT's and timm's files hold their arguments
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # readers raise whatever they meet
        raise ValueError(
            f"{path} cannot be read as weights ({type(error).__name__}: {(str(error).splitlines() or [''])[0]})"
        ) from error
    for key in ("model", "state_dict"):
        if isinstance(state.get(key), dict):
            return state[key]
    return state


def _from_timm(name: str) -> dict[str, Tensor]:
    try:
        return timm.create_model(name, pretrained=True).state_dict()
    except Exception as error:  # of the network, or of a model without weights
        raise ValueError(
            f"timm's weights {name} could not be had ({type(error).__name__}: {(str(error).splitlines() or [''])[0]}); fetch the "
            "checkpoint where there is a network and give the file, or give null for random weights"
        ) from error


def _read_npz(path: Path) -> dict[str, Tensor]:
    """AugReg's form, read by timm's reader into a model of timm of the file's own size."""
    with np.load(path) as arrays:
        shapes = {name.removeprefix("opt/target/"): arrays[name].shape for name in arrays.files}
    patch, _, channels, width = shapes["embedding/kernel"]
    side = round((shapes["Transformer/posembed_input/pos_embedding"][1] - 1) ** 0.5)
    heads = shapes["Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel"][1]
    twin = TimmVisionTransformer(
        img_size=side * patch, patch_size=patch, in_chans=channels, num_classes=0, embed_dim=width,
        depth=len({name.split("/")[1] for name in shapes if name.startswith("Transformer/encoderblock_")}),
        num_heads=heads, mlp_ratio=shapes["Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel"][1] / width,
    )  # fmt: skip
    twin.load_pretrained(str(path))
    return twin.state_dict()


def _strip(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names from the transformer on, without what it is a part of."""
    for prefix in PREFIXES:
        if any(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    return state


def _fit(name: str, tensor: Tensor, model: VisionTransformer) -> Tensor:
    """The tensor for the model's grid and channels; the same object where nothing is to be done."""
    if name == "pos_embed" and tensor.ndim == 3:
        on_class = int(model.class_position)
        places = tensor.shape[1] - on_class
        if math.isqrt(max(places, 0)) ** 2 == places:
            return resample_abs_pos_embed(
                tensor, model.grid, num_prefix_tokens=on_class, interpolation="bilinear", antialias=False
            )
    channels = model.patch_embed.proj.in_channels
    if name == "patch_embed.proj.weight" and tensor.ndim == 4 and tensor.shape[1] != channels:
        return _adapt_channels(tensor, channels)
    return tensor


def _adapt_channels(weight: Tensor, channels: int) -> Tensor:
    """The filter (C, c, p, p) for another number of channels, so that a grey image keeps its features: timm's rule from RGB,
    and from any number through one channel."""
    if weight.shape[1] == 3:
        return adapt_input_conv(channels, weight)
    return weight.sum(1, keepdim=True).expand(-1, channels, -1, -1) / channels
