from functools import partial

import pytest
import timm
import torch
from timm.optim import param_groups_weight_decay

import models
from mita.mechanisms import build

SOFTMAX = partial(build, "softmax")
MITA = partial(build, "mita", num_landmarks=9, top_k=5)


def make(name="deit_small", mechanism=SOFTMAX, **options):
    torch.manual_seed(0)
    options = dict(dict(num_classes=10, depth=2), **options)
    return models.build(name, mechanism_factory=mechanism, **options).eval()


def timms(**options):
    return timm.create_model("deit_small_patch16_224", num_classes=10, depth=2, **options).eval()


@pytest.mark.parametrize("name", ["deit_tiny", "deit_small", "deit_base"])
def test_state_dict_is_timms(name):
    theirs = timm.create_model(f"{name}_patch16_224")
    expected = {key: tuple(t.shape) for key, t in theirs.state_dict().items()}
    with torch.device("meta"):
        ours = models.build(name, mechanism_factory=MITA, num_classes=1000)
        convolved = models.build(name, mechanism_factory=MITA, num_classes=1000, depthwise_conv=True)
        gated = models.build(name, mechanism_factory=MITA, num_classes=1000, depthwise_conv=True, gate=True)
    assert {key: tuple(t.shape) for key, t in ours.state_dict().items()} == expected and len(expected) == 152
    assert len(convolved.state_dict()) == len(gated.state_dict()) == 176
    width = ours.pos_embed.shape[-1]
    assert gated.state_dict()["blocks.11.attn.qkvg.weight"].shape == (4 * width, width)
    assert not any(key.endswith("attn.qkv.weight") for key in gated.state_dict())


@pytest.mark.parametrize("size", [(224, 224), (160, 256), (224, 240), (16, 48)])
def test_logits_equal_timms_at_any_size(size):
    ours, theirs = make(), timms(dynamic_img_size=True)
    theirs.load_state_dict(ours.state_dict())
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=1e-5)
        features = ours.forward_features(images)
        torch.testing.assert_close(features, theirs.forward_features(images), rtol=0, atol=1e-5)


def test_weights_made_for_a_rectangle():
    ours, theirs = make(input_size=(3, 96, 160)), timms(img_size=(96, 160), dynamic_img_size=True)
    theirs.load_state_dict(ours.state_dict())
    for size in ((96, 160), (160, 96)):  # as many patches, another grid
        images = torch.randn(2, 3, *size)
        with torch.no_grad():
            torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=1e-5)


def test_depth_and_layer_scale_load_timms_weights():
    ours = make(layer_scale=0.1, qk_norm=True)
    theirs = timms(init_values=0.1, qk_norm=True)
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=1e-5)


@pytest.mark.parametrize("extras", [{}, dict(depthwise_conv=True, gate=True)])
@pytest.mark.parametrize("mechanism", ["mita", "mita_released"])
def test_mita_on_any_grid_has_gradients_everywhere(mechanism, extras):
    factory = partial(build, mechanism, num_landmarks=9, top_k=5)
    model = make("vit", factory, input_size=(1, 32, 32), patch_size=4, embed_dim=16, num_heads=2, **extras)
    for size in ((32, 32), (20, 36)):
        model.zero_grad()
        logits = model(torch.randn(2, 1, *size))
        assert logits.shape == (2, 10)
        logits.square().sum().backward()
        for name, p in model.named_parameters():
            assert p.grad.isfinite().all()
            # The head reads the class token, which the last block's convolution does not reach.
            assert p.grad.ne(0).any() == (not name.startswith("blocks.1.attn.dwc")), name


def test_an_item_does_not_depend_on_its_batch():
    model, images = make("deit_tiny", MITA), torch.randn(3, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(images)[1:2], model(images[1:2]), rtol=0, atol=1e-5)
        assert model(images[:0]).shape == (0, 10)


def test_initialisation_is_a_switch():
    released, deit = make(), make(attention_init="trunc_normal")
    for model in (released, deit):
        assert model.pos_embed.std().item() == pytest.approx(0.02, rel=0.05)
        assert model.cls_token.std().item() == pytest.approx(0.02, rel=0.2)
        assert model.head.weight.std().item() == pytest.approx(0.02, rel=0.05) and model.head.bias.eq(0).all()
    assert released.blocks[1].attn.proj.weight.std().item() == pytest.approx((3 * 384) ** -0.5, rel=0.05)
    assert released.blocks[1].attn.qkv.bias.ne(0).all()
    assert deit.blocks[1].attn.proj.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert deit.blocks[1].attn.qkv.bias.eq(0).all()


def test_weight_decay_leaves_out_what_deit_leaves_out():
    assert make().no_weight_decay() == {"cls_token", "pos_embed", "reg_token"}
    decayed = param_groups_weight_decay(make(), 0.05, no_weight_decay_list=make().no_weight_decay())[1]
    assert all(p.ndim > 1 for p in decayed["params"])


def test_a_size_that_does_not_divide_into_patches_is_refused():
    model = make("deit_tiny")
    for wrong in (lambda: model(torch.randn(1, 3, 224, 225)), lambda: make(input_size=(3, 100, 224))):
        with pytest.raises(ValueError, match="patches of side 16"):
            wrong()
    with pytest.raises(ValueError, match="patches of side 16"):
        model.multiply_adds((3, 8, 16))


def test_unknown_names_and_options():
    with pytest.raises(ValueError, match="did you mean deit_small"):
        make("deit_smal")
    with pytest.raises(ValueError, match="did you mean depthwise_conv"):
        make(depthwise_convolution=True)
