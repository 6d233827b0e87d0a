"""What is learnt and how it is measured: a task turns a batch into a loss and into sums that add up over items and devices."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..registry import build
from .mix import Mix, soft_targets

Sums = dict[str, Tensor]
IGNORED = 255  # label of pixels that count nowhere


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
    labels = "item"  # what has one label
    evaluation_batch = None  # items evaluated at once; None for as many as fit

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
        if loss == "bce" and smoothing:
            raise ValueError(
                f"task.loss=bce takes every class with a positive target; task.smoothing={smoothing} must be 0."
            )
        if not 0 <= smoothing <= 1:
            raise ValueError(f"task.smoothing must be from 0 to 1, but it is {smoothing}.")
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
            return F.binary_cross_entropy_with_logits(logits, (targets > 0).to(logits.dtype))
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


class Segmentation:
    """One label per pixel; label 255 counts nowhere.

    Training items have "image" (C, h, w) and "target" (h, w) of one size. Evaluation items come one at a time; the target is of
    the original image's size, and the model's `predict` answers in that size. Where "image" is a resized copy they may also have
    "original" (C, H, W), and other scales are made of that one. mmsegmentation resizes bytes where this resizes floats, so a
    grey value may differ by the rounding, and a side of such a scale by a pixel.

    Args:
        num_classes: number of classes K.
        window, stride: in pixels, of the windows that slide over an image to be evaluated.
        scales: factors on the image's sides whose predictions are averaged; flip: average with the mirrored image's too.
    """

    metric = "miou"
    higher_is_better = True
    labels = "pixel"
    inputs = ("image",)
    evaluation_batch = 1

    def __init__(
        self, num_classes: int, *, window: int, stride: int, scales: tuple[float, ...] = (1.0,), flip: bool = False
    ) -> None:
        if not 1 <= stride <= window:
            raise ValueError(f"task.stride must be from 1 to task.window={window}, but it is {stride}.")
        if not scales or min(scales) <= 0:
            raise ValueError(f"task.scales must be factors above 0, but they are {list(scales)}.")
        self.num_classes = num_classes
        self.windows = {"window": window, "stride": stride, "scales": tuple(scales), "flip": flip}

    def loss(self, model: nn.Module, batch: dict[str, Tensor], generator: np.random.Generator) -> Tensor:
        """Mean cross entropy of the labelled pixels of each image (0 where there is none), then the mean of the images.

        So it is the same however a batch is cut; the authors have one image a GPU.
        """
        target = batch["target"]
        losses = F.cross_entropy(model(batch["image"]).float(), target, ignore_index=IGNORED, reduction="none")
        return (losses.sum((1, 2)) / (target != IGNORED).sum((1, 2)).clamp(min=1)).mean()

    def zeros(self, device: torch.device) -> Sums:
        """Sums over no items."""
        names = ("intersect", "predicted", "labelled")
        return {name: torch.zeros(self.num_classes, dtype=torch.float64, device=device) for name in names}

    def sums(self, model: nn.Module, batch: dict[str, Tensor]) -> Sums:
        """Pixels of each class that are predicted right, predicted and labelled, among the labelled pixels of a batch."""
        originals = batch.get("original", [None] * len(batch["image"]))
        parts = [self._counts(model, *item) for item in zip(batch["image"], originals, batch["target"], strict=True)]
        return {name: sum(part[name] for part in parts) for name in parts[0]}

    def summarize(self, sums: Sums) -> dict[str, float]:
        """Intersection over union and accuracy, each the mean over the classes that are there, and the pixels' accuracy, in
        percent. A class that is neither predicted nor labelled anywhere is in no mean."""
        intersect, predicted, labelled = (sums[name] for name in ("intersect", "predicted", "labelled"))
        union = predicted + labelled - intersect
        return {
            "miou": 100 * (intersect / union)[union > 0].mean().item(),
            "macc": 100 * (intersect / labelled)[labelled > 0].mean().item(),
            "pixel_accuracy": 100 * (intersect.sum() / labelled.sum()).item(),
        }

    def predict(self, model: nn.Module, image: Tensor, size: tuple[int, int], original: Tensor | None = None) -> Tensor:
        """The class of every pixel: an image (C, h, w), a copy of `original`, to (height, width) of `size`, int64."""
        return model.predict(image, size, original=original, **self.windows).argmax(0)

    def _counts(self, model: nn.Module, image: Tensor, original: Tensor | None, target: Tensor) -> Sums:
        predicted = self.predict(model, image, tuple(target.shape), original)
        there = target != IGNORED
        predicted, target = predicted[there], target[there]
        pixels = {"intersect": target[predicted == target], "predicted": predicted, "labelled": target}
        return {name: torch.bincount(p, minlength=self.num_classes).double() for name, p in pixels.items()}


TASKS = {"classification": Classification, "segmentation": Segmentation}


def build_task(name: str, num_classes: int, **options) -> Classification | Segmentation:
    """The task `name`; raises ValueError, with the nearest names, for an unknown name or option."""
    return build("task", TASKS, name, num_classes, **options)
