"""ListOps: the rules, the values by another evaluator, the statistics, and files in the published form."""

import pickle
import statistics as median_of
from pathlib import Path

import numpy as np
import pytest
import torch

import datasets
from datasets.lra import expressions, generate, store
from datasets.lra import statistics as figures_of
from datasets.lra.expressions import SYMBOLS, TOKENS

SMALL = {"counts": (800, 100, 100), "workers": 1}
FOLDER = "lra_release/lra_release/listops-1000"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def data(cache):
    return datasets.build("listops", cache=cache, **SMALL)


def sequences(dataset):
    return [item["tokens"][: item["length"]].tolist() for item in dataset]


def python_value(tokens):
    """The value by Python's own functions: the expression as text, evaluated."""
    calls = {"[MIN": "min((", "[MAX": "max((", "[MED": "med((", "[SM": "sm((", "]": ")),"}
    text = "".join(calls.get(SYMBOLS[token], SYMBOLS[token] + ",") for token in tokens)
    return eval(text, {"med": lambda x: int(median_of.median(x)), "sm": lambda x: sum(x) % 10})[0]


def published(tokens):
    """An expression as the published files print it: one pair of parentheses for every application."""
    stack = [[]]
    for symbol in (SYMBOLS[token] for token in tokens):
        if symbol.startswith("["):
            stack.append([symbol])
        elif symbol == "]":
            text, *arguments = stack.pop()
            for argument in [*arguments, "]"]:
                text = f"( {text} {argument} )"
            stack[-1].append(text)
        else:
            stack[-1].append(symbol)
    return stack[0][0]


def release(root, lines, sizes=(3, 2, 2), folder=FOLDER):
    """A release tree of `lines`, [(expression, value)], written with the line ends of Python's csv module."""
    path = Path(root) / folder
    path.mkdir(parents=True)
    lines = iter(lines)
    for name, size in zip(("train", "val", "test"), sizes):
        rows = ["Source\tTarget", *("\t".join(map(str, next(lines))) for _ in range(size))]
        (path / f"basic_{name}.tsv").write_bytes("".join(row + "\r\n" for row in rows).encode())
    return path


# what is generated


def test_items(data):
    assert data.counts == {"train": 800, "dev": 100, "test": 100} and list(data.evaluate) == ["dev", "test"]
    assert data.input_size == (2048,) and data.num_classes == 10 and data.switches == {}
    assert "counts=[800, 100, 100]" in data.short
    item = data.train[3]
    assert set(item) == {"tokens", "length", "target"}
    assert item["tokens"].shape == (2048,) and all(value.dtype == torch.int64 for value in item.values())
    assert (item["tokens"][: item["length"]] > 0).all() and (item["tokens"][item["length"] :] == 0).all()
    batch = next(iter(torch.utils.data.DataLoader(data.train, batch_size=4)))
    assert batch["tokens"].shape == (4, 2048) and batch["length"].shape == batch["target"].shape == (4,)


def test_a_seed_stands_for_the_same_expressions_everywhere(data):
    """Another fingerprint means other data: then `listops.GENERATOR` must go up, and records cannot be compared."""
    assert data.fingerprint == "2eb39e879f59"


def test_targets_are_values_by_pythons_evaluation(data):
    for part in (data.train, *data.evaluate.values()):
        for tokens, item in zip(sequences(part), part):
            assert python_value(tokens) == expressions.evaluate(tokens) == item["target"]


def test_lengths_depth_arity_and_no_repetition(data):
    every = [tuple(tokens) for part in (data.train, *data.evaluate.values()) for tokens in sequences(part)]
    assert len(set(every)) == 1000
    for tokens in every:
        assert 500 < len(tokens) < 2000
        arity, deepest, stack = [], 0, []
        for symbol in (SYMBOLS[token] for token in tokens):
            if symbol == "]":
                arity.append(stack.pop())
            if stack and not symbol.startswith("["):
                stack[-1] += 1
            if symbol.startswith("["):
                stack.append(0)
                deepest = max(deepest, len(stack))
        assert min(arity) >= 2 and max(arity) <= 10 and deepest <= 9


def test_statistics_lie_in_the_published_bands(data):
    figures = figures_of.listops_figures(data.train.store, data.train.numbers)
    assert len(figures) > 20 and [str(figure) for figure in figures if not figure.inside] == []


def test_a_figure_outside_its_band_is_seen():
    assert figures_of.figure("x", 10.0, 10.0, 1.0, 100, 100, 0.0).inside
    assert not figures_of.figure("x", 10.6, 10.0, 1.0, 100, 100, 0.0).inside


def test_controls(data):
    """What a predictor scores that sees the root operator only: about 36.5 %, and 17 % for the majority."""
    numbers = data.train.numbers
    store = data.train.store
    assert 31 < figures_of.first_token_accuracy(store, numbers, numbers) < 42
    assert 13 < figures_of.majority_accuracy(store.targets[numbers], store.targets[numbers]) < 21


def test_the_seed_of_training_changes_nothing_and_that_of_the_generator_does(data, cache):
    same = datasets.build("listops", cache=cache, seed=5, **SMALL)
    other = datasets.build("listops", cache=cache, generator_seed=1, counts=(20, 0, 0), workers=1)
    assert same.fingerprint == data.fingerprint
    assert sequences(other.train) != sequences(data.train)[:20]


def test_workers_change_nothing_and_a_larger_set_begins_with_a_smaller(data, cache):
    counts = {"counts": (1500, 300, 200)}
    two = datasets.build("listops", cache=cache, workers=2, **counts)
    one = datasets.build("listops", cache=cache + "/other", workers=1, **counts)
    assert one.fingerprint == two.fingerprint != data.fingerprint
    assert sequences(two.train)[:800] == sequences(data.train)


def test_an_interrupted_generation_goes_on(tmp_path, monkeypatch, data):
    rules = {"counts": (2500, 0, 0), "workers": 1, "cache": str(tmp_path)}
    drawn = []
    save = generate.np.savez

    def savez(path, **arrays):
        if len(drawn) == 2:
            raise KeyboardInterrupt
        drawn.append(path.name)
        save(path, **arrays)

    monkeypatch.setattr(generate.np, "savez", savez)
    with pytest.raises(KeyboardInterrupt):
        datasets.build("listops", **rules)
    assert len(drawn) == 2
    again = []
    monkeypatch.setattr(generate.np, "savez", lambda path, **arrays: (again.append(path.name), save(path, **arrays)))
    whole = datasets.build("listops", **rules)
    assert len(again) == 1 and not set(again) & set(drawn)
    assert whole.counts["train"] == 2500 and sequences(whole.train)[:800] == sequences(data.train)
    assert not list(tmp_path.glob("*.unfinished"))


def test_what_is_there_is_not_made_again(data, cache, monkeypatch):
    monkeypatch.setattr(generate, "_made", None)
    assert datasets.build("listops", cache=cache, **SMALL).fingerprint == data.fingerprint


def test_a_store_reaches_a_loaders_worker_as_a_path(data):
    sent = pickle.dumps(data.train)
    assert len(sent) < 20_000 and pickle.loads(sent)[7]["tokens"].equal(data.train[7]["tokens"])


def test_short_expressions(cache):
    data = datasets.build("listops", cache=cache, min_length=5, max_length=60, counts=(300, 50, 50), workers=1)
    every = [tuple(tokens) for part in (data.train, *data.evaluate.values()) for tokens in sequences(part)]
    assert data.input_size == (64,) and "other rules" in data.short
    assert len(set(every)) == 400 and all(5 < len(tokens) < 60 for tokens in every)
    assert all(python_value(tokens) == item["target"] for tokens, item in zip(sequences(data.train), data.train))


def test_brackets_dropped_is_a_switch(data, cache):
    legacy = datasets.build("listops", cache=cache, brackets_dropped=True, **SMALL)
    assert legacy.switches == {"brackets_dropped": True}
    without = [[token for token in tokens if token != TOKENS["]"]] for tokens in sequences(data.train)]
    assert sequences(legacy.train) == without


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"counts": (0, 1, 1)}, "the first at least 1"),
        ({"counts": (5, 1)}, "three numbers"),
        ({"workers": 0}, "data.workers=0"),
        ({"min_length": 10, "max_length": 11}, "leaves none"),
        ({"max_args": 1}, "max_args"),
        ({"min_length": 3, "max_length": 5, "max_depth": 2, "max_args": 2, "counts": (500, 0, 0)}, "no more than 400"),
        ({"min_length": 300, "max_length": 400, "max_depth": 2}, "none of .* expressions was kept"),
        ({"limit": 0}, "limit"),
    ],
)
def test_options_without_a_meaning(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        datasets.build("listops", cache=str(tmp_path), **{"counts": (5, 5, 5), "workers": 1, **options})


@pytest.mark.parametrize("tokens", [[], [1, 1], [11, 1], [11, 15], [15], [11, 1, 15, 1], [16], [0]])
def test_evaluate_refuses_what_is_no_expression(tokens):
    with pytest.raises(ValueError, match="ListOps expression"):
        expressions.evaluate(tokens)


@pytest.mark.parametrize(
    ("text", "value"),
    [("[MED 1 2 ]", 1), ("[MED 9 1 4 ]", 4), ("[SM 9 8 7 ]", 4), ("[MIN [MAX 3 4 ] 8 ]", 4), ("7", 7)],
)
def test_evaluate(text, value):
    assert expressions.evaluate([TOKENS[symbol] for symbol in text.split()]) == value


# what is read


def test_a_release_reads_as_it_was_generated(data, tmp_path):
    """Parentheses go, brackets stay, nothing is cut, although the printed text has more than 2,000 symbols."""
    items = [(published(tokens), int(item["target"])) for tokens, item in zip(sequences(data.train), data.train)][:7]
    assert max(len(text.split()) for text, _ in items) > 2000
    release(tmp_path, items)
    read = datasets.build("listops", root=str(tmp_path), cache=str(tmp_path / "cache"), partial=True)
    assert read.counts == {"train": 3, "dev": 2, "test": 2} and read.input_size == (2048,)
    assert sequences(read.train) + sequences(read.evaluate["dev"]) == sequences(data.train)[:5]
    assert [int(item["target"]) for item in read.evaluate["test"]] == [value for _, value in items[5:]]
    assert "3 of 96,000" in read.short


def test_a_changed_file_is_read_again(tmp_path):
    path = release(tmp_path, [("5", 5)] * 7)
    options = {"root": str(tmp_path), "cache": str(tmp_path / "cache"), "partial": True}
    before = datasets.build("listops", **options)
    (path / "basic_train.tsv").write_bytes(b"Source\tTarget\r\n( ( ( [SM 6 ) 7 ) ] )\t3\r\n")
    after = datasets.build("listops", **options)
    assert before.fingerprint != after.fingerprint and len(after.train) == 1


def test_a_wrong_root_says_what_was_looked_for_and_found(tmp_path):
    (tmp_path / "pathfinder32").mkdir()
    with pytest.raises(ValueError, match=r"basic_train.tsv.*was looked for in .* holds pathfinder32/"):
        datasets.build("listops", root=str(tmp_path))
    with pytest.raises(ValueError, match="not a folder"):
        datasets.build("listops", root=str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("Source\tTarget\r\n( ( ( [SM 6 ) 7 ) ] )\r\n", "line 2 is not an expression, a tab and a digit"),
        ("Source\tTarget\r\n5\t5\r\n( ( ( [SU", "line 3 .* is the file cut"),
        ("Source\tTarget\r\n( ( ( [AVG 6 ) 7 ) ] )\t6\r\n", r"unknown token '\[AVG'"),
        ("Source\tTarget\r\n( ( ( [SM 16 ) 7 ) ] )\t3\r\n", "unknown token '16'"),
        ("Source\tTarget\r\n" + "5 " * 2000 + "\t5\r\n", "2000 tokens"),
        ("5\t5\r\n", "must begin with the line"),
        ("", "must begin with the line"),
        ("Source\tTarget\r\n5\t12\r\n", "a digit"),
    ],
)
def test_a_bad_file_gets_one_sentence(tmp_path, content, message):
    path = release(tmp_path, [("5", 5)] * 7)
    (path / "basic_train.tsv").write_bytes(content.encode())
    with pytest.raises(ValueError, match=message) as error:
        datasets.build("listops", root=str(tmp_path), cache=str(tmp_path / "cache"), partial=True)
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "cache").glob("*.unfinished"))


def test_missing_and_short_files(tmp_path):
    path = release(tmp_path, [("5", 5)] * 7)
    with pytest.raises(ValueError, match="found 3 expressions .* where 96,000 are expected"):
        datasets.build("listops", root=str(tmp_path), cache=str(tmp_path / "cache"))
    (path / "basic_val.tsv").unlink()
    with pytest.raises(ValueError, match="basic_val.tsv was looked for"):
        datasets.build("listops", root=str(tmp_path), cache=str(tmp_path / "cache"), partial=True)


def test_rules_are_not_for_files(tmp_path):
    release(tmp_path, [("5", 5)] * 7)
    with pytest.raises(ValueError, match="for generated ListOps"):
        datasets.build("listops", root=str(tmp_path), max_depth=3)


def test_the_default_cache_lies_in_the_repository():
    assert Path(__file__).resolve().parents[3] / "data" / "lra" == store.DEFAULT_CACHE
    assert np.array_equal(np.unique(list(TOKENS.values())), np.arange(16))
