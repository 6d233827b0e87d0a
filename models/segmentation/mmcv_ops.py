"""mmsegmentation without a compiler: mmcv-lite has no compiled operators, but importing mmseg asks for some by name."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from filelock import FileLock

PACKAGES = ("mmseg", "mmengine", "mmcv", "ftfy", "regex")  # mmseg imports the last two without requiring them


def prepare_mmseg() -> None:
    """Call before the first import of mmseg, mmengine or mmcv.

    Processes take turns, for mmengine's yapf writes a cache that another process would read half-written.
    Without compiled operators `mmcv.ops` becomes a stand-in that has every name, and says what to install when one is used.

    Raises:
        ValueError: mmseg, or what it imports, is not installed or of a version that it refuses.
    """
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(
            f"segmentation needs {', '.join(missing)}; run make setup, or pip install -r requirements.txt (no compiler needed)"
        )
    # a number, as a user of a container may have no name; on Windows every user has a folder for temporary files
    user = os.getuid() if hasattr(os, "getuid") else "user"
    with FileLock(Path(tempfile.gettempdir()) / f"mmengine-of-{user}.lock"):
        importlib.import_module("mmengine")
    if importlib.util.find_spec("mmcv._ext") is None:
        sys.modules.setdefault("mmcv.ops", _Operators("mmcv.ops"))
    try:
        importlib.import_module("mmseg")
    except (AssertionError, ImportError) as error:  # it asserts the versions of mmcv and mmengine
        raise ValueError(
            f"mmsegmentation cannot be imported ({error}); pip install -r requirements.txt has versions that go together"
        ) from error


class _Operators(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(self, *args: Any, **options: Any) -> None:
            raise RuntimeError(
                f"mmcv.ops.{name} is one of mmcv's compiled operators, which mmcv-lite does not have; install the full mmcv "
                "(nothing in this project needs it)"
            )

        return type(name, (), {"__init__": refuse})  # a class, as mmseg also inherits from some and tests for others
