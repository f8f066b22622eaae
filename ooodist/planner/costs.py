"""Costs of a training step: the input of the simulator and the planner.

Measured by ``ooodist.profiler``, or written by hand for a machine that one does not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ooodist.util.yaml_dataclass import Range

ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}  # of gradients' dtypes
Seconds = Annotated[float, Range(0)]
Bytes = Annotated[int, Range(0)]


@dataclass(frozen=True)
class UnitCost:
    """The cost of one unit of a step, as in :class:`ooodist.graph.units.Unit`.

    Attributes:
        name: unique in the step, as ``F:dense``, ``dX:dense``, ``dW:dense``.
        seconds: seconds that it occupies the compute stream.
        needs: units of the same pass that must run before it.
        weights: for F, the weights that it reads first; it waits for their updates. For dX and dW,
            the weights whose gradients are complete when it has run.
    """

    name: str
    kind: Literal["F", "dX", "dW"]
    seconds: Seconds
    needs: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()


@dataclass(frozen=True)
class WeightCost:
    """The cost of one trained weight.

    Attributes:
        name: unique.
        num_bytes: size of its gradient, as exchanged.
        dtype: of its gradient; only gradients of one dtype can share a bucket.
        update_seconds: seconds that its update occupies the compute stream.
        row_bytes: of the gradient of an embedding, the bytes of the rows that one rank's batch has,
            if it may travel as such (ooodist.planner.rows); 0: it is dense.
        columns: of the gradient as a matrix, m; 0: it is none. (A convolution's kernel has one for
            each output.)
    """

    name: str
    num_bytes: Bytes
    dtype: str = "float32"
    update_seconds: Seconds = 0.0
    row_bytes: Bytes = 0
    columns: Annotated[int, Range(0)] = 0


@dataclass(frozen=True)
class SavedTensor:
    """A tensor that is in memory from the end of one unit to the end of its last reader.

    Attributes:
        num_bytes: size of the tensor.
        made_by: the unit (F, dX or dW) that makes it.
        used_by: other units of the same step that read it.
    """

    num_bytes: Bytes
    made_by: str
    used_by: tuple[str, ...]


@dataclass(frozen=True)
class LowRankCosts:
    """What it takes the compute stream to send gradients in low rank, besides exchanging them.

    Attributes:
        before: seconds per byte of a gradient, until its second exchange begins.
        orthonormal: seconds per byte of its matrix P, in the same time.
        after: seconds per byte of a gradient, after its second exchange.
    """

    before: Seconds = 0.0
    orthonormal: Seconds = 0.0
    after: Seconds = 0.0


@dataclass(frozen=True)
class StepCosts:
    """The costs of one training step on one worker.

    Attributes:
        forward: the F units, in execution order.
        backward: the dX and dW units, in baseline order.
        weights: all trained weights.
        tensors: what units save for others: activations, output gradients, and the gradients of
            weights (with empty ``used_by``: they stay until their update).
        middle_seconds: between the last F and the first backward unit, and whatever else the
            compute stream does in each step outside of units (loss, metrics, the input).
        launch_seconds: the cost of a call besides its steps, at its start and its end.
        trace_seconds: tracing and optimizing the graph of one step of a call.
        base_bytes: memory in use all the time: weights, optimizer state, constants.
        low_rank: of gradients that are sent in low rank.
    """

    forward: tuple[UnitCost, ...]
    backward: tuple[UnitCost, ...]
    weights: tuple[WeightCost, ...]
    tensors: tuple[SavedTensor, ...] = ()
    middle_seconds: Seconds = 0.0
    launch_seconds: Seconds = 0.0
    trace_seconds: Seconds = 0.0
    base_bytes: Bytes = 0
    low_rank: LowRankCosts = LowRankCosts()

    @property
    def compute_seconds(self) -> float:
        """Seconds of one step's units and updates, without any waiting."""
        units = sum(unit.seconds for unit in (*self.forward, *self.backward))
        return units + self.middle_seconds + sum(weight.update_seconds for weight in self.weights)


@dataclass(frozen=True)
class Network:
    """The cost of exchanging gradients with a given engine and number of workers.

    An exchange of n bytes that enters at time t passes two lanes, each of which serves one
    exchange at a time, first come, first served::

        sent      begins max(t + latency, lane free), takes  fixed + n * seconds_per_byte
        complete  sent + n * pull_seconds_per_byte on the second lane (which may be free of cost)

    Attributes:
        engine: ``horovod``, ``byteps``, ``collective`` or ``local``.
        workers: number of workers.
        latency: seconds from handing an exchange over until its bytes move; hidden for all but
            the first if several are in flight.
        fixed: seconds that an exchange occupies the lane, whatever its size.
        seconds_per_byte: per byte of gradient (not of bytes on the wire: a ring of w workers sends
            each byte 2 (w - 1) / w times), for the ring, or for pushing to the servers.
        pull_seconds_per_byte: for pulling, if servers have hosts of their own; 0 if both
            directions share a lane, as with a ring or with servers on the workers' hosts.
        cpu_seconds_per_byte, cpu_seconds_per_exchange: time that the exchange takes from the
            compute stream, if that has work to do meanwhile.
        cpu_seconds_per_copied_byte: time that copying gradients takes from it besides: a bucket is
            joined before and split after its exchange, and chunks are joined after theirs.
        by_urgency: whether the engine itself picks the most urgent exchange (BytePS does).
    """

    engine: str
    workers: Annotated[int, Range(1)]
    latency: Seconds = 0.0
    fixed: Seconds = 0.0
    seconds_per_byte: Seconds = 0.0
    pull_seconds_per_byte: Seconds = 0.0
    cpu_seconds_per_byte: Seconds = 0.0
    cpu_seconds_per_exchange: Seconds = 0.0
    cpu_seconds_per_copied_byte: Seconds = 0.0
    by_urgency: bool = False
