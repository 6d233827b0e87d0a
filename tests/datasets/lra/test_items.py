"""Batches of sequences of unlike length."""

import os

import numpy as np
import pytest
import torch

from datasets.lra.items import TokenItems, to_longest, token_data
from datasets.lra.store import Store, Writer, cached

TEXTS = (b"abc", b"a", b"abcdefgh", b"", b"abcde")


def make(tmp_path, pairs=None) -> Store:
    def write(writer: Writer) -> None:
        writer.begin("train")
        for number, text in enumerate(TEXTS):
            if pairs:
                writer.add_pair(text, pairs[number], 1)
            else:
                writer.add(text, number)

    return cached(tmp_path, "texts", {"pairs": bool(pairs)}, write)


def test_a_finished_store_is_opened_without_writing(tmp_path, monkeypatch):
    """It may lie in a folder that this user can only read."""
    written = make(tmp_path)
    os.utime(tmp_path, (0, 0))
    monkeypatch.setattr("datasets.lra.store.FileLock", lambda path: pytest.fail("locked"))
    monkeypatch.setattr("pathlib.Path.mkdir", lambda *args, **options: pytest.fail("made a folder"))
    assert make(tmp_path).fingerprint == written.fingerprint and tmp_path.stat().st_mtime == 0


def test_a_batch_ends_where_its_longest_sequence_does(tmp_path):
    items = TokenItems(make(tmp_path), np.arange(5), length=6, shift=1)
    assert items.lengths.tolist() == [3, 1, 6, 0, 5]
    batch = to_longest([items[0], items[1]])
    assert batch["tokens"].tolist() == [[98, 99, 100], [98, 0, 0]]
    assert (batch["length"].tolist(), batch["target"].tolist()) == ([3, 1], [0, 1])
    assert to_longest([items[2], items[3]])["tokens"].shape == (2, 6)
    assert to_longest([items[3]])["tokens"].tolist() == [[0]]  # a text without a token keeps one place, of padding


def test_both_sides_of_a_pair_are_cut_alike(tmp_path):
    items = TokenItems(make(tmp_path, pairs=[b"ab", b"abcd", b"a", b"", b"xyz"]), np.arange(5), length=6)
    assert items.lengths.tolist() == [3, 4, 6, 0, 5]
    batch = to_longest([items[0], items[1]])
    assert batch["tokens_a"].shape == batch["tokens_b"].shape == (2, 4)
    assert batch["length_a"].tolist() == [3, 1]
    assert batch["length_b"].tolist() == [2, 4]


@pytest.mark.parametrize("limit", [None, 3])
def test_a_limit_keeps_the_lengths(tmp_path, limit):
    store = make(tmp_path)
    train = token_data("texts", store, {"train": np.arange(5)}, length=6, num_classes=5, limit=limit).train
    assert len(train) == len(train.lengths) == (limit or 5)
    assert [int(train[i]["length"]) for i in range(len(train))] == train.lengths.tolist()
    assert torch.stack([train[i]["target"] for i in range(len(train))]).unique().numel() == len(train)
