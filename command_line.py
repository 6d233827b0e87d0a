"""What train.py and evaluate.py have in common at a terminal: help, several runs, one message for a user's error."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from lightning_fabric import Fabric
from omegaconf import DictConfig, OmegaConf
from torch import nn

import experiment
from datasets import Data
from mita.reporting.records import Record
from mita.reporting.specs import TABLES
from mita.training import Machine, Recipe, device_name
from mita.training.loader import Batches, micro_steps

COMMON = """common options
  seed=1                        another seed; each has its own run folder
  -m seed=0,1,2                 several runs, one after the other; what is complete is left alone
  data.root=/path/to/imagenet   where the data are
  attention=softmax             another choice of a group
  trainer.max_batch_per_device=64    less memory; the result stays the same (mixup and CutMix are drawn for each part)
  trainer.max_steps=20 data.limit=64    a short try, recorded as such
  resume=false                  start anew beside a run, in place of going on with it
  --cfg job                     print the composed configuration and stop"""


def help_text(script: str, what: str, examples: Sequence[str]) -> str:
    """The text of --help: what the script does, the experiments, the groups, common options and examples."""
    choices = experiment.groups()
    names = choices.pop("experiment")
    width = max(map(len, names)) + 2
    lines = [
        what,
        "",
        f"usage: python {script} [experiment=NAME] [GROUP=CHOICE ...] [KEY=VALUE ...]",
        "",
        "experiments",
    ]
    lines += [f"  {name:{width}}{first_comment(name)}" for name in names]
    lines += ["", "groups (configs/GROUP/CHOICE.yaml holds and explains the keys)"]
    lines += [f"  {group:{width}}{', '.join(group_choices)}" for group, group_choices in choices.items()]
    return "\n".join([*lines, "", COMMON, "", "examples", *(f"  {example}" for example in examples)])


def first_comment(name: str) -> str:
    """The first line of an experiment file's header: its table and row, and what is reported there."""
    lines = (experiment.CONFIGS / "experiment" / f"{name}.yaml").read_text().splitlines()
    return next(line[1:].strip() for line in lines if line.startswith("#") and "@package" not in line)


def run(
    main: Callable[[list[str]], None], configuration: Callable[[list[str]], DictConfig], help_: Callable[[], str]
) -> int:
    """`main` on the command line's overrides; the exit code: 0, 2 after a user's error, 130 after an interruption.

    `configuration` is what `main` would run with, for the same overrides.
    """
    arguments = sys.argv[1:]
    try:
        if "--help" in arguments or "-h" in arguments:
            print(help_())
        elif "-m" in arguments or "--multirun" in arguments:
            return several([a for a in arguments if a not in ("-m", "--multirun")], configuration)
        elif "--cfg" in arguments:
            at = arguments.index("--cfg")
            if arguments[at + 1 : at + 2] != ["job"]:
                raise ValueError("--cfg is followed by job: it prints the configuration of the run")
            print(OmegaConf.to_yaml(configuration(arguments[:at] + arguments[at + 2 :]), resolve=True), end="")
        else:
            flags = [a for a in arguments if a.startswith("-")]
            if flags:
                raise ValueError(f"unknown flag {flags[0]}; there are --help, -m and --cfg job, all else is key=value")
            main(arguments)
    except KeyboardInterrupt:
        print("\nInterrupted; the same command goes on from the last checkpoint.", file=sys.stderr)
        return 130
    except ValueError as error:
        if is_first_process():
            print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.filename is None:
            raise
        if is_first_process():
            print(
                f"error: {error.filename} cannot be read or written ({error.strerror}); output=, results=, data.root= and "
                "data.cache= say where things are",
                file=sys.stderr,
            )
        return 2
    except ModuleNotFoundError as error:
        if error.name != "wandb":
            raise
        print("error: wandb is not installed; pip install wandb, or leave out logger=wandb", file=sys.stderr)
        return 2
    return 0


def several(overrides: list[str], configuration: Callable[[list[str]], DictConfig]) -> int:
    """Every combination as a process of its own, so that each has its own memory and devices; the worst exit code."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise ValueError("-m does not go with torchrun; start torchrun once for each run, or use trainer=ddp")
    if not overrides:
        raise ValueError("-m is followed by what differs between the runs, as -m seed=0,1,2")
    runs = experiment.expand(overrides)
    for one in runs:  # all, before any is started
        configuration(one)
    codes = []
    for number, one in enumerate(runs, 1):
        print(f"[{number}/{len(runs)}] {' '.join(one)}", flush=True)
        codes.append(subprocess.run([sys.executable, sys.argv[0], *one], check=False).returncode)
    failed = [" ".join(one) for one, code in zip(runs, codes, strict=True) if code]
    if failed:
        print("failed:\n" + "\n".join(f"  {one}" for one in failed), file=sys.stderr)
    return max(codes, key=abs)


def is_first_process() -> bool:
    """Whether this process is the one that speaks, before any process group exists."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK"))


def start_screen(
    name: str, folder: Path, fabric: Fabric, model: nn.Module, data: Data, recipe: Recipe, machine: Machine
) -> str:
    """What is about to run, in a few lines."""
    parameters, multiply_adds = experiment.model_cost(model, data)
    batches = Batches(len(data.train), recipe.batch_size, 0, world=fabric.world_size)
    share = batches.batch_size // fabric.world_size
    micros = micro_steps(batches.batch_size, fabric.world_size, machine.max_batch_per_device)
    length = f"{recipe.epochs} epochs, " if recipe.epochs else ""
    steps = recipe.steps or recipe.epochs * batches.per_pass
    counts = ", ".join(f"{count:,} {split}" for split, count in data.counts.items())
    lines = {
        "run": f"{name}  in {folder}",
        "model": f"{parameters:,} parameters, {multiply_adds / 1e9:.4f} G multiply-adds an item",
        "data": f"{data.name}: {counts}" + (f"  (short: {data.short})" if data.short else ""),
        "device": f"{fabric.world_size} x {device_name(fabric)}, {fabric.strategy.precision.precision}",
        "length": f"{length}{steps:,} steps" + (f", stopping at {machine.max_steps}" if machine.max_steps else ""),
        "batch": f"{batches.batch_size} = {fabric.world_size} devices x {-(-share // micros)} x {micros} accumulated",
    }
    return "\n".join(f"{title:>8}  {text}" for title, text in lines.items())


def end_screen(record: Record, folder: Path) -> str:
    """What came out, in a few lines."""
    lines = {
        "result": result_line(record),
        "speed": (f"{record.steps_per_second:.2f} steps/s, " if record.steps_per_second else "")
        + f"{record.peak_memory_mib:,.0f} MiB peak, {record.hours * 60:.1f} minutes",
        "run": str(folder),
    }
    averaged = record.metrics.get(record.metric.replace("/", "/ema_"))
    if averaged is not None:
        lines["result"] += f"; averaged weights {averaged:.2f} at the end"
    if record.short:
        lines["short"] = f"{'; '.join(record.short)}. A short run fills no cell of a table."
    return "\n".join(f"{title:>8}  {text}" for title, text in lines.items())


def result_line(record: Record) -> str:
    """The main metric, and the best round's."""
    best, value = record.best, f"{record.metric} {record.metrics[record.metric]:.2f}"
    if best.get("metric", record.metric) == record.metric:
        return f"{value} at the end, {best['value']:.2f} at best (epoch {best['epoch']:g})"
    return f"{value} with the weights of step {best['step']:,}, the best on {best['metric']} ({best['value']:.2f})"


def table_with(name: str, results: Path) -> str:
    """Where the table that holds an experiment is, and the table itself if it is small enough for a terminal."""
    for table in TABLES:
        if name in table.experiments:
            path = results / "tables" / f"{table.name}.md"
            text = f"   table  {path}"
            return f"{text}\n\n{path.read_text()}" if path.exists() and len(table.rows) <= 4 else text
    return "   table  none holds this experiment"
