"""Who may import whom (CONTRIBUTING, "Rooms"): data flows one way, and no room imports one above it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOP = {"mita", "models", "datasets", "experiment", "command_line", "train", "evaluate", "tools", "scripts", "tests"}
# folder or file -> top-level names of this project, and of restricted packages, that it may import
MAY = {
    "mita/attention": {"torch", "triton", "flash_attn"},
    "mita": {"mita"},
    "models": {"mita", "models"},
    "datasets/ade20k.py": {"models"},  # what makes mmseg importable is beside the segmenters
    "datasets": {"datasets", "mita"},
}
RESTRICTED = {  # package -> the only places that may import it
    "hydra": ("train.py", "evaluate.py", "experiment.py", "command_line.py", "tools/"),
    "wandb": ("mita/training/wandb_logger.py",),
    "triton": ("mita/attention/triton/",),
    "flash_attn": ("mita/attention/flash.py",),
    "mmseg": ("models/segmentation/", "datasets/ade20k.py"),
}


def sources():
    skip = {".venv", "outputs", "data", "results"}
    return [p for p in ROOT.rglob("*.py") if not skip & set(p.relative_to(ROOT).parts[:1])]


def imports(path: Path) -> set[str]:
    """Top-level names of the absolute imports of a file, wherever in it they stand."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module.split(".")[0])
    return names


def relative_imports(path: Path) -> set[str]:
    """Dotted targets of the relative imports of a file, from the root."""
    here = path.relative_to(ROOT).with_suffix("").parts
    return {
        ".".join((*here[: -node.level], *((node.module or "").split("."))))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level
    }


def test_rooms_import_only_what_is_below_them():
    wrong = []
    for path in sources():
        name = path.relative_to(ROOT).as_posix()
        if name.startswith("tests/"):
            continue
        found = imports(path)
        room = next((room for room in MAY if name == room or name.startswith(room + "/")), None)
        if room == "mita/attention":
            standard = set(sys.stdlib_module_names)
            wrong += [f"{name} imports {other}" for other in found - standard - MAY[room]]
            wrong += [
                f"{name} imports {other}" for other in relative_imports(path) if not other.startswith("mita.attention")
            ]
        elif room:
            wrong += [f"{name} imports {other}" for other in found & TOP - MAY[room]]
        wrong += [
            f"{name} imports {other}"
            for other in found & {"tools", "scripts", "tests"}
            if not name.startswith("tools/")
        ]
    assert not wrong, "\n".join(wrong)


def test_packages_stay_in_their_rooms():
    wrong = [
        f"{path.relative_to(ROOT)} imports {package}"
        for path in sources()
        for package in imports(path) & RESTRICTED.keys()
        if not path.relative_to(ROOT).as_posix().startswith((*RESTRICTED[package], "tests/"))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_reference_imports_no_other_implementation():
    assert relative_imports(ROOT / "mita/attention/reference.py") == {"mita.attention.problem"}


@pytest.mark.parametrize("package", ["timm", "hydra", "wandb", "sklearn"])
def test_the_core_needs_torch_alone(package):
    """On a machine with torch and triton only, `from mita.attention import mita_attention` works."""
    block = f"import sys; sys.modules[{package!r}] = None; from mita import mita_attention; assert {package!r} in sys.modules"
    subprocess.run([sys.executable, "-c", block], cwd=ROOT, check=True)
