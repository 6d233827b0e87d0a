"""The speed figure shows every measured point and every reported one, and nothing that was not measured."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import figures  # noqa: E402


def test_the_speed_figure(tmp_path, monkeypatch):
    rows = [{"N": 1024, "ratio": 0.5}, {"N": 4096, "ratio": 2.0}, {"N": 1 << 20, "mita_samples_per_second": 1.0}]
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks/curve_cpu.json").write_text(json.dumps({"machine": "A chip", "rows": rows}))
    drawn = []
    from matplotlib.axes import Axes

    plot = Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda self, x, y, *a, **k: (drawn.append((x, y)), plot(self, x, y, *a, **k))[1])
    figures.main(["speed", "--results", str(tmp_path)])
    assert drawn == [((65536, 262144, 1048576), (19, 56, 159)), ((1024, 4096), (0.5, 2.0))]
    first = (tmp_path / "figures/speed_curve.svg").read_text()
    assert "measured, A chip" in first and "paper, RTX 4090" in first
    figures.main(["speed", "--results", str(tmp_path)])
    assert (tmp_path / "figures/speed_curve.svg").read_text() == first


def test_no_figure_without_measurements(tmp_path):
    with pytest.raises(SystemExit, match="No curve is measured yet: python tools/benchmark.py curve"):
        figures.main(["speed", "--results", str(tmp_path)])
