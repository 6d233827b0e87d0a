import warnings
from copy import deepcopy
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import experiment
import models
from mita.mechanisms import build
from models.segmentation.inference import slide

if find_spec("mmseg") is None:
    pytest.skip("mmsegmentation is not installed: pip install -r requirements.txt", allow_module_level=True)

from models.segmentation import mmseg as adapter  # noqa: E402 isort: skip, as it comes before mmseg's own modules
from mmengine.config import Config, ConfigDict  # noqa: E402
from mmengine.runner import Runner  # noqa: E402
from mmengine.structures import PixelData  # noqa: E402
from mmseg.registry import MODELS  # noqa: E402
from mmseg.structures import SegDataSample  # noqa: E402
from mmseg.utils import register_all_modules  # noqa: E402

CLASSES, SIDE, PATCH = 5, 32, 4
ATTENTION = dict(name="mita", num_landmarks=4, top_k=3)
MECHANISM = partial(build, "mita", num_landmarks=4, top_k=3)
WHOLE, SLIDE = dict(mode="whole"), dict(mode="slide", crop_size=(SIDE, SIDE), stride=(20, 20))


@pytest.fixture(scope="module", autouse=True)
def registered():
    register_all_modules()


def shipped():
    return Config.fromfile(experiment.CONFIGS / "mmseg/ade20k_s_mita.py")


def shrunk(num_classes=CLASSES, window=SLIDE, **backbone):
    """The model of the shipped configuration, small."""
    config = shipped().model
    config.backbone.update(
        attention=ATTENTION, input_size=(3, SIDE, SIDE), patch_size=PATCH, embed_dim=16, depth=2, num_heads=2, drop_path=0.0,
        init_cfg=None, **backbone,
    )  # fmt: skip
    config.decode_head.update(
        in_channels=16,
        num_classes=num_classes,
        patch_size=PATCH,
        depth=2,
        num_heads=2,
        head_dim=8,
        representatives=(3, 3),
    )
    config.data_preprocessor.size, config.test_cfg = (SIDE, SIDE), ConfigDict(window)
    return config


def segmenter():
    torch.manual_seed(0)
    return models.build(
        "segmenter", mechanism_factory=MECHANISM, num_classes=CLASSES, input_size=(3, SIDE, SIDE),
        patch_size=PATCH, embed_dim=16, depth=2, num_heads=2, decoder_depth=2, decoder_heads=2, decoder_head_dim=8,
        representatives=(3, 3),
    ).eval()  # fmt: skip


def pair(window=SLIDE):
    """This project's segmenter, and mmseg's with its weights."""
    ours, theirs = segmenter(), MODELS.build(shrunk(window=window)).eval()
    theirs.backbone.load_state_dict(ours.encoder.state_dict())
    theirs.decode_head.decoder.load_state_dict(ours.decoder.state_dict())
    return ours, theirs


def sample(size, label=None):
    data = SegDataSample(metainfo=dict(img_shape=size, ori_shape=size))
    if label is not None:
        data.gt_sem_seg = PixelData(data=label[None])
    return data


def test_the_shipped_configuration_is_the_authors_recipe():
    config = shipped()
    assert config.optim_wrapper.optimizer == dict(type="SGD", lr=1e-3, momentum=0.9, nesterov=True, weight_decay=0.0)
    (schedule,) = config.param_scheduler
    assert (schedule.type, schedule.power, schedule.eta_min, schedule.end) == ("PolyLR", 0.9, 1e-5, 160_000)
    assert (config.train_cfg.max_iters, config.train_dataloader.batch_size) == (160_000, 8)
    assert config.model.test_cfg == dict(mode="slide", crop_size=(512, 512), stride=(480, 480))
    assert "mmseg" not in experiment.groups()  # it is nothing that this project's own configurations choose from
    assert config.model.data_preprocessor.mean == config.model.data_preprocessor.std == [127.5] * 3


def test_the_shipped_model_is_that_of_the_experiment():
    config = experiment.compose(["experiment=ade20k_s_mita", "model.pretrained=null"])
    with torch.device("meta"):
        ours = models.build(
            "segmenter_small", mechanism_factory=experiment.mechanism_factory(config), num_classes=150
        ).state_dict()
    theirs = MODELS.build(shipped().model)
    names = {"backbone.": "encoder.", "decode_head.decoder.": "decoder."}
    renamed = {
        names[p] + name.removeprefix(p): t
        for name, t in theirs.state_dict().items()
        for p in names
        if name.startswith(p)
    }
    assert len(renamed) == len(theirs.state_dict())
    assert {name: t.shape for name, t in renamed.items()} == {name: t.shape for name, t in ours.items()}
    block = theirs.backbone.blocks[0].attn.mechanism
    assert (block.num_landmarks, block.top_k) == (config.attention.num_landmarks, config.attention.top_k) == (49, 49)


@pytest.mark.parametrize("size", [(32, 32), (32, 48), (30, 37)])
def test_loss_is_this_projects_and_reaches_every_weight(size):
    ours, theirs = pair()
    images, labels = torch.randn(2, 3, *size), torch.randint(CLASSES, (2, *size))
    labels[:, :5] = 255
    losses = theirs.loss(images, [sample(size, label) for label in labels])
    expected = F.cross_entropy(ours(images), labels, ignore_index=255)
    torch.testing.assert_close(losses["decode.loss_ce"], expected, rtol=0, atol=1e-5)
    losses["decode.loss_ce"].backward()
    for name, parameter in theirs.named_parameters():
        assert parameter.grad.isfinite().all() and parameter.grad.ne(0).any(), name


@pytest.mark.parametrize("size", [(32, 32), (45, 61), (33, 70), (20, 27)])
def test_predictions_are_this_projects(size):
    """Non-square images, such that do not divide into patches, and such that are smaller than the window."""
    image = torch.randn(1, 3, *size)
    with torch.no_grad():
        ours, theirs = pair(WHOLE)
        (whole,) = theirs.predict(image, [sample(size)])
        torch.testing.assert_close(whole.seg_logits.data, ours(image)[0], rtol=0, atol=1e-5)
        assert torch.equal(whole.pred_sem_seg.data[0], whole.seg_logits.data.argmax(0))
        ours, theirs = pair(SLIDE)
        (slid,) = theirs.predict(image, [sample(size)])
        expected = slide(ours, image[0], SIDE, 20) if min(size) >= SIDE else ours(image)[0]
        torch.testing.assert_close(slid.seg_logits.data, expected, rtol=0, atol=1e-5)


def test_pretrained_weights_survive_initialisation(tmp_path):
    """timm's backbones do not: mmengine's runner calls their `init_weights`, which draws new ones."""
    torch.manual_seed(1)
    source = models.segmentation.Backbone(
        partial(build, "softmax"), (3, SIDE, SIDE), patch_size=PATCH, embed_dim=16, depth=2, num_heads=2
    )
    torch.save(source.state_dict(), tmp_path / "backbone.pth")
    config = shrunk()
    config.backbone.init_cfg = dict(type="Pretrained", checkpoint=str(tmp_path / "backbone.pth"))
    model = MODELS.build(config)
    head = deepcopy(model.decode_head.state_dict())
    assert not torch.equal(model.backbone.pos_embed, source.pos_embed)  # nothing is read before it is asked for
    model.init_weights()
    assert_same(model.backbone.state_dict(), source.state_dict())
    assert_same(model.decode_head.state_dict(), head)
    with torch.no_grad():
        model.backbone.cls_token.zero_()
    model.init_weights()
    model.backbone.init_weights()
    assert model.backbone.cls_token.eq(0).all()


def test_weights_loaded_by_hand_survive_initialisation():
    ours, theirs = pair()
    theirs.init_weights()
    assert_same(theirs.backbone.state_dict(), ours.encoder.state_dict())
    assert_same(theirs.decode_head.decoder.state_dict(), ours.decoder.state_dict())


def assert_same(state, expected):
    assert state.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in state.items())


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        (dict(attention=dict(name="mitta")), "did you mean mita"),
        (dict(attention=dict(name="mita", top_kk=3)), "did you mean top_k"),
        (dict(attention=dict(top_k=3)), r"attention names its mechanism, dict\(name='mita', ...\)"),
        (dict(attention=ATTENTION, init_cfg=dict(type="Normal", std=0.1)), "Pretrained.*Normal"),
        (dict(attention=ATTENTION, init_cfg=dict(type="Pretrained", checkpoint="a", prefix="b")), "Pretrained.*prefix"),
    ],
)
def test_a_slip_is_answered(options, answer):
    with pytest.raises(ValueError, match=answer):
        adapter.MiTABackbone(
            input_size=(3, SIDE, SIDE), patch_size=PATCH, embed_dim=16, depth=1, num_heads=2, **options
        )


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A few photographs with ADE20K's label maps: 0 for no class, 1 to 150."""
    root, random = tmp_path_factory.mktemp("ADEChallengeData2016"), np.random.default_rng(0)
    for split, sizes in {"training": [(40, 50), (64, 33), (50, 50)], "validation": [(40, 56), (70, 36)]}.items():
        for kind in ("images", "annotations"):
            (root / kind / split).mkdir(parents=True)
        for number, size in enumerate(sizes, 1):
            name = f"ADE_{split[:5]}_{number:08}"
            Image.fromarray(random.integers(256, size=(*size, 3), dtype=np.uint8)).save(
                root / f"images/{split}/{name}.jpg"
            )
            label = random.integers(151, size=size, dtype=np.uint8)
            Image.fromarray(label).save(root / f"annotations/{split}/{name}.png")
    return root


def small_run(tree, work_dir):
    """The shipped configuration with a small model, small crops and two steps."""
    config = shipped()
    config.model, config.work_dir, config.log_level = shrunk(num_classes=150), str(work_dir), "ERROR"
    for name in ("train", "val", "test"):
        loader = config[f"{name}_dataloader"]
        loader.update(batch_size=2 if name == "train" else 1, num_workers=0, persistent_workers=False)
        loader.dataset.data_root = str(tree)
    config.train_dataloader.dataset.pipeline[2].scale = (160, 40)
    config.train_dataloader.dataset.pipeline[3].crop_size = (SIDE, SIDE)
    config.val_dataloader.dataset.pipeline[1].scale = config.test_dataloader.dataset.pipeline[1].scale = (160, 40)
    for resize, ratio in zip(config.tta_pipeline[1].transforms[0], (0.5, 0.75, 1.0, 1.25, 1.5, 1.75), strict=True):
        assert resize.scale == (int(2048 * ratio), int(512 * ratio))
        resize.scale = (int(160 * ratio), int(40 * ratio))
    config.train_cfg.update(max_iters=2, val_interval=2)
    config.default_hooks.checkpoint.interval = 2
    return config


@pytest.fixture
def runner():
    """Runners by configuration, each with a name of its own, as mmengine keeps them by name."""
    made = []

    def make(config):
        config.experiment_name = f"mmseg-{id(config)}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.append(Runner.from_cfg(config))
        return made[-1]

    return make


@pytest.mark.filterwarnings("ignore")
def test_a_runner_trains_and_evaluates(tree, tmp_path, runner):
    config = small_run(tree, tmp_path)
    run = runner(config)
    before = {name: p.clone() for name, p in run.model.named_parameters()}
    metrics = []
    run.val_loop.evaluator.evaluate = lambda n, f=run.val_loop.evaluator.evaluate: metrics.append(f(n)) or metrics[-1]
    run.train()
    assert run.iter == 2 and set(metrics[0]) == {"aAcc", "mIoU", "mAcc"} and 0 <= metrics[0]["mIoU"] <= 100
    assert all(p.isfinite().all() for p in run.model.parameters())
    moved = [name for name, p in run.model.named_parameters() if not torch.equal(p, before[name])]
    assert len(moved) > 0.9 * len(before)  # but for steps too small for float32
    rates = run.param_schedulers[0].get_last_value()
    assert rates == pytest.approx([1e-5 + (1e-3 - 1e-5) * (1 - 2 / 160_000) ** 0.9])
    saved = torch.load(tmp_path / "iter_2.pth", weights_only=False)["state_dict"]
    assert_same(saved, {name: tensor.cpu() for name, tensor in run.model.state_dict().items()})


@pytest.mark.filterwarnings("ignore")
def test_several_scales_and_mirrors(tree, tmp_path, runner):
    """As mmseg's tools/test.py --tta; the photographs of the smaller scales are smaller than the window."""
    config = small_run(tree, tmp_path)
    config.test_dataloader.dataset.pipeline = config.tta_pipeline
    config.model = dict(config.tta_model, module=config.model)
    run = runner(config)
    calls = []
    run.model.module.decode_head.decoder.register_forward_hook(lambda head, inputs, scores: calls.append(scores.shape))
    metrics = run.test()
    assert set(metrics) == {"aAcc", "mIoU", "mAcc"} and all(np.isfinite(list(metrics.values())))
    assert len(calls) > 2 * 6 * 2 and any(shape[-2:] != (SIDE // PATCH,) * 2 for shape in calls)
