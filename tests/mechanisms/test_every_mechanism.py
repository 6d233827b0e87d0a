"""What is held of every mechanism by name, of those to come as well."""

from functools import partial

import pytest
import torch

from mita import MultiHeadAttention, TokenLayout
from mita.mechanisms import MECHANISMS, Mechanism, build

SMALL = {  # options that leave something to choose on a few tokens
    "mita": dict(num_landmarks=4, top_k=3),
    "mita_released": dict(num_landmarks=4, top_k=3),
    "mita_route": dict(num_landmarks=4, top_k=3),
    "mita_compress": dict(num_landmarks=4),
    "agent": dict(num_agents=4),
    "moba": dict(block_size=4, top_blocks=2),
    "linformer": dict(num_entries=5, max_length=64),
    "nystromformer": dict(num_landmarks=4, kernel_size=5),
    "performer": dict(num_features=32),
    "reformer": dict(num_buckets=4, chunk_length=4),
}


def small(name, dtype=torch.float64):
    torch.manual_seed(0)
    return build(name, 2, 8, **SMALL.get(name, {})).to(dtype).eval()


def qkv(*shape, dtype=torch.float64):
    torch.manual_seed(1)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("junk", [1e4, float("nan")])
@pytest.mark.parametrize("name", MECHANISMS)
def test_a_padded_batch_equals_its_unpadded_runs(name, junk):
    """Flowformer #2, xformers #38: pads were not masked. Outputs and gradients; lengths of less than a block, 1 and all."""
    mechanism, lengths, N = small(name), [23, 14, 3, 1], 23
    mask = torch.arange(N) < torch.tensor(lengths)[:, None]
    pads = ~mask[:, None, :, None]
    leaves = qkv(4, 2, N, 8)
    o = mechanism(*(t.masked_fill(pads, junk) for t in leaves), TokenLayout((N,)), mask)
    upstream = torch.randn(o.shape, dtype=o.dtype).masked_fill(pads, 0)
    grads = torch.autograd.grad((o.masked_fill(pads, 0) * upstream).sum(), leaves, materialize_grads=True)
    for i, length in enumerate(lengths):
        own = [t[i : i + 1, :, :length].detach().requires_grad_() for t in leaves]
        alone = mechanism(*own, TokenLayout((length,)))
        torch.testing.assert_close(o[i : i + 1, :, :length], alone, rtol=0, atol=1e-6)
        expected = torch.autograd.grad((alone * upstream[i : i + 1, :, :length]).sum(), own, materialize_grads=True)
        for grad, wanted in zip(grads, expected, strict=True):
            torch.testing.assert_close(grad[i : i + 1, :, :length], wanted, rtol=1e-5, atol=1e-6)
            assert grad[i, :, length:].eq(0).all()


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_sequence_of_nothing_but_padding_is_finite(name):
    mechanism, leaves = small(name), qkv(2, 2, 9, 8)
    mask = torch.tensor([[True] * 9, [False] * 9])
    o = mechanism(*leaves, TokenLayout((9,)), mask)
    grads = torch.autograd.grad(o.sum(), leaves, materialize_grads=True)
    assert o.isfinite().all() and all(g.isfinite().all() for g in grads)
    assert all(g[1].eq(0).all() for g in grads[1:])


@pytest.mark.parametrize("layout", [TokenLayout((1,)), TokenLayout((17,)), TokenLayout((3, 5), 1, 2)], ids=str)
@pytest.mark.parametrize("name", MECHANISMS)
def test_any_length_and_layout_in_a_layer(name, layout):
    torch.manual_seed(0)
    layer = MultiHeadAttention(16, 2, partial(build, name, **SMALL.get(name, {})))
    x = torch.randn(2, layout.num_tokens, 16, requires_grad=True)
    y = layer(x, layout)
    y.square().sum().backward()
    assert y.shape == x.shape and y.isfinite().all() and x.grad.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
    assert isinstance(layer.mechanism, Mechanism) and layer.multiply_adds(layout) > 0


@pytest.mark.parametrize("name", MECHANISMS)
def test_no_batch_and_no_memory(name):
    """A batch of none, masked too, and tensors on the meta device, which has no autocast."""
    leaves = qkv(0, 2, 9, 8)
    o = small(name)(*leaves, TokenLayout((9,)), torch.ones(0, 9, dtype=torch.bool))
    o.sum().backward()
    assert o.shape == leaves[0].grad.shape == (0, 2, 9, 8)
    on_meta = small(name).to("meta")(*(t.detach().to("meta") for t in qkv(2, 2, 9, 8)), TokenLayout((9,)))
    assert on_meta.shape == (2, 2, 9, 8) and on_meta.is_meta


@pytest.mark.parametrize("name", MECHANISMS)
def test_autocast_keeps_to_its_type_and_near_float32(name):
    layer = MultiHeadAttention(16, 2, partial(build, name, **SMALL.get(name, {}))).eval()
    x = torch.randn(2, 20, 16, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x, TokenLayout((20,)))
        y.float().square().sum().backward()
    assert y.dtype == torch.bfloat16 and y.isfinite().all()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_mechanism_draws_nothing_when_it_runs(name):
    """Random parts are drawn at construction and saved, so that a resumed run goes on with the same."""
    mechanism, tensors = small(name), qkv(1, 2, 16, 8)
    state = torch.get_rng_state()
    o = mechanism(*tensors, TokenLayout((16,)))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(7)
    other = build(name, 2, 8, **SMALL.get(name, {})).double().eval()
    other.load_state_dict(mechanism.state_dict())
    assert torch.equal(other(*tensors, TokenLayout((16,))), o)
