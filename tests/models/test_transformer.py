from functools import partial

import pytest
import torch
from torch import nn

from mita import MultiHeadAttention, TokenLayout
from mita.mechanisms import build
from models.transformer import Transformer, init_weights

MITA = partial(build, "mita", num_landmarks=4, top_k=3)


def make(depth=2, mechanism=MITA, **options):
    torch.manual_seed(0)
    return Transformer(12, depth, partial(MultiHeadAttention, 12, 3, mechanism), **options).double()


def tokens(batch, length):
    torch.manual_seed(1)
    return torch.randn(batch, length, 12, dtype=torch.float64)


def test_names_and_options():
    def norm(dim):
        return nn.RMSNorm(dim, eps=1e-5)

    trunk = make(norm=norm, layer_scale=1e-4, mlp_ratio=3.0, activation=nn.ReLU, drop=0.1)
    assert {name.removeprefix("1.") for name in trunk.state_dict() if name.startswith("1.")} == {
        "norm1.weight", "attn.qkv.weight", "attn.qkv.bias", "attn.proj.weight", "attn.proj.bias", "ls1.gamma",
        "norm2.weight", "mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight", "mlp.fc2.bias", "ls2.gamma",
    }  # fmt: skip
    assert trunk[0].mlp.fc1.out_features == 36 and isinstance(trunk[0].mlp.act, nn.ReLU)
    assert trunk[1].ls2.gamma.tolist() == pytest.approx([1e-4] * 12) and trunk[0].norm1.eps == 1e-5
    assert make()[0].norm1.eps == 1e-6


def test_drop_path_schedules():
    def rates(schedule):
        return [block.drop_path.drop_prob for block in make(3, drop_path=0.2, drop_path_schedule=schedule)]

    assert rates("linear") == pytest.approx([0.0, 0.1, 0.2])
    assert rates("constant") == pytest.approx([0.2, 0.2, 0.2])
    assert make(1, drop_path=0.2)[0].drop_path.drop_prob == 0.0
    with pytest.raises(ValueError, match="linear or constant"):
        rates("cosine")


def test_drop_path_drops_whole_items_while_training():
    trunk, x = make(1, drop_path=0.5, drop_path_schedule="constant"), tokens(64, 5)
    layout = TokenLayout((5,))
    change = (trunk(x, layout) - x).abs().amax((1, 2))
    assert change.eq(0).any() and change.ne(0).any()
    assert (trunk.eval()(x, layout) - x).abs().amax((1, 2)).ne(0).all()


def test_gradient_checkpointing_changes_no_gradient():
    x, layout = tokens(2, 20), TokenLayout((4, 5))
    mask = torch.arange(20) < torch.tensor([[20], [13]])
    gradients = []
    for checkpointing in (False, True):
        trunk = make(drop_path=0.5, drop_path_schedule="constant", gradient_checkpointing=checkpointing)
        torch.manual_seed(2)
        trunk(x, layout, mask)[mask].pow(2).sum().backward()
        gradients.append([p.grad for p in trunk.parameters()])
    for a, b in zip(*gradients, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("junk", [1e4, float("nan")])
def test_a_padded_batch_equals_its_unpadded_runs(junk):
    trunk, x, lengths = make(3), tokens(3, 25), [25, 14, 1]
    mask = torch.arange(25) < torch.tensor(lengths)[:, None]
    y = trunk(x.masked_fill(~mask[..., None], junk), TokenLayout((25,)), mask)
    y[mask].sum().backward()
    assert all(p.grad.isfinite().all() for p in trunk.parameters())
    for i, length in enumerate(lengths):
        alone = trunk(x[i : i + 1, :length], TokenLayout((length,)))
        torch.testing.assert_close(y[i : i + 1, :length], alone, rtol=0, atol=1e-6)


def test_initialisation():
    class WithLinear(nn.Linear):
        def __init__(self, num_heads, head_dim):
            super().__init__(400, 400)

    torch.manual_seed(0)
    trunk = Transformer(192, 1, partial(MultiHeadAttention, 192, 3, WithLinear))
    before = {name: p.clone() for name, p in trunk.named_parameters()}
    init_weights(trunk, "torch_default")
    block = trunk[0]
    for name in ("qkv.weight", "qkv.bias", "proj.weight", "proj.bias", "mechanism.weight"):
        assert torch.equal(block.attn.get_parameter(name), before[f"0.attn.{name}"])
    assert block.mlp.fc1.weight.std().item() == pytest.approx(0.02, rel=0.05) and block.mlp.fc1.bias.eq(0).all()
    assert block.attn.qkv.weight.std().item() == pytest.approx((3 * 192) ** -0.5, rel=0.05)

    init_weights(trunk, "trunc_normal")
    assert block.attn.qkv.weight.std().item() == pytest.approx(0.02, rel=0.05) and block.attn.qkv.bias.eq(0).all()
    assert torch.equal(block.attn.mechanism.weight, before["0.attn.mechanism.weight"])
    with pytest.raises(ValueError, match="trunc_normal or torch_default"):
        init_weights(trunk, "zeros")
