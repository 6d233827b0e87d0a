"""Rotary embedding: complex numbers, relative positions, any grid, every type."""

from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mita import TokenLayout
from mita.rope import RotaryEmbedding

ROPE = RotaryEmbedding(span=6.0, theta=50.0, register_span=2.0, register_theta=9.0)
close = partial(torch.testing.assert_close, rtol=0, atol=1e-12)


def tokens(layout: TokenLayout, head_dim: int = 8, dtype: torch.dtype = torch.float64):
    torch.manual_seed(0)
    return (torch.randn(2, 3, layout.num_tokens, head_dim).to(dtype) for _ in range(2))


def turned(x, grid, span, theta):
    """x (..., n, d): each pair as a complex number, times exp(i angle), one token and one pair at a time."""
    dims = x.shape[-1] // len(grid)
    z = torch.view_as_complex(x.clone().unflatten(-1, (-1, 2)))
    for n, place in enumerate(product(*map(range, grid))):
        for axis, (position, side) in enumerate(zip(place, grid, strict=True)):
            for pair in range(dims // 2):
                angle = torch.tensor(position / side * span * theta ** (-2 * pair / dims), dtype=torch.float64)
                z[..., n, axis * dims // 2 + pair] *= torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(z).flatten(-2)


@pytest.mark.parametrize("registers", [0, 1, 4, 9])
@pytest.mark.parametrize("grid", [(3, 5), (4, 4), (1, 1), (1, 7), (6,), (1,)])
def test_equals_complex_numbers(grid, registers):
    layout = TokenLayout(grid, num_prefix=2, num_suffix=registers)
    q, k = tokens(layout)
    side = {0: 0, 1: 1, 4: 2, 9: 3}[registers]
    register_grid = (side, side) if layout.is_2d else (registers,)
    for x, y in zip((q, k), ROPE(q, k, layout), strict=True):
        assert torch.equal(y[:, :, :2], x[:, :, :2])
        close(y[:, :, layout.grid_slice], turned(x[:, :, layout.grid_slice], grid, 6.0, 50.0))
        close(y[:, :, 2 + layout.num_grid :], turned(x[:, :, 2 + layout.num_grid :], register_grid, 2.0, 9.0))
        close(y.norm(dim=-1), x.norm(dim=-1))


def test_scores_depend_on_differences_of_position():
    layout = TokenLayout((4, 5))
    q, k = (x[:, :, :1].expand(-1, -1, 20, -1) for x in tokens(layout))
    q, k = ROPE(q, k, layout)
    scores = (q @ k.mT).unflatten(3, (4, 5)).unflatten(2, (4, 5))
    close(scores[:, :, 1:, 2:, 1:, 2:], scores[:, :, :-1, :-2, :-1, :-2])
    assert (scores[:, :, 0, 0] - scores[:, :, 0, 0, :1, :1]).abs().amax((0, 1)).flatten()[1:].min() > 1e-3


def test_a_finer_grid_lies_between_the_positions_of_a_coarser_one():
    coarse, fine = (
        ROPE.angles(8, TokenLayout((h, w)), torch.float64, "cpu").view(h, w, 4) for h, w in ((3, 5), (6, 20))
    )
    close(fine[::2, ::4], coarse)
    assert fine.max() < 6.0


def test_frequencies_are_the_released_ones():
    """At the 14x14 grid of 224 pixels, neighbours are one unit apart."""
    released = load_file(Path(__file__).parent / "golden/vit5_mita.safetensors")
    angles = RotaryEmbedding().angles(32, TokenLayout((14, 14), 1, 4), torch.float32, "cpu")
    register = angles[1 + 196 :]
    for row, column, name in ((angles[1 + 14], angles[1 + 1], "rope"), (register[2], register[1], "rope_reg")):
        frequencies = released[f"state.{name}.freqs"]
        torch.testing.assert_close(row, torch.cat([frequencies, 0 * frequencies]))
        torch.testing.assert_close(column, torch.cat([0 * frequencies, frequencies]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_keeps_the_type_and_turns_half_types_in_float32(dtype):
    layout = TokenLayout((5, 3), 1, 4)
    q, k = tokens(layout, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype != torch.float64):
        outputs = ROPE(q, k, layout)
    wide = torch.promote_types(dtype, torch.float32)
    for y, expected in zip(outputs, ROPE(q.to(wide), k.to(wide), layout), strict=True):
        assert y.dtype == dtype
        assert torch.equal(y, expected.to(dtype))


@pytest.mark.parametrize("device", ["cpu", "meta", "cuda"])
def test_runs_where_its_input_is(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    layout = TokenLayout((2, 3), 1, 1)
    expected = ROPE(*tokens(layout), layout)
    for y, on_cpu in zip(ROPE(*(x.to(device) for x in tokens(layout)), layout), expected, strict=True):
        assert y.device.type == device and y.shape == on_cpu.shape
        if device != "meta":
            close(y.cpu(), on_cpu)


def test_gradients_turn_back():
    layout = TokenLayout((3, 4), 1, 4)
    q, k = (x.requires_grad_() for x in tokens(layout))
    turned_q, turned_k = ROPE(q, k, layout)
    (turned_q.square().sum() + 2 * turned_k.square().sum()).backward()  # the norm does not depend on the turn
    close(q.grad, 2 * q.detach())
    close(k.grad, 4 * k.detach())


def test_nothing_is_stored():
    assert not ROPE.state_dict()


def test_what_does_not_fit_is_refused():
    q, k = tokens(TokenLayout((2, 3), 1, 3))
    with pytest.raises(ValueError, match="0, 1, 4, 9, ..., not 3"):
        ROPE(q, k, TokenLayout((2, 3), 1, 3))
    with pytest.raises(ValueError, match="10 tokens, but its layout holds 7"):
        ROPE(q, k, TokenLayout((2, 3), 1))
    q, k = tokens(TokenLayout((2, 3)), head_dim=6)
    with pytest.raises(ValueError, match="multiple of 4, got 6"):
        ROPE(q, k, TokenLayout((2, 3)))
    assert ROPE(q, k, TokenLayout((6,)))[0].shape == q.shape
