"""Bugs that users of similar projects reported in public, each as a test of its whole kind."""

import pytest
import torch
import torch.nn.functional as F

from mita import TokenLayout, mita_attention
from mita.attention.reference import reference_attention
from mita.landmarks import average_pool

from .cases import BACKENDS, TOLERANCE, WIDEST

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize(
    ("m", "k", "s"), [(3, 1, 1), (1, 4, 1), (3, 12, 1), (12, 4, 1), (3, 4, 3), (1, 1, 1), (12, 12, 12)]
)
def test_limits_are_no_hidden_dense_path(backend, m, k, s):
    """MoBA PR #26: top-k of 1 silently became full attention."""
    if backend == "native" and s > 1:
        pytest.skip("it routes to one expert")
    dtype = WIDEST[backend]
    q, keys, v = (randn(1, 2, 12, 4, seed=i, dtype=dtype) for i in range(3))
    options = {"top_k": k, "experts_per_query": s}
    o = mita_attention(q, keys, v, q[:, :, :m], backend=backend, **options)
    expected, _ = reference_attention(q, keys, v, q[:, :, :m], **options)
    torch.testing.assert_close(o, expected, rtol=0, atol=TOLERANCE[dtype])
    if k < 12:
        assert (o - F.scaled_dot_product_attention(q, keys, v)).abs().max() > 1e-2


@pytest.mark.parametrize("content", [0.0, 1e4, float("inf"), float("nan")])
def test_padding_changes_nothing(backend, content):
    """native-sparse-attention #23: NaN with lengths 781 and 1267. Outputs as unpadded, gradients at pads exactly 0."""
    lengths, N = (781, 1267), 1267
    q, k, v = (randn(2, 1, N, 8, seed=i, dtype=WIDEST[backend]) for i in range(3))
    mask = torch.arange(N) < torch.tensor(lengths)[:, None]
    q = q.masked_fill(~mask[:, None, :, None], 0 if content != content or content == float("inf") else content)
    k, v = (t.masked_fill(~mask[:, None, :, None], content) for t in (k, v))
    leaves = [t.requires_grad_() for t in (q, k, v)]
    landmarks, landmark_mask = average_pool(q, TokenLayout((N,)), (16,), mask)
    o = mita_attention(q, k, v, landmarks, top_k=20, key_mask=mask, landmark_mask=landmark_mask, backend=backend)
    real = o.masked_fill(~mask[:, None, :, None], 0)
    assert real.isfinite().all()
    grads = torch.autograd.grad(real.square().sum(), leaves)
    for row, length in enumerate(lengths):
        own = [t[row : row + 1, :, :length].detach().requires_grad_() for t in leaves]
        pooled, _ = average_pool(own[0], TokenLayout((length,)), (16,))
        alone = mita_attention(*own, pooled, top_k=20, backend=backend)
        torch.testing.assert_close(o[row, :, :length], alone[0], rtol=0, atol=2e-6)
        for grad, expected in zip(grads, torch.autograd.grad(alone.square().sum(), own)):
            torch.testing.assert_close(grad[row, :, :length], expected[0], rtol=1e-6, atol=5e-6)
            assert (grad[row, :, length:] == 0).all()


def test_ties_go_to_the_lowest_index(backend):
    """pytorch #127196, #133542: the order of equal scores differs by device."""
    dtype = WIDEST[backend]
    one = torch.ones(1, 1, 1, 1, dtype=dtype)
    for scores, k, expected in (
        ([3, 2, 3, 2, 1, 1], 2, [0, 2]),
        ([3, 2, 3, 2, 1, 1], 3, [0, 1, 2]),
        ([5] * 9, 4, [0, 1, 2, 3]),
        ([0.0, -0.0, 0.0, -0.0, -1], 3, [0, 1, 2]),
        ([-0.0, 0.0, -1, 0.0], 2, [0, 1]),
    ):
        keys = torch.tensor(scores, dtype=dtype).view(1, 1, -1, 1)
        for _ in range(2):
            _, routing = mita_attention(one, keys, keys, one, top_k=k, backend=backend, return_routing=True)
            assert routing.selected.flatten().tolist() == expected
    landmarks = torch.tensor([-0.0, 0.0, 0.0, -1], dtype=dtype).view(1, 1, 4, 1)
    s = 1 if backend == "native" else 3
    options = {"top_k": 1, "experts_per_query": s, "backend": backend, "return_routing": True}
    _, routing = mita_attention(one, one, one, landmarks, **options)
    assert routing.experts.flatten().tolist() == [0, 1, 2][:s]


@pytest.mark.parametrize(("dtype", "size"), [(torch.float16, 40.0), (torch.bfloat16, 40.0), (torch.bfloat16, 35.4)])
def test_huge_logits_stay_finite(backend, dtype, size):
    """deit #29, #109: NaN under fp16. q = k = 40 with d = 64 gives logits of 12,800; 35.4 gives 10,000."""
    q = torch.full((1, 1, 50, 64), size, dtype=dtype).requires_grad_()
    v = randn(1, 1, 50, 64).to(dtype)
    o = mita_attention(q, q, v, q[:, :, :5], top_k=7, backend=backend)
    expected = mita_attention(q.float(), q.float(), v.float(), q[:, :, :5].float(), top_k=7, backend=backend)
    assert o.isfinite().all()
    torch.testing.assert_close(o.float(), expected, rtol=2e-2, atol=2e-2)
    (grad,) = torch.autograd.grad(o.float().square().sum(), q)
    assert grad.isfinite().all()


def test_strided_inputs_and_gradients(backend):
    """flash-attention #355, pytorch #194719: q a transposed view of a packed qkv; expanded and strided gradients."""
    dtype = WIDEST[backend]
    packed = randn(2, 15, 3, 2, 8, dtype=dtype).requires_grad_()
    views = packed.permute(2, 0, 3, 1, 4)
    copies = [t.detach().contiguous().requires_grad_() for t in views]

    def attend(q, k, v):
        return mita_attention(q, k, v, q[:, :, ::4], top_k=4, backend=backend)

    for loss in (torch.sum, lambda o: torch.cat([o, o], 1).pow(2).sum(), lambda o: o.transpose(1, 2)[:, ::2].sum()):
        (grad,) = torch.autograd.grad(loss(attend(*views)), packed)
        expected = torch.autograd.grad(loss(attend(*copies)), copies)
        torch.testing.assert_close(grad.permute(2, 0, 3, 1, 4), torch.stack(expected), rtol=0, atol=TOLERANCE[dtype])
