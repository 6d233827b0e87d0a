"""Global batches are a function of (seed, step)."""

import pytest
from torch.utils.data import Dataset

from mita.training.loader import Batches, eval_loader, train_loader

from .toy import Toy


def test_each_pass_is_a_new_permutation():
    batches = Batches(10, 5, seed=3)
    passes = [[item for step in (2 * p, 2 * p + 1) for _, _, item in batches(step)] for p in range(3)]
    assert all(sorted(p) == list(range(10)) for p in passes)
    assert passes[0] != passes[1] != passes[2]
    assert [item for _, _, item in Batches(10, 5, seed=3)(5)] == passes[2][5:]


def test_repeated_augmentation_repeats_items_in_a_pass_of_the_same_length():
    batches = Batches(30, 6, seed=0, repeats=3)
    members = [m for step in range(batches.per_pass) for m in batches(step)]
    items = [item for _, _, item in members]
    assert len(items) == 30
    assert len(set(items)) == 10
    assert all(items.count(item) == 3 for item in items)
    assert len({place for _, place, _ in members}) == 30  # each copy has an augmentation of its own


@pytest.mark.parametrize(("world", "micro"), [(1, 8), (2, 4), (4, 1), (2, 3)])
def test_devices_share_the_same_global_batches(world, micro):
    batches = Batches(40, 8, seed=1, world=world)
    shares = [
        [item for batch in train_loader(Toy(), batches, 3, 5, rank=r, world=world, micro_batch=micro, workers=0, collate=None)
         for item in zip(batch["image"].flatten(1).tolist(), batch["target"].tolist(), strict=True)]
        for r in range(world)
    ]  # fmt: skip
    one = Batches(40, 8, seed=1)
    whole = [
        item for batch in train_loader(Toy(), one, 3, 5, rank=0, world=1, micro_batch=16, workers=0, collate=None)
        for item in zip(batch["image"].flatten(1).tolist(), batch["target"].tolist(), strict=True)
    ]  # fmt: skip
    assert sorted(item for share in shares for item in share) == sorted(whole)


class Rows(Dataset):
    """Items that are their own numbers, of the lengths given."""

    lengths = (3, 9, 1, 7, 5, 8, 2, 6, 4, 10)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return index


def test_items_of_like_length_go_through_together():
    """The groups change, and never which items a step or an evaluation has."""
    rows, batches = Rows(), Batches(10, 6, seed=0, world=2)
    for rank in range(2):
        loader = train_loader(rows, batches, 1, 2, rank=rank, world=2, micro_batch=2, workers=0, collate=list)
        share = [item for _, _, item in batches(1)][rank::2]
        by_length = sorted(share, key=lambda item: -rows.lengths[item])
        assert list(loader) == [by_length[:2], by_length[2:]]
    loader = eval_loader(rows, 2, rank=1, world=2, workers=0, collate=list)
    assert list(loader) == [[9, 1], [5, 3], [7]]


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match=r"64 does not divide over 3 devices"):
        Batches(100, 64, seed=0, world=3)


def test_fewer_items_than_a_batch_make_a_smaller_batch():
    assert Batches(10, 64, seed=0).batch_size == 10
    with pytest.raises(ValueError, match="1 training items for 2 devices"):
        Batches(1, 64, seed=0, world=2)
