"""What type checkers know of the public names: mypy reads this, and nobody runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_type

import ooodist
from ooodist.engines.base import Engine
from ooodist.step.tape import DistributedGradientTape
from ooodist.transfer.provenance import WarmStart
from ooodist.zoo.zoo import Found


def check(model: Any, variables: Sequence[Any]) -> None:
    assert_type(ooodist.init("local"), Engine)
    assert_type(ooodist.rank(), int)
    assert_type(ooodist.size(), int)
    assert_type(ooodist.local_rank(), int)
    assert_type(ooodist.local_size(), int)
    assert_type(ooodist.DistributedGradientTape(order="first_k", k=1), DistributedGradientTape)
    assert_type(ooodist.warm_start(model, "zoo"), WarmStart | None)
    ooodist.describe_layer(type(model), ooodist.LayerDescription({"scale": "x"}, output="x"))
    ooodist.check_description(lambda units: model, units=4)
    zoo = ooodist.Zoo("zoo", timeout=5.0)
    assert_type(zoo.query(model, task="t", tags=["a"], count=3), list[Found])
    assert_type(zoo.warm_start(model, task="t"), WarmStart | None)
    assert_type(zoo.register(model, {"accuracy": 0.9}, task="t"), str)
    assert_type(str(ooodist.UserError("wrong")), str)
    ooodist.broadcast(variables)
    ooodist.allgather(ooodist.allreduce([1.0], average=False))
    assert_type(ooodist.allgather_object({"rank": ooodist.rank()}), list[Any])
    ooodist.broadcast_object({"rate": 0.1}, root=1)
    ooodist.barrier()
    ooodist.shard(model, drop_remainder=False)
    ooodist.distribute(model, order="planned", steps_per_execution=4)
    ooodist.pipelined(model, pipeline=2, microbatches=8)
    ooodist.apply(None, [], variables)
    ooodist.flush(model)
    assert_type(ooodist.run(check, [model, variables], np=2), list[Any])
    ooodist.shutdown()
    ooodist.distribute(model, orders="planned")  # type: ignore[call-arg]
    ooodist.distribution(model)  # type: ignore[attr-defined]
