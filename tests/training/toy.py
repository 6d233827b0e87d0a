"""A small model and data for tests of the loop, and a run of them in one call."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import Dataset

from datasets.data import Data
from mita.training import Machine, Recipe, RunFolder, build_loggers, build_task, fit, make_fabric


class Toy(Dataset):
    """Images of class-dependent brightness with noise from the global generator, as an augmentation draws it."""

    def __init__(self, n: int = 40, noise: float = 0.5, bad: int | None = None) -> None:
        self.n, self.noise, self.bad = n, noise, bad

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> dict:
        image = torch.full((1, 4, 4), float(i % 3)) + self.noise * torch.randn(1, 4, 4) + 0.01 * i
        return {"image": image * (float("nan") if i == self.bad else 1), "target": torch.tensor(i % 3)}


class Net(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.GELU(), nn.Dropout(dropout), nn.Linear(8, 3))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.layers(image)


def toy_data(**options) -> Data:
    return Data("toy", Toy(**options), {"test": Toy(n=10, noise=0.0)}, 3, (1, 4, 4), "0", {"train": 40, "test": 10})


def run(
    path,
    recipe: Recipe,
    *,
    machine: Machine | None = None,
    data: Data | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    task=None,
):
    """Train the toy in `path`; returns (result, last checkpoint)."""
    machine = machine or Machine(accelerator="cpu", progress=False)
    fabric = make_fabric(machine, recipe)
    torch.manual_seed(1)
    folder = RunFolder(path)
    if fabric.is_global_zero:
        folder.open({})
    fabric.barrier()
    result = fit(
        fabric, folder, Net(dropout), build_task("classification", 3, **(task or {})), data or toy_data(), recipe, machine, seed,
        build_loggers(["jsonl"], folder, {}) if fabric.is_global_zero else (),
    )  # fmt: skip
    return result, torch.load(folder.last, weights_only=True)
