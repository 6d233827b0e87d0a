"""ADE20K as a user meets it: a tree in the true format through train.py, and its checkpoint through evaluate.py."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import evaluate
from mita.training.tasks import Segmentation

ROOT = Path(__file__).parents[1]
SIZES = {  # width, height; lying, standing, square, smaller than the crop
    "training": [(96, 64), (60, 90), (64, 64), (110, 40)],
    "validation": [(90, 60), (50, 97), (37, 41)],
}
SHORT = {"training": "train", "validation": "val"}
SMALL = (
    "experiment=ade20k_t_mita", "trainer=cpu", "trainer.max_steps=2", "trainer.progress=false", "recipe.batch_size=2",
    "model.pretrained=null", "model.decoder_depth=1", "attention.num_landmarks=4", "attention.top_k=4",
    "data.crop_size=64", "data.scale=[256,64]", "task.window=64", "task.stride=48",
)  # fmt: skip
SEVERAL = ("task.scales=[0.5,1.0,1.5]", "task.flip=true")

HIDDEN = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = classmethod(lambda cls, name, *rest: None if name == "mmseg" else find(name, *rest))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Photographs of noise; labels are 0 (no class) on the left third, then 1 and 150."""
    root, random = tmp_path_factory.mktemp("ADEChallengeData2016"), np.random.default_rng(0)
    for split, sizes in SIZES.items():
        for kind in ("images", "annotations"):
            (root / kind / split).mkdir(parents=True)
        for number, (width, height) in enumerate(sizes, 1):
            name = f"ADE_{SHORT[split]}_{number:08}"
            pixels = random.integers(256, size=(height, width, 3), dtype=np.uint8)
            labels = np.array([0, 1, 150], np.uint8)[np.arange(width) * 3 // width]
            Image.fromarray(pixels).save(root / "images" / split / f"{name}.jpg")
            Image.fromarray(np.tile(labels, (height, 1))).save(root / "annotations" / split / f"{name}.png")
    return root


def train(tree, place, *arguments, **environment):
    where = (f"data.root={tree}", f"output={place}/outputs", f"results={place}/results")
    return subprocess.run(
        [sys.executable, "train.py", *SMALL, *where, *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, **environment},
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(tree, tmp_path_factory, mmseg):
    """The folder of a run of two steps, and what it printed."""
    place = tmp_path_factory.mktemp("run")
    done = train(tree, place)
    assert done.returncode == 0, done.stderr
    return place / "outputs/ade20k_t_mita/seed0", done.stdout


def evaluated(folder, monkeypatch, *arguments):
    """The report of evaluate.py, and the pixels it counted."""
    counted = []
    summarize = Segmentation.summarize
    monkeypatch.setattr(Segmentation, "summarize", lambda task, sums: counted.append(sums) or summarize(task, sums))
    evaluate.main([f"run={folder}", f"out={folder / 'report.json'}", *arguments])
    (sums,) = counted
    return json.loads((folder / "report.json").read_text()), sums


def photographs(tree):
    """Name, pixels and labels of what is evaluated."""
    for path in sorted((tree / "images/validation").iterdir()):
        labels = Image.open(tree / "annotations/validation" / f"{path.stem}.png")
        yield path.stem, np.asarray(Image.open(path)), np.asarray(labels)


def test_two_steps_leave_a_short_record(run):
    folder, printed = run
    record = json.loads((folder / "record.json").read_text())
    assert record["steps"] == 2 and record["metric"] == record["best"]["metric"] == "test/miou"
    assert record["short"] == [
        "stopped at step 2 of 160000 (trainer.max_steps)",
        "4 training images instead of 20210; 3 validation images instead of 2000",
    ]
    assert np.isfinite(list(record["metrics"].values())).all() and record["metrics"]["train_loss"] > 0
    assert all(0 <= record["metrics"][f"test/{name}"] <= 100 for name in ("miou", "macc", "pixel_accuracy"))
    assert (folder / "status").read_text().strip() == "short"
    table = (folder.parents[2] / "results/tables/table4_ade20k.md").read_text()
    assert "Short runs" in table and "- ade20k_t_mita, seed 0" in table
    assert "160,000 steps, stopping at 2\n" in printed and "160000 steps, 160,000" not in printed
    assert len(list((folder / "overlays").iterdir())) == 3


def test_evaluation_at_one_and_at_several_scales(run, tree, monkeypatch, capsys):
    """Both count every labelled pixel of the original size once, and none of label 0; the report says what was done."""
    folder, _ = run
    record = json.loads((folder / "record.json").read_text())
    one, counted = evaluated(folder, monkeypatch)
    assert one["metrics"] == pytest.approx({k: v for k, v in record["metrics"].items() if k.startswith("test/")})
    assert (one["config"]["task"]["scales"], one["config"]["task"]["flip"]) == ([1.0], False)
    several, counted_at_several = evaluated(folder, monkeypatch, *SEVERAL)
    assert (several["config"]["task"]["scales"], several["config"]["task"]["flip"]) == ([0.5, 1.0, 1.5], True)
    assert several["metrics"] != one["metrics"] and all(0 <= value <= 100 for value in several["metrics"].values())
    expected = np.zeros(150)
    for _, _, labels in photographs(tree):
        expected += np.bincount(labels.ravel(), minlength=151)[1:]
    for sums in (counted, counted_at_several):
        assert np.array_equal(sums["labelled"].numpy(), expected)
        assert sums["predicted"].sum() == expected.sum()
    assert "test/miou" in capsys.readouterr().out


def test_overlays_are_of_the_photographs_own_size(run, tree, monkeypatch):
    """Prediction, truth and legend side by side; where the truth has no class, the photograph's own pixels are seen."""
    folder, _ = run
    for path in (folder / "overlays").iterdir():
        path.unlink()
    evaluated(folder, monkeypatch, "overlays=2")
    assert [path.stem for path in sorted((folder / "overlays").iterdir())] == ["ADE_val_00000001", "ADE_val_00000002"]
    for name, pixels, labels in list(photographs(tree))[:2]:
        overlay, (height, width) = np.asarray(Image.open(folder / "overlays" / f"{name}.png")), labels.shape
        assert overlay.shape[0] >= height and overlay.shape[1] > 2 * width
        truth = overlay[:height, width : 2 * width]
        assert np.array_equal(truth[labels == 0], pixels[labels == 0])
        assert not np.array_equal(truth[labels == 1], pixels[labels == 1])
        prediction = overlay[:height, :width].astype(int)
        assert (prediction != pixels).any((2,)).mean() > 0.9  # every pixel has a predicted class
        assert abs(prediction - pixels).max() <= 128


def test_without_mmsegmentation(tree, tmp_path):
    """One sentence in place of a traceback, and nothing is written."""
    (tmp_path / "sitecustomize.py").write_text(HIDDEN)
    for others in ([f"data.root={tree}"], ["experiment=digit_scenes_mita", f"data.root={tmp_path / 'scenes'}"]):
        done = train(tree, tmp_path / "run", *others, PYTHONPATH=str(tmp_path))
        assert done.returncode == 2 and done.stdout == ""
        assert done.stderr == (
            "error: segmentation needs mmseg; run make setup, or pip install -r requirements.txt (no compiler needed)\n"
        )
        assert not (tmp_path / "run/outputs").exists() and not (tmp_path / "scenes").exists()
