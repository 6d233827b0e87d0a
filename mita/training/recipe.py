"""What a recipe fixes, and what the machine may choose."""

import os
import re
from dataclasses import dataclass

ACCELERATORS = ("auto", "cpu", "gpu", "cuda")


@dataclass(frozen=True)
class Recipe:
    """How a model is trained, whatever the machine. Lengths are in epochs or in steps, never both.

    epochs: passes over the data, evaluated after each; or
    steps, eval_every: optimiser steps, evaluated every `eval_every` steps.
    batch_size: items of one optimiser step over all devices; it never depends on the machine.
    repeats: repeated augmentation, how often an item comes in an epoch of unchanged length (DeiT: 3).
    optimizer, lr, weight_decay, betas, eps, momentum: as timm's factory takes them (None: its default).
    schedule: "cosine" (per epoch, as DeiT: the warmup value also in the second epoch), "onecycle" (linear or cosine anneal,
        cycles beta1) or "poly" (per step, power 0.9 to min_lr).
    warmup: epochs ("cosine") or steps ("onecycle": 0 is 30 % of the run; "poly"); warmup_lr: where it starts ("cosine").
    clip_norm, clip_value: gradient clipping, None for none.
    ema_decay: of the moving average of the weights, None for none.
    best_from: step before which a checkpoint is kept as the best only until there is a later one.
    precision: "fp32", "bf16" or "fp16".

    Raises ValueError for lengths that do not fit together and for unknown names.
    """

    batch_size: int
    epochs: int | None = None
    steps: int | None = None
    eval_every: int | None = None
    repeats: int = 1
    optimizer: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.05
    betas: tuple[float, float] | None = None
    eps: float | None = None
    momentum: float | None = None
    schedule: str = "cosine"
    anneal: str = "cos"
    warmup: int = 0
    warmup_lr: float = 1e-6
    min_lr: float = 1e-5
    clip_norm: float | None = None
    clip_value: float | None = None
    ema_decay: float | None = None
    best_from: int = 0
    precision: str = "fp32"

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"A recipe has either epochs or steps, but it has epochs={self.epochs} and steps={self.steps}."
            )
        if (self.steps is None) != (self.eval_every is None):
            raise ValueError(
                "A recipe counted in steps needs recipe.eval_every, one counted in epochs must leave it out."
            )
        _check_least("recipe", self, 1, "batch_size", "epochs", "steps", "eval_every", "repeats")
        _check_least(
            "recipe", self, 0, "weight_decay", "warmup", "warmup_lr", "min_lr", "best_from", "momentum", "ema_decay"
        )
        for name in ("lr", "eps", "clip_norm", "clip_value"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"recipe.{name} must be above 0, but it is {value}.")
        for name in ("momentum", "ema_decay"):
            value = getattr(self, name)
            if value is not None and value > 1:
                raise ValueError(f"recipe.{name} must be at most 1, but it is {value}.")
        for name, allowed in {
            "schedule": ("cosine", "onecycle", "poly"),
            "precision": ("fp32", "bf16", "fp16"),
            "anneal": ("cos", "linear"),
        }.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"recipe.{name} must be one of {', '.join(allowed)}, but it is {getattr(self, name)!r}."
                )
        if self.steps is not None:
            self.check_warmup(self.steps)
        if self.schedule == "cosine" and self.epochs is None:
            raise ValueError(
                "The cosine schedule is counted in epochs; give recipe.epochs, or choose onecycle or poly."
            )

    def check_warmup(self, steps: int) -> None:
        """Raises ValueError when the warmup leaves no step of `steps` to what follows, or is no slope."""
        if self.schedule != "cosine" and self.warmup >= steps:
            raise ValueError(
                f"recipe.warmup={self.warmup} must be shorter than the {steps} steps of the run; shorten both alike, or let "
                "trainer.max_steps stop a run early"
            )
        if self.schedule == "onecycle" and self.warmup == 1:
            raise ValueError("recipe.warmup=1 is no slope for onecycle; give 2 steps or more, or 0 for 30 % of the run")


@dataclass(frozen=True)
class Machine:
    """What may differ between two runs of one recipe: devices, workers, what fits into memory, how far to go now.

    accelerator, devices, num_nodes, strategy: as Lightning Fabric takes them.
    precision: overrides the recipe's, None for none.
    workers: processes that read data, None for 8 (or as many as there are cores) beside a GPU and none on a CPU.
    max_batch_per_device: items a device takes at once; the rest of its share is accumulated.
    max_steps: stop after so many optimiser steps; the record then says that the run was short.

    Raises ValueError for values out of range.
    """

    accelerator: str = "auto"
    devices: int | str = "auto"
    num_nodes: int = 1
    strategy: str = "auto"
    precision: str | None = None
    workers: int | None = None
    max_batch_per_device: int = 256
    max_steps: int | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        _check_least("trainer", self, 1, "devices", "num_nodes", "max_batch_per_device", "max_steps")
        _check_least("trainer", self, 0, "workers")
        if isinstance(self.devices, str) and not re.fullmatch(r"auto|\d+(,\d+)*", self.devices):
            raise ValueError(f"trainer.devices must be a number of devices or auto, but it is {self.devices!r}.")
        if self.accelerator not in ACCELERATORS:
            raise ValueError(
                f"trainer.accelerator must be one of {', '.join(ACCELERATORS)}, but it is {self.accelerator!r}."
            )

    def evaluation_batch(self, recipe: Recipe) -> int:
        """Items a device evaluates at once: no more than fit, and than a step of training takes."""
        return min(self.max_batch_per_device, recipe.batch_size)

    def workers_beside(self, device: str) -> int:
        """How many processes read data for a device of type "cpu" or "cuda"."""
        if self.workers is not None:
            return self.workers
        return 0 if device == "cpu" else min(8, os.cpu_count() or 1)


def _check_least(group: str, values: Recipe | Machine, least: int, *names: str) -> None:
    for name in names:
        value = getattr(values, name)
        if isinstance(value, (int, float)) and value < least:
            raise ValueError(f"{group}.{name} must be at least {least}, but it is {value}.")
