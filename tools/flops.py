"""Multiply-adds and parameters of every model with every attention mechanism.

Computed, not measured: nothing is run. The convention is that of `mita.cost`: "G" is 10^9 multiply-adds for one image, of
the size and number of classes that a model is made for unless told otherwise.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import models
from mita import cost, mechanisms
from mita.registry import unknown

DEFAULT = [f"deit_{size}" for size in ("tiny", "small", "base")]
DEFAULT += [f"segmenter_{size}" for size in ("tiny", "small", "base", "large")]
EXTRAS = {"": {}, " + dwc": dict(depthwise_conv=True), " + dwc + gate": dict(depthwise_conv=True, gate=True)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=DEFAULT, metavar="NAME")
    parser.add_argument("--mechanisms", nargs="+", default=["softmax", "mita"], metavar="NAME")
    parser.add_argument("--num-landmarks", type=int, help="m of mita (default 25; 49 in a segmenter)")
    parser.add_argument("--top-k", type=int, help="k of mita (default 25; 49 in a segmenter)")
    parser.add_argument("--experts-per-query", type=int, default=1, help="s of mita (default 1)")
    parser.add_argument("--image-size", type=int, nargs=2, metavar=("H", "W"), help="in pixels, for all models")
    parser.add_argument("--num-classes", type=int, help="classes; 0 for a classifier without head")
    args = parser.parse_args(arguments)

    print(f"{'| model':17} | {'attention':32} | {'G':>8} | {'parameters':>12} |")
    print(f"|{'-' * 17}|{'-' * 34}|{'-' * 9}:|{'-' * 13}:|")
    try:
        for name in args.models:
            if name not in models.MODELS:
                raise ValueError(unknown("model", name, models.MODELS))
            made_for = inspect.signature(models.MODELS[name]).parameters
            if made_for["input_size"].default is inspect.Parameter.empty:
                raise ValueError(f"{name} reads sequences; this table is of models that read images")
            classes = made_for["num_classes"].default if args.num_classes is None else args.num_classes
            input_size = (3, *args.image_size) if args.image_size else made_for["input_size"].default
            usual = 49 if name.startswith("segmenter") else 25
            m, k = (usual if given is None else given for given in (args.num_landmarks, args.top_k))
            budget = dict(num_landmarks=m, top_k=k, experts_per_query=args.experts_per_query)
            for mechanism in args.mechanisms:
                factory = partial(mechanisms.build, mechanism, **(budget if mechanism.startswith("mita") else {}))
                for label, extras in EXTRAS.items():
                    with torch.device("meta"):
                        model = models.build(name, mechanism_factory=factory, num_classes=classes, **extras)
                    giga = model.multiply_adds(input_size) / 1e9
                    size = cost.parameters(model)
                    print(f"| {name:15} | {mechanism + label:32} | {giga:8.3f} | {size:12,} |")
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
