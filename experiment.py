"""From a configuration to objects: what `train.py`, `evaluate.py` and the tools share.

Configurations are composed by Hydra from `configs/` and checked here, so that a slip is answered with the nearest name.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import nn

import datasets
import models
from datasets import Data
from mita import mechanisms
from mita.registry import unknown
from mita.reporting.specs import TABLES
from mita.reporting.tables import render_all
from mita.training import Machine, Recipe, build_task

CONFIGS = Path(__file__).parent / "configs"
REPORTED = Path(__file__).parent / "results/paper/reported.yaml"
RUN_GROUPS = ("attention", "model", "data", "recipe")  # choosing another makes another run
SHAPES = {"digits": ((1, 32, 32), 10)}  # what a data set's images are, where its options do not say


def groups() -> dict[str, list[str]]:
    """The config groups and the choices of each."""
    folders = sorted(path for path in CONFIGS.iterdir() if path.is_dir())
    return {folder.name: sorted(path.stem for path in folder.glob("*.yaml")) for folder in folders}


def compose(overrides: list[str] | tuple[str, ...] = ()) -> DictConfig:
    """The configuration for command-line overrides (`key=value`, `group=name`), checked.

    Its `name` is the experiment's, with what the command line chose in place of its parts: `lra_listops,attention=linformer`.

    Raises ValueError, with the nearest names, for a key, group or value there is not, and for a value of another type.
    """
    parsed, known = _parse(overrides), groups()
    for override in parsed:
        key = override.key_or_group
        if override.is_add() or override.is_delete():
            raise ValueError(f"{override.input_line!r}: a configuration has fixed keys; give key=value without + or ~.")
        if override.is_sweep_override():
            raise ValueError(
                f"{override.input_line!r} holds several values; sweep over them with python train.py -m ..."
            )
        if key in known and override.value() not in known[key]:
            raise ValueError(f"{unknown(key, override.value(), known[key])}.")
    chosen = [o for o in parsed if o.key_or_group in known]
    values = [o for o in parsed if o.key_or_group not in known]
    _check_values(_hydra([o.input_line for o in chosen]), values)
    config = _hydra([o.input_line for o in (*chosen, *values)])
    if not any(o.key_or_group == "name" for o in values):
        config.name = ",".join(
            [config.name, *(f"{o.key_or_group}={o.value()}" for o in chosen if o.key_or_group in RUN_GROUPS)]
        )
    return config


def overridden(config: DictConfig, overrides: list[str]) -> DictConfig:
    """A run's own configuration with `key=value` overrides of keys that it has, checked as in `compose`."""
    values = _parse(overrides)
    for override in values:
        if override.key_or_group in groups():
            raise ValueError(
                f"{override.input_line!r}: a run keeps its {override.key_or_group}; give values of single keys."
            )
    _check_values(config, values)
    return OmegaConf.merge(config, OmegaConf.from_dotlist([o.input_line for o in values]))


def expand(overrides: list[str]) -> list[list[str]]:
    """Every combination of a sweep: `seed=0,1 experiment=a,b` makes four lists of overrides."""
    sweeps = []
    for override in _parse(overrides):
        values = (
            override.sweep_string_iterator() if override.is_sweep_override() else [override.get_value_element_as_str()]
        )
        sweeps.append([f"{override.get_key_element()}={value}" for value in values])
    return [list(job) for job in itertools.product(*sweeps)]


def resolved(config: DictConfig) -> dict:
    """The configuration as plain, resolved values."""
    return OmegaConf.to_container(config, resolve=True)


def build_data(config: DictConfig) -> Data:
    """The data set, checked before anything is trained. Raises ValueError for a folder it cannot use."""
    return datasets.build(**resolved(config.data), seed=config.seed)


def build_model(config: DictConfig, data: Data) -> nn.Module:
    """The model with its attention, for the items and classes of the data."""
    return _model(config, data.input_size, data.num_classes)


def mechanism_factory(config: DictConfig) -> Callable[[int, int], nn.Module]:
    """(num_heads, head_dim) to an attention mechanism."""
    options = resolved(config.attention)
    return partial(mechanisms.build, options.pop("name"), **options)


def build_task_for(config: DictConfig, data: Data):
    """The task: its loss and its metrics."""
    options = resolved(config.task)
    return build_task(options.pop("name"), data.num_classes, **options)


def build_recipe(config: DictConfig) -> Recipe:
    return Recipe(**resolved(config.recipe))


def build_machine(config: DictConfig) -> Machine:
    return Machine(**resolved(config.trainer))


def cost_of(config: DictConfig) -> tuple[int, int]:
    """(parameters, multiply-adds of one item), without data or memory."""
    options = config.data
    if options.name in SHAPES:
        size, classes = SHAPES[options.name]
    else:
        size, classes = (
            (options.get("channels", 3), options.image_size, options.image_size),
            options.get("num_classes", 1000),
        )
    with torch.device("meta"):
        return _cost(_model(config, size, classes), size)


def model_cost(model: nn.Module, data: Data) -> tuple[int, int]:
    """(parameters, multiply-adds of one item) of a built model."""
    return _cost(model, data.input_size)


def write_tables(results: Path, check: bool = False) -> list[Path]:
    """Render every table from `results/records` into `results/tables`; returns what changed (see `render_all`)."""
    names = {row.experiment for table in TABLES for row in table.rows}
    costs = {name: cost_of(compose([f"experiment={name}"])) for name in names}
    return render_all(results / "records", REPORTED, costs, results / "tables", check)


def _model(config: DictConfig, input_size: tuple[int, ...], num_classes: int) -> nn.Module:
    channels, *image = input_size
    options = resolved(config.model)
    return models.build(
        options.pop("name"), mechanism_factory=mechanism_factory(config), num_classes=num_classes,
        img_size=tuple(image), in_chans=channels, **options,
    )  # fmt: skip


def _cost(model: nn.Module, input_size: tuple[int, ...]) -> tuple[int, int]:
    return sum(p.numel() for p in model.parameters()), model.multiply_adds(tuple(input_size[1:]))


def _parse(overrides) -> list[Override]:
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except OverrideParseException as error:
        raise ValueError(f"{error.override!r} is not key=value or group=name.") from None


def _hydra(overrides: list[str]) -> DictConfig:
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            return hydra_compose("train", overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(str(error).splitlines()[0]) from None


def _check_values(config: DictConfig, overrides: list[Override]) -> None:
    known = _keys(OmegaConf.to_container(config))
    for override in overrides:
        key, value = override.key_or_group, override.value()
        if key not in known:
            last = {k: k.rsplit(".", 1)[-1] for k in known}
            alike = difflib.get_close_matches(key.rsplit(".", 1)[-1], last.values(), 1)
            near = difflib.get_close_matches(key, known, 2) or [k for k in known if last[k] in alike]
            hint = f"did you mean {' or '.join(near)}?" if near else "python train.py --cfg job prints all keys."
            raise ValueError(f"Unknown key {key!r}; {hint}")
        if value == "None":
            raise ValueError(f"{key}=None is the word None; write {key}=null for no value.")
        kind = known[key]
        if isinstance(kind, dict) or isinstance(value, dict):
            raise ValueError(
                f"{key} is a group of keys; give one of {', '.join(k for k in known if k.startswith(key + '.'))}."
            )
        fits = (
            value is None
            or kind is None
            or isinstance(value, type(kind))
            or (isinstance(kind, float) and isinstance(value, int))
        )
        auto = (
            isinstance(kind, str) and key.startswith("trainer.") and isinstance(value, int)
        )  # devices: auto or a number
        if not (fits or auto) or (isinstance(value, bool) and not isinstance(kind, bool | None)):
            raise ValueError(
                f"{key}={value} is a {type(value).__name__}, but {key} is a {type(kind).__name__} such as {kind!r}."
            )


def _keys(config: dict, prefix: str = "") -> dict:
    keys = {}
    for key, value in config.items():
        keys[prefix + key] = value
        if isinstance(value, dict):
            keys |= _keys(value, f"{prefix}{key}.")
    return keys
