"""The native core's library where homes are read-only, shared or unknown: a sentence, or PyTorch in its place."""

import pytest
import torch

from mita import mita_attention
from mita.attention.native import library

from .cases import CASES, needs_a_compiler


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where a library that is built in a moment is to lie."""
    source, path = tmp_path / "small.cpp", tmp_path / "cache" / "kernels.so"
    source.write_text('extern "C" int mita_row_multiple() { return 3; }')
    monkeypatch.setattr(library, "SOURCE", source)
    monkeypatch.setattr(library, "path", lambda: path)
    _forget()
    yield path
    _forget()


def _forget():
    library._loaded.cache_clear()
    library.load.cache_clear()


@needs_a_compiler
def test_a_damaged_library_is_built_again(place):
    place.parent.mkdir()
    place.write_bytes(b"half of a fi")
    assert not library.is_built()
    assert library.load().mita_row_multiple() == 3
    assert library.is_built()


@needs_a_compiler
@pytest.mark.filterwarnings("ignore:MiTA attention runs in PyTorch")
def test_a_home_that_cannot_be_read_or_written(place, monkeypatch):
    """`auto` takes eager, as it does when nothing was built; by name it is refused with what to set."""
    tensors, options = CASES[0].tensors(torch.float32)
    expected = mita_attention(*tensors, **options, backend="eager")

    def denied(*_, **__):
        raise PermissionError(13, "Permission denied", "kernels.so")

    def unknown():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(type(place), "exists", denied)
    monkeypatch.setattr(type(place), "mkdir", denied)
    assert mita_attention(*tensors, **options).equal(expected)
    with pytest.raises(ValueError, match="Permission denied.*Set XDG_CACHE_HOME"):
        library.build()
    monkeypatch.setattr(library, "path", unknown)
    assert mita_attention(*tensors, **options).equal(expected)
    with pytest.raises(ValueError, match="home directory.*Set XDG_CACHE_HOME"):
        mita_attention(*tensors, **options, backend="native")


def test_the_compiler_that_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert library.compiler() is None
    monkeypatch.setenv("CXX", "env -i c++")
    assert library.compiler() == ["env", "-i", "c++"]
