"""Which items make a batch, and with which randomness: a function of (seed, step) alone.

World size, accumulation, workers and resuming cut the same global batches differently; they never change them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch.utils.data import DataLoader, Dataset, Sampler, Subset

from .seeding import derive, seeded


class Batches:
    """The endless sequence of global batches.

    Each pass over the data is a new permutation; with `repeats` each item comes so many times in a row and the pass is cut
    to its unrepeated length (repeated augmentation, Hoffer et al. 2020). A rest smaller than a batch is left to other passes.

    Raises ValueError when the batch does not divide over the devices.
    """

    def __init__(self, num_items: int, batch_size: int, seed: int, repeats: int = 1, world: int = 1) -> None:
        if batch_size % world:
            raise ValueError(
                f"recipe.batch_size={batch_size} does not divide over {world} devices; use as many as divide it."
            )
        self.batch_size = min(batch_size, num_items // world * world)
        if self.batch_size == 0:
            raise ValueError(
                f"There are {num_items} training items for {world} devices; give more items or fewer devices."
            )
        self.num_items, self.seed, self.repeats = num_items, seed, repeats
        self.per_pass = num_items // self.batch_size
        self._order = (-1, torch.empty(0))

    def __call__(self, step: int) -> list[tuple[int, int, int]]:
        """The (pass, place in the pass, item) of each member of global batch `step`."""
        number, batch = divmod(step, self.per_pass)
        if self._order[0] != number:
            generator = torch.Generator().manual_seed(derive(self.seed, number))
            order = torch.randperm(self.num_items, generator=generator)
            self._order = number, order.repeat_interleave(self.repeats)[: self.num_items]
        places = range(batch * self.batch_size, (batch + 1) * self.batch_size)
        return [(number, place, int(self._order[1][place])) for place in places]


class _MicroBatches(Sampler):
    """What one device reads: its share of each global batch, cut to what fits, items of like length together."""

    def __init__(
        self,
        batches: Batches,
        start: int,
        stop: int,
        rank: int,
        world: int,
        micro_batch: int,
        lengths: Sequence[int] | None,
    ) -> None:
        self.batches, self.steps, self.rank, self.world = batches, range(start, stop), rank, world
        self.micro_batch, self.lengths = micro_batch, lengths

    def __len__(self) -> int:
        return len(self.steps) * micro_steps(self.batches.batch_size, self.world, self.micro_batch)

    def __iter__(self) -> Iterator[list]:
        for step in self.steps:
            share = self.batches(step)[self.rank :: self.world]
            if self.lengths is not None:
                share = sorted(share, key=lambda member: -self.lengths[member[2]])
            for first in range(0, len(share), self.micro_batch):
                yield share[first : first + self.micro_batch]


class _SeededItems(Dataset):
    """Items whose augmentation follows from (seed, pass, place), whoever reads them."""

    def __init__(self, dataset: Dataset, seed: int) -> None:
        self.dataset, self.seed = dataset, seed

    def __getitem__(self, key: tuple[int, int, int]) -> dict:
        number, place, item = key
        with seeded(self.seed, number, place):
            return self.dataset[item]


def micro_steps(batch_size: int, world: int, micro_batch: int) -> int:
    """How many micro-batches a device accumulates in a step."""
    return -(-(batch_size // world) // micro_batch)


def train_loader(
    dataset: Dataset, batches: Batches, start: int, stop: int, *, rank: int, world: int, micro_batch: int, workers: int,
    collate: Callable | None,
) -> DataLoader:  # fmt: skip
    """Micro-batches of this device for the steps [start, stop); see `Data.train` for items of unlike length."""
    return DataLoader(
        _SeededItems(dataset, batches.seed),
        batch_sampler=_MicroBatches(batches, start, stop, rank, world, micro_batch, getattr(dataset, "lengths", None)),
        num_workers=workers,
        collate_fn=collate,
        pin_memory=torch.cuda.is_available(),
    )


def eval_loader(
    dataset: Dataset, batch_size: int, *, rank: int, world: int, workers: int, collate: Callable | None
) -> DataLoader:
    """Every item once over all devices, none repeated; a device may have fewer items than another, or none. Items of like
    length come together."""
    share = list(range(rank, len(dataset), world))
    lengths = getattr(dataset, "lengths", None)
    if lengths is not None:
        share.sort(key=lambda item: -lengths[item])
    return DataLoader(
        Subset(dataset, share),
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=torch.cuda.is_available(),
    )
