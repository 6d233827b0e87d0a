"""Figures of generated or read data beside the published ones, and what needs no reading of a sequence to score.

A figure is held to a band as wide as four standard errors, of our sample and of the sample it was published from, and
half a last digit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .expressions import END, OPERATOR, OPERATORS, evaluate
from .store import Store


@dataclass(frozen=True)
class Figure:
    """A figure of `count` examples beside the expected one; `low` and `high` bound where it may lie."""

    name: str
    value: float
    expected: float
    low: float
    high: float

    @property
    def inside(self) -> bool:
        return self.low <= self.value <= self.high

    def __str__(self) -> str:
        verdict = "ok" if self.inside else "OUTSIDE"
        return f"{self.name:34} {self.value:10.2f} {self.expected:10.2f}   [{self.low:.2f}, {self.high:.2f}]  {verdict}"


def figure(
    name: str, value: float, expected: float, deviation: float, count: int, reference: int, rounding: float
) -> Figure:
    """The figure `value` of `count` examples, expected from `reference` examples, rounded to plus or minus `rounding`.

    `deviation` is the standard deviation of one example's contribution, so that a mean has deviation / sqrt(count).
    """
    margin = 4 * deviation * np.sqrt(1 / count + 1 / reference) + rounding
    return Figure(name, float(value), expected, float(expected - margin), float(expected + margin))


# share of each label in per cent; the quantiles of the length, and their deviations from the density there
LISTOPS_LABELS = (17.0, 9.2, 7.2, 8.2, 8.9, 8.8, 7.7, 7.5, 8.6, 17.0)
LISTOPS_QUANTILES = {0.05: (539, 180), 0.25: (700, 400), 0.5: (951, 600), 0.75: (1307, 800), 0.95: (1804, 750)}
LISTOPS_REFERENCE = 20_000
PATHFINDER_REFERENCE = 651


def listops_figures(store: Store, numbers: Sequence[int] | np.ndarray) -> list[Figure]:
    """Length, operators, depth and labels of ListOps items under the benchmark's rules."""
    rows = [_listops_row(store.sequence(number)) for number in numbers]
    length, operators, arguments, depth, *each = np.array(rows, float).T
    targets = np.asarray(store.targets)[numbers]
    n = len(rows)

    def fig(name: str, value: float, expected: float, deviation: float, rounding: float = 0.5) -> Figure:
        return figure(name, value, expected, deviation, n, LISTOPS_REFERENCE, rounding)

    figures = [fig("length, mean", length.mean(), 1034, 390)]
    for part, (expected, deviation) in LISTOPS_QUANTILES.items():
        figures.append(fig(f"length, quantile {part:.0%}", np.quantile(length, part), expected, deviation))
    figures.append(Figure("length, least", float(length.min()), 501, 501, np.inf))
    figures.append(Figure("length, greatest", float(length.max()), 1999, 0, 1999))
    figures.append(fig("operators, mean", operators.mean(), 147, 56))
    figures.append(fig("digits, mean", (length - 2 * operators).mean(), 740, 280))
    figures.append(fig("arguments of an operator", arguments.sum() / operators.sum(), 6.02, 0.25, 0.005))
    figures.append(fig("depth 9, % of examples", 100 * (depth == 9).mean(), 100, 3))
    for symbol, count in zip(OPERATORS, each):
        figures.append(fig(f"{symbol}, % of operators", 100 * count.sum() / operators.sum(), 25, 4.5))
    for label, share in enumerate(LISTOPS_LABELS):
        deviation = np.sqrt(share * (100 - share))
        figures.append(fig(f"label {label}, % of examples", 100 * (targets == label).mean(), share, deviation, 0.05))
    guess = first_token_accuracy(store, numbers, numbers)
    figures.append(fig("root operator's best guess, %", guess, 36.5, 48, 0.05))
    return figures


def _listops_row(tokens: np.ndarray) -> list[int]:
    """Length, operators, arguments of all of them, greatest depth, and how many there are of each operator."""
    opens, ends = (tokens >= OPERATOR) & (tokens < END), tokens == END
    each = np.bincount(tokens, minlength=END + 1)[OPERATOR:END]
    depth = np.cumsum(opens.astype(np.int64) - ends)
    # every node but the root is an argument
    return [len(tokens), int(each.sum()), len(tokens) - int(ends.sum()) - 1, int(depth.max()), *each.tolist()]


def wrong_values(store: Store, numbers: Sequence[int] | np.ndarray) -> list[int]:
    """Numbers of the ListOps items whose target is not the value of their expression."""
    return [int(number) for number in numbers if evaluate(store.sequence(number)) != store.targets[number]]


def pathfinder_figures(store: Store, numbers: Sequence[int] | np.ndarray) -> list[Figure]:
    """Brightness of Pathfinder images, and how many are of class 1."""
    pixels = np.stack([store.sequence(number) for number in numbers])
    targets = np.asarray(store.targets)[numbers]
    n = len(pixels)
    mean, lit = pixels.mean(1), (pixels > 0).sum(1)

    def fig(name: str, value: float, expected: float, deviation: float, rounding: float = 0.05) -> Figure:
        return figure(name, value, expected, deviation, n, PATHFINDER_REFERENCE, rounding)

    return [
        fig("pixel, mean", mean.mean(), 20.2, 2.0),
        fig("pixel, deviation", pixels.std(), 51.0, 3.0),
        fig("zero pixels, %", 100 * (pixels == 0).mean(), 65.8, 4.0),
        fig("pixels not zero in an image", lit.mean(), 350, 40, 0.5),
        fig("the same, deviation", lit.std(), 40, 40 / np.sqrt(2), 0.5),
        fig("the same, quantile 5%", np.quantile(lit, 0.05), 288, 85, 0.5),
        fig("the same, quantile 95%", np.quantile(lit, 0.95), 420, 85, 0.5),
        fig("pixels above 128, %", 100 * (pixels > 128).mean(), 8.5, 1.2),
        fig("pixels from 200, %", 100 * (pixels >= 200).mean(), 1.6, 1.0),
        fig("mean of an image, quantile 5%", np.quantile(mean, 0.05), 17.9, 4.2),
        fig("mean of an image, quantile 95%", np.quantile(mean, 0.95), 23.7, 4.2),
        fig("class 1, % of images", 100 * targets.mean(), 50, 50, 0),
    ]


def majority_accuracy(train: np.ndarray, test: np.ndarray) -> float:
    """Per cent of `test` targets that are the most frequent `train` target."""
    return 100 * float((test == np.bincount(train).argmax()).mean())


def first_token_accuracy(store: Store, train: np.ndarray, test: np.ndarray) -> float:
    """Accuracy in per cent, on items `test`, of the target that is most frequent for an item's first token in `train`.

    The control for ListOps: what a model scores that sees nothing but the outermost operator.
    """
    targets = np.asarray(store.targets)
    first = np.asarray(store.tokens)[np.asarray(store.offsets)[:-1]]
    counts = np.zeros((256, targets.max() + 1), np.int64)
    np.add.at(counts, (first[train], targets[train]), 1)
    return 100 * float((counts.argmax(1)[first[test]] == targets[test]).mean())
