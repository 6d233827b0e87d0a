import argparse
import re
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

import models
from mita.mechanisms import build
from mita.training.run_folder import save_checkpoint
from models.segmentation import Backbone, load_backbone
from models.weight_files import read_weights

SOFTMAX = partial(build, "softmax")
MITA = partial(build, "mita", num_landmarks=4, top_k=3)
TINY = dict(patch_size=4, embed_dim=16, depth=2, num_heads=2)


def classifier(**options):
    torch.manual_seed(0)
    options = dict(dict(num_classes=10, input_size=(1, 32, 32)), **options)
    return models.build("vit", mechanism_factory=SOFTMAX, **TINY | options)


def backbone(input_size=(1, 32, 32), mechanism=MITA, **options):
    torch.manual_seed(1)
    return Backbone(mechanism, input_size, **TINY | options)


def timms(**options):
    torch.manual_seed(2)
    options = dict(dict(img_size=32, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=7), **options)
    model = timm.models.VisionTransformer(**options).eval()
    with torch.no_grad():
        for p in model.parameters():  # so that biases and norms matter
            p.add_(0.1 * torch.randn_like(p))
    return model


def test_a_run_of_this_project_with_the_mechanism_swapped(tmp_path):
    vit = classifier()
    save_checkpoint({"model": vit.state_dict(), "ema": None, "metrics": {}}, tmp_path / "best.ckpt")
    for source in (tmp_path, tmp_path / "best.ckpt"):
        model = backbone()
        report = load_backbone(model, source)
        assert not (report.adapted or report.missing or report.unused)
        assert all(torch.equal(p, vit.state_dict()[name]) for name, p in model.state_dict().items())
        assert report.loaded == tuple(name for name in vit.state_dict() if not name.startswith("head."))


def test_from_grey_digits_to_larger_colour_images(tmp_path):
    vit = classifier()
    save_checkpoint({"model": vit.state_dict()}, tmp_path / "last.ckpt")
    model = backbone((3, 64, 96))
    report = load_backbone(model, tmp_path / "last.ckpt")
    assert set(report.adapted) == {"patch_embed.proj.weight", "pos_embed"} and not report.missing
    grey = torch.rand(2, 1, 64, 96)
    torch.testing.assert_close(model.patch_embed(grey.expand(-1, 3, -1, -1)), vit.patch_embed(grey))
    picture = vit.pos_embed[:, 1:].mT.unflatten(2, (8, 8))
    expected = F.interpolate(picture, size=(16, 24), mode="bilinear", align_corners=False).flatten(2).mT
    torch.testing.assert_close(model.pos_embed[:, 1:], expected)
    assert torch.equal(model.pos_embed[:, 0], vit.pos_embed[:, 0])


def test_as_many_places_on_another_grid_are_resampled(tmp_path):
    vit = classifier()
    save_checkpoint({"model": vit.state_dict()}, tmp_path / "a.ckpt")
    model = backbone((1, 16, 64))
    assert load_backbone(model, tmp_path / "a.ckpt").adapted == ("pos_embed",)
    picture = vit.pos_embed[:, 1:].mT.unflatten(2, (8, 8))
    expected = F.interpolate(picture, size=(4, 16), mode="bilinear", align_corners=False).flatten(2).mT
    torch.testing.assert_close(model.pos_embed[:, 1:], expected)


def test_a_rectangle_goes_to_the_same_rectangle(tmp_path):
    first, second = backbone((1, 24, 64)), backbone((1, 24, 64), SOFTMAX)
    save_checkpoint({"model": first.state_dict()}, tmp_path / "a.ckpt")
    assert not load_backbone(second, tmp_path / "a.ckpt").adapted
    with pytest.raises(ValueError, match="pos_embed"):  # which grid 96 places were on, nobody says
        load_backbone(backbone((1, 32, 64)), tmp_path / "a.ckpt")


@pytest.mark.parametrize(("there", "here"), [(3, 1), (3, 4), (1, 3), (4, 3), (4, 1)])
def test_other_channels_keep_the_features_of_a_grey_image(tmp_path, there, here):
    theirs = timms(in_chans=there)
    torch.save(theirs.state_dict(), tmp_path / "a.pth")
    model = backbone((here, 32, 32), SOFTMAX)
    load_backbone(model, tmp_path / "a.pth")
    if (there, here) == (3, 4):  # timm's rule is exact for the mean over channels only
        assert model.patch_embed.proj.weight[:, 3].equal(model.patch_embed.proj.weight[:, 0])
        return
    grey = torch.rand(2, 1, 32, 32)
    ours, expected = (m.patch_embed(grey.expand(-1, c, -1, -1)) for m, c in ((model, here), (theirs, there)))
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("form", ["pth", "namespace", "parallel", "segmenter", "mmseg", "safetensors", "npz"])
def test_forms_of_a_timm_model(tmp_path, form):
    theirs = timms(norm_layer=partial(nn.LayerNorm, eps=1e-5))
    state, path = theirs.state_dict(), tmp_path / f"a.{form if form in ('safetensors', 'npz') else 'pth'}"
    if form == "npz":
        np.savez(path, **augreg(state, heads=2))
    elif form == "safetensors":
        save_file(state, path)
    elif form == "namespace":
        torch.save({"model": state, "args": argparse.Namespace(lr=1.0), "model_ema": None}, path)
    elif form == "parallel":
        torch.save({"state_dict": {f"module.{key}": t for key, t in state.items()}}, path)
    elif form in ("segmenter", "mmseg"):
        parts = ("encoder.", "decoder.") if form == "segmenter" else ("backbone.", "decode_head.")
        torch.save({"model": {parts[0] + key: t for key, t in state.items()} | {parts[1] + "x": torch.ones(1)}}, path)
    else:
        torch.save(state, path)
    model = backbone((3, 32, 32), SOFTMAX).eval()
    report = load_backbone(model, path)
    assert not (report.adapted or report.missing or report.unused)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = theirs.forward_features(images)[:, 1:].mT.unflatten(2, (8, 8))
        torch.testing.assert_close(model(images), expected, rtol=0, atol=1e-5)


def augreg(state, heads):
    """A timm state dict in the names and shapes of the AugReg files: kernels are (in, out), heads split, images NHWC."""
    state = {name: t.numpy() for name, t in state.items()}
    width = state["cls_token"].shape[-1]
    arrays = {
        "cls": state["cls_token"],
        "embedding/kernel": state["patch_embed.proj.weight"].transpose(2, 3, 1, 0),
        "embedding/bias": state["patch_embed.proj.bias"],
        "Transformer/posembed_input/pos_embedding": state["pos_embed"],
        "Transformer/encoder_norm/scale": state["norm.weight"],
        "Transformer/encoder_norm/bias": state["norm.bias"],
        "head/kernel": state["head.weight"].T,
        "head/bias": state["head.bias"],
    }
    for i in range(sum(name.endswith("norm1.weight") for name in state)):
        block = {name.removeprefix(f"blocks.{i}."): t for name, t in state.items() if name.startswith(f"blocks.{i}.")}
        there = f"Transformer/encoderblock_{i}/"
        for ours, theirs in (("norm1", "LayerNorm_0"), ("norm2", "LayerNorm_2")):
            arrays[f"{there}{theirs}/scale"] = block[f"{ours}.weight"]
            arrays[f"{there}{theirs}/bias"] = block[f"{ours}.bias"]
        for j in (1, 2):
            arrays[f"{there}MlpBlock_3/Dense_{j - 1}/kernel"] = block[f"mlp.fc{j}.weight"].T
            arrays[f"{there}MlpBlock_3/Dense_{j - 1}/bias"] = block[f"mlp.fc{j}.bias"]
        attention = f"{there}MultiHeadDotProductAttention_1/"
        for j, part in enumerate(("query", "key", "value")):
            rows = slice(j * width, (j + 1) * width)
            arrays[f"{attention}{part}/kernel"] = block["attn.qkv.weight"][rows].T.reshape(width, heads, -1)
            arrays[f"{attention}{part}/bias"] = block["attn.qkv.bias"][rows].reshape(heads, -1)
        arrays[f"{attention}out/kernel"] = block["attn.proj.weight"].T.reshape(heads, -1, width)
        arrays[f"{attention}out/bias"] = block["attn.proj.bias"]
    return arrays


def test_pretrained_weights_survive_the_construction_of_a_segmenter(tmp_path):
    theirs = timms()
    torch.save(theirs.state_dict(), tmp_path / "a.pth")
    options = dict(TINY, num_classes=5, input_size=(3, 32, 32), pretrained=str(tmp_path / "a.pth"))
    model = models.build("segmenter", mechanism_factory=MITA, **options)
    for name, parameter in model.encoder.named_parameters():
        assert torch.equal(parameter, theirs.state_dict()[name]), name
    with pytest.warns(UserWarning, match="missing: blocks.0.attn.dwc.weight"):
        models.build("segmenter", mechanism_factory=MITA, depthwise_conv=True, **options)
    with torch.device("meta"):  # costs need no weights
        models.build("segmenter", mechanism_factory=MITA, **options | dict(pretrained="nowhere"))


def test_loaded_weights_survive_mmengines_initialisation(tmp_path, mmseg):
    """Its runner calls `init_weights` of every module that has one before training: timm's transformer has, and forgets."""
    from mmengine.model import BaseModule

    class Wrapper(BaseModule):
        def __init__(self, model):
            super().__init__()
            self.model = model

    theirs = timms()
    torch.save(theirs.state_dict(), tmp_path / "a.pth")
    options = dict(TINY, num_classes=5, input_size=(3, 32, 32), pretrained=str(tmp_path / "a.pth"))
    ours, kept = models.build("segmenter", mechanism_factory=MITA, **options), []
    for model in (ours, theirs):
        before = {name: t.clone() for name, t in model.state_dict().items()}
        Wrapper(model).init_weights()
        kept.append(all(torch.equal(t, before[name]) for name, t in model.state_dict().items()))
    assert kept == [True, False]


def test_by_timms_name(monkeypatch):
    theirs = timms()
    asked = []

    def create_model(name, pretrained):
        asked.append((name, pretrained))
        return theirs

    monkeypatch.setattr(timm, "create_model", create_model)
    model = backbone((3, 32, 32))
    load_backbone(model, "vit_tiny_patch16_384.augreg_in21k_ft_in1k")
    assert asked == [("vit_tiny_patch16_384.augreg_in21k_ft_in1k", True)]
    assert torch.equal(model.norm.weight, theirs.norm.weight)

    def no_network(name, pretrained):
        raise OSError("no route to host")

    monkeypatch.setattr(timm, "create_model", no_network)
    with pytest.raises(ValueError, match="no route to host.*give the file.*null for random weights"):
        load_backbone(model, "vit_tiny_patch16_384.augreg_in21k_ft_in1k")


def test_what_is_not_in_both_is_reported(tmp_path):
    state = timms().state_dict() | {"blocks.2.norm1.weight": torch.ones(16), "reg_token": torch.ones(1, 4, 16)}
    del state["norm.weight"]
    torch.save(state, tmp_path / "a.pth")
    report = load_backbone(backbone((3, 64, 64)), tmp_path / "a.pth")
    assert report.missing == ("norm.weight",) and report.adapted == ("pos_embed",)
    assert report.unused == ("blocks.2.norm1.weight", "reg_token")
    text = str(report)
    assert "missing: norm.weight" in text and "unused: blocks.2.norm1.weight, reg_token" in text and "a.pth" in text


def test_what_cannot_be_used_is_refused(tmp_path):
    model = backbone((3, 32, 32))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    with pytest.raises(ValueError, match="neither a file or run folder nor the name of a model of timm"):
        load_backbone(model, tmp_path / "a.pth")
    with pytest.raises(ValueError, match="neither a file or run folder"):
        load_backbone(model, tmp_path)
    (tmp_path / "a.pth").write_bytes(b"not a checkpoint")
    (tmp_path / "a.npz").write_bytes(b"not a checkpoint")
    np.savez(tmp_path / "b.npz", x=np.ones(3))
    for name in ("a.pth", "a.npz", "b.npz"):
        with pytest.raises(ValueError, match="cannot be read as weights"):
            load_backbone(model, tmp_path / name)
    torch.save({"conv1.weight": torch.ones(3)}, tmp_path / "b.pth")
    with pytest.raises(ValueError, match="holds no vision transformer.*conv1.weight"):
        load_backbone(model, tmp_path / "b.pth")
    torch.save(timms(embed_dim=24).state_dict(), tmp_path / "c.pth")
    with pytest.raises(ValueError, match="another size than this backbone: cls_token is"):
        load_backbone(model, tmp_path / "c.pth")
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


@pytest.mark.parametrize(("key", "weights"), [("model", "raw"), ("state_dict", "raw"), ("model_ema", "ema")])
def test_what_is_advised_for_a_checkpoint_with_objects_works(tmp_path, monkeypatch, key, weights):
    """DeiT's and the authors' files hold weights under "model", mmengine's under "state_dict", beside objects of their own."""
    state = {"norm.weight": torch.ones(3)}
    torch.save({key: state, "message_hub": {"loss": Fraction(1, 2)}}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match="an object of fractions.Fraction, .*and give weights.pt") as error:
        read_weights(tmp_path / "a.pth", weights)
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"If you trust it: (.*), and give weights.pt", str(error.value))[1], {"torch": torch})
    assert read_weights(tmp_path / "weights.pt", weights)["norm.weight"].equal(state["norm.weight"])
