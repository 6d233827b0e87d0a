"""The training loop: steps of global batches in rounds; after each round evaluate, log and checkpoint."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field

import numpy as np
import torch
from lightning_fabric import Fabric
from timm.utils import ModelEmaV3
from torch import nn

from .evaluation import evaluate
from .loader import Batches, micro_steps, train_loader
from .memory import peak_memory_mib
from .optim import Schedule, build_optimizer
from .progress import Progress
from .recipe import Machine, Recipe
from .run_folder import RunFolder, load_checkpoint, save_checkpoint
from .seeding import derive, seed_everything

PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
CHECK_EVERY = 10  # steps between looks at the loss, each a synchronisation of the device
WARM_UP_STEPS = 5  # not counted in steps per second
MIX, MODEL = 1, 2  # what a derived seed is for


class NonFiniteLoss(ValueError):
    """The loss became nan or inf; the last checkpoint is from before."""


@dataclass
class Result:
    """What a run came to.

    best, last: "step", "epoch" and the metrics of that round, by name, on the split that selects.
    tested: the metrics of the best round's weights on the other splits, by name; empty where there is none.
    """

    best: dict
    last: dict
    tested: dict
    steps: int
    epochs: float
    steps_per_second: float
    peak_memory_mib: float
    hours: float
    short: list[str] = field(default_factory=list)


def make_fabric(machine: Machine, recipe: Recipe) -> Fabric:
    """A launched Fabric for the machine; under torchrun it joins the processes there are.

    fp16 needs a GPU: on a CPU the run is in fp32, and says so.
    """
    precision = machine.precision or recipe.precision
    if precision not in PRECISIONS:
        raise ValueError(f"trainer.precision must be one of {', '.join(PRECISIONS)}, but it is {precision!r}.")
    on_cpu = machine.accelerator == "cpu" or (machine.accelerator == "auto" and not torch.cuda.is_available())
    if precision == "fp16" and on_cpu:
        print("fp16 needs a GPU; on this CPU the run is in fp32.")
        precision = "fp32"
    devices = 1 if on_cpu and machine.devices == "auto" else machine.devices
    fabric = Fabric(
        accelerator="cpu" if on_cpu else machine.accelerator, devices=devices, num_nodes=machine.num_nodes,
        strategy=machine.strategy, precision=PRECISIONS[precision],
    )  # fmt: skip
    fabric.launch()
    return fabric


def device_name(fabric: Fabric) -> str:
    """What each device is, as far as speeds depend on it: the GPU's name, or the number of threads on the CPU."""
    if fabric.device.type == "cuda":
        return torch.cuda.get_device_name(fabric.device)
    threads = torch.get_num_threads()
    return f"cpu ({threads} thread{'s' if threads > 1 else ''})"


class Trainer:
    """One run: `Trainer(...).fit()`. Data is a `datasets.Data`, a task as in `tasks.py`; see `Recipe` and `Machine`."""

    def __init__(
        self, fabric: Fabric, folder: RunFolder, model: nn.Module, task, data, recipe: Recipe, machine: Machine, seed: int,
        loggers: list | tuple = (),
    ) -> None:  # fmt: skip
        if seed < 0:
            raise ValueError(f"seed must be 0 or more, but it is {seed}.")
        self.fabric, self.folder, self.task, self.data, self.loggers = fabric, folder, task, data, loggers
        self.recipe, self.machine, self.seed = recipe, machine, seed
        self.workers = machine.workers_beside(fabric.device.type)
        self.batches = Batches(len(data.train), recipe.batch_size, seed, recipe.repeats, fabric.world_size)
        per_pass = self.batches.per_pass
        self.total_steps = recipe.steps or recipe.epochs * per_pass
        self.round_steps = recipe.eval_every or per_pass
        self.stop = min(self.total_steps, machine.max_steps or self.total_steps)
        self.selects, *self.held_out = data.evaluate
        self.metric = f"{self.selects}/{task.metric}"

        self.model = model.to(fabric.device)
        self.ema = ModelEmaV3(self.model, decay=recipe.ema_decay) if recipe.ema_decay is not None else None
        self.optimizer = build_optimizer(self.model, recipe)
        self.schedule = Schedule(self.optimizer, recipe, self.total_steps, per_pass)
        self.wrapped, self.wrapped_optimizer = fabric.setup(self.model, self.optimizer)
        self.scaler = getattr(fabric.strategy.precision, "scaler", None)

        self.step, self.best, self.last = 0, {}, {}
        self.train_seconds, self.timed_steps, self.seconds, self.peak_mib = 0.0, 0, 0.0, 0.0
        # what speed and memory are of; devices that are not all of a kind count as the first
        self.measured_on = [device_name(fabric), fabric.world_size, fabric.strategy.precision.precision]

    def fit(self) -> Result:
        """Train from the last checkpoint, if there is one, to the end; the same command at any time goes on.

        Raises NonFiniteLoss, naming the step; checkpoints then are from before it. Raises ValueError when another process
        trains in the folder.
        """
        lock = self.folder.lock() if self.fabric.is_global_zero else None
        if not self.fabric.broadcast(lock is not None):
            raise ValueError(
                f"{self.folder.path}: another process trains in it; wait for its end, or give resume=false."
            )
        try:
            return self._fit()
        finally:
            if lock is not None:
                lock.close()

    def _fit(self) -> Result:
        if self.folder.last.exists():
            self._load()
        if self.step < self.stop:
            try:
                self._rounds()
                tested = self._test()
                self._log(tested)
            except BaseException:
                if self.fabric.is_global_zero:
                    self.folder.status = "failed"
                raise
        else:
            tested = self._test()
        if self.fabric.is_global_zero:
            self.folder.status = "done" if self.step == self.total_steps else "short"
        return self._result(tested)

    def _rounds(self) -> None:
        fabric = self.fabric
        if fabric.is_global_zero:
            self.folder.truncate_metrics(self.step)
            self.folder.status = "running"
        loader = iter(
            train_loader(
                self.data.train, self.batches, self.step, self.stop, rank=fabric.global_rank, world=fabric.world_size,
                micro_batch=self.machine.max_batch_per_device, workers=self.workers, collate=self.data.collate,
            )
        )  # fmt: skip
        progress = Progress(self.stop, self.step, show=fabric.is_global_zero and self.machine.progress)
        while self.step < self.stop:
            began = time.perf_counter()
            end = min(self.stop, (self.step // self.round_steps + 1) * self.round_steps)
            seed_everything(self.seed, MODEL, self.step, fabric.global_rank)
            loss = self._train_round(loader, end, progress)
            ema = self.ema.module if self.ema else None
            values = {"epoch": round(self.step / self.batches.per_pass, 4), "train_loss": loss}
            values |= self._evaluate(self.selects, self.model, ema)
            self.seconds += time.perf_counter() - began
            self._finish_round(values, progress)
        progress.close()

    def _train_round(self, loader, end: int, progress: Progress) -> float:
        """Train until step `end`; the mean loss of the round."""
        self.wrapped.train()
        total, first_bad = torch.zeros((), device=self.fabric.device), torch.full((), -1, device=self.fabric.device)
        start, timed = self.step, time.perf_counter()
        while self.step < end:
            if self.step == start + WARM_UP_STEPS:
                self._synchronize()
                timed = time.perf_counter()
            self.schedule.before_step(self.step)
            loss = self._train_step(loader)
            total += loss
            first_bad = torch.where((first_bad < 0) & ~loss.isfinite(), self.step, first_bad)
            self.step += 1
            if self.step % CHECK_EVERY == 0 or self.step == end:
                self._check(first_bad)
                progress.update(self.step, loss.item(), self.optimizer.param_groups[0]["lr"])
        self._synchronize()
        if end - start > WARM_UP_STEPS:
            self.train_seconds += time.perf_counter() - timed
            self.timed_steps += end - start - WARM_UP_STEPS
        return float(self.fabric.all_reduce(total, reduce_op="mean")) / (end - start)

    def _train_step(self, loader) -> torch.Tensor:
        """One optimiser step on this device's share of a global batch; its mean loss. Every item weighs the same."""
        fabric, recipe = self.fabric, self.recipe
        share = self.batches.batch_size // fabric.world_size
        micros = micro_steps(self.batches.batch_size, fabric.world_size, self.machine.max_batch_per_device)
        total = torch.zeros((), device=fabric.device)
        for micro in range(micros):
            batch = fabric.to_device(next(loader))
            generator = np.random.default_rng(derive(self.seed, MIX, self.step, fabric.global_rank, micro))
            with fabric.no_backward_sync(self.wrapped, enabled=micro + 1 < micros):
                with fabric.autocast():
                    loss = self.task.loss(self.wrapped, batch, generator)
                loss = loss * (len(batch["target"]) / share)
                fabric.backward(loss)
            total += loss.detach()
        if recipe.clip_norm is not None:
            fabric.clip_gradients(
                self.wrapped, self.wrapped_optimizer, max_norm=recipe.clip_norm, error_if_nonfinite=False
            )
        if recipe.clip_value is not None:
            fabric.clip_gradients(self.wrapped, self.wrapped_optimizer, clip_val=recipe.clip_value)
        self.wrapped_optimizer.step()
        self.wrapped_optimizer.zero_grad()
        self.schedule.after_step()
        if self.ema is not None:
            self.ema.update(self.model)
        return total

    def _check(self, first_bad: torch.Tensor) -> None:
        bad = int(self.fabric.all_reduce(first_bad.float(), reduce_op="max"))
        if bad >= 0:
            raise NonFiniteLoss(
                f"The loss is not finite at step {bad}. The checkpoint from before is {self.folder.last}; "
                "try a lower recipe.lr, recipe.clip_norm=1.0 or recipe.precision=bf16."
            )

    def _evaluate(self, split: str, model: nn.Module, ema: nn.Module | None) -> dict[str, float]:
        """Metrics on a split of the raw weights, and of the averaged ones if there are any."""
        values = {}
        for prefix, weights in (("", model), ("ema_", ema)):
            if weights is not None:
                metrics = evaluate(
                    self.fabric, weights, self.task, self.data.evaluate[split],
                    batch_size=self.machine.evaluation_batch(self.recipe), workers=self.workers, collate=self.data.collate,
                )  # fmt: skip
                values |= {f"{split}/{prefix}{name}": value for name, value in metrics.items()}
        return values

    def _test(self) -> dict[str, float]:
        """Metrics of the best round's weights on every split that did not select it."""
        if not self.held_out:
            return {}
        state = load_checkpoint(self.folder.best, self.fabric.device)
        models = []
        for weights in (state["model"], state["ema"]):
            models.append(None if weights is None else copy.deepcopy(self.model))
            if weights is not None:
                models[-1].load_state_dict(weights)
        values = {}
        for split in self.held_out:
            values |= self._evaluate(split, *models)
        return values

    def _log(self, values: dict) -> None:
        if values and self.fabric.is_global_zero:
            for logger in self.loggers:
                logger.log(values, self.step)

    def _finish_round(self, values: dict, progress: Progress) -> None:
        metric = self.metric
        self.peak_mib = max(self.peak_mib, peak_memory_mib(self.fabric.device))
        self.last = {"step": self.step, **values}
        sign = 1 if self.task.higher_is_better else -1
        too_early = self.best and self.best["step"] < self.recipe.best_from
        is_best = not self.best or too_early or sign * values[metric] > sign * self.best[metric]
        if is_best:
            self.best = self.last
        if self.fabric.is_global_zero:
            if is_best:
                weights = {"model": self.model.state_dict(), "ema": self.ema.module.state_dict() if self.ema else None}
                save_checkpoint({**weights, "metrics": self.best}, self.folder.best)
            self._log({**values, "lr": self.optimizer.param_groups[0]["lr"]})
            save_checkpoint(self._state(), self.folder.last)
            progress.round(values, metric, is_best)
        self.fabric.barrier()

    def _state(self) -> dict:
        return {
            "model": self.model.state_dict(),
            "ema": self.ema.module.state_dict() if self.ema else None,
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler else None,
            "step": self.step, "best": self.best, "last": self.last,
            "train_seconds": self.train_seconds, "timed_steps": self.timed_steps, "seconds": self.seconds,
            "peak_mib": self.peak_mib, "measured_on": self.measured_on,
        }  # fmt: skip

    def _load(self) -> None:
        state = load_checkpoint(self.folder.last, self.fabric.device)
        self.model.load_state_dict(state["model"])
        if self.ema:
            self.ema.module.load_state_dict(state["ema"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        if self.scaler and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        names = ["step", "best", "last", "seconds"]
        if state.get("measured_on") == self.measured_on:  # a speed of two machines would be that of neither
            names += ["train_seconds", "timed_steps", "peak_mib"]
        for name in names:
            setattr(self, name, state[name])

    def _synchronize(self) -> None:
        if self.fabric.device.type == "cuda":
            torch.cuda.synchronize(self.fabric.device)

    def _result(self, tested: dict) -> Result:
        short = (
            [f"stopped at step {self.step} of {self.total_steps} (trainer.max_steps)"]
            if self.step < self.total_steps
            else []
        )
        if self.data.short:
            short.append(self.data.short)
        return Result(
            best=self.best, last=self.last, tested=tested, steps=self.step, epochs=self.step / self.batches.per_pass,
            steps_per_second=self.timed_steps / self.train_seconds if self.train_seconds else 0.0,
            peak_memory_mib=max(self.peak_mib, peak_memory_mib(self.fabric.device)), hours=self.seconds / 3600, short=short,
        )  # fmt: skip


def fit(
    fabric: Fabric,
    folder: RunFolder,
    model: nn.Module,
    task,
    data,
    recipe: Recipe,
    machine: Machine,
    seed: int,
    loggers=(),
) -> Result:
    """Train one run to its end; see `Trainer`."""
    try:
        trainer = Trainer(fabric, folder, model, task, data, recipe, machine, seed, loggers)
    except BaseException:
        if fabric.is_global_zero:
            folder.status = "failed"
        raise
    return trainer.fit()
