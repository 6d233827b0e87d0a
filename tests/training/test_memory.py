import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mita.training.memory import STATUS, peak_memory_mib

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not STATUS.exists(), reason="Linux only")
def test_peak_is_this_process_own():
    """Not that of the process that started it, which getrusage inherits when the child is forked."""
    code = "import torch; from mita.training.memory import peak_memory_mib as p; print(p(torch.device('cpu')))"
    alone = float(
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    )
    ballast = torch.ones(2**28)  # 1 GiB
    before = peak_memory_mib(torch.device("cpu"))
    assert before > 1024
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, preexec_fn=lambda: None
    )
    assert ballast[0] == 1 and float(child.stdout) < alone + 300
