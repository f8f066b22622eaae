"""Makes the logs of a step, the same on all ranks, without a barrier at its end.

The loss is the sum of what all stages add to it, and known after the last F; the rank of the last
stage then computes the metrics. They reach the other ranks long before these end their step::

    rank 0   F0  F1  .   .   I0  W0  I1  W1  update | F0  F1
                  \\ loss                     ^ metrics
    rank 1   .   F0  I0  F1 -+-> I1  W0  W1  update     | F0

Whether gradients are finite is known only after the update. These codes travel during the next
step, and are read when it ends: on all ranks in the same step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from ooodist.pipeline.ranks import Ranks
from ooodist.pipeline.runtime.transport import Transport
from ooodist.step.backward import variable_names
from ooodist.step.finiteness.finite import Checked
from ooodist.util.patience import Patience

if TYPE_CHECKING:
    from ooodist.engines.communicator import Communicator, Transfer

_LOSS, _METRICS = 0, 1  # tags


class Record:
    """Makes the logs of each step. All ranks make this object together.

    Args:
        model: compiled, with metrics that are built.
        ranks: the position of this rank among all.
        world: communicator of all ranks, with no other messages: codes and metrics must not meet
            them.
        last: the position of the rank that has the last stage, and so the metrics.
        batch_size: samples per step of one pipeline.
        transport: moves the codes of gradients that are not finite.
        patience: for how long a rank waits for another.

    Attributes:
        checked: the gradients that are checked for values that are not finite, in the order of the
            backward pass; see ``step/finiteness/finite.py``.
    """

    def __init__(
        self,
        model: keras.Model,
        ranks: Ranks,
        world: Communicator,
        last: int,
        batch_size: int,
        transport: Transport,
        patience: Patience,
    ) -> None:
        self._model = model
        self._ranks = ranks
        self._last = last
        self._batch_size = float(batch_size)
        self._transport = transport
        self._patience = patience
        self._world = world
        self._mean_loss = next(metric for metric in model.metrics if metric.name == "loss")
        self._update = tf.function(self._update_loss, autograph=False)
        self._names = sorted(model.get_metrics_result())  # which all ranks call together
        self._own = np.empty(0)  # the metrics of this pipeline, on its last rank
        self._sent: list[Transfer] = []
        names = variable_names(model.trainable_variables)[::-1]
        self.checked = [Checked(0, name) for name in names]
        self._codes: dict[str | None, int] = {name: code for code, name in enumerate(names, 1)}

    def after_forward(self, loss: float) -> None:
        """Called when the last F of this rank is done; sends what is known then.

        The last rank does not wait for long here: all others have done their last F before it.

        Args:
            loss: what this rank's stages add to the mean loss.

        Raises:
            UserError: the loss of another rank does not come in time.
        """
        for sent in self._sent:  # in the step before; it was received long ago
            sent.wait()
        if self._ranks.position != self._last:
            part = np.array([loss])
            self._sent = [self._world.send([part], self._rank_of(self._last), _LOSS)]
            return
        total = loss
        for position in range(self._ranks.positions):
            if position != self._last:
                source, what = self._rank_of(position), f"the loss of position {position}"
                total += float(self._received(1, source, _LOSS, what)[0])
        found = self._update(tf.constant(total, tf.float32), self._batch_size)
        self._own = np.array([float(found[name]) for name in self._names])
        others = (rank for rank in range(self._world.size) if rank != self._world.rank)
        self._sent = [self._world.send([self._own], rank, _METRICS) for rank in others]

    def logs(self) -> dict[str, Any]:
        """The logs of the step whose F are done: means over the replicas.

        Raises:
            UserError: the metrics of a pipeline do not come in time.
        """
        total = np.zeros(len(self._names))
        for replica in range(self._ranks.replicas):  # in the same order on all ranks
            values, source = self._own, self._rank_of(self._last, replica)
            if source != self._world.rank:
                values = self._received(len(self._names), source, _METRICS, "the metrics")
            total += values
        return dict(zip(self._names, total / self._ranks.replicas, strict=True))

    def begin_codes(self, not_finite: str | None, notices: np.ndarray) -> Callable[[], np.ndarray]:
        """Begins to tell all ranks whether this rank's gradients are finite.

        Args:
            not_finite: the name of a weight whose gradient is not finite; None if all are.
            notices: what else this rank tells them; see ``step/notices.py``.

        Returns:
            what waits for the code of each rank, by rank, with the sums of the notices behind them,
            and returns them; 0 is for finite.
        """
        codes = np.zeros(self._world.size + len(notices))
        codes[self._world.rank] = self._codes.get(not_finite, 0)
        codes[self._world.size :] = notices
        message = self._transport.sum("the codes of gradients", self._world, codes)

        def arrived() -> np.ndarray:
            self._transport.wait(message)
            return codes

        return arrived

    def _received(self, count: int, source: int, tag: int, what: str) -> np.ndarray:
        values = np.empty(count)
        self._world.receive([values], source, tag).wait(what, self._patience)
        return values

    def _rank_of(self, position: int, replica: int | None = None) -> int:
        """The rank at a position of a pipeline; None: of this rank's."""
        of = self._ranks.replica if replica is None else replica
        return of * self._ranks.positions + position

    def _update_loss(self, loss: tf.Tensor, samples: float) -> dict[str, tf.Tensor]:
        self._mean_loss.update_state(loss, sample_weight=samples)
        return self._model.get_metrics_result()
