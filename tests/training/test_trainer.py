"""The loop: the same weights however a run is cut, and nothing lost when it stops."""

import json
from dataclasses import replace

import pytest
import torch

from mita.training import Machine, NonFiniteLoss, Recipe, RunFolder, load_checkpoint
from mita.training.trainer import Trainer

from .toy import Net, Toy, run, toy_data

RECIPES = {
    "cosine": Recipe(batch_size=8, epochs=4, lr=0.05, schedule="cosine", warmup=1, ema_decay=0.9),
    "onecycle": Recipe(batch_size=8, epochs=4, lr=0.05, schedule="onecycle", ema_decay=0.9, clip_norm=1.0),
    "poly in steps": Recipe(
        batch_size=8, steps=20, eval_every=7, lr=0.05, schedule="poly", optimizer="sgd", momentum=0.9, clip_value=0.1
    ),
}


def equal(a, b) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def without_times(state: dict) -> dict:
    times = ("train_seconds", "timed_steps", "seconds", "peak_mib")
    return {key: value for key, value in state.items() if key not in times}


@pytest.mark.parametrize("name", RECIPES)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(name, tmp_path, monkeypatch):
    """Weights, EMA, optimiser, schedule, best and last metrics and the log; with dropout and random augmentation."""
    _, whole = run(tmp_path / "whole", RECIPES[name], dropout=0.3)
    finish, rounds = Trainer._finish_round, []

    def kill_after_two(self, *args):
        finish(self, *args)
        rounds.append(self.step)
        if len(rounds) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "_finish_round", kill_after_two)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", RECIPES[name], dropout=0.3)
    assert RunFolder(tmp_path / "parts").status == "failed"
    monkeypatch.undo()
    _, parts = run(tmp_path / "parts", RECIPES[name], dropout=0.3)
    assert equal(without_times(whole), without_times(parts))
    logs = [
        [json.loads(line) for line in (tmp_path / p / "metrics.jsonl").read_text().splitlines()]
        for p in ("whole", "parts")
    ]
    assert logs[0] == logs[1]
    assert RunFolder(tmp_path / "parts").status == "done"


def test_a_run_killed_within_a_round_goes_on_from_the_round_before(tmp_path, monkeypatch):
    _, whole = run(tmp_path / "whole", RECIPES["onecycle"], dropout=0.3)
    step = Trainer._train_step

    def kill_at_step_8(self, loader):
        if self.step == 8:
            raise KeyboardInterrupt
        return step(self, loader)

    monkeypatch.setattr(Trainer, "_train_step", kill_at_step_8)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", RECIPES["onecycle"], dropout=0.3)
    monkeypatch.undo()
    _, parts = run(tmp_path / "parts", RECIPES["onecycle"], dropout=0.3)
    assert equal(without_times(whole), without_times(parts))


def test_seed_0_is_a_seed(tmp_path):
    """lightning-hydra-template PR #635: a falsy seed was no seed."""
    runs = [run(tmp_path / str(i), RECIPES["onecycle"], dropout=0.3, seed=seed)[1] for i, seed in enumerate((0, 0, 1))]
    assert equal(runs[0]["model"], runs[1]["model"])
    assert not equal(runs[0]["model"], runs[2]["model"])


def test_workers_and_accumulation_change_nothing(tmp_path):
    """Augmentation follows from the place of an item; a micro-batch of 3 leaves an uneven rest of 2."""
    _, plain = run(tmp_path / "a", RECIPES["onecycle"])
    _, cut = run(
        tmp_path / "b", RECIPES["onecycle"], machine=Machine("cpu", progress=False, workers=2, max_batch_per_device=3)
    )
    for name, weight in plain["model"].items():
        torch.testing.assert_close(weight, cut["model"][name], rtol=0, atol=1e-6)


def test_a_short_run_says_so_and_goes_on_when_asked(tmp_path):
    recipe = RECIPES["onecycle"]
    result, _ = run(tmp_path / "a", recipe, machine=Machine("cpu", progress=False, max_steps=10))
    assert result.steps == 10
    assert "step 10 of 20" in result.short[0]
    assert RunFolder(tmp_path / "a").status == "short"
    result, state = run(tmp_path / "a", recipe)
    _, whole = run(tmp_path / "b", recipe)
    assert result.short == []
    assert equal(state["model"], whole["model"])


@pytest.mark.parametrize(("other", "timed"), [("cpu (1 thread)", 10), ("GPU A", 5)])
def test_a_speed_is_of_one_machine(tmp_path, monkeypatch, other, timed):
    """Resumed on other devices a run is timed anew, as its record names the last ones."""
    recipe = Recipe(batch_size=8, steps=20, eval_every=10, schedule="onecycle")
    monkeypatch.setattr("mita.training.trainer.device_name", lambda fabric: "cpu (1 thread)")
    run(tmp_path, recipe, machine=Machine("cpu", progress=False, max_steps=10))
    monkeypatch.setattr("mita.training.trainer.device_name", lambda fabric: other)
    result, state = run(tmp_path, recipe)
    assert (state["timed_steps"], state["measured_on"]) == (timed, [other, 1, "32-true"])
    assert result.steps_per_second == pytest.approx(timed / state["train_seconds"])


def test_a_checkpoint_from_before_machines_were_noted_goes_on(tmp_path):
    run(tmp_path, RECIPES["onecycle"], machine=Machine("cpu", progress=False, max_steps=10))
    state = load_checkpoint(tmp_path / "last.ckpt")
    torch.save({k: v for k, v in state.items() if k not in ("measured_on", "peak_mib")}, tmp_path / "last.ckpt")
    result, resumed = run(tmp_path, RECIPES["onecycle"])
    _, whole = run(tmp_path / "whole", RECIPES["onecycle"])
    assert result.steps == 20 and equal(resumed["model"], whole["model"])


def test_a_second_process_is_refused(tmp_path):
    """It would write the same checkpoints. The first one's state is left as it is."""
    run(tmp_path, RECIPES["onecycle"], machine=Machine("cpu", progress=False, max_steps=5))
    with RunFolder(tmp_path).lock():
        with pytest.raises(ValueError, match="another process trains in it; wait for its end, or give resume=false"):
            run(tmp_path, RECIPES["onecycle"])
        assert RunFolder(tmp_path).status == "running"
    result, _ = run(tmp_path, RECIPES["onecycle"])
    assert result.steps == 20


def test_a_finished_run_is_not_trained_again(tmp_path):
    first, before = run(tmp_path, RECIPES["cosine"])
    again, after = run(tmp_path, RECIPES["cosine"])
    assert equal(before, after)
    assert (again.best, again.steps) == (first.best, 20)


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_step(tmp_path):
    recipe = replace(RECIPES["onecycle"], batch_size=40, epochs=30)  # one step a pass, item 7 in each
    with pytest.raises(NonFiniteLoss, match="step 0"):
        run(tmp_path, recipe, data=toy_data(bad=7))
    assert RunFolder(tmp_path).status == "failed"
    assert not RunFolder(tmp_path).last.exists()


def test_the_best_checkpoint_is_of_the_best_round(tmp_path):
    result, _ = run(tmp_path, RECIPES["cosine"])
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert result.best["test/top1"] == max(line["test/top1"] for line in lines)
    best = load_checkpoint(tmp_path / "best.ckpt")
    assert best["metrics"]["step"] == result.best["step"]
    assert best["model"].keys() == best["ema"].keys() == Net().state_dict().keys()
    assert all("test/ema_top1" in line for line in lines)


def test_the_best_weights_are_tested_once_on_the_splits_that_do_not_select(tmp_path):
    """LRA: the checkpoint is chosen on "dev"; "test" is seen at the end, with that checkpoint."""
    data, both = toy_data(), {"dev": Toy(n=10, noise=0.0), "test": Toy(n=17, noise=0.0)}
    data = replace(data, evaluate=both)
    result, _ = run(tmp_path, RECIPES["cosine"], data=data)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [("dev/top1" in line, "test/top1" in line) for line in lines] == [(True, False)] * 4 + [(False, True)]
    assert not any(key.startswith("test/") for key in result.last)
    model = Net()
    for key, name in (("model", "test/top1"), ("ema", "test/ema_top1")):
        model.load_state_dict(load_checkpoint(tmp_path / "best.ckpt")[key])
        items = [both["test"][i] for i in range(17)]
        right = sum(int(model.eval()(item["image"][None]).argmax() == item["target"]) for item in items)
        assert result.tested[name] == pytest.approx(100 * right / 17)
        assert set(result.tested) == {f"test/{p}{m}" for p in ("", "ema_") for m in ("loss", "top1", "top5")}


def test_the_best_checkpoint_can_be_one_of_the_later_ones_only(tmp_path):
    """Skyformer keeps checkpoints after a fifth of the steps."""
    recipe = replace(RECIPES["poly in steps"], eval_every=4, best_from=9)
    result, _ = run(tmp_path, recipe)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert result.best["test/top1"] == max(line["test/top1"] for line in lines if line["step"] >= 9)
    assert result.best["step"] >= 9


def test_ema_is_the_average_of_the_weights(tmp_path):
    """decay 0 copies the weights, decay 1 keeps the first ones."""
    for decay in (0.0, 1.0):
        _, state = run(tmp_path / str(decay), replace(RECIPES["cosine"], ema_decay=decay))
        torch.manual_seed(1)
        expected = state["model"] if decay == 0 else Net().state_dict()
        for name, weight in expected.items():
            torch.testing.assert_close(state["ema"][name], weight, rtol=0, atol=1e-7)


def test_checkpoints_hold_no_pickled_objects(tmp_path):
    """torch >= 2.6 refuses pickled checkpoints (DeepFilterNet PR #653): ours load with weights_only=True."""
    run(tmp_path, RECIPES["cosine"])
    for name in ("last.ckpt", "best.ckpt"):
        assert "model" in torch.load(tmp_path / name, weights_only=True)


def test_mixed_targets_train_an_odd_batch(tmp_path):
    result, _ = run(
        tmp_path, replace(RECIPES["cosine"], batch_size=7), task={"mixup": 0.8, "cutmix": 1.0, "smoothing": 0.1}
    )
    assert result.steps == 4 * (40 // 7)


def test_a_recipe_has_epochs_or_steps():
    with pytest.raises(ValueError, match="either epochs or steps"):
        Recipe(batch_size=8)
    with pytest.raises(ValueError, match="eval_every"):
        Recipe(batch_size=8, steps=10, schedule="poly")
    with pytest.raises(ValueError, match="warmup=11 must be shorter than the 10 steps"):
        Recipe(batch_size=8, steps=10, eval_every=5, schedule="onecycle", warmup=11)
    with pytest.raises(ValueError, match="warmup=10 must be shorter than the 10 steps"):
        Recipe(batch_size=8, steps=10, eval_every=5, schedule="poly", warmup=10)
    with pytest.raises(ValueError, match="warmup=1 is no slope for onecycle"):
        Recipe(batch_size=8, steps=10, eval_every=5, schedule="onecycle", warmup=1)
    with pytest.raises(ValueError, match="schedule must be one of"):
        Recipe(batch_size=8, epochs=1, schedule="cosin")


def test_a_run_that_cannot_begin_has_failed(tmp_path):
    """So that its folder is free for the mended command."""
    with pytest.raises(ValueError, match="recipe.warmup=100 must be shorter than the 20 steps"):
        run(tmp_path, replace(RECIPES["onecycle"], warmup=100))
    assert RunFolder(tmp_path).status == "failed"


def test_smoothing_is_a_share(tmp_path):
    with pytest.raises(ValueError, match="task.smoothing must be from 0 to 1"):
        run(tmp_path, RECIPES["cosine"], task={"smoothing": 2.0})
