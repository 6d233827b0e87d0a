"""Tiny folders and shards in ImageNet's form: what is read, and what is refused and how."""

import io
import random
import shutil
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.readers.reader_image_folder import find_images_and_targets
from torch.utils.data import DataLoader

import datasets
from datasets.imagenet import differences

CLASSES = ("n01440764", "n01443537", "n01484850")


def encoded(color: tuple[int, int, int], kind: str = "PNG", size: tuple[int, int] = (9, 7), mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, color).convert(mode).save(buffer, kind)
    return buffer.getvalue()


def color_of(label: int) -> tuple[int, int, int]:
    return (60 * label + 40, 20, 200 - 60 * label)


@pytest.fixture
def folders(tmp_path):
    """Four training and two validation images of each of three classes, in the formats ImageNet really holds."""
    for split, count in (("train", 4), ("val", 2)):
        for label, name in enumerate(CLASSES):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                kind, mode = (("JPEG", "RGB"), ("PNG", "RGB"), ("JPEG", "CMYK"), ("PNG", "RGBA"))[i]
                (folder / f"{name}_{i}.{kind}").write_bytes(encoded(color_of(label), kind, mode=mode))
    (tmp_path / "train" / ".DS_Store").write_bytes(b"x")
    return tmp_path


@pytest.fixture
def shards(tmp_path, monkeypatch):
    """The same in WebDataset form, labels interleaved over the shards."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, count in (("in1k-train-0000.tar", 4), ("in1k-train-0001.tar", 8), ("in1k-validation-00.tar", 6)):
        with tarfile.open(tmp_path / name, "w") as tar:
            for i in range(count):
                add(tar, f"{name[5:10]}_{i}.cls", str(i % 3).encode())
                add(tar, f"{name[5:10]}_{i}.jpg", encoded(color_of(i % 3), "JPEG"))
                add(tar, f"{name[5:10]}_{i}.json", b"{}")
    return tmp_path


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def build(root, **options):
    return datasets.build("imagenet", root=str(root), image_size=16, **options)


def check_colors(data):
    """Every evaluation image has the colour of its label, normalised: images and labels belong together."""
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    labels = []
    for item in data.evaluate["test"]:
        label = int(item["target"])
        expected = (torch.tensor(color_of(label)) / 255 - mean) / std
        assert item["image"].shape == (3, 16, 16) and item["image"].dtype == torch.float32
        torch.testing.assert_close(item["image"].mean((1, 2)), expected, atol=0.15, rtol=0)
        labels.append(label)
    assert sorted(labels) == [0, 0, 1, 1, 2, 2]


def test_class_folders(folders):
    data = build(folders)
    assert data.counts == {"train": 12, "test": 6} and data.num_classes == 3 and data.input_size == (3, 16, 16)
    assert data.short == (
        "3 classes instead of 1000; 12 training images instead of 1281167; 6 validation images instead of 50000"
    )
    check_colors(data)


def test_the_order_is_timms(folders, tmp_path_factory):
    """A seed stands for an order of the numbers of images, so what number an image has must not change."""
    for split in ("train", "val"):
        for name in ("cat", "cat2", "Cat10", "n3"):
            (folders / split / name).mkdir()
            for i, file in enumerate(("10.png", "9.JPG", "b2.jpeg", "B10.png", "x.txt")):
                (folders / split / name / file).write_bytes(encoded((i, 0, 0)))
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "linked"
    (folders / "val" / "n3").rename(elsewhere)
    (folders / "val" / "n3").symlink_to(elsewhere, target_is_directory=True)
    for split, data in (("train", build(folders).train), ("val", build(folders).evaluate["test"])):
        source, folder = data.source, str(folders / split)
        expected, _ = find_images_and_targets(folder, class_to_idx={name: i for i, name in enumerate(source.classes)})
        assert [source.where(i) for i in range(len(data))] == [path for path, _ in expected]
        assert source.targets.tolist() == [target for _, target in expected]
    names = [source.where(i).removeprefix(folder + "/") for i in range(len(data))]
    # the whole path is sorted, so a class may come before another that its own name comes after
    assert names[:5] == ["cat2/9.JPG", "cat2/10.png", "cat2/b2.jpeg", "cat2/B10.png", "Cat10/9.JPG"]
    assert names[8:12] == ["cat/9.JPG", "cat/10.png", "cat/b2.jpeg", "cat/B10.png"]


def test_shards(shards):
    data = build(shards)
    assert data.counts == {"train": 12, "test": 6} and data.num_classes == 3
    check_colors(data)
    assert sorted(int(item["target"]) for item in data.train) == [0] * 5 + [1] * 4 + [2] * 3


def test_shards_in_folders_and_their_kept_index(shards, monkeypatch):
    for split, pattern in (("train", "*train*.tar"), ("val", "*val*.tar")):
        (shards / split).mkdir()
        for path in shards.glob(pattern):
            path.rename(shards / split / path.name)
    first = build(shards)
    monkeypatch.setattr("datasets.shards.index_shards", lambda paths: pytest.fail("indexed again"))
    assert build(shards).fingerprint == first.fingerprint
    check_colors(build(shards))
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(shards / "cache"))
    with tarfile.open(shards / "train" / "in1k-train-0001.tar", "a") as tar:
        add(tar, "late.cls", b"1")
        add(tar, "late.jpg", encoded(color_of(1), "JPEG"))
    changed = build(shards)
    assert changed.counts["train"] == 13 and changed.fingerprint != first.fingerprint


def test_loader_processes_read_both_forms(folders, shards):
    """Each image once, whatever the number of processes; here folders and archives lie side by side."""
    folder_data = build(folders)
    for split in ("train", "val"):
        shutil.rmtree(folders / split)
    shard_data = build(shards)
    assert folder_data.train.source.classes == list(CLASSES)
    assert shard_data.train.source.classes == ["0", "1", "2"]
    batches = list(DataLoader(shard_data.evaluate["test"], batch_size=4, num_workers=2))
    assert [len(batch["target"]) for batch in batches] == [4, 2]
    assert torch.cat([batch["target"] for batch in batches]).tolist() == [0, 1, 2, 0, 1, 2]


def test_extracted_folders_win_over_archives_beside_them(folders):
    (folders / "ILSVRC2012_img_train.tar").write_bytes(b"")
    (folders / "ILSVRC2012_img_val.tar").write_bytes(b"")
    assert build(folders).counts["train"] == 12


def test_augmentation_follows_the_three_global_seeds(folders):
    def item():
        random.seed(5), np.random.seed(5), torch.manual_seed(5)
        return data.train[3]["image"]

    for options in ({}, {"auto_augment": "3a", "random_erase": 0.0}, {"auto_augment": None, "color_jitter": 0.0}):
        data = build(folders, **options)
        assert torch.equal(item(), item()) and item().shape == (3, 16, 16)


def test_the_transforms_are_those_of_deit(folders):
    data = datasets.build("imagenet", root=str(folders))
    train, test = str(data.train.transform), str(data.evaluate["test"].transform)
    for part in (
        "scale=(0.08, 1.0)",
        "bicubic",
        "RandomHorizontalFlip(p=0.5)",
        "RandAugment(n=2",
        "p=0.25, mode=pixel",
    ):
        assert part in train, part
    assert "ColorJitter" not in train
    for part in ("Resize(size=256, interpolation=bicubic", "CenterCrop(size=(224, 224))"):
        assert part in test, part
    assert "Resize(size=224" in str(
        datasets.build("imagenet", root=str(folders), crop_pct=1.0).evaluate["test"].transform
    )
    three = str(build(folders, auto_augment="3a", random_erase=0.0).train.transform)
    assert "ColorJitter" in three and "GaussianBlurRand" in three and "RandomErasing" not in three


def test_limit(folders):
    data = build(folders, limit=5)
    assert data.counts == {"train": 5, "test": 5} and data.short.endswith("; limit=5")
    assert data.fingerprint == build(folders).fingerprint


def test_the_fingerprint_follows_names_and_counts(folders):
    before = build(folders).fingerprint
    (folders / "train" / CLASSES[0] / "one_more.png").write_bytes(encoded((0, 0, 0)))
    assert build(folders).fingerprint != before


def test_only_the_whole_of_imagenet_is_not_short():
    class Source:
        def __init__(self, classes, count):
            self.classes, self.targets = classes, np.zeros(count, np.int8)

    numbers = [str(i) for i in range(1000)]
    assert differences(Source(numbers, 1_281_167), Source(numbers, 50_000)) == []
    letters = [f"class {i}" for i in range(1000)]
    assert "WordNet" in differences(Source(letters, 1_281_167), Source(letters, 50_000))[0]
    assert differences(Source(numbers, 1_281_166), Source(numbers, 50_000)) == [
        "1281166 training images instead of 1281167"
    ]


def test_a_broken_image_is_named(folders):
    broken = folders / "train" / CLASSES[1] / "broken.JPEG"
    broken.write_bytes(encoded((1, 2, 3), "JPEG", size=(64, 64))[:-300])
    data = build(folders, auto_augment=None)
    with pytest.raises(ValueError, match="cannot read the image .*broken.JPEG"):
        list(data.train)
    with pytest.raises(ValueError, match="broken.JPEG"):
        list(DataLoader(data.train, num_workers=1))


def test_a_broken_image_in_a_shard_is_named(shards):
    with tarfile.open(shards / "in1k-train-0000.tar", "a") as tar:
        add(tar, "bad.jpg", b"no image")
        add(tar, "bad.cls", b"0")
    with pytest.raises(ValueError, match="cannot read the image bad.jpg in .*train-0000.tar"):
        list(build(shards).train)


def test_more_than_8_bits_a_channel_are_refused(folders):
    """Pillow would clip them: nearly all of a 16-bit image would be white."""
    Image.fromarray(np.full((9, 7), 30_000, np.uint16)).save(folders / "train" / CLASSES[1] / "deep.png")
    data = build(folders, auto_augment=None)
    with pytest.raises(ValueError, match="deep.png has more than 8 bits a channel .*; save it with 8 bits a channel"):
        list(data.train)


# ---- what is refused, each with a sentence that says what to do


def test_no_root():
    with pytest.raises(ValueError, match=r"data\.root="):
        datasets.build("imagenet")
    with pytest.raises(ValueError, match=r"data\.root=/does/not/exist is not a folder; expected one that holds train"):
        build("/does/not/exist")


@pytest.mark.parametrize(("remove", "message"), [(["val"], "has no val;"), (["train", "val"], "no train and no val")])
def test_missing_splits(folders, remove, message):
    for split in remove:
        shutil.rmtree(folders / split)
    with pytest.raises(ValueError, match=message):
        build(folders)


def test_one_split_as_shards(folders):
    shutil.rmtree(folders / "train")
    (folders / "in1k-train-000.tar").write_bytes(b"")
    with pytest.raises(ValueError, match="one split as shards"):
        build(folders)


def test_empty_split(folders):
    shutil.rmtree(folders / "val")
    (folders / "val").mkdir()
    with pytest.raises(ValueError, match="val is empty; expected one folder a class"):
        build(folders)


def test_flat_val(folders):
    shutil.rmtree(folders / "val")
    (folders / "val").mkdir()
    for i in range(5):
        (folders / "val" / f"ILSVRC2012_val_0000000{i}.JPEG").write_bytes(encoded((0, 0, 0), "JPEG"))
    message = "val holds 5 images directly .ILSVRC2012_val_00000000.JPEG.* and 2 more.*move each into a folder"
    with pytest.raises(ValueError, match=message):
        build(folders)


def test_numbered_folders(folders):
    for split in ("train", "val"):
        for i, name in enumerate(CLASSES, 1):
            (folders / split / name).rename(folders / split / str(i))
    with pytest.raises(ValueError, match="plain numbers .1, 2, 3.*rename them to their WordNet ids"):
        build(folders)


def test_other_classes_in_val(folders):
    shutil.rmtree(folders / "val" / CLASSES[0])
    (folders / "val" / CLASSES[1]).rename(folders / "val" / "n09999999")
    message = "has 3 classes and .*val has 2, .*only in train: n01440764, n01443537; only in val: n09999999"
    with pytest.raises(ValueError, match=message):
        build(folders)


def test_class_without_images(folders):
    """As in Tiny ImageNet, whose images lie one folder deeper."""
    inner = folders / "train" / CLASSES[0] / "images"
    inner.mkdir()
    for path in inner.parent.glob("*.*"):
        path.rename(inner / path.name)
    with pytest.raises(ValueError, match="lies in these class folders of .*train: n01440764; every class folder"):
        build(folders)


@pytest.mark.parametrize("inner", ["more", "more/still", CLASSES[1]])
def test_images_one_folder_deeper(folders, inner):
    """Beside images of the class itself; a folder within it may also have the name of another class."""
    deeper = folders / "train" / CLASSES[0] / inner
    deeper.mkdir(parents=True)
    (deeper / "x.png").write_bytes(encoded((0, 0, 0)))
    message = f"images lie deeper .*train, in .*: {CLASSES[0]}/{inner.split('/')[0]}; every class folder must hold"
    with pytest.raises(ValueError, match=message):
        build(folders)


def test_folders_without_images_and_hidden_ones_are_passed_over(folders):
    before = build(folders)
    for name, file in (("boxes", "x.txt"), (".thumbnails", "x.png"), ("empty", None)):
        inner = folders / "val" / CLASSES[0] / name
        inner.mkdir()
        if file:
            (inner / file).write_bytes(encoded((0, 0, 0)))
    assert build(folders).fingerprint == before.fingerprint


def test_options_that_do_not_fit(folders):
    with pytest.raises(ValueError, match="auto_augment=nonsense"):
        build(folders, auto_augment="nonsense")
    with pytest.raises(ValueError, match="crop_pct=87.5"):
        build(folders, crop_pct=87.5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a.jpg": b"x"}, "a has only one of them"),
        ({"a.jpg": b"x", "a.cls": b"cat"}, "a.cls holds b'cat', not a class number"),
        ({"n01440764.tar": b"x"}, "it holds no image"),
        ({"a.jpg": b"x", "a.cls": b"7"}, "no image of class 4"),
    ],
)
def test_shards_that_are_none(shards, content, message):
    with tarfile.open(shards / "in1k-train-0002.tar", "w") as tar:
        if "class 4" in message:
            add(tar, "b.jpg", b"x"), add(tar, "b.cls", b"3")
        for name, value in content.items():
            add(tar, name, value)
    with pytest.raises(ValueError, match=message):
        build(shards)


def test_a_shard_that_is_no_tar_file(shards):
    (shards / "in1k-train-0002.tar").write_bytes(b"not a tar file" * 100)
    with pytest.raises(ValueError, match="train-0002.tar is not a shard that can be read"):
        build(shards)


def test_shards_with_another_number_of_classes(shards):
    with tarfile.open(shards / "in1k-train-0002.tar", "w") as tar:
        add(tar, "b.jpg", b"x"), add(tar, "b.cls", b"3")
    with pytest.raises(ValueError, match="training shards hold 4 classes and the validation shards 3"):
        build(shards)
