"""Without a GPU the kernels are interpreted. Triton reads this when it is first imported, so it comes before all tests."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
