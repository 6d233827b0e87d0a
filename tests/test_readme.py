"""What the documents say is true: their Python runs, and every experiment they name exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import experiment

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    *ROOT.glob("*.md"), *ROOT.glob("scripts/*.sh"), *ROOT.glob("configs/experiment/*.yaml"), *ROOT.glob("results/tables/*.md"),
    ROOT / "train.py", ROOT / "evaluate.py", ROOT / "command_line.py",
]  # fmt: skip


def named(text: str) -> set[str]:
    """Experiments that a text names: experiment=a,b, and words like deit_s_mita."""
    given = {name for names in re.findall(r"experiment=([a-z0-9_,]+)(?![\w.(])", text) for name in names.split(",")}
    return {name for name in given | set(re.findall(r"\b(?:deit_[tsb]|digits)_[a-z_]+[a-z]\b", text)) if name}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_named_experiment_exists(path):
    """s4 #127: documented experiment names that do not exist."""
    missing = named(path.read_text()) - set(experiment.groups()["experiment"])
    assert not missing


def test_readme_names_what_there_is():
    assert {"digits_mita", "deit_s_mita", "deit_s_mita_dwc_gate"} <= named((ROOT / "README.md").read_text())


def test_readme_code_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert blocks
    for block in blocks:
        subprocess.run(
            [sys.executable, "-c", block + "\nassert o.shape == (2, 8, 1024, 64)\no.sum().backward()"],
            cwd=ROOT,
            check=True,
        )


def test_table_2_script_prints_a_command_a_row():
    done = subprocess.run(["bash", "scripts/reproduce_table2.sh"], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 9
    for line in lines:
        arguments = line.split("train.py ")[1].split()
        assert experiment.compose([a for a in arguments if not a.startswith("data.root")]).data.name == "imagenet"


def test_doctor_runs():
    done = subprocess.run(
        [sys.executable, "tools/doctor.py", "--imagenet", "no/such/folder"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"eager +runs", done.stdout)
    assert "no/such/folder" in done.stdout
