"""The keys ``preprocess`` and ``augment`` of data: what is done to x before the model sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ooodist.config.data_checks import DataSettings
from ooodist.config.named_arguments import NamedArguments, checked_by, write_all_named

Layers = tuple[NamedArguments, ...]


_read = checked_by("keras_layers.check_layer", is_list=True)


def _read_augment_of_digits(value: Any, path: str) -> Any:
    return value if isinstance(value, bool) else _read(value, path)


def write(value: bool | Layers) -> Any:
    """What is read as this value."""
    return value if isinstance(value, bool) else write_all_named(value)


READ_AUGMENT_OF_DIGITS = {"reader": _read_augment_of_digits, "writer": write}


@dataclass(frozen=True, kw_only=True)
class DataLayers(DataSettings):
    """``preprocess``: layers of Keras by name with their arguments, and functions
    ``package.module:function`` of x, through which x goes in training and validation.
    ``augment``: the same behind them, in training only and with random numbers of each sample's
    own, which depend on the job's seed and the sample's place in the training alone."""

    preprocess: Layers = field(default=(), metadata={"reader": _read, "writer": write})
    augment: Any = field(default=(), metadata={"reader": _read, "writer": write})
