"""What a training step costs: the input of the simulator and the planner.

Measured by ``ooodist.profiler``, or described by hand for a machine that one does not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ooodist.util.yaml_dataclass import Range

Seconds = Annotated[float, Range(0)]
Bytes = Annotated[int, Range(0)]


@dataclass(frozen=True)
class UnitCost:
    """One unit of a step, as in :class:`ooodist.graph.units.Unit`.

    Attributes:
        name: unique in the step, as ``F:dense``, ``dX:dense``, ``dW:dense``.
        seconds: that it keeps the compute stream busy.
        needs: units of the same pass that must run before it.
        weights: F: the weights that enter here; it waits for their updates. dX and dW: the
            weights whose gradient is complete when it has run.
    """

    name: str
    kind: Literal["F", "dX", "dW"]
    seconds: Seconds
    needs: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()


@dataclass(frozen=True)
class WeightCost:
    """One trained weight.

    Attributes:
        name: unique.
        num_bytes: of its gradient, as exchanged.
        dtype: of its gradient; only gradients of one dtype can travel in one bucket.
        update_seconds: that the optimizer keeps the compute stream busy with it.
    """

    name: str
    num_bytes: Bytes
    dtype: str = "float32"
    update_seconds: Seconds = 0.0


@dataclass(frozen=True)
class SavedTensor:
    """A tensor that stays in memory from the end of one unit to the end of the last of others.

    Attributes:
        num_bytes: of the tensor.
        made_by: the unit (F, dX or dW) that makes it.
        used_by: units of the same step that read it, without ``made_by``.
    """

    num_bytes: Bytes
    made_by: str
    used_by: tuple[str, ...]


@dataclass(frozen=True)
class StepCosts:
    """One training step on one worker.

    Attributes:
        forward: the F units, in the order in which they run.
        backward: the dX and dW units, in baseline order.
        weights: all that are trained.
        tensors: what units keep for others: activations, output gradients, and the gradients of
            weights (``used_by`` empty: they stay until their update).
        middle_seconds: between the last F and the first backward unit, and whatever else the
            compute stream does in each step outside of units (loss, metrics, the input).
        launch_seconds: each launch costs besides its steps: the call, and its end.
        trace_seconds: tracing and optimizing the graph of one step of a launch takes.
        base_bytes: in memory all the time: weights, optimizer state, constants.
    """

    forward: tuple[UnitCost, ...]
    backward: tuple[UnitCost, ...]
    weights: tuple[WeightCost, ...]
    tensors: tuple[SavedTensor, ...] = ()
    middle_seconds: Seconds = 0.0
    launch_seconds: Seconds = 0.0
    trace_seconds: Seconds = 0.0
    base_bytes: Bytes = 0

    @property
    def compute_seconds(self) -> float:
        """Seconds of one step's units and updates, with nothing to wait for."""
        units = sum(unit.seconds for unit in (*self.forward, *self.backward))
        return units + self.middle_seconds + sum(weight.update_seconds for weight in self.weights)


@dataclass(frozen=True)
class Network:
    """What exchanging gradients costs, with one engine and number of workers.

    An exchange of n bytes that enters at time t passes two lanes, each of which serves one
    exchange at a time, first come, first served::

        sent      begins max(t + latency, lane free), takes  fixed + n * seconds_per_byte
        complete  sent + n * pull_seconds_per_byte on the second lane (which may be free of cost)

    Attributes:
        engine: ``horovod``, ``byteps``, ``collective`` or ``local``.
        workers: how many take part.
        latency: seconds from handing an exchange over until its bytes move; hidden for all but
            the first if several are in flight.
        fixed: seconds that an exchange occupies the lane, whatever its size.
        seconds_per_byte: of gradient (not of bytes on the wire: a ring of w workers sends each
            byte 2 (w - 1) / w times), of the ring, or of pushing to the servers.
        pull_seconds_per_byte: of pulling, where servers stand on hosts of their own; 0 where
            both directions share a lane, as with a ring or with servers on the workers' hosts.
        cpu_seconds_per_byte, cpu_seconds_per_exchange: that the exchange takes from the compute
            stream, if that has work to do meanwhile.
        cpu_seconds_per_copied_byte: that copying gradients takes from it besides: a bucket is
            joined before and taken apart after its exchange, and parts are joined after theirs.
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
