"""The cases that every implementation of the core is held to, made here once."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from mita.attention.native import library


@dataclass(frozen=True)
class Case:
    """One problem: sizes, options of `mita_attention`, and what is odd about its tensors."""

    name: str
    B: int = 2
    H: int = 2
    Nq: int = 37
    Nk: int | None = None
    m: int = 5
    d: int = 8
    dv: int | None = None
    options: dict = field(default_factory=lambda: {"top_k": 6})
    key_lengths: tuple[int, ...] | None = None
    landmark_mask: bool = False
    kind: str = "random"

    def tensors(self, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[list[Tensor], dict]:
        """([q, k, v, landmarks], options with masks); q, k, v, landmarks require gradients."""
        g = torch.Generator().manual_seed(seed)
        Nk = self.Nq if self.Nk is None else self.Nk
        shapes = [(self.Nq, self.d), (Nk, self.d), (Nk, self.dv or self.d), (self.m, self.d)]
        q, k, v, landmarks = (torch.randn(self.B, self.H, *shape, generator=g, dtype=torch.float64) for shape in shapes)
        if self.kind == "equal keys":
            k = k[:, :, :1].expand(k.shape).clone()
        elif self.kind == "zeros":  # every score is 0.0 or -0.0
            k = torch.zeros_like(k)
            k[:, :, ::2] = -0.0
        elif self.kind == "duplicates":  # integer tensors: many exact ties in every float type
            q, k, landmarks = (t.round().clamp(-1, 1) for t in (q, k, landmarks))
        elif self.kind == "one expert":
            landmarks[:, :, 1:] -= 10 * q.mean(2, keepdim=True).sign()
            q = q.abs() + 1
            landmarks[:, :, 0] = 5.0
        elif self.kind == "empty expert":
            landmarks[:, :, 2] = landmarks[:, :, 1]  # a twin with a higher index never wins
        options = dict(self.options)
        if self.key_lengths is not None:
            options["key_mask"] = torch.arange(Nk) < torch.tensor(self.key_lengths)[:, None]
        if self.landmark_mask:
            mask = torch.rand(self.B, self.m, generator=g) < 0.6
            mask[:, 0] = False
            mask[:, 1] = True
            options["landmark_mask"] = mask
        return [t.to(dtype).requires_grad_() for t in (q, k, v, landmarks)], options


def _options(**options) -> dict:
    return {"top_k": 6, **options}


CASES = [
    Case("plain"),
    Case("one landmark", m=1),
    Case("k is 1", options=_options(top_k=1)),
    Case("k is N", options=_options(top_k=37)),
    Case("k above N", options=_options(top_k=50)),
    Case("m is N", m=37),
    Case("m above N", m=45),
    Case("m and k are N", m=37, options=_options(top_k=37)),
    Case("one token", Nq=1, m=1, options=_options(top_k=1)),
    Case("one token, m and k above", Nq=1, m=4, options=_options(top_k=3)),
    Case("no batch", B=0),
    Case("fewer keys than queries", Nk=11),
    Case("more keys than queries", Nq=7, Nk=50),
    Case("value dim differs", dv=5),
    Case("value dim above", dv=13),
    Case("two experts", options=_options(experts_per_query=2)),
    Case("all experts", options=_options(experts_per_query=5, top_k=9)),
    Case("route", options=_options(branches="route")),
    Case("route, two experts", options=_options(branches="route", experts_per_query=2)),
    Case("compress", options=_options(branches="compress")),
    Case("landmark key scale", options=_options(landmark_key_scale=8**-0.5)),
    Case("negative landmark key scale", landmark_mask=True, options=_options(landmark_key_scale=-0.7)),
    Case("own scale", options=_options(scale=0.9)),
    Case("lengths", key_lengths=(37, 20)),
    Case("length below k", key_lengths=(3, 37)),
    Case("length 1", key_lengths=(1, 37)),
    Case("no real key", key_lengths=(0, 37)),
    Case("no real key, route", key_lengths=(0, 37), options=_options(branches="route")),
    Case("no real key, compress", key_lengths=(0, 37), options=_options(branches="compress")),
    Case("all masked", key_lengths=(0, 0)),
    Case("landmark mask", landmark_mask=True),
    Case("landmark mask, more experts than landmarks", landmark_mask=True, options=_options(experts_per_query=5)),
    Case("both masks, two experts", landmark_mask=True, key_lengths=(4, 30), options=_options(experts_per_query=2)),
    Case("equal keys", kind="equal keys"),
    Case("signed zeros", kind="zeros"),
    Case("ties", kind="duplicates", Nq=64, m=8),
    Case("ties, two experts", kind="duplicates", m=8, options=_options(experts_per_query=2)),
    Case("ties with lengths", kind="duplicates", key_lengths=(9, 37)),
    Case("one expert has all queries", kind="one expert"),
    Case("empty expert", kind="empty expert"),
    Case("long rows", B=1, H=1, Nq=300, Nk=1024, m=3, d=4, options=_options(top_k=7)),
    Case("long rows with ties", B=1, H=1, Nq=40, Nk=1024, m=3, d=4, kind="duplicates", options=_options(top_k=7)),
]

needs_a_compiler = pytest.mark.skipif(library.compiler() is None, reason="no C++ compiler")

# The backends that run on a processor, and the widest type that each computes in, with the tolerance of that type.
WIDEST = {"reference": torch.float64, "eager": torch.float64, "native": torch.float32}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
BACKENDS = [name for name in WIDEST if name != "native" or library.compiler()]
