"""The forward pass in Triton: compiled where there is a GPU, otherwise under Triton's interpreter."""

import contextlib
import dataclasses
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from mita import mita_attention
from mita.attention import Problem, backends, eager
from mita.attention.reference import reference_attention

from .cases import CASES, Case
from .interpreter import mend_bfloat16, quick  # before triton
from .test_backends import check_against_reference

pytest.importorskip("triton")
from mita.attention.triton import config, op  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAMED = {case.name: case for case in CASES}
MANY_LANDMARKS = ["m is N", "m above N", "m and k are N"]  # slow to interpret where each is an expert to visit
SHORT = [*MANY_LANDMARKS, "plain", "k is N", "k above N", "one token", "more keys than queries", "value dim above", "route",
         "negative landmark key scale", "length below k", "no real key", "ties with lengths", "signed zeros"]  # fmt: skip


@pytest.fixture(autouse=True)
def interpreter():
    with quick() if DEVICE == "cpu" else contextlib.nullcontext():
        yield


def of(case: Case, dtype: torch.dtype):
    """Tensors and options of a case, on the device."""
    tensors, options = case.tensors(dtype)
    return (
        [t.detach().to(DEVICE) for t in tensors],
        {name: o.to(DEVICE) if isinstance(o, torch.Tensor) else o for name, o in options.items()},
    )


def check_forward(case: Case):
    tensors, options = of(case, torch.float32)
    o, routing = mita_attention(*tensors, **options, backend="triton", return_routing=True)
    wide = [t.double() for t in tensors]
    expected, _ = reference_attention(*wide, **options, routing=routing)
    torch.testing.assert_close(o.double(), expected, rtol=1e-5, atol=1e-5)
    _, own = reference_attention(*wide, **options)  # no near ties in these cases
    assert torch.equal(routing.selected, own.selected)
    assert torch.equal(routing.experts, own.experts)


@pytest.mark.parametrize("case", [c for c in CASES if c.name not in MANY_LANDMARKS], ids=lambda case: case.name)
def test_equals_the_reference(case):
    masked = case.key_lengths or case.landmark_mask  # then a head must find its own batch's mask
    check_forward(case if masked else dataclasses.replace(case, B=min(case.B, 1)))


@pytest.fixture
def also_float32_is_short(monkeypatch):
    is_short = config.is_short
    monkeypatch.setattr(config, "is_short", lambda dtype, *sizes: is_short(torch.float16, *sizes))


@pytest.mark.parametrize("name", SHORT)
def test_short_sequences_equal_the_reference(name, also_float32_is_short):
    check_forward(NAMED[name])


def test_queries_of_a_short_sequence_in_shares(also_float32_is_short, monkeypatch):
    monkeypatch.setattr(config, "shares", lambda heads, queries: 2)
    check_forward(NAMED["plain"])


@pytest.fixture
def small_tiles(monkeypatch):
    """Many tiles and parts even in small problems, and lists that are cut often and in pieces."""
    for table in ("PROBE_FLOAT32", "ATTEND_FLOAT32", "GATE_FLOAT32"):
        monkeypatch.setattr(config, table, {256: (16, 16, 4, 1)})
    monkeypatch.setattr(config, "CUT_ENTRIES", 4)
    monkeypatch.setattr(config, "parts", lambda *sizes: 3)


@pytest.mark.parametrize("name", ["k is N", "both masks, two experts", "ties with lengths", "all masked"])
def test_in_small_tiles(name, small_tiles):
    check_forward(dataclasses.replace(NAMED[name], H=1))


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("stream", ["rising", "falling", "equal", "steps", "infinite"])
def test_best_of_a_stream(stream, parts, small_tiles, monkeypatch):
    """Whatever order the scores come in, of equal ones the first are chosen."""
    monkeypatch.setattr(config, "parts", lambda *sizes: parts)
    n = torch.arange(300.0, device=DEVICE)
    keys = {"rising": n, "falling": -n, "equal": n * 0 - 3, "steps": n // 40 % 3, "infinite": n.fmod(7) / 0.0}[stream]
    keys, one = keys.view(1, 1, -1, 1), torch.ones(1, 1, 1, 1, device=DEVICE)
    options = {"top_k": 21, "branches": "route", "return_routing": True}
    _, routing = mita_attention(one, keys, keys, one, **options, backend="triton")
    best = keys.flatten().nan_to_num(torch.inf, torch.inf).sort(descending=True, stable=True).indices[:21].sort().values
    assert torch.equal(routing.selected.flatten(), best)


@pytest.mark.parametrize("branches", ["both", "route", "compress"])
def test_returns_what_eager_does(branches):
    """Types, shapes and values of everything that the backward gets."""
    (q, k, v, l), options = of(dataclasses.replace(NAMED["both masks, two experts"], dv=5), torch.float32)
    arguments = q, k, v, l, options["key_mask"], options["landmark_mask"], 6, 2, 0.3, 0.7, branches
    names = "o", "lse", "landmark_values", "landmark_lse", "selected", "experts"
    for name, ours, theirs in zip(names, op.forward(*arguments), eager.forward(*arguments), strict=True):
        assert ours.dtype == theirs.dtype and ours.is_contiguous()
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("name", ["both masks, two experts", "lengths", "landmark key scale"])
def test_forward_and_backward(name):
    with torch.device(DEVICE):
        check_against_reference(NAMED[name], 1e-5, torch.float32, backend="triton")


def pytorch(tensors, options, routing):
    """The dense equations by PyTorch's own attention in the tensors' type, without masks."""
    q, k, v, landmarks = tensors
    scale, branches = q.shape[-1] ** -0.5, options.get("branches", "both")
    holds = torch.zeros(*landmarks.shape[:3], k.shape[2], device=q.device).scatter_(3, routing.selected, 1.0)
    times_read = F.one_hot(routing.experts, landmarks.shape[2]).sum(3).float() @ holds
    bias = [torch.zeros(*q.shape[:3], landmarks.shape[2], device=q.device), times_read.log()]
    keys, values = [landmarks, k], [F.scaled_dot_product_attention(landmarks, k, v, scale=scale), v]
    if branches != "both":
        keys, values, bias = ([part[branches == "route"]] for part in (keys, values, bias))
    mask = torch.cat(bias, 3).to(q.dtype)
    return F.scaled_dot_product_attention(q, torch.cat(keys, 2), torch.cat(values, 2), attn_mask=mask, scale=scale)


HALF = [
    Case("short", B=1, Nq=70, d=64, m=6, options={"top_k": 12}),
    Case("long", B=1, H=1, Nq=300, d=20, dv=36, m=6, options={"top_k": 30}),
    Case("two experts", B=1, d=16, options={"top_k": 9, "experts_per_query": 2}),
    Case("route", B=1, d=16, options={"top_k": 6, "branches": "route"}),
    Case("compress", B=1, d=16, options={"top_k": 6, "branches": "compress"}),
]


@pytest.mark.parametrize("case", HALF, ids=lambda case: case.name)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_types_err_no_more_than_twice_pytorch(case, dtype, monkeypatch):
    if DEVICE == "cpu":
        mend_bfloat16(monkeypatch)
    tensors, options = of(case, dtype)
    o, routing = mita_attention(*tensors, **options, backend="triton", return_routing=True)
    exact, _ = reference_attention(*(t.double() for t in tensors), **options, routing=routing)
    error, allowed = (x.double() - exact for x in (o, pytorch(tensors, options, routing)))
    assert o.dtype == dtype
    assert error.norm() <= 2 * allowed.norm() and error.abs().max() <= 2 * allowed.abs().max()


@pytest.mark.parametrize("N", [60, 300])
@pytest.mark.parametrize(("dtype", "size"), [(torch.float16, 40.0), (torch.bfloat16, 35.4)])
def test_huge_logits_stay_finite(dtype, size, N, monkeypatch):
    """deit #29, #109: NaN under fp16."""
    if DEVICE == "cpu":
        mend_bfloat16(monkeypatch)
    q = torch.full((1, 1, N, 64), size, dtype=dtype, device=DEVICE)
    v = torch.randn(1, 1, N, 64, generator=torch.Generator().manual_seed(0)).to(q)
    o = mita_attention(q, q, v, q[:, :, :5], top_k=7, backend="triton")
    expected = mita_attention(*(t.double() for t in (q, q, v, q[:, :, :5])), top_k=7, backend="reference")
    torch.testing.assert_close(o.double(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("content", [1e4, float("inf"), float("nan")])
def test_padding_changes_nothing(content, also_float32_is_short):
    """native-sparse-attention #23, on both paths: what stands in padding does not matter."""
    for case in (NAMED["lengths"], dataclasses.replace(NAMED["lengths"], B=1, Nq=300, key_lengths=(211,))):
        (q, k, v, l), options = of(case, torch.float32)
        expected = mita_attention(q, k, v, l, **options, backend="triton")
        k, v = (t.masked_fill(~options["key_mask"][:, None, :, None], content) for t in (k, v))
        assert torch.equal(mita_attention(q, k, v, l, **options, backend="triton"), expected)


@pytest.mark.parametrize("short", [False, True])
def test_strided_tensors_are_read_in_place(short, monkeypatch):
    """flash-attention #355, pytorch #194719: views of a packed qkv, a last dim that is not dense, expanded keys."""
    monkeypatch.setattr(config, "is_short", lambda *sizes: short)
    packed = torch.randn(2, 20, 3, 2, 8, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    q, k, v = packed.permute(2, 0, 3, 1, 4)
    for tensors in (q, k, v), (q.mT.contiguous().mT, k[:, :, :1].expand(k.shape), v[:1].expand(v.shape)):
        dense = [t.contiguous() for t in tensors]
        o, expected = (mita_attention(*t, t[0][:, :, :3], top_k=5, backend="triton") for t in (tensors, dense))
        assert torch.equal(o, expected)


class Allocations(TorchDispatchMode):
    """The most bytes that were alive at once of the tensors made under it."""

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **kwargs or {})
        if isinstance(result, torch.Tensor) and not function.is_view:
            self._add(result.nbytes)
            weakref.finalize(result, self._add, -result.nbytes)
        return result

    def _add(self, size: int) -> None:
        self.live += size
        self.peak = max(self.peak, self.live)


LONG = ["gate", "count", "place", "attend"]


SPLIT = ["probe", "merge", "combine", *LONG]


@pytest.mark.parametrize(
    ("heads", "N", "m", "s", "masked", "launches"),
    [
        (96, 197, 25, 1, False, ["short"]),
        (96, 128, 25, 1, True, ["short"]),
        (96, 197, 25, 1, True, ["probe", *LONG]),
        *[(1024, 1024, 49, 1, masked, ["probe", *LONG]) for masked in (False, True)],
        *[(96, 4096, 128, 1, masked, SPLIT) for masked in (False, True)],
        *[(8, 1 << 16, 128, 2, masked, [*SPLIT, "combine"]) for masked in (False, True)],
        *[(1, 1 << 20, 512, 1, masked, SPLIT) for masked in (False, True)],
    ],
)
def test_nothing_waits_for_the_gpu_and_memory_is_bounded(heads, N, m, s, masked, launches, monkeypatch):
    """On tensors without data: to read data, which on a GPU is a synchronisation, or to let a shape depend on it, would fail."""
    launched = []
    monkeypatch.setattr(type(op.attend_kernel), "run", lambda self, *_, **__: launched.append(self.__name__))
    with FakeTensorMode():
        q, k, v = torch.empty(1, N, 3, heads, 64, dtype=torch.bfloat16).permute(2, 0, 3, 1, 4)
        landmarks = torch.empty(1, heads, m, 64, dtype=torch.bfloat16)
        masks = [torch.empty(1, n, dtype=torch.bool) if masked else None for n in (N, m)]
        with Allocations() as allocations:
            outputs = op.forward(q, k, v, landmarks, *masks, m, s, 0.125, 1.0, "both")
    assert launched == [f"{name}_kernel" for name in launches]
    beyond = allocations.peak - sum(t.nbytes for t in outputs)
    assert beyond <= (2 if s == 1 else s + 0.25) * q.nbytes


def problem(**changes) -> Problem:
    kind = {"device": "cuda", "dtype": torch.bfloat16, "head_dim": 64, "value_dim": 64, "experts_per_query": 1}
    return Problem(**{**kind, "masked": False, **changes})


def test_why_not(monkeypatch):
    monkeypatch.setattr(backends, "_capability", lambda: (9, 0))
    why_not = backends.BACKENDS["triton"].why_not
    assert why_not(problem()) == []
    assert "float64" in why_not(problem(dtype=torch.float64))[0]
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert "CUDA device, but the tensors are on cpu" in why_not(problem(device="cpu"))[0]
    monkeypatch.setattr(backends, "_capability", lambda: (7, 5))
    assert "8.0 or more, but this one has 7.5" in why_not(problem())[0]
    monkeypatch.setattr(backends, "_has_triton", lambda: False)
    assert "Triton is not installed" in why_not(problem())[0]


def test_auto_takes_triton_on_a_gpu_and_says_once_why_not(monkeypatch):
    monkeypatch.setattr(backends, "_capability", lambda: (9, 0))
    monkeypatch.setattr(backends, "_SAID", set())
    monkeypatch.delenv("MITA_BACKEND", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert backends.choose("auto", problem()) == "triton"
        assert backends.choose("auto", problem(dtype=torch.float32)) == "eager"
        assert backends.choose("auto", problem(device="cpu", dtype=torch.float64)) == "eager"
    monkeypatch.setattr(backends, "_capability", lambda: (7, 5))
    with pytest.warns(UserWarning, match=r"compute capability 8\.0 or more, but this one has 7\.5"):
        assert backends.choose("auto", problem()) == "eager"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert backends.choose("auto", problem()) == "eager"


def test_the_environment_stands_in_for_auto(monkeypatch):
    monkeypatch.setenv("MITA_BACKEND", "reference")
    assert backends.choose("auto", problem()) == "reference"
    assert backends.choose("eager", problem()) == "eager"
    monkeypatch.setenv("MITA_BACKEND", "")  # as shells leave it
    assert backends.choose("auto", problem(device="cpu", dtype=torch.float64)) == "eager"
    monkeypatch.setenv("MITA_BACKEND", "fast")
    with pytest.raises(ValueError, match="MITA_BACKEND in the environment must be one of auto, .*'fast'"):
        backends.choose("auto", problem())
    monkeypatch.setenv("MITA_BACKEND", "triton")
    with pytest.raises(ValueError, match="'triton' cannot run this problem: .*float64"):
        backends.choose("auto", problem(dtype=torch.float64, device="cpu"))
