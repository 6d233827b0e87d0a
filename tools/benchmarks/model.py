"""Items a second of whole models, in turns: by default MiTA beside standard attention in DeiT-S."""

from __future__ import annotations

import argparse

import experiment

from . import networks
from .timing import ratio, side_by_side


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = ["deit_s_softmax", "deit_s_mita"]
    parser.add_argument("--experiments", nargs="+", default=names, help="the first is the base; default: %(default)s")
    parser.add_argument("--batch", type=int, help="items at once; default: 256 on a GPU, 4 on a processor")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each; default: %(default)s")


def measure(arguments: argparse.Namespace) -> list[dict]:
    batch = arguments.batch or (256 if arguments.device == "cuda" else 4)
    rows, base = [], arguments.experiments[0]
    for train in (False, True):
        runs = {}
        for name in arguments.experiments:
            built = networks.build(experiment.compose([f"experiment={name}"]), batch, arguments.device)
            runs[name] = networks.step(*built, train)
        times = side_by_side(runs, arguments.repeats, arguments.device)
        for name in arguments.experiments:
            speed, noise = ratio(times[base], times[name])
            rows.append({
                "experiment": name, "pass": "step" if train else "fwd", "batch": batch,
                "items_per_second": batch / times[name].median, "ratio": speed, "noise": noise,
            })  # fmt: skip
            print(
                f"{name:>24} {rows[-1]['pass']:>5} batch {batch}: {rows[-1]['items_per_second']:8.2f} items/s, "
                f"{speed:.2f} times {base}",
                flush=True,
            )
    return rows
