import pytest
import torch

from mita import TokenLayout
from mita.mechanisms import build


def qkv(*shape):
    return (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(3))


def test_equals_the_formula():
    torch.manual_seed(0)
    q, k, v = qkv(2, 3, 10, 8)
    o = build("softmax", 3, 8)(q, k, v, TokenLayout((10,)))
    torch.testing.assert_close(o, (q @ k.mT / 8**0.5).softmax(-1) @ v)


@pytest.mark.parametrize("junk", [0.0, 1e4, float("nan"), float("inf")])
def test_a_padded_batch_equals_its_unpadded_runs(junk):
    torch.manual_seed(0)
    softmax, lengths = build("softmax", 3, 8), [10, 4, 1]
    q, k, v = qkv(3, 3, 10, 8)
    mask = torch.arange(10) < torch.tensor(lengths)[:, None]
    filled = [t.masked_fill(~mask[:, None, :, None], junk) for t in (q, k, v)]
    o = softmax(*filled, TokenLayout((10,)), mask)
    upstream = torch.randn_like(o) * mask[:, None, :, None]
    padded = torch.autograd.grad((o * upstream).masked_fill(~mask[:, None, :, None], 0).sum(), (q, k, v))

    for i, length in enumerate(lengths):
        alone = softmax(*(t[i : i + 1, :, :length] for t in (q, k, v)), TokenLayout((length,)))
        torch.testing.assert_close(o[i : i + 1, :, :length], alone, rtol=0, atol=1e-6)
        unpadded = torch.autograd.grad((alone * upstream[i : i + 1, :, :length]).sum(), (q, k, v))
        for a, b in zip(padded, unpadded, strict=True):
            torch.testing.assert_close(a[i], b[i], rtol=0, atol=1e-6)


def test_a_sequence_of_nothing_but_padding_gives_zero():
    q, k, v = qkv(2, 1, 5, 4)
    mask = torch.tensor([[True] * 5, [False] * 5])
    o = build("softmax", 1, 4)(q, k, v, TokenLayout((5,)), mask)
    o.sum().backward()
    assert o[1].eq(0).all() and q.grad[1].eq(0).all() and k.grad[1].eq(0).all() and v.grad[1].eq(0).all()
    assert o[0].ne(0).any() and v.grad[0].ne(0).any()


def test_dropout_of_the_weights_is_for_training_only():
    """On average over many draws, dropped attention is attention; a rate of 0 and evaluation draw nothing."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, 5, 4).unbind(0)
    layout = TokenLayout((5,))
    plain, dropping = build("softmax", 1, 4), build("softmax", 1, 4, dropout=0.5)
    expected = plain(q, k, v, layout)
    torch.testing.assert_close(dropping.eval()(q, k, v, layout), expected)
    many = [t.expand(20_000, -1, -1, -1) for t in (q, k, v)]
    dropped = dropping.train()(*many, layout)
    assert not torch.allclose(dropped[0], expected[0])
    torch.testing.assert_close(dropped.mean(0), expected[0], rtol=0, atol=0.05)
    masked = dropping(*many, layout, torch.tensor([[True, True, False, True, False]]).expand(20_000, -1))
    alone = plain(*(t[:, :, [0, 1, 3]] for t in (q, k, v)), TokenLayout((3,)))
    torch.testing.assert_close(masked.mean(0)[:, [0, 1, 3]], alone[0], rtol=0, atol=0.05)
    with pytest.raises(ValueError, match="rate in"):
        build("softmax", 1, 4, dropout=1.0)
