"""The C++ core as a backend: `forward` and `backward` with the contract of `eager.py`, computed in float32."""

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor

from . import library

_SIZES = ("heads", "heads_per_item", "queries", "keys", "landmarks", "dim", "value_dim", "top_k")
_READ = ("q", "k", "v", "l", "key_mask", "landmark_mask")
_WRITTEN = ("o", "lse", "values", "values_lse", "selected", "experts")


class _Problem(ctypes.Structure):
    """`Problem` of kernels.cpp."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in _SIZES),
        ("scale", ctypes.c_float),
        ("factor", ctypes.c_float),
        ("shared", ctypes.c_bool),
        ("routed", ctypes.c_bool),
        ("routes", ctypes.c_bool),
        *((name, ctypes.c_void_p) for name in (*_READ, *_WRITTEN)),
    ]


def forward(
    q: Tensor, k: Tensor, v: Tensor, landmarks: Tensor, key_mask: Tensor | None, landmark_mask: Tensor | None,
    top_k: int, experts_per_query: int, scale: float, landmark_key_scale: float, branches: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """See `eager.forward`; experts_per_query is at most 1."""
    B, H, Nq, _ = q.shape
    m, dv = landmarks.shape[2], v.shape[3]
    probes = 0 if branches == "route" else m
    read = [*(_padded(t) for t in (q, k, v, landmarks)), _bytes(key_mask), _bytes(landmark_mask)]
    values = q.new_empty(B, H, probes, read[2].shape[3], dtype=torch.float32)
    written = [
        q.new_empty(B, H, Nq, read[2].shape[3], dtype=torch.float32), q.new_empty(B, H, Nq, dtype=torch.float32),
        values, q.new_empty(B, H, probes, dtype=torch.float32), q.new_empty(B, H, m, top_k, dtype=torch.int32),
        q.new_empty(B, H, Nq, experts_per_query, dtype=torch.int32),
    ]  # fmt: skip
    problem = _problem(read, written, top_k, scale, landmark_key_scale, branches)
    library.load().mita_forward(ctypes.byref(problem), torch.get_num_threads())
    o, lse, values, *rest = written
    return o[..., :dv].to(q.dtype).contiguous(), lse, values[..., :dv].contiguous(), *rest


def backward(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, landmarks: Tensor, key_mask: Tensor | None, landmark_mask: Tensor | None,
    o: Tensor, lse: Tensor, landmark_values: Tensor, landmark_lse: Tensor, selected: Tensor, experts: Tensor,
    scale: float, landmark_key_scale: float, branches: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """See `eager.backward`."""
    inputs = q, k, v, landmarks
    read = [*(_padded(t) for t in inputs), _bytes(key_mask), _bytes(landmark_mask)]
    written = [_padded(o), lse, _padded(landmark_values), landmark_lse, selected, experts]
    problem = _problem(read, written, selected.shape[3], scale, landmark_key_scale, branches)
    grad_o, grads = _padded(grad_o), [torch.empty_like(t) for t in read[:4]]
    library.load().mita_backward(
        ctypes.byref(problem), *(ctypes.c_void_p(t.data_ptr()) for t in (grad_o, *grads)), torch.get_num_threads()
    )
    return tuple(g[..., : t.shape[3]].to(t.dtype).contiguous() for g, t in zip(grads, inputs, strict=True))


def _problem(read, written, top_k: int, scale: float, landmark_key_scale: float, branches: str) -> _Problem:
    """The C structure; it points into the tensors, which the caller keeps alive."""
    q, k, v, landmarks = read[:4]
    (B, H, Nq, d), Nk, m, dv = q.shape, k.shape[2], landmarks.shape[2], v.shape[3]
    pointers = [None if t is None else t.data_ptr() for t in (*read, *written)]
    return _Problem(
        B * H, H, Nq, Nk, m, d, dv, top_k, scale, scale * landmark_key_scale,
        branches != "route", branches != "compress", written[-1].shape[3] > 0, *pointers,
    )  # fmt: skip


def _padded(t: Tensor) -> Tensor:
    """Contiguous float32 with rows of whole vectors; the zeros change no product."""
    t = t.float()
    missing = -t.shape[-1] % library.load().mita_row_multiple()
    return (F.pad(t, (0, missing)) if missing else t).contiguous()


def _bytes(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask.contiguous().view(torch.uint8)
