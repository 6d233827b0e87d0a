import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from models.segmentation.mmcv_ops import prepare_mmseg

ROOT = Path(__file__).parents[2]
lite = pytest.mark.skipif(
    importlib.util.find_spec("mmcv") is None or importlib.util.find_spec("mmcv._ext") is not None,
    reason="mmcv-lite is not installed, or mmcv in full is",
)


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)


@lite
def test_mmseg_comes_with_mmcv_lite_and_says_what_it_lacks():
    pytest.importorskip("mmseg")
    prepare_mmseg()
    from mmcv import ops
    from mmseg.datasets import ADE20KDataset
    from mmseg.models import EncoderDecoder

    assert ADE20KDataset.METAINFO["classes"][0] == "wall" and EncoderDecoder.__name__ == "EncoderDecoder"
    with pytest.raises(RuntimeError, match=r"mmcv\.ops\.point_sample .* install the full mmcv"):
        ops.point_sample(None, None)
    assert not hasattr(ops, "__no_such_thing__")


def test_nothing_stands_in_for_operators_that_are_there():
    code = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name: True if name.startswith(("mmcv", "mmseg", "mmengine")) else find(name)
from models.segmentation.mmcv_ops import prepare_mmseg
prepare_mmseg()
assert "mmcv.ops" not in sys.modules
"""
    assert run(code).returncode == 0


def test_what_is_missing_is_named(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mmengine" else find(name))
    with pytest.raises(ValueError, match=r"mmengine.*requirements\.txt"):
        prepare_mmseg()
