import pytest
import torch
import torch.nn.functional as F

from mita import TokenLayout
from mita.attention.reference import reference_attention
from mita.mechanisms import MECHANISMS, build


def qkv(*shape, dtype=torch.float64):
    torch.manual_seed(0)
    return [2 * torch.randn(shape, dtype=dtype) for _ in range(3)]


def pooled(q, grid, landmark_grid):
    """Landmarks of tokens q (B, H, h*w, d) by PyTorch's own adaptive pooling."""
    B, H, _, d = q.shape
    image = q.transpose(2, 3).reshape(B * H, d, *grid)
    return F.adaptive_avg_pool2d(image, landmark_grid).flatten(2).transpose(1, 2).unflatten(0, (B, H))


def test_landmarks_come_from_the_grid_alone():
    q, k, v = qkv(2, 2, 1 + 30 + 2, 8)
    o = build("mita", 2, 8, num_landmarks=9, top_k=4)(q, k, v, TokenLayout((5, 6), 1, 2))
    expected, _ = reference_attention(q, k, v, pooled(q[:, :, 1:31], (5, 6), (3, 3)), top_k=4)
    torch.testing.assert_close(o, expected)


def test_released_pools_the_first_tokens_and_scales_landmark_keys_twice():
    q, k, v = qkv(2, 2, 1 + 30, 8)
    layout, options = TokenLayout((5, 6), 1), dict(num_landmarks=9, top_k=4)
    o = build("mita_released", 2, 8, **options)(q, k, v, layout)
    landmarks = pooled(q[:, :, :30], (5, 6), (3, 3))
    expected, _ = reference_attention(q, k, v, landmarks, top_k=4, landmark_key_scale=8**-0.5)
    torch.testing.assert_close(o, expected)
    switched = build("mita_released", 2, 8, landmark_scale="single", landmark_tokens="grid", **options)
    torch.testing.assert_close(switched(q, k, v, layout), build("mita", 2, 8, **options)(q, k, v, layout))


def test_options_reach_the_core():
    q, k, v = qkv(1, 2, 24, 8)
    layout, landmarks = TokenLayout((4, 6)), pooled(q, (4, 6), (2, 3))
    for options in (dict(experts_per_query=2), dict(branches="route"), dict(branches="compress")):
        o = build("mita", 2, 8, landmark_grid=(2, 3), top_k=4, backend="reference", **options)(q, k, v, layout)
        torch.testing.assert_close(o, reference_attention(q, k, v, landmarks, top_k=4, **options)[0])


@pytest.mark.parametrize(
    "layout", [TokenLayout((320,)), TokenLayout((16, 20), num_prefix=1), TokenLayout((15, 16), num_prefix=1)]
)
@pytest.mark.parametrize("name", MECHANISMS)
def test_lengths_that_are_no_square(name, layout):
    """Agent-Attention #39: 320 tokens crashed, the side was taken from the square root of N."""
    q, k, v = qkv(1, 2, layout.num_tokens, 8, dtype=torch.float32)
    o = build(name, 2, 8)(q, k, v, layout)
    assert o.shape == q.shape and o.isfinite().all()


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_grid_that_does_not_multiply_out_names_both_numbers(name):
    """Agent-Attention #39."""
    q, k, v = qkv(1, 2, 16, 8)
    with pytest.raises(ValueError, match=r"\b16\b.*\b15\b"):
        build(name, 2, 8)(q, k, v, TokenLayout((3, 5)))


@pytest.mark.parametrize("name", ["mita", "mita_released"])
@pytest.mark.parametrize("junk", [1e4, float("nan")])
def test_a_padded_batch_equals_its_unpadded_runs(name, junk):
    """native-sparse-attention #23: padded lengths gave NaN. 3 real tokens are fewer than the landmarks and the keys."""
    q, k, v = qkv(3, 2, 40, 8)
    lengths, mechanism = [40, 23, 3], build(name, 2, 8, num_landmarks=5, top_k=4)
    mask = torch.arange(40) < torch.tensor(lengths)[:, None]
    filled = [t.masked_fill(~mask[:, None, :, None], junk).requires_grad_() for t in (q, k, v)]
    o = mechanism(*filled, TokenLayout((40,)), mask)
    upstream = torch.randn_like(o)
    real = mask[:, None, :, None].expand_as(o)
    grads = torch.autograd.grad((o * upstream)[real].sum(), filled)
    for grad in grads:
        assert grad[~real].eq(0).all()
    for i, length in enumerate(lengths):
        parts = [t[i : i + 1, :, :length].clone().requires_grad_() for t in (q, k, v)]
        alone = mechanism(*parts, TokenLayout((length,)))
        torch.testing.assert_close(o[i : i + 1, :, :length], alone, rtol=0, atol=1e-6)
        expected = torch.autograd.grad((alone * upstream[i : i + 1, :, :length]).sum(), parts)
        for a, b in zip(grads, expected, strict=True):
            torch.testing.assert_close(a[i : i + 1, :, :length], b, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(num_landmarks=0), "at least 1"),
        (dict(top_k=0), "at least 1"),
        (dict(num_landmarks=4, experts_per_query=5), "between 1 and 4"),
        (dict(branches="all"), "both, route, compress"),
        (dict(landmark_scale="triple"), "single, double"),
        (dict(landmark_tokens="last"), "grid, first"),
        (dict(landmark_grid=(3,)), "landmark_grid"),
        (dict(num_landmark=3), "num_landmarks"),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_right(options, message):
    with pytest.raises(ValueError, match=message):
        build("mita", 2, 8, **options)


def test_a_number_of_landmarks_without_a_grid_is_refused_on_images_only():
    q, k, v = qkv(1, 2, 16, 8)
    mechanism = build("mita", 2, 8, num_landmarks=6, top_k=4)
    assert mechanism(q, k, v, TokenLayout((16,))).isfinite().all()
    with pytest.raises(ValueError, match="landmark_grid"):
        mechanism(q, k, v, TokenLayout((4, 4)))


def test_unknown_names():
    with pytest.raises(ValueError, match="did you mean mita"):
        build("mitta", 2, 8)
    with pytest.raises(ValueError, match="there are: agent, .*mita, .*mita_released, .*softmax"):
        build("?", 2, 8)
