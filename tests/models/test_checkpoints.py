"""Weights of others in the models here: every family of the authors, DeiT, DeiT III and timm, and what is refused and why."""

import argparse
from functools import partial

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import experiment
import models
from mita import TokenLayout
from mita.mechanisms import build
from mita.rope import RotaryEmbedding
from models.checkpoints import load_weights, to_project, to_release, to_timm
from models.weight_files import read_weights

SOFTMAX = partial(build, "softmax")
MITA = partial(build, "mita", num_landmarks=4, top_k=3)
TINY = dict(num_classes=10, input_size=(3, 32, 32), patch_size=8, embed_dim=16, depth=2, num_heads=2)

# the released files: (how to name the model here, width, kind, number of keys, number of parameters)
FAMILIES = {
    "DeiT-T": (["experiment=deit_t_mita_released"], 192, "", 152, 5_717_416),
    "DeiT-T + DWC": (["experiment=deit_t_mita_released", "model.depthwise_conv=true"], 192, "dwc", 176, 5_740_456),
    "DeiT-S": (["experiment=deit_s_mita_released"], 384, "", 152, 22_050_664),
    "DeiT-S + DWC": (["experiment=deit_s_mita_released", "model.depthwise_conv=true"], 384, "dwc", 176, 22_096_744),
    "DeiT-S + DWC + gate": (
        ["experiment=deit_s_mita_released", "model.depthwise_conv=true", "model.gate=true"], 384, "dwc gate", 176, 23_870_824,
    ),
    "ViT-5-S": (["experiment=vit5_s_mita_released"], 384, "vit5", 188, 22_039_144),
    "ViT-5-S + DWC": (["experiment=vit5_s_mita_released_dwc"], 384, "vit5 dwc", 212, 22_085_224),
}  # fmt: skip


def released_shapes(width, kind, depth=12):
    """Names and shapes of a released file, stored rotary frequencies included."""
    vit5, dwc, gate = (word in kind.split() for word in ("vit5", "dwc", "gate"))
    shapes = {
        "cls_token": (1, 1, width), "pos_embed": (1, 196 if vit5 else 197, width),
        "patch_embed.proj.weight": (width, 3, 16, 16), "patch_embed.proj.bias": (width,),
        "norm.weight": (width,), "head.weight": (1000, width), "head.bias": (1000,),
    }  # fmt: skip
    first = "attn.qkvg" if gate else "attn.qkv"
    block = {
        "norm1.weight": (width,), "norm2.weight": (width,), f"{first}.weight": ((4 if gate else 3) * width, width),
        "attn.proj.weight": (width, width), "attn.proj.bias": (width,),
        "mlp.fc1.weight": (4 * width, width), "mlp.fc1.bias": (4 * width,),
        "mlp.fc2.weight": (width, 4 * width), "mlp.fc2.bias": (width,),
    }  # fmt: skip
    if vit5:
        shapes["reg_token"] = (1, 4, width)
        block |= {"gamma_1": (width,), "gamma_2": (width,), "attn.q_norm.weight": (64,), "attn.k_norm.weight": (64,)}
        block |= {"attn.rope.freqs": (16,), "attn.rope_reg.freqs": (16,)}
    else:
        shapes["norm.bias"] = (width,)
        block |= {"norm1.bias": (width,), "norm2.bias": (width,)}
        block[f"{first}.bias"] = block[f"{first}.weight"][:1]
    if dwc:
        block |= {"attn.dwc.weight": (width, 1, 3, 3), "attn.dwc.bias": (width,)}
    return shapes | {f"blocks.{i}.{name}": shape for i in range(depth) for name, shape in block.items()}


def frequencies(name):
    base = 100.0 if "rope_reg" in name else 10000.0
    return base ** (-torch.arange(0, 32, 2) / 32)


def released_file(path, state):
    """As the authors save: arguments, and averaged weights beside those that were trained."""
    ema = {name: torch.full_like(t, 9.0) for name, t in state.items() if "freqs" not in name}
    torch.save({"model": state, "model_ema": ema, "epoch": 299, "args": argparse.Namespace(lr=1e-3)}, path)
    return path


@pytest.mark.parametrize("family", FAMILIES)
def test_every_released_family_loads_strictly(family, tmp_path):
    """Each tensor of the file is one number, repeated without memory; it must arrive where its name says."""
    overrides, width, kind, keys, parameters = FAMILIES[family]
    shapes = released_shapes(width, kind)
    assert len(shapes) == keys
    numbers = {name: float(i) for i, name in enumerate(shapes)}
    state = {
        name: frequencies(name) if "freqs" in name else torch.tensor(numbers[name]).expand(shape)
        for name, shape in shapes.items()
    }
    torch.save({"model": state, "args": argparse.Namespace(lr=1e-3)}, tmp_path / "best_checkpoint.pth")

    config = experiment.compose(overrides)
    options = experiment.resolved(config.model)
    with torch.device("meta"):
        model = models.build(
            options.pop("name"), mechanism_factory=experiment.mechanism_factory(config), num_classes=1000, **options
        )
    model.to_empty(device="cpu")
    assert sum(p.numel() for p in model.parameters()) == experiment.cost_of(config)[0] == parameters
    report = load_weights(model, read_weights(tmp_path / "best_checkpoint.pth"))
    assert not report.misfits and not report.adapted
    assert len(report.loaded) + len(report.left_out) == keys
    assert set(report.left_out) == {name for name in shapes if name.endswith("freqs")}
    for name, p in model.named_parameters():
        there = name.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2")
        assert p.eq(numbers[there]).all(), name


def random_state(shapes, seed=0):
    """Weights large enough that no attention is uniform and no branch negligible; float32, as released."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        if "freqs" in name:
            state[name] = frequencies(name)
        elif len(shape) == 1 and "bias" not in name:
            state[name] = 1 + 0.3 * noise
        elif name.endswith(("qkv.weight", "qkvg.weight")):
            state[name] = 3 * noise / shape[1] ** 0.5
        elif len(shape) == 2:
            state[name] = noise / shape[1] ** 0.5
        else:
            state[name] = 0.3 * noise
    return state


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_the_dense_reference(family, tmp_path):
    """In float64, with two of the twelve blocks; the released attention of the experiment, and one path of the core each."""
    overrides, width, kind, _, _ = FAMILIES[family]
    path = released_file(tmp_path / "best_checkpoint.pth", random_state(released_shapes(width, kind, depth=2)))
    images, logits = torch.randn(2, 3, 224, 224, dtype=torch.float64), {}
    for backend in ("auto", "eager", "reference"):
        config = experiment.compose([*overrides, f"attention.backend={backend}"])
        options = experiment.resolved(config.model)
        model = models.build(
            options.pop("name"), mechanism_factory=experiment.mechanism_factory(config), num_classes=1000, depth=2, **options
        )  # fmt: skip
        load_weights(model, read_weights(path))
        with torch.no_grad():
            logits[backend] = model.double().eval()(images)
    assert logits["reference"].std() > 0.1
    for backend in ("auto", "eager"):
        torch.testing.assert_close(logits[backend], logits["reference"], rtol=0, atol=1e-8)


def plain_deit(w, images, width):
    """A DeiT of two blocks with standard attention, written out from a released file's own names."""

    def norm(x, name):
        return F.layer_norm(x, (width,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-6)

    x = F.conv2d(images, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=16).flatten(2).mT
    x = torch.cat([w["cls_token"].expand(len(x), -1, -1), x], 1) + w["pos_embed"]
    for i in range(2):
        at = f"blocks.{i}."
        qkv = F.linear(norm(x, f"{at}norm1"), w[f"{at}attn.qkv.weight"], w[f"{at}attn.qkv.bias"])
        q, k, v = qkv.unflatten(2, (3, width // 64, 64)).permute(2, 0, 3, 1, 4)
        o = ((q @ k.mT / 8).softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + F.linear(o, w[f"{at}attn.proj.weight"], w[f"{at}attn.proj.bias"])
        h = F.gelu(F.linear(norm(x, f"{at}norm2"), w[f"{at}mlp.fc1.weight"], w[f"{at}mlp.fc1.bias"]))
        x = x + F.linear(h, w[f"{at}mlp.fc2.weight"], w[f"{at}mlp.fc2.bias"])
    return F.linear(norm(x, "norm")[:, 0], w["head.weight"], w["head.bias"])


def test_the_original_deit():
    state = random_state(released_shapes(192, "", depth=2))
    model = models.build("deit_tiny", mechanism_factory=SOFTMAX, num_classes=1000, depth=2).double().eval()
    load_weights(model, state)
    images = torch.randn(2, 3, 224, 224, dtype=torch.float64)
    with torch.no_grad():
        expected = plain_deit({name: t.double() for name, t in state.items()}, images, 192)
        torch.testing.assert_close(model(images), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("names", ["timm", "facebook"])
@pytest.mark.parametrize("form", ["pth", "safetensors", "parallel"])
def test_deit3_of_both_names(names, form, tmp_path):
    """facebookresearch's files say gamma_1 where timm says ls1.gamma; neither has a position of the class token."""
    theirs = timm.create_model("deit3_small_patch16_224", init_values=0.1, num_classes=10, depth=2).eval()
    state = theirs.state_dict()
    if names == "facebook":
        state = {name.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): t for name, t in state.items()}
        assert state["blocks.1.gamma_2"].shape == (384,) and state["pos_embed"].shape == (1, 196, 384)
    path = tmp_path / f"a.{'safetensors' if form == 'safetensors' else 'pth'}"
    if form == "safetensors":
        save_file(state, path)
    else:
        torch.save({"model": {"module." * (form == "parallel") + name: t for name, t in state.items()}}, path)
    ours = models.build("deit3_small", mechanism_factory=SOFTMAX, num_classes=10, depth=2).eval()
    assert not load_weights(ours, read_weights(path)).misfits
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=1e-5)


def make(name="vit", mechanism=MITA, **options):
    torch.manual_seed(0)
    return models.build(name, mechanism_factory=mechanism, **TINY | options).eval()


def test_raw_weights_unless_asked(tmp_path):
    """timm's own loader prefers model_ema, whose accuracy is not the reported one."""
    model = make()
    path = released_file(tmp_path / "a.pth", model.state_dict())
    assert read_weights(path)["norm.weight"].eq(1).all()
    assert read_weights(path, "ema")["norm.weight"].eq(9).all()
    torch.save(model.state_dict(), tmp_path / "b.pth")
    with pytest.raises(ValueError, match="b.pth holds no averaged weights; leave out weights=ema"):
        read_weights(tmp_path / "b.pth", "ema")


@pytest.mark.parametrize("class_position", [True, False])
def test_positions_are_resampled_as_the_model_itself_does(class_position):
    there = make(class_position=class_position)
    here = make(class_position=class_position, input_size=(3, 64, 48))
    report = load_weights(here, there.state_dict())
    assert report.adapted == ("pos_embed",) and "adapted: pos_embed" in str(report)
    images = torch.randn(2, 3, 64, 48)
    with torch.no_grad():
        torch.testing.assert_close(here(images), there(images), rtol=0, atol=1e-5)


def test_positions_of_a_rectangle_stay():
    there, here = make(input_size=(3, 16, 64)), make(input_size=(3, 16, 64), mechanism=SOFTMAX)
    assert not load_weights(here, there.state_dict()).adapted  # 16 places, but of no square
    assert here.pos_embed.equal(there.pos_embed)


def test_every_misfit_is_named_with_its_reason():
    state = make(depthwise_conv=True).state_dict() | {"pos_embed": torch.zeros(1, 14, 16), "extra": torch.zeros(1)}
    del state["norm.weight"]
    model = make(num_classes=7)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    with pytest.raises(ValueError) as caught:
        load_weights(model, state, "deit.pth")
    assert str(caught.value).splitlines() == [
        "deit.pth is of another model than this:",
        "  pos_embed: of shape (1, 14, 16) in the file and (1, 17, 16) in this model",
        "  head.weight: for 10 classes in the file and 7 in this model",
        "  head.bias: for 10 classes in the file and 7 in this model",
        "  norm.weight: in this model, missing in the file",
        "  blocks.{0-1}.attn.dwc.weight: in the file, unexpected in this model",
        "  blocks.{0-1}.attn.dwc.bias: in the file, unexpected in this model",
        "  extra: in the file, unexpected in this model",
        "Choose the experiment that it belongs to, or the options of the model with which it was trained.",
    ]
    assert all(t.equal(before[name]) for name, t in model.state_dict().items())

    report = load_weights(model, state, strict=False)
    assert set(report.misfits) == {
        "pos_embed", "head.weight", "head.bias", "norm.weight", "extra",
        *(f"blocks.{i}.attn.dwc.{name}" for i in (0, 1) for name in ("weight", "bias")),
    }  # fmt: skip
    assert model.head.weight.equal(before["head.weight"]) and model.cls_token.equal(state["cls_token"])
    with pytest.raises(ValueError, match="holds nothing of this model: its first names are conv1.weight"):
        load_weights(model, {"conv1.weight": torch.ones(3)}, strict=False)


def test_a_distilled_deit_is_refused():
    state = timm.create_model("deit_tiny_distilled_patch16_224", depth=1, num_classes=10).state_dict()
    with pytest.raises(ValueError, match="a.pth is a distilled DeiT, with a second class token.*without distillation"):
        load_weights(make(), state, "a.pth")


def test_other_rotary_frequencies_are_refused():
    """Dropping them unseen would change every logit and say nothing."""
    state = {"blocks.0.attn.rope.freqs": frequencies("rope") * 2}
    with pytest.raises(ValueError, match="blocks.0.attn.rope.freqs has another rotary embedding.*10000"):
        to_project(state)
    assert to_project({"blocks.0.attn.rope_reg.freqs": frequencies("rope_reg").half()})[0] == {}


def test_a_released_segmenter():
    """Its encoder holds a classifier that nothing uses; the number of classes is the decoder's."""
    options = dict(decoder_depth=2, decoder_heads=2, decoder_head_dim=8, representatives=(3, 3))
    there = make("segmenter", **options)
    state = to_release(there.state_dict())
    assert state["encoder.head.weight"].shape == (1000, 16) and state["encoder.head.bias"].shape == (1000,)
    here = make("segmenter", input_size=(3, 64, 64), **options)
    report = load_weights(here, state)
    assert report.adapted == ("encoder.pos_embed",) and not report.misfits
    assert "encoder.head.weight: a classifier that a segmenter does not use" in str(report)
    with pytest.raises(ValueError) as caught:
        load_weights(make("segmenter", **options | dict(num_classes=150)), state)
    assert "decoder.cls_emb: for 10 classes in the file and 150 in this model" in str(caught.value)


def test_there_and_back():
    """A ViT-5 under the release's names has exactly the released names and values, the frequencies computed."""
    shapes = released_shapes(384, "vit5 dwc", depth=2)
    state = random_state(shapes)
    again = to_release(to_project(state)[0])
    assert {name: tuple(t.shape) for name, t in again.items()} == shapes
    for name, tensor in state.items():
        torch.testing.assert_close(again[name], tensor, rtol=1e-6, atol=0)
    angles = RotaryEmbedding().angles(64, TokenLayout((14, 14), 1, 4), torch.float64, torch.device("cpu"))
    torch.testing.assert_close(angles[15, :16], again["blocks.0.attn.rope.freqs"].double(), rtol=1e-6, atol=0)  # row 1
    torch.testing.assert_close(angles[-2, :16], again["blocks.0.attn.rope_reg.freqs"].double(), rtol=1e-6, atol=0)


def test_timm_has_no_such_model():
    for name, what in (("reg_token", "ViT-5"), ("decoder.cls_emb", "segmenter")):
        with pytest.raises(ValueError, match=f"timm has no {what}"):
            to_timm({name: torch.ones(1)})


class Stranger:
    pass


def test_files_that_are_no_weights(tmp_path):
    with pytest.raises(ValueError, match="there is no checkpoint"):
        read_weights(tmp_path / "a.pth")
    (tmp_path / "a.pth").write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match="a.pth cannot be read as weights"):
        read_weights(tmp_path / "a.pth")
    torch.save({"model": {"x": torch.ones(1)}, "other": Stranger()}, tmp_path / "b.pth")
    with pytest.raises(ValueError, match="b.pth.*an object of .*Stranger, and making one may run code.*weights.pt"):
        read_weights(tmp_path / "b.pth")
    torch.save({"epoch": 3, "net": {}}, tmp_path / "c.pth")
    with pytest.raises(ValueError, match="c.pth holds no weights.*under model or state_dict; it holds epoch, net"):
        read_weights(tmp_path / "c.pth")
    torch.save([1], tmp_path / "d.pth")
    with pytest.raises(ValueError, match="d.pth holds no weights.*it holds list"):
        read_weights(tmp_path / "d.pth")
    with pytest.raises(ValueError, match="weights are raw or ema, not 'averaged'"):
        read_weights(tmp_path / "d.pth", "averaged")
