"""Whole models as they are timed: built from a configuration, with random inputs of its data's shape."""

from __future__ import annotations

from collections.abc import Callable

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

import datasets
import experiment


def build(config: DictConfig, batch: int, device: str) -> tuple[nn.Module, list[Tensor]]:
    """The model and a batch of what its task gives it: images, or token sequences of full length."""
    shape = datasets.shape_of(**experiment.resolved(config.data))
    data = datasets.Data("random", None, {}, shape.num_classes, shape.input_size, "", {})
    model = experiment.build_model(config, data).to(device)
    generator = torch.Generator().manual_seed(0)
    size = (batch, *shape.input_size)
    inputs = []
    for name in config.task.get("inputs", ["image"]):
        if name.startswith("tokens"):
            inputs.append(torch.randint(1, config.model.vocab_size, size, generator=generator))
        elif name.startswith("length"):
            inputs.append(torch.full((batch,), shape.input_size[0]))
        else:
            inputs.append(torch.randn(size, generator=generator))
    return model, [t.to(device) for t in inputs]


def step(model: nn.Module, inputs: list[Tensor], train: bool) -> Callable[[], None]:
    """One forward pass, or with `train` one step: forward, backward and AdamW."""
    if not train:
        model.eval()
        return torch.inference_mode()(lambda: model(*inputs))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(*inputs).float().square().mean().backward()
        optimizer.step()

    return run
