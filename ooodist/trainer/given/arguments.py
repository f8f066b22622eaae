"""Understands the arguments of ``fit``, ``evaluate`` and ``predict`` where a model overrides them.

::

    model.fit(data, rounds=2) ──> the override ──> Keras's own fit(x, y, epochs=2)
                                                   └─ ours: shares out, adds callbacks, then Keras's

An override may have any signature and may do anything before it calls Keras's own method. So it
gets what the user gave, on every rank alike, and Keras's own method inside it is what is replaced:
its arguments mean the same for all models.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from ooodist.compat.keras_trainer import plain_method, redirected

logger = logging.getLogger("ooodist")

_SINGLE = (str, bytes, int, float, complex, bool, type(None))


@dataclass(frozen=True)
class Made:
    """Says that an override has made the data that Keras's own method gets.

    Attributes:
        samples: how many samples the arrays or lists have of which it was made; None if it was
            made of nothing of this kind, so that nobody knows whether it is the same on all ranks.
    """

    samples: int | None


class KerasMethod:
    """Replaces one of Keras's methods of a model; a call is a call of Keras's own.

    Args:
        model: the model.
        name: ``fit``, ``evaluate`` or ``predict``.
        ours: is called in place of Keras's own method, with its arguments.
    """

    def __init__(self, model: keras.Model, name: str, ours: Callable[..., Any]) -> None:
        self._model = model
        self._name = name
        self._ours = ours
        self._override: Callable[..., Any] = getattr(model, name)
        self._given: Mapping[str, Any] | None = None  # to the override that is under way
        self._reached = False
        self._plain = self._override
        if getattr(self._override, "__func__", None) is getattr(keras.Model, name):
            setattr(model, name, ours)
        else:
            self._plain = plain_method(model, name)
            setattr(model, name, self._run_override)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._plain(*args, **kwargs)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of Keras's own method, by name."""
        return _by_name(self._plain, args, kwargs)

    def made(self, data: Any, name: str) -> Made | None:
        """Tells of what an override has made data; None if no override has, or of batches.

        Batches, such as those of a ``tf.data.Dataset``, are what each rank has its own part of.

        Args:
            data: what Keras's own method gets.
            name: the name of this argument.
        """
        if self._given is None or data is None:
            return None
        given = self._given
        given = {name: given[name]} if name in given else given
        leaves = [leaf for each in given.values() for leaf in _leaves(each)]
        if any(leaf is data for leaf in leaves) or any(map(_is_batches, leaves)):
            return None
        lengths = (_length(leaf) for leaf in leaves)
        return Made(next((length for length in lengths if length is not None), None))

    def _run_override(self, *args: Any, **kwargs: Any) -> Any:
        if self._given is not None:  # it calls itself: what the user gave counts
            return self._override(*args, **kwargs)
        self._given, self._reached = _by_name(self._override, args, kwargs), False
        try:
            with redirected(self._model, self._name, self._reach):
                result = self._override(*args, **kwargs)
        finally:
            self._given = None
        if not self._reached and self._name == "fit":
            logger.warning(
                "%s of %s has not called Keras's own %s, so ooodist has shared nothing out: what "
                "trains in another way must have a part of its own on each rank",
                self._name,
                type(self._model).__name__,
                self._name,
            )
        return result

    def _reach(self, *args: Any, **kwargs: Any) -> Any:
        self._reached = True
        return self._ours(*args, **kwargs)


def _by_name(
    method: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments by name, those that a method collects under a name of its own, too."""
    signature = inspect.signature(method)
    given = dict(signature.bind(*args, **kwargs).arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            given.update(given.pop(parameter.name, {}))
    return given


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _leaves(each)
    elif isinstance(value, tuple) or (
        isinstance(value, list) and value and not isinstance(value[0], _SINGLE)
    ):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def _is_batches(leaf: Any) -> bool:
    package = type(leaf).__module__.partition(".")[0]
    is_loader = package in ("grain", "torch") and not hasattr(leaf, "shape")
    return is_loader or isinstance(leaf, tf.data.Dataset | keras.utils.PyDataset | Iterator)


def _length(leaf: Any) -> int | None:
    if isinstance(leaf, list):
        return len(leaf) or None
    shape = getattr(leaf, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) else None
