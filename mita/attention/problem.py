"""What is to be computed, before anyone decides how."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

BRANCHES = ("both", "route", "compress")


class Routing(NamedTuple):
    """What the selection and the routing chose; -1 marks an absent entry.

    selected: (B, H, m, k) int64, the keys of each expert in ascending order, absent ones last.
    experts: (B, H, Nq, s) int64, the experts of each query, best first.
    """

    selected: Tensor
    experts: Tensor


@dataclass(frozen=True)
class Problem:
    """What decides which backend can run."""

    device: str
    dtype: torch.dtype
    head_dim: int
    value_dim: int
    experts_per_query: int
    masked: bool

    @classmethod
    def of(cls, q, k, v, landmarks, *, top_k, experts_per_query, branches, key_mask, landmark_mask):
        """Check every argument of `mita_attention` and describe the problem.

        Raises ValueError, naming the argument, what it must be and what it is.
        """
        for name, tensor in {"q": q, "k": k, "v": v, "landmarks": landmarks}.items():
            if tensor.dim() != 4:
                raise ValueError(
                    f"{name} must have the shape (batch, heads, tokens, dim), but it has {tuple(tensor.shape)}."
                )
            if not tensor.is_floating_point():
                raise ValueError(f"{name} must be a floating-point tensor, but it is {tensor.dtype}.")
            if tensor.device != q.device or tensor.dtype != q.dtype:
                raise ValueError(
                    f"{name} is {tensor.dtype} on {tensor.device}, but q is {q.dtype} on {q.device}; bring them together."
                )
        (B, H, Nq, d), Nk, m = q.shape, k.shape[2], landmarks.shape[2]
        expected = {"k": (k, (B, H, Nk, d)), "v": (v, (B, H, Nk, v.shape[3])), "landmarks": (landmarks, (B, H, m, d))}
        for name, (tensor, shape) in expected.items():
            if tuple(tensor.shape) != shape:
                raise ValueError(
                    f"{name} must have the shape {shape} to fit q {tuple(q.shape)}, but it has {tuple(tensor.shape)}."
                )
        if min(Nq, Nk, m, d, v.shape[3]) < 1:
            raise ValueError(
                f"Queries, keys, landmarks and dims must number at least 1, but they are {(Nq, Nk, m, d, v.shape[3])}."
            )
        if d > 256 or v.shape[3] > 256:
            raise ValueError(f"The head dim must be at most 256, but it is {max(d, v.shape[3])}; use more heads.")
        for name, number in (("top_k", top_k), ("experts_per_query", experts_per_query)):
            if not isinstance(number, int | torch.SymInt):
                raise ValueError(f"{name} must be a whole number, but it is {number!r}.")
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, but it is {top_k}.")
        if not 1 <= experts_per_query <= m:
            raise ValueError(
                f"experts_per_query must be between 1 and the number of landmarks ({m}), but it is {experts_per_query}."
            )
        if branches not in BRANCHES:
            raise ValueError(f"branches must be one of {', '.join(BRANCHES)}, but it is {branches!r}.")
        for name, mask, shape in (("key_mask", key_mask, (B, Nk)), ("landmark_mask", landmark_mask, (B, m))):
            if mask is not None and (mask.dtype != torch.bool or tuple(mask.shape) != shape or mask.device != q.device):
                raise ValueError(
                    f"{name} must be a bool tensor of shape {shape} on {q.device} (True = real), "
                    f"but it is {mask.dtype} {tuple(mask.shape)} on {mask.device}."
                )
        return cls(
            device=q.device.type, dtype=q.dtype, head_dim=d, value_dim=v.shape[3], experts_per_query=experts_per_query,
            masked=key_mask is not None or landmark_mask is not None,
        )  # fmt: skip
