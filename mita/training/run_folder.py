"""One folder a run: what it was asked for, how far it is, what came out."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import IO

import torch
import yaml

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None

VOLATILE = ("experiment", "trainer", "logger", "data.root", "data.cache", "data.workers", "resume", "results", "output")


class RunFolder:
    """config.yaml metrics.jsonl last.ckpt best.ckpt record.json status lock, in a folder that follows from the configuration.

    Only rank 0 calls what writes.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.last, self.best = self.path / "last.ckpt", self.path / "best.ckpt"
        self.metrics, self.record_path = self.path / "metrics.jsonl", self.path / "record.json"
        self._config, self._status = self.path / "config.yaml", self.path / "status"

    @classmethod
    def choose(cls, root: Path | str, seed: int, config: dict, resume: bool) -> RunFolder:
        """The folder of a configuration under `root`: seed<seed>, or the next free seed<seed>-2, -3, ... with resume=false.

        A folder whose run failed before its first checkpoint holds nothing to go on with, and is taken as a new one.

        Raises ValueError when the folder holds a run of another configuration, with the differences, or none that can be read.
        """
        folder = cls(Path(root) / f"seed{seed}")
        if not resume:
            number = 2
            while folder._config.exists():
                folder = cls(Path(root) / f"seed{seed}-{number}")
                number += 1
            return folder
        if folder._config.exists() and (folder.last.exists() or folder.status != "failed"):
            held = folder._held()
            different = differences(held, config)
            if different:
                raise ValueError(
                    f"{folder.path} holds a run of another configuration:\n"
                    + "\n".join(f"  {key}: {a!r} there, {b!r} now" for key, (a, b) in different.items())
                    + "\nGive the same values to go on with it, resume=false for a new folder, or name=... for another name."
                )
        return folder

    def open(self, config: dict) -> None:
        """Make the folder and mark it as running."""
        self.path.mkdir(parents=True, exist_ok=True)
        _write(self._config, yaml.safe_dump(config, sort_keys=False))
        self.status = "running"

    def lock(self) -> IO | None:
        """The folder for this process alone, until what is returned is closed; None when another process trains in it.

        Where files cannot be locked (Windows, some network disks), nothing is held and nothing refused.
        """
        file = (self.path / "lock").open("w")
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        except OSError:
            pass
        return file

    @property
    def status(self) -> str | None:
        """running, failed, short (stopped early on request), done, or None for a new folder."""
        return self._status.read_text().strip() if self._status.exists() else None

    @status.setter
    def status(self, value: str) -> None:
        self._status.write_text(value + "\n")

    def truncate_metrics(self, step: int) -> None:
        """Drop the lines after `step`, which a resumed run writes again, and what a killed one left of a line."""
        if self.metrics.exists():
            lines = [line for line in self.metrics.read_text().splitlines() if _step(line) <= step]
            _write(self.metrics, "".join(line + "\n" for line in lines))

    def _held(self) -> dict:
        try:
            held = yaml.safe_load(self._config.read_text())
        except yaml.YAMLError:
            held = None
        if not isinstance(held, dict):
            raise ValueError(
                f"{self._config} is no configuration of a run; give resume=false for a new folder, or remove it."
            )
        return held


def _step(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except ValueError:
        return float("inf")


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text)
    os.replace(part, path)


def differences(a: dict, b: dict) -> dict[str, tuple]:
    """Dotted keys whose values differ, but for what only concerns the machine."""
    a, b = _flatten(a), _flatten(b)
    keys = [key for key in {**a, **b} if not any(key == v or key.startswith(v + ".") for v in VOLATILE)]
    return {key: (a.get(key), b.get(key)) for key in keys if a.get(key) != b.get(key)}


def _flatten(config: dict, prefix: str = "") -> dict:
    flat = {}
    for key, value in config.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def save_checkpoint(state: dict, path: Path) -> None:
    """Write whole or not at all: a killed run leaves the checkpoint of the round before."""
    part = path.with_suffix(".part")
    torch.save(state, part)
    os.replace(part, path)


def load_checkpoint(path: Path | str, device: torch.device | str = "cpu") -> dict:
    """Tensors and plain values only (`weights_only=True`)."""
    return torch.load(path, map_location=device, weights_only=True)
