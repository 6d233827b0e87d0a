"""Learning rates against DeiT's log and PyTorch's closed forms; which parameters decay."""

import math

import pytest
import torch
from torch import nn

from mita.training import Recipe
from mita.training.optim import Schedule, build_optimizer


def rates(recipe: Recipe, steps: int, per_epoch: int, key: str = "lr"):
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=recipe.lr)
    schedule = Schedule(optimizer, recipe, steps, per_epoch)
    values = []
    for step in range(steps):
        schedule.before_step(step)
        values.append(optimizer.param_groups[0][key] if key == "lr" else optimizer.param_groups[0]["betas"][0])
        optimizer.step()
        schedule.after_step()
    return values


def test_cosine_is_deits():
    """Epochs 0 and 1 at the warmup rate, then 2.0e-4 and 4.0e-4; 9.99e-4 at epoch 6, 1.01e-5 at epoch 299."""
    recipe = Recipe(batch_size=1024, epochs=300, lr=1e-3, schedule="cosine", warmup=5, warmup_lr=1e-6, min_lr=1e-5)
    lr = rates(recipe, 600, 2)[::2]
    assert lr[:4] == pytest.approx([1e-6, 1e-6, 2.008e-4, 4.006e-4], rel=1e-3)
    assert lr[6] == pytest.approx(9.99e-4, abs=5e-7)
    assert lr[299] == pytest.approx(1.01e-5, abs=5e-8)


def test_onecycle_is_the_lineages():
    """From max / 25 up to max at the end of the warmup, to max / 250,000; beta1 0.95, 0.85, 0.95."""
    recipe = Recipe(batch_size=32, steps=100, eval_every=10, lr=1e-4, schedule="onecycle", anneal="linear", warmup=20)
    lr, beta = rates(recipe, 100, 10), rates(recipe, 100, 10, "beta1")
    assert lr[0] == pytest.approx(4e-6)
    assert max(lr) == pytest.approx(1e-4)
    assert lr.index(max(lr)) == 19
    assert lr[-1] == pytest.approx(4e-10, rel=1e-3)
    assert (beta[0], min(beta), beta[-1]) == pytest.approx((0.95, 0.85, 0.95))
    assert lr[9] == pytest.approx(4e-6 + (1e-4 - 4e-6) * 9 / 19)


def test_poly_is_the_segmenters():
    recipe = Recipe(batch_size=8, steps=100, eval_every=10, lr=1e-3, min_lr=1e-5, schedule="poly")
    assert rates(recipe, 100, 10) == pytest.approx([1e-5 + (1e-3 - 1e-5) * (1 - t / 100) ** 0.9 for t in range(100)])


def test_what_does_not_decay():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm, self.pos_embed = (
                nn.Linear(3, 3),
                nn.LayerNorm(3),
                nn.Parameter(torch.zeros(1, 2, 3)),
            )

        def no_weight_decay(self):
            return {"pos_embed"}

    model = Model()
    optimizer = build_optimizer(model, Recipe(batch_size=1, epochs=1, weight_decay=0.05, eps=1e-6, betas=(0.8, 0.9)))
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decay[id(model.linear.weight)] == 0.05
    assert {decay[id(p)] for p in (model.linear.bias, model.norm.weight, model.norm.bias, model.pos_embed)} == {0.0}
    assert all(group["eps"] == 1e-6 and tuple(group["betas"]) == (0.8, 0.9) for group in optimizer.param_groups)
    assert math.isfinite(optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize("warmup", [0, 2, 5, 19])
def test_every_warmup_that_is_taken_goes_to_the_end(warmup):
    """PyTorch divides by the length of each slope: one of no length, at the first step or the last, is an error there."""
    recipe = Recipe(batch_size=1, steps=20, eval_every=5, schedule="onecycle", warmup=warmup, lr=1.0)
    values = rates(recipe, 20, 5)
    assert values.index(max(values)) == (warmup or 6) - 1


@pytest.mark.parametrize(("name", "answer"), [("bnbadam8bit", "cannot be had"), ("adahessian", "second derivatives")])
def test_an_optimizer_that_does_not_work_here_is_named(name, answer):
    with pytest.raises(ValueError, match=f"recipe.optimizer={name} {answer}|recipe.optimizer={name} wants {answer}"):
        build_optimizer(nn.Linear(2, 2), Recipe(batch_size=1, epochs=1, optimizer=name))
