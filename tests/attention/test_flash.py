"""The flash-attn backend against the reference, on a stand-in of flash-attn's public function (2.6 and 2.7)."""

import sys
import types

import pytest
import torch

from mita import mita_attention
from mita.attention.backends import BACKENDS, Backend
from mita.attention.problem import Problem
from mita.attention.reference import reference_attention

from .cases import CASES

UNMASKED = [c for c in CASES if c.key_lengths is None and not c.landmark_mask and (c.dv is None or c.dv == c.d)]


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False, block_table=None,
):  # fmt: skip
    """q (total_q, heads, d), k and v (total_k, heads, d), int32 ends -> o (total_q, heads, d), lse (heads, total_q), None."""
    assert q.dtype in (torch.bfloat16, torch.float16) and q.dtype == k.dtype == v.dtype
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32 and len(cu_seqlens_q) == len(cu_seqlens_k)
    assert cu_seqlens_q[0] == cu_seqlens_k[0] == 0 and cu_seqlens_q[-1] == len(q) and cu_seqlens_k[-1] == len(k)
    lengths = [(ends[1:] - ends[:-1]) for ends in (cu_seqlens_q, cu_seqlens_k)]
    assert lengths[0].max() == max_seqlen_q and lengths[1].max() == max_seqlen_k and min(map(torch.min, lengths)) > 0
    o, lse = torch.empty_like(q), torch.empty(q.shape[1], len(q), dtype=torch.float32)
    for i in range(len(cu_seqlens_q) - 1):
        rows, keys = (slice(ends[i], ends[i + 1]) for ends in (cu_seqlens_q, cu_seqlens_k))
        scores = softmax_scale * torch.einsum("qhd,khd->hqk", q[rows].float(), k[keys].float())
        lse[:, rows] = scores.logsumexp(-1)
        o[rows] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v[keys].float()).to(o.dtype)
    return (o, lse, None) if return_attn_probs else o


@pytest.fixture
def stand_in(monkeypatch):
    module = types.ModuleType("flash_attn")
    module.flash_attn_varlen_func = flash_attn_varlen_func
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    monkeypatch.setitem(BACKENDS, "flash", Backend("flash", "", lambda problem: []))


@pytest.mark.parametrize("case", UNMASKED, ids=lambda case: case.name)
def test_flash_equals_the_reference(case, stand_in):
    """Forward and every gradient; the error is that of bfloat16, in which flash-attn takes values and gives its part."""
    tensors, options = case.tensors(torch.bfloat16)
    o, routing = mita_attention(*tensors, **options, backend="flash", return_routing=True)
    weight = torch.linspace(-1, 1, o.numel()).view(o.shape)
    grads = torch.autograd.grad((o.float() * weight).sum(), tensors, allow_unused=True)
    wide = [t.detach().double().requires_grad_() for t in tensors]
    expected, _ = reference_attention(*wide, **options, routing=routing)
    expected_grads = torch.autograd.grad((expected * weight).sum(), wide, allow_unused=True)
    torch.testing.assert_close(o.double(), expected, rtol=2e-2, atol=2e-2)
    for grad, wanted in zip(grads, expected_grads, strict=True):
        if wanted is not None:
            torch.testing.assert_close(
                grad.double(), wanted, rtol=3e-2, atol=3e-2 * max([1.0, *wanted.abs().flatten().tolist()])
            )


def test_flash_says_what_it_cannot_do():
    q = torch.randn(1, 1, 6, 12)
    mask = torch.ones(1, 6, dtype=torch.bool)
    options = {"top_k": 2, "experts_per_query": 1, "branches": "both", "landmark_mask": None}
    reasons = " ".join(BACKENDS["flash"].why_not(Problem.of(q, q, q, q, **options, key_mask=mask)))
    for said in ("needs a GPU", "float16 or bfloat16", "no masks", "multiple of 8", "flash-attn is not installed"):
        assert said in reasons
    with pytest.raises(ValueError, match="The backend 'flash' cannot run this problem"):
        mita_attention(q, q, q, q, top_k=2, backend="flash")
