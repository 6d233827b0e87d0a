"""Optimiser and learning-rate schedule of a recipe."""

from __future__ import annotations

import timm.optim
import timm.scheduler
import torch
from torch import nn

from .recipe import Recipe


def build_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """timm's optimiser; biases, 1-D parameters and the names in `model.no_weight_decay()` do not decay.

    Raises ValueError for one that cannot be had here: of a package that is not installed, or that wants second derivatives.
    """
    options = {name: getattr(recipe, name) for name in ("betas", "eps") if getattr(recipe, name) is not None}
    if recipe.momentum is not None:
        options["momentum"] = recipe.momentum
    try:
        optimizer = timm.optim.create_optimizer_v2(
            model, opt=recipe.optimizer, lr=recipe.lr, weight_decay=recipe.weight_decay, **options
        )
    except (AssertionError, ImportError, RuntimeError) as error:
        raise ValueError(f"recipe.optimizer={recipe.optimizer} cannot be had: {error}") from None
    if getattr(optimizer, "is_second_order", False):
        raise ValueError(
            f"recipe.optimizer={recipe.optimizer} wants second derivatives, which training does not compute"
        )
    return optimizer


class Schedule:
    """Sets the learning rate before each step.

    cosine: one value an epoch. As in DeiT's loop, where the schedule moves after an epoch with that epoch's own number,
        epochs 0 and 1 both run at `warmup_lr`, and epoch e > 0 at the value of e - 1.
    onecycle: from lr / 25 up over `warmup` steps and down to lr / 250,000, beta1 0.95 -> 0.85 -> 0.95 (PyTorch's defaults).
    poly: min_lr + (lr - min_lr) (1 - t / T) ^ 0.9, a value a step, after a linear warmup.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, recipe: Recipe, steps: int, steps_per_epoch: int) -> None:
        recipe.check_warmup(steps)
        self.recipe, self.steps_per_epoch = recipe, steps_per_epoch
        if recipe.schedule == "cosine":
            self.scheduler, _ = timm.scheduler.create_scheduler_v2(
                optimizer, sched="cosine", num_epochs=recipe.epochs, min_lr=recipe.min_lr,
                warmup_lr=recipe.warmup_lr, warmup_epochs=recipe.warmup, warmup_prefix=False,
            )  # fmt: skip
        elif recipe.schedule == "onecycle":
            pct = recipe.warmup / steps if recipe.warmup else 0.3
            self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, recipe.lr, total_steps=steps, pct_start=pct, anneal_strategy=recipe.anneal
            )
        else:

            def factor(t: int) -> float:
                if t < recipe.warmup:
                    return (t + 1) / recipe.warmup
                floor = recipe.min_lr / recipe.lr
                return floor + (1 - floor) * (1 - min(t, steps) / steps) ** 0.9

            self.scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    def before_step(self, step: int) -> None:
        if self.recipe.schedule == "cosine":
            self.scheduler.step(max(step // self.steps_per_epoch - 1, 0))

    def after_step(self) -> None:
        if self.recipe.schedule != "cosine":
            self.scheduler.step()

    def state_dict(self) -> dict:
        """What a checkpoint must hold; the cosine is a function of the step."""
        if self.recipe.schedule == "cosine":
            return {}
        return self.scheduler.state_dict()

    def load_state_dict(self, state: dict) -> None:
        if state:
            self.scheduler.load_state_dict(state)
