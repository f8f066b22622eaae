"""Contract: the message of the profiler's files."""

from __future__ import annotations

import pytest

from ooodist.compat import tensorflow_profiler
from tests.compat.contract import Contract


def _has_what_is_read() -> None:
    plane = tensorflow_profiler.new_space().planes.add(name="/device:GPU:0")
    plane.event_metadata[1].name = "kernel"
    plane.stat_metadata[2].name = "tf_op"
    line = plane.lines.add(name="Stream #7", timestamp_ns=1)
    event = line.events.add(metadata_id=1, offset_ps=2, duration_ps=3)
    event.stats.add(metadata_id=2, ref_value=4)


CONTRACTS = [
    Contract(
        "xplane_pb2.XSpace", "tensorflow-cpu", tensorflow_profiler.new_space, _has_what_is_read
    ),
]


@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
def test_tensorflow_keeps(contract: Contract) -> None:
    contract.hold()
