"""Generate or check a data set of Long Range Arena, or the long documents, and print what it is like.

listops and pathfinder are generated unless --root names a release; an interrupted run goes on where it was. text,
retrieval, image and longdoc are read from --root. The compact copy in --cache is what training uses.

  python tools/prepare_lra.py listops
  python tools/prepare_lra.py pathfinder --count 10000 1000 1000
  python tools/prepare_lra.py text --root ~/data/aclImdb
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import datasets
from datasets.data import Data
from datasets.lra import statistics
from datasets.lra.items import TokenItems

TASKS = ("listops", "pathfinder", "text", "retrieval", "image", "longdoc")
GENERATED = ("listops", "pathfinder")
SAMPLE = 20_000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--root", help="folder to read from")
    parser.add_argument("--cache", help="folder of the compact copies (default data/lra)")
    parser.add_argument("--partial", action="store_true", help="accept files of other sizes than the published ones")
    parser.add_argument("--seed", type=int, default=0, help="of generated data (default 0)")
    parser.add_argument("--workers", type=int, help="processes to generate with (default one a core)")
    parser.add_argument(
        "--count", type=int, nargs=3, metavar=("TRAIN", "DEV", "TEST"), help="examples to generate (default: all)"
    )
    parser.add_argument("--length", type=int, help="of a long document, in tokens (default 16384)")
    args = parser.parse_args(arguments)

    generates = args.task in GENERATED and args.root is None
    if args.count and not generates:
        parser.error("--count is of data that are generated: listops or pathfinder, without --root")
    options = {"root": args.root, "cache": args.cache}
    if generates:
        options |= {"generator_seed": args.seed, "workers": args.workers}
        options |= {"counts": tuple(args.count)} if args.count else {}
    else:
        options |= {"partial": args.partial}
    if args.length is not None:
        options |= {"length": args.length}
    begin = time.perf_counter()
    try:
        data = datasets.build(args.task, **options)
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(
            f"files of {args.task} cannot be read or written ({error}); give a --root that you may read, and a --cache that "
            "you may write"
        )
    print(f"{args.task}: ready after {time.perf_counter() - begin:.1f} s, fingerprint {data.fingerprint}")
    return report(data)


def report(data: Data) -> int:
    """Print what the data are like; 1 when a figure is outside its band or a target is wrong."""
    splits: dict[str, TokenItems] = {"train": data.train, **data.evaluate}
    store = data.train.store
    if data.short:
        print(f"not the full data: {data.short}")
    print(f"{'split':10} {'items':>8} {'length: mean':>14} {'median':>8} {'greatest':>9}   items of each class, %")
    lengths = np.diff(store.offsets)
    for split, items in splits.items():
        if not len(items):
            continue
        own = lengths[items.numbers if store.pairs is None else store.pairs[items.numbers].ravel()]
        shares = 100 * np.bincount(store.targets[items.numbers], minlength=data.num_classes) / len(items)
        print(
            f"{split:10} {len(items):8,} {own.mean():14.1f} {np.median(own):8.0f} {own.max():9,}   "
            + " ".join(f"{share:.1f}" for share in shares)
        )
    train, test = data.train.numbers, splits["test"].numbers
    if len(test):
        print(
            f"majority class on test: {statistics.majority_accuracy(store.targets[train], store.targets[test]):.1f} %"
        )
    sample = train[:SAMPLE]
    figures = []
    wrong = 0
    if data.name == "listops":
        if len(test):
            print(f"first token only on test: {statistics.first_token_accuracy(store, train, test):.1f} %")
        wrong = len(statistics.wrong_values(store, sample))
        print(f"targets that are not the value of their expression: {wrong} of {len(sample):,}")
        figures = statistics.listops_figures(store, sample)
    elif data.name == "pathfinder":
        figures = statistics.pathfinder_figures(store, sample)
    if figures:
        print(f"\n{'figure':34} {'here':>10} {'expected':>10}   band   ({len(sample):,} training examples)")
        print(*figures, sep="\n")
    return int(wrong > 0 or not all(figure.inside for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
