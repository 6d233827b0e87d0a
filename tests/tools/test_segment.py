"""Overlays of photographs: what is predicted is what evaluation predicts, and colours and legend say it."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import segment  # noqa: E402

import datasets  # noqa: E402
import experiment  # noqa: E402
from datasets.ade20k import View, seen  # noqa: E402

pytestmark = pytest.mark.usefixtures("mmseg")

NAME = "digit_scenes_mita"


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """A few digit scenes, of the form of ADE20K's."""
    root = tmp_path_factory.mktemp("scenes")
    return datasets.build("digit_scenes", root=str(root), counts=(1, 2)), sorted(root.glob("*/images/validation/*.jpg"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder with random weights, as training leaves it."""
    folder = tmp_path_factory.mktemp("run")
    config = experiment.compose([f"experiment={NAME}"])
    (folder / "config.yaml").write_text(yaml.safe_dump(experiment.resolved(config)))
    torch.manual_seed(0)
    shape = datasets.shape_of(**experiment.resolved(config.data))
    model = experiment.build_model(config, shape, pretrained=False)
    torch.save({"model": model.state_dict()}, folder / "best.ckpt")
    return folder


def test_a_photograph_is_seen_as_in_evaluation(scenes):
    data, photographs = scenes
    options = experiment.resolved(experiment.compose(["data=digit_scenes"]).data)
    view = View(**{name: options[name] for name in View.__dataclass_fields__})
    for item, photograph in zip(data.evaluate["test"], photographs, strict=True):
        image, original = seen(segment.read_photograph(photograph, 2048), view)
        assert torch.equal(image, item["image"]) and torch.equal(original, item["original"])


def test_overlays_show_what_evaluation_predicts(scenes, run, tmp_path, capsys):
    data, photographs = scenes
    segment.main(
        [*map(str, photographs), "--run", str(run), "--out", str(tmp_path / "new"), "--alpha", "1", "--device", "cpu"]
    )
    config = experiment.compose([f"experiment={NAME}"])
    model = segment.build(config, run / "best.ckpt")
    task = experiment.build_task_for(config, data, model)
    palette = torch.tensor(datasets.classes_of(config.data.name)[1], dtype=torch.uint8)
    for item, photograph in zip(data.evaluate["test"], photographs, strict=True):
        height, width = item["target"].shape
        expected = model.predict(item["image"], (height, width), **task.windows).argmax(0)
        overlay = np.asarray(Image.open(tmp_path / "new" / f"{photograph.stem}.png"))
        assert overlay.shape[1] > width and overlay.shape[0] >= height
        assert np.array_equal(overlay[:height, :width], palette[expected])
        drawn = {tuple(color) for color in overlay[:, width:].reshape(-1, 3).tolist()}
        assert {tuple(palette[i].tolist()) for i in expected.unique()} <= drawn
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(photographs) and "%" in printed[0] and str(tmp_path / "new") in printed[0]


def test_photographs_are_upright_and_no_larger_than_asked(tmp_path):
    image = Image.fromarray(np.arange(60, dtype=np.uint8).reshape(6, 10))
    image.save(tmp_path / "grey.png")
    assert segment.read_photograph(tmp_path / "grey.png", 2048).shape == (6, 10, 3)
    assert segment.read_photograph(tmp_path / "grey.png", 5).shape == (3, 5, 3)
    turned = Image.Exif()
    turned[0x0112] = 6  # turn by a quarter
    image.save(tmp_path / "turned.jpg", exif=turned)
    assert segment.read_photograph(tmp_path / "turned.jpg", 2048).shape == (10, 6, 3)


@pytest.mark.parametrize(("dtype", "kind"), [(np.uint16, "png"), (np.int32, "tif"), (np.float32, "tif")])
def test_more_than_8_bits_a_channel_are_refused(dtype, kind, tmp_path):
    """Pillow would clip them: nearly all of a 16-bit photograph would be white."""
    path = tmp_path / f"deep.{kind}"
    Image.fromarray(np.full((6, 10), 30_000, dtype)).save(path)
    with pytest.raises(
        ValueError, match=f"deep.{kind} has more than 8 bits a channel .*; save it with 8 bits a channel"
    ):
        segment.read_photograph(path, 2048)


@pytest.mark.parametrize("taken", ["out", "out/PHOTOGRAPH.png/x"])
def test_a_folder_that_cannot_be_written_is_one_sentence(taken, scenes, run, tmp_path, capsys):
    """A file has its name, or a folder has the name of the overlay."""
    photograph = scenes[1][0]
    path = tmp_path / taken.replace("PHOTOGRAPH", photograph.stem)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    with pytest.raises(SystemExit, match="2"):
        segment.main([str(photograph), "--run", str(run), "--out", str(tmp_path / "out"), "--device", "cpu"])
    error = capsys.readouterr().err
    assert f"{photograph.stem}.png cannot be written (" in error and "give another folder as --out" in error


def test_a_checkpoint_needs_no_run_and_keys_may_change(scenes, run, tmp_path):
    common = [str(scenes[1][0]), "--device", "cpu", "--out"]
    segment.main([*common, str(tmp_path / "a"), "--run", str(run)])
    alone = ["--checkpoint", str(run / "best.ckpt"), "--experiment", NAME]
    segment.main([*common, str(tmp_path / "b"), *alone])
    segment.main([*common, str(tmp_path / "c"), *alone, "--set", "task.flip=true", "task.scales=[0.5,1.5]"])
    a, b, c = (next((tmp_path / name).iterdir()).read_bytes() for name in "abc")
    assert a == b != c


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["a.jpg"], "give --run outputs/NAME/seed0, or --checkpoint FILE with --experiment NAME"),
        (["a.jpg", "--checkpoint", "x"], "with --experiment NAME"),
        (["a.jpg", "--experiment", "digits_mita", "--checkpoint", "x"], "digits_mita is no segmenter"),
        (["a.jpg", "--experiment", "digit_scenes_mitta", "--checkpoint", "x"], "did you mean digit_scenes_mita"),
        (["a.jpg", "--experiment", NAME, "--checkpoint", "x"], "there is no checkpoint x"),
        (["a.jpg", "--run", "nowhere"], "nowhere is no run folder"),
        (["a.jpg", "--run", "RUN"], "a.jpg cannot be read as an image"),
        (["a.jpg", "b/a.png", "--run", "RUN"], "a.jpg and b/a.png would both be written to"),
        (["out/a.png", "--run", "RUN"], "out/a.png itself would be written over"),
        (["a.jpg", "--run", "RUN", "--alpha", "2"], "--alpha is from 0 to 1"),
    ],
)
def test_a_slip_is_answered(arguments, answer, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("a.jpg").write_text("no photograph")
    with pytest.raises(SystemExit, match="2"):
        segment.main([*(str(run) if a == "RUN" else a for a in arguments), "--out", "out", "--device", "cpu"])
    assert answer in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_one_sentence(capsys):
    with pytest.raises(SystemExit, match="2"):
        segment.main(["a.jpg", "--run", "nowhere", "--out", "out", "--device", "cuda"])
    assert "torch sees no GPU here" in capsys.readouterr().err
