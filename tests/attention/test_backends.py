"""Every backend against the reference, forward and every gradient, over all cases."""

import pytest
import torch

from mita import mita_attention
from mita.attention import backends, eager
from mita.attention.native import library
from mita.attention.reference import reference_attention

from .cases import CASES, Case, needs_a_compiler


def run(tensors, options, **more):
    o, routing = mita_attention(*tensors, **options, return_routing=True, **more)
    loss = (o * torch.linspace(-1, 1, max(o.numel(), 1), dtype=o.dtype)[: o.numel()].view(o.shape)).sum()
    grads = torch.autograd.grad(loss, tensors, allow_unused=True) if loss.requires_grad else [None] * 4
    return o, routing, [torch.zeros_like(t) if g is None else g for t, g in zip(tensors, grads, strict=True)]


def check_against_reference(case, tolerance, dtype, **more):
    tensors, options = case.tensors(dtype)
    o, routing, grads = run(tensors, options, **more)
    wide = [t.detach().double().requires_grad_() for t in tensors]
    expected, _ = reference_attention(*wide, **options, routing=routing)
    loss = (expected * torch.linspace(-1, 1, max(o.numel(), 1), dtype=dtype).double()[: o.numel()].view(o.shape)).sum()
    expected_grads = torch.autograd.grad(loss, wide, allow_unused=True)
    torch.testing.assert_close(o.double(), expected, rtol=tolerance, atol=tolerance)
    for name, grad, wanted in zip(["q", "k", "v", "landmarks"], grads, expected_grads, strict=True):
        wanted = torch.zeros_like(grad, dtype=torch.float64) if wanted is None else wanted
        torch.testing.assert_close(
            grad.double(), wanted, rtol=tolerance, atol=tolerance, msg=lambda text, n=name: f"gradient of {n}: {text}"
        )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_eager_equals_the_reference_in_float64(case):
    check_against_reference(case, 1e-10, torch.float64, backend="eager")
    tensors, options = case.tensors()
    _, routing, _ = run(tensors, options, backend="eager")
    _, expected = reference_attention(*tensors, **options)
    assert torch.equal(routing.selected, expected.selected)
    assert torch.equal(routing.experts, expected.experts)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_eager_in_float32(case):
    check_against_reference(case, 1e-5, torch.float32, backend="eager")


ONE_EXPERT = [c for c in CASES if c.options.get("experts_per_query", 1) == 1]


@needs_a_compiler
@pytest.mark.parametrize("case", ONE_EXPERT, ids=lambda case: case.name)
def test_native_in_float32(case):
    check_against_reference(case, 1e-5, torch.float32, backend="native")
    tensors, options = case.tensors(torch.float32)
    _, routing, _ = run(tensors, options, backend="native")
    _, expected = reference_attention(*tensors, **options)
    if case.kind in ("zeros", "duplicates", "equal keys"):  # scores are exact, so ties are ties
        assert torch.equal(routing.selected, expected.selected)
        assert torch.equal(routing.experts, expected.experts)


@needs_a_compiler
@pytest.mark.parametrize("sizes", [(700, 40, 50, 64), (600, 100, 3, 96), (300, 7, 290, 33)], ids=str)
def test_native_on_many_keys(sizes):
    """Longer than its blocks of keys, tiles of queries and lists of candidates; the same to the bit on any number of threads."""
    N, m, top_k, d = sizes
    case = Case("long", B=1, H=3, Nq=N, m=m, d=d, options={"top_k": top_k}, key_lengths=(N - 21,))
    check_against_reference(case, 1e-5, torch.float32, backend="native")
    tensors, options = case.tensors(torch.float32)
    threads, results = torch.get_num_threads(), []
    try:
        for number in (1, 2, 9):
            torch.set_num_threads(number)
            o, _, grads = run(tensors, options, backend="native")
            results.append([o, *grads])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


@needs_a_compiler
def test_native_with_what_is_not_finite_never_crashes():
    tensors, options = CASES[0].tensors(torch.float32)
    for value in (torch.nan, torch.inf, -torch.inf):
        for i in range(4):
            odd = [t.detach().clone() for t in tensors]
            odd[i][0, 0, 1] = value
            o, routing = mita_attention(*odd, **options, backend="native", return_routing=True)
            assert o[1].isfinite().all() and routing.selected.max() < 37 and routing.experts.max() < 5


def test_native_says_what_it_needs(monkeypatch, tmp_path):
    tensors, options = CASES[0].tensors(torch.float64)
    with pytest.raises(ValueError, match="computes in float32, but the tensors are float64"):
        mita_attention(*tensors, **options, backend="native")
    monkeypatch.setattr(library, "path", lambda: tmp_path / "none.so")
    monkeypatch.setattr(library, "compiler", lambda: None)
    with pytest.raises(ValueError, match="install g\\+\\+, or set CXX"):
        mita_attention(*(t.float() for t in tensors), **options, backend="native")


@needs_a_compiler
def test_what_is_not_built_is_said_once(monkeypatch, tmp_path):
    tensors, options = CASES[0].tensors(torch.float32)
    expected = mita_attention(*tensors, **options, backend="eager")
    monkeypatch.setattr(library, "path", lambda: tmp_path / "none.so")
    monkeypatch.setattr(backends, "_SAID", set())
    with pytest.warns(UserWarning, match="python -m mita.attention.native builds that") as said:
        results = [mita_attention(*tensors, **options) for _ in range(2)]
        mita_attention(*(t.double() for t in tensors), **options)  # not for the native backend, built or not
    assert len(said) == 1 and all(expected.equal(o) for o in results)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_eager_in_small_tiles(case, monkeypatch):
    """Cutting the work differently, down to single rows, changes nothing: streaming top-k, merged landmark values."""
    for limit in ("TILE_SCORES", "PROBE_SCORES", "GROUP_SCORES"):
        monkeypatch.setattr(eager, limit, 12)
    check_against_reference(case, 1e-10, torch.float64, backend="eager")


@pytest.mark.parametrize("backend", ["eager", pytest.param("native", marks=needs_a_compiler)])
@pytest.mark.parametrize("case", ONE_EXPERT, ids=lambda case: case.name)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_types_err_no_more_than_twice_pytorch(case, dtype, backend):
    """The error against float64 is at most twice that of the dense equations in the same type by PyTorch's own softmax."""
    tensors, options = case.tensors(dtype)
    with torch.no_grad():
        o, routing = mita_attention(*tensors, **options, backend=backend, return_routing=True)
        exact, _ = reference_attention(*(t.double() for t in tensors), **options, routing=routing)
        rounded = exact.to(dtype).double()  # the least error that any result in this type can have
    error, least = (o.double() - exact).abs(), (rounded - exact).abs()
    assert o.dtype == dtype
    assert error.numel() == 0 or error.max() <= 2 * least.max() + torch.finfo(dtype).eps * 1e-2


@pytest.mark.parametrize(
    "options", [{}, {"branches": "route"}, {"branches": "compress"}, {"experts_per_query": 2}], ids=str
)
def test_gradcheck(options):
    g = torch.Generator().manual_seed(3)
    q, k, v, landmarks = (
        torch.randn(1, 2, n, 3, generator=g, dtype=torch.float64, requires_grad=True) for n in (9, 7, 7, 3)
    )
    key_mask = torch.tensor([[True] * 6 + [False]])
    assert torch.autograd.gradcheck(
        lambda *t: mita_attention(*t, top_k=3, key_mask=key_mask, backend="eager", **options), (q, k, v, landmarks)
    )


def test_an_operator_that_pytorch_can_trace():
    tensors, _ = CASES[0].tensors(torch.float32)
    op = torch.ops.mita.attention.default
    torch.library.opcheck(op, (*tensors, None, None, 6, 1, 0.5, 1.0, "both", "eager"))
    mask = torch.arange(37).expand(2, -1) < 20
    torch.library.opcheck(op, (*tensors, mask, None, 6, 2, 0.5, 0.7, "route", "eager"))
    torch.library.opcheck(op, (*tensors, None, None, 0, 0, 0.5, 1.0, "compress", "eager"))
    if library.compiler():
        torch.library.opcheck(op, (*tensors, mask, None, 6, 1, 0.5, 0.7, "both", "native"))


@pytest.fixture(autouse=True)
def memory_that_nobody_wrote_is_nan():
    """So that a backend which reads what it should have written first is found out."""
    torch.use_deterministic_algorithms(True)  # fills torch.empty
    yield
    torch.use_deterministic_algorithms(False)
