"""The released MiTA modules' inputs, weights, outputs and gradients, measured on the authors' code in float64."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mita import MultiHeadAttention, TokenLayout
from mita.mechanisms import build
from mita.rope import RotaryEmbedding
from models.transformer import RMSNorm

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = {
    name: case
    for name, case in json.loads((GOLDEN / "cases.json").read_text()).items()
    if name.startswith(("deit_mita", "vit5_mita"))
}


def load(name):
    """The released variant's layer with the golden weights, its layout, and the golden tensors, all float64."""
    case = CASES[name]
    tensors = {key: t.double() for key, t in load_file(GOLDEN / f"{name}.safetensors").items()}
    mechanism = partial(
        build,
        "mita_released",
        landmark_tokens="grid" if name.startswith("vit5") else "first",
        num_landmarks=case["m"],
        top_k=case["k"],
        experts_per_query=case["s"],
        branches=case.get("branches", "both"),
    )
    options = dict(depthwise_conv=case.get("dwc", False), gate=case.get("gate", False))
    if name.startswith("vit5"):
        norm = partial(RMSNorm, eps=1e-6)
        options |= dict(qkv_bias=False, qk_norm=norm, rope=RotaryEmbedding(register_theta=case["reg_theta"]))
    layer = MultiHeadAttention(case["dim"], case["num_heads"], mechanism, **options).double()
    # the released rotary embeddings store their frequencies; ours has no state
    weights = {key[6:]: t for key, t in tensors.items() if key.startswith("state.") and "rope" not in key}
    layer.load_state_dict(weights)
    return layer, TokenLayout(tuple(case["grid"]), case["prefix_tokens"], case["suffix_tokens"]), tensors


@pytest.mark.parametrize("name", CASES)
def test_reproduces(name):
    layer, layout, golden = load(name)
    x = golden["x"].requires_grad_()
    y = layer(x, layout)
    y.backward(golden["dy"])
    close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)
    close(y, golden["y"])
    close(x.grad, golden["dx"])
    for key, parameter in layer.named_parameters():
        close(parameter.grad, golden[f"grad.{key}"])


def test_the_paper_is_another_variant():
    layer, layout, golden = load("deit_mita_m25_k25")
    y = layer(golden["x"], layout)
    layer.mechanism.landmark_key_scale = 1.0
    assert (layer(golden["x"], layout) - y).abs().max() > 1e-3
