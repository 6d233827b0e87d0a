"""The attention core as it is timed: the problem, MiTA on it, and its check against the reference."""

from __future__ import annotations

import torch

from mita import TokenLayout, mita_attention
from mita.attention import Routing
from mita.attention.reference import reference_attention
from mita.landmarks import average_pool


def problem(N: int, H: int, d: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[torch.Tensor]:
    """q, k, v (1, H, N, d), normally distributed."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, H, N, d, generator=generator).to(device, dtype) for _ in range(3)]


def mita(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: int, top_k: int, **options):
    """MiTA with landmarks pooled in the timed part."""
    landmarks, _ = average_pool(q, TokenLayout((q.shape[2],)), (m,))
    return mita_attention(q, k, v, landmarks, top_k=top_k, **options)


def checked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: int, top_k: int, backend: str) -> float:
    """Error of one head at the timed size, against the reference in float64 for 128 of its queries; stops if it is wrong."""
    N, tolerance = q.shape[2], 1e-5 if q.dtype == torch.float32 else 2e-2
    q, k, v = (t[:, :1] for t in (q, k, v))
    landmarks, _ = average_pool(q, TokenLayout((N,)), (m,))
    o, routing = mita_attention(q, k, v, landmarks, top_k=top_k, backend=backend, return_routing=True)
    some = torch.randperm(N, generator=torch.Generator().manual_seed(1))[:128].to(q.device)
    routing = Routing(routing.selected, routing.experts[:, :, some])
    exact, _ = reference_attention(
        q[:, :, some].double(), *(t.double() for t in (k, v, landmarks)), top_k=top_k, routing=routing
    )
    error = (o[:, :, some] - exact).abs().max().item()
    if not error <= tolerance:
        raise SystemExit(
            f"The backend {backend} differs from the reference by {error:.1e} at N = {N}; nothing is timed."
        )
    return error
