"""CIFAR-10 in grey, from python files of the published form."""

import os
import pickle

import numpy as np
import pytest
import torch

import datasets
from datasets.lra.image import grey

BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def batch(number, size=4):
    generator = np.random.default_rng(number)
    data = generator.integers(0, 256, (size, 3072), dtype=np.uint8)
    return {b"data": data, b"labels": [(number + i) % 10 for i in range(size)], b"batch_label": b"batch"}


@pytest.fixture()
def tree(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for number, name in enumerate(BATCHES):
        (folder / name).write_bytes(pickle.dumps(batch(number), protocol=2))
    return tmp_path


def build(tree, **options):
    return datasets.build("image", root=str(tree), cache=str(tree / "cache"), partial=True, **options)


def test_items_and_split(tree):
    data = build(tree)
    assert data.counts == {"train": 18, "dev": 2, "test": 4} and list(data.evaluate) == ["dev", "test"]
    assert data.input_size == (1024,) and data.num_classes == 10 and "20 of 50,000" in data.short
    assert data.switches == {}
    raw = np.concatenate([batch(number)[b"data"] for number in range(5)]).reshape(-1, 3, 1024)
    items = [*data.train, *data.evaluate["dev"]]
    assert [item["tokens"].tolist() for item in items] == grey(raw).tolist()
    assert [int(item["target"]) for item in items] == [(number + i) % 10 for number in range(5) for i in range(4)]
    assert all(item["length"] == 1024 for item in items), "a black pixel is a pixel"
    assert all(value.dtype == torch.int64 for value in items[0].values())


def test_grey_is_bt601_to_the_nearest_step():
    """Against the definition in double precision; TensorFlow's conversion cuts x * 255.5."""
    pixels = np.random.default_rng(0).integers(0, 256, (50, 3, 1024), dtype=np.uint8)
    told = np.floor((pixels / 255).transpose(0, 2, 1) @ [0.2989, 0.5870, 0.1140] * 255.5)
    assert (abs(told - grey(pixels)) <= 1).all() and (told != grey(pixels)).mean() < 1e-3
    white, black = np.full((1, 3, 1024), 255, np.uint8), np.zeros((1, 3, 1024), np.uint8)
    assert (grey(white) == 255).all() and (grey(black) == 0).all()


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_any_pickle_protocol(tree, protocol):
    before = build(tree)
    path = tree / "cifar-10-batches-py" / "data_batch_1"
    path.write_bytes(pickle.dumps(batch(0), protocol=protocol))
    assert build(tree).train[0]["tokens"].equal(before.train[0]["tokens"])


def test_the_name_numpy_had_when_the_files_were_made(tree):
    path = tree / "cifar-10-batches-py" / "data_batch_1"
    old = pickle.dumps(batch(0), protocol=2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert b"numpy.core.multiarray" in old
    path.write_bytes(old)
    assert len(build(tree).train) == 18


class Command:
    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(batch(0), protocol=2)[:5000], "is it cut"),
        (b"", "is it cut"),
        (pickle.dumps({b"data": Command(), b"labels": []}), r"asks for (posix|nt).system"),
        (pickle.dumps({b"data": np.zeros((2, 10), np.uint8), b"labels": [1, 2]}), r"shape \(2, 10\) for 2 labels"),
        (pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 12]}), "labels 1 to 12"),
        (pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [1, 2]}), "b'labels'"),
    ],
)
def test_a_bad_file_gets_one_sentence(tree, content, message):
    (tree / "cifar-10-batches-py" / "data_batch_3").write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        build(tree)
    assert "\n" not in str(error.value)


def test_bad_folders(tree):
    with pytest.raises(ValueError, match="set data.root"):
        datasets.build("image")
    with pytest.raises(ValueError, match="found 20 train images .* where 50,000 are expected"):
        datasets.build("image", root=str(tree), cache=str(tree / "cache"))
    (tree / "cifar-10-batches-py" / "test_batch").unlink()
    with pytest.raises(ValueError, match="test_batch was looked for"):
        build(tree)
    (tree / "empty").mkdir()
    with pytest.raises(ValueError, match="data_batch_1 was looked for in .* holds nothing"):
        datasets.build("image", root=str(tree / "empty"))
