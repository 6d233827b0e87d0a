"""Weights of the authors, DeiT, DeiT III, ViT-5 and timm in the models here, and back under their names.

The models here have timm's names, as the released MiTA files have them. What differs: LayerScale is `gamma_1` in the files
of DeiT III and ViT-5 and `ls1.gamma` here; released ViT-5 stores its rotary frequencies and a released segmenter the unused
classifier of its encoder, which are nothing of a model here; distributed training puts `module.` before every name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn

from mita.rope import RotaryEmbedding

from .vit import VisionTransformer

WRAPPERS = re.compile(r"^(module\.|_orig_mod\.)+")  # of DistributedDataParallel and torch.compile
FREQUENCIES = re.compile(r"blocks\.\d+\.attn\.rope(_reg)?\.freqs$")
UNUSED_HEAD = re.compile(r"encoder\.head\.(weight|bias)$")
DISTILLED = ("dist_token", "head_dist.weight")
CLASSES = {  # axis of the classes in what has one
    "head.weight": 0, "head.bias": 0, "decoder.cls_emb": 1, "decoder.mask_norm.weight": 0, "decoder.mask_norm.bias": 0,
}  # fmt: skip


@dataclass(frozen=True)
class LoadReport:
    """What was loaded and what was not.

    Names of the model: `loaded`; `adapted`, those of them that had to be changed to fit; `missing`, which the source does
    not have; `misshapen`, with the reason. Names of the source: `unused`, which the model does not have; `left_out`, which
    are known to be of no use, with the reason.
    """

    source: str
    loaded: tuple[str, ...]
    adapted: tuple[str, ...]
    missing: tuple[str, ...]
    unused: tuple[str, ...]
    misshapen: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def misfits(self) -> dict[str, str]:
        """Every name that did not fit, with the reason."""
        missing = dict.fromkeys(self.missing, "in this model, missing in the file")
        unused = dict.fromkeys(self.unused, "in the file, unexpected in this model")
        return {**self.misshapen, **missing, **unused}

    def __str__(self) -> str:
        parts = [f"{self.source}: {len(self.loaded)} tensors loaded"]
        for label in ("adapted", "missing", "unused", "misshapen"):
            names = list(getattr(self, label))
            if names:
                parts.append(f"{label}: {', '.join(names[:4])}" + (f" and {len(names) - 4} more" * (len(names) > 4)))
        parts += [f"left out: {line}" for line in listed(self.left_out)]
        return "; ".join(parts)


def load_weights(
    model: nn.Module, state: Mapping[str, Tensor], source: str = "the checkpoint", strict: bool = True
) -> LoadReport:
    """Load weights from `read_weights` into a model, whatever the dialect of their names.

    A position embedding of another length, from a square grid, is resampled to the model's (bicubic, antialiased, as the model
    itself does for images of another size); one of the same length is taken as it is.

    Args:
        model: to be changed in place; unchanged after an error.
        state: tensors by name.
        source: what messages call it.
        strict: whether every name must be in both, with the same shape.

    Raises:
        ValueError: something does not fit and `strict`, with every name and its reason; nothing fits at all; or the weights
            are known to be of no model here (see `to_project`).
    """
    given, left_out = to_project(state, source)
    own, fitting = model.state_dict(), dict(given)
    for prefix, transformer in _transformers(model):
        name = f"{prefix}pos_embed"
        if name in given and given[name].shape != own[name].shape:
            fitting[name] = resample_positions(given[name], transformer)
    shapes = {name: (tuple(t.shape), tuple(own[name].shape)) for name, t in fitting.items() if name in own}
    loaded = {name: fitting[name] for name, (there, here) in shapes.items() if there == here}
    report = LoadReport(
        source,
        loaded=tuple(loaded),
        adapted=tuple(name for name, tensor in loaded.items() if tensor is not given[name]),
        missing=tuple(name for name in own if name not in given),
        unused=tuple(name for name in given if name not in own),
        misshapen={name: _shape_reason(name, *pair) for name, pair in shapes.items() if pair[0] != pair[1]},
        left_out=left_out,
    )
    if not loaded:
        raise ValueError(
            f"{source} holds nothing of this model: its first names are {', '.join(list(given)[:3]) or 'none'}, where this "
            f"model has {', '.join(list(own)[:3])}; choose the experiment that it belongs to"
        )
    if strict and report.misfits:
        raise ValueError(
            f"{source} is of another model than this:\n"
            + "".join(f"  {line}\n" for line in listed(report.misfits))
            + "Choose the experiment that it belongs to, or the options of the model with which it was trained."
        )
    model.load_state_dict(loaded, strict=False)
    return report


def to_project(state: Mapping[str, Tensor], source: str = "the checkpoint") -> tuple[dict[str, Tensor], dict[str, str]]:
    """(tensors under the names of the models here, what was left out with the reason).

    Raises:
        ValueError: the weights are of a distilled DeiT, or hold other rotary frequencies than the models here have.
    """
    given, left_out = {WRAPPERS.sub("", name): tensor for name, tensor in state.items()}, {}
    if any(name in given for name in DISTILLED):
        raise ValueError(
            f"{source} is a distilled DeiT, with a second class token and classifier ({', '.join(DISTILLED)}) that no model "
            "here has; take the checkpoint that was trained without distillation"
        )
    for name, tensor in given.items():
        if match := FREQUENCIES.match(name):
            _check_frequencies(tensor, base(registers=bool(match[1])), f"{source} with {name}")
            left_out[name] = "computed here"
        elif UNUSED_HEAD.match(name):
            left_out[name] = "a classifier that a segmenter does not use"
    named = {re.sub(r"\.gamma_([12])$", r".ls\1.gamma", name): t for name, t in given.items() if name not in left_out}
    return named, left_out


def to_release(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a model here under the names of the authors' code, whose strict loading asks for everything it stores.

    LayerScale is renamed, the rotary frequencies of ViT-5 and a segmenter's unused classifier (zeros) are added.
    """
    named = {re.sub(r"\.ls([12])\.gamma$", r".gamma_\1", name): tensor for name, tensor in state.items()}
    if "reg_token" in named:
        for name, norm in [(name, t) for name, t in named.items() if name.endswith(".attn.q_norm.weight")]:
            block = name.removesuffix("q_norm.weight")
            for part, registers in (("rope", False), ("rope_reg", True)):
                named[f"{block}{part}.freqs"] = frequencies(len(norm) // 4, base(registers)).to(norm.dtype)
    if "decoder.cls_emb" in named:
        width = named["decoder.cls_emb"].shape[-1]
        named["encoder.head.weight"] = named["decoder.cls_emb"].new_zeros(1000, width)
        named["encoder.head.bias"] = named["decoder.cls_emb"].new_zeros(1000)
    return named


def to_timm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a DeiT or DeiT III here under timm's names, which are the same.

    Raises:
        ValueError: timm has no such model.
    """
    for name, what in (
        ("reg_token", "ViT-5, with rotary positions and registers last"),
        ("decoder.cls_emb", "segmenter"),
    ):
        if name in state:
            raise ValueError(f"timm has no {what}; convert to the release's names, or use a DeiT or DeiT III")
    return dict(state)


def resample_positions(
    positions: Tensor, model: VisionTransformer, interpolation: str = "bicubic", antialias: bool = True
) -> Tensor:
    """(1, places, C) from a square grid to the model's; the same object where there is nothing to do or no square."""
    on_class = int(model.class_position)
    places = positions.shape[1] - on_class if positions.ndim == 3 else -1
    if places < 1 or math.isqrt(places) ** 2 != places:
        return positions
    return resample_abs_pos_embed(
        positions, model.grid, num_prefix_tokens=on_class, interpolation=interpolation, antialias=antialias
    )


def listed(reasons: Mapping[str, str]) -> list[str]:
    """Lines "name: reason"; names that differ in the number of a block or layer alone share a line."""
    numbers: dict[tuple[str, str], list[str]] = {}
    for name, reason in reasons.items():
        number = re.search(r"(?<=blocks\.|layers\.)\d+", name)
        pattern = name if number is None else f"{name[: number.start()]}#{name[number.end() :]}"
        numbers.setdefault((pattern, reason), []).append("" if number is None else number[0])
    return [f"{pattern.replace('#', _span(found))}: {reason}" for (pattern, reason), found in numbers.items()]


def frequencies(count: int, theta: float) -> Tensor:
    """(count,) turns of one side's pairs of dims for each step of the position: theta ** (-i / count)."""
    return theta ** (-torch.arange(count, dtype=torch.float64) / count)


def base(registers: bool) -> float:
    """The base of the rotary embedding, of the registers or of the patches."""
    rope = RotaryEmbedding()
    return rope.register_theta if registers else rope.theta


def _check_frequencies(found: Tensor, theta: float, source: str) -> None:
    if not found.is_meta and not torch.allclose(found.double(), frequencies(len(found), theta), rtol=1e-2, atol=0):
        raise ValueError(f"{source} has another rotary embedding than the models here, whose base there is {theta:g}")


def _transformers(model: nn.Module) -> Iterator[tuple[str, VisionTransformer]]:
    for name, module in model.named_modules():
        if isinstance(module, VisionTransformer):
            yield (f"{name}." if name else ""), module


def _shape_reason(name: str, there: tuple[int, ...], here: tuple[int, ...]) -> str:
    axis = CLASSES.get(name)
    if axis is not None and len(there) == len(here) and there[axis] != here[axis]:
        return f"for {there[axis]} classes in the file and {here[axis]} in this model"
    return f"of shape {there} in the file and {here} in this model"


def _span(numbers: list[str]) -> str:
    """1 of ["1"], {0-11} of 0 to 11, {0,3} of others."""
    ints = [int(n) for n in numbers if n]
    if len(ints) < 2:
        return "".join(numbers)
    if ints == list(range(ints[0], ints[-1] + 1)):
        return f"{{{ints[0]}-{ints[-1]}}}"
    return f"{{{','.join(numbers)}}}"
