"""Agent attention: a few pooled queries read all keys, and every query reads them."""

from __future__ import annotations

from collections.abc import Sequence

from .mita import MiTA


class AgentAttention(MiTA):
    """softmax(q A^T / sqrt(d)) softmax(A k^T / sqrt(d)) v, with agents A pooled from q (Han et al., 2023, arXiv:2312.08874).

    This is MiTA's compression branch alone, so the same core computes it. The original adds a bias to both softmaxes and a
    depth-wise convolution; the latter is `MultiHeadAttention`'s option, the former is not here.

    Args:
        num_agents: m, on a 2-D grid a square unless `agent_grid` gives its two sides.
        agent_tokens: "grid", or "first" as the MiTA release pools its agents (see `MiTA`).
        agent_grid: (a, b), replaces `num_agents` by a * b.
        backend: see `mita.mita_attention`.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_agents: int = 49,
        agent_tokens: str = "grid",
        agent_grid: Sequence[int] | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(
            num_heads, head_dim, num_agents, branches="compress", landmark_tokens=agent_tokens,
            landmark_grid=agent_grid, backend=backend,
        )  # fmt: skip
