from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mita import MultiHeadAttention, TokenLayout
from mita.mechanisms import build

SOFTMAX = partial(build, "softmax")
MITA = partial(build, "mita", num_landmarks=4, top_k=3)


def make(mechanism=SOFTMAX, **options):
    torch.manual_seed(0)
    return MultiHeadAttention(12, 3, mechanism, **options).double()


def tokens(batch, length):
    torch.manual_seed(1)
    return 3 * torch.randn(batch, length, 12, dtype=torch.float64)


def test_parameter_names():
    assert set(make().state_dict()) == {"qkv.weight", "qkv.bias", "proj.weight", "proj.bias"}
    assert set(make(qkv_bias=False).state_dict()) == {"qkv.weight", "proj.weight", "proj.bias"}
    everything = make(MITA, gate=True, depthwise_conv=True, qk_norm=partial(nn.RMSNorm, eps=1e-6))
    assert {name: tuple(t.shape) for name, t in everything.state_dict().items()} == {
        "qkvg.weight": (48, 12), "qkvg.bias": (48,), "proj.weight": (12, 12), "proj.bias": (12,),
        "dwc.weight": (12, 1, 3, 3), "dwc.bias": (12,), "q_norm.weight": (4,), "k_norm.weight": (4,),
    }  # fmt: skip


def test_equals_pytorchs_own_layer():
    layer, x = make(), tokens(2, 7)
    theirs = nn.MultiheadAttention(12, 3, batch_first=True).double()
    theirs.load_state_dict(
        {
            "in_proj_weight": layer.qkv.weight, "in_proj_bias": layer.qkv.bias,
            "out_proj.weight": layer.proj.weight, "out_proj.bias": layer.proj.bias,
        }
    )  # fmt: skip
    torch.testing.assert_close(layer(x, TokenLayout((7,))), theirs(x, x, x)[0])


def test_gate_and_convolution_written_out():
    """Against plain loops: the convolution sees the grid alone and is added to it before the gate."""
    layer, x, (h, w) = make(gate=True, depthwise_conv=True), tokens(2, 1 + 6 + 2), (2, 3)
    q, k, v, g = (x @ layer.qkvg.weight.T + layer.qkvg.bias).split(12, dim=-1)
    heads = [(q[..., i : i + 4] @ k[..., i : i + 4].mT / 2).softmax(-1) @ v[..., i : i + 4] for i in range(0, 12, 4)]
    o = torch.cat(heads, -1)
    for row in range(h):
        for column in range(w):
            here = layer.dwc.bias.clone()
            for a in range(max(row - 1, 0), min(row + 2, h)):
                for b in range(max(column - 1, 0), min(column + 2, w)):
                    here = here + layer.dwc.weight[:, 0, a - row + 1, b - column + 1] * v[:, 1 + a * w + b]
            o[:, 1 + row * w + column] += here
    expected = (o * g / (1 + torch.exp(-g))) @ layer.proj.weight.T + layer.proj.bias
    torch.testing.assert_close(layer(x, TokenLayout((h, w), 1, 2)), expected)


def test_norms_come_before_rope_and_rope_before_the_mechanism():
    seen = {}

    class Rope(nn.Module):
        def forward(self, q, k, layout):
            seen["norms"] = (q.pow(2).mean(-1), k.pow(2).mean(-1), layout)
            return 2 * q, 3 * k

    class Mechanism(nn.Module):
        def forward(self, q, k, v, layout, key_mask=None):
            seen["rotated"] = (q.pow(2).mean(-1), k.pow(2).mean(-1))
            return v

    layout = TokenLayout((2, 3), 1)
    layer = make(lambda num_heads, head_dim: Mechanism(), qk_norm=partial(nn.RMSNorm, eps=0.0), rope=Rope())
    layer(tokens(1, 7), layout)
    ones = torch.ones(1, 3, 7, dtype=torch.float64)
    torch.testing.assert_close(seen["norms"], (ones, ones, layout))
    torch.testing.assert_close(seen["rotated"], (4 * ones, 9 * ones))


@pytest.mark.parametrize("mechanism", [SOFTMAX, MITA], ids=["softmax", "mita"])
@pytest.mark.parametrize("junk", [1e4, float("nan"), float("inf")])
def test_a_padded_batch_of_sequences_equals_its_unpadded_runs(mechanism, junk):
    """native-sparse-attention #23: padded lengths gave NaN. Lengths below the number of landmarks included."""
    layer, x, lengths = make(mechanism, gate=True), tokens(3, 30), [30, 17, 2]
    mask = torch.arange(30) < torch.tensor(lengths)[:, None]
    padded = x.masked_fill(~mask[..., None], junk).requires_grad_()
    y = layer(padded, TokenLayout((30,)), mask)
    y[mask].pow(2).sum().backward()
    gradients = {name: p.grad.clone() for name, p in layer.named_parameters()}
    assert padded.grad[~mask].eq(0).all()

    layer.zero_grad()
    for i, length in enumerate(lengths):
        alone = x[i : i + 1, :length].clone().requires_grad_()
        expected = layer(alone, TokenLayout((length,)))
        expected.pow(2).sum().backward()
        torch.testing.assert_close(y[i : i + 1, :length], expected, rtol=0, atol=1e-6)
        torch.testing.assert_close(padded.grad[i : i + 1, :length], alone.grad, rtol=0, atol=1e-6)
    for name, p in layer.named_parameters():
        torch.testing.assert_close(gradients[name], p.grad, rtol=1e-8, atol=1e-6)


def test_an_image_padded_by_rows_equals_its_unpadded_run():
    """Rows below an image look to the convolution like the zeros around it, whatever stands there."""
    layer, x = make(depthwise_conv=True), tokens(1, 1 + 20)
    mask = torch.arange(21)[None] < 13
    expected = layer(x[:, :13], TokenLayout((3, 4), 1))
    for junk in (0.0, 1e4, float("nan")):
        y = layer(x.masked_fill(~mask[..., None], junk), TokenLayout((5, 4), 1), mask)
        torch.testing.assert_close(y[:, :13], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("junk", [1e4, float("nan")])
def test_what_stands_in_the_pads_of_an_image_changes_nothing(junk):
    layer, x = make(MITA, depthwise_conv=True, gate=True), tokens(2, 1 + 20)
    mask = torch.arange(21) < torch.tensor([[21], [13]])
    layout = TokenLayout((5, 4), 1)
    y = layer(x.masked_fill(~mask[..., None], junk), layout, mask)
    torch.testing.assert_close(y[mask], layer(x, layout, mask)[mask], rtol=0, atol=1e-6)


def test_refusals():
    with pytest.raises(ValueError, match=r"\b12\b.*\b5\b"):
        MultiHeadAttention(12, 5, SOFTMAX)
    with pytest.raises(ValueError, match=r"\b16\b.*\b15\b"):
        make()(tokens(1, 16), TokenLayout((3, 5)))
    with pytest.raises(ValueError, match="2-D grid"):
        make(depthwise_conv=True)(tokens(1, 16), TokenLayout((16,)))


def test_packed_projections_have_no_effect_on_gradients():
    """flash-attention #355, pytorch #194719: strided views of a packed qkv, and expanded gradients."""
    layer, x = make(MITA), tokens(2, 20).requires_grad_()
    layout = TokenLayout((20,))
    layer(x, layout).sum().backward()  # an expanded gradient of ones
    gradients, x.grad = x.grad, None
    q, k, v = (
        t.unflatten(2, (3, 4)).transpose(1, 2).contiguous() for t in F.linear(x, *layer.qkv.parameters()).split(12, 2)
    )
    o = layer.mechanism(q, k, v, layout).transpose(1, 2).flatten(2)
    layer.proj(o).backward(torch.ones(2, 20, 12, dtype=torch.float64))
    torch.testing.assert_close(gradients, x.grad)
