"""Several processes on gloo: the same weights as one, and every evaluated item once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mita.training import Recipe

from .toy import run

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys, json
from mita.training import Machine, Recipe, evaluate, build_task, make_fabric
from toy import Net, Toy, run
import torch
world, out = int(sys.argv[1]), sys.argv[2]
machine = Machine("cpu", devices=world, progress=False)
recipe = Recipe(**json.loads(sys.argv[3]))
fabric = make_fabric(machine, recipe)
torch.manual_seed(0)
task, net = build_task("classification", 3), Net()
metrics = {n: evaluate(fabric, net, task, Toy(n=n, noise=0.0), batch_size=2) for n in (10, 1)}
if fabric.is_global_zero:
    json.dump(metrics, open(out + "/metrics.json", "w"))
if world == 2:
    run(out + "/run", recipe, machine=machine)
"""


def launch(world: int, out: Path, recipe: dict) -> dict:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}"}
    script = out / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={world}",
         str(script), str(world), str(out), json.dumps(recipe)],
        env=env, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[:3000]
    return json.loads((out / "metrics.json").read_text())


@pytest.mark.parametrize("world", [2, 4])
def test_processes_agree_with_one(world, tmp_path):
    """pytorch #25162, deit PR #24: padded distributed evaluation. 10 items, and 1 item for more processes than that.

    Two processes also train to the weights of one with the same global batch.
    """
    recipe = {"batch_size": 8, "epochs": 2, "lr": 0.05, "schedule": "onecycle", "ema_decay": 0.9}
    folders = [tmp_path / "one", tmp_path / "many"]
    for folder in folders:
        folder.mkdir()
    one, many = launch(1, folders[0], recipe), launch(world, folders[1], recipe)
    for items in ("10", "1"):
        assert one[items]["top1"] == many[items]["top1"]
        assert one[items]["loss"] == pytest.approx(many[items]["loss"], rel=1e-6)
    if world == 2:
        run(tmp_path / "alone", Recipe(**recipe))
        alone, two = (
            torch.load(p, weights_only=True) for p in (tmp_path / "alone/last.ckpt", folders[1] / "run/last.ckpt")
        )
        for name, weight in alone["model"].items():
            torch.testing.assert_close(two["model"][name], weight, rtol=0, atol=1e-6)
        assert len((folders[1] / "run/metrics.jsonl").read_text().splitlines()) == 2
