"""Train a vision transformer with any attention mechanism; every finished run becomes a record.

The run folder follows from the configuration, so the same command goes on with a stopped run and leaves a complete one
alone. The recipe fixes the global batch; devices and accumulation follow from it.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from omegaconf import DictConfig
from torch import nn

import command_line
import experiment
from datasets import Data
from mita.reporting.records import Record, git_state, record_name
from mita.training import Result, RunFolder, build_loggers, device_name, fit, make_fabric
from mita.training.seeding import seed_everything

EXAMPLES = (
    "python train.py",
    "python train.py experiment=digits_softmax seed=1",
    "python train.py -m experiment=digits_mita,digits_softmax seed=0,1,2",
    "python train.py -m experiment=lra_listops,lra_pathfinder attention=agent,linear seed=0,1,2",
    "python train.py experiment=deit_s_mita data.root=/path/to/imagenet logger=wandb",
    "torchrun --nproc_per_node=8 train.py experiment=deit_s_mita data.root=/path/to/imagenet",
)
OVERLAYS = 4  # pictures that a segmentation run leaves in its folder


def main(overrides: list[str]) -> None:
    """Compose, validate, build, fit, record."""
    cfg = experiment.compose(overrides)
    config = experiment.resolved(cfg)
    machine, recipe = experiment.build_machine(cfg), experiment.build_recipe(cfg)
    fabric = make_fabric(machine, recipe)
    first = fabric.is_global_zero
    folder = decided(fabric, lambda: RunFolder.choose(Path(cfg.output) / cfg.name, cfg.seed, config, cfg.resume))
    if decided(fabric, lambda: folder.status == "done" and folder.record_path.exists()):
        if first:
            print(f"This run is complete.\n{command_line.end_screen(Record.load(folder.record_path), folder.path)}")
            print(command_line.table_with(cfg.experiment, Path(cfg.results)))
        return

    # what cannot be is refused before data are generated and hours are spent
    experiment.cost_of(cfg)
    if first:
        (Path(cfg.results) / "records").mkdir(parents=True, exist_ok=True)
    data = experiment.build_data(cfg)
    seed_everything(cfg.seed)
    model = experiment.build_model(cfg, data, pretrained=not folder.last.exists())
    task, loggers = experiment.build_task_for(cfg, data, model), []
    if first:
        print(command_line.start_screen(cfg.name, folder.path, fabric, model, data, recipe, machine), flush=True)
        folder.open(config)
        loggers = build_loggers(cfg.logger.names, folder, config, cfg.logger.project)
    result = fit(fabric, folder, model, task, data, recipe, machine, cfg.seed, loggers)
    for logger in loggers:
        logger.close()
    if first:
        record = make_record(cfg, fabric, model, task, data, result)
        changed = bool(experiment.changes(record))
        record.save(
            Path(cfg.results) / "records" / record_name(record.name, folder.path.name, bool(record.short), changed)
        )
        record.save(folder.record_path)
        if cfg.task.name == "segmentation":
            experiment.write_overlays(cfg, data, model, task, folder.path / "overlays", OVERLAYS)
        experiment.write_tables(Path(cfg.results))
        print(command_line.end_screen(record, folder.path))
        print(command_line.table_with(record.experiment, Path(cfg.results)))


def decided(fabric: Fabric, question: Callable[[], Any]) -> Any:
    """The first process's answer, in every process, so that all agree on it; its ValueError is raised in each."""
    answer = None
    if fabric.is_global_zero:
        try:
            answer = question()
        except ValueError as error:
            answer = error
    answer = fabric.broadcast(answer)
    if isinstance(answer, ValueError):
        raise answer
    return answer


def make_record(cfg: DictConfig, fabric: Fabric, model: nn.Module, task: Any, data: Data, result: Result) -> Record:
    """What the run was, what it ran on and what came out."""
    parameters, multiply_adds = experiment.model_cost(model, data)
    selects, *held_out = data.evaluate
    selected, metric = f"{selects}/{task.metric}", f"{(held_out or [selects])[-1]}/{task.metric}"
    commit, dirty = git_state()
    return Record(
        experiment=cfg.experiment, name=cfg.name, seed=cfg.seed, short=result.short, task=cfg.task.name,
        metric=metric, metrics={k: v for k, v in result.last.items() if k not in ("step", "epoch")} | result.tested,
        best={"metric": selected, "value": result.best[selected], **{k: result.best[k] for k in ("epoch", "step")}},
        epochs=result.epochs, steps=result.steps, steps_per_second=result.steps_per_second,
        peak_memory_mib=result.peak_memory_mib, hours=result.hours, parameters=parameters, multiply_adds=multiply_adds,
        config=experiment.resolved(cfg), commit=commit, dirty=dirty,
        device=device_name(fabric), num_devices=fabric.world_size,
        precision=fabric.strategy.precision.precision, torch=torch.__version__,
        versions={name: version(name) for name in ("timm", "lightning-fabric", "numpy")},
        data={"name": data.name, "fingerprint": data.fingerprint, "counts": data.counts},
        switches={**data.switches, **getattr(model, "switches", {})},
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(command_line.run(main, experiment.compose, partial(command_line.help_text, "train.py", __doc__, EXAMPLES)))
