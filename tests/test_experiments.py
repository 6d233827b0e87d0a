"""Runs through train.py's own parts: every experiment for two steps, and a run from start to table."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import experiment
import train
from mita import MultiHeadAttention
from mita.training import Machine, Recipe, Result, RunFolder, fit, make_fabric

from .random_items import random_data

ROOT = Path(__file__).parents[1]


SMALLER = {  # long documents and Seg-T at full size are below; Seg-B and Seg-L differ from Seg-S in numbers only
    "longdoc": ["data.length=1024"],
    "ade20k": ["data.crop_size=64", "model.pretrained=null", "task.stride=48"],
}
EXPERIMENTS = [name for name in experiment.groups()["experiment"] if not name.startswith(("ade20k_b", "ade20k_l"))]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_two_steps_of_every_experiment(name, tmp_path):
    """On random tensors of the true shape, with the experiment's own model, attention, loss and optimiser."""
    short = SMALLER.get(name.split("_")[0], [])
    config = experiment.compose([f"experiment={name}", *short])
    data = random_data(config)
    batch = 2 if len(data.input_size) == 3 else 1  # sequences are long
    recipe = Recipe(**{**experiment.resolved(config.recipe), "batch_size": batch})
    machine = Machine("cpu", progress=False, max_steps=2, max_batch_per_device=1)
    fabric = make_fabric(machine, recipe)
    folder = RunFolder(tmp_path)
    folder.open({})
    model = experiment.build_model(config, data)
    task = experiment.build_task_for(config, data, model)
    weight = next(m for m in model.modules() if isinstance(m, MultiHeadAttention)).proj.weight
    before = weight.detach().clone()
    result = fit(fabric, folder, model, task, data, recipe, machine, seed=0)
    assert result.steps == 2
    assert result.short
    assert result.last["train_loss"] > 0
    assert not before.equal(weight)


def run_train(tmp_path, *arguments: str) -> subprocess.CompletedProcess:
    place = (f"output={tmp_path}/outputs", f"results={tmp_path}/results", "trainer=cpu", "data.limit=64")
    return subprocess.run(
        [sys.executable, "train.py", *place, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_a_run_from_start_to_table(tmp_path):
    """Train, run again, try another length, evaluate; the record says that it was short."""
    first = run_train(tmp_path, "recipe.epochs=2")
    assert first.returncode == 0, first.stderr
    folder = tmp_path / "outputs/digits_mita/seed0"
    assert {path.name for path in folder.iterdir()} == {
        "config.yaml", "metrics.jsonl", "last.ckpt", "best.ckpt", "record.json", "status", "lock",
    }  # fmt: skip
    record = json.loads((tmp_path / "results/records/digits_mita-seed0-short.json").read_text())
    assert record["short"] == ["limit=64"]
    assert record["device"].startswith("cpu (") and "thread" in record["device"]
    assert (record["parameters"], record["epochs"], record["data"]["counts"]["train"]) == (206_026, 2, 64)
    table = (tmp_path / "results/tables/digits.md").read_text()
    assert "Short runs" in table and "- digits_mita, seed 0" in table

    again = run_train(tmp_path, "recipe.epochs=2")
    assert again.returncode == 0
    assert "This run is complete" in again.stdout

    longer = run_train(tmp_path, "recipe.epochs=3")
    assert longer.returncode == 2
    assert "recipe.epochs: 2 there, 3 now" in longer.stderr

    done = subprocess.run(
        [sys.executable, "evaluate.py", f"run={folder}", "weights=ema"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    values = json.loads((folder / "best.ema.json").read_text())["metrics"]
    assert values["test/top1"] == pytest.approx(record["metrics"]["test/ema_top1"])


def test_long_documents_at_full_length(tmp_path):
    """A step and an evaluation at 65,536 tokens, from files of the true form, in bounded memory (a narrow model)."""
    text = "Let G be a group. We show that it is free.\n" * 2000  # 86 kB: cut to 65,536 bytes
    for split, texts in {"train": [text, text[:999]], "validation": [text], "test": [text[:70_000]]}.items():
        lines = [json.dumps({"text": text, "label": number % 11}) for number, text in enumerate(texts)]
        (tmp_path / f"no_ref-{split}.jsonl").write_text("\n".join(lines))
    done = run_train(
        tmp_path, "experiment=longdoc_64k_mita", f"data.root={tmp_path}", f"data.cache={tmp_path}/cache", "data.partial=true",
        "model.embed_dim=8", "model.num_heads=1", "recipe.batch_size=2", "trainer.max_batch_per_device=1", "trainer.max_steps=1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "results/records/longdoc_64k_mita-seed0-short.json").read_text())
    assert record["metric"] == "test/top1" and record["best"]["metric"] == "dev/top1"
    assert record["steps"] == 1 and record["metrics"]["train_loss"] > 0 and "test/loss" in record["metrics"]
    assert record["peak_memory_mib"] < 2500


def test_a_run_of_other_settings_leaves_the_experiments_record(tmp_path, monkeypatch):
    """And so does a second run beside the first."""
    metrics = {"step": 1, "epoch": 1.0, "test/top1": 50.0}
    result = Result(
        best=metrics, last=metrics, tested={}, steps=1, epochs=1.0, steps_per_second=1.0, peak_memory_mib=1.0, hours=1.0
    )
    monkeypatch.setattr(train, "fit", lambda *_: result)
    place = [f"output={tmp_path}/outputs", f"results={tmp_path}/results", "trainer=cpu"]
    for overrides in ([], ["recipe.epochs=1", "resume=false"], ["resume=false"]):
        train.main([*place, *overrides])
    names = {path.name for path in (tmp_path / "results/records").iterdir()}
    assert names == {f"digits_mita-{name}.json" for name in ("seed0", "seed0-2-changed", "seed0-3")}
    assert "recipe.epochs = 1 in place of 60" in (tmp_path / "results/tables/digits.md").read_text()


def test_a_switch_is_in_the_record(tmp_path):
    """Legacy behaviours of the data and of the model, with generated ListOps of four short expressions a split."""
    done = run_train(
        tmp_path, "experiment=listops_short_mita", "data.limit=null", f"data.cache={tmp_path}/cache", "data.counts=[4,4,4]",
        "data.brackets_dropped=true", "model.pool_over_padding=true", "data.workers=1", "trainer.max_steps=1", "name=mine",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "results/records/mine-seed0-short.json").read_text())
    assert record["switches"] == {"brackets_dropped": True, "pool_over_padding": True}
    assert (record["experiment"], record["name"]) == ("listops_short_mita", "mine")
    assert "the weights of step 1" in done.stdout
    note = (tmp_path / "results/tables/table5_lra.md").read_text()
    assert "- mine, seed 0" in note and "data.brackets_dropped = True in place of False" in note


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
