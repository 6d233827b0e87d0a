"""What can be scored on a Long Range Arena task without reading a sequence: the controls under Table 5.

Writes results/controls/EXPERIMENT.json: the test accuracy of the most frequent class of the training set and, for ListOps,
of the best guess from the first token, the outermost operator (on the training set as well, where chance moves it less).
Generated data are generated if they are not there yet.

  python tools/lra_controls.py lra_listops
  python tools/lra_controls.py lra_text data.root=/path/to/aclImdb
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import experiment
from datasets import Data
from datasets.lra.statistics import first_token_accuracy, majority_accuracy


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", help="its data are measured")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as for train.py: data.root=...")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="default: %(default)s")
    args = parser.parse_args(arguments)
    try:
        data = experiment.build_data(experiment.compose([f"experiment={args.experiment}", *args.overrides]))
        values = controls(data)
    except ValueError as error:
        parser.error(str(error))
    path = args.results / "controls" / f"{args.experiment}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=1) + "\n")
    print(json.dumps(values, indent=1), f"written: {path}", sep="\n")
    return 0


def controls(data: Data) -> dict:
    """The accuracies in per cent, and what data they are of.

    Raises ValueError for data that are not whole token sequences with a test split.
    """
    if not hasattr(data.train, "store") or "test" not in data.evaluate:
        raise ValueError(f"{data.name} has no controls; give an experiment of Long Range Arena, without data.limit")
    store, train, test = data.train.store, data.train.numbers, data.evaluate["test"].numbers
    values = {"majority": majority_accuracy(store.targets[train], store.targets[test])}
    if data.name == "listops":
        values["first_token"] = first_token_accuracy(store, train, test)
        values["first_token_train"] = first_token_accuracy(store, train, train)
    return {**values, "data": data.name, "fingerprint": data.fingerprint, "counts": data.counts, "short": data.short}


if __name__ == "__main__":
    sys.exit(main())
