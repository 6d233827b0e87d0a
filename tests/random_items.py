"""Random items of an experiment's true shape, for runs that only have to go through."""

from __future__ import annotations

import torch
from omegaconf import DictConfig
from torch import Tensor
from torch.utils.data import Dataset

import datasets
import experiment
from datasets import Data


class RandomItems(Dataset):
    """Items that hold what the task gives to the model: images, or tokens (from 1 up) with a length, and a target."""

    def __init__(
        self,
        count: int,
        input_size: tuple[int, ...],
        num_classes: int,
        inputs: list[str],
        symbols: int,
        target_size: tuple[int, ...] = (),
    ):
        self.target_size = target_size
        self.count, self.size, self.num_classes, self.inputs, self.symbols = (
            count,
            input_size,
            num_classes,
            inputs,
            symbols,
        )

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)

        def between(low: int, high: int, size: tuple[int, ...] = ()) -> Tensor:
            return torch.randint(low, high + 1, size, generator=generator)

        make = {
            "image": lambda: torch.randn(self.size, generator=generator),
            "tokens": lambda: between(1, self.symbols - 1, self.size),
            "length": lambda: between(1, self.size[0]),
        }
        items = {name: make[name.split("_")[0]]() for name in self.inputs}
        return {**items, "target": between(0, self.num_classes - 1, self.target_size)}


def random_data(config: DictConfig, count: int = 4) -> Data:
    """Data of an experiment's shape, with `count` training and 2 test items."""
    size, classes = datasets.shape_of(**experiment.resolved(config.data))
    inputs, symbols = config.task.get("inputs", ["image"]), config.model.get("vocab_size", 2)
    target_size = size[1:] if config.task.name == "segmentation" else ()
    train, test = (RandomItems(n, size, classes, inputs, symbols, target_size) for n in (count, 2))
    return Data("random", train, {"test": test}, classes, size, "0", {"train": count, "test": 2}, short="random items")
