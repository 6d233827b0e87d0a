"""Time of fused softmax attention over that of every mechanism, with the settings of Table 5, by length and pass."""

from __future__ import annotations

import argparse
import copy

import torch
from torch import nn

import experiment
from mita import TokenLayout

from .core import problem
from .timing import ratio, side_by_side

HEAD_DIM = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = [name for name in experiment.groups()["attention"] if name != "mita_released"]
    parser.add_argument("--attention", nargs="+", choices=names, default=names, help="default: all")
    parser.add_argument("--lengths", nargs="+", type=int, default=[1024, 4096], help="default: %(default)s")
    parser.add_argument("--heads", type=int, help="batch times heads; default: 96 on a GPU, 2 on a processor")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each; default: %(default)s")


def measure(arguments: argparse.Namespace) -> list[dict]:
    rows, names = [], ["softmax", *(name for name in arguments.attention if name != "softmax")]
    heads = arguments.heads or (96 if arguments.device == "cuda" else 2)
    for N in arguments.lengths:
        tensors, layout = problem(N, heads, HEAD_DIM, device=arguments.device), TokenLayout((N,))
        modules = {name: mechanism(name, N, heads).to(arguments.device).eval() for name in names}
        wrong = {name: rows_off(module, tensors, layout) for name, module in modules.items()}
        for backward in (False, True):
            runs = {name: run(module, tensors, layout, backward) for name, module in modules.items()}
            times = side_by_side(runs, arguments.repeats, arguments.device)
            for name in names:
                speed, noise = ratio(times["softmax"], times[name])
                rows.append({
                    "attention": name, "N": N, "heads": heads, "pass": "fwd+bwd" if backward else "fwd",
                    "rows_off": wrong[name], "mechanism_ms": 1e3 * times[name].median, "ratio": speed, "noise": noise,
                })  # fmt: skip
                print(
                    f"{name:>14} {N:>7} {rows[-1]['pass']:>8} {rows[-1]['mechanism_ms']:>9.2f} ms {speed:>6.2f} times softmax",
                    flush=True,
                )
    return rows


def mechanism(name: str, N: int, heads: int) -> nn.Module:
    """With the settings of Table 5; Linformer for this length."""
    own = ["experiment=lra_listops_mita"] if name == "mita" else ["experiment=lra_listops", f"attention={name}"]
    config = experiment.compose([*own, *([f"attention.max_length={N}"] if name == "linformer" else [])])
    torch.manual_seed(0)
    return experiment.mechanism_factory(config)(heads, HEAD_DIM)


@torch.no_grad()
def rows_off(module: nn.Module, tensors: list[torch.Tensor], layout: TokenLayout) -> float:
    """Share of the queries whose output is off by more than 1e-3 from that in float64; stops above a hundredth.

    Not a bound on each, as a choice among equal keys, blocks or buckets may fall otherwise in float64.
    """
    exact = copy.deepcopy(module).double()(*(t.double() for t in tensors), layout)
    share = ((module(*tensors, layout) - exact).abs().amax(-1) > 1e-3).double().mean().item()
    if not share <= 0.01:
        raise SystemExit(
            f"{type(module).__name__} differs from itself in float64 at {share:.1%} of the queries; nothing is timed."
        )
    return share


def run(module: nn.Module, tensors: list[torch.Tensor], layout: TokenLayout, backward: bool):
    """What is timed: a forward, or a forward and the gradients of q, k and v."""

    def forward():
        with torch.no_grad():
            module(*tensors, layout)

    def both():
        leaves = [t.detach().requires_grad_() for t in tensors]
        torch.autograd.grad(module(*leaves, layout).sum(), leaves, allow_unused=True)  # Reformer's keys are its queries

    return both if backward else forward
