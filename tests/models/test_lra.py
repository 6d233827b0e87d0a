"""Long Range Arena's model: the lineage's sizes, masks that reach every mechanism, and its legacy behaviours as switches."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import experiment
import models
from mita import TokenLayout
from mita.mechanisms import MECHANISMS, build

CLASSES = 3


def make(name="lra", mechanism="softmax", N=16, seed=0, **options):
    torch.manual_seed(seed)
    sizes = dict(vocab_size=20, embed_dim=8, num_heads=2, mlp_dim=16, head_dim=12)
    model = models.build(
        name, mechanism_factory=partial(build, mechanism), num_classes=CLASSES, input_size=(N,), **{**sizes, **options}
    )
    return model.double().eval()


@pytest.mark.parametrize(
    ("task", "parameters"),
    [("listops", 209_802), ("text", 370_562), ("retrieval", 395_138), ("image", 174_986), ("pathfinder", 173_954)],
)
def test_parameters_are_the_lineages(task, parameters):
    for name in (f"lra_{task}", f"lra_{task}_softmax", f"lra_{task}_mita"):
        assert experiment.cost_of(experiment.compose([f"experiment={name}"]))[0] == parameters


def test_image_with_skyformers_vocabulary():
    config = experiment.compose(["experiment=lra_image_softmax", "model.vocab_size=256"])
    assert experiment.cost_of(config)[0] == 158_602


def test_initialisation_is_the_lineages():
    """Embeddings N(0, .02), linear layers as torch has them, two pre-norm layers with LayerNorm's own epsilon."""
    model = models.build("lra", mechanism_factory=partial(build, "softmax"), num_classes=10, input_size=(2000,))
    assert model.encoder.positions.weight.shape == (2048, 64)  # the next power of two
    for table in (model.encoder.tokens, model.encoder.positions):
        assert table.weight.std().item() == pytest.approx(0.02, rel=0.05)
    block = model.encoder.blocks[1]
    assert block.attn.qkv.weight.std().item() == pytest.approx((3 * 64) ** -0.5, rel=0.05)
    assert block.norm1.eps == model.encoder.norm.eps == 1e-5 and len(model.encoder.blocks) == 2
    assert [type(layer) for layer in model.head] == [nn.Linear, nn.ReLU, nn.Linear]
    rates = [m.p for m in model.modules() if isinstance(m, nn.Dropout)]
    assert rates == [0.1] * 7  # embeddings; in each layer the projection and twice in the MLP


def test_forward_is_the_written_out_computation():
    """Softmax attention in a few lines, from the model's own weights."""
    model, tokens, length = make(), torch.randint(1, 20, (2, 16)), torch.tensor([16, 5])
    x = model.encoder.tokens(tokens) + model.encoder.positions.weight[:16]
    real = torch.arange(16) < length[:, None]
    for block in model.encoder.blocks:
        q, k, v = block.attn.qkv(block.norm1(x)).view(2, 16, 3, 2, 4).permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT / 2).masked_fill(~real[:, None, None], -torch.inf)
        x = x + block.attn.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 16, 8))
        x = x + block.mlp.fc2(nn.functional.gelu(block.mlp.fc1(block.norm2(x))))
    x = model.encoder.norm(x)
    pooled = torch.stack([row[:n].mean(0) for row, n in zip(x, length)])
    torch.testing.assert_close(model(tokens, length), model.head(pooled), rtol=0, atol=1e-10)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_padded_batch_equals_its_unpadded_runs(mechanism):
    """Output and gradients, whatever stands in the padding; nothing is nan where a sequence has no token at all."""
    model = make(mechanism=mechanism)
    lengths = [16, 5, 1, 11, 0]
    tokens = torch.randint(1, 20, (5, 16))
    padded = model(tokens, torch.tensor(lengths))
    assert padded.isfinite().all()
    for row, n in zip(range(4), lengths):
        alone = model(tokens[row : row + 1, :n], torch.tensor([n]))
        torch.testing.assert_close(padded[row], alone[0], rtol=0, atol=1e-6)
        torch.testing.assert_close(model(tokens[row : row + 1, :n])[0], alone[0], rtol=0, atol=1e-6)
    other = torch.where(torch.arange(16) < torch.tensor(lengths)[:, None], tokens, 0)
    torch.testing.assert_close(model(other, torch.tensor(lengths)), padded, rtol=0, atol=0)
    padded.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_whole_batch_needs_no_mask(mechanism):
    model, tokens = make(mechanism=mechanism), torch.randint(1, 20, (3, 16))
    torch.testing.assert_close(model(tokens), model(tokens, torch.tensor([16] * 3)), rtol=0, atol=1e-6)


def test_pairs_are_two_runs_of_one_encoder():
    model = make("lra_pair")
    a, b = torch.randint(1, 20, (2, 4, 16))
    n, m = torch.tensor([16, 3, 7, 0]), torch.tensor([2, 16, 9, 5])
    x, y = model.encoder(a, n), model.encoder(b, m)
    expected = model.head(torch.cat([x, y, x * y, x - y], 1))
    torch.testing.assert_close(model(a, n, b, m), expected, rtol=0, atol=1e-12)


def test_pooling_over_padding_divides_by_the_padded_length():
    right, legacy = make(), make(pool_over_padding=True)
    tokens, length = torch.randint(1, 20, (2, 16)), torch.tensor([4, 16])
    ours, theirs = right.encoder(tokens, length), legacy.encoder(tokens, length)
    torch.testing.assert_close(theirs[0], ours[0] * 4 / 16, rtol=0, atol=1e-12)
    torch.testing.assert_close(theirs[1], ours[1], rtol=0, atol=1e-12)
    assert (right.switches, legacy.switches) == ({}, {"pool_over_padding": True})


def test_zero_pixels_are_real_unless_the_legacy_behaviour_is_asked_for():
    right, legacy = make(), make(zero_is_padding=True)
    tokens = torch.randint(1, 20, (1, 16))
    tokens[0, 3:7] = 0
    kept = [i for i in range(16) if not 3 <= i < 7]
    model = legacy.encoder  # the same as reading the other positions alone
    x = model.tokens(tokens[:, kept]) + model.positions.weight[kept]
    for block in model.blocks:
        x = block(x, TokenLayout((len(kept),)))
    torch.testing.assert_close(model(tokens), model.norm(x).mean(1), rtol=0, atol=1e-12)
    assert not torch.allclose(model(tokens), right.encoder(tokens))
    assert legacy.switches == {"zero_is_padding": True}
    assert model(torch.zeros(2, 16, dtype=torch.int64)).eq(0).all()  # a black image has no token left


@pytest.mark.parametrize(("name", "sequences"), [("lra", 1), ("lra_pair", 2)])
def test_multiply_adds_are_what_torch_counts(name, sequences):
    model = make(name).float()
    inputs = [torch.randint(1, 20, (1, 16)), torch.tensor([16])] * sequences
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        model(*inputs)
    assert model.multiply_adds((16,)) == counter.get_total_flops() // 2


def test_recomputed_activations_give_the_same_gradients():
    tokens, length = torch.randint(1, 20, (2, 16)), torch.tensor([4, 16])
    grads = []
    for again in (False, True):
        model = make(gradient_checkpointing=again)
        model(tokens, length).square().sum().backward()
        grads.append([p.grad for p in model.parameters()])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="17 tokens, but the model has 16 positions"):
        make()(torch.ones(1, 17, dtype=torch.int64))
    with pytest.raises(ValueError, match="reads sequences"):
        models.build("lra", mechanism_factory=partial(build, "softmax"), num_classes=2, input_size=(3, 8, 8))
    with pytest.raises(ValueError, match="reads images"):
        models.build("vit", mechanism_factory=partial(build, "softmax"), num_classes=2, input_size=(16,))
