"""Scenes of digits: exact labels, always the same, and no digit on both sides of the split."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import datasets
from datasets.digit_scenes import CLASSES, MEAN, PALETTE, STD, draw_scene, scenes_folder
from datasets.digits import read_digits

RAW, LABELS, TRAIN, TEST = read_digits()
COUNTS = (12, 5)


def scene(number):
    return draw_scene(np.random.default_rng(number), RAW, LABELS)


def boxes(places):
    return [np.s_[p.top : p.top + p.side, p.left : p.left + p.side] for p in places]


@pytest.mark.parametrize("number", range(4))
def test_labels_are_exact(number):
    """Every pixel follows from the ink of the one digit there: half of it makes a digit, a quarter an edge of no class."""
    pixels, labels, places = scene(number)
    assert pixels.shape == (*labels.shape, 3) and pixels.dtype == labels.dtype == np.uint8
    assert 112 <= min(labels.shape) <= 144 and max(labels.shape) <= 202 and 1 <= len(places) <= 8
    assert all(24 <= place.side <= 40 for place in places)
    expected = np.ones(labels.shape, np.uint8)
    for place, box in zip(places, boxes(places)):
        assert (expected[box] == 1).all() and expected[box].shape == (place.side, place.side)  # none overlaps another
        small = torch.from_numpy(RAW[place.digit]).view(1, 1, 8, 8) / 16
        ink = F.interpolate(small, (place.side, place.side), mode="bilinear")[0, 0].numpy().round(9)
        expected[box] = np.where(ink >= 0.5, 2 + LABELS[place.digit], np.where(ink >= 0.25, 0, 1))
    assert np.array_equal(labels, expected)
    digits, background = pixels[labels > 1].mean(), pixels[labels == 1].mean()
    assert digits > 100 > 90 > background


def test_scenes_differ_and_not_all_are_square():
    shapes = {scene(number)[1].shape for number in range(6)}
    assert len(shapes) == 6 and {h > w for h, w in shapes} == {True, False}


def test_a_digit_looks_as_it_did_to_a_backbone_trained_on_digits():
    """The default mean and deviation are those that `digits` normalises with, and scenes as a whole are not far from them."""
    images = datasets.build("digits", augment=False).train.images
    grey = images * STD / 255 + MEAN / 255
    assert grey.min() == pytest.approx(0, abs=1e-4) and grey.max() == pytest.approx(1, abs=1e-4)
    total = torch.cat([torch.from_numpy(scene(number)[0]).float().flatten() for number in range(40)])
    assert abs((total.mean() - MEAN) / STD) < 0.6 and 0.5 < total.std() / STD < 1.1


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("digit_scenes")
    scenes_folder(str(root), COUNTS)
    return root


def test_the_files_are_in_ade20ks_form_and_always_the_same(root):
    folder = root / "digit_scenes-12-5-v1"
    assert [path.name for path in root.iterdir()] == [folder.name]
    # pixels and labels of the seventeen scenes: another value means results that cannot be compared
    assert (folder / "fingerprint.txt").read_text() == "b2039ca03926"
    for split, part, count, number in (("training", TRAIN, 12, 0), ("validation", TEST, 5, 1)):
        names = sorted(path.stem for path in (folder / "images" / split).glob("*.jpg"))
        assert names == sorted(path.stem for path in (folder / "annotations" / split).glob("*.png"))
        assert names == [f"{i:05}" for i in range(count)]
        # scenes of a split are made of its own digits
        pixels, labels, _ = draw_scene(np.random.default_rng([1, number, 3]), RAW[part], LABELS[part])
        assert np.array_equal(np.asarray(Image.open(folder / "annotations" / split / "00003.png")), labels)
        photograph = np.asarray(Image.open(folder / "images" / split / "00003.jpg")).astype(int)
        assert abs(photograph - pixels).mean() < 4
    assert not set(TRAIN) & set(TEST) and len(TRAIN) + len(TEST) == len(RAW)


def test_a_larger_set_begins_with_a_smaller_one(root):
    larger = scenes_folder(str(root / "larger"), (13, 6))
    for kind, suffix in (("images", ".jpg"), ("annotations", ".png")):
        path = f"{kind}/validation/00004{suffix}"
        assert (larger / path).read_bytes() == (root / "digit_scenes-12-5-v1" / path).read_bytes()


def test_processes_that_write_at_once_and_one_that_is_interrupted(tmp_path, monkeypatch):
    with ThreadPoolExecutor(3) as pool:
        folders = set(pool.map(lambda _: scenes_folder(str(tmp_path), (4, 2)), range(3)))
    assert [folder.name for folder in folders] == [path.name for path in tmp_path.iterdir()]
    before = (tmp_path / "digit_scenes-4-2-v1" / "fingerprint.txt").stat().st_mtime_ns
    scenes_folder(str(tmp_path), (4, 2))
    assert (tmp_path / "digit_scenes-4-2-v1" / "fingerprint.txt").stat().st_mtime_ns == before

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["datasets.digit_scenes"], "draw_scene", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scenes_folder(str(tmp_path / "again"), (4, 2))
    assert not list((tmp_path / "again").iterdir())


def test_a_folder_in_the_way(tmp_path):
    (tmp_path / "digit_scenes-1-1-v1" / "images").mkdir(parents=True)
    with pytest.raises(ValueError, match="digit_scenes-1-1-v1 is in the way of the digit scenes .*; remove it"):
        scenes_folder(str(tmp_path), (1, 1))


def test_the_data(root, mmseg):
    data = datasets.build("digit_scenes", root=str(root), counts=COUNTS, seed=3)
    assert data.counts == {"train": 12, "test": 5} and (data.input_size, data.num_classes) == ((3, 64, 64), 11)
    assert (data.input_size, data.num_classes) == datasets.shape_of("digit_scenes")
    assert data.short == "12 training images instead of 1000; 5 validation images instead of 200"
    assert data.fingerprint == (root / "digit_scenes-12-5-v1" / "fingerprint.txt").read_text()
    assert data.train.classes == CLASSES and data.train.palette == PALETTE and len(set(PALETTE)) == 11
    batch = data.collate([data.train[i] for i in range(12)])
    assert batch["image"].shape == (12, 3, 64, 64) and set(batch["target"].unique().tolist()) <= {*range(11), 255}
    item = data.evaluate["test"][3]
    assert item["name"] == "00003" and min(item["image"].shape[1:]) == 128
    stored = np.asarray(Image.open(root / "digit_scenes-12-5-v1" / "annotations" / "validation" / "00003.png"))
    assert torch.equal(item["target"], torch.from_numpy(np.where(stored == 0, 255, stored.astype(int) - 1)))


@pytest.mark.parametrize("counts", [[3], [3, 0]])
def test_counts_that_do_not_fit(counts, tmp_path):
    with pytest.raises(ValueError, match=r"data\.counts="):
        datasets.build("digit_scenes", root=str(tmp_path), counts=counts)
