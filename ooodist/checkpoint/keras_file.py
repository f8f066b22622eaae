"""The content of a checkpoint from a model in memory, and back into one.

What is written, in either form, is what Keras would save: the model, its weights, the optimizer and
its state; and a :class:`State`, what else an exact resume needs. Nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ooodist.checkpoint.content import ASSETS, BEST, EXTRAS, RANKS, VARIABLES, Content, Item
from ooodist.checkpoint.state import State, Variable
from ooodist.compat.keras_saving import Layout, configuration, layout_of
from ooodist.errors import UserError
from ooodist.step.finiteness.finite import check_weight
from ooodist.util.digest import hex_digest

if TYPE_CHECKING:
    import keras


def kept(model: keras.Model) -> list[Any]:
    """The variables that a checkpoint keeps: the weights, then the optimizer's."""
    return [*model.weights, *model.optimizer.variables]


def variables_of(model: keras.Model, layout: Layout | None = None) -> tuple[Variable, ...]:
    """Describes the variables that a checkpoint keeps, without reading their values."""
    layout = layout_of(model) if layout is None else layout
    return tuple(
        Variable(each.path, tuple(each.shape), str(each.dtype), layout.places_of(each))
        for each in kept(model)
    )


def fingerprint(model: keras.Model) -> str:
    """The SHA-256 of the values of all variables that a checkpoint keeps."""
    return hex_digest(each.numpy().tobytes() for each in kept(model))


class ModelContent(Content):
    """What a rank writes of a model: all of it, or its part.

    Args:
        model: compiled and built. Only the values of variables that this rank writes are read.
        state: the variables and the fingerprint in it are replaced by the model's.
        best_weights: the model's weights at its best epoch, if they are to be restored when the
            training ends; None for those that this rank does not write.
        by_rank: what the steps of each rank keep for themselves, by name and then by rank; in a
            part, of this rank alone.
        writers: the rank that writes each variable, by the variable's id. Rank 0 writes the others,
            and what is no variable.
        rank: this rank.
        copies: take copies of all values now, so that the model may be trained before and while
            they are written, by any thread. If false, one value at a time is in memory.
        checks: refuse weights that are not finite, with a UserError as they are read.
    """

    def __init__(
        self,
        model: keras.Model,
        state: State,
        best_weights: Sequence[np.ndarray | None] | None = None,
        by_rank: Mapping[str, np.ndarray] | None = None,
        *,
        writers: Mapping[int, int] | None = None,
        rank: int = 0,
        copies: bool = False,
        checks: bool = True,
    ) -> None:
        super().__init__()
        self._model, self.ranks = model, by_rank or {}
        self._kept = kept(model)
        self._num_checked = len(model.weights) if checks else 0
        self._writers = [(writers or {}).get(id(each), 0) for each in self._kept]
        self._rank = rank
        layout = layout_of(model) if rank == 0 else Layout()
        self.config, self.metadata = configuration(model) if rank == 0 else ("", "")
        self.state = replace(state, variables=variables_of(model, layout), fingerprint="")
        self.groups = layout.groups
        self.num_best = len(best_weights or ())
        self.extras = {p: v for p, v in layout.values.items() if isinstance(v, np.ndarray)}
        self.assets = {n: np.frombuffer(file, np.uint8) for n, file in layout.assets.items()}
        self._values: dict[str, Any] = {VARIABLES: self._kept, BEST: best_weights}
        self._values |= {EXTRAS: self.extras, ASSETS: self.assets, RANKS: self.ranks}
        if copies:
            own = (key for kind, key, _ in self.items() if kind == VARIABLES)
            self._values[VARIABLES] = {key: _value(self._kept[key]) for key in own}

    def items(self) -> Iterator[Item]:
        for item in super().items():
            writer = self._writers[item.key] if item.kind in (VARIABLES, BEST) else 0
            if item.kind == RANKS or writer == self._rank:
                yield item

    def value(self, kind: str, key: Any) -> np.ndarray:
        value = _value(self._values[kind][key])
        if kind == VARIABLES and key < self._num_checked:
            check_weight(self._model, self._kept[key], value)
        return value


def _value(variable: Any) -> np.ndarray:
    """The value of a variable, or an array as it is."""
    return np.asarray(variable.numpy() if hasattr(variable, "numpy") else variable)


def load_variables(file: Path, model: keras.Model, state: State) -> None:
    """Sets the weights and the optimizer state, bit for bit, to those in the file.

    ``model`` is compiled and built, its optimizer too, and ``check_fits`` has passed.
    Raises UserError if the values read back are not those that were written.
    """
    model.load_weights(file)
    if fingerprint(model) != state.fingerprint:
        raise UserError(
            f"checkpoint {file} does not give back the values that were saved: "
            "this model or optimizer loads its variables in a way of its own"
        )
