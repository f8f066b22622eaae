"""Gives each rank of a pipeline the variables of its own stages, and takes all others away.

::

    rank             0               1
    function      no values      no values        made_without_values
    plan          stage 0        stage 1          hold: initialized where they belong
    whole         all            all              sent from those that have them
    after it      stage 0        stage 1          released again

With a sharded optimizer, state is on one of the ranks alone that have the weight (ownership.py).
A model that the user has built has all values on each rank; what a rank does not need is released.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist.compat.keras_deferred import (
    build_without_values,
    has_value,
    initialize,
    initialize_later,
    made_without_values,
    release,
    set_value,
    train_those_with_values,
)
from ooodist.engines.arrays import messages_of
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.pipeline.ownership import Holders, holders_of_variables, those_that_update
from ooodist.pipeline.ranks import Ranks
from ooodist.pipeline.stages import Stage
from ooodist.step.backward import names_by_id
from ooodist.step.replicas import agree_on_names, broadcast_variables, is_random_state


def build_model(function: Callable[[], Any]) -> keras.Model:
    """The compiled model that a function builds, whose weights have no values.

    Raises:
        UserError: the function returns something else, or needs values.
    """
    made: list[keras.Variable] = []
    model = made_without_values(function, made)
    if not isinstance(model, keras.Model):
        raise UserError(
            f"the function given to ooodist.pipelined returns a {type(model).__name__}; it must "
            "return a compiled keras.Model"
        )
    # All else is needed everywhere: what it was compiled with, which is small, and whatever more.
    weights = {id(variable) for variable in model.variables}
    for variable in made:
        if id(variable) not in weights:
            initialize(variable)
    return model


class Holding:
    """The variables of a model and its optimizer, each on the ranks that need it.

    All ranks call its methods together.

    Args:
        model: the model; compiled when its stages are known.
        engine: connects the ranks.
        ranks: the position of this rank among all.

    Attributes:
        weights: variables of the model, each with the ranks that have it, the owner first.
        optimizer_state: the same for the optimizer's variables.
        unfilled: the ids of this rank's variables that have no initial values yet: they may be
            changed in any way before :meth:`fill`.
        share: gives ranks the weights that another replica has updated for them.
    """

    def __init__(self, model: keras.Model, engine: Engine, ranks: Ranks) -> None:
        self.weights: Holders = []
        self.optimizer_state: Holders = []
        self.unfilled: dict[int, Callable[[], None]] = {}
        self.share: Callable[[], None] = lambda: None
        self._model = model
        self._engine = engine
        self._ranks = ranks
        self._updated_by: Mapping[str, int] = {}
        self._names: Mapping[int, str] = {}
        self._plain_set_weights = model.set_weights
        model.get_weights = self._get_weights
        model.set_weights = self._set_weights
        # How often each was called since there are stages: these set what this rank has.
        self._set_by = dict.fromkeys(("set_weights", "load_weights"), 0)
        model.load_weights = self._loading(model.load_weights)
        for name in ("save", "save_weights", "export"):
            setattr(model, name, self._saving(name, getattr(model, name)))

    def build_optimizer(self, *, is_sharded: bool) -> None:
        """Builds the compiled optimizer if it is not built, without memory for its state.

        Where a pipeline is a single rank, that has everything from now on, unless the optimizer's
        state is to be sharded over the replicas.
        """
        model = self._model
        if self._ranks.positions == 1 and not is_sharded:
            for variable in model.variables:
                if not has_value(variable):
                    initialize(variable)
        elif not model.optimizer.built:
            build_without_values(model.optimizer, model.trainable_variables)

    def agree(self) -> None:
        """Makes copies of a variable the same on all ranks that have it.

        Before there are stages, what has a value gets that of rank 0. After it, a value is that of
        its owner in the first pipeline. Random generators stay as they are: replicas draw
        different numbers.
        """
        model, ranks = self._model, self._ranks
        if not self.weights:
            known = [*model.variables, *model.optimizer.variables]
            agree_on_names(self._engine, known)
            # Rank 0 may have loaded a model that others have built.
            have = self._engine.all_reduce(np.array([has_value(v) for v in known], np.int32), "max")
            for variable, has in zip(known, have, strict=True):
                if has and not has_value(variable):
                    initialize(variable)
            values = [v for v in known if has_value(v) and not is_random_state(v)]
            broadcast_variables(self._engine, values)
            return
        self.check_set_together()
        for variable, holders in self._all():
            if is_random_state(variable):
                continue
            sources = ranks.at_same_position(holders)
            if len(sources) > 1 and ranks.world.rank in holders:
                value = np.array(variable.numpy())
                ranks.peers.begin_broadcast(value, root=0).wait()
                if ranks.replica:
                    variable.assign(value)
            deliver(variable, sources, set(holders).difference(sources), ranks)

    def hold(
        self,
        stages: Sequence[Stage],
        rank_of: Sequence[int],
        updated_by: Mapping[str, int] | None = None,
    ) -> None:
        """Gives this rank the variables of its stages, and releases all others.

        A value goes to where it is needed now from where it is. A variable that has none anywhere
        gets memory, and its initial value from :meth:`fill`.

        Args:
            stages: all stages of the model.
            rank_of: the position of each stage.
            updated_by: the only replica that updates a weight, by its name.

        Raises:
            UserError: on all ranks, for the reasons of :func:`holders_of_variables`.
        """
        ranks = self._ranks
        own, everywhere = ranks.world.rank, tuple(range(ranks.world.size))
        self._updated_by, self._names = updated_by or {}, names_by_id(self._model)
        before = {id(variable): holders for variable, holders in self._all()}
        with self._engine.agreed():
            found = holders_of_variables(
                self._model, stages, rank_of, ranks.replicas, self._updated_by
            )
        for variable, holders in (*found[0], *found[1]):
            # The same on all ranks, where it is not known who has it.
            have = before.get(id(variable), everywhere if has_value(variable) else ())
            if have:
                deliver(variable, have, set(holders).difference(have), ranks)
            elif own in holders:
                self.unfilled[id(variable)] = initialize_later(variable)
            if own not in holders:
                self._release(variable, holders)
        self.weights, self.optimizer_state = found
        self._train_own()

    def fill(self) -> None:
        """Gives this rank's variables their initial values, where they have none yet."""
        for initialize_now in self.unfilled.values():
            initialize_now()
        self.unfilled.clear()

    @contextlib.contextmanager
    def whole(self, root: int | None = None, *, returns: bool = False) -> Iterator[None]:
        """Gives ranks the whole model in this block; all ranks enter it.

        Args:
            root: the rank of the first pipeline that gets it; None: all ranks do.
            returns: after the block, the first pipeline and the ranks that alone have optimizer
                state get what the root's variables are then.
        """
        ranks, set_by = self._ranks, dict(self._set_by)
        wanted = range(ranks.world.size) if root is None else (root,)
        for variable, holders in self._all():
            deliver(variable, holders, set(wanted).difference(holders), ranks)
        if self.weights:
            self._train_own()
        try:
            yield
            if returns:
                assert root is not None
                self._set_by = set_by  # all get what was set
                for variable, holders in self._all():
                    first = [rank for rank in holders if rank < ranks.positions]
                    deliver(variable, [root], set(first or holders).difference([root]), ranks)
        finally:
            for variable, holders in self._all():
                if ranks.world.rank not in holders:
                    self._release(variable, holders)
            if self.weights:
                self._train_own()

    def check_set_together(self) -> None:
        """Raises UserError, on all ranks, if weights were set on some ranks alone."""
        calls = self._engine.gather(np.array(list(self._set_by.values())))
        for name, column in zip(self._set_by, calls.T, strict=True):
            if (column != column[0]).any():
                most = [rank for rank, count in enumerate(column) if count == column.max()]
                raise UserError(
                    f"model.{name} was called on ranks {most} alone (of {len(column)}), but each "
                    "rank of a pipeline sets the weights of its own stages; call it on all ranks "
                    "(with callbacks that do so, too, such as one that restores weights)"
                )

    @contextlib.contextmanager
    def starting_on_rank_0(self) -> Iterator[None]:
        """Gives rank 0 the whole model in this block, and then each rank what it needs of it.

        Before there are stages, that waits for :meth:`hold`: until then, rank 0 keeps the weights.
        """
        ranks, weights = self._ranks, self._model.variables
        if self.weights:
            with self.whole(root=0, returns=True):
                yield
            self.agree()
            return
        agree_on_names(self._engine, weights)
        for variable in weights:
            if not has_value(variable) and (is_random_state(variable) or not ranks.world.rank):
                initialize(variable)
        yield
        self.weights = [(v, (0,)) for v in weights if not is_random_state(v)]

    def ranks_that_update(self, weight: Any, holders: tuple[int, ...]) -> tuple[int, ...]:
        """Those of the ranks that have a weight which update it; see ownership.py."""
        name = self._names[id(weight)]
        return those_that_update(name, holders, self._ranks.positions, self._updated_by)

    def _train_own(self) -> None:
        """Makes the optimizer train the weights that this rank updates; all in a whole model."""
        model, rank = self._model, self._ranks.world.rank
        others: set[int] = set()
        if self._updated_by and not self._is_whole:
            others = {
                id(variable)
                for variable, holders in self.weights
                if rank not in self.ranks_that_update(variable, holders)
            }
        weights = model.trainable_variables
        train_those_with_values(model.optimizer, weights, others, lambda: self.share())

    def _release(self, variable: Any, holders: Sequence[int]) -> None:
        is_in_each = len(self._ranks.at_same_position(holders)) == self._ranks.replicas
        place = " of each pipeline" if is_in_each else ""
        release(variable, f"rank {holders[0]}{place} does")

    def _all(self) -> Holders:
        return [*self.weights, *self.optimizer_state]

    @property
    def _is_whole(self) -> bool:
        """Whether this rank has everything, or there are no stages yet."""
        return all(has_value(variable) for variable, _ in self._all())

    # Methods of the model

    def _get_weights(self) -> list[np.ndarray]:
        """Keras's, but what this rank does not have is NaN (without memory)."""
        return [np.asarray(v.numpy()) if has_value(v) else _unknown(v) for v in self._model.weights]

    def _set_weights(self, weights: Sequence[Any]) -> None:
        """Keras's, but what this rank does not have stays where it is: call it on all ranks."""
        self._note("set_weights")
        if self._is_whole:
            self._plain_set_weights(weights)
            return
        own = self._model.weights
        if len(own) != len(weights):
            raise UserError(
                f"set_weights gives {len(weights)} arrays, but model {self._model.name} has "
                f"{len(own)} weights"
            )
        for variable, value in zip(own, weights, strict=True):
            if has_value(variable):
                variable.assign(value)

    def _loading(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def load(*args: Any, **options: Any) -> Any:
            self._note("load_weights")
            return plain(*args, **options)

        return load

    def _note(self, name: str) -> None:
        if self.weights:
            self._set_by[name] += 1

    def _saving(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def save(*args: Any, **options: Any) -> Any:
            if not self._is_whole:
                raise UserError(
                    f"model.{name}: this rank has only its own stages of model "
                    f"{self._model.name}; call it in a block `with ooodist.whole(model):`, which "
                    "all ranks enter, or take the checkpoints of a job"
                )
            return plain(*args, **options)

        return save


def deliver(
    variable: Any, sources: Iterable[int], receivers: Collection[int], ranks: Ranks
) -> None:
    """Sends a variable's value to ranks that do not have it; all of these call it.

    Args:
        variable: the same on all ranks.
        sources: ranks that have it. Each receiver gets it from the first of its own pipeline, or
            else from the first of all: state of random generators differs between replicas.
        receivers: other ranks.
        ranks: the position of this rank among all.
    """
    own, world = ranks.world.rank, ranks.world
    if not receivers:
        return
    nearest: dict[int, int] = {}  # by replica
    for source in sources:
        nearest.setdefault(source // ranks.positions, source)
    first = next(iter(nearest.values()))

    def source_for(receiver: int) -> int:
        return nearest.get(receiver // ranks.positions, first)

    if own in receivers:
        value = np.empty(tuple(variable.shape), tf.as_dtype(variable.dtype).as_numpy_dtype)
        world.receive(messages_of(value), source_for(own)).wait()
        set_value(variable, value)
    elif own in nearest.values():
        asking = [receiver for receiver in sorted(receivers) if source_for(receiver) == own]
        value = np.array(variable.numpy() if asking else 0)
        for receiver in asking:
            world.send(messages_of(value), receiver).wait()


def _unknown(variable: keras.Variable) -> np.ndarray:
    kind = tf.as_dtype(variable.dtype)
    value = np.array(np.nan if kind.is_floating else 0, kind.as_numpy_dtype)
    return np.broadcast_to(value, tuple(variable.shape))
