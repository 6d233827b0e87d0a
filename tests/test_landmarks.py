"""Average pooling against plain loops: segments of the real tokens, windows of images."""

import pytest
import torch

from mita import TokenLayout
from mita.landmarks import average_pool


def randn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def segments(tokens: torch.Tensor, m: int) -> torch.Tensor:
    """(L, d) to (m, d) by the definition."""
    L = len(tokens)
    return torch.stack([tokens[i * L // m : -(-(i + 1) * L // m)].mean(0) for i in range(m)])


@pytest.mark.parametrize(("n", "m"), [(12, 4), (13, 4), (4, 4), (3, 7), (1, 1), (1, 5), (320, 9)])
def test_segments_of_a_sequence(n, m):
    q = randn(2, 2, n + 3, 5)
    landmarks, mask = average_pool(q, TokenLayout((n,), 1, 2), (m,))
    assert mask is None
    expected = torch.stack([torch.stack([segments(head[1:-2], m) for head in item]) for item in q])
    torch.testing.assert_close(landmarks, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("m", [1, 4, 13, 20])
def test_segments_of_the_real_tokens_wherever_they_are(m):
    q = randn(4, 2, 13, 3).requires_grad_()
    real = torch.rand(4, 13, generator=torch.Generator().manual_seed(1)) < 0.6
    real[0], real[1], real[2] = True, False, torch.arange(13) == 7
    landmarks, mask = average_pool(q, TokenLayout((13,)), (m,), real)
    assert mask.tolist() == [[bool(row.any())] * m for row in real]
    assert (landmarks[1] == 0).all()
    for b in (0, 2, 3):
        expected = torch.stack([segments(head[real[b]], m) for head in q[b]])
        torch.testing.assert_close(landmarks[b], expected, rtol=0, atol=1e-12)
    (grad,) = torch.autograd.grad(landmarks.square().sum(), q)
    assert (grad.transpose(1, 2)[~real] == 0).all()


@pytest.mark.parametrize(
    ("grid", "cells"), [((14, 14), (5, 5)), ((10, 16), (3, 4)), ((3, 5), (7, 2)), ((1, 6), (1, 1))]
)
@pytest.mark.parametrize("masked", [False, True])
def test_windows_of_an_image(grid, cells, masked):
    h, w = grid
    q = randn(2, 2, 1 + h * w, 3)
    real = torch.rand(2, 1 + h * w, generator=torch.Generator().manual_seed(2)) < (0.5 if masked else 2)
    real[1, 1 : 1 + w] &= not masked
    landmarks, mask = average_pool(q, TokenLayout(grid, 1), cells, real if masked else None)
    image, pixels = q[:, :, 1:].unflatten(2, grid), real[:, 1:].unflatten(1, grid)
    for b in range(2):
        for i in range(cells[0]):
            for j in range(cells[1]):
                rows = slice(i * h // cells[0], -(-(i + 1) * h // cells[0]))
                columns = slice(j * w // cells[1], -(-(j + 1) * w // cells[1]))
                window = image[b, :, rows, columns][:, pixels[b, rows, columns]]
                cell = i * cells[1] + j
                if masked:
                    assert mask[b, cell] == (window.shape[1] > 0)
                expected = window.mean(1) if window.shape[1] else torch.zeros(2, 3, dtype=q.dtype)
                torch.testing.assert_close(landmarks[b, :, cell], expected, rtol=0, atol=1e-12)


def test_no_batch():
    assert average_pool(randn(0, 2, 16, 3), TokenLayout((4, 4)), (3, 3))[0].shape == (0, 2, 9, 3)
    assert average_pool(randn(0, 2, 16, 3), TokenLayout((16,)), (5,))[0].shape == (0, 2, 5, 3)


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match="17 tokens, but its layout holds 16"):
        average_pool(randn(1, 1, 17, 3), TokenLayout((4, 4)), (2, 2))
    with pytest.raises(ValueError, match="2-D token grid"):
        average_pool(randn(1, 1, 16, 3), TokenLayout((4, 4)), (4,))
