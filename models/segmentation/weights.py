"""Weights for a backbone from elsewhere: a run of this project, a checkpoint of timm or its npz form."""

from __future__ import annotations

from pathlib import Path

import timm
from timm.models import adapt_input_conv
from torch import Tensor

from ..checkpoints import LoadReport, resample_positions, to_project
from ..vit import VisionTransformer
from ..weight_files import read_weights

PREFIXES = ("encoder.", "backbone.")  # of the authors' segmenters and of mmsegmentation
HEADS = ("head.", "decoder.", "decode_head.", "pre_logits.")


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
    given, left_out = to_project(_read(source), str(source))
    state, own = _strip(given), model.state_dict()
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
        left_out=left_out,
    )


def _read(source: str | Path) -> dict[str, Tensor]:
    if Path(source).is_file() or (Path(source) / "best.ckpt").is_file():
        return read_weights(source)
    if timm.is_model(str(source)):
        return _from_timm(str(source))
    raise ValueError(
        f"there are no weights {source}: it is neither a file or run folder nor the name of a model of timm; "
        "give one, or null for random weights"
    )


def _from_timm(name: str) -> dict[str, Tensor]:
    try:
        return timm.create_model(name, pretrained=True).state_dict()
    except Exception as error:  # of the network, or of a model without weights
        raise ValueError(
            f"timm's weights {name} could not be had ({type(error).__name__}: {(str(error).splitlines() or [''])[0]}); fetch the "
            "checkpoint where there is a network and give the file, or give null for random weights"
        ) from error


def _strip(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names from the transformer on, without what it is a part of."""
    for prefix in PREFIXES:
        if any(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    return state


def _fit(name: str, tensor: Tensor, model: VisionTransformer) -> Tensor:
    """The tensor for the model's grid and channels; the same object where nothing is to be done."""
    if name == "pos_embed":
        return resample_positions(tensor, model, interpolation="bilinear", antialias=False)
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
