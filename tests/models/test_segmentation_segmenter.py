from functools import partial

import pytest
import timm
import torch
import torch.nn.functional as F
import yaml
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import experiment
import models
from mita import cost
from mita.mechanisms import build

SOFTMAX = partial(build, "softmax")
MITA = partial(build, "mita", num_landmarks=4, top_k=3)
MITA49 = partial(build, "mita", num_landmarks=49, top_k=49)
SMALL = dict(
    input_size=(3, 32, 32), patch_size=4, embed_dim=16, depth=2, num_heads=2,
    decoder_depth=2, decoder_heads=2, decoder_head_dim=8, representatives=(3, 3),
)  # fmt: skip


def make(mechanism=MITA, num_classes=5, **options):
    torch.manual_seed(0)
    return models.build("segmenter", mechanism_factory=mechanism, num_classes=num_classes, **SMALL | options)


@pytest.mark.parametrize(
    ("name", "softmax", "mita", "parameters"),
    [
        ("segmenter_tiny", 11.204, 7.057, 6_253_222),
        ("segmenter_small", 32.954, 24.661, 23_121_958),
        ("segmenter_base", 111.061, 94.473, 88_709_926 - 1_506_366 + 2_895_696),
        ("segmenter_large", 622.125, 507.706, 307_772_710 - 2_008_382 + 5_713_250),
    ],
)
def test_the_papers_models(name, softmax, mita, parameters):
    """The released model has the classifier of its backbone, never used, among its parameters; this one has none.

    In the larger two, the released decoder of 3 layers is replaced by the 6 and 9 that the paper's FLOPs ask for.
    """
    size = (3, 640, 640) if name == "segmenter_large" else (3, 512, 512)
    for mechanism, giga in ((SOFTMAX, softmax), (MITA49, mita)):
        with torch.device("meta"):
            model = models.build(name, mechanism_factory=mechanism, num_classes=150, input_size=size)
        assert round(model.multiply_adds(size) / 1e9, 3) == giga
        width = model.encoder.pos_embed.shape[-1]
        assert cost.parameters(model) + 1000 * (width + 1) == parameters


@pytest.mark.parametrize(("name", "layers", "keys"), [("segmenter_tiny", 3, 178), ("segmenter_large", 3, 322)])
def test_state_dict_has_the_releases_names(name, layers, keys):
    with torch.device("meta"):
        state = models.build(name, mechanism_factory=MITA49, num_classes=150, decoder_depth=layers).state_dict()
        theirs = timm.create_model("vit_tiny_patch16_384", depth=24 if keys == 322 else 12).state_dict()
    encoder = {key.removeprefix("encoder.") for key in state if key.startswith("encoder.")}
    assert encoder | {"head.weight", "head.bias"} == set(theirs)
    assert len(state) + 2 == keys and all(key.startswith(("encoder.", "decoder.")) for key in state)


@pytest.mark.parametrize("size", [(32, 32), (20, 44), (30, 37), (3, 90)])
def test_scores_have_the_size_of_the_image(size):
    model, images = make().eval(), torch.randn(2, 3, *size)
    with torch.no_grad():
        scores = model(images)
        assert scores.shape == (2, 5, *size)
        torch.testing.assert_close(model(images[:1]), scores[:1], rtol=0, atol=1e-5)
        padded = F.pad(images, (0, -size[1] % 4, 0, -size[0] % 4))
        assert torch.equal(scores, model(padded)[..., : size[0], : size[1]])
        coarse = model.decoder(model.encoder(images))
        torch.testing.assert_close(F.avg_pool2d(model(padded), 4)[..., 1:-1, 1:-1], smooth(coarse), rtol=0, atol=1e-5)


def smooth(coarse):
    """Mean over a patch of the bilinear interpolation between patch centres: 1/8, 3/4, 1/8 along each axis, for patch 4."""
    kernel = torch.tensor([1 / 8, 3 / 4, 1 / 8])
    kernel = (kernel[:, None] * kernel).expand(coarse.shape[1], 1, 3, 3)
    return F.conv2d(coarse, kernel, groups=coarse.shape[1]) if min(coarse.shape[-2:]) > 2 else coarse[..., 1:-1, 1:-1]


@pytest.mark.parametrize("mechanism", ["softmax", "mita", "mita_released"])
@pytest.mark.parametrize("extras", [{}, dict(depthwise_conv=True, gate=True, layer_scale=0.1)])
def test_every_parameter_has_a_gradient_and_checkpointing_the_same(mechanism, extras):
    factory = partial(build, mechanism, **(dict(num_landmarks=4, top_k=3) if mechanism != "softmax" else {}))
    images, labels = torch.randn(2, 3, 24, 36), torch.randint(5, (2, 24, 36))
    gradients = []
    for checkpointing in (False, True):
        model = make(factory, gradient_checkpointing=checkpointing, drop_path=0.3, **extras)
        torch.manual_seed(1)
        F.cross_entropy(model(images), labels).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        assert gradient.isfinite().all() and gradient.ne(0).any(), name
        assert torch.equal(gradient, gradients[1][name]), name


def test_bfloat16_autocast_is_finite():
    model, images, labels = make(), torch.randn(2, 3, 30, 36), torch.randint(5, (2, 30, 36))
    exact = model(images)
    with torch.autocast("cpu", torch.bfloat16):
        scores = model(images)
        F.cross_entropy(scores.float(), labels).backward()
    assert scores.isfinite().all() and all(p.grad.isfinite().all() for p in model.parameters())
    agree = (scores.argmax(1) == exact.argmax(1)).float().mean()
    assert agree > 0.9


@pytest.mark.parametrize("size", [(3, 32, 32), (3, 20, 44), (3, 30, 37)])
def test_multiply_adds_are_what_the_counter_sees(size):
    model = make(SOFTMAX, depthwise_conv=True)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(torch.randn(1, *size))
    assert model.multiply_adds(size) == counter.get_total_flops() // 2


def test_a_few_steps_fit_a_picture():
    model, images = make(num_classes=2), torch.randn(4, 3, 32, 32)
    labels = (F.avg_pool2d(images, 4).mean(1) > 0).long().repeat_interleave(4, 1).repeat_interleave(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    for _ in range(60):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


def test_weight_decay_leaves_out_embeddings():
    model = make()
    names = dict(model.named_parameters()).keys()
    assert model.no_weight_decay() & names == {"encoder.cls_token", "encoder.pos_embed", "decoder.cls_emb"}


def configuration(name):
    return yaml.safe_load((experiment.CONFIGS / "model" / f"{name}.yaml").read_text())


@pytest.mark.parametrize("size", ["tiny", "small", "base", "large", "digits"])
def test_configurations_build(size):
    """On the meta device nothing is downloaded: the cost of a model needs no weights."""
    options = configuration(f"segmenter_{size}")
    with torch.device("meta"):
        model = models.build(options.pop("name"), mechanism_factory=MITA49, num_classes=11, **options)
    assert model.multiply_adds((3, 64, 96)) > 0
    if size != "digits":
        assert timm.is_model(options["pretrained"]) and timm.models.is_model_pretrained(options["pretrained"])
        assert options["drop_path"] == 0.1


def test_the_small_segmenter_shares_its_backbone_with_the_digits_model():
    segmenter, vit = configuration("segmenter_digits"), configuration("vit_digits")
    own = {"name", "pretrained", "decoder_depth", "decoder_heads", "decoder_head_dim", "representatives"}
    assert {key: value for key, value in segmenter.items() if key not in own} == {
        key: value for key, value in vit.items() if key != "name"
    }
