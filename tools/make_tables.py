"""Write the tables in results/tables from the records; with --check, say which are stale and exit with 1."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import experiment


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when a table is stale")
    parser.add_argument(
        "--results", type=Path, default=ROOT / "results", help="folder with records/ and tables/ (default: %(default)s)"
    )
    arguments = parser.parse_args(words)
    if not (arguments.results / "records").is_dir():
        parser.error(
            f"--results {arguments.results} has no folder records; give the folder that train.py calls results="
        )
    try:
        changed = experiment.write_tables(arguments.results, arguments.check)
    except ValueError as error:
        parser.error(str(error))
    for path in changed:
        print(f"{'stale' if arguments.check else 'written'}: {path}")
    if arguments.check and changed:
        print("Run: make tables")
    return int(arguments.check and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
