"""Mixup and CutMix: labels are blended exactly as the pixels are."""

import numpy as np
import pytest
import torch

from mita.training.mix import Mix, cut_box, soft_targets
from mita.training.tasks import build_task

CLASSES = 7


def batch(size: int, side: int = 16):
    """Image i is the constant i + 1, so that a mixed pixel shows where it comes from."""
    images = torch.arange(1.0, size + 1)[:, None, None, None].expand(size, 3, side, side + 4).clone()
    return images, torch.arange(size) % CLASSES


def mixed(size: int, seed: int, **options):
    images, targets = batch(size)
    mixed_images, soft = Mix(CLASSES, **options)(images, targets, np.random.default_rng(seed))
    return images, targets, mixed_images, soft


def test_smoothing_values():
    soft = soft_targets(torch.tensor([2, 0]), 5, smoothing=0.1)
    expected = torch.full((2, 5), 0.02)
    expected[0, 2] = expected[1, 0] = 0.92
    torch.testing.assert_close(soft, expected)
    assert soft.dtype == torch.float32


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize(
    "options", [{}, {"cutmix": 0.0}, {"mixup": 0.0}, {"smoothing": 0.0}, {"mixup": 0, "cutmix": 0}]
)
def test_targets_sum_to_one(size, options):
    for seed in range(8):
        _, _, images, soft = mixed(size, seed, **options)
        assert images.shape == (size, 3, 16, 20) and soft.shape == (size, CLASSES)
        torch.testing.assert_close(soft.sum(1), torch.ones(size))


@pytest.mark.parametrize("options", [{"cutmix": 0.0}, {"mixup": 0.0}])
@pytest.mark.parametrize("size", [2, 3, 6])
def test_labels_are_mixed_as_the_pixels_are(size, options):
    """The mean of constant images is the weight that the labels must have, for mixup and for a clipped box alike."""
    weights = set()
    for seed in range(20):
        images, targets, new, soft = mixed(size, seed, smoothing=0.0, **options)
        for i in range(size):
            j = size - 1 - i
            own, other = images[i].mean(), images[j].mean()
            share = float((new[i].mean() - other) / (own - other)) if i != j else 1.0
            expected = share * soft_targets(targets[[i]], CLASSES) + (1 - share) * soft_targets(targets[[j]], CLASSES)
            torch.testing.assert_close(soft[i], expected[0], atol=1e-5, rtol=0)
            weights.add(round(share, 3))
    assert len(weights) > 10


def test_cutmix_pastes_one_box_of_the_mirror_image():
    boxes = 0
    for seed in range(20):
        images, _, new, _ = mixed(4, seed, mixup=0.0)
        changed = new[0, 0] != images[0, 0]
        assert torch.equal(new[0, 0][changed], images[3, 0][changed])
        rows, columns = changed.any(1), changed.any(0)
        assert torch.equal(changed, rows[:, None] & columns[None])
        boxes += bool(changed.any())
    assert boxes > 15


def test_the_middle_of_an_odd_batch_and_a_single_image_keep_their_label():
    for seed in range(10):
        images, targets, new, soft = mixed(3, seed)
        torch.testing.assert_close(new[1], images[1])
        torch.testing.assert_close(soft[1], soft_targets(targets, CLASSES, 0.1)[1])
        images, targets, new, soft = mixed(1, seed)
        torch.testing.assert_close(new, images)
        torch.testing.assert_close(soft, soft_targets(targets, CLASSES, 0.1))


def test_the_generator_decides_and_nothing_else():
    torch.manual_seed(0)
    np.random.seed(0)
    first = mixed(5, 3)
    torch.manual_seed(1)
    np.random.seed(1)
    second = mixed(5, 3)
    assert torch.equal(first[2], second[2]) and torch.equal(first[3], second[3])
    assert any(not torch.equal(first[3], mixed(5, seed)[3]) for seed in range(4, 8))


def test_the_given_images_are_left_alone():
    for seed in range(6):
        images, _, new, _ = mixed(4, seed)
        assert torch.equal(images, batch(4)[0]) and new is not images


def test_bce_counts_the_classes_of_a_mixed_image_alone():
    """DeiT-III: every class with a positive target. Smoothing would make all of them positive, and is refused."""
    task = build_task("classification", 50, loss="bce", mixup=0.8, cutmix=1.0)
    images, targets = torch.zeros(6, 1, 4, 4), torch.arange(6)
    seen = []

    def model(images):
        seen.append(torch.zeros(6, 50, requires_grad=True))
        return seen[-1]

    task.loss(model, {"image": images, "target": targets}, np.random.default_rng(0)).backward()
    positive = seen[0].grad < 0
    assert positive.sum(1).tolist() == [2] * 6 and positive[0, [0, 5]].all()
    with pytest.raises(ValueError, match="task.smoothing=0.1 must be 0"):
        build_task("classification", 50, loss="bce", smoothing=0.1)


def test_switch_and_prob():
    """A mixup image is constant, a CutMix image is not (unless its box is empty or whole)."""
    kinds = [bool(mixed(2, seed)[2][0].std() > 1e-6) for seed in range(300)]
    assert 0.35 < np.mean(kinds) < 0.6
    untouched = [torch.equal(*mixed(2, seed, prob=0.25)[::2][:2]) for seed in range(300)]
    assert 0.65 < np.mean(untouched) < 0.85


def test_box_stays_inside_and_reaches_its_size():
    generator = np.random.default_rng(0)
    for _ in range(200):
        top, bottom, left, right = cut_box(generator, 0.75, 16, 20)
        assert 0 <= top <= bottom <= 16 and 0 <= left <= right <= 20
        assert bottom - top <= 8 and right - left <= 10
    top, bottom, left, right = cut_box(generator, 1.0, 16, 20)
    assert (bottom - top) * (right - left) == 0


@pytest.mark.parametrize("options", [{"mixup": -1}, {"prob": 1.5}, {"smoothing": -0.1}])
def test_options_out_of_range(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Mix(CLASSES, **options)
