"""Packages that may be absent: versions, and one message where TensorFlow is not installed."""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from types import TracebackType

from ooodist.errors import UserError

_OF_TENSORFLOW = ("tensorflow", "keras", "ml_dtypes")  # modules of the extras cpu and gpu alone
_NAMES = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tf-nightly"),
    "horovod": ("horovod", "ooodist-horovod"),  # the latter: scripts/wheels.sh
    "byteps": ("byteps", "ooodist-byteps"),
}


def version(package: str) -> str:
    """Finds the version of a package under any of its names; "" if it is not installed."""
    for name in _NAMES.get(package, (package,)):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


class _NotInstalledError(UserError):
    """TensorFlow is not installed. Where a program noticed that is of no interest."""

    def __init__(self) -> None:
        super().__init__(
            f"TensorFlow is not installed in {sys.prefix}: run "
            f'{sys.executable} -m pip install "ooodist[cpu]", or "ooodist[gpu]" for NVIDIA GPUs'
        )


def check_tensorflow() -> None:
    """Raises UserError if TensorFlow is not installed, without importing it."""
    if importlib.util.find_spec("tensorflow") is None:
        raise _NotInstalledError


@contextmanager
def tensorflow_needed() -> Iterator[None]:
    """Raises UserError if TensorFlow or Keras is imported inside and not installed.

    A script that does not catch it ends with its message alone, without a traceback.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _OF_TENSORFLOW:
            raise
        _hide_traceback()
        raise _NotInstalledError from None


@contextmanager
def importing_tensorflow() -> Iterator[None]:
    """``tensorflow_needed`` for imports alone, which are made quicker.

    A tenth of TensorFlow's seconds is spent on garbage collection, and imports leave no garbage.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with tensorflow_needed():
            yield
    finally:
        if was_enabled:
            gc.enable()


def _hide_traceback() -> None:
    before = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, _NotInstalledError):
            sys.stderr.write(f"ooodist: error: {error}\n")
        else:
            before(kind, error, trace)

    sys.excepthook = show
