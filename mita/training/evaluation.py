"""Exact evaluation: every item counts once, on any number of devices."""

from __future__ import annotations

from collections.abc import Callable

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.utils.data import Dataset

from .loader import eval_loader


@torch.no_grad()
def evaluate(
    fabric: Fabric,
    model: nn.Module,
    task,
    dataset: Dataset,
    *,
    batch_size: int,
    workers: int = 0,
    collate: Callable | None = None,
) -> dict[str, float]:
    """The task's metrics over a data set. `model` is the bare module: a device may have fewer batches than another."""
    batch_size = min(batch_size, task.evaluation_batch or batch_size)
    loader = eval_loader(
        dataset, batch_size, rank=fabric.global_rank, world=fabric.world_size, workers=workers, collate=collate
    )  # fmt: skip
    training = model.training
    model.eval()
    total = task.zeros(fabric.device)
    for batch in loader:
        with fabric.autocast():
            sums = task.sums(model, fabric.to_device(batch))
        total = {name: value + sums[name] for name, value in total.items()}
    model.train(training)
    return task.summarize({name: fabric.all_reduce(value, reduce_op="sum") for name, value in total.items()})
