"""What is learnt and how it is measured: a task turns a batch into a loss and into sums that add up over items and devices."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..registry import build
from .mix import Mix, soft_targets

Sums = dict[str, Tensor]


class Classification:
    """One label per item.

    Args:
        num_classes: number of classes.
        loss: "cross_entropy" (on smoothed or mixed targets), or "bce" (every class with a positive target is a yes, DeiT-III).
        smoothing: label smoothing.
        mixup, cutmix, mix_prob, switch_prob: see `Mix`; both 0 for none.
        inputs: keys of the batch that the model is called with.
    """

    metric = "top1"
    higher_is_better = True

    def __init__(
        self,
        num_classes: int,
        *,
        loss: str = "cross_entropy",
        smoothing: float = 0.0,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        mix_prob: float = 1.0,
        switch_prob: float = 0.5,
        inputs: tuple[str, ...] = ("image",),
    ) -> None:
        if loss not in ("cross_entropy", "bce"):
            raise ValueError(f"task.loss must be cross_entropy or bce, but it is {loss!r}.")
        self.num_classes, self.loss_name, self.smoothing, self.inputs = num_classes, loss, smoothing, tuple(inputs)
        self.mix = None
        if mixup or cutmix:
            self.mix = Mix(
                num_classes, mixup=mixup, cutmix=cutmix, prob=mix_prob, switch_prob=switch_prob, smoothing=smoothing
            )  # fmt: skip

    def loss(self, model: nn.Module, batch: dict[str, Tensor], generator: np.random.Generator) -> Tensor:
        """Mean loss of the items of a batch; `generator` decides the mixing."""
        if self.mix is None:
            targets = soft_targets(batch["target"], self.num_classes, self.smoothing)
        else:
            image, targets = self.mix(batch["image"], batch["target"], generator)
            batch = {**batch, "image": image}
        logits = self.forward(model, batch)
        if self.loss_name == "bce":
            return F.binary_cross_entropy_with_logits(
                logits, (targets > self.smoothing / self.num_classes).to(logits.dtype)
            )
        return F.cross_entropy(logits, targets)

    def forward(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return model(*(batch[name] for name in self.inputs)).float()

    def zeros(self, device: torch.device) -> Sums:
        """Sums over no items."""
        return {name: torch.zeros((), dtype=torch.float64, device=device) for name in ("items", "loss", "top1", "top5")}

    def sums(self, model: nn.Module, batch: dict[str, Tensor]) -> Sums:
        """Sums over the items of a batch."""
        logits, target = self.forward(model, batch), batch["target"]
        correct = logits.topk(min(5, self.num_classes)).indices == target[:, None]
        sums = {
            "items": torch.tensor(len(target), device=target.device),
            "loss": F.cross_entropy(logits, target, reduction="sum"),
            "top1": correct[:, 0].sum(),
            "top5": correct.any(1).sum(),
        }
        return {name: value.double() for name, value in sums.items()}

    def summarize(self, sums: Sums) -> dict[str, float]:
        """Mean loss, and accuracies in percent."""
        items = sums["items"].item()
        percent = {name: 100 * sums[name].item() / items for name in ("top1", "top5")}
        return {"loss": sums["loss"].item() / items, **percent}


TASKS = {"classification": Classification}


def build_task(name: str, num_classes: int, **options) -> Classification:
    """The task `name`; raises ValueError, with the nearest names, for an unknown name or option."""
    return build("task", TASKS, name, num_classes, **options)
