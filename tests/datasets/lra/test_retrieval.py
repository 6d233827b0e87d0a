"""AAN's pairs of papers: float labels, quotation marks, long fields, and files that cannot be used."""

import pytest
import torch

import datasets

NAMES = ("train", "eval", "test")
LONG = "w" * 200_000  # longer than a csv reader takes


def write(folder, lines):
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        (folder / f"new_aan_pairs.{name}.tsv").write_text(
            "".join(line + "\n" for line in lines[name]), encoding="utf-8"
        )


@pytest.fixture()
def tree(tmp_path):
    lines = {
        "train": [
            '1.0\tP1\tP2\t"A quote that never ends\tsecond',
            "0.0\tP1\tP3\t" + LONG + '\tth"ird',
            "1\tP2\tP3\ta\tb",
        ],
        "eval": ["0.0\tP4\tP2\tnaïve\tsecond"],
        "test": ["1.0\tP4\tP5\t\tempty before"],
    }
    write(tmp_path / "lra_release" / "lra_release" / "tsv_data", lines)
    return tmp_path


def build(tree, **options):
    return datasets.build("retrieval", root=str(tree), cache=str(tree / "cache"), partial=True, **options)


def texts(item):
    both = []
    for side in ("a", "b"):
        tokens, length = item[f"tokens_{side}"], item[f"length_{side}"]
        assert tokens.shape == (4096,) and (tokens[length:] == 0).all() and (tokens[:length] > 0).all()
        both.append(bytes((tokens[:length] - 1).tolist()).decode())
    return (*both, int(item["target"]))


def test_items(tree):
    data = build(tree)
    assert data.counts == {"train": 3, "dev": 1, "test": 1} and list(data.evaluate) == ["dev", "test"]
    assert data.input_size == (4096,) and data.num_classes == 2 and "3 of 147,086" in data.short
    assert set(data.train[0]) == {"tokens_a", "length_a", "tokens_b", "length_b", "target"}
    assert all(value.dtype == torch.int64 for value in data.train[0].values())
    assert [texts(item) for item in data.train] == [
        ('"A quote that never ends', "second", 1),
        ("w" * 4000, 'th"ird', 0),
        ("a", "b", 1),
    ]
    assert texts(data.evaluate["dev"][0]) == ("naïve", "second", 0)
    assert texts(data.evaluate["test"][0]) == ("", "empty before", 1)


def test_a_text_in_many_pairs_is_kept_once(tree):
    store = build(tree).train.store
    assert len(store.offsets) - 1 == 9 and store.pairs.shape == (5, 2)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1.0\tP1\tP2\tfirst", "line 1 has 4 columns where 5 are expected .* is the file cut"),
        ("1.0\tP1\tP2", "3 columns .* ids without texts"),
        ("yes\tP1\tP2\ta\tb", "the label is 'yes'"),
        ("0.5\tP1\tP2\ta\tb", "the label is '0.5'"),
        ("nan\tP1\tP2\ta\tb", "the label is 'nan'"),
        ("", "1 columns"),
    ],
)
def test_a_bad_line_gets_one_sentence(tree, line, message):
    good = ["1.0\tP1\tP2\ta\tb"]
    write(tree / "lra_release" / "lra_release" / "tsv_data", {"train": [line, *good], "eval": good, "test": good})
    with pytest.raises(ValueError, match=message) as error:
        build(tree)
    assert "\n" not in str(error.value)


def test_bad_folders(tree, tmp_path):
    with pytest.raises(ValueError, match="set data.root to the tsv_data folder"):
        datasets.build("retrieval")
    with pytest.raises(ValueError, match="found 3 pairs .* where 147,086 are expected"):
        datasets.build("retrieval", root=str(tree), cache=str(tree / "cache"))
    (tree / "lra_release" / "lra_release" / "tsv_data" / "new_aan_pairs.eval.tsv").unlink()
    with pytest.raises(ValueError, match=r"new_aan_pairs.eval.tsv was looked for"):
        build(tree)
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(ValueError, match=r"new_aan_pairs.train.tsv was looked for in .* holds nothing"):
        datasets.build("retrieval", root=str(tmp_path / "elsewhere"))
