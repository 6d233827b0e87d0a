"""Runs through train.py's own parts: every experiment for two steps, and a run from start to table."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import experiment
from mita import MultiHeadAttention
from mita.training import Machine, Recipe, RunFolder, fit, make_fabric

from .random_items import random_data

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", experiment.groups()["experiment"])
def test_two_steps_of_every_experiment(name, tmp_path):
    """On random tensors of the true shape, with the experiment's own model, attention, loss and optimiser."""
    config = experiment.compose([f"experiment={name}"])
    data = random_data(config)
    recipe = Recipe(**{**experiment.resolved(config.recipe), "batch_size": 2})
    machine = Machine("cpu", progress=False, max_steps=2)
    fabric = make_fabric(machine, recipe)
    folder = RunFolder(tmp_path)
    folder.open({})
    model, task = experiment.build_model(config, data), experiment.build_task_for(config, data)
    weight = next(m for m in model.modules() if isinstance(m, MultiHeadAttention)).proj.weight
    before = weight.detach().clone()
    result = fit(fabric, folder, model, task, data, recipe, machine, seed=0)
    assert result.steps == 2
    assert result.short
    assert result.last["train_loss"] > 0
    assert not before.equal(weight)


def train(tmp_path, *arguments: str) -> subprocess.CompletedProcess:
    place = (f"output={tmp_path}/outputs", f"results={tmp_path}/results", "trainer=cpu", "data.limit=64")
    return subprocess.run(
        [sys.executable, "train.py", *place, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_a_run_from_start_to_table(tmp_path):
    """Train, run again, try another length, evaluate; the record says that it was short."""
    first = train(tmp_path, "recipe.epochs=2")
    assert first.returncode == 0, first.stderr
    folder = tmp_path / "outputs/digits_mita/seed0"
    assert {path.name for path in folder.iterdir()} == {
        "config.yaml", "metrics.jsonl", "last.ckpt", "best.ckpt", "record.json", "status",
    }  # fmt: skip
    record = json.loads((tmp_path / "results/records/digits_mita-seed0-short.json").read_text())
    assert record["short"] == ["limit=64"]
    assert (record["parameters"], record["epochs"], record["data"]["counts"]["train"]) == (206_026, 2, 64)
    table = (tmp_path / "results/tables/digits.md").read_text()
    assert "Short runs" in table and "- digits_mita, seed 0" in table

    again = train(tmp_path, "recipe.epochs=2")
    assert again.returncode == 0
    assert "This run is complete" in again.stdout

    longer = train(tmp_path, "recipe.epochs=3")
    assert longer.returncode == 2
    assert "recipe.epochs: 2 there, 3 now" in longer.stderr

    done = subprocess.run(
        [sys.executable, "evaluate.py", f"run={folder}", "weights=ema"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    values = json.loads((folder / "best.ema.json").read_text())["metrics"]
    assert values["test/top1"] == pytest.approx(record["metrics"]["test/ema_top1"])


def test_two_processes_write_one_run_folder(tmp_path):
    """lightning-hydra-template #393: a folder a rank. Under torchrun all ranks agree on one, and rank 0 writes."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "train.py", "trainer=cpu",
         "trainer.devices=2", "recipe.epochs=1", "data.limit=64", f"output={tmp_path}/outputs", f"results={tmp_path}/results"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert [path.name for path in (tmp_path / "outputs/digits_mita").iterdir()] == ["seed0"]
    assert done.stdout.count("test/top1") == 2  # the round's line and the end screen, once each
    record = json.loads((tmp_path / "outputs/digits_mita/seed0/record.json").read_text())
    assert record["num_devices"] == 2
