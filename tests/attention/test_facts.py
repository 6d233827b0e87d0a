"""What holds of MiTA attention whatever computes it."""

import pytest
import torch
import torch.nn.functional as F

from mita import mita_attention
from mita.attention.backends import choose
from mita.attention.problem import Problem
from mita.attention.selection import top_k

from .cases import BACKENDS, TOLERANCE, WIDEST, needs_a_compiler


def tensors(*shape, n=3, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=g, dtype=dtype) for _ in range(n)]


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


@pytest.fixture
def dtype(backend):
    return WIDEST[backend]


def test_route_with_all_keys_is_softmax_attention(backend, dtype):
    q, k, v = tensors(2, 3, 20, 8, dtype=dtype)
    o = mita_attention(q, k, v, q[:, :, :4], top_k=20, branches="route", backend=backend)
    torch.testing.assert_close(o, F.scaled_dot_product_attention(q, k, v), rtol=0, atol=TOLERANCE[dtype])


def test_both_branches_with_m_and_k_of_n_are_not(backend, dtype):
    """The paper says that m = k = N is full attention; with both branches it is not: 0.7000 and 0.7311 for q = 1."""
    q = torch.tensor([1.0, 0.0], dtype=dtype).view(1, 1, 2, 1)
    o = mita_attention(q, q, q, q, top_k=2, backend=backend)
    assert o[0, 0, 0, 0].item() == pytest.approx(0.7000, abs=5e-5)
    assert F.scaled_dot_product_attention(q, q, q)[0, 0, 0, 0].item() == pytest.approx(0.7311, abs=5e-5)


@pytest.mark.parametrize("s", [1, 2])
def test_each_query_reads_its_experts_keys_alone(backend, dtype, s):
    """With v the identity, the weights can be read off: k * s keys, less those in both experts, whatever N is."""
    if backend == "native" and s > 1:
        pytest.skip("it routes to one expert")
    N, k = 60, 7
    q, keys = tensors(1, 2, N, 8, n=2, dtype=dtype)
    v = torch.eye(N, dtype=dtype).expand(1, 2, N, N)
    o, routing = mita_attention(
        q, keys, v, q[:, :, :5], top_k=k, experts_per_query=s, branches="route", backend=backend, return_routing=True
    )
    for head in range(2):
        for i in range(N):
            read = {key for e in routing.experts[0, head, i].tolist() for key in routing.selected[0, head, e].tolist()}
            assert set(o[0, head, i].nonzero().flatten().tolist()) == read
            assert k <= len(read) <= k * s


def test_branches_combine_by_their_normalisers(backend, dtype):
    """o = (Z_c o_c + Z_r o_r) / (Z_c + Z_r), not an average of the two."""
    q, k, v = tensors(1, 1, 30, 4, dtype=dtype)
    landmarks = q[:, :, :3]
    both, routing = mita_attention(q, k, v, landmarks, top_k=5, backend=backend, return_routing=True)
    route, compress = (
        mita_attention(q, k, v, landmarks, top_k=5, branches=b, backend=backend) for b in ("route", "compress")
    )
    Z_c = (0.5 * q @ landmarks.mT).exp().sum(-1, keepdim=True)
    chosen = routing.selected[0, 0][routing.experts[0, 0, :, 0]]  # (30, 5)
    Z_r = (0.5 * (q[0, 0, :, None] * k[0, 0][chosen]).sum(-1)).exp().sum(-1)[None, None, :, None]
    torch.testing.assert_close(both, (Z_c * compress + Z_r * route) / (Z_c + Z_r), rtol=0, atol=TOLERANCE[dtype])


def test_a_named_backend_or_an_error(backend, dtype):
    q, k, v = tensors(1, 1, 4, 4, dtype=dtype)
    with pytest.raises(ValueError, match=f"backend must be one of auto, .*{backend}.*, but it is 'cuda'"):
        mita_attention(q, k, v, q, top_k=2, backend="cuda")
    options = {"top_k": 2, "experts_per_query": 1, "branches": "both", "key_mask": None, "landmark_mask": None}
    assert choose(backend, Problem.of(q, k, v, q, **options)) == backend


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"top_k": 0}, "top_k must be at least 1, but it is 0"),
        ({"top_k": 4.0}, "top_k must be a whole number, but it is 4.0"),
        ({"top_k": None}, "top_k must be a whole number, but it is None"),
        ({"scale": torch.ones(())}, "scale must be a number; a factor that is learned belongs into q, k and landmarks"),
        ({"experts_per_query": 4}, r"between 1 and the number of landmarks \(3\), but it is 4"),
        ({"branches": "none"}, "branches must be one of both, route, compress, but it is 'none'"),
        ({"key_mask": torch.ones(2, 7, dtype=torch.bool)}, r"key_mask must be a bool tensor of shape \(2, 6\)"),
        ({"key_mask": torch.ones(2, 6)}, "key_mask must be a bool tensor"),
        (
            {"landmark_mask": torch.ones(2, 6, dtype=torch.bool)},
            r"landmark_mask must be a bool tensor of shape \(2, 3\)",
        ),
        ({"k": torch.zeros(2, 1, 6, 5)}, r"k must have the shape \(2, 1, 6, 4\).*\(2, 1, 6, 5\)"),
        ({"v": torch.zeros(2, 1, 7, 4)}, r"v must have the shape \(2, 1, 6, 4\)"),
        ({"v": torch.zeros(2, 1, 6, 4, dtype=torch.float64)}, "v is torch.float64"),
        ({"q": torch.zeros(2, 6, 4)}, "q must have the shape"),
        ({"landmarks": torch.zeros(2, 1, 3, 4, dtype=torch.int64)}, "landmarks must be a floating-point tensor"),
        ({"q": torch.zeros(2, 1, 0, 4)}, "must number at least 1"),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    given = {name: torch.zeros(2, 1, n, 4) for name, n in (("q", 6), ("k", 6), ("v", 6), ("landmarks", 3))}
    arguments = {**given, "top_k": 2, **change}
    with pytest.raises(ValueError, match=message):
        mita_attention(**arguments)


def test_a_top_k_beyond_the_keys_costs_nothing(backend, dtype):
    """Whatever its size: entries that cannot be are neither stored nor read."""
    q, k, v = tensors(1, 2, 20, 8, dtype=dtype)
    expected = mita_attention(q, k, v, q[:, :, :4], top_k=20, backend=backend)
    assert mita_attention(q, k, v, q[:, :, :4], top_k=2**40, backend=backend).equal(expected)
    _, routing = mita_attention(q, k, v, q[:, :, :4], top_k=23, backend=backend, return_routing=True)
    assert routing.selected.shape == (1, 2, 4, 23)
    assert routing.selected.equal(torch.tensor([*range(20), -1, -1, -1]).expand(1, 2, 4, 23))


def test_a_head_dim_above_256_is_refused():
    q = torch.zeros(1, 1, 2, 257)
    with pytest.raises(ValueError, match="at most 256, but it is 257"):
        mita_attention(q, q, q, q, top_k=1)


def test_non_finite_input_never_crashes(backend, dtype):
    q, k, v = tensors(1, 2, 40, 8, dtype=dtype)
    k[0, 0, 3], k[0, 0, 5], q[0, 1, 7] = float("nan"), float("inf"), float("-inf")
    o, routing = mita_attention(q, k, v, q[:, :, :4], top_k=6, backend=backend, return_routing=True)
    assert o.shape == q.shape
    assert -1 <= routing.selected.min() and routing.selected.max() < 40


def test_autocast_computes_as_pytorchs_attention_does():
    q, k, v = tensors(1, 2, 20, 8, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        o = mita_attention(q, k, v, q[:, :, :4], top_k=6)
    assert o.dtype == torch.bfloat16
    expected = mita_attention(*(t.bfloat16() for t in (q, k, v, q[:, :, :4])), top_k=6)
    assert torch.equal(o, expected)


def pooled_attention(q, k, v):
    return mita_attention(q * 1.5, k, v, q.unflatten(2, (4, -1)).mean(3), top_k=6)


@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=needs_a_compiler)])
def test_compiled_whole_with_changing_lengths(compiler):
    compiled = torch.compile(pooled_attention, fullgraph=True, dynamic=True, backend=compiler)
    for N in (40, 60):
        leaves = [t.requires_grad_() for t in tensors(1, 2, N, 8)]
        expected = torch.autograd.grad(pooled_attention(*leaves).sum(), leaves)
        for got, wanted in zip(torch.autograd.grad(compiled(*leaves).sum(), leaves), expected):
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def test_exported_with_a_changing_length():
    class Attention(torch.nn.Module):
        def forward(self, q, k, v):
            return pooled_attention(q, k, v)

    length = {2: 4 * torch.export.Dim("quarter", min=5, max=100)}
    program = torch.export.export(Attention(), tuple(tensors(1, 2, 40, 8)), dynamic_shapes=(length,) * 3)
    given = tensors(1, 2, 64, 8, seed=1)
    torch.testing.assert_close(program.module()(*given), pooled_attention(*given), rtol=0, atol=1e-12)


@pytest.mark.parametrize("levels", [3, 40, 10**6])
@pytest.mark.parametrize(("N", "k"), [(4096, 1), (8192, 7), (16384, 64), (1000, 30), (512, 511)])
def test_top_k_by_blocks_keeps_the_tie_rule(N, k, levels):
    """Few levels tie within and across blocks, many hardly ever: always the k first of a stable descending sort."""
    scores = torch.randint(levels, (5, N), generator=torch.Generator().manual_seed(N)).float()
    expected = scores.sort(dim=-1, descending=True, stable=True).indices[:, :k].sort(-1).values
    assert torch.equal(top_k(scores, k), expected)
