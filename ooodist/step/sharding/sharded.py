"""ZeRO stage 1 in data parallelism: each rank keeps a part of the optimizer's state.

Of each weight, every rank updates a slice, and keeps the optimizer's state for it. In place of the
two halves of an all-reduce, the sums of gradients are scattered and the new weights are gathered::

    rank 0    gradient --+--> mean of slice 0 --> update --> new slice 0 --+--> new weight
                        X                                                X
    rank 1    gradient --+--> mean of slice 1 --> update --> new slice 1 --+--> new weight

So a step sends as many bytes as without it, in the planned order. With two ranks each update is bit
for bit what it was; with more, engines may add the ranks' gradients in another order.

Where an update needs more than its own element (a norm, an average of weights, a constraint), or no
axis can be divided, a weight has one rank that updates it (``ownership.py``). Then all ranks get
the mean, and the new value is broadcast: half as many bytes again, and each update is what it was.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MethodType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist.compat.keras_deferred import (
    build_without_values,
    has_value,
    initial_value,
    initialize,
    release,
    set_value,
    train_those_with_values,
    with_values,
)
from ooodist.compat.keras_optimizer import clipping_as_of_all
from ooodist.compat.tensorflow_graph import handle_of
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.graph.units import Gradient
from ooodist.step.backward import variable_names
from ooodist.step.optimizer import optimizer_state_of, without_scaling
from ooodist.step.replicas import agree_on_names
from ooodist.step.sharding.moves import Move, of_whole, send
from ooodist.step.sharding.ownership import divided
from ooodist.step.sharding.sharing import Sharing
from ooodist.step.sharding.slices import SliceOfWeight, Slicing, slicing_of
from ooodist.step.sharding.state import optimizer_bytes, size_of, state_bytes

logger = logging.getLogger("ooodist")

# Optimizers that update each element from its own gradient and state alone. Ftrl would, but the
# last bits of its powers depend on the place of an element.
ELEMENT_BY_ELEMENT = (
    keras.optimizers.SGD,
    keras.optimizers.Adam,
    keras.optimizers.AdamW,
    keras.optimizers.Adamax,
    keras.optimizers.Nadam,
    keras.optimizers.Adagrad,
    keras.optimizers.Adadelta,
    keras.optimizers.RMSprop,
    keras.optimizers.Lion,
)

MOST_WHOLE = 0.02  # of the bytes of all weights: the share without slices that is not worth a word

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


def why_not_sliced(optimizer: keras.optimizers.Optimizer) -> str:
    """Why an optimizer has to see whole weights; "" if it need not."""
    kind = type(optimizer)
    if kind not in ELEMENT_BY_ELEMENT:
        return f"{kind.__name__} is not known to update each element by itself, bit for bit"
    for option in ("clipnorm", "global_clipnorm", "use_ema"):
        if getattr(optimizer, option):
            return f"{option} of the optimizer looks at whole weights"
    return ""


class ShardedOptimizer:
    """The optimizer of a model, of whose state this rank has a part.

    Args:
        model: compiled before :meth:`hold`; all ranks have all of its weights.
        engine: connects the ranks; it ``broadcasts``.

    Attributes:
        slices: how weights are sliced that are, by name. It changes with the optimizer.
    """

    def __init__(self, model: keras.Model, engine: Engine) -> None:
        self._model = model
        self._engine = engine
        self._optimizer: keras.optimizers.Optimizer | None = None  # that was divided
        self._weights: dict[str, keras.Variable] = {}  # those that are trained, by name
        self.slices: dict[str, Slicing] = {}
        self._rank_of: dict[str, int] = {}  # which updates a weight without slices, or saves it
        self._state: list[tuple[keras.Variable, int]] = []  # with the rank that keeps it
        self._slicing: dict[int, Slicing] = {}  # of the optimizer's variables, by id
        # Slices of these that this rank keeps; they stay the same objects, which traced steps know.
        self._own: dict[int, tf.Variable] = {}
        self._rank_0_has_all = False
        self._sharing = Sharing(engine, {}, {}, {})
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
        if optimizer is not self._optimizer:  # ids of its variables may be those of another's
            self._optimizer, self._own = optimizer, {}
        if not optimizer.built:
            build_without_values(optimizer, weights)
        agree_on_names(engine, [*model.variables, *optimizer.variables])
        self._weights = dict(zip(variable_names(weights), weights, strict=True))
        sizes = state_bytes(model)
        before = self._rank_of
        self._rank_of = divided([(n, sizes[n], _ALONE) for n in self._weights], engine.size)
        sliced = self._slices()
        engine.check_equal("how shard_optimizer slices the weights", repr(sliced))
        if self._rank_of != before or self.slices != sliced:
            self.slices.clear()
            self.slices.update(sliced)
            self._sharing = Sharing(engine, self._weights, self.slices, self._rank_of)
            self._share_now = tf.function(
                partial(self._sharing.share, self._weights, {}, ()), autograph=False
            )
            self._tell()
        self._state, self._slicing = [], {}
        for variable, name in optimizer_state_of(optimizer, self._weights):
            if name:
                self._state.append((variable, self._rank_of[name]))
                if name in self.slices:
                    self._slicing[id(variable)] = self.slices[name]
            elif len(variable.shape):
                raise UserError(
                    f"shard_optimizer is true, but the optimizer {optimizer.name} keeps "
                    f"{variable.path}, and it is not known for which weight; leave it out, or take "
                    "another optimizer"
                )
            elif not has_value(variable):
                initialize(variable)
        self._own = {key: own for key, own in self._own.items() if key in self._slicing}
        own = np.array([has_value(variable) for variable, _ in self._state], np.int32)
        (of_rank_0,) = engine.broadcast([own])
        self._rank_0_has_all = False
        there = zip(self._state, of_rank_0, strict=True)
        self._send(self._kept(variable, owner) for (variable, owner), is_there in there if is_there)
        for variable, owner in self._state:
            is_sliced = id(variable) in self._slicing
            if is_sliced and id(variable) not in self._own:
                # These optimizers begin with a constant.
                shape = self._slicing[id(variable)].slice_shape
                self._keep(variable, initial_value(variable, shape))
            elif not is_sliced and owner == engine.rank and not has_value(variable):
                initialize(variable)
        self._release_others()

    def _slices(self) -> dict[str, Slicing]:
        """How weights can be sliced, by name."""
        engine = self._engine
        able = engine.kind.scatters and engine.kind.gathers
        if not able or why_not_sliced(self._model.optimizer):
            return {}
        found = {
            name: slicing_of(weight.shape, engine.size)
            for name, weight in self._weights.items()
            if weight.constraint is None and weight.dtype == "float32"
        }
        return {name: slicing for name, slicing in found.items() if slicing is not None}

    def _tell(self) -> None:
        """Logs how evenly the state is divided."""
        num_bytes = optimizer_bytes(self._model)
        parts = [0] * self._engine.size
        whole = 0
        for name, rank in self._rank_of.items():
            if name in self.slices:
                parts = [size + num_bytes[name] // len(parts) for size in parts]
            else:
                parts[rank] += num_bytes[name]
                whole += size_of(self._weights[name])
        logger.info(
            "shard_optimizer: the workers keep %.3g to %.3g MB of the %.3g MB of optimizer state",
            *(size / 1e6 for size in (min(parts), max(parts), sum(parts))),
        )
        if whole > MOST_WHOLE * sum(map(size_of, self._weights.values())):
            logger.info(
                "shard_optimizer: %.3g MB of weights are not sliced, and take half as many bytes "
                "again in each step: %s",
                whole / 1e6,
                why_not_sliced(self._model.optimizer)
                or f"{len(parts)} workers divide no axis of them, or they have a constraint or are "
                "not of float32",
            )

    @contextlib.contextmanager
    def whole(self, root: int | None = None, *, returns: bool = False) -> Iterator[None]:
        """Gives ranks all of the optimizer's state in this block; see ``Strategy.whole``."""
        self._gather(set(range(self._engine.size)) if root is None else {root})
        try:
            yield
            if returns:
                assert root is not None
                self._send(self._kept(v, owner, root) for v, owner in self._state)
        finally:
            self._release_others()

    @contextlib.contextmanager
    def in_parts(self, *, returns: bool = False) -> Iterator[None]:
        """Gives one rank all of each variable in this block; see ``Strategy.in_parts``."""
        sliced = [(v, owner) for v, owner in self._state if id(v) in self._slicing]
        self._send(move for v, owner in sliced for move in self._brought(v, {owner}, owner))
        try:
            yield
            if returns:
                self._send(self._kept(v, owner, owner) for v, owner in sliced)
        finally:
            self._release_others()

    def stay_whole_on_rank_0(self) -> None:
        """Gives rank 0 all of the state until :meth:`hold`, so that it may save the model alone."""
        self._gather({0})
        self._rank_0_has_all = True
        self._release_others()

    @property
    def state(self) -> list[tuple[keras.Variable, int]]:
        """The divided variables of the optimizer, each with the rank that saves it."""
        return self._state

    def _keepers(self, variable: keras.Variable, owner: int) -> set[int]:
        """The ranks that have all of a variable between calls."""
        if id(variable) in self._slicing:
            return {0} if self._rank_0_has_all else set()
        return {owner, 0} if self._rank_0_has_all else {owner}

    def _gather(self, ranks: set[int]) -> None:
        """Gives these ranks all of the state; where rank 0 has it all, its values count."""
        self._send(move for v, owner in self._state for move in self._brought(v, ranks, owner))
        self._train(all_weights=self._engine.rank in ranks)

    def _brought(self, variable: keras.Variable, ranks: set[int], owner: int) -> list[Move]:
        """What gives ranks all of a variable."""
        have = self._keepers(variable, owner)
        if have:
            return [of_whole(variable, min(have), ranks - have, partial(set_value, variable))]
        slicing, own = self._slicing[id(variable)], self._own[id(variable)]
        parts: dict[int, np.ndarray] = {}

        def take(source: int, part: np.ndarray) -> None:
            parts[source] = part
            if len(parts) == slicing.count:
                in_order = [parts[rank] for rank in range(slicing.count)]
                set_value(variable, np.concatenate(in_order, slicing.axis))

        dtype = np.dtype(own.dtype.as_numpy_dtype)
        return [
            Move(source, ranks, slicing.slice_shape, dtype, own.numpy, partial(take, source))
            for source in range(slicing.count)
        ]

    def _kept(self, variable: keras.Variable, owner: int, root: int = 0) -> Move:
        """What gives the ranks that keep a variable, or slices of it, the value of one rank."""
        if id(variable) in self._slicing and not self._rank_0_has_all:
            ranks = set(range(self._engine.size))
            return of_whole(variable, root, ranks, partial(self._keep_part_of, variable))
        ranks = self._keepers(variable, owner) - {root}
        return of_whole(variable, root, ranks, partial(set_value, variable))

    def _keep_part_of(self, variable: keras.Variable, value: np.ndarray) -> None:
        # A copy: TensorFlow may take over memory of NumPy, and all of the value would stay.
        self._keep(variable, value[self._slicing[id(variable)].at(self._engine.rank)].copy())

    def _keep(self, variable: keras.Variable, part: Any) -> None:
        """Keeps this rank's slice of a variable."""
        if id(variable) in self._own:
            self._own[id(variable)].assign(part)
        else:
            self._own[id(variable)] = tf.Variable(part, trainable=False, name=variable.name)

    def _send(self, moves: Iterable[Move]) -> None:
        send(self._engine, moves)

    def _release_others(self) -> None:
        rank = self._engine.rank
        for variable, owner in self._state:
            have = self._keepers(variable, owner)
            if rank not in have:
                release(variable, f"rank {min(have)} does" if have else "each has a slice of it")
        self._train(all_weights=self._rank_0_has_all and rank == 0)

    def _train(self, *, all_weights: bool) -> None:
        """Makes the optimizer update all weights, as Keras does, or those of this rank."""
        if self._optimizer is None:
            return
        optimizer, rank = without_scaling(self._optimizer), self._engine.rank
        owners = {} if all_weights else self._rank_of
        others = {
            id(self._weights[name])
            for name, owner in owners.items()
            if owner != rank and name not in self.slices
        }
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
        names = {id(handle_of(weight)): name for name, weight in self._weights.items()}
        rank = self._engine.rank
        given = [(g, v) for g, v in zip(grads, trainable_variables, strict=True) if g is not None]
        own, pairs = [], []
        for index, (gradient, variable) in enumerate(given):
            name = names.get(id(handle_of(variable)))
            if name in self.slices:
                slicing = self.slices[name]
                if tuple(gradient.shape) == slicing.shape:
                    gradient = tf.convert_to_tensor(gradient)[slicing.at(rank)]
                pairs.append((gradient, SliceOfWeight(self._weights[name], slicing, rank)))
            elif name is None or self._rank_of[name] == rank:  # Keras refuses unknown ones
                own.append(index)
                pairs.append((gradient, variable))
        if not pairs:
            optimizer.iterations.assign_add(1)  # Keras refuses to update nothing
            return
        state = {id(variable): variable for variable, _ in self._state}
        with (
            clipping_as_of_all(optimizer, [gradient for gradient, _ in given], own),
            with_values((state[key], value) for key, value in self._own.items()),
        ):
            type(optimizer).apply(optimizer, *map(list, zip(*pairs, strict=True)))

    def share(
        self,
        names: Collection[str],
        arrived: Mapping[str, Gradient],
        groups: Iterable[Sequence[str]] = (),
    ) -> None:
        """Gives all ranks the new values of weights, in the step that is being traced; see
        :meth:`Sharing.share`."""
        if tf.executing_eagerly():
            self._share_now()
        else:
            self._sharing.share(names, arrived, groups)
