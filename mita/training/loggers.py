"""Where the numbers of a run go: always into metrics.jsonl, elsewhere on request."""

from __future__ import annotations

import json

from .run_folder import RunFolder


class JsonLines:
    """One JSON object a round in metrics.jsonl."""

    def __init__(self, folder: RunFolder) -> None:
        self.path = folder.metrics

    def log(self, values: dict, step: int) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")

    def close(self) -> None:
        """Nothing is held open."""


def build_loggers(names: list[str], folder: RunFolder, config: dict, project: str = "mita") -> list:
    """The loggers of a run, on rank 0. Raises ValueError for an unknown name."""
    loggers = []
    for name in names:
        if name == "jsonl":
            loggers.append(JsonLines(folder))
        elif name == "wandb":
            from .wandb_logger import Wandb

            loggers.append(Wandb(folder, config, project))
        else:
            raise ValueError(f"logger.names holds {name!r}; there are jsonl and wandb.")
    return loggers
