"""The keys ``preprocess`` and ``augment`` of data: what is done to x before the model sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ooodist.config.named_arguments import NamedArguments, read_all_named, write_all_named

Layers = tuple[NamedArguments, ...]


def _read(value: Any, path: str) -> Layers:
    named = read_all_named(value, path)
    if not named:
        return ()
    from ooodist.config import keras_layers

    return tuple(
        keras_layers.check_layer(each, f"{path}[{index}]") for index, each in enumerate(named)
    )


def _read_augment_of_digits(value: Any, path: str) -> bool | Layers:
    return value if isinstance(value, bool) else _read(value, path)


def write(value: bool | Layers) -> Any:
    """What is read as this value."""
    return value if isinstance(value, bool) else write_all_named(value)


READ_AUGMENT_OF_DIGITS = {"reader": _read_augment_of_digits, "writer": write}


@dataclass(frozen=True, kw_only=True)
class DataLayers:
    """``preprocess``: layers of Keras by name with their arguments, and functions
    ``package.module:function`` of x, through which x goes in training and validation.
    ``augment``: the same behind them, in training only and with random numbers of each sample's
    own, which depend on the job's seed and the sample's place in the training alone."""

    preprocess: Layers = field(default=(), metadata={"reader": _read, "writer": write})
    augment: Any = field(default=(), metadata={"reader": _read, "writer": write})
