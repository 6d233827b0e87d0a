"""Each mechanism against a closed form: softmax attention where it becomes that, else its own formula written out."""

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from mita import MultiHeadAttention, TokenLayout
from mita.mechanisms import build
from mita.mechanisms.nystromformer import pseudo_inverse
from mita.mechanisms.performer import orthogonal_normal

GOLDEN = Path(__file__).parents[1] / "golden"
exact = partial(torch.testing.assert_close, rtol=0, atol=1e-10)


def qkv(*shape, size=1.0):
    torch.manual_seed(0)
    return [size * torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(3)]


def run(name, tensors, **options):
    """Output of the mechanism in float64, in evaluation."""
    torch.manual_seed(3)
    mechanism = build(name, tensors[0].shape[1], tensors[0].shape[3], **options).double().eval()
    return mechanism(*tensors, TokenLayout((tensors[0].shape[2],)))


def check_same(o, expected, leaves, close=exact):
    """Outputs and gradients."""
    close(o, expected)
    upstream = torch.randn_like(o)
    for grad, wanted in zip(
        torch.autograd.grad(o, leaves, upstream, materialize_grads=True),
        torch.autograd.grad(expected, leaves, upstream, materialize_grads=True),
        strict=True,
    ):
        close(grad, wanted)


def test_naive_softmax_is_softmax():
    leaves = qkv(2, 2, 12, 4)
    check_same(run("softmax_naive", leaves), F.scaled_dot_product_attention(*leaves), leaves)
    half = [t.detach().bfloat16() for t in leaves]
    o = build("softmax_naive", 2, 4)(*half, TokenLayout((12,)))
    assert o.dtype == torch.bfloat16  # computed in float32: no worse than rounding the result
    torch.testing.assert_close(
        o.double(), F.scaled_dot_product_attention(*(t.double() for t in half)), rtol=4e-3, atol=4e-3
    )


def test_naive_softmax_recomputes_the_same_dropout():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 6, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    naive = build("softmax_naive", 1, 4, dropout=0.5).train()

    def fixed(*tensors):
        torch.manual_seed(5)
        return naive(*tensors, TokenLayout((6,)))

    assert torch.autograd.gradcheck(fixed, (q, k, v))


def test_route_with_all_keys_is_softmax_and_compress_is_the_formula():
    leaves = q, k, v = qkv(2, 2, 12, 4)
    expected = F.scaled_dot_product_attention(*leaves)
    check_same(run("mita_route", leaves, num_landmarks=3, top_k=12), expected, leaves)
    for name, options in (("mita_compress", {"num_landmarks": 3}), ("agent", {"num_agents": 3})):
        landmarks = q.unflatten(2, (3, 4)).mean(3)
        values = (landmarks @ k.mT / 2).softmax(-1) @ v
        check_same(run(name, leaves, **options), (q @ landmarks.mT / 2).softmax(-1) @ values, leaves)


def test_released_agent_attention():
    """The released module's weights, outputs and gradients: 49 agents from the first 196 tokens."""
    golden = {key: t.double() for key, t in load_file(GOLDEN / "deit_agent_m49.safetensors").items()}
    layer = MultiHeadAttention(32, 2, partial(build, "agent", num_agents=49, agent_tokens="first")).double()
    layer.load_state_dict({key[6:]: t for key, t in golden.items() if key.startswith("state.")})
    x = golden["x"].requires_grad_()
    y = layer(x, TokenLayout((14, 14), 1))
    y.backward(golden["dy"])
    close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)
    close(y, golden["y"])
    close(x.grad, golden["dx"])
    for key, parameter in layer.named_parameters():
        close(parameter.grad, golden[f"grad.{key}"])


def test_released_linear_attention():
    """The released module norms all channels of q and k, before they are heads; then it is relu linear attention."""
    golden = {key: t.double() for key, t in load_file(GOLDEN / "deit_linear.safetensors").items()}
    x = golden["x"].requires_grad_()
    q, k, v = F.linear(x, golden["state.to_qkv.weight"]).chunk(3, -1)
    q, k = (
        F.rms_norm(t, (32,), golden[f"state.{n}_norm.weight"], eps=torch.finfo(torch.float32).eps)
        for t, n in ((q, "q"), (k, "k"))
    )
    heads = [t.unflatten(2, (2, 16)).transpose(1, 2) for t in (q, k, v)]
    o = run("linear", heads, feature="relu").transpose(1, 2).flatten(2)
    y = F.linear(o, golden["state.to_out.0.weight"], golden["state.to_out.0.bias"])
    torch.testing.assert_close(y, golden["y"], rtol=1e-5, atol=1e-5)
    (dx,) = torch.autograd.grad(y, x, golden["dy"])
    torch.testing.assert_close(dx, golden["dx"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("feature", ["elu", "relu"])
def test_linear_attention_is_its_dense_formula(feature):
    leaves = q, k, v = qkv(2, 2, 12, 4)
    f = (lambda x: F.elu(x) + 1) if feature == "elu" else F.relu
    weights = f(q) @ f(k).mT
    expected = (weights / (weights.sum(-1, keepdim=True) + 1e-6)) @ v
    check_same(run("linear", leaves, feature=feature), expected, leaves)
    with pytest.raises(ValueError, match="feature is one of elu, relu, got 'exp'"):
        build("linear", 1, 4, feature="exp")


def test_linformer_with_the_identity_is_softmax():
    leaves = qkv(2, 2, 12, 4)
    linformer = build("linformer", 2, 4, num_entries=12, max_length=20).double()
    linformer.projection.data.copy_(torch.eye(12, 20))
    o = linformer(*leaves, TokenLayout((12,)))
    check_same(o, F.scaled_dot_product_attention(*leaves), leaves)
    with pytest.raises(ValueError, match="21 tokens, but Linformer projects at most max_length = 20"):
        linformer(*qkv(1, 2, 21, 4), TokenLayout((21,)))


def test_nystrom_with_every_token_a_landmark_is_softmax():
    leaves = qkv(2, 2, 12, 4)
    o = run("nystromformer", leaves, num_landmarks=12, kernel_size=0, iterations=40)
    check_same(
        o, F.scaled_dot_product_attention(*leaves), leaves, partial(torch.testing.assert_close, rtol=0, atol=1e-6)
    )


def test_nystrom_adds_a_convolution_of_the_values():
    leaves = q, k, v = qkv(1, 2, 12, 4)
    mechanism = build("nystromformer", 2, 4, num_landmarks=3, kernel_size=3).double()
    layout, kernel = TokenLayout((12,)), mechanism.conv.weight.view(2, 3)
    with_conv = mechanism(*leaves, layout)
    mechanism.conv = None
    padded = F.pad(v, (0, 0, 1, 1))
    moved = sum(kernel[:, i].view(1, 2, 1, 1) * padded[:, :, i : i + 12] for i in range(3))
    check_same(with_conv, mechanism(*leaves, layout) + moved, leaves)


def test_the_inverse_is_one():
    A = torch.randn(3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).mul(2).softmax(-1)
    torch.testing.assert_close(pseudo_inverse(A, 40), torch.linalg.inv(A), rtol=1e-6, atol=1e-6)
    singular = A[:, :1].expand(-1, 6, -1)
    Z = pseudo_inverse(singular, 40)
    torch.testing.assert_close(singular @ Z @ singular, singular, rtol=0, atol=1e-6)


def test_performer_converges_to_softmax():
    """The error falls as one over the root of the number of features."""
    leaves = qkv(1, 2, 12, 4, size=0.7)
    expected = F.scaled_dot_product_attention(*leaves)
    few, many = (
        (run("performer", leaves, num_features=r, eps=0.0) - expected).square().mean().sqrt() for r in (64, 64 * 256)
    )
    assert many < few / 5 and many < 0.02


def test_features_are_orthogonal_and_as_long_as_normal_vectors():
    torch.manual_seed(0)
    w = orthogonal_normal(4096, 8)
    block = w[:8]
    torch.testing.assert_close(block @ block.T, torch.diag(block.square().sum(1)), rtol=0, atol=1e-5)
    assert abs(w.square().sum(1).mean() - 8) < 0.3
    torch.testing.assert_close(w.mean(0), torch.zeros(8), rtol=0, atol=0.05)
    assert orthogonal_normal(5, 8).shape == (5, 8)


def test_moba_with_all_blocks_is_softmax():
    leaves = qkv(2, 2, 14, 4)
    check_same(run("moba", leaves, block_size=4, top_blocks=4), F.scaled_dot_product_attention(*leaves), leaves)


def test_moba_reads_its_own_block_and_the_best_others():
    """MoBA PR #26: top-1 silently became full attention."""
    leaves = q, k, v = qkv(1, 1, 14, 4)
    means = torch.stack([k[0, 0, i : i + 4].mean(0) for i in range(0, 14, 4)])
    for top_blocks in (1, 2, 3):
        allowed = torch.zeros(14, 14, dtype=torch.bool)
        for n in range(14):
            gate = q[0, 0, n] @ means.T
            gate[n // 4] = torch.inf
            for b in gate.topk(top_blocks).indices:
                allowed[n, 4 * b : 4 * b + 4] = True
        expected = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        check_same(run("moba", leaves, block_size=4, top_blocks=top_blocks), expected, leaves)


def shared_softmax(q, v, allowed=None):
    """Softmax attention with keys q / |q|, a token itself only when it is alone."""
    scores = q.shape[-1] ** -0.5 * q @ F.normalize(q, dim=-1).mT - 1e5 * torch.eye(q.shape[2], dtype=q.dtype)
    return (scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)).softmax(-1) @ v


def test_reformer_with_one_bucket_is_softmax_of_shared_queries():
    leaves = q, k, v = qkv(2, 2, 12, 4)
    o = run("reformer", leaves, num_buckets=1, num_hashes=2, chunk_length=12)
    check_same(o, shared_softmax(q, v), leaves)


def test_reformer_reads_its_bucket_in_two_chunks():
    """One round written out: sort by bucket, cut, read the same bucket in this chunk and the one before."""
    leaves = q, k, v = qkv(1, 1, 14, 4)
    torch.manual_seed(3)
    mechanism = build("reformer", 1, 4, num_hashes=1, num_buckets=4, chunk_length=4).double()
    turned = q[0, 0] @ mechanism.rotations[0, 0]
    bucket = torch.cat([turned, -turned], -1).argmax(-1)
    chunk = bucket.argsort(stable=True).argsort() // 4
    apart = chunk[:, None] - chunk[None]
    allowed = (bucket[:, None] == bucket[None]) & ((apart == 0) | (apart == 1))
    check_same(mechanism(*leaves, TokenLayout((14,))), shared_softmax(q, v, allowed), leaves)


def test_options_out_of_range_are_named():
    for name, options, message in (
        ("moba", {"block_size": 0}, "block_size and top_blocks are at least 1, got 0 and 4"),
        ("nystromformer", {"kernel_size": 4}, "kernel_size is odd, or 0 for no convolution, got 4"),
        ("performer", {"num_features": 0}, "num_features is at least 1, got 0"),
        ("linformer", {"num_entries": 0}, "got 0 and 4096"),
        ("reformer", {"num_buckets": 3}, "num_buckets is even or 1"),
    ):
        with pytest.raises(ValueError, match=message):
            build(name, 2, 8, **options)
