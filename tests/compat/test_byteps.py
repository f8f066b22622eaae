"""Contracts: BytePS's push-pull with a place."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tests.compat.contract import Contract

pytest.importorskip("byteps.tensorflow", reason="the newest TensorFlow is tried without engines")

from byteps.tensorflow import ops

from ooodist.compat import byteps


def _arguments() -> None:
    # What it computes is tested by tests/engines, which start workers.
    names = inspect.signature(ops._push_pull).parameters
    assert {"scope", "name", "place"} <= set(names), names


def _places() -> None:
    assert byteps.has_places()


def _nccl() -> None:
    (library,) = Path(ops.__file__).parent.glob("c_lib*.so")
    assert byteps.has_nccl() == (b"libnccl.so" in library.read_bytes())


CONTRACTS = [
    Contract("ops.nccl_built", "byteps", byteps.has_nccl, _nccl),
    Contract("ops._push_pull (place)", "byteps", byteps.has_places, _places),
    Contract("ops._push_pull", "byteps", byteps.push_pull_sum, _arguments),
]


@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
def test_byteps_keeps(contract: Contract) -> None:
    contract.hold()
