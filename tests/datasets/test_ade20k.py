"""Tiny trees in ADE20K's form: what is read, how it is augmented, and what is refused and how."""

import pickle
import random
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from PIL import Image
from torch.utils.data import DataLoader

import datasets
from datasets.scene_folders import find_scenes

SIZES = {"training": [(90, 60), (50, 80), (64, 64), (120, 48)], "validation": [(70, 50), (48, 100)]}  # width, height


def write(folder, split, name, photograph, labels, **options):
    for kind, image, suffix in (("images", photograph, ".jpg"), ("annotations", labels, ".png")):
        (folder / kind / split).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / kind / split / f"{name}{suffix}", **options)


def blocks(width, height, values):
    """Columns of equal width with the given values, (height, width) uint8."""
    return np.broadcast_to(np.array(values, np.uint8)[np.arange(width) * len(values) // width], (height, width)).copy()


@pytest.fixture
def tree(tmp_path):
    """Photographs of columns, each as bright as its label: 0 (no class), 1, 75 and 150."""
    for split, sizes in SIZES.items():
        for number, (width, height) in enumerate(sizes):
            labels = blocks(width, height, [0, 1, 75, 150])
            write(tmp_path, split, f"ADE_{split}_{number}", np.stack([labels] * 3, -1), labels)
    return tmp_path


@pytest.fixture
def build(tree, mmseg):
    return lambda **options: datasets.build(
        "ade20k", root=str(tree), **{"crop_size": 32, "scale": [128, 32], **options}
    )


def seed(number):
    random.seed(number), np.random.seed(number), torch.manual_seed(number)


def test_what_is_read(build, tree):
    data = build()
    assert data.counts == {"train": 4, "test": 2} and data.num_classes == 150 and data.input_size == (3, 32, 32)
    assert data.short == "4 training images instead of 20210; 2 validation images instead of 2000"
    assert build(limit=1).counts == {"train": 1, "test": 1} and build(limit=1).short.endswith("; limit=1")
    assert (
        datasets.build("ade20k", root=str(tree)).input_size == datasets.shape_of("ade20k").input_size == (3, 512, 512)
    )
    parent = tree / "elsewhere"
    parent.mkdir()
    shutil.copytree(tree / "images", parent / "ADEChallengeData2016" / "images")
    shutil.copytree(tree / "annotations", parent / "ADEChallengeData2016" / "annotations")
    assert datasets.build("ade20k", root=str(parent)).fingerprint == data.fingerprint
    write(tree, "training", "one_more", np.zeros((40, 40, 3), np.uint8), np.zeros((40, 40), np.uint8))
    assert build().fingerprint != data.fingerprint


def test_evaluation_items_are_whole_and_their_targets_not_resized(build):
    items = list(build(mean=[0.0] * 3, std=[1.0] * 3).evaluate["test"])
    assert [item["name"] for item in items] == ["ADE_validation_0", "ADE_validation_1"]
    # 70x50 and 48x100: the shorter side becomes 32, then the longer one stays within 128
    assert [tuple(item["image"].shape) for item in items] == [(3, 32, 45), (3, 67, 32)]
    for item, (width, height) in zip(items, SIZES["validation"]):
        assert item["image"].dtype == torch.float32 and item["target"].dtype == torch.int64
        expected = torch.from_numpy(
            blocks(width, height, [255, 0, 74, 149])
        ).long()  # 0 is no class, 1 to 150 are 0 to 149
        assert torch.equal(item["target"], expected)
        middles = item["image"][:, 16, [4, 12, 20, 28]] if width == 48 else item["image"][:, 16, [5, 16, 28, 39]]
        torch.testing.assert_close(middles, torch.tensor([0.0, 1, 75, 150]).expand(3, 4), atol=6, rtol=0)
    long = build(scale=[64, 32]).evaluate["test"][1]
    assert long["image"].shape == (3, 64, 31) and long["target"].shape == (100, 48)


def test_crops_have_the_crops_size_and_are_padded_with_ignored_labels(build):
    """A photograph of 120x48 at a factor of 1/2 is 40x16: a crop of 32x32 is half padding, in the image 0 as normalised."""
    data = build(ratio_range=[0.5, 0.5], flip=0.0)
    seed(0)
    item = data.train[3]
    assert item["image"].shape == (3, 32, 32) and item["target"].shape == (32, 32)
    assert item["target"].dtype == torch.int64 and item["image"].dtype == torch.float32
    assert (item["target"][16:] == 255).all() and (item["image"][:, 16:] == 0).all()
    assert set(item["target"][:16].unique().tolist()) <= {0, 74, 149, 255}
    assert torch.equal(item["target"][0], item["target"][15])


def test_images_are_rgb_and_normalised(build, tree):
    colour = np.zeros((40, 60, 3), np.uint8) + np.array([200, 100, 10], np.uint8)
    write(tree, "validation", "colour", colour, np.ones((40, 60), np.uint8), quality=100, subsampling=0)
    item = build(mean=[100, 90, 80], std=[10, 20, 30]).evaluate["test"][2]
    torch.testing.assert_close(item["image"].mean((1, 2)), torch.tensor([10.0, 0.5, -70 / 30]), atol=0.2, rtol=0)
    assert build().evaluate["test"][2]["image"].max() < (202 - 127.5) / 127.5


def test_a_grey_photograph_is_read_as_rgb(build, tree):
    """ADE20K has a few: meetps/pytorch-semseg#88."""
    write(tree, "validation", "grey", np.full((40, 60), 80, np.uint8), np.ones((40, 60), np.uint8))
    image = build().evaluate["test"][2]["image"]
    assert image.shape == (3, 32, 48) and torch.equal(image[0], image[2])


def test_a_split_of_grey_photographs_only_is_refused(build, tree):
    """No wrong data by the hundred; what is in colour in one place is enough."""
    paths = sorted((tree / "images" / "training").iterdir())
    for path in paths:
        Image.open(path).convert("L").save(path)
    with pytest.raises(
        ValueError,
        match=r"ADE_training_0.jpg is grey, and so is every other .*images/training .*\(4\); .*store yours as RGB",
    ):
        build()
    Image.open(paths[3]).convert("RGB").save(paths[3])
    assert build().counts["train"] == 4


def test_other_scales_are_those_of_mmsegmentation(build, tree):
    """The original resized in floats, as `predict` does, is mmcv's Resize of the bytes to within its rounding."""
    data = build(scale=[240, 60], mean=[0.0] * 3, std=[1.0] * 3)
    from mmcv.transforms import LoadImageFromFile, Resize

    for number, item in enumerate(data.evaluate["test"]):
        loaded = LoadImageFromFile()({"img_path": str(tree / f"images/validation/ADE_validation_{number}.jpg")})
        assert torch.equal(
            item["original"], torch.from_numpy(loaded["img"][..., ::-1].transpose(2, 0, 1).copy()).float()
        )
        for scale in (0.5, 0.75, 1.25, 1.75):
            expected = Resize((int(240 * scale), int(60 * scale)), keep_ratio=True)(dict(loaded))["img"]
            sides = [round(scale * side) for side in item["image"].shape[1:]]
            assert max(abs(a - b) for a, b in zip(sides, expected.shape)) <= 1
            ours = F.interpolate(item["original"][None], size=expected.shape[:2], mode="bilinear")[0]
            theirs = torch.from_numpy(expected[..., ::-1].transpose(2, 0, 1).copy()).float()
            torch.testing.assert_close(ours, theirs, atol=1.01, rtol=0)


def test_augmentation_follows_the_global_seeds_and_touches_training_only(build):
    data = build()

    def item():
        seed(5)
        return data.train[0]

    first, again = item(), item()
    assert torch.equal(first["image"], again["image"]) and torch.equal(first["target"], again["target"])
    assert not torch.equal(data.train[0]["image"], first["image"])
    test = data.evaluate["test"]
    assert torch.equal(test[0]["image"], test[0]["image"])
    state = np.random.get_state()[1].copy()
    build(), test[1]
    assert np.array_equal(np.random.get_state()[1], state)


def test_a_flip_is_the_images_and_the_labels(build):
    plain, flipped = (build(flip=flip, ratio_range=[1.0, 1.0]) for flip in (0.0, 1.0))
    left_first = {149: 1, 74: 2, 0: 3, 255: 4}
    for data, order in ((plain, -1), (flipped, 1)):
        seed(1)
        row = [left_first[int(label)] * order for label in data.train[2]["target"][0]]  # 64x64, so the whole of it
        assert row == sorted(row)


def test_crops_are_those_of_mmsegmentations_own_configuration(build, tree):
    """For the same seed: its transforms by name, decoding by cv2, and the preprocessing of its models."""
    ours = build()  # prepares mmseg
    from mmengine.registry import DefaultScope
    from mmseg.datasets import ADE20KDataset
    from mmseg.models import SegDataPreProcessor

    pipeline = [
        {"type": "LoadImageFromFile"},
        {"type": "LoadAnnotations"},
        {"type": "RandomResize", "scale": (128, 32), "ratio_range": (0.5, 2.0), "keep_ratio": True},
        {"type": "RandomCrop", "crop_size": (32, 32), "cat_max_ratio": 0.75},
        {"type": "RandomFlip", "prob": 0.5},
        {"type": "PhotoMetricDistortion"},
        {"type": "PackSegInputs"},
    ]
    with DefaultScope.overwrite_default_scope("mmseg"):
        paths = {"img_path": "images/training", "seg_map_path": "annotations/training"}
        theirs = ADE20KDataset(data_root=str(tree), data_prefix=paths, pipeline=pipeline)
    prepare = SegDataPreProcessor([127.5] * 3, [127.5] * 3, (32, 32), bgr_to_rgb=True, seg_pad_val=255)
    for number in range(8):
        seed(number)
        packed = theirs[number % 4]
        batch = prepare({"inputs": [packed["inputs"]], "data_samples": [packed["data_samples"]]}, training=True)
        seed(number)
        item = ours.train[number % 4]
        torch.testing.assert_close(item["image"], batch["inputs"][0], atol=1e-6, rtol=0)
        assert torch.equal(item["target"], batch["data_samples"][0].gt_sem_seg.data[0].long())


def test_batches(build):
    data = build()
    crops = next(iter(DataLoader(data.train, batch_size=4, collate_fn=data.collate, num_workers=2)))
    assert crops["image"].shape == (4, 3, 32, 32) and crops["target"].shape == (4, 32, 32)
    whole = list(DataLoader(data.evaluate["test"], batch_size=1, collate_fn=data.collate))
    moved = Fabric(accelerator="cpu", devices=1).to_device(whole[1])
    assert moved["name"] == ["ADE_validation_1"] and moved["target"].shape == (1, 100, 48)
    with pytest.raises(AssertionError, match="one at a time"):
        data.collate(list(data.evaluate["test"]))
    spawned = DataLoader(data.evaluate["test"], num_workers=1, multiprocessing_context="spawn", collate_fn=data.collate)
    assert torch.equal(next(iter(spawned))["image"], whole[0]["image"])
    assert len(pickle.loads(pickle.dumps(data.train))) == 4


def test_names_and_colours_of_the_classes(build):
    from datasets.ade20k import CLASSES, PALETTE

    assert len(CLASSES) == len(PALETTE) == 150 and CLASSES[:3] == ("wall", "building", "sky") and CLASSES[7] == "bed"
    assert PALETTE[2] == (6, 230, 230)
    train = build().train
    assert train.classes == CLASSES and train.palette == PALETTE


def test_folders_that_cannot_be_used(tree, tmp_path):
    """None of this needs mmsegmentation."""
    with pytest.raises(ValueError, match=r"give its folder with data\.root="):
        datasets.build("ade20k")
    with pytest.raises(ValueError, match="no/such/folder is not a folder"):
        datasets.build("ade20k", root="no/such/folder")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="no folder images and annotations; .*found nothing; get ADEChallengeData2016"):
        datasets.build("ade20k", root=str(empty))
    shutil.move(tree / "annotations", tree / "kept")
    with pytest.raises(ValueError, match="no folder annotations; .*found empty/, images/, kept/"):
        datasets.build("ade20k", root=str(tree))
    shutil.move(tree / "kept", tree / "annotations")
    assert find_scenes(str(tree)) == tree
    shutil.move(tree / "images" / "validation", tree / "images" / "val")
    with pytest.raises(ValueError, match="no images/validation; .*images holds training/, val/"):
        datasets.build("ade20k", root=str(tree))
    (tree / "images" / "validation").mkdir()
    (tree / "images" / "validation" / "x.JPEG").touch()
    with pytest.raises(ValueError, match=r"validation has no \.jpg file; .*found x\.JPEG"):
        datasets.build("ade20k", root=str(tree))
    (tree / "annotations" / "training" / "ADE_training_1.png").unlink()
    (tree / "images" / "training" / "ADE_training_2.jpg").unlink()
    with pytest.raises(
        ValueError,
        match="same names: ADE_training_1 without a label map; ADE_training_2 without a photograph; every x.jpg",
    ):
        datasets.build("ade20k", root=str(tree))


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (np.full((48, 120), 151, np.uint8), "has the label 151, where 0 .no class. to 150"),
        (np.full((48, 120), 254, np.uint8), "has the label 254"),
        (np.zeros((48, 120, 3), np.uint8), "is no label map: its pixels are RGB, .*full ADE20K release"),
        (np.full((48, 120), 7, np.uint16), "is no label map: its pixels are I"),
        (np.zeros((120, 48), np.uint8), "is 48x120 pixels and its photograph 120x48"),
    ],
)
def test_label_maps_that_cannot_be_used_are_refused_before_training(build, tree, labels, said):
    Image.fromarray(labels).save(tree / "annotations" / "training" / "ADE_training_3.png")
    with pytest.raises(ValueError, match=f"ADE_training_3.png {said}"):
        build()


def test_files_not_looked_at_before_training_are_refused_when_they_are_read(build, tree):
    data = build()
    Image.fromarray(np.full((80, 50), 151, np.uint8)).save(tree / "annotations" / "training" / "ADE_training_1.png")
    with pytest.raises(ValueError, match="ADE_training_1.png has the label 151"):
        build().train[1]
    photograph = tree / "images" / "training" / "ADE_training_0.jpg"
    photograph.write_bytes(photograph.read_bytes()[:-200])
    with pytest.raises(ValueError, match="cannot read .*ADE_training_0.jpg .*truncated.*copy them again"):
        data.train[0]
    photograph.write_bytes(b"no picture")
    with pytest.raises(ValueError, match="cannot read .*ADE_training_0.jpg"):
        build()


def test_a_palette_does_not_change_the_labels(build, tree):
    path = tree / "annotations" / "validation" / "ADE_validation_0.png"
    labels = blocks(70, 50, [255, 1, 75, 150])  # mmsegmentation takes 255 for no class too
    Image.fromarray(labels).save(path)
    before = build().evaluate["test"][0]["target"]
    assert before.unique().tolist() == [0, 74, 149, 255] and (before == 255).equal(torch.from_numpy(labels == 255))
    image = Image.open(path)
    image.putpalette([value for i in range(256) for value in (255 - i, i, 9)])
    image.save(path)
    assert Image.open(path).mode == "P"
    assert torch.equal(build().evaluate["test"][0]["target"], before)


@pytest.mark.parametrize(
    "option",
    [{"crop_size": 0}, {"scale": [5]}, {"ratio_range": [2.0, 1.0]}, {"flip": 2.0}, {"std": [0, 1, 1]}, {"mean": []}],
)
def test_options_that_do_not_fit(tree, option):
    with pytest.raises(ValueError, match=f"data.{next(iter(option))}="):
        datasets.build("ade20k", root=str(tree), **option)
