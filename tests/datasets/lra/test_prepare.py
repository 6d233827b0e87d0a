"""The command line that generates and checks."""

import importlib.util
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location(
    "prepare_lra", Path(__file__).resolve().parents[3] / "tools" / "prepare_lra.py"
)
prepare = importlib.util.module_from_spec(spec)
spec.loader.exec_module(prepare)


@pytest.mark.parametrize("task", ["listops", "pathfinder"])
def test_generates_and_prints_figures_in_their_bands(task, tmp_path, capsys):
    arguments = [task, "--cache", str(tmp_path), "--count", "400", "50", "50", "--workers", "1"]
    assert prepare.main(arguments) == 0
    out = capsys.readouterr().out
    assert "fingerprint" in out and "counts=[400, 50, 50]" in out and out.count("  ok") > 10 and "OUTSIDE" not in out
    assert ("not the value of their expression: 0 of 400" in out) == (task == "listops")


def test_wrong_values_are_an_error(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(prepare.statistics, "evaluate", lambda tokens: 0)
    assert prepare.main(["listops", "--cache", str(tmp_path), "--count", "50", "0", "0", "--workers", "1"]) == 1
    assert "not the value of their expression: 0 of" not in capsys.readouterr().out


def test_checks_a_folder(tmp_path, capsys):
    for name in ("train", "eval", "test"):
        (tmp_path / f"new_aan_pairs.{name}.tsv").write_text("1.0\tP1\tP2\tfirst\tsecond\n0.0\tP1\tP3\tfirst\tthird\n")
    arguments = ["retrieval", "--root", str(tmp_path), "--cache", str(tmp_path / "cache")]
    assert prepare.main([*arguments, "--partial"]) == 0
    assert "2 of 147,086" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        prepare.main(arguments)
    assert stop.value.code == 2 and "147,086 are expected" in capsys.readouterr().err


def test_a_wrong_option_gets_one_sentence(tmp_path, capsys):
    with pytest.raises(SystemExit):
        prepare.main(["listops", "--length", "10", "--cache", str(tmp_path)])
    assert "length" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        prepare.main(["text", "--count", "1", "1", "1", "--root", str(tmp_path)])
    assert "--count is of data that are generated" in capsys.readouterr().err


def test_a_cache_that_cannot_be_written_gets_one_sentence(tmp_path, capsys):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="2"):
        prepare.main(["listops", "--cache", str(tmp_path / "file" / "cache"), "--count", "1", "0", "0"])
    assert "files of listops cannot be read or written (" in capsys.readouterr().err
