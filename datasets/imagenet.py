"""ImageNet-1K, and any folder laid out like it, with the augmentation of DeiT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, ImageNetInfo, create_transform
from torch import Tensor

from .class_folders import read_class_folders, some
from .data import Data, fingerprint, limited, reasons
from .images import Images, ImageSource, class_counts
from .shards import read_shards

CLASSES, TRAIN_IMAGES, VAL_IMAGES = 1000, 1_281_167, 50_000
LAYOUT = "train/<class>/*.JPEG and val/<class>/*.JPEG, or WebDataset shards *train*.tar and *val*.tar"


def imagenet(
    *,
    root: str | None = None,
    seed: int = 0,
    limit: int | None = None,
    image_size: int = 224,
    crop_pct: float = 0.875,
    interpolation: str = "bicubic",
    auto_augment: str | None = "rand-m9-mstd0.5-inc1",
    color_jitter: float = 0.3,
    random_erase: float = 0.25,
    mean: Sequence[float] = IMAGENET_DEFAULT_MEAN,
    std: Sequence[float] = IMAGENET_DEFAULT_STD,
) -> Data:
    """Class folders or WebDataset shards under `root`; ImageNet's validation images are the split "test".

    Training (Touvron et al., DeiT, table 9): a crop of .08 to 1 of the area resized to (image_size, image_size), a flip
    of every other image, `auto_augment`, normalisation, `random_erase`. Evaluation: the shorter side resized to
    image_size / crop_pct and the centre cropped. Anything that is not the whole of ImageNet-1K is usable, and
    `Data.short` says what it is.

    Args:
        root: folder that holds train and val.
        seed: not used; nothing is split here.
        limit: keep so many images of either split.
        image_size: pixels of a side.
        crop_pct: evaluation crop as a part of the resized side, in (0, 1].
        interpolation: "bicubic" or "bilinear".
        auto_augment: timm's policy name; "3a" is the 3-Augment of DeiT III (grey, solarise or blur); None for none.
        color_jitter: strength of brightness, contrast and saturation; as in timm, without effect under a "rand" policy.
        random_erase: probability that a rectangle is replaced with noise.
        mean, std: of the three channels, in [0, 1].

    Raises:
        ValueError: the root is missing or not laid out as described, or an option does not fit.
    """
    if not 0 < crop_pct <= 1:
        raise ValueError(f"data.crop_pct={crop_pct} must lie in (0, 1]; DeiT's is 0.875")
    common = {"input_size": image_size, "interpolation": interpolation, "mean": tuple(mean), "std": tuple(std)}
    augment = {"auto_augment": auto_augment, "color_jitter": color_jitter, "re_prob": random_erase, "re_mode": "pixel"}
    train_transform = make_transform(is_training=True, **common, **augment)
    test_transform = make_transform(crop_pct=crop_pct, **common)
    train_source, test_source = find_images(root)
    train = limited(Images(train_source, train_transform), limit)
    test = limited(Images(test_source, test_transform), limit)
    return Data(
        name="imagenet",
        train=train,
        evaluate={"test": test},
        num_classes=len(train_source.classes),
        input_size=(3, image_size, image_size),
        fingerprint=fingerprint(
            f"{split} {name} {count}"
            for split, source in (("train", train_source), ("val", test_source))
            for name, count in zip(source.classes, class_counts(source), strict=True)
        ),
        counts={"train": len(train), "test": len(test)},
        short=reasons(*differences(train_source, test_source), limit and f"limit={limit}"),
    )


def make_transform(**options) -> Callable[[Image.Image], Tensor]:
    """timm's `create_transform`, with its assertions as a ValueError."""
    try:
        return create_transform(**options)
    except (AssertionError, KeyError, ValueError) as error:
        given = ", ".join(f"{key}={value}" for key, value in options.items())
        raise ValueError(f"timm cannot make an image transform of {given}: {error!r}") from error


def find_images(root: str | None) -> tuple[ImageSource, ImageSource]:
    """The training and validation images under `root`, in whichever form they are there.

    Raises:
        ValueError: the root is not given or not there, a split is missing, or what was found cannot be used.
    """
    if root is None:
        raise ValueError(f"ImageNet is read from your disk: give its folder with data.root=..., which holds {LAYOUT}")
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise ValueError(f"data.root={root} is not a folder; expected one that holds {LAYOUT}")
    splits = [folder / "train", folder / "val"]
    shards = [sorted(path.glob("*.tar")) or sorted(folder.glob(f"*{path.name}*.tar")) for path in splits]
    # the downloaded archives may still lie beside the folders extracted from them, so folders come first
    if all(path.is_dir() and not any(path.glob("*.tar")) for path in splits):
        return read_class_folders(*splits)
    if all(shards):
        return read_shards(*shards)
    found = some(sorted(path.name for path in folder.iterdir())) or "nothing"
    missing = [f"no {path.name}" for path, tars in zip(splits, shards, strict=True) if not (path.is_dir() or tars)]
    problem = " and ".join(missing) or "one split as shards and the other not"
    raise ValueError(f"{folder} has {problem}; expected {LAYOUT}; found {found}")


def differences(train: ImageSource, val: ImageSource) -> list[str]:
    """What sets these images apart from ImageNet-1K; empty when nothing does."""
    found = []
    classes = train.classes
    if len(classes) != CLASSES:
        found.append(f"{len(classes)} classes instead of {CLASSES}")
    elif classes != [str(i) for i in range(CLASSES)] and classes != ImageNetInfo().label_names():
        found.append("class folders not named by ImageNet-1K's WordNet ids")
    for source, split, expected in ((train, "training", TRAIN_IMAGES), (val, "validation", VAL_IMAGES)):
        if len(source.targets) != expected:
            found.append(f"{len(source.targets)} {split} images instead of {expected}")
    return found
