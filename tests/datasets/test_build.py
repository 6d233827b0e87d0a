"""Data sets by name, the synthetic one, and what a top-level `datasets` folder must not break."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import datasets

ROOT = Path(datasets.__file__).parents[1]


def test_unknown_names_are_answered_with_near_ones():
    with pytest.raises(ValueError, match="did you mean digits"):
        datasets.build("digit")
    with pytest.raises(ValueError, match="did you mean crop_pct"):
        datasets.build("imagenet", crop_pc=1.0)


def test_a_data_set_is_of_the_shape_that_its_options_say(tmp_path):
    """A model's cost is computed from `shape_of`, the model that is trained is built from the data."""
    small = {"counts": (3, 2, 2), "workers": 1, "cache": str(tmp_path)}
    for name, options in {
        "digits": {},
        "synthetic": {"image_size": 8, "channels": 2, "num_classes": 5},
        "listops": {**small, "min_length": 3, "max_length": 65, "max_args": 3, "max_depth": 3},
        "pathfinder": small,
    }.items():
        data = datasets.build(name, **options)
        assert (data.input_size, data.num_classes) == datasets.shape_of(name, **options)
        inputs = data.train[0].get("image", data.train[0].get("tokens"))
        assert tuple(inputs.shape) == data.input_size
    assert datasets.SHAPES.keys() == datasets.DATASETS.keys()
    assert datasets.shape_of("imagenet", image_size=160) == ((3, 160, 160), 1000)
    assert datasets.shape_of("longdoc") == ((16_384,), 11)
    with pytest.raises(ValueError, match="did you mean listops"):
        datasets.shape_of("listop")


def test_synthetic_items_are_a_function_of_seed_and_index():
    options = {"image_size": 8, "num_classes": 5, "train_count": 6, "test_count": 3}
    first, again = datasets.build("synthetic", seed=1, **options), datasets.build("synthetic", seed=1, **options)
    other = datasets.build("synthetic", seed=2, **options)
    assert first.counts == {"train": 6, "test": 3} and first.input_size == (3, 8, 8) and first.short == "synthetic data"
    assert first.fingerprint == again.fingerprint != other.fingerprint
    for i in (5, 0, 3):
        assert torch.equal(first.train[i]["image"], again.train[i]["image"])
        assert not torch.equal(first.train[i]["image"], other.train[i]["image"])
    assert not torch.equal(first.train[0]["image"], first.evaluate["test"][0]["image"])
    assert len(list(first.train)) == 6


def test_synthetic_batches_have_the_true_shape():
    data = datasets.build("synthetic", limit=4)
    batch = next(iter(DataLoader(data.train, batch_size=4)))
    assert batch["image"].shape == (4, 3, 224, 224) and batch["image"].dtype == torch.float32
    assert batch["target"].shape == (4,) and batch["target"].dtype == torch.int64 and batch["target"].max() < 1000
    assert data.short == "synthetic data; limit=4"
    with pytest.raises(ValueError, match="image_size=0"):
        datasets.build("synthetic", image_size=0)
    with pytest.raises(ValueError, match="reads no folder"):
        datasets.build("synthetic", root="somewhere")


@pytest.mark.parametrize("package", ["timm", "wandb", "mmseg"])
def test_our_datasets_folder_does_not_break(package):
    """Hugging Face's package of the same name is hidden by ours when the root comes first on the path."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import datasets, {package}; print(datasets.__file__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip().splitlines()[-1]) == ROOT / "datasets" / "__init__.py"
