"""Attention mechanisms by name. A new one is a file here, a line in `MECHANISMS`, and a yaml of the same name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from .. import registry
from .agent import AgentAttention
from .base import Mechanism
from .linear import LinearAttention
from .linformer import Linformer
from .mita import MiTA
from .moba import MoBA
from .nystromformer import Nystromformer
from .performer import Performer
from .reformer import Reformer
from .softmax import SoftmaxAttention
from .softmax_naive import NaiveSoftmaxAttention

MECHANISMS: dict[str, Callable[..., nn.Module]] = {
    "softmax": SoftmaxAttention,
    "softmax_naive": NaiveSoftmaxAttention,
    "mita": MiTA,
    "mita_released": partial(MiTA, landmark_scale="double", landmark_tokens="first"),
    # either branch alone, with as many entries a query as both together
    "mita_route": partial(MiTA, branches="route", top_k=50),
    "mita_compress": partial(MiTA, branches="compress", num_landmarks=49),
    "agent": AgentAttention,
    "moba": MoBA,
    "linear": LinearAttention,
    "linformer": Linformer,
    "nystromformer": Nystromformer,
    "performer": Performer,
    "reformer": Reformer,
}


def build(name: str, num_heads: int, head_dim: int, **options: Any) -> nn.Module:
    """The mechanism registered under `name`, for `num_heads` heads of `head_dim` channels.

    Raises:
        ValueError: the name or an option is unknown (the nearest known names are given), or an option is out of range.
    """
    return registry.build("attention mechanism", MECHANISMS, name, num_heads, head_dim, **options)


__all__ = ["MECHANISMS", "Mechanism", "MiTA", "SoftmaxAttention", "build"]
