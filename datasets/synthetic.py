"""Random images of a true shape: for smoke runs and benchmarks, never for a result."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from .data import Data, fingerprint, limited, reasons


class RandomImages(Dataset):
    """Standard normal images and uniform labels; item i is a function of (seed, i) alone."""

    def __init__(self, count: int, shape: tuple[int, int, int], num_classes: int, seed: int):
        self.count, self.shape, self.num_classes, self.seed = count, shape, num_classes, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not 0 <= index < self.count:
            raise IndexError(index)
        # hashed to 32 bits, because torch's CPU generator ignores the higher bits of a seed
        state = int(np.random.SeedSequence([self.seed, index]).generate_state(1)[0])
        generator = torch.Generator().manual_seed(state)
        image = torch.randn(self.shape, generator=generator)
        return {"image": image, "target": torch.randint(self.num_classes, (), generator=generator)}


def synthetic(
    *,
    root: str | None = None,
    seed: int = 0,
    limit: int | None = None,
    image_size: int = 224,
    channels: int = 3,
    num_classes: int = 1000,
    train_count: int = 2048,
    test_count: int = 256,
) -> Data:
    """Images (channels, image_size, image_size) float32 that hold nothing to learn.

    Raises:
        ValueError: a root is given, or a size is not positive.
    """
    if root is not None:
        raise ValueError(f"the synthetic data set is generated and reads no folder; leave out data.root={root}")
    sizes = {
        "image_size": image_size,
        "channels": channels,
        "num_classes": num_classes,
        "train_count": train_count,
        "test_count": test_count,
    }
    for option, value in sizes.items():
        if value < 1:
            raise ValueError(f"data.{option}={value} must be at least 1")
    shape = (channels, image_size, image_size)
    train = limited(RandomImages(train_count, shape, num_classes, 2 * seed), limit)
    test = limited(RandomImages(test_count, shape, num_classes, 2 * seed + 1), limit)
    return Data(
        name="synthetic",
        train=train,
        evaluate={"test": test},
        num_classes=num_classes,
        input_size=shape,
        fingerprint=fingerprint([f"synthetic {seed} {sorted(sizes.items())}"]),
        counts={"train": len(train), "test": len(test)},
        short=reasons("synthetic data", limit and f"limit={limit}"),
    )
