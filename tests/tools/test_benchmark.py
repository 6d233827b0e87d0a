"""The benchmark's own arithmetic, its gate, and that each command goes through; what it measures is no test."""

import json
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import benchmark  # noqa: E402
from benchmarks import attention, gate, growth, timing  # noqa: E402


def row(N, ratio, **more):
    return {
        "backend": "eager",
        "dtype": "float32",
        "pass": "fwd",
        "N": N,
        "m": 9,
        "ratio": ratio,
        "noise": 0.02,
        **more,
    }


def report(*rows, **more):
    return {
        "command": "attention",
        "machine": "a",
        "device": "cpu",
        "vector_instructions": "AVX2",
        "rows": rows,
        **more,
    }


def test_ratio_of_medians_and_its_noise():
    base, other = timing.Times((4.0, 2.0, 3.0, 30.0)), timing.Times((1.0, 1.0, 1.0, 10.0))
    value, noise = timing.ratio(base, other)
    assert value == 3.5
    assert noise == pytest.approx((3.25 - 2.75) / 2 / 3.5)
    assert timing.ratio(timing.Times((2.0,)), timing.Times((4.0,))) == (0.5, 0.15)


def test_candidates_take_turns():
    seen = []
    times = timing.side_by_side({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, 3, "cpu")
    assert seen == ["a", "b"] * 4
    assert [len(t.seconds) for t in times.values()] == [3, 3]


def test_break_even_lies_where_the_ratio_crosses_one():
    lines = attention.break_even([row(100, 0.5), row(400, 2.0)])
    assert lines == ["eager, float32, fwd, m = k = 9: faster from N = 200 on"]
    assert "slower up to N = 400" in attention.break_even([row(100, 0.5), row(400, 0.9)])[0]
    assert "faster from N = 100, the shortest measured" in attention.break_even([row(100, 1.5)])[0]


def test_exponent_of_a_power_law():
    rows = [{"N": N, "mita_ms": 3 * N**1.25} for N in (10, 100, 1000)]
    assert growth.exponent(rows, "mita_ms") == pytest.approx(1.25)


def test_one_slow_case_fails_the_gate():
    stored = report(row(100, 1.0), row(400, 2.0, softmax_ms=8.0, error=1e-6))
    assert gate.slower(stored, report(row(100, 0.96), row(400, 1.91, softmax_ms=9.0, error=2e-6))) == []
    (line,) = gate.slower(stored, report(row(100, 1.5), row(400, 1.85)))
    assert "N 400" in line and "1.85x, stored 2.00x, noise 5%" in line
    assert gate.slower(stored, report(row(100, 1.0), row(400, 1.7, noise=0.2))) == []  # it cannot tell
    assert "no case" in gate.slower(stored, report(row(7, 1.0)))[0]
    both = report(row(100, 1.0), row(100, 1.0, backend="native"))
    assert gate.slower(both, report(row(100, 1.0))) == ["native: stored, but it did not run"]
    assert gate.slower(both, report(row(100, 1.0)), chosen=True) == []


def test_the_gate_compares_one_machine_with_itself():
    with pytest.raises(ValueError, match="The stored ratios are of machine 'a', this run is of 'b'"):
        gate.slower(report(row(100, 1.0)), report(row(100, 1.0), machine="b"))


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        ("attention --cases 64/4 --repeats 1 --backends eager", {"ratio", "noise", "peak_in_q", "error", "mita_ms"}),
        (
            "mechanisms --attention mita reformer --lengths 64 --heads 1 --repeats 1",
            {"mechanism_ms", "ratio", "rows_off"},
        ),
        ("growth --tokens 64 128 --landmarks 4 --repeats 1 --backends eager", {"mita_ms", "peak_mib"}),
        ("memory --tokens 128 --landmarks 4 --heads 1 --dim 8", {"peak_in_q"}),
        ("model --experiments digits_softmax digits_mita --batch 1 --repeats 1", {"items_per_second", "ratio"}),
        ("lra --tasks image --attention mita --repeats 1", {"steps_per_second", "ratio"}),
        ("curve --tokens 64 --repeats 1", {"ratio", "mita_samples_per_second", "softmax_batch"}),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else "",
)
def test_each_command_writes_its_rows(command, keys, tmp_path, monkeypatch):
    for module in (attention, growth):  # a process of its own for each is what `memory` shows
        monkeypatch.setattr(module, "peak_in_q", lambda *_: 1.0)
    path = tmp_path / "report.json"
    benchmark.main([*command.split(), "--device", "cpu", "--output", str(path)])
    found = json.loads(path.read_text())
    assert found["rows"] and all(keys <= row.keys() for row in found["rows"])
    assert {"commit", "dirty", "machine", "torch", "threads"} <= found.keys()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_one_sentence(capsys):
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(["attention", "--device", "cuda"])
    assert "torch sees no GPU here" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, "no report"])
def test_a_gate_needs_a_report(content, tmp_path):
    path = tmp_path / "a.json"
    if content:
        path.write_text(content)
    with pytest.raises(SystemExit, match="a.json, which is no report .*; write one without --gate"):
        benchmark.main(["attention", "--device", "cpu", "--gate", "--output", str(path)])
