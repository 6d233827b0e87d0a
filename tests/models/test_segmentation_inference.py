from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from models.segmentation.inference import predict, slide, starts


def average(images):
    """Scores that depend on a window's own contents: two classes from the pixels and their mean."""
    mean = images.mean((2, 3), keepdim=True)
    return torch.cat([images.sum(1, keepdim=True) - mean.sum(1, keepdim=True), images[:, :1] * 2], 1)


@pytest.mark.parametrize("length", range(8, 40))
@pytest.mark.parametrize("stride", [1, 5, 7, 8])
def test_windows_leave_no_pixel_out_and_end_with_the_side(length, stride):
    first = starts(length, 8, stride)
    covered = {pixel for start in first for pixel in range(start, start + 8)}
    assert covered == set(range(length))
    assert first == sorted(set(first)) and all(b - a <= stride for a, b in zip(first, first[1:], strict=False))


def test_windows_of_the_authors_evaluation():
    assert starts(512, 512, 480) == [0]
    assert starts(683, 512, 480) == [0, 171]
    assert starts(1100, 512, 480) == [0, 480, 588]


@pytest.mark.parametrize("stride", [0, 9])
def test_a_stride_that_leaves_pixels_out_is_refused(stride):
    with pytest.raises(ValueError, match="from 1 to 8"):
        starts(20, 8, stride)


@pytest.mark.parametrize("size", [(8, 8), (19, 30), (41, 8)])
def test_slides_as_mmseg_does(size, mmseg):
    from mmseg.models import EncoderDecoder

    image = torch.randn(1, 3, *size, dtype=torch.float64)
    test = SimpleNamespace(stride=(5, 5), crop_size=(8, 8))
    fake = SimpleNamespace(test_cfg=test, out_channels=2, encode_decode=lambda crop, metas: average(crop))
    theirs = EncoderDecoder.slide_inference(fake, image, [{"img_shape": size, "pad_shape": size}])
    torch.testing.assert_close(slide(average, image[0], 8, 5), theirs[0].float())


def test_a_model_of_single_pixels_is_the_same_in_windows_and_whole():
    def model(images):
        return torch.cat([images, -images], 1)

    image = torch.randn(1, 23, 31)
    expected = model(image[None])[0]
    torch.testing.assert_close(slide(model, image, 9, 4), expected)
    both = predict(model, image, (23, 31), window=9, stride=4, flip=True)
    torch.testing.assert_close(both, expected.softmax(0))


def test_a_small_image_is_enlarged_to_the_window_and_the_answer_has_the_size_asked_for():
    seen = []

    def model(images):
        seen.append(tuple(images.shape[-2:]))
        return images

    answer = predict(model, torch.randn(2, 10, 15), (7, 33), window=16, stride=12, scales=(0.5, 1, 2))
    assert answer.shape == (2, 7, 33) and set(seen) == {(16, 16)}
    torch.testing.assert_close(answer.sum(0), torch.ones(7, 33))


def test_scales_are_averaged_after_the_softmax():
    """A model that answers by the size of what it sees: at scale 2 the window is one of several, so the mean is known."""

    def model(images):
        score = images.amax((2, 3), keepdim=True).expand(-1, -1, *images.shape[-2:])
        return torch.cat([score, torch.zeros_like(score)], 1)

    image = torch.full((1, 8, 8), 2.0)
    one = torch.tensor([2.0, 0.0]).softmax(0)
    answer = predict(model, image, (8, 8), window=8, stride=8, scales=(1.0, 2.0), flip=True)
    torch.testing.assert_close(answer, one[:, None, None].expand(2, 8, 8))


def test_other_scales_are_made_of_the_original():
    """Resampled once, and once more where the window asks for it (then with the smaller size's loss, as the authors do)."""
    seen = []

    def model(images):
        seen.append(images[0])
        return images

    original = torch.randn(2, 40, 60)
    image = F.interpolate(original[None], size=(20, 30), mode="bilinear")[0]
    predict(model, image, (40, 60), window=20, stride=20, scales=(1, 2, 0.5), original=original)
    ones, twos, halves = seen[0], seen[1], seen[-1]
    assert torch.equal(ones, image[:, :, :20]) and torch.equal(twos, original[:, :20, :20])
    small = F.interpolate(original[None], size=(10, 15), mode="bilinear")
    assert torch.equal(halves, F.interpolate(small, size=(20, 30), mode="bilinear")[0, :, :, :20])
