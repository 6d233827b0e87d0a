"""What this machine can run: versions, GPUs, attention backends (and why one cannot run), optional packages, data folders."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import platform
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

OPTIONAL = {
    "triton": "GPU kernels; comes with torch on Linux",
    "flash_attn": "optional, never needed",
    "wandb": "logger=wandb",
    "mmseg": "segmentation",
    "pyarrow": "long documents in parquet",
}


def package(name: str) -> str:
    """The version of a package, or why it cannot be imported."""
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        return f"not usable: {error}"
    except Exception as error:  # a broken install must not break the doctor
        return f"broken: {type(error).__name__}: {error}"
    return getattr(module, "__version__", "installed")


def machine() -> list[tuple[str, str]]:
    """Python, torch and the devices."""
    import torch

    rows = [("python", platform.python_version()), ("torch", torch.__version__)]
    if not torch.cuda.is_available():
        return [*rows, ("gpu", "none that torch can use; everything runs on the CPU")]
    for i in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(i)
        rows.append((f"gpu {i}", f"{gpu.name}, sm_{gpu.major}{gpu.minor}, {gpu.total_memory / 2**30:.0f} GiB"))
    return rows


def backends() -> list[tuple[str, str]]:
    """For each attention backend, whether it runs DeiT-S's problem here, or why not."""
    import torch

    from mita.attention import Problem
    from mita.attention.backends import BACKENDS

    device = "cuda" if torch.cuda.is_available() else "cpu"
    problem = Problem(
        device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32, batch=1, heads=6, queries=197, keys=197,
        landmarks=25, head_dim=64, value_dim=64, top_k=25, experts_per_query=1, branches="both", masked=False, needs_grad=True,
    )  # fmt: skip
    return [
        (name, " ".join(backend.why_not(problem)) or f"runs: {backend.about}") for name, backend in BACKENDS.items()
    ]


def wandb_mode() -> str:
    """Where runs with logger=wandb go."""
    if os.environ.get("WANDB_MODE"):
        return f"WANDB_MODE={os.environ['WANDB_MODE']}"
    return "key in WANDB_API_KEY" if os.environ.get("WANDB_API_KEY") else "no WANDB_API_KEY: offline unless logged in"


def data_folder(name: str, root: str) -> str:
    """What the data set says of a folder."""
    import datasets

    try:
        data = datasets.build(name, root=root)
    except (ValueError, OSError) as error:
        return str(error)
    counts = ", ".join(f"{n:,} {split}" for split, n in data.counts.items())
    return f"{counts}, {data.num_classes} classes" + (f" ({data.short})" if data.short else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--imagenet", metavar="FOLDER", help="also look at an ImageNet folder")
    arguments = parser.parse_args()
    sections = {
        "machine": machine(),
        "attention backends": backends(),
        "packages": [(name, f"{package(name)}  ({use})") for name, use in OPTIONAL.items()]
        + [("wandb goes", wandb_mode())],
    }
    if arguments.imagenet:
        sections["data"] = [("imagenet", data_folder("imagenet", arguments.imagenet))]
    for title, rows in sections.items():
        print(title)
        print("\n".join(f"  {name:<12} {text}" for name, text in rows))


if __name__ == "__main__":
    main()
