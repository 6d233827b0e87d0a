"""The segmentation task: losses and scores of label maps."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mita.training.tasks import Segmentation, build_task

ROOT = Path(__file__).parents[2]


class Known(torch.nn.Module):
    """Predicts the first channel of the image, a label map, enlarged to the size asked for."""

    def predict(self, image, size, **windows):
        return F.one_hot(image[0].long(), 4).movedim(-1, 0).float()


# 4 classes; the last is neither predicted nor labelled, 255 is ignored
PREDICTED = [[0, 0, 1, 1], [0, 2, 1, 1], [2, 2, 2, 0]]
LABELLED = [[0, 0, 1, 255], [0, 1, 1, 2], [2, 2, 255, 2]]
EXPECTED = {
    "miou": 100 * (3 / 4 + 2 / 4 + 2 / 5) / 3,  # 0: 3 of 3 + 4 - 3; 1: (1,2), hit 2 of 3 + 3 - 2; 2: hit 2 of 4 + 3 - 2
    "macc": 100 * (3 / 3 + 2 / 3 + 2 / 4) / 3,
    "pixel_accuracy": 100 * 7 / 10,
}


def items():
    image, target = torch.tensor(PREDICTED), torch.tensor(LABELLED)
    # rows as items of their own, and two sizes: the sums do not care
    return [
        {"image": image[None, :1].float(), "target": target[:1]},
        {"image": image[None, 1:].float(), "target": target[1:]},
    ]


def test_a_case_with_a_known_answer():
    task = Segmentation(4, window=2, stride=2)
    total = task.zeros(torch.device("cpu"))
    for item in items():
        sums = task.sums(Known(), {name: value[None] for name, value in item.items()})
        total = {name: value + sums[name] for name, value in total.items()}
    assert total["intersect"].tolist() == [3, 2, 2, 0]
    assert task.summarize(total) == pytest.approx(EXPECTED, abs=1e-12)


SCRIPT = """
import sys
sys.path[:0] = [{root!r}, {tests!r}]
import json
import torch
from test_segmentation import Known, items
from mita.training import Machine, Recipe, evaluate, make_fabric
from mita.training.tasks import Segmentation

fabric = make_fabric(Machine("cpu", devices=2), Recipe(batch_size=8, epochs=1))
values = evaluate(fabric, Known(), Segmentation(4, window=2, stride=2), [*items(), items()[0]][:{count}], batch_size=8)
if fabric.is_global_zero:
    print("VALUES" + json.dumps(values))
"""


@pytest.mark.parametrize("count", [2, 3])
def test_two_processes(count, tmp_path):
    """Two items, one a process; and three, so that one process has more: every pixel counts once."""
    import json

    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(root=str(ROOT), tests=str(Path(__file__).parent), count=count))
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script)],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    values = json.loads(run.stdout.split("VALUES")[1].splitlines()[0])
    if count == 2:
        assert values == pytest.approx(EXPECTED, abs=1e-12)
    else:  # the first item's three labelled pixels, all right, once more
        assert values["pixel_accuracy"] == pytest.approx(100 * 10 / 13, abs=1e-12)
        assert values["miou"] == pytest.approx(100 * (5 / 6 + 3 / 5 + 2 / 5) / 3, abs=1e-12)


def test_counts_as_mmseg_does(mmseg):
    from mmseg.evaluation import IoUMetric

    generator = torch.Generator().manual_seed(0)
    predicted = torch.randint(4, (1, 17, 23), generator=generator)
    target = torch.randint(5, (17, 23), generator=generator)
    target[target == 4] = 255
    sums = Segmentation(4, window=2, stride=2).sums(Known(), {"image": predicted[None].float(), "target": target[None]})
    theirs = IoUMetric.intersect_and_union(predicted[0], target, 4, 255)
    for name, counts in zip(("intersect", None, "predicted", "labelled"), theirs, strict=True):
        if name:
            assert torch.equal(sums[name], counts.double())


def test_loss_is_the_mean_of_the_images_means_over_labelled_pixels():
    """So that cutting a batch into parts, for memory or over devices, changes nothing."""
    task, generator = Segmentation(4, window=2, stride=2), np.random.default_rng(0)
    logits = torch.randn(2, 4, 3, 5, dtype=torch.float32, requires_grad=True)
    target = torch.randint(4, (2, 3, 5))
    target[0, 0] = 255
    batch = {"image": torch.zeros(2, 1, 3, 5), "target": target}
    loss = task.loss(lambda image: logits, batch, generator)
    means = [F.cross_entropy(logits[i : i + 1], target[i : i + 1], ignore_index=255) for i in range(2)]
    torch.testing.assert_close(loss, sum(means) / 2)
    nothing = task.loss(lambda image: logits, {**batch, "target": torch.full_like(target, 255)}, generator)
    nothing.backward()
    assert nothing == 0 and not logits.grad.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 8, "stride": 9}, "task.stride must be from 1 to task.window=8"),
        ({"window": 8, "stride": 0}, "task.stride must be from 1 to task.window=8"),
        ({"window": 8, "stride": 8, "scales": ()}, "task.scales must be factors above 0"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        build_task("segmentation", 4, **options)
