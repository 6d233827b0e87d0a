"""ADE20K's 150 classes of pixels, read and augmented by mmsegmentation as the authors' segmenters are trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from models.segmentation.mmcv_ops import prepare_mmseg

from .data import Data, fingerprint, limited, reasons
from .scene_folders import SPLITS, check_colours, check_label_map, find_scenes, scene_names, sizes_of

NUM_CLASSES, COUNTS = 150, (20_210, 2_000)
IGNORED = 255


@dataclass(frozen=True)
class View:
    """How scenes are resized, cropped and normalised; the options of `ade20k`.

    Raises:
        ValueError: an option does not fit.
    """

    crop_size: int
    scale: Sequence[int]
    ratio_range: Sequence[float]
    flip: float
    mean: Sequence[float]
    std: Sequence[float]

    def __post_init__(self) -> None:
        for wrong, text in (
            (self.crop_size < 1, f"crop_size={self.crop_size} must be a number of pixels from 1"),
            (len(self.scale) != 2 or min(self.scale) < 1, f"scale={list(self.scale)} must be two sides in pixels"),
            (
                len(self.ratio_range) != 2 or not 0 < self.ratio_range[0] <= self.ratio_range[1],
                f"ratio_range={list(self.ratio_range)} must be the least and the greatest factor, both above 0",
            ),
            (not 0 <= self.flip <= 1, f"flip={self.flip} must be a probability, from 0 to 1"),
            (len(self.mean) != 3, f"mean={list(self.mean)} must be three grey values: of red, green and blue"),
            (
                len(self.std) != 3 or min(self.std) <= 0,
                f"std={list(self.std)} must be three numbers above 0: of red, green and blue",
            ),
        ):
            if wrong:
                raise ValueError(f"data.{text}")


def ade20k(
    *,
    root: str | None = None,
    seed: int = 0,
    limit: int | None = None,
    crop_size: int = 512,
    scale: Sequence[int] = (2048, 512),
    ratio_range: Sequence[float] = (0.5, 2.0),
    flip: float = 0.5,
    mean: Sequence[float] = (127.5, 127.5, 127.5),
    std: Sequence[float] = (127.5, 127.5, 127.5),
) -> Data:
    """The scene-parsing benchmark: 20,210 photographs to train on; its 2,000 validation photographs are the split "test".

    Training items are {"image": (3, c, c) float32, "target": (c, c) int64}, c = `crop_size`: the photograph resized (see
    `scale`) by a random factor, a random crop of which no class fills more than 3/4 (ten tries), flipped, its colours
    distorted, normalised, and padded with zeros, labels with 255. Evaluation items are {"image": (3, h, w), "original":
    (3, H, W), "target": (H, W), "name": str}, for batches of one: the image resized to fit `scale`, and the photograph and
    the target in their own size. Labels are 0 to 149, and 255 for pixels of no class. A grey photograph, of which ADE20K
    has a few, is read as RGB; a split of nothing else is refused.

    Args:
        root: folder that holds images/ and annotations/, or ADEChallengeData2016/ with these.
        seed: not used; nothing is split here.
        limit: keep so many photographs of either split.
        crop_size: pixels of a side; 640 goes with scale (2560, 640).
        scale: a longer and a shorter side in pixels; a photograph is resized to the largest size within both.
        ratio_range: least and greatest of the random factors on `scale` in training.
        flip: probability of the mirror image in training.
        mean, std: of red, green and blue, in grey values of 0 to 255.

    Raises:
        ValueError: the root is missing or not as described, an option does not fit, or mmsegmentation is not installed.
    """
    view = View(crop_size, scale, ratio_range, flip, mean, std)
    return read_scenes("ade20k", find_scenes(root), view, limit=limit)


def read_scenes(
    name: str,
    folder: Path,
    view: View,
    *,
    limit: int | None,
    counts: Sequence[int] = COUNTS,
    metainfo: Mapping[str, Sequence] | None = None,
    content: str | None = None,
) -> Data:
    """The `Data` of a folder laid out as ADE20K is; see `ade20k` for its items.

    Args:
        name: registry name.
        folder: holds images/ and annotations/.
        view: how scenes are seen.
        limit: keep so many scenes of either split.
        counts: scenes to train and to test on in the full data set.
        metainfo: "classes" and "palette" where they are not ADE20K's.
        content: the fingerprint; None to take the files' names and sizes.

    Raises:
        ValueError: the folder is not as described, or mmsegmentation is not installed.
    """
    names = {split: scene_names(folder, split) for split in SPLITS}
    for split in SPLITS:  # every file is checked when it is read; a few of them now, before anything is trained
        check_colours(folder, split, names[split])
        scenes = Scenes(folder, split, view, False, metainfo)
        for index in sorted({0, len(scenes) // 2, len(scenes) - 1}):
            scenes[index]
    train = Scenes(folder, SPLITS[0], view, True, metainfo)
    parts = {"train": limited(train, limit), "test": limited(scenes, limit)}
    lacks = [
        f"{len(names[split])} {split} images instead of {count}"
        for split, count in zip(SPLITS, counts)
        if len(names[split]) != count
    ]
    return Data(
        name=name,
        train=parts["train"],
        evaluate={"test": parts["test"]},
        num_classes=len(train.classes),
        input_size=(3, view.crop_size, view.crop_size),
        fingerprint=content or fingerprint(line for split in SPLITS for line in sizes_of(folder, split, names[split])),
        counts={split: len(part) for split, part in parts.items()},
        collate=collate,
        short=reasons(*lacks, limit and f"limit={limit}"),
    )


class Scenes(Dataset):
    """The scenes of one split: crops to train on, or whole scenes to evaluate. See `ade20k` for the items.

    Attributes:
        classes: name of each class. palette: its (red, green, blue), 0 to 255.
    """

    def __init__(
        self, folder: Path, split: str, view: View, training: bool, metainfo: Mapping[str, Sequence] | None = None
    ) -> None:
        prepare_mmseg()
        import cv2
        from mmseg.datasets import ADE20KDataset, BaseSegDataset

        cv2.setNumThreads(0)  # the loader's processes are what runs in parallel
        self._made_of = (folder, split, view, training, metainfo)
        kind, num_classes = ADE20KDataset, NUM_CLASSES
        if metainfo is not None:
            kind = partial(BaseSegDataset, reduce_zero_label=True, metainfo=metainfo)
            num_classes = len(metainfo["classes"])
        self._source = kind(
            data_root=str(folder),
            data_prefix={"img_path": f"images/{split}", "seg_map_path": f"annotations/{split}"},
            pipeline=(training_transforms if training else evaluation_transforms)(view, num_classes),
        )
        self.classes = tuple(name.strip() for name in self._source.metainfo["classes"])
        self.palette = tuple(tuple(color) for color in self._source.metainfo["palette"])

    def __reduce__(self):
        return Scenes, self._made_of  # a process that was not forked must prepare mmseg before it imports it

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> dict[str, Tensor | str]:
        """Raises ValueError naming the file when it cannot be read or used; no other item ever stands in for it."""
        files = self._source.get_data_info(index)
        try:
            return self._source.prepare_data(index)
        except (AssertionError, OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise ValueError(
                f"cannot read {files['img_path']} or {files['seg_map_path']} ({error}); copy them again from the archive"
            ) from error


def training_transforms(view: View, num_classes: int) -> list[Callable[[dict], dict]]:
    """From the names of two files to a training item. Draws from numpy's global generator."""
    from mmcv.transforms import LoadImageFromFile, Normalize, Pad, RandomFlip, RandomResize
    from mmseg.datasets.transforms import LoadAnnotations, PhotoMetricDistortion, RandomCrop

    crop = (view.crop_size, view.crop_size)
    return [
        LoadImageFromFile(imdecode_backend="pillow"),  # the pixels of mmseg's cv2; it also refuses a file that is cut
        LoadAnnotations(),
        partial(check, num_classes=num_classes),
        RandomResize(tuple(view.scale), tuple(view.ratio_range), keep_ratio=True),
        RandomCrop(crop, cat_max_ratio=0.75),
        RandomFlip(view.flip),
        PhotoMetricDistortion(),
        Normalize(view.mean, view.std),
        Pad(size=crop, pad_val={"img": 0, "seg": IGNORED}),
        as_tensors,
    ]


def evaluation_transforms(view: View, num_classes: int) -> list[Callable[[dict], dict]]:
    """From the names of two files to an evaluation item; the label map is not resized."""
    from mmcv.transforms import LoadImageFromFile
    from mmseg.datasets.transforms import LoadAnnotations

    return [
        LoadImageFromFile(imdecode_backend="pillow"),
        LoadAnnotations(),
        partial(check, num_classes=num_classes),
        partial(as_scene, view=view),
    ]


def seen(pixels: np.ndarray, view: View) -> tuple[Tensor, Tensor]:
    """What an evaluation item shows of a photograph's pixels (H, W, 3) uint8: red, green, blue.

    Returns:
        image (3, h, w) float32, resized to fit `view.scale` and normalised; original (3, H, W), normalised only.

    Raises:
        ValueError: mmsegmentation is not installed.
    """
    prepare_mmseg()
    from mmcv.transforms import Normalize, Resize

    pixels = np.ascontiguousarray(pixels)
    resized = Resize(tuple(view.scale), keep_ratio=True)({"img": pixels})["img"]
    normalize = Normalize(view.mean, view.std, to_rgb=False)
    image, original = (channels_first(normalize({"img": values})["img"]) for values in (resized, pixels))
    return image, original


def check(results: dict, num_classes: int) -> dict:
    """`check_label_map` as a step of mmsegmentation's."""
    check_label_map(results["seg_map_path"], results["gt_seg_map"], results["ori_shape"], num_classes)
    return results


def as_tensors(results: dict) -> dict[str, Tensor]:
    """A training item of what mmsegmentation's steps made."""
    return {"image": channels_first(results["img"]), "target": torch.from_numpy(results["gt_seg_map"]).long()}


def as_scene(results: dict, view: View) -> dict[str, Tensor | str]:
    """An evaluation item of what mmsegmentation read (blue, green, red), with the files' name to store a prediction by."""
    image, original = seen(results["img"][..., ::-1], view)
    target = torch.from_numpy(results["gt_seg_map"]).long()
    return {"image": image, "original": original, "target": target, "name": Path(results["img_path"]).stem}


def channels_first(pixels: np.ndarray) -> Tensor:
    """(h, w, 3) to (3, h, w)."""
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def collate(items: list[dict]) -> dict[str, Tensor | list[str]]:
    """A batch of scenes of one size: crops, or a single whole scene."""
    sizes = {(tuple(item["image"].shape), tuple(item["target"].shape)) for item in items}
    assert len(sizes) == 1, f"scenes of several sizes make no batch ({sorted(sizes)}); evaluate them one at a time"
    return default_collate(items)


def __getattr__(name: str) -> tuple:
    """`CLASSES`, the 150 names, and `PALETTE`, their colours as (red, green, blue): mmsegmentation's own."""
    if name not in ("CLASSES", "PALETTE"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    prepare_mmseg()
    from mmseg.datasets import ADE20KDataset

    if name == "CLASSES":
        return tuple(label.strip() for label in ADE20KDataset.METAINFO["classes"])
    return tuple(tuple(color) for color in ADE20KDataset.METAINFO["palette"])
