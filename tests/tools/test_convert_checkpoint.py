"""Checkpoints from and to the names of the authors and of timm, read there as those read them."""

import argparse
import re
import sys
from functools import partial
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file

import models
from mita.mechanisms import build
from mita.training.run_folder import save_checkpoint
from models.checkpoints import load_weights
from models.weight_files import read_weights

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import convert_checkpoint  # noqa: E402

MITA = partial(build, "mita", num_landmarks=4, top_k=3)
DEIT = dict(patch_size=8, embed_dim=16, depth=2, num_heads=2)


def make(name="vit", **options):
    torch.manual_seed(0)
    options = dict(num_classes=10, input_size=(3, 32, 32), **DEIT) | options
    return models.build(name, mechanism_factory=options.pop("mechanism", MITA), **options).eval()


def vit5(**options):
    return make("vit5_small", input_size=(3, 64, 64), patch_size=16, embed_dim=64, num_heads=1, **options)


def run_folder(path, model):
    """A run's checkpoint: raw weights, and their average, which here is half of them."""
    state = model.state_dict()
    save_checkpoint({"model": state, "ema": {n: t / 2 for n, t in state.items()}, "metrics": {}}, path / "best.ckpt")
    return path


def convert(*words):
    convert_checkpoint.main([str(word) for word in words])


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_from_the_release(tmp_path, capsys, suffix):
    model = vit5(depthwise_conv=True)
    convert(run_folder(tmp_path, model), tmp_path / "theirs.pth", "--to", "release")
    released = torch.load(tmp_path / "theirs.pth", weights_only=True)["model"]
    assert released["blocks.1.gamma_2"].equal(model.blocks[1].ls2.gamma)
    assert released["blocks.0.attn.rope.freqs"].shape == (16,)
    assert "added: blocks.{0-1}.attn.rope_reg.freqs: computed here" in capsys.readouterr().out

    released = {f"module.{name}": t for name, t in released.items()}
    torch.save({"model": released, "args": argparse.Namespace(), "epoch": 1}, tmp_path / "theirs.pth")
    target = tmp_path / f"ours.{suffix}"
    convert(tmp_path / "theirs.pth", target)
    said = capsys.readouterr().out
    count = sum(p.numel() for p in model.parameters())
    assert "left out: blocks.{0-1}.attn.rope.freqs: computed here" in said
    assert f"written: {target}, {len(model.state_dict())} tensors, {count:,} parameters, raw weights" in said
    written = load_file(target) if suffix == "safetensors" else torch.load(target, weights_only=True)
    assert written.keys() == model.state_dict().keys()
    assert all(t.equal(model.state_dict()[name]) for name, t in written.items())
    again = vit5(depthwise_conv=True, mechanism=partial(build, "softmax"))
    assert not load_weights(again, read_weights(target)).misfits


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
@pytest.mark.parametrize(("weights", "factor"), [("raw", 1), ("ema", 0.5)])
def test_a_run_to_timm(tmp_path, suffix, weights, factor):
    """timm's own loader, strict; the logits are those of the model here, with either weights."""
    model = make(mechanism=partial(build, "softmax"))
    target = tmp_path / f"a.{suffix}"
    convert(run_folder(tmp_path, model), target, "--to", "timm", "--weights", weights)
    theirs = timm.models.VisionTransformer(img_size=32, num_classes=10, **DEIT).eval()
    timm.models.load_checkpoint(theirs, str(target), strict=True)
    model.load_state_dict({name: t * factor for name, t in model.state_dict().items()})
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(theirs(images), model(images), rtol=0, atol=1e-5)


def test_what_timm_lacks_is_said_or_refused(tmp_path, capsys):
    convert(run_folder(tmp_path, make(depthwise_conv=True)), tmp_path / "a.pt", "--to", "timm")
    assert "kept: blocks.{0-1}.attn.dwc.weight: of no attention of timm" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        convert(run_folder(tmp_path, vit5()), tmp_path / "b.pt", "--to", "timm")
    assert "timm has no ViT-5" in capsys.readouterr().err
    assert not (tmp_path / "b.pt").exists()


def test_a_segmenter_to_the_release_and_back(tmp_path, capsys):
    model = make("segmenter", decoder_depth=2, decoder_heads=2, decoder_head_dim=8, representatives=(3, 3))
    convert(run_folder(tmp_path, model), tmp_path / "a.pth", "--to", "release")
    assert "added: encoder.head.weight" in capsys.readouterr().out
    assert torch.load(tmp_path / "a.pth", weights_only=True)["model"]["encoder.head.weight"].shape == (1000, 16)
    convert(tmp_path / "a.pth", tmp_path / "b.safetensors")
    assert "left out: encoder.head.weight: a classifier that a segmenter does not use" in capsys.readouterr().out
    assert load_file(tmp_path / "b.safetensors").keys() == model.state_dict().keys()


def test_nothing_is_overwritten_unasked(tmp_path, capsys):
    folder, target = run_folder(tmp_path, make()), tmp_path / "a.pt"
    target.write_text("dear")
    with pytest.raises(SystemExit):
        convert(folder, target)
    assert "exists; give another name, or --overwrite" in capsys.readouterr().err
    assert target.read_text() == "dear"
    convert(folder, target, "--overwrite")
    assert torch.load(target, weights_only=True).keys() == make().state_dict().keys()
    assert {path.name for path in tmp_path.iterdir()} == {"a.pt", "best.ckpt"}


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_target_that_cannot_be_written_is_one_sentence(tmp_path, capsys, suffix):
    folder = run_folder(tmp_path, make())
    (tmp_path / f"a{suffix}.part").mkdir()  # where it is written first
    with pytest.raises(SystemExit):
        convert(folder, tmp_path / f"a{suffix}")
    assert f"a{suffix} cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.pth", "b.pt"], "there is no checkpoint nowhere.pth"),
        (["a.pth", "b.npz"], "b.npz must end in .safetensors or .pt or .pth for --to project"),
        (["a.pth", "b.safetensors", "--to", "release"], "must end in .pth or .pt for --to release"),
        (["a.pth", "none/b.pt"], "there is no folder none"),
        (["a.pth", "b.pt"], "holds no vision transformer.*its first names are conv1.weight"),
    ],
)
def test_what_cannot_be_converted_is_refused(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    torch.save({"conv1.weight": torch.ones(1)}, "a.pth")
    with pytest.raises(SystemExit) as caught:
        convert(*words)
    assert caught.value.code == 2
    assert re.search(message, capsys.readouterr().err)
    assert {path.name for path in tmp_path.iterdir()} == {"a.pth"}
