"""IMDB's reviews: bytes, the held-out split, and folders that cannot be used."""

import shutil

import pytest
import torch

import datasets

SIZE = 30  # reviews in each of the four folders


@pytest.fixture()
def tree(tmp_path):
    """aclImdb as the archive unpacks: reviews named by number and rating, one longer than is read, one not ASCII."""
    for split in ("train", "test"):
        for name in ("pos", "neg"):
            folder = tmp_path / "aclImdb" / split / name
            folder.mkdir(parents=True)
            for number in range(SIZE):
                (folder / f"{number}_{number % 10}.txt").write_text(f"{split} {name} {number}: fine.", encoding="utf-8")
    (tmp_path / "aclImdb" / "train" / "unsup").mkdir()
    (tmp_path / "aclImdb" / "train" / "unsup" / "0_0.txt").write_text("no label")
    (tmp_path / "aclImdb" / "test" / "neg" / "0_0.txt").write_text("x" * 5000)
    (tmp_path / "aclImdb" / "test" / "pos" / "0_0.txt").write_text("très bien", encoding="utf-8")
    return tmp_path


def build(tree, **options):
    return datasets.build("text", root=str(tree), cache=str(tree / "cache"), partial=True, **options)


def decode(item):
    tokens = item["tokens"][: item["length"]]
    assert (tokens > 0).all() and (item["tokens"][item["length"] :] == 0).all()
    return bytes((tokens - 1).tolist()).decode()


def test_items_are_bytes_plus_one(tree):
    data = build(tree)
    assert data.input_size == (4096,) and data.num_classes == 2 and data.switches == {}
    assert "30 of 12,500" in data.short
    texts = {decode(item): int(item["target"]) for item in data.evaluate["test"]}
    assert texts["très bien"] == 1 and texts["x" * 4000] == 0 and len(texts) == 60
    item = data.train[0]
    assert item["tokens"].shape == (4096,) and all(value.dtype == torch.int64 for value in item.values())
    assert all(text.split()[1] == "pos" for text, target in texts.items() if target and text.startswith("test"))


def test_dev_is_held_out_from_train(tree):
    data = build(tree)
    assert data.counts == {"train": 54, "dev": 6, "test": 60} and list(data.evaluate) == ["dev", "test"]
    train, dev = ({decode(item) for item in part} for part in (data.train, data.evaluate["dev"]))
    assert not train & dev and len(train | dev) == 60 and all(text.startswith("train") for text in train | dev)
    assert sum(int(item["target"]) for item in data.evaluate["dev"]) == 3
    again = build(tree, seed=9)
    assert [decode(item) for item in again.evaluate["dev"]] == [decode(item) for item in data.evaluate["dev"]]


def test_imdb_dev_is_test_is_a_switch(tree):
    data = build(tree, imdb_dev_is_test=True)
    assert data.switches == {"imdb_dev_is_test": True} and data.counts == {"train": 60, "dev": 60, "test": 60}
    dev, test = ([decode(item) for item in data.evaluate[split]] for split in ("dev", "test"))
    assert dev == test


def test_the_folder_itself_and_a_limit(tree):
    data = build(tree / "aclImdb", limit=5)
    assert data.counts == {"train": 5, "dev": 5, "test": 5} and "limit=5" in data.short
    assert data.fingerprint == build(tree).fingerprint


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_tree_without_neg(tree, split):
    shutil.rmtree(tree / "aclImdb" / split / "neg")
    with pytest.raises(ValueError, match=f"{split}/neg was looked for and is not there; .* holds pos/") as error:
        build(tree)
    assert "\n" not in str(error.value)


def test_other_bad_folders(tree, tmp_path):
    with pytest.raises(ValueError, match="set data.root to aclImdb"):
        datasets.build("text")
    with pytest.raises(ValueError, match="train or aclImdb/train was looked for"):
        datasets.build("text", root=str(tree / "aclImdb" / "train" / "pos"))
    with pytest.raises(ValueError, match="found 30 reviews .* where 12,500 are expected"):
        datasets.build("text", root=str(tree), cache=str(tree / "cache"))
    for path in (tree / "aclImdb" / "train" / "pos").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match="holds no .txt file"):
        build(tree)
