"""Weights & Biases, offline without a key. The only file that imports wandb."""

from __future__ import annotations

import os

import wandb

from .run_folder import RunFolder


class Wandb:
    """Mirrors the numbers of a run; a resumed run goes on under its own id."""

    def __init__(self, folder: RunFolder, config: dict, project: str) -> None:
        has_key = bool(os.environ.get("WANDB_API_KEY")) or bool(wandb.api.api_key)
        self.run = wandb.init(
            project=project,
            name="/".join(folder.path.parts[-2:]),
            id="-".join(folder.path.parts[-2:]).replace(",", "-").replace("=", "-"),
            dir=folder.path,
            config=config,
            resume="allow",
            mode=os.environ.get("WANDB_MODE") or ("online" if has_key else "offline"),
        )

    def log(self, values: dict, step: int) -> None:
        self.run.log(values, step=step)

    def close(self) -> None:
        self.run.finish()
