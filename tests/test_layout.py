import pytest

from mita import TokenLayout


def test_positions_of_the_parts():
    layout = TokenLayout((3, 5), num_prefix=1, num_suffix=4)
    assert (layout.num_grid, layout.num_tokens, layout.is_2d) == (15, 20, True)
    assert list(range(20))[layout.grid_slice] == list(range(1, 16))
    assert TokenLayout((7,)).num_tokens == 7
    assert list(range(7))[TokenLayout((7,)).grid_slice] == list(range(7))


def test_a_layout_is_a_value():
    assert TokenLayout([2, 3]) == TokenLayout((2, 3))
    assert len({TokenLayout((4,)), TokenLayout((4,)), TokenLayout((2, 2))}) == 2


@pytest.mark.parametrize(
    ("layout", "num_tokens"),
    [(TokenLayout((3, 5)), 16), (TokenLayout((320,)), 321), (TokenLayout((15, 16), num_prefix=1), 240)],
)
def test_a_sequence_of_another_length_is_refused_with_both_numbers(layout, num_tokens):
    """Agent-Attention #39: a side guessed from N crashed later, in a reshape that named neither."""
    layout.check(layout.num_tokens)
    with pytest.raises(ValueError, match=rf"\b{num_tokens}\b.*\b{layout.num_tokens}\b"):
        layout.check(num_tokens)


@pytest.mark.parametrize(
    "arguments", [((),), ((2, 3, 4),), ((0, 3),), ((2.5, 2),), ((4,), -1), ((4,), 0, -1), ((4,), 0, 1.5)]
)
def test_what_is_no_layout_is_refused(arguments):
    with pytest.raises(ValueError):
        TokenLayout(*arguments)
