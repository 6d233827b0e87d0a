"""Configurations: each experiment composes, and a slip is answered with the nearest name."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

import command_line
import datasets
import evaluate
import experiment
import train
from datasets import Data

ROOT = Path(__file__).parents[1]
EXPERIMENTS = experiment.groups()["experiment"]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_composes(name):
    config = experiment.compose([f"experiment={name}"])
    assert config.name == name
    experiment.build_recipe(config)
    experiment.build_machine(config)
    header = (experiment.CONFIGS / "experiment" / f"{name}.yaml").read_text().splitlines()[1:4]
    assert all(line.startswith("# ") for line in header)
    assert "Reported:" in header[1] and "Cost:" in header[1]
    assert f"experiment={name}" in header[2]


@pytest.mark.parametrize(
    "name",
    [n for n in EXPERIMENTS if n.startswith(("deit", "vit5_s", "ade20k", "digit_scenes", "lra", "longdoc", "listops"))],
)
def test_headers_state_the_computed_cost(name):
    parameters, multiply_adds = experiment.cost_of(experiment.compose([f"experiment={name}"]))
    header = (experiment.CONFIGS / "experiment" / f"{name}.yaml").read_text()
    assert f"{multiply_adds / 1e9:.3f} G" in header
    assert f"{parameters / 1e6:.2f} M" in header


def test_the_deit_recipe_is_the_papers():
    recipe = experiment.build_recipe(experiment.compose(["experiment=deit_s_mita"]))
    assert (recipe.epochs, recipe.batch_size, recipe.repeats, recipe.warmup) == (300, 1024, 3, 5)
    assert (recipe.lr, recipe.weight_decay, recipe.ema_decay, recipe.min_lr) == (1e-3, 0.05, 0.99996, 1e-5)
    config = experiment.compose(["experiment=deit_s_mita"])
    assert (config.task.mixup, config.task.cutmix, config.task.smoothing, config.model.drop_path) == (
        0.8,
        1.0,
        0.1,
        0.1,
    )
    assert (config.attention.num_landmarks, config.attention.top_k) == (25, 25)
    assert config.model.attention_init == "torch_default"
    assert experiment.compose(["experiment=deit_s_softmax"]).model.attention_init == "trunc_normal"


@pytest.mark.parametrize("name", ["vit5_s_mita", "deit3_s_softmax"])
def test_the_vit5_recipe_is_the_papers(name):
    config = experiment.compose([f"experiment={name}"])
    recipe, data, task = experiment.build_recipe(config), config.data, config.task
    assert (recipe.epochs, recipe.batch_size, recipe.repeats, recipe.warmup) == (800, 2048, 3, 5)
    assert (recipe.optimizer, recipe.lr, recipe.weight_decay, recipe.eps) == ("lamb", 4e-3, 0.05, 1e-8)
    assert (recipe.warmup_lr, recipe.min_lr, recipe.ema_decay, recipe.clip_norm) == (1e-6, 1e-5, 0.99996, None)
    assert recipe.precision == {"vit5_s_mita": "bf16", "deit3_s_softmax": "fp16"}[name]
    assert (task.loss, task.mixup, task.cutmix, task.smoothing) == ("bce", 0.8, 1.0, 0.0)
    assert (data.crop_pct, data.auto_augment, data.color_jitter, data.random_erase) == (1.0, "3a", 0.3, 0.0)
    assert (config.model.drop_path, config.model.drop_path_schedule, config.model.layer_scale) == (
        0.05,
        "constant",
        1e-4,
    )
    assert experiment.compose([f"experiment={name}", "data=digits"]).data.name == "digits"
    with pytest.raises(ValueError, match="data.crop_pct"):
        experiment.compose(["experiment=digits_mita", "recipe=vit5_800ep"])


@pytest.mark.parametrize(
    ("override", "answer"),
    [
        ("recipe.epoch=3", "did you mean recipe.epochs"),
        ("epochs=3", "did you mean recipe.epochs"),
        ("data.val_fraction=0.1", "--cfg job prints all keys"),
        ("experiment=digit_mita", r"did you mean digits_mita .*\?$"),
        ("attention=mitta", "did you mean mita"),
        ("model=deit_huge", "unknown model 'deit_huge'"),
        ("recipe.lr=abc", "recipe.lr is a float"),
        ("recipe.epochs=1.5", "recipe.epochs is an int"),
        ("seed=true", "seed is an int"),
        ("data.limit=None", "data.limit=null"),
        ("+extra=1", "without \\+ or ~"),
        ("~seed", "without \\+ or ~"),
        ("seed=0,1", "train.py -m"),
        ("just words", "is not key=value"),
        ("recipe.optimizer=adamm", "unknown recipe.optimizer 'adamm'; did you mean"),
    ],
)
def test_a_slip_is_answered(override, answer):
    with pytest.raises(ValueError, match=answer):
        experiment.compose([override])


@pytest.mark.parametrize(
    ("override", "answer"),
    [
        ("recipe.lr=-1", "recipe.lr must be above 0"),
        ("recipe.clip_norm=0", "recipe.clip_norm must be above 0"),
        ("recipe.warmup=-1", "recipe.warmup must be at least 0"),
        ("recipe.weight_decay=-0.1", "recipe.weight_decay must be at least 0"),
        ("recipe.ema_decay=2", "recipe.ema_decay must be at most 1"),
        ("trainer.accelerator=tpu", "trainer.accelerator must be one of auto, cpu"),
        ("trainer.accelerator=mps", "trainer.accelerator must be one of auto, cpu, gpu, cuda"),
        ("trainer.devices=0", "trainer.devices must be at least 1"),
        ("trainer.devices=all", "trainer.devices must be a number of devices or auto"),
        ("trainer.max_batch_per_device=0", "trainer.max_batch_per_device must be at least 1"),
        ("trainer.max_steps=0", "trainer.max_steps must be at least 1"),
        ("trainer.workers=-1", "trainer.workers must be at least 0"),
        ("model.num_heads=0", "model.num_heads=0 must be 1 or more"),
        ("model.num_heads=5", "the width 64 does not divide into 5 heads"),
        ("model.patch_size=0", "model.patch_size=0 must be 1 or more"),
        ("model.depth=0", "model.depth=0 must be 1 or more"),
        ("model.drop_path=1.0", "model.drop_path=1.0 must be a share"),
        ("attention.num_landmarks=15", "15 is no square"),
        ("attention.num_landmarks=0", "at least 1"),
        ("attention.experts_per_query=17", "between 1 and 16"),
    ],
)
def test_a_number_out_of_range_is_refused_before_a_run_has_a_folder(override, answer):
    """As train.py goes: configuration, machine, model, and the cost on the first lines of its screen."""
    with pytest.raises(ValueError, match=answer):
        config = experiment.compose([override])
        experiment.build_machine(config)
        experiment.cost_of(config)


@pytest.mark.parametrize(
    ("override", "root"),
    [
        ("data.root=~/images", f"{Path.home()}/images"),
        ("data.root=~", f"{Path.home()}"),
        ('data.root="/data/images (1)"', "/data/images (1)"),
        ("data.root=/data/images (1)", "/data/images (1)"),
        ("data.root=/data/é", "/data/é"),
        ("data.root=/data/it's #1", "/data/it's #1"),
        ('data.root=/data/a"b{', '/data/a"b{'),
        ("data.root=/data/my images", "/data/my images"),
    ],
)
def test_paths_are_taken_as_they_are_typed(override, root):
    """Shells leave the ~ of key=~/images to the program."""
    assert experiment.compose(["data=imagenet", override]).data.root == root


def test_an_option_that_does_not_exist_is_refused_by_what_is_built():
    config = experiment.compose(["experiment=digits_mita"])
    OmegaConf.set_struct(config, False)
    config.attention.top_kk = 3
    with pytest.raises(ValueError, match="did you mean top_k"):
        experiment.cost_of(config)


def test_choosing_another_part_names_another_run():
    assert experiment.compose(["experiment=digits_mita", "attention=softmax"]).name == "digits_mita,attention=softmax"
    assert experiment.compose(["attention.top_k=4", "trainer=cpu"]).name == "digits_mita"
    assert experiment.compose(["attention=softmax", "name=mine"]).name == "mine"


def test_windows_follow_the_crop():
    config = experiment.compose(["experiment=ade20k_s_mita", "data.crop_size=640"])
    assert config.task.window == 640
    assert experiment.compose(["experiment=ade20k_l_softmax"]).task.window == 640
    with pytest.raises(ValueError, match="task.window cannot be had .*data.crop_size.*go together"):
        experiment.compose(["experiment=digits_mita", "recipe=ade20k_160k"])


@pytest.mark.parametrize(
    ("overrides", "answer"),
    [
        (["experiment=digits_mita", "data=digit_scenes"], "data=digit_scenes: one label per pixel; model (vit): one"),
        (["experiment=digits_mita", "model=segmenter_digits"], "model (segmenter): one label per pixel"),
        (["experiment=digit_scenes_mita", "model=vit_digits"], "model (vit): one label per item"),
        (["experiment=digit_scenes_mita", "recipe=digits"], "(classification): one label per item"),
        (["experiment=lra_listops_mita", "recipe=digits"], "the task reads image, but items of listops hold tokens"),
    ],
)  # fmt: skip
def test_parts_of_several_tasks_are_refused(overrides, answer):
    """Before the first step: in training they would end in an error about tensors."""
    config = experiment.compose(overrides)
    size, classes = datasets.shape_of(**experiment.resolved(config.data))
    target = torch.zeros(size[1:] if config.data.name == "digit_scenes" else (), dtype=torch.int64)
    inputs = {"tokens": torch.ones(size), "length": target} if len(size) == 1 else {"image": torch.ones(size)}
    data = Data(config.data.name, [{**inputs, "target": target}], {}, classes, size, "0", {})
    with pytest.raises(ValueError) as error:
        experiment.build_task_for(config, data, experiment.build_model(config, data, pretrained=False))
    assert answer in str(error.value)


def test_a_sweep_is_every_combination():
    runs = experiment.expand(["experiment=digits_mita,digits_softmax", "seed=0,1,2", "recipe.batch_size=32"])
    assert len(runs) == 6
    assert ["experiment=digits_softmax", "seed=2", "recipe.batch_size=32"] in runs


def run_train(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "train.py", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_help_is_worth_reading():
    text = run_train("--help").stdout
    assert all(name in text for name in EXPERIMENTS)
    assert "data.root=" in text and "seed=" in text and "--cfg job" in text


def test_cfg_job_prints_the_configuration():
    text = run_train("experiment=deit_s_mita", "--cfg", "job").stdout
    assert "num_landmarks: 25" in text and "epochs: 300" in text


def test_a_users_error_is_one_sentence():
    done = run_train("experiment=deit_s_mita", "data.root=no/such/folder", "trainer.accelerator=cpu", "output=nowhere")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr and "no/such/folder" in done.stderr
    assert not (ROOT / "nowhere").exists()


def test_configurations_and_sweeps_of_evaluations(tmp_path, monkeypatch, capsys):
    """run= and checkpoint= are evaluate.py's own keys, with --cfg job and -m too."""
    OmegaConf.save(experiment.compose(["experiment=digits_mita"]), tmp_path / "config.yaml")
    arguments = [f"run={tmp_path}", "attention.top_k=7"]
    monkeypatch.setattr(sys, "argv", ["evaluate.py", *arguments, "--cfg", "job"])
    assert command_line.run(evaluate.main, evaluate.configuration, str) == 0
    assert "top_k: 7\n" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["evaluate.py", "-m", f"run={tmp_path}", "seeds=4,5"])
    assert command_line.run(evaluate.main, evaluate.configuration, str) == 2
    assert capsys.readouterr().err == "error: Unknown key 'seeds'; did you mean seed?\n"


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["-m"], "-m seed=0,1,2"),
        (["-m", "attention=glob(m*)"], "give the values, as a,b,c"),
        (["--experiment", "digits_mita"], "all else is key=value"),
    ],
)
def test_flags_are_explained(arguments, answer, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    assert command_line.run(lambda overrides: None, experiment.compose, str) == 2
    assert answer in capsys.readouterr().err


@pytest.mark.parametrize("key", ["output", "results"])
def test_a_folder_that_cannot_be_made_is_one_sentence(key, tmp_path, monkeypatch, capsys):
    """Before anything is trained."""
    (tmp_path / "file").touch()
    place = {"output": tmp_path / "outputs", "results": tmp_path / "results", key: tmp_path / "file"}
    arguments = [f"{name}={path}" for name, path in place.items()]
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments, "trainer=cpu", "data.limit=64"])
    monkeypatch.setattr(train, "fit", None)
    assert command_line.run(train.main, experiment.compose, str) == 2
    assert f"{tmp_path}/file" in capsys.readouterr().err


def test_a_model_that_reads_other_items_is_refused_before_data_are_generated(tmp_path):
    place = (f"output={tmp_path}/outputs", f"results={tmp_path}/results", f"data.cache={tmp_path}/cache", "trainer=cpu")
    with pytest.raises(ValueError, match="reads images"):
        train.main(["data=listops", *place])
    assert not list(tmp_path.iterdir())
