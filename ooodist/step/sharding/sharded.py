"""ZeRO stage 1 in data parallelism: each rank keeps a part of the optimizer's state.

Each weight has one rank that updates it and keeps the optimizer's state for it::

    rank 0    gradient a, b --> mean a, b --> update a --> new a --+--> new a, b
                            \\ /                                    |
                            / \\                                    |
    rank 1    gradient a, b --> mean a, b --> update b --> new b --+--> new a, b

Gradients are exchanged as without it, in the planned order, and each new value is broadcast as soon
as it is there: a step sends 1.5 times as many bytes as an all-reduce alone. All ranks have the
means, so that each update is bit for bit what it was, also where it needs something of all
gradients. Weights are not sliced (see ``ownership.py``).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MethodType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist.compat.keras_deferred import (
    build_without_values,
    has_value,
    initialize,
    release,
    set_value,
    train_those_with_values,
)
from ooodist.compat.keras_optimizer import clipping_as_of_all
from ooodist.compat.tensorflow_graph import handle_of
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.graph.units import Gradient
from ooodist.planner.data_parallel.named import BUCKET_BYTES
from ooodist.step.backward import variable_names
from ooodist.step.optimizer import optimizer_state_of, without_scaling
from ooodist.step.replicas import agree_on_names
from ooodist.step.sending.chunks import flatten, unflatten
from ooodist.step.sharding.grouping import divide
from ooodist.step.sharding.ownership import divided
from ooodist.step.sharding.state import optimizer_bytes, size_of, state_bytes

logger = logging.getLogger("ooodist")

# Engines hold several copies of what they send and receive: a large weight goes in pieces, of which
# a few are under way at a time.
PIECE_BYTES, IN_FLIGHT = 4 << 20, 4

_ALONE = (0,)  # the positions of a weight where each rank is a replica


def check_model(model: keras.Model) -> None:
    """Raises UserError if the optimizer of a compiled model cannot be sharded."""
    optimizer = without_scaling(model.optimizer)
    kind, reason = type(optimizer).__name__, ""
    if type(model).train_step is not keras.Model.train_step:
        reason = f"{type(model).__name__} has a train_step of its own, which may update anything"
    elif hasattr(optimizer, "optimizers"):
        reason = f"the optimizer is a {kind}, which updates all weights of a model at once"
    elif type(optimizer).apply is not keras.optimizers.Optimizer.apply:
        reason = f"the optimizer {kind} has an apply of its own, which may look at all weights"
    elif optimizer.gradient_accumulation_steps:
        reason = (
            f"optimizer.gradient_accumulation_steps is {optimizer.gradient_accumulation_steps}, "
            "by which the optimizer itself keeps a sum of each gradient (accumulate does not)"
        )
    if reason:
        raise UserError(f"shard_optimizer is true, but {reason}; leave one of them out")


class ShardedOptimizer:
    """The optimizer of a model, of whose state this rank has a part.

    Args:
        model: compiled before :meth:`hold`; all ranks have all of its weights.
        engine: connects the ranks; it ``broadcasts``.
    """

    def __init__(self, model: keras.Model, engine: Engine) -> None:
        self._model = model
        self._engine = engine
        self._optimizer: keras.optimizers.Optimizer | None = None  # that was divided
        self._weights: dict[str, keras.Variable] = {}  # those that are trained, by name
        self._rank_of: dict[str, int] = {}  # which updates a weight, by its name
        self._state: list[tuple[keras.Variable, int]] = []  # with the rank that keeps it
        self._rank_0_has_all = False
        self._share_now: Callable[[], None] = lambda: None  # as a step does, between steps

    # Who has what

    def hold(self) -> None:
        """Leaves each rank its part of the optimizer's state; all ranks call it.

        What is not built yet gets memory and its first value on that rank alone. Otherwise it is
        rank 0's, if rank 0 has all.

        Raises:
            UserError: on all ranks, if the optimizer cannot be sharded.
        """
        model, engine = self._model, self._engine
        check_model(model)
        optimizer, weights = model.optimizer, model.trainable_variables
        self._optimizer = optimizer
        if not optimizer.built:
            build_without_values(optimizer, weights)
        agree_on_names(engine, [*model.variables, *optimizer.variables])
        self._weights = dict(zip(variable_names(weights), weights, strict=True))
        sizes = state_bytes(model)
        before = self._rank_of
        self._rank_of = divided([(n, sizes[n], _ALONE) for n in self._weights], engine.size)
        if self._rank_of != before:
            self._share_now = tf.function(lambda: self._share(self._weights, {}), autograph=False)
            self._tell()
        self._state = []
        for variable, name in optimizer_state_of(optimizer, self._weights):
            if name:
                self._state.append((variable, self._rank_of[name]))
            elif len(variable.shape):
                raise UserError(
                    f"shard_optimizer is true, but the optimizer {optimizer.name} keeps "
                    f"{variable.path}, and it is not known for which weight; leave it out, or take "
                    "another optimizer"
                )
            elif not has_value(variable):
                initialize(variable)
        own = np.array([has_value(variable) for variable, _ in self._state], np.int32)
        (of_rank_0,) = engine.broadcast([own])
        there = zip(self._state, of_rank_0, strict=True)
        self._send((variable, 0, {owner}) for (variable, owner), is_there in there if is_there)
        for variable, owner in self._state:
            if owner == engine.rank and not has_value(variable):
                initialize(variable)
        self._rank_0_has_all = False
        self._release_others()

    def _tell(self) -> None:
        """Logs how evenly the state is divided."""
        num_bytes = optimizer_bytes(self._model)
        parts = [0] * self._engine.size
        for name, rank in self._rank_of.items():
            parts[rank] += num_bytes[name]
        logger.info(
            "shard_optimizer: the workers keep %.3g to %.3g MB of the %.3g MB of optimizer state",
            *(size / 1e6 for size in (min(parts), max(parts), sum(parts))),
        )

    @contextlib.contextmanager
    def whole(self, root: int | None = None, *, returns: bool = False) -> Iterator[None]:
        """Gives ranks all of the optimizer's state in this block; see ``Strategy.whole``."""
        self._gather(set(range(self._engine.size)) if root is None else {root})
        try:
            yield
            if returns:
                assert root is not None
                self._send((v, root, self._keepers(owner)) for v, owner in self._state)
        finally:
            self._release_others()

    def stay_whole_on_rank_0(self) -> None:
        """Gives rank 0 all of the state until :meth:`hold`, so that it may save the model alone."""
        self._gather({0})
        self._rank_0_has_all = True

    @property
    def state(self) -> list[tuple[keras.Variable, int]]:
        """The divided variables of the optimizer, each with the rank that keeps it."""
        return self._state

    def _keepers(self, owner: int) -> set[int]:
        """The ranks that have a part of the state between calls."""
        return {owner, 0} if self._rank_0_has_all else {owner}

    def _gather(self, ranks: set[int]) -> None:
        """Gives these ranks all of the state; where rank 0 has it all, its values count."""
        keepers = [(variable, self._keepers(owner)) for variable, owner in self._state]
        self._send((variable, min(have), ranks - have) for variable, have in keepers)
        self._train(all_weights=self._engine.rank in ranks)

    def _send(self, moves: Iterable[tuple[keras.Variable, int, set[int]]]) -> None:
        """Sends values from rank to rank, small ones together; all ranks call it.

        Args:
            moves: a variable, the rank that sends its value, and those that get it.
        """
        rank = self._engine.rank
        needed = [move for move in moves if move[2] - {move[1]}]
        for group in divide(needed, lambda m: m[1], lambda m: size_of(m[0]), PIECE_BYTES):
            source = group[0][1]
            values = [
                np.asarray(variable.numpy())
                if rank == source
                else np.zeros(tuple(variable.shape), tf.as_dtype(variable.dtype).as_numpy_dtype)
                for variable, _, _ in group
            ]
            values = self._engine.broadcast(values, source)
            for (variable, _, receivers), value in zip(group, values, strict=True):
                if rank in receivers and rank != source:
                    set_value(variable, value)

    def _release_others(self) -> None:
        for variable, owner in self._state:
            if self._engine.rank not in self._keepers(owner):
                release(variable, f"rank {owner}")
        self._train(all_weights=self._rank_0_has_all and self._engine.rank == 0)

    def _train(self, *, all_weights: bool) -> None:
        """Makes the optimizer update all weights, as Keras does, or those of this rank."""
        if self._optimizer is None:
            return
        optimizer, rank = without_scaling(self._optimizer), self._engine.rank
        owners = {} if all_weights else self._rank_of
        others = {id(self._weights[name]) for name, owner in owners.items() if owner != rank}
        weights = list(self._weights.values())

        def share() -> None:
            if not all_weights:  # else this rank calls it alone
                self._share_now()

        train_those_with_values(self._optimizer, weights, others, share)
        attributes = vars(optimizer)  # set past Keras, which would track what is set
        attributes.pop("apply", None)
        if not all_weights:
            attributes["apply"] = MethodType(self._apply, optimizer)

    # The step

    def _apply(
        self, optimizer: keras.optimizers.Optimizer, grads: Any, trainable_variables: Any
    ) -> None:
        """In place of ``apply`` of the optimizer: updates those of the weights that are this
        rank's, as it would among all."""
        owners = {id(handle_of(self._weights[name])): own for name, own in self._rank_of.items()}
        pairs = [(g, v) for g, v in zip(grads, trainable_variables, strict=True) if g is not None]
        rank = self._engine.rank
        own = [
            index
            for index, (_, variable) in enumerate(pairs)
            if owners.get(id(handle_of(variable)), rank) == rank  # Keras refuses unknown ones
        ]
        if not own:
            optimizer.iterations.assign_add(1)  # Keras refuses to update nothing
            return
        with clipping_as_of_all(optimizer, [gradient for gradient, _ in pairs], own):
            type(optimizer).apply(
                optimizer, [pairs[index][0] for index in own], [pairs[index][1] for index in own]
            )

    def share(self, names: Collection[str], arrived: Mapping[str, Gradient]) -> None:
        """Gives all ranks the new values of weights, in the step that is being traced.

        Args:
            names: of the weights that were updated.
            arrived: by the name of a weight, the sum or mean of its gradient: before it is there,
                no rank makes room for a new value.
        """
        if tf.executing_eagerly():
            self._share_now()
        else:
            self._share(names, arrived)

    def _share(self, updated: Collection[str], arrived: Mapping[str, Gradient]) -> None:
        for names in self._buckets([name for name in self._weights if name in updated]):
            root, weights = self._rank_of[names[0]], [self._weights[name] for name in names]
            gradients = [g for g in map(arrived.get, names) if g is not None]
            with tf.control_dependencies(tf.nest.flatten(gradients, expand_composites=True)):
                whole = flatten([weight.value for weight in weights])
                name = f"weights/{names[0]}.{whole.dtype.name}.{whole.shape.num_elements()}"
                new = self._broadcast(whole, name, root)
            if root == self._engine.rank:
                continue
            values = unflatten(new, [weight.shape for weight in weights])
            for weight, value in zip(weights, values, strict=True):
                weight.value.assign(value, read_value=False)

    def _broadcast(self, whole: tf.Tensor, name: str, root: int) -> tf.Tensor:
        """The flat tensor of a rank on all ranks, sent in pieces."""
        count, most = whole.shape.num_elements(), PIECE_BYTES // whole.dtype.size
        if count <= most:
            return self._engine.broadcast_in_graph(whole, name, root)
        pieces: list[tf.Tensor] = []
        for begin in range(0, count, most):
            piece = tf.slice(whole, [begin], [min(most, count - begin)])
            with tf.control_dependencies(pieces[-IN_FLIGHT : 1 - IN_FLIGHT]):
                at = f"{name}.{begin}"
                pieces.append(self._engine.broadcast_in_graph(piece, at, root))
        return tf.concat(pieces, 0)

    def _buckets(self, names: Sequence[str]) -> list[list[str]]:
        """Weights of one rank and dtype, together up to the size of a bucket."""

        def kind(name: str) -> tuple[int, str]:
            return self._rank_of[name], self._weights[name].dtype

        return divide(names, kind, lambda name: size_of(self._weights[name]), BUCKET_BYTES)
