"""Contract: Horovod's all-reduce as one op."""

from __future__ import annotations

import inspect

import pytest

from tests.compat.contract import Contract

pytest.importorskip("horovod.tensorflow", reason="the newest TensorFlow is tried without engines")

from horovod.tensorflow import mpi_ops

from ooodist.compat import horovod


def _arguments() -> None:
    # What it computes is tested by tests/engines, which start workers.
    names = inspect.signature(mpi_ops._allreduce).parameters
    assert {"name", "op", "ignore_name_scope"} <= set(names), names


CONTRACTS = [Contract("mpi_ops._allreduce", "horovod", horovod.all_reduce_sum, _arguments)]


@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
def test_horovod_keeps(contract: Contract) -> None:
    contract.hold()
