"""Figures from what was measured, into results/figures.

speed   the paper's Figure 5: samples a second relative to full attention over the length, its points beside ours
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import yaml


def speed(results: Path) -> Path:
    """Draw results/benchmarks/curve_*.json beside the reported points. Raises ValueError when nothing was measured."""
    measured = [json.loads(path.read_text()) for path in sorted((results / "benchmarks").glob("curve_*.json"))]
    if not measured:
        raise ValueError("No curve is measured yet: python tools/benchmark.py curve")
    reported = yaml.safe_load((ROOT / "results/paper/reported.yaml").read_text())["speed_curve"]

    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.hashsalt": "mita", "svg.fonttype": "none"}  # the same file from the same numbers
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    paper = sorted((int(label[:-1]) * 1024, ratio) for label, ratio in reported.items())
    axes.plot(*zip(*paper), "o--", color="tab:gray", label="paper, RTX 4090")
    for report in measured:
        points = [(row["N"], row["ratio"]) for row in report["rows"] if "ratio" in row]
        axes.plot(*zip(*points), "o-", label=f"measured, {report['machine']}")
    axes.axhline(1, color="black", linewidth=0.5)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlabel("tokens N (m k = N / 4)")
    axes.set_ylabel("samples per second, relative to full attention")
    axes.legend()
    path = results / "figures/speed_curve.svg"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    return path


FIGURES = {"speed": speed}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    arguments = parser.parse_args(words)
    try:
        print(f"written: {FIGURES[arguments.figure](arguments.results)}")
    except ValueError as error:
        raise SystemExit(f"figures: {error}") from None


if __name__ == "__main__":
    main()
