"""Multiply-adds and parameters of every model with every attention mechanism.

Computed, not measured: nothing is run. The convention is that of `mita.cost`: "G" is 10^9 multiply-adds for one image.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import models
from mita import cost, mechanisms

EXTRAS = {"": {}, " + dwc": dict(depthwise_conv=True), " + dwc + gate": dict(depthwise_conv=True, gate=True)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["deit_tiny", "deit_small", "deit_base"], metavar="NAME")
    parser.add_argument("--mechanisms", nargs="+", default=["softmax", "mita"], metavar="NAME")
    parser.add_argument("--num-landmarks", type=int, default=25, help="m of mita (default 25)")
    parser.add_argument("--top-k", type=int, default=25, help="k of mita (default 25)")
    parser.add_argument("--experts-per-query", type=int, default=1, help="s of mita (default 1)")
    parser.add_argument(
        "--image-size", type=int, nargs=2, default=(224, 224), metavar=("H", "W"), help="in pixels (default 224 224)"
    )
    parser.add_argument("--num-classes", type=int, default=1000, help="logits of the head, 0 for none (default 1000)")
    args = parser.parse_args(arguments)

    budget = dict(num_landmarks=args.num_landmarks, top_k=args.top_k, experts_per_query=args.experts_per_query)
    print(f"{'| model':13} | {'attention':32} | {'G':>8} | {'parameters':>12} |")
    print(f"|{'-' * 13}|{'-' * 34}|{'-' * 9}:|{'-' * 13}:|")
    try:
        for name in args.models:
            for mechanism in args.mechanisms:
                factory = partial(mechanisms.build, mechanism, **(budget if mechanism.startswith("mita") else {}))
                for label, extras in EXTRAS.items():
                    with torch.device("meta"):
                        model = models.build(name, mechanism_factory=factory, num_classes=args.num_classes, **extras)
                    giga = model.multiply_adds((3, *args.image_size)) / 1e9
                    size = cost.parameters(model)
                    print(f"| {name:11} | {mechanism + label:32} | {giga:8.3f} | {size:12,} |")
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
