"""Every random number follows from (seed, what it is for), never from what ran before."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive(*parts: int) -> int:
    """A 32-bit seed from non-negative integers (torch's CPU generator reads no more than 32 bits)."""
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


def seed_everything(*parts: int) -> None:
    """Seed Python's, numpy's and torch's global generators."""
    seed = derive(*parts)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def seeded(*parts: int) -> Iterator[None]:
    """Seed the three global CPU generators inside, and put their states back after."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    seed = derive(*parts)
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
