import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from models.segmentation.mmcv_ops import prepare_mmseg

ROOT = Path(__file__).parents[2]


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)


def test_mmseg_comes_with_mmcv_lite_and_says_what_it_lacks(mmseg):
    if importlib.util.find_spec("mmcv._ext") is not None:
        pytest.skip("mmcv in full is installed")
    from mmcv import ops
    from mmseg.datasets import ADE20KDataset
    from mmseg.models import EncoderDecoder

    assert ADE20KDataset.METAINFO["classes"][0] == "wall" and EncoderDecoder.__name__ == "EncoderDecoder"
    with pytest.raises(RuntimeError, match=r"mmcv\.ops\.point_sample .* install the full mmcv"):
        ops.point_sample(None, None)
    assert not hasattr(ops, "__no_such_thing__")


def test_processes_that_start_together_do_not_read_each_others_half_written_caches(tmp_path, mmseg):
    """Each of them is the first to import mmengine for this user."""
    code = "from models.segmentation.mmcv_ops import prepare_mmseg; prepare_mmseg()"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    running = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for process in running:
        assert "Error" not in process.communicate()[1]
        assert process.returncode == 0
    assert list(tmp_path.glob("YAPF/**/*.pickle"))  # or there was nothing to take turns for


def test_a_user_without_a_name(tmp_path, mmseg):
    """As in `docker run --user`: no entry in the list of users, and no name in the environment."""
    code = """
import pwd
def unknown(uid):
    raise KeyError(uid)
pwd.getpwuid = unknown
from models.segmentation.mmcv_ops import prepare_mmseg
prepare_mmseg()
"""
    nameless = {
        name: value for name, value in os.environ.items() if name not in ("LOGNAME", "USER", "LNAME", "USERNAME")
    }
    environment = {**nameless, "HOME": str(tmp_path)}
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


def test_nothing_stands_in_for_operators_that_are_there(mmseg):
    code = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name: True if name.startswith(("mmcv", "mmseg", "mmengine")) else find(name)
from models.segmentation.mmcv_ops import prepare_mmseg
prepare_mmseg()
assert "mmcv.ops" not in sys.modules
"""
    assert run(code).returncode == 0


@pytest.mark.parametrize("name", ["mmengine", "ftfy"])
def test_what_is_missing_is_named(monkeypatch, name):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda asked: None if asked == name else find(asked))
    with pytest.raises(ValueError, match=rf"needs .*{name}.*requirements\.txt"):
        prepare_mmseg()


def test_versions_that_mmseg_refuses_are_a_users_error(mmseg):
    """It asserts them when it is imported, which would be a traceback."""
    code = """
import mmcv
mmcv.__version__ = "2.2.0"
from models.segmentation.mmcv_ops import prepare_mmseg
try:
    prepare_mmseg()
except ValueError as error:
    print(error)
"""
    said = run(code).stdout
    assert "MMCV==2.2.0 is used but incompatible" in said and "requirements.txt" in said
