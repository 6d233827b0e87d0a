"""arXiv-classification: jsonl, text and parquet files, the configuration that does not leak, any length."""

import json
import sys

import pytest
import torch

import datasets
from datasets.longdoc import CLASSES

DOCUMENTS = {
    "train": [("word " * 20_000, 0), ("ring theory", 0), ("naïve vision", 1), ("proof", 10)],
    "validation": [("a compiler", 6)],
    "test": [("an index", "cs.DS"), ("x" * 70_000, 9)],
}


def write_jsonl(folder, documents=DOCUMENTS):
    folder.mkdir(parents=True)
    for split, rows in documents.items():
        lines = [json.dumps({"text": text, "label": label}) + "\n" for text, label in rows]
        (folder / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")


def build(root, cache, **options):
    return datasets.build("longdoc", root=str(root), cache=str(cache), partial=True, **options)


@pytest.fixture()
def tree(tmp_path):
    write_jsonl(tmp_path / "arxiv" / "no_ref")
    write_jsonl(tmp_path / "arxiv" / "default", {split: [("[cs.LG]", 2)] for split in DOCUMENTS})
    return tmp_path / "arxiv"


def decode(item):
    tokens = item["tokens"][: item["length"]]
    assert (tokens > 0).all() and (item["tokens"][item["length"] :] == 0).all()
    return bytes((tokens - 1).tolist()).decode()


@pytest.mark.parametrize("length", [1, 16_384, 32_768, 65_536])
def test_items_of_any_length(tree, tmp_path, length):
    data = build(tree, tmp_path / "cache", length=length)
    assert data.input_size == (length,) and data.num_classes == 11 and data.switches == {}
    assert data.counts == {"train": 4, "dev": 1, "test": 2} and "4 of 28,388 train documents" in data.short
    item = data.train[0]
    assert item["tokens"].shape == (length,) and item["length"] == length
    assert all(value.dtype == torch.int64 for value in item.values())
    assert decode(item) == ("word " * 20_000)[:length]
    if length > 1:
        assert decode(data.train[2]) == "naïve vision" and decode(data.evaluate["dev"][0]) == "a compiler"
        assert [int(item["target"]) for item in data.evaluate["test"]] == [8, 9]


def test_the_configuration_that_leaks_is_a_switch(tree, tmp_path):
    data = build(tree, tmp_path / "cache", config="default")
    assert data.switches == {"label_in_text": True} and decode(data.train[0]) == "[cs.LG]"
    assert build(tree / "no_ref", tmp_path / "cache").counts["train"] == 4, "the folder of the configuration itself"


def test_text_folders(tmp_path):
    for split, rows in DOCUMENTS.items():
        for number, (text, label) in enumerate(rows):
            folder = tmp_path / "no_ref" / split / (label if isinstance(label, str) else CLASSES[label])
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    data = build(tmp_path, tmp_path / "cache")
    assert data.counts == {"train": 4, "dev": 1, "test": 2}
    assert {(decode(item)[:10], int(item["target"])) for item in data.train} == {
        ("word word ", 0), ("ring theor", 0), ("naïve visi", 1), ("proof", 10)
    }  # fmt: skip


@pytest.mark.parametrize("content", [b"one\r\ntwo\rthree\n", "naïve".encode("latin-1")])
def test_tokens_of_a_text_file_are_its_bytes(tmp_path, content):
    """Whatever its line ends and encoding, and whatever those of this machine."""
    for split in DOCUMENTS:
        folder = tmp_path / "no_ref" / split / CLASSES[0]
        folder.mkdir(parents=True)
        (folder / "a.txt").write_bytes(content)
    item = build(tmp_path, tmp_path / "cache").train[0]
    assert (item["tokens"][: item["length"]] - 1).tolist() == list(content)


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for split, rows in DOCUMENTS.items():
        folder = tmp_path / "no_ref"
        folder.mkdir(exist_ok=True)
        rows = [(text, label if isinstance(label, int) else CLASSES.index(label)) for text, label in rows]
        table = pyarrow.table({"text": [text for text, _ in rows], "label": [label for _, label in rows]})
        parquet.write_table(table, folder / f"{split}-00000-of-00001.parquet")
    data = build(tmp_path, tmp_path / "cache")
    assert data.counts == {"train": 4, "dev": 1, "test": 2} and decode(data.train[1]) == "ring theory"
    parquet.write_table(pyarrow.table({"text": ["a"]}), tmp_path / "no_ref" / "test-00000-of-00001.parquet")
    with pytest.raises(ValueError, match="has no column label"):
        build(tmp_path, tmp_path / "cache")
    (tmp_path / "no_ref" / "test-00000-of-00001.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match="not a readable parquet file"):
        build(tmp_path, tmp_path / "cache")


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    (tmp_path / "no_ref").mkdir()
    for split in DOCUMENTS:
        (tmp_path / "no_ref" / f"{split}.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match="needs the package pyarrow: pip install pyarrow"):
        build(tmp_path, tmp_path / "cache")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a", "label": 11}', "document 1: 11 is no class"),
        ('{"text": "a", "label": "cs.XX"}', "'cs.XX' is no class"),
        ('{"text": "a"}', 'has not the fields "text" and "label"'),
        ('{"text": "a", "lab', "line 1 is not a JSON object; is the file cut"),
        ("[1]", "has not the fields"),
    ],
)
def test_a_bad_document_gets_one_sentence(tree, tmp_path, line, message):
    (tree / "no_ref" / "train.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=message) as error:
        build(tree, tmp_path / "cache")
    assert "\n" not in str(error.value)


def test_bad_folders_and_options(tree, tmp_path):
    with pytest.raises(ValueError, match="set data.root to a copy"):
        datasets.build("longdoc")
    with pytest.raises(ValueError, match="data.config='noref'"):
        build(tree, tmp_path / "cache", config="noref")
    with pytest.raises(ValueError, match="data.length=0"):
        build(tree, tmp_path / "cache", length=0)
    with pytest.raises(ValueError, match="not a folder"):
        build(tree / "nowhere", tmp_path / "cache")
    with pytest.raises(ValueError, match="found 4 train documents .* where 28,388 are expected"):
        datasets.build("longdoc", root=str(tree), cache=str(tmp_path / "cache"))
    (tree / "no_ref" / "test.jsonl").unlink()
    with pytest.raises(ValueError, match="1 .jsonl of train, 1 .jsonl of dev, and 3 files of others"):
        build(tree, tmp_path / "cache")
