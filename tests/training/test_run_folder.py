"""A folder keeps to its configuration."""

import json

import pytest

from mita.training import RunFolder

CONFIG = {
    "name": "x",
    "recipe": {"epochs": 4, "lr": 0.1},
    "trainer": {"devices": 1},
    "data": {"root": "a", "name": "digits"},
}


def test_resume_with_another_length_is_refused_with_both_named(tmp_path):
    """open_clip #413, timm #871: a run resumed with another number of epochs follows neither schedule."""
    RunFolder.choose(tmp_path, 0, CONFIG, resume=True).open(CONFIG)
    longer = {**CONFIG, "recipe": {"epochs": 8, "lr": 0.1}}
    with pytest.raises(ValueError, match=r"recipe.epochs: 4 there, 8 now") as error:
        RunFolder.choose(tmp_path, 0, longer, resume=True)
    assert "resume=false" in str(error.value)
    assert RunFolder.choose(tmp_path, 0, longer, resume=False).path == tmp_path / "seed0-2"


def test_a_run_that_failed_before_its_first_checkpoint_holds_no_place(tmp_path):
    folder = RunFolder.choose(tmp_path, 0, CONFIG, resume=True)
    folder.open(CONFIG)
    folder.status = "failed"
    mended = {**CONFIG, "recipe": {"epochs": 4, "lr": 0.01}}
    assert RunFolder.choose(tmp_path, 0, mended, resume=True).path == folder.path
    folder.last.touch()
    with pytest.raises(ValueError, match="recipe.lr: 0.1 there, 0.01 now"):
        RunFolder.choose(tmp_path, 0, mended, resume=True)


def test_the_machine_may_differ(tmp_path):
    folder = RunFolder.choose(tmp_path, 0, CONFIG, resume=True)
    folder.open(CONFIG)
    other = {**CONFIG, "trainer": {"devices": 4}, "data": {"root": "b", "name": "digits"}}
    assert RunFolder.choose(tmp_path, 0, other, resume=True).path == folder.path
    assert folder.status == "running"


def test_the_log_keeps_what_is_before_the_checkpoint(tmp_path):
    folder = RunFolder(tmp_path)
    folder.metrics.write_text("".join(json.dumps({"step": s}) + "\n" for s in (1, 2, 3)))
    with folder.metrics.open("a") as file:
        file.write('{"step": 2, "test/to')  # of a process that was killed
    folder.truncate_metrics(2)
    assert [json.loads(line)["step"] for line in folder.metrics.read_text().splitlines()] == [1, 2]


@pytest.mark.parametrize("text", ["", "a: [", "just words"])
def test_a_configuration_that_cannot_be_read_is_named(tmp_path, text):
    folder = RunFolder.choose(tmp_path, 0, CONFIG, resume=True)
    folder.open(CONFIG)
    (folder.path / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match="seed0/config.yaml is no configuration of a run; give resume=false"):
        RunFolder.choose(tmp_path, 0, CONFIG, resume=True)
    assert RunFolder.choose(tmp_path, 0, CONFIG, resume=False).path == tmp_path / "seed0-2"


def test_one_process_at_a_time(tmp_path):
    first, second = RunFolder(tmp_path), RunFolder(tmp_path)
    lock = first.lock()
    assert lock is not None and second.lock() is None
    lock.close()
    with second.lock():
        assert first.lock() is None
    assert first.lock() is not None
