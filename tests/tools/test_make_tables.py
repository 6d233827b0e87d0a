"""A folder that is none, and files in it that are no records, are answered with the file and what is wrong."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import make_tables  # noqa: E402

import experiment  # noqa: E402


@pytest.mark.parametrize(
    ("place", "content", "answer"),
    [
        (None, "", "has no folder records"),
        ("records/x.json", '{"a": ', "x.json is not JSON"),
        ("records/x.json", '{"a": 1}', "x.json is not a record: missing ['best'"),
        ("records/x.json", "[]", "x.json is not a record"),
        ("controls/lra_text.json", "{", "lra_text.json is not JSON"),
        (
            "controls/lra_text.json",
            "[]",
            "lra_text.json is no control; write it again with tools/lra_controls.py lra_text",
        ),
    ],
)
@pytest.mark.parametrize("check", [[], ["--check"]])
def test_what_is_no_results_folder(place, content, answer, check, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(experiment, "cost_of", lambda config: (1, 1))
    monkeypatch.setattr(experiment, "compose", lambda overrides: None)
    if place:
        (tmp_path / "records").mkdir()
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(content)
    with pytest.raises(SystemExit, match="2"):
        make_tables.main(["--results", str(tmp_path), *check])
    assert answer in capsys.readouterr().err
    assert not (tmp_path / "tables").exists()
