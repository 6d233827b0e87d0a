"""Items of a store as padded tensors, and the `Data` they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from ..data import Data, limited, reasons
from .store import Store


class TokenItems(Dataset):
    """Items {"tokens": (N,) int64, "length": int64, "target": int64}; token 0 fills up what is beyond `length`.

    A store of pairs gives {"tokens_a", "length_a", "tokens_b", "length_b", "target"} instead.

    Args:
        store: the sequences.
        numbers: which items of the store, in order.
        length: N; what is longer is cut.
        shift: added to every stored value (1 makes byte-level tokens of bytes, so that 0 is free for padding).
        without: a stored value that is left out of every sequence, or None.

    Attributes:
        lengths: (items,) stored tokens up to N, of the longer one of a pair.
    """

    def __init__(
        self, store: Store, numbers: Sequence[int] | np.ndarray, length: int, shift: int = 0, without: int | None = None
    ):
        self.store, self.numbers, self.length, self.shift, self.without = store, numbers, length, shift, without
        stored = np.diff(store.offsets)
        by_item = stored if store.pairs is None else stored[store.pairs].max(1)
        self.lengths = by_item[np.fromiter(numbers, np.int64)].clip(max=length)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        number = int(self.numbers[index])
        target = torch.tensor(int(self.store.targets[number]))
        if self.store.pairs is None:
            tokens, length = self._padded(number)
            return {"tokens": tokens, "length": length, "target": target}
        first, second = self.store.pairs[number]
        (tokens_a, length_a), (tokens_b, length_b) = self._padded(first), self._padded(second)
        texts = {"tokens_a": tokens_a, "length_a": length_a, "tokens_b": tokens_b, "length_b": length_b}
        return {**texts, "target": target}

    def _padded(self, number: int) -> tuple[Tensor, Tensor]:
        tokens = self.store.sequence(number)
        if self.without is not None:
            tokens = tokens[tokens != self.without]
        tokens = tokens[: self.length]
        padded = torch.zeros(self.length, dtype=torch.int64)
        padded[: len(tokens)] = torch.from_numpy(tokens.astype(np.int64) + self.shift)
        return padded, torch.tensor(len(tokens))


def to_longest(items: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """A batch of items of `TokenItems`, cut where the longest sequence ends: N is that of the batch, at least 1."""
    batch = default_collate(items)
    longest = max(1, *(int(value.max()) for name, value in batch.items() if name.startswith("length")))
    return {name: value[:, :longest] if name.startswith("tokens") else value for name, value in batch.items()}


def token_data(
    name: str,
    store: Store,
    splits: Mapping[str, np.ndarray],
    *,
    length: int,
    num_classes: int,
    limit: int | None,
    shift: int = 0,
    without: int | None = None,
    short: Sequence[str | None] = (),
    switches: dict | None = None,
) -> Data:
    """`Data` of the items `splits` names: "train", and the others to evaluate on, in order."""
    items = {
        split: TokenItems(store, limited(numbers, limit), length, shift, without) for split, numbers in splits.items()
    }
    return Data(
        name=name,
        train=items["train"],
        evaluate={split: dataset for split, dataset in items.items() if split != "train"},
        num_classes=num_classes,
        input_size=(length,),
        fingerprint=store.fingerprint,
        counts={split: len(dataset) for split, dataset in items.items()},
        collate=to_longest,
        short=reasons(*short, limit and f"limit={limit}"),
        switches=switches or {},
    )
