"""The garbage collector rests during an import, and only then."""

from __future__ import annotations

import gc
import importlib

import pytest

from ooodist.util.importing import without_collection


def test_it_goes_on_afterwards() -> None:
    with without_collection():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_goes_on_if_the_import_fails() -> None:
    with pytest.raises(ImportError), without_collection():
        importlib.import_module("ooodist.none")
    assert gc.isenabled()


def test_who_has_switched_it_off_finds_it_so() -> None:
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
