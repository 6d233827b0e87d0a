"""evaluate.py on checkpoints that are of no run here: a DeiT-style file works as it is, a wrong one is refused with reasons."""

import argparse
import json
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

import evaluate
import experiment
from models.checkpoints import to_release

DIGITS = ("trainer=cpu", "data.limit=64")


def weights_of(*overrides):
    """Random weights of an experiment's model."""
    config = experiment.compose(overrides)
    torch.manual_seed(3)
    return experiment.build_model(config, experiment.build_data(config)).state_dict()


def metrics(checkpoint, *overrides, weights="raw"):
    evaluate.main([f"checkpoint={checkpoint}", f"weights={weights}", *overrides])
    return json.loads(checkpoint.with_name(f"{checkpoint.stem}.{weights}.json").read_text())["metrics"]


@pytest.mark.parametrize("name", ["digits_mita", "vit5_digits_mita"])
def test_a_deit_style_file(tmp_path, name, capsys):
    """The authors' form: model and model_ema under their names, beside arguments that weights_only=True refuses."""
    overrides = (f"experiment={name}", *DIGITS)
    state = weights_of(*overrides)
    torch.save(state, tmp_path / "plain.pt")
    plain = metrics(tmp_path / "plain.pt", *overrides)
    assert 0 <= plain["test/top1"] <= 100 and "left out" not in capsys.readouterr().out

    released = {f"module.{key}": t for key, t in to_release(state).items()}
    average = {key: t * 0 for key, t in state.items()}
    path = tmp_path / "best_checkpoint.pth"
    torch.save({"model": released, "model_ema": average, "epoch": 1, "args": argparse.Namespace(lr=1e-3)}, path)
    assert metrics(path, *overrides) == plain
    assert ("left out: blocks.{0-3}.attn.rope.freqs: computed here" in capsys.readouterr().out) == (name[0] == "v")
    averaged = metrics(path, *overrides, weights="ema")
    assert averaged["test/loss"] == pytest.approx(torch.tensor(10.0).log().item())  # all logits are 0
    assert averaged["test/loss"] != plain["test/loss"]


def test_what_does_not_fit_is_refused(tmp_path):
    path = tmp_path / "a.pth"
    torch.save({"model": weights_of("experiment=digits_mita", "model.depthwise_conv=true", *DIGITS)}, path)
    with pytest.raises(ValueError, match="a.pth is of another model.*\n  blocks.{0-3}.attn.dwc.weight: in the file"):
        metrics(path, "experiment=digits_mita", *DIGITS)
    with pytest.raises(ValueError, match="holds no averaged weights; leave out weights=ema"):
        metrics(path, "experiment=digits_mita", *DIGITS, weights="ema")
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ValueError, match="there is no checkpoint"):
        metrics(tmp_path / "b.pth", "experiment=digits_mita", *DIGITS)
    with pytest.raises(ValueError, match=f"there is no checkpoint {Path.home()}/no-such.pth"):
        evaluate.main(["checkpoint=~/no-such.pth", "experiment=digits_mita"])
    with pytest.raises(ValueError, match="weights=average must be raw or ema"):
        metrics(path, "experiment=digits_mita", weights="average")
    for place in (tmp_path, tmp_path / "b" / "c.json"):
        with pytest.raises(ValueError, match="must be a file, in a folder that is there"):
            metrics(path, "experiment=digits_mita", f"out={place}", *DIGITS)


def test_weights_of_another_attention_are_told(tmp_path, capsys):
    """No key of a file says what attention it was trained with; its run folder does."""
    config = experiment.compose(["experiment=digits_softmax", *DIGITS])
    OmegaConf.save(config, tmp_path / "config.yaml")
    torch.save({"model": weights_of("experiment=digits_softmax", *DIGITS)}, tmp_path / "best.ckpt")
    metrics(tmp_path / "best.ckpt", "experiment=digits_softmax", *DIGITS)
    assert "trained with" not in capsys.readouterr().out
    metrics(tmp_path / "best.ckpt", "experiment=digits_mita", *DIGITS)
    assert "trained with  attention.name=softmax, " in capsys.readouterr().out
    report = json.loads((tmp_path / "best.raw.json").read_text())
    assert report["trained_with"]["name"] == "softmax" and report["config"]["attention"]["name"] == "mita"


def test_a_segmenter_asks_for_no_pretrained_backbone(tmp_path, mmseg):
    """All weights come from the checkpoint: a backbone that is not there is not looked for."""
    scenes = ("experiment=digit_scenes_mita", "trainer=cpu", f"data.root={tmp_path / 'scenes'}", "data.counts=[2,2]")
    state = weights_of(*scenes, "model.pretrained=null")
    torch.save({"model": to_release(state)}, tmp_path / "a.pth")
    values = metrics(tmp_path / "a.pth", *scenes, "model.pretrained=nowhere.pth")
    assert 0 <= values["test/miou"] <= 100
