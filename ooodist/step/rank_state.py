"""What each rank's steps keep for themselves, and checkpoints keep of each rank."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping

import numpy as np
import tensorflow as tf

from ooodist.engines.base import Engine
from ooodist.errors import UserError

logger = logging.getLogger("ooodist")

RESIDUAL = "residual"  # the owner of what differs between ranks; what others own does not


class RankState:
    """Variables of traced steps, by ``owner/name``.

    Args:
        owners: whose variables there may be; what a checkpoint has of others is left out.
    """

    def __init__(self, owners: Collection[str] = ()) -> None:
        self._owners = owners
        self._variables: dict[str, tf.Variable] = {}
        self._restored: dict[str, np.ndarray] = {}

    def variable(self, owner: str, name: str, start: Callable[[], tf.Tensor]) -> tf.Variable:
        """The variable of this name; the first call makes it, as it was restored or starts.

        Args:
            owner: one of the owners.
            name: unique among its variables.
            start: makes its first value; called outside of the step that is being traced.

        Raises:
            UserError: what was restored has another shape.
        """
        key = f"{owner}/{name}"
        if key not in self._variables:
            with tf.init_scope():
                value = start()
                restored = self._restored.pop(key, value)
                if tuple(restored.shape) != tuple(value.shape):
                    raise UserError(
                        f"the checkpoint's {key} has the shape {tuple(restored.shape)}, but it is "
                        f"{tuple(value.shape)} here; resume with the model as it was, or start anew"
                    )
                self._variables[key] = tf.Variable(
                    restored, trainable=False, dtype=value.dtype, name=owner
                )
        return self._variables[key]

    def values(self, owner: str) -> dict[str, np.ndarray]:
        """The values of this rank's variables of one owner, by name."""
        found = {**self._restored, **{key: v.numpy() for key, v in self._variables.items()}}
        start = f"{owner}/"
        return {key[len(start) :]: v for key, v in found.items() if key.startswith(start)}

    def own(self) -> dict[str, np.ndarray]:
        """The values of this rank, by ``owner/name``, each as the only one of a stack by rank.

        All ranks have the same keys, as they have traced the same steps.
        """
        return {
            f"{owner}/{name}": value[np.newaxis]
            for owner in sorted(self._owners)
            for name, value in self.values(owner).items()
        }

    def gathered(self, engine: Engine) -> dict[str, np.ndarray]:
        """The values of all ranks, by ``owner/name`` and then by rank; all ranks call it.

        Rank 0 alone has them: the others would need the memory.
        """
        found = {}
        for key, own in self.own().items():
            by_rank = [own, *(engine.broadcast([own], r)[0] for r in range(1, engine.size))]
            if engine.rank == 0:
                found[key] = np.concatenate(by_rank)
        return found

    def restore(self, by_rank: Mapping[str, np.ndarray], engine: Engine) -> None:
        """Sets the variables to what :meth:`gathered` has returned, before the first step.

        With another number of ranks, residuals add up to what they were in all; of other variables
        all ranks get rank 0's. All ranks call it.

        Args:
            by_rank: of rank 0; the others' does not count.
            engine: connects the ranks.
        """
        kinds = {key: (list(value.shape), str(value.dtype)) for key, value in by_rank.items()}
        for key, (shape, dtype) in json.loads(engine.broadcast_text(json.dumps(kinds))).items():
            owner, _, _ = key.partition("/")
            if owner not in self._owners:
                logger.warning("resuming without %s, which this job does not keep", key)
                continue
            own = np.zeros(shape[1:], dtype)
            for rank in range(shape[0] if owner == RESIDUAL else 1):
                row = by_rank[key][rank] if engine.rank == 0 else own
                (value,) = engine.broadcast([row])
                if owner != RESIDUAL:
                    own = value
                elif rank % engine.size == engine.rank:
                    own = value if rank == engine.rank else own + value
            self._restored[key] = own
