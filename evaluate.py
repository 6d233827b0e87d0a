"""Evaluate a run folder, or any checkpoint with the experiment it belongs to; metrics are printed and written beside it.

run=outputs/NAME/seed0        the best checkpoint of a run, with the run's own configuration
checkpoint=PATH               that file (with run=..., of that configuration; otherwise give experiment=...): of a run, of the
                              authors (then an experiment with mita_released), of DeiT, DeiT III, ViT-5 or timm
weights=raw | ema             the trained weights (default) or their moving average
out=FILE                      where the report goes (default: NAME.raw.json or NAME.ema.json beside the checkpoint NAME.ckpt)
overlays=N                    of a segmenter: N scenes with predicted and true classes as colours, in overlays/ beside the file
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

import command_line
import experiment
from mita.training import RunFolder, evaluate, make_fabric
from models.checkpoints import load_weights
from models.weight_files import read_weights

EXAMPLES = (
    "python evaluate.py run=outputs/digits_mita/seed0",
    "python evaluate.py run=outputs/digits_mita/seed0 weights=ema trainer.accelerator=cpu",
    "python evaluate.py checkpoint=deit_s.pth experiment=deit_s_mita_released data.root=/path/to/imagenet",
)


def main(overrides: list[str]) -> None:
    """Build what the configuration says, load the weights, evaluate every split."""
    own, cfg = parse(overrides)
    checkpoint = Path(own["checkpoint"]) if own["checkpoint"] else RunFolder(own["run"]).best
    path = Path(own["out"]) if own["out"] else checkpoint.with_name(f"{checkpoint.stem}.{own['weights']}.json")
    if own["out"] and (path.is_dir() or not path.parent.is_dir()):
        raise ValueError(f"out={path} must be a file, in a folder that is there")

    machine, recipe = experiment.build_machine(cfg), experiment.build_recipe(cfg)
    weights = read_weights(checkpoint, own["weights"])
    fabric = make_fabric(machine, recipe)
    data = experiment.build_data(cfg)
    model = experiment.build_model(cfg, data, pretrained=False)
    task = experiment.build_task_for(cfg, data, model)
    loaded = load_weights(model, weights, str(checkpoint))
    model = model.to(fabric.device)
    metrics, other = {}, other_attention(checkpoint, cfg)
    for split, dataset in data.evaluate.items():
        values = evaluate(
            fabric,
            model,
            task,
            dataset,
            batch_size=machine.evaluation_batch(recipe),
            workers=machine.workers_beside(fabric.device.type),
            collate=data.collate,
        )
        metrics |= {f"{split}/{name}": value for name, value in values.items()}
    if fabric.is_global_zero:
        report = {
            "checkpoint": checkpoint.name, "weights": own["weights"], "metrics": metrics, "config": experiment.resolved(cfg),
            "data": {"name": data.name, "fingerprint": data.fingerprint, "counts": data.counts, "short": data.short},
            "trained_with": other,
        }  # fmt: skip
        path.write_text(json.dumps(report, indent=2) + "\n")
        if int(own["overlays"]):
            experiment.write_overlays(cfg, data, model, task, checkpoint.parent / "overlays", int(own["overlays"]))
        lines = {"weights": loaded} if loaded.adapted or loaded.left_out else {}
        told = ", ".join(f"attention.{key}={value}" for key, value in other.items())
        lines |= {"trained with": told} if told else {}
        lines |= {name: f"{value:.4f}" for name, value in metrics.items()} | {"written": path}
        lines |= {"short": data.short} if data.short else {}
        width = max(12, *map(len, lines))
        print("\n".join(f"{title:>{width}}  {text}" for title, text in lines.items()))


def parse(overrides: list[str]) -> tuple[dict[str, str | None], DictConfig]:
    """What `run=`, `checkpoint=` and the other keys of this program say, and the configuration of the run."""
    own = {"run": None, "checkpoint": None, "weights": "raw", "out": None, "overlays": "0"}
    rest = []
    for text in overrides:
        key, _, value = text.partition("=")
        if key in own:
            own[key] = os.path.expanduser(value)  # a shell leaves the ~ of key=~/file alone
        else:
            rest.append(text)
    if own["weights"] not in ("raw", "ema"):
        raise ValueError(f"weights={own['weights']} must be raw or ema")
    if not own["overlays"].isdecimal():
        raise ValueError(f"overlays={own['overlays']} must be a number of pictures")
    if own["run"] is None and own["checkpoint"] is None:
        raise ValueError("nothing to evaluate: give run=outputs/NAME/seed0, or checkpoint=PATH and experiment=NAME")
    cfg = experiment.compose(rest) if own["run"] is None else run_config(Path(own["run"]), rest)
    if int(own["overlays"]) and cfg.task.name != "segmentation":
        raise ValueError(f"overlays are of a segmenter, but the task of {cfg.name} is {cfg.task.name}")
    return own, cfg


def configuration(overrides: list[str]) -> DictConfig:
    """What the command line would evaluate with."""
    return parse(overrides)[1]


def other_attention(checkpoint: Path, cfg: DictConfig) -> dict[str, Any]:
    """What the attention was in training where it is another here, for a file in its run folder: no key of it tells."""
    path = (checkpoint if checkpoint.is_dir() else checkpoint.parent) / "config.yaml"
    try:
        trained = yaml.safe_load(path.read_text()) if path.exists() else None
    except yaml.YAMLError:  # another program's
        trained = None
    attention = trained.get("attention") if isinstance(trained, dict) else None
    here = experiment.resolved(cfg.attention)
    pairs = attention.items() if isinstance(attention, dict) else ()
    return {key: value for key, value in pairs if key not in here or here[key] != value}


def run_config(folder: Path, overrides: list[str]) -> DictConfig:
    """The configuration of a run, with `key=value` overrides of keys that it has."""
    path = folder / "config.yaml"
    if not path.exists():
        raise ValueError(f"run={folder} is no run folder: it has no config.yaml; expected outputs/NAME/seed0")
    return experiment.overridden(OmegaConf.create(yaml.safe_load(path.read_text())), overrides)


if __name__ == "__main__":
    sys.exit(command_line.run(main, configuration, partial(command_line.help_text, "evaluate.py", __doc__, EXAMPLES)))
