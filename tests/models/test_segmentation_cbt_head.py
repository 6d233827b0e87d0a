import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.flop_counter import FlopCounterMode

from mita import cost
from models.segmentation import CBTHead

GOLDEN = Path(__file__).parents[1] / "golden"


def make(channels=12, classes=5, **options):
    torch.manual_seed(0)
    options = dict(dict(depth=2, num_heads=2, head_dim=8, representatives=(2, 3)), **options)
    head = CBTHead(channels, classes, **options).double()
    with torch.no_grad():  # so that weights, biases and norms all matter
        for p in head.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return head


def by_the_equations(head, features):
    """One image and one head of attention at a time, representatives averaged window by window."""
    h, w = features.shape[-2:]
    scores = []
    for image in features:
        x = torch.cat([image.flatten(1).T, head.cls_emb[0]])
        for layer in head.net["layers"]:
            fn, z = layer.fn, layer.norm(x)
            (a, b), outputs = fn.representatives, []
            for i in range(fn.num_heads):
                W = z @ fn.proj.weight[i * fn.head_dim : (i + 1) * fn.head_dim].T
                picture = W[: h * w].view(h, w, -1)
                R0 = torch.stack([
                    picture[y * h // a : -(-(y + 1) * h // a), x * w // b : -(-(x + 1) * w // b)].mean((0, 1))
                    for y in range(a) for x in range(b)
                ])  # fmt: skip
                A = torch.softmax(R0 @ W.T / math.sqrt(fn.head_dim), 1)
                R = R0 + fn.step_rep[i] * (A @ W)
                G = torch.softmax(R @ R.T / math.sqrt(fn.head_dim), 1) @ R
                outputs.append(fn.step_x[i] * (A.T @ G))
            x = x + fn.to_out(torch.cat(outputs, 1))
        x = head.decoder_norm(x)
        x = x / x.norm(dim=1, keepdim=True)
        scores.append(head.mask_norm(x[: h * w] @ x[h * w :].T).T.view(-1, h, w))
    return torch.stack(scores)


def test_the_released_decoder():
    case = json.loads((GOLDEN / "cases.json").read_text())["segmenter_cbt_decoder"]
    golden = {key: t.double() for key, t in load_file(GOLDEN / "segmenter_cbt_decoder.safetensors").items()}
    head = CBTHead(
        case["dim"], case["classes"], case["layers"], case["heads"], case["head_dim"], case["landmark_grid"]
    ).double()
    head.load_state_dict({key[6:]: t for key, t in golden.items() if key.startswith("state.")})
    grid = [side // case["patch_size"] for side in case["image"]]
    x = golden["x"].requires_grad_()
    y = head(x.mT.unflatten(2, grid))
    y.backward(golden["dy"])
    close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)
    close(y, golden["y"])
    close(x.grad, golden["dx"])


@pytest.mark.parametrize("grid", [(4, 6), (5, 7), (1, 1), (2, 9)])
@pytest.mark.parametrize("representatives", [(2, 3), (1, 1), (5, 4)])
def test_equals_the_equations_on_any_grid(grid, representatives):
    head = make(representatives=representatives)
    features = torch.randn(2, 12, *grid, dtype=torch.float64)
    torch.testing.assert_close(head(features), by_the_equations(head, features), rtol=0, atol=1e-10)


def test_gradients():
    head = make(channels=6, classes=3, head_dim=4)
    features = torch.randn(1, 6, 2, 3, dtype=torch.float64, requires_grad=True)
    parameters = dict(head.named_parameters())

    def run(features, *values):
        return torch.func.functional_call(head, dict(zip(parameters, values, strict=True)), (features,))

    assert torch.autograd.gradcheck(run, (features, *parameters.values()))


def test_classes_have_no_order():
    head, features = make(), torch.randn(1, 12, 3, 4, dtype=torch.float64)
    scores, order = head(features), torch.tensor([3, 0, 4, 1, 2])
    with torch.no_grad():
        head.cls_emb.copy_(head.cls_emb[:, order])
        head.mask_norm.weight.copy_(head.mask_norm.weight[order])
        head.mask_norm.bias.copy_(head.mask_norm.bias[order])
    torch.testing.assert_close(head(features), scores[:, order], rtol=0, atol=1e-12)


def test_names_sizes_and_initial_values_are_the_releases():
    torch.manual_seed(0)
    head = CBTHead(192, 150)
    layer = {"norm.weight": (192,), "norm.bias": (192,), "fn.step_x": (3, 1, 1), "fn.step_rep": (3, 1, 1),
             "fn.proj.weight": (300, 192), "fn.to_out.weight": (192, 300), "fn.to_out.bias": (192,)}  # fmt: skip
    expected = {f"net.layers.{i}.{name}": shape for i in range(3) for name, shape in layer.items()}
    expected |= {"cls_emb": (1, 150, 192), "decoder_norm.weight": (192,), "decoder_norm.bias": (192,)}
    expected |= {"mask_norm.weight": (150,), "mask_norm.bias": (150,)}
    assert {name: tuple(t.shape) for name, t in head.state_dict().items()} == expected
    for name, parameter in head.named_parameters():
        if name.endswith(("proj.weight", "to_out.weight", "cls_emb")):
            assert parameter.std().item() == pytest.approx(0.02, rel=0.05), name
        elif name.endswith("bias"):
            assert parameter.eq(0).all(), name
    steps = torch.cat([torch.cat([layer.fn.step_x, layer.fn.step_rep]) for layer in CBTHead(8, 2, 64).net["layers"]])
    assert steps.std().item() == pytest.approx(1, rel=0.15) and steps.mean().item() == pytest.approx(0, abs=0.2)


@pytest.mark.parametrize(
    ("channels", "depth", "heads", "parameters"),
    [
        (192, 3, 3, 376_830), (384, 3, 3, 753_342), (768, 3, 3, 1_506_366), (1024, 3, 3, 2_008_382),
        (768, 6, 3, 2_895_696), (768, 3, 6, 2_888_784), (1024, 9, 3, 5_713_250),
    ],
)  # fmt: skip
def test_parameters(channels, depth, heads, parameters):
    with torch.device("meta"):
        assert cost.parameters(CBTHead(channels, 150, depth, heads)) == parameters


def test_more_layers_cost_as_much_as_more_heads():
    """Why the paper's FLOPs cannot tell whether Seg-B has twice the layers or twice the heads."""
    with torch.device("meta"):
        layers, heads = CBTHead(768, 150, 6, 3), CBTHead(768, 150, 3, 6)
    assert layers.multiply_adds((32, 32)) == heads.multiply_adds((32, 32))
    assert round(layers.multiply_adds((32, 32)) / 1e9, 3) == round(3.916 + 0.118, 3)


@pytest.mark.parametrize("grid", [(4, 6), (1, 5)])
def test_multiply_adds_are_what_the_counter_sees(grid):
    head = make()
    with FlopCounterMode(display=False) as counter:
        head(torch.randn(1, 12, *grid, dtype=torch.float64))
    assert head.multiply_adds(grid) == counter.get_total_flops() // 2


@pytest.mark.parametrize("wrong", [dict(depth=0), dict(num_heads=0), dict(representatives=(0, 3)), dict(classes=0)])
def test_numbers_below_one_are_refused(wrong):
    with pytest.raises(ValueError, match="at least 1"):
        make(**wrong)
