"""Files of weights to tensors by name: what torch saves, safetensors, and AugReg's npz. No file is let run code."""

from __future__ import annotations

import argparse
import pickle
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from timm.models import VisionTransformer as TimmVisionTransformer
from torch import Tensor

KEYS = {  # where checkpoints hold them: of this project, DeiT and the authors; of timm and mmengine
    "raw": ("model", "state_dict"),
    "ema": ("ema", "model_ema", "state_dict_ema"),
}


def read_weights(source: str | Path, weights: str = "raw") -> dict[str, Tensor]:
    """The tensors of a file, under the file's own names.

    Args:
        source: .npz of AugReg, .safetensors, or anything else as torch saves it: a state dict, or a checkpoint that holds one
            beside other things (of DeiT and the authors, their arguments too). A run folder stands for its best.ckpt.
        weights: "raw" for the weights that were trained, "ema" for their moving average. Files of DeiT and of the authors
            hold both, and their reported accuracies are of the raw ones.

    Raises:
        ValueError: there is no such file, it cannot be read without running its code, or it holds no such weights.
    """
    if weights not in KEYS:
        raise ValueError(f"weights are raw or ema, not {weights!r}")
    path = Path(source)
    path = path / "best.ckpt" if path.is_dir() else path
    if not path.is_file():
        raise ValueError(f"there is no checkpoint {path}")
    content = _read(path)
    found = [content[key] for key in KEYS[weights] if isinstance(content.get(key), Mapping)]
    if not found and weights == "ema":
        raise ValueError(f"{path} holds no averaged weights; leave out weights=ema")
    state = dict(found[0] if found else content)
    if not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(
            f"{path} holds no weights: expected tensors by name, or a checkpoint with them under {' or '.join(KEYS['raw'])}; "
            f"it holds {', '.join(map(str, list(content)[:5])) or 'nothing'}"
        )
    return state


def _read(path: Path) -> Mapping:
    try:
        if path.suffix == ".npz":
            return _read_npz(path)
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        with torch.serialization.safe_globals(
            [argparse.Namespace]
        ):  # the arguments in DeiT's, timm's and the authors' files
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # readers raise whatever they meet
        stranger = re.search(r"GLOBAL (\S+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if stranger:
            keys = sum(KEYS.values(), ())
            raise ValueError(
                f"{path} cannot be read as weights: it holds an object of {stranger[1]}, and making one may run code. If you "
                f"trust it: torch.save({{k: v for k, v in torch.load({str(path)!r}, weights_only=False).items() "
                f"if k in {keys}}}, 'weights.pt'), and give weights.pt"
            ) from error
        raise ValueError(
            f"{path} cannot be read as weights ({type(error).__name__}: {(str(error).splitlines() or [''])[0]}); expected what "
            "torch.save, safetensors or, as .npz, AugReg wrote: is the file whole?"
        ) from error
    return content if isinstance(content, Mapping) else {type(content).__name__: content}


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
