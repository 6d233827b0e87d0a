"""Training steps a second on the five shapes of Long Range Arena, every mechanism in turn."""

from __future__ import annotations

import argparse

import experiment

from . import networks
from .timing import ratio, side_by_side

TASKS = ("listops", "text", "retrieval", "image", "pathfinder")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = [name for name in experiment.groups()["attention"] if name != "mita_released"]
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--attention", nargs="+", choices=names, default=names, help="default: all")
    parser.add_argument("--batch", type=int, help="sequences at once; default: the recipe's on a GPU, 1 on a processor")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each; default: %(default)s")


def measure(arguments: argparse.Namespace) -> list[dict]:
    rows, names = [], ["softmax", *(name for name in arguments.attention if name != "softmax")]
    for task in arguments.tasks:
        runs = {}
        for name in names:
            overrides = (
                [f"experiment=lra_{task}_mita"] if name == "mita" else [f"experiment=lra_{task}", f"attention={name}"]
            )
            config = experiment.compose(overrides)
            batch = arguments.batch or (config.recipe.batch_size if arguments.device == "cuda" else 1)
            runs[name] = networks.step(*networks.build(config, batch, arguments.device), train=True)
        times = side_by_side(runs, arguments.repeats, arguments.device)
        for name in names:
            speed, noise = ratio(times["softmax"], times[name])
            rows.append({
                "task": task, "attention": name, "batch": batch, "steps_per_second": 1 / times[name].median,
                "ratio": speed, "noise": noise,
            })  # fmt: skip
            print(
                f"{task:>10} {name:>14} batch {batch}: {rows[-1]['steps_per_second']:8.2f} steps/s, {speed:5.2f} times softmax",
                flush=True,
            )
    return rows
