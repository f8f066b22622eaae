"""The settings under ``data:`` in a job file: one dataclass per kind of data.

Nothing here imports TensorFlow or reads a file: the classes only hold the settings and reject
invalid ones with :class:`ooodist.errors.UserError`. ``KINDS`` maps the ``name`` in the job file to
its class.
"""

from __future__ import annotations

from typing import get_args

from ooodist.config.data_brought import (
    FunctionConfig,
    ImagesConfig,
    NpzConfig,
    TFDSConfig,
    TFRecordConfig,
)
from ooodist.config.data_shipped import (
    DigitsConfig,
    MaskedTextConfig,
    SyntheticConfig,
    TextConfig,
)

DataConfig = (
    DigitsConfig
    | TextConfig
    | MaskedTextConfig
    | SyntheticConfig
    | NpzConfig
    | ImagesConfig
    | TFRecordConfig
    | TFDSConfig
    | FunctionConfig
)

KINDS: dict[str, type] = {kind.name: kind for kind in get_args(DataConfig)}
