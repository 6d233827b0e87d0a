"""The digits: real, fixed, and bent only for training."""

import pytest
import torch

import datasets


@pytest.fixture(scope="module")
def digits():
    return datasets.build("digits")


def test_sizes_and_types(digits):
    assert digits.counts == {"train": 1437, "test": 360} and digits.num_classes == 10
    assert digits.input_size == (1, 32, 32) and digits.short is None and digits.switches == {}
    assert list(digits.evaluate) == ["test"] and len(digits.train) == 1437
    item = digits.train[5]
    assert item["image"].shape == (1, 32, 32) and item["image"].dtype == torch.float32
    assert item["target"].shape == () and item["target"].dtype == torch.int64


def test_the_split_is_fixed_and_stratified(digits):
    """The fingerprint covers pixels, labels and split: another one means results that cannot be compared."""
    assert digits.fingerprint == datasets.build("digits", seed=7).fingerprint == "108116c47de2"
    test = torch.stack([item["target"] for item in digits.evaluate["test"]])
    assert torch.bincount(test).min() >= 34 and torch.bincount(test).max() <= 37


def test_train_and_test_share_no_item(digits):
    train = datasets.build("digits", augment=False).train
    train, test = (torch.stack([item["image"].flatten() for item in part]) for part in (train, digits.evaluate["test"]))
    assert torch.cdist(test, train, compute_mode="donot_use_mm_for_euclid_dist").min() > 0
    assert abs(float(train.mean())) < 1e-4 and abs(float(train.std()) - 1) < 1e-4


def test_augmentation_follows_the_global_seed_and_touches_training_only(digits):
    torch.manual_seed(3)
    first, other = digits.train[0]["image"], digits.train[0]["image"]
    torch.manual_seed(3)
    assert torch.equal(first, digits.train[0]["image"]) and not torch.equal(first, other)
    assert torch.equal(digits.evaluate["test"][0]["image"], digits.evaluate["test"][0]["image"])


def test_augmentation_is_small_and_fills_with_background(digits):
    plain = datasets.build("digits", augment=False)
    background = plain.train.background
    torch.manual_seed(0)
    for i in range(50):
        bent, image = digits.train[i]["image"], plain.train[i]["image"]
        assert bent.min() >= background - 1e-4 and bent.max() <= image.max() + 1e-4
        ink = float((bent - background).sum() / (image - background).sum())
        assert 0.55 < ink < 1.45


def test_no_bending_is_the_identity():
    from datasets.digits import random_affine

    image = torch.randn(1, 32, 32)
    still = random_affine(image, -0.9, degrees=0, shear_degrees=0, shift=0, scale=0)
    torch.testing.assert_close(still, image, atol=1e-4, rtol=0)


def test_limit_and_root(digits):
    few = datasets.build("digits", limit=20, augment=False)
    assert few.counts == {"train": 20, "test": 20} and few.short == "limit=20"
    assert few.fingerprint == digits.fingerprint
    same = datasets.build("digits", limit=20, augment=False, seed=4)
    assert [int(i["target"]) for i in few.train] == [int(i["target"]) for i in same.train]
    assert len({int(i["target"]) for i in few.train}) > 4
    with pytest.raises(ValueError, match="scikit-learn"):
        datasets.build("digits", root="somewhere")
    with pytest.raises(ValueError, match="whole number"):
        datasets.build("digits", limit=0)
