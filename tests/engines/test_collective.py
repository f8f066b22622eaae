"""How the collective engine's exchanges travel on GPUs. Hosts with a GPU are imitated."""

from __future__ import annotations

import pytest
import tensorflow as tf

from ooodist.engines.collective import CollectiveEngine
from ooodist.errors import UserError

COMMUNICATION = "OOODIST_COLLECTIVE"


@pytest.fixture(params=["CPU", "GPU"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.delenv(COMMUNICATION, raising=False)
    gpus = ["GPU:0"] if request.param == "GPU" else []
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda _kind: gpus)
    return str(request.param)


def attributes(engine: CollectiveEngine) -> tuple[str, tf.DType]:
    """The library that carries out the sum of an int32, and the dtype in which it travels."""
    engine.size = 2  # a graph can be traced without the other rank

    @tf.function(autograph=False)
    def traced(tensor: tf.Tensor) -> tf.Tensor:
        return engine.sum_in_graph(tensor, "some")

    graph = traced.get_concrete_function(tf.TensorSpec((3,), tf.int32)).graph
    (op,) = [op for op in graph.get_operations() if op.type == "CollectiveReduceV2"]
    assert graph.outputs[0].dtype == tf.int32
    return op.get_attr("communication_hint").decode(), op.inputs[0].dtype


def test_what_travels_how(kind: str) -> None:
    # TensorFlow refuses to sum an int32 on a GPU.
    expected = {"CPU": ("ring", tf.int32), "GPU": ("nccl", tf.int64)}
    assert attributes(CollectiveEngine()) == expected[kind]


def test_rings_on_request(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMUNICATION, "ring")
    assert attributes(CollectiveEngine())[0] == "ring"
    assert CollectiveEngine().max_credit == (1 if kind == "GPU" else None)


def test_other_requests_are_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = {"CPU": "on CPUs it can be ring;", "GPU": "on GPUs it can be nccl or ring;"}
    monkeypatch.setenv(COMMUNICATION, "gloo")
    with pytest.raises(UserError, match=f"OOODIST_COLLECTIVE=gloo: {allowed[kind]}"):
        CollectiveEngine()
    if kind == "CPU":
        monkeypatch.setenv(COMMUNICATION, "nccl")
        with pytest.raises(UserError, match="leave it out for ring"):
            CollectiveEngine()
