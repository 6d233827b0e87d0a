import json
from functools import partial
from pathlib import Path

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from mita import MultiHeadAttention, TokenLayout
from mita.mechanisms import build
from models.segmentation import Backbone

GOLDEN = Path(__file__).parents[1] / "golden"
SOFTMAX = partial(build, "softmax")


def make(mechanism=SOFTMAX, input_size=(3, 64, 96), **options):
    torch.manual_seed(0)
    return Backbone(mechanism, input_size, **dict(dict(embed_dim=192, depth=2, num_heads=3), **options)).eval()


def test_the_released_segmenters_attention():
    case = json.loads((GOLDEN / "cases.json").read_text())["segmenter_mita_512"]
    golden = {key: t.double() for key, t in load_file(GOLDEN / "segmenter_mita_512.safetensors").items()}
    mechanism = partial(build, "mita_released", num_landmarks=case["m"], top_k=case["k"], experts_per_query=case["s"])
    layer = MultiHeadAttention(case["dim"], case["num_heads"], mechanism).double()
    layer.load_state_dict({key[6:]: t for key, t in golden.items() if key.startswith("state.")})
    x = golden["x"].requires_grad_()
    y = layer(x, TokenLayout(tuple(case["grid"]), case["prefix_tokens"]))
    y.backward(golden["dy"])
    close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)
    close(y, golden["y"])
    close(x.grad, golden["dx"])
    for key, parameter in layer.named_parameters():
        close(parameter.grad, golden[f"grad.{key}"])


@pytest.mark.parametrize("size", [(64, 96), (96, 64), (16, 160)])
def test_features_are_timms_with_the_authors_epsilon(size):
    norm = partial(nn.LayerNorm, eps=1e-5)
    theirs = timm.create_model(
        "vit_tiny_patch16_384", depth=2, img_size=(64, 96), num_classes=0, norm_layer=norm, dynamic_img_size=True
    ).eval()
    ours = make()
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        expected = theirs.forward_features(images)[:, 1:].mT.unflatten(2, (size[0] // 16, size[1] // 16))
        torch.testing.assert_close(ours(images), expected, rtol=0, atol=1e-5)


def test_the_authors_epsilon_is_another_than_pretrainings():
    """LayerNorms of weights trained with 1e-6 run with 1e-5: a difference that shows where activations are small."""
    released, timms = make(), make(norm_eps=1e-6)
    assert {m.eps for m in released.modules() if isinstance(m, nn.LayerNorm)} == {1e-5}
    images = 0.01 * torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        assert (released(images) - timms(images)).abs().max() > 1e-3


@pytest.mark.parametrize("size", [(1, 1), (33, 50), (64, 97)])
def test_any_size_is_padded_to_whole_patches(size):
    model, images = make(partial(build, "mita", num_landmarks=4, top_k=3)), torch.randn(2, 3, *size)
    grid = (-(-size[0] // 16), -(-size[1] // 16))
    padded = F.pad(images, (0, 16 * grid[1] - size[1], 0, 16 * grid[0] - size[0]))
    with torch.no_grad():
        features = model(images)
        assert features.shape == (2, 192, *grid)
        assert torch.equal(features, model(padded))
    assert model.multiply_adds((3, *size)) == model.multiply_adds((3, *padded.shape[-2:]))
    assert make(input_size=(3, *size)).grid == grid
