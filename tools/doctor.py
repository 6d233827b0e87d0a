"""What this machine can run: versions, GPUs, attention backends (and why one cannot run), optional packages, data folders."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

PACKAGES = {  # import name: (what it is for, how to get it)
    "torchvision": ("images", "make setup"),
    "timm": ("models, augmentation, optimisers", "make setup"),
    "lightning_fabric": ("devices, precision, DDP", "make setup"),
    "hydra": ("configurations", "make setup"),
    "sklearn": ("the digits", "make setup"),
    "triton": ("GPU kernels", "comes with torch on Linux"),
    "wandb": ("logger=wandb", "make setup"),
    "mmseg": ("segmentation", "pip install -r requirements.txt"),
    "pyarrow": ("long documents in parquet files", "pip install pyarrow"),
    "flash_attn": ("a backend on explicit request, never needed", "pip install flash-attn, with a CUDA compiler"),
}
FOLDERS = {  # data set: what --help says of its folder
    "imagenet": "holds train/ and val/",
    "ade20k": "ADEChallengeData2016, holds images/ and annotations/",
    "text": "IMDB's reviews, aclImdb",
    "retrieval": "AAN's pairs of papers, tsv_data",
    "image": "CIFAR-10, holds cifar-10-batches-py",
    "listops": "a ListOps release (generated without one)",
    "pathfinder": "a Pathfinder release (generated without one)",
}
Rows = list[tuple[str, str]]


def packages() -> Rows:
    """The version of every package, or why it cannot be used."""
    rows = []
    for name, (use, how) in PACKAGES.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = importlib.import_module(name)
            text = getattr(module, "__version__", "installed")
        except ModuleNotFoundError as error:
            text = f"not installed; {how}" if error.name == name else f"cannot be used: {error}"
        except Exception as error:  # mmseg raises an AssertionError for a version it does not like
            text = f"cannot be used: {type(error).__name__}: {error}"
        rows.append((name, f"{text}  ({use})"))
    return rows


def machine() -> Rows:
    """Python, torch and the devices."""
    rows = [("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")]
    import torch

    rows += [("torch", torch.__version__), ("cpu", f"{os.cpu_count()} cores, {torch.get_num_threads()} threads in use")]
    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        return [*rows, ("gpu", f"none that torch ({built}) can use; everything runs on the CPU")]
    for i in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(i)
        rows.append((f"gpu {i}", f"{gpu.name}, sm_{gpu.major}{gpu.minor}, {gpu.total_memory / 2**30:.0f} GiB"))
    return rows


def backends() -> Rows:
    """For each attention backend: a step of one DeiT-S layer, forward and backward, beside the reference; or why not."""
    import torch

    from mita import mita_attention
    from mita.attention import Problem
    from mita.attention.backends import BACKENDS
    from mita.attention.reference import reference_attention

    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 6, 197, 64, generator=generator).to(device, dtype).requires_grad_() for _ in range(3))
    landmarks = q.detach()[:, :, ::8]
    problem = Problem.of(
        q, k, v, landmarks, top_k=25, experts_per_query=1, branches="both", key_mask=None, landmark_mask=None
    )
    expected, _ = reference_attention(*(t.float() for t in (q, k, v, landmarks)), top_k=25)
    rows: Rows = [("(tried on)", f"{device}, {str(dtype).removeprefix('torch.')}, 197 tokens, 6 heads, m = k = 25")]
    for name, backend in BACKENDS.items():
        reasons = backend.why_not(problem)
        if reasons:
            rows.append((name, f"does not run: {' '.join(reasons)}"))
            continue
        try:
            o = mita_attention(q, k, v, landmarks, top_k=25, backend=name)
            o.sum().backward()
        except Exception as error:  # a kernel that fails to compile is what a doctor is asked about
            rows.append((name, f"FAILED: {type(error).__name__}: {error}"))
            continue
        apart = (o.float() - expected).abs().max().item()
        rows.append((name, f"runs: {backend.about} (differs from the equations by {apart:.0e})"))
    return rows


def wandb_mode() -> Rows:
    """Where runs with logger=wandb go."""
    if os.environ.get("WANDB_MODE"):
        return [("wandb runs", f"go where WANDB_MODE={os.environ['WANDB_MODE']} says")]
    key = "online, WANDB_API_KEY is set" if os.environ.get("WANDB_API_KEY") else "offline, unless `wandb login` was run"
    return [("wandb runs", key)]


def data_folder(name: str, root: str) -> Rows:
    """What a data set says of a folder."""
    import datasets

    try:
        data = datasets.build(name, root=root)
    except (ValueError, OSError) as error:
        return [(name, f"cannot be used: {error}")]
    counts = ", ".join(f"{n:,} {split}" for split, n in data.counts.items())
    return [(name, f"{counts}, {data.num_classes} classes" + (f" ({data.short})" if data.short else ""))]


def show(title: str, section: Callable[..., Rows], *arguments: str) -> None:
    """Print a section; a package that is missing or broken ends the section, not the doctor."""
    try:
        rows = section(*arguments)
    except Exception as error:
        rows = [("unknown", f"{type(error).__name__}: {error}; make setup installs what is needed")]
    if title:
        print(title)
    print("\n".join(f"  {name:<17} {text}" for name, text in rows), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, epilog="A data folder is read as training would read it.")
    for name, what in FOLDERS.items():
        parser.add_argument(f"--{name}", metavar="FOLDER", help=f"look at this folder: {what}")
    folders = {name: root for name, root in vars(parser.parse_args()).items() if root is not None}
    show("machine", machine)
    show("attention backends", backends)
    show("packages", packages)
    show("", wandb_mode)
    for number, (name, root) in enumerate(folders.items()):
        show("" if number else "data", data_folder, name, root)


if __name__ == "__main__":
    main()
