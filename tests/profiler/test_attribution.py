"""Whose time is whose, in recorded steps of a CPU and of a GPU."""

from __future__ import annotations

import pytest
import tensorflow as tf

from ooodist.profiler.attribution import seconds_by_owner
from ooodist.profiler.recording.xplane import OpEvent

CPU, GPU = "/host:CPU tf_Compute", "/device:GPU:0 Stream #13"


def ops() -> dict[str, tf.Operation]:
    with tf.Graph().as_default() as graph:
        for name in ("dense/MatMul", "dense/Shape", "loop"):
            tf.constant(1.0, name=name)
    return {op.name: op for op in graph.get_operations()}


def event(name: str, start: float, end: float, line: str = CPU) -> OpEvent:
    return OpEvent(name, "Any", start, end, line, 1)


def seconds(*events: OpEvent) -> dict[object, float]:
    of_op: dict[str, list[OpEvent]] = {}
    for each in events:
        of_op.setdefault(each.name, []).append(each)
    return dict(seconds_by_owner(of_op, {op: name for name, op in ops().items()}))


def test_ops_that_run_side_by_side_share_the_time() -> None:
    found = seconds(event("dense/MatMul", 0, 2), event("dense/Shape", 1, 2))
    assert found == {"dense/MatMul": 1.5, "dense/Shape": 0.5}


def test_where_a_gpu_computes_its_kernels_alone_count() -> None:
    found = seconds(
        event("dense/Shape", 0, 9),  # on the host, while kernels are launched
        event("dense/MatMul", 1, 3, GPU),
        event("dense/MatMul", 4, 5, GPU),  # and the pause before it
    )
    assert found == {"dense/MatMul": 4.0}


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("loop/body/MatMul", "loop"),
        ("Leaf_0_dense/MatMul", "dense/MatMul"),
        ("another", None),
    ],
)
def test_ops_that_are_not_in_the_step_by_their_names(name: str, owner: str | None) -> None:
    assert seconds(event(name, 0, 1)) == {owner: 1.0}
