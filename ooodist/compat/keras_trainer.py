"""What Keras's own ``fit``, ``evaluate`` and ``predict`` run, however they are called."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras

_INSTEAD: dict[tuple[int, str], Callable[..., Any]] = {}  # by id of the model and name


def plain_method(model: keras.Model, name: str) -> Callable[..., Any]:
    """Keras's own method of this name for a model, which :func:`redirected` leaves alone.

    It is ``keras.Model.fit.__wrapped__``, say: Keras puts ``filter_traceback`` around it.
    """
    method = getattr(keras.Model, name)
    return functools.partial(getattr(method, "__wrapped__", method), model)


@contextlib.contextmanager
def redirected(model: keras.Model, name: str, instead: Callable[..., Any]) -> Iterator[None]:
    """Makes Keras's own method of a model run ``instead`` in this block, whoever calls it how.

    An override may call it by ``super()``, or have kept it from before. All of these run one
    function, which ``filter_traceback`` keeps in its closure (since Keras 3.0). It is replaced
    there, for good, by one that asks whether something else is to run for this model.

    Args:
        model: the model.
        name: ``fit``, ``evaluate`` or ``predict``.
        instead: gets the arguments without the model; :func:`plain_method` is still Keras's.
    """
    _make_redirectable(name)
    key = id(model), name
    before = _INSTEAD.get(key)
    _INSTEAD[key] = instead
    try:
        yield
    finally:
        if before is None:
            del _INSTEAD[key]
        else:
            _INSTEAD[key] = before


@functools.cache
def _make_redirectable(name: str) -> None:
    method = getattr(keras.Model, name)
    plain = method.__wrapped__
    (cell,) = (cell for cell in method.__closure__ if cell.cell_contents is plain)

    @functools.wraps(plain)
    def run(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
        instead = _INSTEAD.get((id(self), name))
        return plain(self, *args, **kwargs) if instead is None else instead(*args, **kwargs)

    cell.cell_contents = run
