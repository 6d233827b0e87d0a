"""Tables say what the records say, and nothing that they do not."""

import csv
import dataclasses
import io
import json
import statistics
from dataclasses import replace

import pytest

from mita.reporting.records import Record, git_state, load_all, record_name
from mita.reporting.sheet import escape
from mita.reporting.specs import TABLES, Row, Table
from mita.reporting.tables import lookup, render_all

REPORTED = "results/paper/reported.yaml"
COSTS = {name: (5_717_416, 1_142_934_528) for table in TABLES if isinstance(table, Table) for name in table.experiments}


def render(folder, costs=COSTS, changes=lambda run: {}, check=False):
    return render_all(folder.parent, REPORTED, costs, changes, check)


def record(name: str, seed: int, top1: float, short: tuple[str, ...] = ()) -> Record:
    return Record(
        experiment=name, name=name, seed=seed, short=list(short), task="classification", metric="test/top1",
        metrics={"test/top1": top1}, best={"epoch": 1, "step": 2, "value": top1 + 0.5}, epochs=1, steps=2, steps_per_second=3.0,
        peak_memory_mib=1.0, hours=0.1, parameters=1, multiply_adds=1, config={}, commit=None, dirty=False, device="cpu",
        num_devices=1, precision="32-true", torch="2", versions={}, data={}, switches={}, date="2026-01-01",
    )  # fmt: skip


@pytest.fixture
def records(tmp_path):
    folder = tmp_path / "records"
    runs = [record("deit_t_mita", seed, top1) for seed, top1 in enumerate((70.0, 71.0, 73.0))]
    runs += [record("deit_t_softmax", 0, 72.5), record("deit_s_mita", 0, 1.0, ("stopped at step 2",))]
    runs.append(replace(record("deit_s_softmax", 0, 99.0), name="deit_s_softmax,attention=mita"))
    for run in runs:
        run.save(folder / record_name(run.name, f"seed{run.seed}", bool(run.short)))
    return folder


def rows(folder) -> dict[str, dict]:
    return {row["experiment"]: row for row in csv.DictReader(io.StringIO((folder / "table2_deit.csv").read_text()))}


def test_mean_and_sd_over_seeds_beside_what_is_reported(records, tmp_path):
    render(records)
    row = rows(tmp_path / "tables")["deit_t_mita"]
    assert float(row["measured"]) == statistics.fmean((70.0, 71.0, 73.0))
    assert float(row["sd"]) == pytest.approx(1.527525, abs=1e-6)
    assert (float(row["reported"]), int(row["seeds"])) == (71.1, 3)
    assert float(row["difference"]) == pytest.approx(71 + 1 / 3 - 71.1)
    text = (tmp_path / "tables/table2_deit.md").read_text()
    assert "71.33 ± 1.53 (3 seeds)" in text
    assert "| 72.50 (1 seed) | +0.30 |" in text


def test_short_and_overridden_runs_fill_no_cell(records, tmp_path):
    render(records)
    table = rows(tmp_path / "tables")
    assert table["deit_s_mita"]["measured"] == ""
    assert table["deit_s_softmax"]["measured"] == ""
    text = (tmp_path / "tables/table2_deit.md").read_text()
    assert "- deit_s_mita, seed 0: 1.00 (stopped at step 2)" in text
    assert "- deit_s_softmax,attention=mita, seed 0: 99.00 (no row of this table)" in text


def test_flops_have_their_own_difference(records, tmp_path):
    costs = {**COSTS, "deit_s_mita": (22_050_664, 4_377_384_960)}
    render(records, costs)
    row = rows(tmp_path / "tables")["deit_s_mita"]
    assert float(row["gflops_difference"]) == pytest.approx(4.37738496 - 4.4)
    assert "4.4 (-0.023)" in (tmp_path / "tables/table2_deit.md").read_text()


def test_what_the_release_reports_apart_from_the_table_is_beside_what_is_computed(records, tmp_path):
    """The model zoo's parameters, and its FLOPs of DeiT-Tiny."""
    render(records)
    row = rows(tmp_path / "tables")["deit_t_mita"]
    assert (float(row["reported_gflops"]), float(row["reported_parameters_m"])) == (1.1, 5.7)
    assert float(row["parameters_difference_m"]) == pytest.approx(0.017416)
    assert rows(tmp_path / "tables")["deit_t_softmax"]["reported_gflops"] == ""
    assert float(rows(tmp_path / "tables")["deit_s_mita"]["reported_parameters_m"]) == 22
    assert "| 5.72 | 5.7 (+0.02) | 1.1429 | 1.1 (+0.043) |" in (tmp_path / "tables/table2_deit.md").read_text()


def test_a_row_that_names_what_is_not_reported_is_refused():
    paper = {"part": {"columns": ["a", "top1"], "rows": [["x", 1.0]], "sizes": {"x": 2.0}}}
    table = Table("t", "T", "part", ())
    row = Row("x", "x", ("x",))
    assert lookup(paper, table, row, "top1") == 1.0 and lookup(paper, table, row, ("sizes", "x")) == 2.0
    assert lookup(paper, table, row, None) is None
    for wrong in (replace(row, names=("y",)), row):
        with pytest.raises(ValueError, match="reported.yaml has no"):
            lookup(paper, table, wrong, "top1" if wrong.names == ("y",) else ("sizes", "y"))


def test_a_run_of_other_settings_fills_no_cell_and_is_named(records, tmp_path):
    """A switch or a learning rate given on the command line leaves the run's name as it is."""
    changed = {"deit_t_softmax": {"recipe.lr": (0.001, 0.01)}}
    render(records, changes=lambda run: changed.get(run.name, {}))
    assert rows(tmp_path / "tables")["deit_t_softmax"]["measured"] == ""
    note = "- deit_t_softmax, seed 0: 72.50 (recipe.lr = 0.01 in place of 0.001)"
    assert note in (tmp_path / "tables/table2_deit.md").read_text()


def test_one_run_of_each_seed_fills_a_cell(records, tmp_path):
    """The latest; and none of another experiment that was given the row's name."""
    again = replace(record("deit_t_softmax", 0, 74.5), date="2026-01-02")
    again.save(records / record_name("deit_t_softmax", "seed0-2"))
    replace(record("deit_t_softmax", 1, 99.0), name="deit_t_mita").save(records / record_name("deit_t_mita", "seed3"))
    render(records)
    cells = rows(tmp_path / "tables")
    assert (cells["deit_t_softmax"]["measured"], cells["deit_t_softmax"]["seeds"]) == ("74.5", "1")
    assert cells["deit_t_mita"]["seeds"] == "3"
    text = (tmp_path / "tables/table2_deit.md").read_text()
    assert "- deit_t_softmax, seed 0: 72.50 (a later run of this seed fills the cell)" in text
    assert "- deit_t_mita, seed 1: 99.00 (a run of deit_t_softmax under another name)" in text


def test_check_names_what_is_stale_and_writes_nothing(records, tmp_path):
    out = tmp_path / "tables"
    assert len(render(records, check=True)) == 3 * len(TABLES)
    assert not out.exists()
    render(records)
    assert render(records, check=True) == []
    record("deit_s_mita", 0, 79.0).save(records / "new.json")
    assert {path.name for path in render(records, check=True)} == {
        "table2_deit.md", "table2_deit.csv", "table2_deit.tex"
    }  # fmt: skip


def test_latex_is_escaped(records, tmp_path):
    render(records)
    text = (tmp_path / "tables/table2_deit.tex").read_text()
    assert r"$\pm$" in text
    assert text.count(r"\\") == len(TABLES[0].rows) + 1


def test_a_record_comes_back_as_it_was(tmp_path):
    run = record("x", 0, 50.0)
    run.save(tmp_path / "x.json")
    assert load_all(tmp_path) == [run]
    assert record_name("x", "seed3") == "x-seed3.json"
    assert record_name("x", "seed3-2", short=True) == "x-seed3-2-short.json"
    assert record_name("x", "seed3", changed=True) == "x-seed3-changed.json"


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"name": "x", "extra": 1})])
def test_a_file_that_is_no_record_is_named(text, tmp_path):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(ValueError, match="bad.json"):
        load_all(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("short", "x"),
        ("seed", "0"),
        ("metric", "test/other"),
        ("metrics", []),
        ("best", {}),
        ("steps_per_second", None),
    ],
)
def test_a_value_that_no_table_can_read_is_refused_on_loading(key, value, tmp_path):
    values = dataclasses.asdict(record("x", 0, 50.0)) | {key: value}
    (tmp_path / "bad.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match="bad.json is not a record"):
        load_all(tmp_path)


def test_every_special_sign_of_latex_is_escaped():
    assert escape("a_b & 50% #1 ${x}") == r"a\_b \& 50\% \#1 \$\{x\}"
    assert escape("\\^~±") == r"\textbackslash{}\textasciicircum{}\textasciitilde{}$\pm$"


def test_git_state_is_a_commit_or_nothing():
    commit, dirty = git_state()
    assert commit is None or len(commit) == 40
    assert isinstance(dirty, bool)
