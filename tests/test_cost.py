import importlib.util
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import models
from mita import MultiHeadAttention, TokenLayout, cost
from mita.attention.reference import reference_attention
from mita.mechanisms import build


def counted(run):
    """Multiply-adds that PyTorch's counter sees; it counts two operations each, and 0 for fused CPU attention."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        run()
    return counter.get_total_flops() // 2


def test_softmax_is_counted_on_every_device():
    """pytorch #195460: a counter saw 0 in fused attention on CPU."""
    softmax, layout = build("softmax", 12, 64), TokenLayout((64,))
    assert softmax.multiply_adds(layout) == 6_291_456
    assert softmax.to("meta").multiply_adds(layout) == 6_291_456
    q = torch.randn(1, 12, 64, 64)
    assert counted(lambda: softmax(q, q, q, layout)) == 6_291_456


def sparse_mita(q, k, v, landmarks, top_k, experts_per_query, branches):
    """MiTA attention with no product taken twice and none dense: what the cost counts."""
    scale = q.shape[-1] ** -0.5
    S, scores = scale * landmarks @ k.mT, q @ landmarks.mT
    logits, outputs = [], []
    if branches != "route":
        logits.append(scale * scores)
        landmark_values = S.softmax(-1) @ v
        outputs.append(lambda weights: weights @ landmark_values)
    if branches != "compress":
        chosen = scores.topk(experts_per_query).indices.flatten(2)[..., None]  # (B, H, N * s, 1)
        read = S.topk(top_k).indices.gather(2, chosen.expand(-1, -1, -1, top_k)).flatten(2)[..., None]
        keys, values = (
            t.gather(2, read.expand(-1, -1, -1, t.shape[-1])).unflatten(2, (q.shape[2], -1)) for t in (k, v)
        )
        logits.append(scale * (keys @ q[..., None]).squeeze(-1))
        outputs.append(lambda weights: (weights[..., None, :] @ values).squeeze(-2))
    weights = torch.cat(logits, -1).softmax(-1).split([part.shape[-1] for part in logits], -1)
    return sum(output(part) for output, part in zip(outputs, weights, strict=True))


@pytest.mark.parametrize("branches", ["both", "route", "compress"])
@pytest.mark.parametrize("experts_per_query", [1, 2])
def test_mita_counts_each_product_that_it_needs_once(branches, experts_per_query):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 3, 48, 8, dtype=torch.float64) for _ in range(3))
    arguments = (q, k, v, q[:, :, :6].clone())
    options = dict(top_k=5, experts_per_query=experts_per_query, branches=branches)
    torch.testing.assert_close(sparse_mita(*arguments, **options), reference_attention(*arguments, **options)[0])
    mechanism = build("mita", 3, 8, num_landmarks=6, **options)
    assert mechanism.multiply_adds(TokenLayout((48,))) == counted(lambda: sparse_mita(*arguments, **options))


def test_the_reference_takes_some_products_twice_or_dense():
    """The oracle's own count is the method's, with the routed part over all N keys and the routing logits once more."""
    N, m, d, H = 48, 6, 8, 3
    q, k, v = (torch.randn(1, H, N, d) for _ in range(3))
    arguments = (q, k, v, q[:, :, :m].clone())
    sparse = build("mita", H, d, num_landmarks=m, top_k=5).multiply_adds(TokenLayout((N,)))
    dense = sparse + H * (2 * (N - 5) * N * d + N * m * d)
    bookkeeping = H * N * m * N  # how often a query reads a key, as a product of two 0-1 matrices
    assert counted(lambda: reference_attention(*arguments, top_k=5)) == dense + bookkeeping


def test_more_selected_than_there_are_costs_no_more():
    layout = TokenLayout((10,))
    many, all_of_them = (build("mita", 1, 8, num_landmarks=2, top_k=k) for k in (1000, 10))
    assert many.multiply_adds(layout) == all_of_them.multiply_adds(layout)


@pytest.mark.parametrize("gate", [False, True])
def test_a_layer_counts_what_the_counter_sees(gate):
    layer = MultiHeadAttention(24, 3, partial(build, "softmax"), gate=gate, depthwise_conv=True)
    layout = TokenLayout((4, 5), num_prefix=1)
    assert layer.multiply_adds(layout) == counted(lambda: layer(torch.randn(1, 21, 24), layout))


def test_a_model_counts_what_the_counter_sees():
    model = models.build(
        "deit_tiny", mechanism_factory=partial(build, "softmax"), num_classes=7, depth=2, input_size=(3, 48, 32)
    )
    assert model.multiply_adds((3, 48, 32)) == counted(lambda: model(torch.randn(1, 3, 48, 32)))
    assert model.multiply_adds((3, 64, 32)) == counted(lambda: model(torch.randn(1, 3, 64, 32)))


SOFTMAX, MITA, AGENT_SIZED = ("softmax", {}), ("mita", {}), ("mita", dict(num_landmarks=49, branches="compress"))


@pytest.mark.parametrize(
    ("name", "mechanism", "options", "giga", "parameters"),
    [
        ("deit_tiny", SOFTMAX, {}, 1.2537, 5_717_416),
        ("deit_tiny", MITA, {}, 1.1429, 5_717_416),
        ("deit_tiny", AGENT_SIZED, {}, 1.1638, 5_717_416),
        ("deit_tiny", MITA, dict(depthwise_conv=True), 1.1470, 5_740_456),
        ("deit_tiny", MITA, dict(depthwise_conv=True, gate=True), 1.2341, 6_185_128),
        ("deit_small", SOFTMAX, {}, 4.5989, 22_050_664),
        ("deit_small", MITA, {}, 4.3774, 22_050_664),
        ("deit_small", ("mita_released", {}), {}, 4.3774, 22_050_664),
        ("deit_small", MITA, dict(depthwise_conv=True), 4.3855, 22_096_744),
        ("deit_small", MITA, dict(depthwise_conv=True, gate=True), 4.7341, 23_870_824),
        ("deit_base", SOFTMAX, {}, 17.564, 86_567_656),
        ("deit_base", MITA, {}, 17.121, 86_567_656),
    ],
)
def test_the_papers_models(name, mechanism, options, giga, parameters):
    with torch.device("meta"):
        factory = partial(build, mechanism[0], **mechanism[1])
        model = models.build(name, mechanism_factory=factory, num_classes=1000, **options)
    digits = len(str(giga).split(".")[1])
    assert round(model.multiply_adds((3, 224, 224)) / 1e9, digits) == giga
    assert cost.parameters(model) == parameters


def test_the_command_line_prints_the_table(capsys):
    path = Path(__file__).parents[1] / "tools" / "flops.py"
    spec = importlib.util.spec_from_file_location("flops", path)
    flops = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(flops)
    flops.main(["--models", "deit_tiny", "deit_small"])
    lines = {tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in capsys.readouterr().out.splitlines()}
    assert ("deit_tiny", "softmax", "1.254", "5,717,416") in lines
    assert ("deit_small", "mita + dwc + gate", "4.734", "23,870,824") in lines

    flops.main(["--models", "deit_tiny", "--mechanisms", "mita", "--num-landmarks", "16", "--image-size", "224", "448"])
    first = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| deit_tiny"))
    assert "1.143" not in first
    flops.main(["--models", "segmenter_large", "--mechanisms", "mita"])
    assert "507.706 |  310,452,578 |" in capsys.readouterr().out
    for wrong in ("deit_tinny", "lra"):
        with pytest.raises(SystemExit):
            flops.main(["--models", wrong])
