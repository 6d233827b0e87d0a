"""Table 5 says what the records say: accuracy, speed beside both kinds of standard attention, controls."""

import csv
import io
import json
from dataclasses import replace

import pytest

import experiment
from mita.reporting.records import record_name
from mita.reporting.specs import TABLES, TaskTable
from mita.reporting.tables import render_all

from .test_tables import COSTS, REPORTED, record

TABLE = next(table for table in TABLES if isinstance(table, TaskTable))


def run(name: str, seed: int, accuracy: float, speed: float, **options):
    base = replace(record(name.split(",")[0], seed, accuracy), name=name, steps_per_second=speed)
    return replace(base, **options)


def render(tmp_path, runs, controls=None, changes=lambda record: {}) -> tuple[str, dict]:
    for one in runs:
        one.save(tmp_path / "records" / record_name(one.name, f"seed{one.seed}", bool(one.short)))
    for name, values in (controls or {}).items():
        (tmp_path / "controls").mkdir(exist_ok=True)
        (tmp_path / "controls" / f"{name}.json").write_text(json.dumps(values))
    render_all(tmp_path, REPORTED, COSTS, changes)
    text = (tmp_path / "tables/table5_lra.csv").read_text()
    cells = {(row["row"], row["task"]): row for row in csv.DictReader(io.StringIO(text))}
    return (tmp_path / "tables/table5_lra.md").read_text(), cells


def test_accuracy_over_seeds_and_tasks(tmp_path):
    runs = [run(f"lra_{task}_mita", seed, 40.0 + seed, 8.0) for task in TABLE.tasks for seed in range(3)]
    text, cells = render(tmp_path, runs)
    cell = cells["MiTA", "listops"]
    assert (float(cell["measured"]), float(cell["sd"]), int(cell["seeds"])) == (41.0, 1.0, 3)
    assert float(cell["difference"]) == pytest.approx(41.0 - 37.20)
    assert "| MiTA | 41.00 ± 1.00 (3 seeds) | 37.20 (+3.80) |" in text
    assert "| 41.00 | 58.91 (-17.91) |" in text  # mean of the five tasks
    assert "| agent |  |  |  |  |  |  |  |  |  |  |  | 58.22 |" in text


def test_a_mean_needs_all_five_tasks(tmp_path):
    runs = [run(f"lra_{task}_mita", 0, 40.0, 8.0) for task in list(TABLE.tasks)[:4]]
    text, _ = render(tmp_path, runs)
    assert "|  | 73.26 |  | 58.91 |" in text


def test_speed_is_set_against_both_kinds_of_standard_attention(tmp_path):
    runs = [
        run("lra_text_mita", 0, 60.0, 8.0, hours=1.0),
        run("lra_text_softmax", 0, 60.0, 4.0, hours=2.0),
        run("lra_text,attention=softmax_naive", 0, 60.0, 0.5, hours=16.0),
        run("lra_image_mita", 0, 40.0, 8.0, device="another"),
        run("lra_image_softmax", 0, 40.0, 4.0),
    ]
    text, cells = render(tmp_path, runs)
    cell = cells["MiTA", "text"]
    assert (float(cell["times_fused"]), float(cell["times_naive"]), float(cell["reported_times"])) == (2.0, 16.0, 9.9)
    assert cells["MiTA", "image"]["times_fused"] == ""  # measured on another device
    assert "| MiTA | Text (4K) | 8.00 | 2.00 | 16.00 | 9.9 | 1.00 | 1 | 1 x cpu | 32-true |" in text


def test_hours_of_five_tasks(tmp_path):
    runs = [run(f"lra_{task}_mita", 0, 40.0, 8.0, hours=0.5) for task in TABLE.tasks]
    runs += [run(f"lra_{task}_softmax", 0, 40.0, 8.0, hours=1.0) for task in TABLE.tasks]
    text, _ = render(tmp_path, runs)
    assert "| MiTA | 2.50 | 2.00 |  | 2.4 | 4.4 |" in text
    assert "| standard, fused | 5.00 | 1.00 |  | 10.6 | 1.0 |" in text


def test_controls_and_the_published_spread(tmp_path):
    whole = {"majority": 17.0, "first_token": 36.5, "first_token_train": 36.6, "short": None}
    text, _ = render(tmp_path, [], {"lra_listops": whole, "lra_image": {"majority": 10.0, "short": "limit=3"}})
    assert "| majority class | 17.00 |  |  |  |  |" in text
    assert "| first token only | 36.50 |  |  |  |  |" in text
    assert "| standard attention, published | 37.10 to 38.37 | 61.95 to 65.02 |" in text


def test_short_runs_stand_beside_their_control(tmp_path):
    short = run("listops_short_mita", 0, 60.0, 8.0, short=["other rules"], data={"fingerprint": "a"})
    runs = [short, replace(short, seed=1, data={"fingerprint": "b"}), run("lra_text_mita", 0, 61.0, 1.0)]
    controls = {
        "listops_short_mita": {"majority": 12.0, "first_token": 27.9, "short": "other rules", "fingerprint": "a"}
    }
    switched = {"lra_text_mita": {"data.imdb_dev_is_test": (False, True)}}
    text, cells = render(tmp_path, runs, controls, lambda one: switched.get(one.name, {}))
    assert "- listops_short_mita, seed 0: 60.00, where the first token alone gives 27.90 (other rules)" in text
    assert "- listops_short_mita, seed 1: 60.00 (other rules)" in text  # other data: no control
    assert "- lra_text_mita, seed 0: 61.00 (data.imdb_dev_is_test = True in place of False)" in text
    assert cells["MiTA", "text"]["measured"] == ""


def test_changes_are_those_of_the_settings_that_matter():
    """The machine, the seed and keys that one of the two does not have are left out."""
    config = experiment.resolved(experiment.compose(["experiment=lra_text_softmax", "seed=3", "data.root=somewhere"]))
    config["trainer"]["max_batch_per_device"] = 7
    config["recipe"].pop("best_from")
    same = run("lra_text_softmax", 3, 60.0, 1.0, config=config)
    assert experiment.changes(same) == {}
    config["data"]["imdb_dev_is_test"] = True
    config["recipe"]["lr"] = 0.5
    assert experiment.changes(same) == {"data.imdb_dev_is_test": (False, True), "recipe.lr": (1e-4, 0.5)}
    assert experiment.changes(replace(same, experiment="gone")) == {"experiment": (None, "gone")}
    other = experiment.resolved(experiment.compose(["experiment=lra_text", "attention=mita"]))
    assert experiment.changes(run("lra_text,attention=mita", 0, 60.0, 1.0, config=other)) == {}


def test_every_run_of_the_table_is_an_experiment_there_is():
    known = experiment.groups()["experiment"]
    assert set(TABLE.experiments) <= set(known)


@pytest.mark.parametrize("row", TABLE.rows, ids=lambda row: row.label)
def test_every_row_can_be_run_under_its_name(row):
    for task in TABLE.tasks:
        name = row.run.format(task)
        chosen, *attention = name.split(",")
        assert experiment.compose([f"experiment={chosen}", *attention]).name == name
