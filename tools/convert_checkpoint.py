"""Convert a checkpoint between the names of this project, of the authors' code and of timm.

SOURCE is a file of the authors, DeiT, DeiT III, ViT-5 or timm (.pth, .pt, .ckpt, .safetensors, AugReg's .npz), or a run of this
project: its folder, for best.ckpt, or a checkpoint in it. Nothing but tensors is written:
  --to project   weights for evaluate.py checkpoint=... and model.pretrained=... (.safetensors, .pt, .pth); the default
  --to release   as the authors' code reads it, tensors under "model" (.pth, .pt)
  --to timm      for timm.create_model(..., checkpoint_path=...) and load_checkpoint (.safetensors, .pt, .pth)

  python tools/convert_checkpoint.py best_checkpoint.pth deit_s_mita.safetensors
  python tools/convert_checkpoint.py outputs/vit5_s_mita_released/seed0 vit5_s.pth --to release --weights raw
  python tools/convert_checkpoint.py outputs/deit_s_softmax/seed0 deit_s.safetensors --to timm
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from models.checkpoints import listed, to_project, to_release, to_timm
from models.weight_files import read_weights

SUFFIXES = {
    "project": (".safetensors", ".pt", ".pth"),
    "release": (".pth", ".pt"),
    "timm": (".safetensors", ".pt", ".pth"),
}
FOREIGN = re.compile(r"\.attn\.(?!(qkv|q_norm|k_norm|proj)\.)")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="SOURCE")
    parser.add_argument("target", type=Path, metavar="TARGET")
    parser.add_argument("--to", choices=SUFFIXES, default="project", help="whose names (default: %(default)s)")
    parser.add_argument(
        "--weights", choices=("raw", "ema"), default="raw", help="the trained ones or their average (default: %(default)s)"
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace TARGET if it exists")
    args = parser.parse_args(arguments)
    try:
        print(convert(args.source, args.target, args.to, args.weights, args.overwrite))
    except ValueError as error:
        parser.error(str(error))


def convert(source: Path, target: Path, to: str, weights: str = "raw", overwrite: bool = False) -> str:
    """Read, rename, write; what was done, in lines.

    Raises:
        ValueError: the source holds no vision transformer or is of no model there, or the target exists or has a suffix that
            its readers do not know.
    """
    if target.suffix not in SUFFIXES[to]:
        raise ValueError(f"{target} must end in {' or '.join(SUFFIXES[to])} for --to {to}")
    if target.exists() and not overwrite:
        raise ValueError(f"{target} exists; give another name, or --overwrite to replace it")
    if not target.parent.is_dir():
        raise ValueError(f"there is no folder {target.parent} to write {target.name} in; make it first")
    state, left_out = to_project(read_weights(source, weights), str(source))
    if not any(name.removeprefix("encoder.") == "patch_embed.proj.weight" for name in state):
        raise ValueError(
            f"{source} holds no vision transformer with timm's names (patch_embed.proj.weight, ...); "
            f"its first names are {', '.join(list(state)[:3])}"
        )
    named = {"project": dict, "release": to_release, "timm": to_timm}[to](state)
    try:
        write(named, target, to)
    except (OSError, RuntimeError) as error:  # torch's own of a file that it cannot open
        raise ValueError(f"{target} cannot be written ({(str(error).splitlines() or [''])[0]})") from error
    lines = [f"left out: {line}" for line in listed(left_out)]
    lines += [f"added: {line}" for line in listed(to_project(named)[1])]
    if to == "timm":
        own = dict.fromkeys(filter(FOREIGN.search, named), "of no attention of timm; give yours with attn_layer=...")
        lines += [f"kept: {line}" for line in listed(own)]
    count = sum(tensor.numel() for tensor in state.values())
    return "\n".join([*lines, f"written: {target}, {len(named)} tensors, {count:,} parameters, {weights} weights"])


def write(state: dict[str, Tensor], target: Path, to: str) -> None:
    """Whole or not at all, each tensor with memory of its own."""
    state = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}
    part = target.with_name(f"{target.name}.part")
    if target.suffix == ".safetensors":
        from safetensors.torch import save

        part.write_bytes(save(state, metadata={"format": "pt"}))  # its save_file lets only the owner read the file
    else:
        torch.save({"model": state} if to == "release" else state, part)
    os.replace(part, target)


if __name__ == "__main__":
    main()
