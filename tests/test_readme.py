"""What the documents say is true: their Python runs, and the experiments, targets and files they name exist."""

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

import experiment
from mita.reporting.specs import TABLES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCUMENTS = [
    *ROOT.glob("*.md"), *ROOT.glob("scripts/*.sh"), *ROOT.glob("configs/experiment/*.yaml"), *ROOT.glob("results/tables/*.md"),
    ROOT / "train.py", ROOT / "evaluate.py", ROOT / "command_line.py", ROOT / "Makefile",
]  # fmt: skip
FAMILIES = r"(?:deit|ade20k)_[tsbl]|deit3_s|vit5_[sbl]|lra_[a-z]+|longdoc_\d+k|digit_scenes|digits"
compose = functools.cache(lambda name: experiment.compose([f"experiment={name}"]))


def named(text: str) -> set[str]:
    """Experiments that a text names: experiment=a,b, and words like deit_s_mita."""
    given = {name for names in re.findall(r"experiment=([a-z0-9_,]+)(?![\w.($<{])", text) for name in names.split(",")}
    words = re.findall(rf"\b(?:{FAMILIES})_[a-z_]+[a-z]\b", text)
    return {name for name in given | set(words) if name}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_named_experiment_composes(path):
    """s4 #127: documented experiment names that do not exist."""
    for name in named(path.read_text()):
        assert compose(name).name == name


def test_the_names_are_found():
    assert {"digits_mita", "digits_softmax", "deit_s_mita", "deit_s_mita_dwc_gate"} <= named(README)
    assert named("torchrun train.py experiment=no_such,digits_mita x=1 and deit_t_softmax") == {
        "no_such", "digits_mita", "deit_t_softmax",
    }  # fmt: skip


def test_readme_code_runs():
    """All blocks one after the other, as a reader would type them."""
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(blocks) == 3
    checks = [
        "assert o.shape == (2, 8, 1024, 64) and y.shape == (2, 197, 384)",
        "assert model(torch.rand(1, 3, 160, 256)).shape == (1, 1000)",
        "o.sum().backward()",
    ]
    subprocess.run([sys.executable, "-c", "\n".join([*blocks, *checks])], cwd=ROOT, check=True)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_named_files_and_targets_exist(document):
    text = (ROOT / document).read_text()
    links = re.findall(r"\]\(([\w./-]+)\)", text)
    paths = re.findall(r"`((?:mita|models|datasets|configs|tools|scripts|results|tests)/[\w./-]*)`", text)
    assert not [path for path in {*links, *paths} if not (ROOT / path).exists()]
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"(?:`|    )make ([a-z]+)", text)) <= targets


def table(*arguments: str) -> subprocess.CompletedProcess:
    command = ["bash", "scripts/reproduce_table.sh", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("number", ["2", "3", "4"])
def test_table_script_prints_a_command_a_row(number):
    done = table(number, "--gpus", "4", "--seeds", "0 1", "--", "trainer.max_batch_per_device=64")
    assert done.returncode == 0, done.stderr
    rows = next(spec.experiments for spec in TABLES if spec.name.startswith(f"table{number}_"))
    lines = done.stdout.splitlines()
    assert len(lines) == len(rows) * 2
    for row, line in zip(rows, lines[::2], strict=True):
        start, arguments = line.split(" train.py ")
        assert start == "torchrun --standalone --nproc_per_node 4"
        config = experiment.compose(arguments.split())
        assert (config.name, config.trainer.strategy, config.trainer.max_batch_per_device) == (row, "ddp", 64)
        assert config.data.root.startswith("/path/to/")


def test_table_script_on_one_gpu():
    done = table("3", "--gpus", "1", "--rows", "vit5_s_mita", "--data", "configs")
    assert done.stdout == f"python train.py experiment=vit5_s_mita trainer=gpu data.root={ROOT / 'configs'} seed=0\n"


@pytest.mark.parametrize(
    "arguments",
    [[], ["5"], ["2", "--run"], ["4", "--run", "--data", "no/such/folder"], ["2", "--gpus"], ["2", "--gpus", "0"],
     ["3", "--rows", "deit_s_mita"], ["2", "--wrong"]],
)  # fmt: skip
def test_table_script_refuses_what_it_cannot_do(arguments):
    done = table(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "--help" in done.stderr
