"""Segment photographs: each is written with its classes as colours over it, and a legend beside it.

The weights are a run's best ones, or a checkpoint's with the experiment it belongs to. A photograph is resized, normalised and
predicted, window by window, as the experiment evaluates; its data set need not be there.

  python tools/segment.py photo.jpg other.jpg --run outputs/ade20k_s_mita/seed0 --out segmented
  python tools/segment.py photo.jpg --checkpoint seg_s.pth --experiment ade20k_s_mita --out segmented --alpha 0.7
  python tools/segment.py photo.jpg --run outputs/ade20k_s_mita/seed0 --out segmented --set task.scales=[0.75,1.25] task.flip=true
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np
import torch
from omegaconf import DictConfig
from PIL import Image, ImageOps
from torch import nn

import datasets
import experiment
from datasets.ade20k import View, seen
from datasets.images import check_depth
from evaluate import run_config
from mita.training import RunFolder
from models.checkpoints import load_weights
from models.segmentation.overlay import draw, shares
from models.weight_files import read_weights


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "images", nargs="+", type=Path, metavar="IMAGE", help="photographs, in any form that Pillow reads"
    )
    parser.add_argument("--run", type=Path, help="run folder: its configuration, and its best checkpoint")
    parser.add_argument("--checkpoint", type=Path, help="another checkpoint of that run, or of --experiment")
    parser.add_argument("--experiment", metavar="NAME", help="what --checkpoint belongs to, without --run")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="where IMAGE's name with .png is written"
    )
    parser.add_argument("--alpha", type=float, default=0.5, help="share of the colours, 0 to 1 (default: %(default)s)")
    parser.add_argument(
        "--longest", type=int, default=2048, metavar="PIXELS", help="larger photographs are reduced to it (default: %(default)s)"
    )  # fmt: skip
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="overrides, as for evaluate.py")
    args = parser.parse_args(arguments)
    try:
        if not 0 <= args.alpha <= 1 or args.longest < 1:
            raise ValueError(
                f"--alpha is from 0 to 1 and --longest from 1 pixel, but they are {args.alpha:g} and {args.longest}"
            )
        if args.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("--device cuda, but torch sees no GPU here; give --device cpu")
        paths = output_paths(args.images, args.out)
        config, checkpoint = chosen(args.run, args.checkpoint, args.experiment, args.set)
        names, palette = datasets.classes_of(config.data.name)
        model = build(config, checkpoint).to(args.device)
        for source, path in paths.items():
            pixels = read_photograph(source, args.longest)
            labels = segment(model, pixels, config)
            write(draw(pixels, labels, names, palette, args.alpha), path)
            found = ", ".join(f"{names[i]} {share:.0%}" for i, share in list(shares(labels).items())[:5])
            print(f"{path}  {found}")
    except ValueError as error:
        parser.error(str(error))
    return 0


def output_paths(images: Sequence[Path], out: Path) -> dict[Path, Path]:
    """Where each photograph's overlay goes. Raises ValueError when two would be one file, or one would be a photograph."""
    paths = {image: out / f"{image.stem}.png" for image in images}
    twice = [image for image, path in paths.items() if list(paths.values()).count(path) > 1]
    if twice:
        raise ValueError(
            f"{' and '.join(map(str, twice))} would both be written to {paths[twice[0]]}; rename one of them"
        )
    for image in images:
        if image.resolve() in {path.resolve() for path in paths.values()}:
            raise ValueError(f"{image} itself would be written over; give another folder as --out")
    return paths


def chosen(
    run: Path | None, checkpoint: Path | None, name: str | None, overrides: Sequence[str]
) -> tuple[DictConfig, Path]:
    """The configuration of a segmenter, and the file of its weights."""
    if (run is None) == (name is None) or (run is None and checkpoint is None):
        raise ValueError("give --run outputs/NAME/seed0, or --checkpoint FILE with --experiment NAME")
    if run is None:
        config = experiment.compose([f"experiment={name}", *overrides])
    else:
        config = run_config(run, list(overrides))
    if config.task.name != "segmentation":
        raise ValueError(
            f"{config.name} is no segmenter (its task is {config.task.name}); give one of another experiment"
        )
    return config, checkpoint or RunFolder(run).best


def build(config: DictConfig, checkpoint: Path) -> nn.Module:
    """The configuration's segmenter with the weights of a file. Raises ValueError when they do not fit."""
    weights = read_weights(checkpoint)
    shape = datasets.shape_of(**experiment.resolved(config.data))
    model = experiment.build_model(config, shape, pretrained=False)
    load_weights(model, weights, str(checkpoint))
    return model.eval()


def read_photograph(path: Path, longest: int) -> np.ndarray:
    """(H, W, 3) uint8, upright, reduced to `longest` pixels where a side is longer. Raises ValueError if it cannot be used."""
    try:
        with Image.open(path) as image:
            check_depth(image, path)
            image = ImageOps.exif_transpose(image).convert("RGB")
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} cannot be read as an image ({error}); give photographs, as JPEG or PNG") from error
    image.thumbnail((longest, longest))
    return np.asarray(image)


def segment(model: nn.Module, pixels: np.ndarray, config: DictConfig) -> np.ndarray:
    """The class of every pixel of (H, W, 3): (H, W) int64."""
    task, data = experiment.resolved(config.task), experiment.resolved(config.data)
    view = View(**{field.name: data[field.name] for field in dataclasses.fields(View)})
    device = next(model.parameters()).device
    image, original = (part.to(device) for part in seen(pixels, view))
    windows = {key: task[key] for key in ("window", "stride", "scales", "flip")}
    return model.predict(image, pixels.shape[:2], original=original, **windows).argmax(0).cpu().numpy()


def write(overlay: Image.Image, path: Path) -> None:
    """Save an overlay, in a new folder if it is not there. Raises ValueError when it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        overlay.save(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be written ({error}); give another folder as --out") from error


if __name__ == "__main__":
    sys.exit(main())
