"""ViT-5 and DeiT III: the released names, timm's logits, the paper's cost, half types and checkpointing."""

from functools import partial

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.optim import Lamb

import experiment
import models
from mita import MultiHeadAttention, TokenLayout
from mita.mechanisms import build
from mita.rope import RotaryEmbedding
from mita.training.optim import build_optimizer

SOFTMAX = partial(build, "softmax")
MITA = partial(build, "mita", num_landmarks=9, top_k=5)
RELEASED = partial(build, "mita_released", num_landmarks=9, top_k=5, landmark_tokens="grid")
SMALL = dict(input_size=(3, 64, 64), embed_dim=64, depth=2, num_heads=2)


def make(name="vit5_small", mechanism=MITA, **options):
    """A small one, with weights large enough that no attention is uniform and no branch negligible."""
    torch.manual_seed(0)
    model = models.build(name, mechanism_factory=mechanism, num_classes=10, **(SMALL | options)).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 1:
                p.add_(0.3 * torch.randn_like(p))
            elif name.endswith("qkv.weight"):
                p.mul_(6)
    return model


def released_shapes(width: int, classes: int, dwc: bool) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the released ViT-5-S, its stored rotary frequencies left out and `gamma_1` as timm's `ls1.gamma`."""
    shapes = {
        "cls_token": (1, 1, width), "reg_token": (1, 4, width), "pos_embed": (1, 196, width),
        "patch_embed.proj.weight": (width, 3, 16, 16), "patch_embed.proj.bias": (width,),
        "norm.weight": (width,), "head.weight": (classes, width), "head.bias": (classes,),
    }  # fmt: skip
    block = {
        "ls1.gamma": (width,), "ls2.gamma": (width,), "norm1.weight": (width,), "norm2.weight": (width,),
        "attn.qkv.weight": (3 * width, width), "attn.q_norm.weight": (64,), "attn.k_norm.weight": (64,),
        "attn.proj.weight": (width, width), "attn.proj.bias": (width,),
        "mlp.fc1.weight": (4 * width, width), "mlp.fc1.bias": (4 * width,),
        "mlp.fc2.weight": (width, 4 * width), "mlp.fc2.bias": (width,),
    }  # fmt: skip
    if dwc:
        block |= {"attn.dwc.weight": (width, 1, 3, 3), "attn.dwc.bias": (width,)}
    return shapes | {f"blocks.{i}.{name}": shape for i in range(12) for name, shape in block.items()}


@pytest.mark.parametrize("dwc", [False, True])
def test_names_are_the_released_ones(dwc):
    with torch.device("meta"):
        model = models.build("vit5_small", mechanism_factory=RELEASED, num_classes=1000, depthwise_conv=dwc)
    shapes = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    assert shapes == released_shapes(384, 1000, dwc)
    assert len(shapes) == (212 if dwc else 188) - 24  # the release stores two vectors of frequencies a block


@pytest.mark.parametrize(
    ("name", "parameters", "giga"),
    [
        ("vit5_s_softmax", 22_039_144, 4.6985),
        ("vit5_s_mita", 22_039_144, 4.4651),  # m = k = 25
        ("vit5_s_mita_released", 22_039_144, 4.4743),  # m = 25, k = 30, as everywhere in the release
        ("vit5_s_mita_dwc", 22_085_224, 4.4732),
        ("vit5_s_mita_released_dwc", 22_085_224, 4.4825),
        ("deit3_s_softmax", 22_059_496, 4.5989),
    ],
)
def test_cost(name, parameters, giga):
    ours = experiment.cost_of(experiment.compose([f"experiment={name}"]))
    assert (ours[0], round(ours[1] / 1e9, 4)) == (parameters, giga)


@pytest.mark.parametrize(("name", "millions"), [("vit5_base", 86.5), ("vit5_large", 304.3)])
def test_larger_sizes(name, millions):
    with torch.device("meta"):
        model = models.build(name, mechanism_factory=MITA, num_classes=1000)
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == millions


def test_released_attention_is_a_variant():
    released, paper = (
        experiment.mechanism_factory(experiment.compose([f"experiment=vit5_s_{name}"]))(6, 64)
        for name in ("mita_released", "mita")
    )
    assert (released.num_landmarks, released.top_k, released.landmark_key_scale) == (25, 30, 0.125)
    assert (paper.num_landmarks, paper.top_k, paper.landmark_key_scale) == (25, 25, 1.0)
    assert released.landmark_tokens == paper.landmark_tokens == "grid"


def plain_vit5(model, images):
    """ViT-5 with standard attention from its weights, written out; (B, 3, 64, 64), a 4x4 grid."""
    w = dict(model.named_parameters())

    def rms(x, name):
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w[f"{name}.weight"]

    x = F.conv2d(images, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=16).flatten(2).mT
    B, layout = len(x), TokenLayout((4, 4), num_prefix=1, num_suffix=4)
    x = torch.cat([w["cls_token"].expand(B, 1, -1), x + w["pos_embed"], w["reg_token"].expand(B, 4, -1)], 1)
    for i in range(2):
        at = f"blocks.{i}."
        q, k, v = F.linear(rms(x, f"{at}norm1"), w[f"{at}attn.qkv.weight"]).view(B, 21, 3, 2, 32).permute(2, 0, 3, 1, 4)
        q, k = RotaryEmbedding()(rms(q, f"{at}attn.q_norm"), rms(k, f"{at}attn.k_norm"), layout)
        o = ((q @ k.mT / 32**0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + w[f"{at}ls1.gamma"] * F.linear(o, w[f"{at}attn.proj.weight"], w[f"{at}attn.proj.bias"])
        h = F.gelu(F.linear(rms(x, f"{at}norm2"), w[f"{at}mlp.fc1.weight"], w[f"{at}mlp.fc1.bias"]))
        x = x + w[f"{at}ls2.gamma"] * F.linear(h, w[f"{at}mlp.fc2.weight"], w[f"{at}mlp.fc2.bias"])
    return F.linear(rms(x, "norm")[:, 0], w["head.weight"], w["head.bias"])


def test_equals_vit5_written_out():
    images = torch.randn(3, 3, 64, 64, dtype=torch.float64)
    route_all = partial(build, "mita", num_landmarks=4, top_k=21, branches="route")
    for mechanism in (SOFTMAX, route_all):  # the second is standard attention through landmarks, experts and routing
        model = make(mechanism=mechanism).double()
        with torch.no_grad():
            torch.testing.assert_close(model(images), plain_vit5(model, images), rtol=0, atol=1e-10)


@pytest.mark.parametrize("size", [(224, 224), (160, 256), (16, 48)])
def test_deit3_has_timms_names_and_logits(size):
    options = dict(num_classes=10, depth=2)
    theirs = timm.create_model("deit3_small_patch16_224", dynamic_img_size=True, init_values=0.1, **options).eval()
    ours = models.build("deit3_small", mechanism_factory=SOFTMAX, **options).eval()
    assert ours.blocks[1].ls2.gamma[0].item() == pytest.approx(1e-4)
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=1e-5)


@pytest.mark.parametrize("mechanism", [MITA, RELEASED], ids=["mita", "released"])
@pytest.mark.parametrize("dwc", [False, True])
def test_gradients_reach_everything_at_any_size(mechanism, dwc):
    model = make(mechanism=mechanism, depthwise_conv=dwc)
    for size in ((64, 64), (80, 112), (48, 16)):
        model.zero_grad()
        features = model.forward_features(torch.randn(2, 3, *size))
        assert features.shape == (2, 1 + size[0] * size[1] // 256 + 4, 64)
        (features.square() * torch.rand_like(features)).sum().backward()
        for name, p in model.named_parameters():
            if not name.startswith("head"):
                assert p.grad.isfinite().all() and p.grad.ne(0).any(), name


def test_an_item_does_not_depend_on_its_batch():
    model, images = make(), torch.randn(3, 3, 80, 112)
    with torch.no_grad():
        torch.testing.assert_close(model(images)[1:2], model(images[1:2]), rtol=0, atol=1e-5)
        assert model(images[:0]).shape == (0, 10)


@pytest.mark.parametrize("mechanism", [SOFTMAX, MITA, RELEASED], ids=["softmax", "mita", "released"])
def test_bfloat16_stays_bfloat16_under_autocast(mechanism):
    """The norms and the released rotary embedding gave q and k in float32 beside a v in bfloat16."""
    model, types = make(mechanism=mechanism, depthwise_conv=True), []
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.mechanism.register_forward_pre_hook(lambda _, args: types.append([t.dtype for t in args[:3]]))
    images = torch.randn(2, 3, 64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(images)
        loss = logits.float().square().sum()
    assert types == [[torch.bfloat16] * 3] * 2
    assert logits.isfinite().all()
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    with torch.no_grad():
        exact = model(images)
    assert (logits - exact).norm() < 0.1 * exact.norm()


@pytest.mark.parametrize("autocast", [False, True])
def test_gradient_checkpointing_changes_no_gradient(autocast):
    images, gradients = torch.randn(2, 3, 64, 64), []
    for checkpointing in (False, True):
        model = make(drop_path=0.5, drop_path_schedule="constant", gradient_checkpointing=checkpointing).train()
        torch.manual_seed(2)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(images).float().square().sum()
        loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(a.equal(b) for a, b in zip(*gradients, strict=True))


def test_lamb_is_the_recipes():
    """Its epsilon is 1e-8 where timm's default is 1e-6; positions, tokens, norms and LayerScale do not decay."""
    recipe, model = experiment.build_recipe(experiment.compose(["experiment=vit5_s_mita"])), make()
    optimizer = build_optimizer(model, recipe)
    assert isinstance(optimizer, Lamb)
    names = {id(p): name for name, p in model.named_parameters()}
    kept = {names[id(p)] for group in optimizer.param_groups if not group["weight_decay"] for p in group["params"]}
    expected = {name for name, p in model.named_parameters() if p.ndim == 1}
    assert kept == expected | {"cls_token", "reg_token", "pos_embed"}
    for group in optimizer.param_groups:
        assert group["weight_decay"] in (0, 0.05)
        assert (group["eps"], group["max_grad_norm"], group["betas"]) == (1e-8, 1.0, (0.9, 0.999))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="0, 1, 4, 9, ..., not 3"):
        make(num_registers=3)
    with pytest.raises(ValueError, match="multiple of 4, got 6"):
        make(embed_dim=12)
    with pytest.raises(ValueError, match="layer_norm, rms_norm, got 'batch_norm'"):
        make(norm="batch_norm")
    assert make(num_registers=3, rope_span=None)(torch.randn(1, 3, 64, 64)).shape == (1, 10)
