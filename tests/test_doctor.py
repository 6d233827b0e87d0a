"""tools/doctor.py answers on any machine, whatever is missing from it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WITHOUT = """
import runpy, sys
sys.modules.update(dict.fromkeys({missing!r}))  # importing one of these now raises ModuleNotFoundError
sys.argv = ["doctor.py", "--imagenet", "no/such/folder"]
runpy.run_path("tools/doctor.py", run_name="__main__")
"""


def doctor(*missing: str) -> str:
    """What it prints beside a folder that is not there, without the packages named."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(missing=missing)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_backend_is_tried_and_every_folder_looked_at():
    said = doctor()
    difference = re.search(r"eager +runs: .*differs from the equations by ([\d.e-]+)\)", said)
    assert float(difference[1]) < 1e-5
    assert re.search(r"reference +runs", said)
    assert re.search(r"imagenet +cannot be used: .*no/such/folder", said)


@pytest.mark.parametrize(
    "missing", [("timm", "torchvision", "lightning_fabric", "hydra", "wandb", "mmseg", "triton"), ("torch",)]
)
def test_what_is_missing_is_said_and_ends_nothing(missing):
    said = doctor(*missing)
    assert {"machine", "attention backends", "packages", "data"} <= set(said.splitlines())
    if "torch" in missing:
        assert said.count("make setup installs what is needed") == 3  # machine, backends and data
    else:
        assert re.search(r"timm +not installed; make setup", said)
        assert re.search(r"eager +runs", said)  # the core needs torch alone


def test_why_a_backend_does_not_run_is_told():
    """With a backend that gives a reason, one that fails, and one that runs."""
    code = """
import sys, runpy
from mita.attention.backends import BACKENDS, Backend
BACKENDS["picky"] = Backend("picky", "", lambda problem: [f"There is no GPU, but heads of {problem.head_dim}."])
BACKENDS["broken"] = Backend("broken", "", lambda problem: [])
sys.argv = ["doctor.py"]
runpy.run_path("tools/doctor.py", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"picky +does not run: There is no GPU, but heads of 64\.", done.stdout)
    assert re.search(r"broken +FAILED: KeyError", done.stdout)
    assert re.search(r"eager +runs", done.stdout)


def test_help_names_the_folders():
    done = subprocess.run(
        [sys.executable, "tools/doctor.py", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "--imagenet FOLDER" in done.stdout
