"""ListOps expressions: drawn by the published rules, many at a time, and evaluated.

Rules (Nangia and Bowman 2018, in the variant of Tay et al., Long Range Arena, 2021): a node above depth `max_depth` is
an operator with probability 1/4, otherwise a digit 0-9; an operator is MIN, MAX, MED (median, an x.5 cut to x) or SM
(sum modulo 10) of 2 to `max_args` nodes, all uniform. Its length counts digits, operators and closing brackets.
Expressions with min_length < length < max_length are kept.

A whole forest is drawn level by level, then values and lengths are gathered from the leaves up and positions from the
roots down, all in arrays. Trees that have grown too long are given up at once, which changes no probability.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
SYMBOLS = ("<pad>", *"0123456789", *OPERATORS, "]")
TOKENS = {symbol: number for number, symbol in enumerate(SYMBOLS)}
DIGIT, OPERATOR, END = (
    TOKENS["0"],
    TOKENS["[MIN"],
    TOKENS["]"],
)  # first of the digits, first of the operators, the bracket
OPERATOR_PROBABILITY = 0.25


@dataclass(frozen=True)
class Rules:
    """What is drawn and what is kept; the defaults are those of the benchmark. Length bounds are exclusive."""

    min_length: int = 500
    max_length: int = 2000
    max_depth: int = 10
    max_args: int = 10

    def __post_init__(self):
        if self.min_length < 0 or self.max_length < self.min_length + 2:
            raise ValueError(
                f"ListOps lengths must lie strictly between min_length={self.min_length} and "
                f"max_length={self.max_length}, which leaves none"
            )
        if self.max_depth < 1 or self.max_args < 2:
            raise ValueError(
                f"ListOps needs a max_depth of 1 or more and max_args of 2 or more, not {self.max_depth} and "
                f"{self.max_args}"
            )


@dataclass
class Level:
    """Nodes of one depth: whose tree (n,), operator or digit (n,), and of the operators, in order, the arity."""

    tree: np.ndarray
    is_operator: np.ndarray
    arity: np.ndarray


def draw_chunk(
    generator: np.random.Generator, count: int, rules: Rules, attempts: int = 2048
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The first `count` accepted expressions of a stream of attempts.

    Returns:
        tokens (sum of lengths,) uint8 one expression after the other, lengths (count,) int64, values (count,) int64.

    Raises:
        ValueError: none of a great many attempts falls within the length bounds.
    """
    parts, have, tries = [], 0, 0
    while have < count:
        tokens, lengths, values = draw(generator, attempts, rules)
        parts.append((tokens, lengths, values))
        have, tries = have + len(lengths), tries + 1
        if have == 0 and tries == 500:
            raise ValueError(f"none of {tries * attempts} ListOps expressions was kept under {rules}; widen the bounds")
    tokens, lengths, values = (np.concatenate(part) for part in zip(*parts))
    return tokens[: lengths[:count].sum()], lengths[:count], values[:count]


def draw(generator: np.random.Generator, attempts: int, rules: Rules) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The expressions that `attempts` attempts leave, in order; returns as `draw_chunk`."""
    levels, sizes = _grow(generator, attempts, rules)
    keep = (sizes > rules.min_length) & (sizes < rules.max_length)
    levels = [_of_trees(level, keep) for level in levels]
    levels = [level for level in levels if len(level.tree)]
    if not levels:
        empty = np.empty(0, np.int64)
        return np.empty(0, np.uint8), empty, empty
    return _serialise(generator, levels, rules.max_args)


def _grow(generator: np.random.Generator, attempts: int, rules: Rules) -> tuple[list[Level], np.ndarray]:
    tree = np.arange(attempts)
    sizes = np.zeros(attempts, np.int64)
    levels = []
    for depth in range(1, rules.max_depth + 1):
        is_operator = generator.random(len(tree)) < (OPERATOR_PROBABILITY if depth < rules.max_depth else 0)
        sizes += np.bincount(tree, 1 + is_operator, minlength=attempts).astype(np.int64)
        arity = generator.integers(2, rules.max_args + 1, int(is_operator.sum()))
        levels.append(Level(tree, is_operator, arity))
        grows = sizes[tree[is_operator]] < rules.max_length
        tree = np.repeat(tree[is_operator][grows], arity[grows])
    return levels, sizes


def _of_trees(level: Level, keep: np.ndarray) -> Level:
    kept = keep[level.tree]
    return Level(level.tree[kept], level.is_operator[kept], level.arity[kept[level.is_operator]])


def _serialise(generator: np.random.Generator, levels: list[Level], max_args: int):
    values, lengths, codes = [], [], []
    for depth in reversed(range(len(levels))):
        level = levels[depth]
        count = len(level.tree)
        value = generator.integers(0, 10, count)
        length = np.ones(count, np.int64)
        code = DIGIT + value
        if len(level.arity):
            operator = generator.integers(0, len(OPERATORS), len(level.arity))
            value[level.is_operator] = _apply(operator, values[0], level.arity, max_args)
            length[level.is_operator] = 2 + np.add.reduceat(lengths[0], _starts(level.arity))
            code[level.is_operator] = OPERATOR + operator
        values.insert(0, value), lengths.insert(0, length), codes.insert(0, code)

    tokens = np.zeros(int(lengths[0].sum()), np.uint8)
    position = _starts(lengths[0])
    for level, length, code, below in zip(levels, lengths, codes, [*lengths[1:], None]):
        tokens[position] = code
        parents = position[level.is_operator]
        tokens[parents + length[level.is_operator] - 1] = END
        if len(level.arity):
            before = _starts(
                below
            )  # what stands before a node in its level, less what stands before its eldest sibling
            position = np.repeat(parents + 1 - before[_starts(level.arity)], level.arity) + before
    return tokens, lengths[0], values[0]


def _starts(sizes: np.ndarray) -> np.ndarray:
    return np.cumsum(sizes) - sizes


def _apply(operator: np.ndarray, arguments: np.ndarray, arity: np.ndarray, max_args: int) -> np.ndarray:
    """Values (n,) of operators (n,) whose arguments follow one another in `arguments`."""
    starts = _starts(arity)
    rows = np.repeat(np.arange(len(arity)), arity)
    table = np.full((len(arity), max_args), 10)
    table[rows, np.arange(len(arguments)) - starts[rows]] = arguments
    table.sort(axis=1)
    row = np.arange(len(arity))
    smallest, largest = table[:, 0], table[row, arity - 1]
    median = (table[row, (arity - 1) // 2] + table[row, arity // 2]) // 2
    total = np.add.reduceat(arguments, starts) % 10
    return np.choose(operator, [smallest, largest, median, total])


def evaluate(tokens: bytes | np.ndarray) -> int:
    """Value of one expression, with a stack; shares nothing with the drawing of it.

    Raises:
        ValueError: brackets do not match, an operator has no argument, or a token is none of ListOps'.
    """
    stack: list[tuple[int, list[int]]] = [(0, [])]
    for token in bytes(tokens):
        if DIGIT <= token < DIGIT + 10:
            stack[-1][1].append(token - DIGIT)
        elif OPERATOR <= token < END:
            stack.append((token, []))
        elif token == END and len(stack) > 1 and stack[-1][1]:
            operator, arguments = stack.pop()
            stack[-1][1].append(_value(SYMBOLS[operator], arguments))
        else:
            raise ValueError(f"token {token} does not belong here in a ListOps expression")
    if len(stack) != 1 or len(stack[0][1]) != 1:
        raise ValueError("this ListOps expression is not complete")
    return stack[0][1][0]


def _value(symbol: str, arguments: list[int]) -> int:
    if symbol == "[MIN":
        return min(arguments)
    if symbol == "[MAX":
        return max(arguments)
    if symbol == "[SM":
        return sum(arguments) % 10
    middle = sorted(arguments)[(len(arguments) - 1) // 2 : len(arguments) // 2 + 1]
    return sum(middle) // len(middle)
