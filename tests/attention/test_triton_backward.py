"""The backward pass in Triton, from the outputs of the eager forward: compiled where there is a GPU, otherwise interpreted."""

import contextlib
import dataclasses
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from mita import mita_attention
from mita.attention import eager, op
from mita.attention.reference import reference_attention

from .cases import CASES, Case
from .interpreter import mend_bfloat16, quick
from .test_backends import check_against_reference
from .test_triton_forward import DEVICE, MANY_LANDMARKS, pytorch

pytest.importorskip("triton")
from mita.attention.triton import backward as triton_backward  # noqa: E402

NAMED = {case.name: case for case in CASES}


def backward_on_device(*arguments):
    moved = (a.to(DEVICE) if isinstance(a, torch.Tensor) else a for a in arguments)
    return tuple(grad.cpu() for grad in triton_backward.backward(*moved))


@pytest.fixture(autouse=True)
def after_the_eager_forward(monkeypatch):
    """backend="eager" with the backward under test."""
    module = SimpleNamespace(forward=eager.forward, backward=backward_on_device)
    monkeypatch.setattr(op, "_module", lambda backend: module)
    with quick() if DEVICE == "cpu" else contextlib.nullcontext():
        yield


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_the_reference(case):
    few = (
        {"H": 1, "B": 1} if case.name in MANY_LANDMARKS else {"H": 1}
    )  # interpreting is slow; other tests have more heads
    check_against_reference(dataclasses.replace(case, **few), 1e-5, torch.float32, backend="eager")


@pytest.fixture
def small_tiles(monkeypatch):
    """Many tiles and parts even in small problems."""
    monkeypatch.setattr(triton_backward, "sizes", lambda *_: {"BN": 16, "BQ": 16})
    monkeypatch.setattr(triton_backward, "_part_length", lambda m: 16)


@pytest.mark.parametrize("name", ["both masks, two experts", "more keys than queries", "equal keys", "no real key"])
def test_in_small_tiles(name, small_tiles):
    check_against_reference(NAMED[name], 1e-5, torch.float32, backend="eager")


def gradients(tensors, options, grad=None, **more):
    """Gradients of q, k, v and landmarks; `grad` of the output, by default the ones of a sum."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    o = mita_attention(*leaves, **options, **more, backend="eager")
    return torch.autograd.grad(o.sum() if grad is None else o, leaves, grad, allow_unused=True)


def test_the_same_bits_whatever_is_done_at_once(monkeypatch):
    """The compact rows of experts are bounded by taking some heads at a time, which must not show."""
    tensors, options = NAMED["both masks, two experts"].tensors(torch.float32)
    at_once = gradients(tensors, options)
    monkeypatch.setattr(triton_backward, "_heads_at_once", lambda *_: 3)
    for whole, cut in zip(at_once, gradients(tensors, options), strict=True):
        assert torch.equal(whole, cut)


def test_strided_tensors_are_read_in_place():
    """flash-attention #355, pytorch #194719: views of a packed qkv, a last dim that is not dense, expanded gradients."""
    q, k, v = torch.randn(2, 37, 3, 2, 8, generator=torch.Generator().manual_seed(0)).permute(2, 0, 3, 1, 4)
    strided = torch.randn(2, 37, 2, 8, generator=torch.Generator().manual_seed(1)).transpose(1, 2)
    for tensors in [(q, k, v), (q.mT.contiguous().mT, k, v), (q, k[:, :, :1].expand(k.shape), v[:1].expand(v.shape))]:
        dense = [t.contiguous() for t in tensors]
        for grad in (None, strided):
            got = gradients((*tensors, q[:, :, :4]), {"top_k": 5}, grad)
            expected = gradients(
                (*dense, dense[0][:, :, :4]), {"top_k": 5}, None if grad is None else grad.contiguous()
            )
            for ours, theirs in zip(got, expected, strict=True):
                assert torch.equal(ours, theirs)


HALF = [
    Case("plain", B=1, Nq=70, d=64, m=6, options={"top_k": 12}),
    Case("two experts", B=1, d=20, dv=36, options={"top_k": 9, "experts_per_query": 2}),
    Case("route", B=1, d=16, options={"top_k": 6, "branches": "route"}),
    Case("compress", B=1, d=16, options={"top_k": 6, "branches": "compress"}),
    Case("one expert", B=1, d=16, kind="equal keys", options={"top_k": 6}),
]


@pytest.mark.parametrize("case", HALF, ids=lambda case: case.name)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_types_err_no_more_than_twice_pytorch(case, dtype, monkeypatch):
    if DEVICE == "cpu":
        mend_bfloat16(monkeypatch)
    tensors, options = case.tensors(dtype)
    o, routing = mita_attention(*tensors, **options, backend="eager", return_routing=True)
    grad = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    got = torch.autograd.grad(o, tensors, grad)
    wide = [t.detach().double().requires_grad_() for t in tensors]
    exact_o, _ = reference_attention(*wide, **options, routing=routing)
    exact = torch.autograd.grad(exact_o, wide, grad.double(), allow_unused=True)
    on_device = [t.detach().to(DEVICE).requires_grad_() for t in tensors]
    theirs_o = pytorch(on_device, options, type(routing)(*(t.to(DEVICE) for t in routing)))
    theirs = torch.autograd.grad(theirs_o, on_device, grad.to(DEVICE), allow_unused=True)
    for name, ours, own, right in zip(("q", "k", "v", "landmarks"), got, theirs, exact, strict=True):
        assert ours.dtype == dtype
        if right is None:
            assert not ours.any()
            continue
        error, allowed = (ours.double() - right).norm(), (own.cpu().double() - right).norm()
        assert error <= 2 * allowed, f"gradient of {name}: {error:.1e}, PyTorch's {allowed:.1e}"


@pytest.mark.parametrize(("dtype", "size"), [(torch.float16, 40.0), (torch.bfloat16, 35.4)])
def test_huge_logits_stay_finite(dtype, size, monkeypatch):
    """deit #29, #109: NaN under fp16."""
    if DEVICE == "cpu":
        mend_bfloat16(monkeypatch)
    q = torch.full((1, 1, 60, 64), size, dtype=dtype)
    v = torch.randn(1, 1, 60, 64, generator=torch.Generator().manual_seed(0)).to(q)
    tensors = q, q, v, q[:, :, :5]
    got = gradients(tensors, {"top_k": 7}, grad=v)
    monkeypatch.setattr(op, "_module", lambda backend: eager)
    for ours, right in zip(got, gradients([t.double() for t in tensors], {"top_k": 7}, grad=v.double()), strict=True):
        torch.testing.assert_close(ours.double(), right, rtol=2e-2, atol=torch.finfo(dtype).eps * size)


class Alive(TorchDispatchMode):
    """The most bytes of tensors made under it that were alive at once."""

    def __init__(self):
        super().__init__()
        self.bytes = self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **kwargs or {})
        if isinstance(result, torch.Tensor) and not function.is_view and not function._schema.is_mutable:
            self._add(result.nbytes)
            weakref.finalize(result, self._add, -result.nbytes)
        return result

    def _add(self, size: int) -> None:
        self.bytes += size
        self.peak = max(self.peak, self.bytes)


@pytest.mark.parametrize(("H", "N", "m", "s", "branches"), [
    (96, 197, 25, 1, "both"), (96, 1024, 49, 1, "both"), (96, 4096, 128, 1, "both"), (8, 1 << 16, 128, 2, "both"),
    (8, 1 << 20, 512, 1, "both"), (8, 1 << 16, 128, 1, "route"), (8, 1 << 16, 128, 1, "compress"),
])  # fmt: skip
@pytest.mark.parametrize("masked", [False, True])
def test_nothing_waits_for_the_gpu_and_memory_is_bounded(H, N, m, s, branches, masked, monkeypatch):
    """On tensors without data: what depends on data would fail, and so would reading it, which on a GPU is a synchronisation."""
    launched = []
    kernel_type = type(triton_backward.keys_kernel)
    monkeypatch.setattr(kernel_type, "run", lambda kernel, *args, **options: launched.append(kernel.__name__))
    with FakeTensorMode():
        q, k, v = torch.empty(1, N, 3, H, 64, dtype=torch.bfloat16).permute(2, 0, 3, 1, 4)
        grad_o = torch.empty(1, N, H, 64, dtype=torch.bfloat16).transpose(1, 2)
        o, landmarks = (torch.empty(1, H, n, 64, dtype=torch.bfloat16) for n in (N, m))
        masks = [torch.empty(1, n, dtype=torch.bool) if masked else None for n in (N, m)]
        probes = 0 if branches == "route" else m
        values, lse, values_lse = torch.empty(1, H, probes, 64), torch.empty(1, H, N), torch.empty(1, H, probes)
        selected = torch.empty(1, H, m, m, dtype=torch.int32)
        experts = torch.empty(1, H, N, s, dtype=torch.int32)
        with Alive() as alive:
            outputs = triton_backward.backward(
                grad_o, q, k, v, landmarks, *masks, o, lse, values, values_lse, selected, experts, 0.125, 1.0, branches
            )  # fmt: skip
    names = {name.removesuffix("_kernel") for name in launched}
    expected = {"delta", "keys", "queries"}
    expected |= {"landmarks", "probes"} if branches != "route" else set()
    expected |= {"count", "place", "expert"} if branches != "compress" else set()
    assert names == expected
    beyond = alive.peak - sum(t.nbytes for t in outputs)
    assert beyond <= max(2 * q.nbytes, 2 * triton_backward.SCRATCH_BYTES) + (s * q.nbytes if s > 1 else 0)
