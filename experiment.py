"""From a configuration to objects: what `train.py`, `evaluate.py` and the tools share.

Configurations are composed by Hydra from `configs/` and checked here, so that a slip is answered with the nearest name.
"""

from __future__ import annotations

import collections.abc
import difflib
import inspect
import itertools
import os
import re
import types
import typing
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException
from timm.optim import list_optimizers
from torch import nn

import datasets
import models
from datasets import Data
from mita import mechanisms
from mita.registry import unknown
from mita.reporting.records import Record
from mita.reporting.specs import TABLES, Table
from mita.reporting.tables import render_all
from mita.training import Machine, Recipe, build_task
from mita.training.run_folder import differences
from mita.training.tasks import TASKS, Classification, Segmentation
from models.segmentation.overlay import draw

CONFIGS = Path(__file__).parent / "configs"
REPORTED = Path(__file__).parent / "results/paper/reported.yaml"
RUN_GROUPS = ("attention", "model", "data", "recipe")  # choosing another makes another run
REGISTRIES = {"attention": mechanisms.MECHANISMS, "model": models.MODELS, "data": datasets.DATASETS, "task": TASKS}
TOP_LEVEL = {"name": str, "seed": int, "resume": bool, "output": str, "results": str}


def groups() -> dict[str, list[str]]:
    """The config groups and the choices of each."""
    folders = sorted(
        {path.parent for path in CONFIGS.glob("*/*.yaml")}
    )  # configs/mmseg is mmsegmentation's, not Hydra's
    return {folder.name: sorted(path.stem for path in folder.glob("*.yaml")) for folder in folders}


def compose(overrides: list[str] | tuple[str, ...] = ()) -> DictConfig:
    """The configuration for command-line overrides (`key=value`, `group=name`), checked.

    Its `name` is the experiment's, with what the command line chose in place of its parts: `lra_listops,attention=linformer`;
    `experiment` stays the experiment's own, whatever the name.

    Raises ValueError, with the nearest names, for a key, group or value there is not, and for a value of another type.
    """
    parsed, known = _parse(overrides), groups()
    for override in parsed:
        key = override.key_or_group
        if override.is_add() or override.is_force_add() or override.is_delete():
            raise ValueError(f"{override.input_line!r}: a configuration has fixed keys; give key=value without + or ~.")
        if override.is_sweep_override():
            raise ValueError(
                f"{override.input_line!r} holds several values; sweep over them with python train.py -m ..."
            )
        if key in known and override.value() not in known[key]:
            raise ValueError(unknown(key, override.value(), known[key]))
    chosen = [o for o in parsed if o.key_or_group in known]
    values = [o for o in parsed if o.key_or_group not in known]
    bare = _hydra(chosen)
    _check_keys(bare, values)
    experiment = bare.name
    config = _hydra([*chosen, *values]) if values else bare
    config.experiment = experiment
    if not any(o.key_or_group == "name" for o in values):
        config.name = ",".join(
            [config.name, *(f"{o.key_or_group}={o.value()}" for o in chosen if o.key_or_group in RUN_GROUPS)]
        )
    validate(config)
    return config


def validate(config: DictConfig) -> None:
    """Raises ValueError for a key that nothing reads, a name that is not registered or a value of the wrong type."""
    plain = resolved(config)
    for key, value in _keys(plain).items():
        if value == "None":
            raise ValueError(f"{key}=None is the word None; write {key}=null for no value.")
    for key, kind in TOP_LEVEL.items():
        _check_type(key, plain[key], kind)
    if plain["seed"] < 0:
        raise ValueError(f"seed={plain['seed']} must be 0 or more.")
    if not plain["name"] or "/" in plain["name"]:
        raise ValueError(f"name={plain['name']!r} must be the name of a folder, without slashes.")
    for node, registry in REGISTRIES.items():
        name = plain[node].pop("name")
        if name not in registry:
            raise ValueError(unknown(f"{node}.name", name, registry))
        _check_options(node, plain[node], registry[name])
    _check_options("recipe", plain["recipe"], Recipe)
    _check_options("trainer", plain["trainer"], Machine)
    build_recipe(config)


def overridden(config: DictConfig, overrides: list[str]) -> DictConfig:
    """A run's own configuration with `key=value` overrides of keys that it has, checked as in `compose`."""
    values = _parse(overrides)
    for override in values:
        if override.key_or_group in groups():
            raise ValueError(
                f"{override.input_line!r}: a run keeps its {override.key_or_group}; give values of single keys."
            )
    _check_keys(config, values)
    config = OmegaConf.merge(config, OmegaConf.from_dotlist([o.input_line for o in values]))
    validate(config)
    return config


def expand(overrides: list[str]) -> list[list[str]]:
    """Every combination of a sweep: `seed=0,1 experiment=a,b` makes four lists of overrides."""
    sweeps = []
    for override in _parse(overrides):
        try:
            values = list(override.sweep_string_iterator()) if override.is_sweep_override() else None
        except HydraException as error:
            raise ValueError(
                f"{override.input_line!r} cannot be swept over: {error}; give the values, as a,b,c"
            ) from None
        values = [override.get_value_element_as_str()] if values is None else values
        sweeps.append([f"{override.get_key_element()}={value}" for value in values])
    return [list(job) for job in itertools.product(*sweeps)]


def resolved(config: DictConfig) -> dict:
    """The configuration as plain, resolved values. Raises ValueError when a value is that of a key that is not there."""
    try:
        return OmegaConf.to_container(config, resolve=True)
    except InterpolationKeyError as error:
        what = error.msg.splitlines()[0]
        raise ValueError(f"{error.full_key} cannot be had ({what}); recipe, data and model go together") from None


def build_data(config: DictConfig) -> Data:
    """The data set, checked before anything is trained. Raises ValueError for a folder it cannot use."""
    return datasets.build(**resolved(config.data), seed=config.seed)


def build_model(config: DictConfig, data: Data, pretrained: bool = True) -> nn.Module:
    """The model with its attention, for the items and classes of the data.

    Without `pretrained` the weights that the configuration starts from are not read, as others will be loaded.
    """
    if not pretrained and "pretrained" in config.model:
        config = OmegaConf.merge(config, {"model": {"pretrained": None}})
    return _model(config, data.input_size, data.num_classes)


def mechanism_factory(config: DictConfig) -> Callable[[int, int], nn.Module]:
    """(num_heads, head_dim) to an attention mechanism."""
    options = resolved(config.attention)
    return partial(mechanisms.build, options.pop("name"), **options)


def build_task_for(config: DictConfig, data: Data, model: nn.Module) -> Classification | Segmentation:
    """The task: its loss and its metrics. Raises ValueError when the data or the model are of another task."""
    options, item = resolved(config.task), data.train[0]
    task = build_task(options.pop("name"), data.num_classes, **options)
    missing = set(task.inputs) - set(item)
    if missing:
        raise ValueError(
            f"the task reads {', '.join(sorted(missing))}, but items of {data.name} hold {', '.join(item)}; "
            "choose the recipe of that data set"
        )
    labels = {
        f"the task of recipe ({config.task.name})": task.labels,
        f"data={data.name}": "pixel" if item["target"].ndim else "item",
        f"model ({config.model.name})": "pixel" if hasattr(model, "predict") else "item",
    }
    if len(set(labels.values())) > 1:
        each = "; ".join(f"{part}: one label per {unit}" for part, unit in labels.items())
        raise ValueError(f"recipe, data and model are not of one task ({each}); choose the three of one experiment")
    return task


def build_recipe(config: DictConfig) -> Recipe:
    """The recipe. Raises ValueError for values out of range and for an optimiser that timm does not have."""
    recipe = Recipe(**resolved(config.recipe))
    name = recipe.optimizer.lower().removeprefix("lookahead_")
    if name not in list_optimizers():
        raise ValueError(unknown("recipe.optimizer", name, list_optimizers()))
    return recipe


def build_machine(config: DictConfig) -> Machine:
    """The machine of `trainer`; under torchrun, with the processes that torchrun started."""
    options = resolved(config.trainer)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        local, world = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
        options |= {"devices": local, "num_nodes": world // local}
    if options["accelerator"] in ("gpu", "cuda") and not torch.cuda.is_available():
        raise ValueError(
            f"trainer.accelerator={options['accelerator']}, but torch sees no GPU here; use trainer=auto or trainer=cpu."
        )
    return Machine(**options)


def cost_of(config: DictConfig) -> tuple[int, int]:
    """(parameters, multiply-adds of one item), without data or memory."""
    shape = datasets.shape_of(**resolved(config.data))
    with torch.device("meta"):
        return _cost(_model(config, *shape), shape.input_size)


def model_cost(model: nn.Module, data: Data) -> tuple[int, int]:
    """(parameters, multiply-adds of one item) of a built model."""
    return _cost(model, data.input_size)


def write_overlays(
    config: DictConfig, data: Data, model: nn.Module, task: Segmentation, folder: Path, count: int
) -> None:
    """Predicted and true classes as colours over the first `count` scenes to evaluate, a PNG file each in `folder`."""
    scenes, (names, palette) = next(iter(data.evaluate.values())), datasets.classes_of(config.data.name)
    mean, std = (np.array(config.data[key]) for key in ("mean", "std"))
    device = next(model.parameters()).device
    folder.mkdir(parents=True, exist_ok=True)
    model.eval()
    for index in range(min(count, len(scenes))):
        scene = scenes[index]
        truth, image, original = scene["target"].numpy(), scene["image"].to(device), scene["original"].to(device)
        pixels = (scene["original"].numpy().transpose(1, 2, 0) * std + mean).round().astype(np.uint8)
        labels = task.predict(model, image, truth.shape, original).cpu().numpy()
        draw(pixels, labels, names, palette, truth=truth).save(folder / f"{scene['name']}.png")


def write_tables(results: Path, check: bool = False) -> list[Path]:
    """Render every table from the records in `results` into `results/tables`; returns what changed (see `render_all`)."""
    names = {name for table in TABLES if isinstance(table, Table) for name in table.experiments}
    costs = {name: cost_of(compose([f"experiment={name}"])) for name in names}
    return render_all(results, REPORTED, costs, changes, check)


def changes(record: Record) -> dict[str, tuple]:
    """Settings in which a run differs from the experiment it is named after: key to (the experiment's, the run's).

    What only concerns the machine, and keys that one of the two does not have, are left out.
    """
    chosen = record.name.split(",")[1:] if record.name.startswith(f"{record.experiment},") else []
    try:
        own = resolved(compose([f"experiment={record.experiment}", *chosen]))
    except ValueError:
        return {"experiment": (None, record.experiment)}
    both = _keys(own).keys() & _keys(record.config).keys() - {"name", "seed"}
    return {key: pair for key, pair in differences(own, record.config).items() if key in both}


def _model(config: DictConfig, input_size: tuple[int, ...], num_classes: int) -> nn.Module:
    options = resolved(config.model)
    return models.build(
        options.pop("name"), mechanism_factory=mechanism_factory(config), num_classes=num_classes,
        input_size=tuple(input_size), **options,
    )  # fmt: skip


def _cost(model: nn.Module, input_size: tuple[int, ...]) -> tuple[int, int]:
    return sum(p.numel() for p in model.parameters()), model.multiply_adds(tuple(input_size))


def _parse(overrides: Iterable[str]) -> list[Override]:
    # a shell leaves the ~ of key=~/folder alone, and Hydra has another use for the sign
    overrides = [re.sub(r"=~(?=/|$)", lambda _: f"={Path.home()}", text) for text in overrides]
    return [_parse_one(text) for text in overrides]


def _parse_one(text: str) -> Override:
    key, equals, value = text.partition("=")
    attempts = [text]
    if equals:  # a folder may have signs that mean something to Hydra
        quoted = value.replace('"', '\\"')
        attempts.append(f'{key}="{quoted}"')
    for attempt in attempts:
        try:
            return OverridesParser.create().parse_override(attempt)
        except HydraException:
            pass
    raise ValueError(f"{text!r} is not key=value or group=name")


def _hydra(overrides: list[Override]) -> DictConfig:
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            config = hydra_compose("train", [o.input_line for o in overrides])
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(str(error).splitlines()[0]) from None
    # an experiment's options for its own mechanism mean nothing to another one chosen on the command line
    for override in overrides:
        group = override.key_or_group
        if group in ("attention", "model", "data"):
            keys = OmegaConf.load(CONFIGS / group / f"{override.value()}.yaml")
            with open_dict(config):
                config[group] = {key: value for key, value in config[group].items() if key in keys}
    return config


def _check_keys(config: DictConfig, overrides: list[Override]) -> None:
    known = _keys(resolved(config))
    for override in overrides:
        key = override.key_or_group
        if key not in known:
            last = {k: k.rsplit(".", 1)[-1] for k in known}
            alike = difflib.get_close_matches(key.rsplit(".", 1)[-1], last.values(), 1, 0.7)
            near = difflib.get_close_matches(key, known, 2) or [k for k in known if last[k] in alike]
            hint = f"did you mean {' or '.join(near)}?" if near else "python train.py --cfg job prints all keys."
            raise ValueError(f"Unknown key {key!r}; {hint}")
        if isinstance(known[key], dict) or isinstance(override.value(), dict):
            raise ValueError(
                f"{key} is a group of keys; give one of {', '.join(k for k in known if k.startswith(key + '.'))}."
            )


def _check_options(node: str, options: dict, target: Callable) -> None:
    """Hold the options of a node to the annotated parameters of what it builds."""
    parameters = inspect.signature(target, eval_str=True).parameters
    for key, value in options.items():
        if key not in parameters:
            raise ValueError(unknown("key", f"{node}.{key}", [f"{node}.{name}" for name in parameters]))
        _check_type(f"{node}.{key}", value, parameters[key].annotation)


def _check_type(key: str, value: Any, kind: Any) -> None:
    if not _fits(value, kind):
        name = (kind.__name__ if isinstance(kind, type) else str(kind)).replace("None", "null")
        given = "null" if value is None else repr(value)
        raise ValueError(f"{key} is {'an' if name[0] in 'aeiou' else 'a'} {name}, not {given}.")


def _fits(value: Any, kind: Any) -> bool:
    """Whether a plain value is of an annotated type; a list serves as any sequence, an int as a float."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if origin in (tuple, list, collections.abc.Sequence):
        if not isinstance(value, list):
            return False
        if origin is tuple and arguments[-1] is not Ellipsis:
            return len(value) == len(arguments) and all(map(_fits, value, arguments))
        return all(_fits(item, arguments[0]) for item in value)
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    return isinstance(value, kind) if isinstance(kind, type) else True


def _keys(config: dict, prefix: str = "") -> dict:
    keys = {}
    for key, value in config.items():
        keys[prefix + key] = value
        if isinstance(value, dict):
            keys |= _keys(value, f"{prefix}{key}.")
    return keys
