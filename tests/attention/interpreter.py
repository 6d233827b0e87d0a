"""Triton's interpreter (3.8), made right for bfloat16 and quicker. Import before anything imports triton."""

import os
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "1")


def _to_float32(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _to_bfloat16(values: np.ndarray) -> np.ndarray:
    rounded = torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16)
    return rounded.view(torch.uint16).numpy()


def mend_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products and casts of bfloat16 as on a GPU: as they come, bit patterns are multiplied and rounding is towards zero."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    dot, cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl

    def create_dot(self, a, b, d, *options):
        a, b = (TensorHandle(_to_float32(x.data), tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b))
        return dot(self, a, b, d, *options)

    def cast_impl(self, source, target):
        if target.scalar == tl.bfloat16 and source.dtype.scalar != tl.bfloat16:
            return TensorHandle(_to_bfloat16(source.data), tl.bfloat16)
        return cast(self, source, target)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
    monkeypatch.setattr(InterpreterBuilder, "cast_impl", cast_impl)


@contextmanager
def quick():
    """Prepare Triton's language for the interpreter once, not at each launch and each call of a function within."""
    import triton.language as tl
    from triton.runtime import interpreter

    prepared = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    try:
        with mock.patch.object(interpreter, "_patch_lang", lambda fn: SimpleNamespace(restore=lambda: None)):
            yield
    finally:
        prepared.restore()
