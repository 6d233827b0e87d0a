"""Without a GPU the kernels are interpreted. Triton reads this when it is first imported, so it comes before all tests."""

import os
from importlib.util import find_spec

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def mmseg():
    """For tests that import mmsegmentation: prepared, or the test is skipped where it is not installed."""
    if find_spec("mmseg") is None:
        pytest.skip("mmsegmentation is not installed: pip install -r requirements.txt")
    from models.segmentation.mmcv_ops import prepare_mmseg

    prepare_mmseg()
