"""The layout of a ``.keras`` file: where Keras saves each variable of a model.

Keras walks through a model, and each layer and optimizer puts its variables into a store. Here the
store notes which variable it was given, and reads no value; so this works for variables whose
values another rank has. Whoever knows the layout can write the file, or read a variable from it,
without Keras.

Private names, all of ``keras.src.saving.saving_lib``, and there since Keras 3.10 at least:
``_save_state`` (the walk), ``H5IOStore`` and ``DiskIOStore`` (stores, which the walk insists on),
``_serialize_model_as_json``.
"""

from __future__ import annotations

import contextlib
import functools
import io
import zipfile
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from keras.src.saving import saving_lib

from ooodist.compat.attributes import replaced
from ooodist.compat.keras_optimizer import remember_what_saving_skips


@dataclass
class Layout:
    """What a ``.keras`` file of a model has.

    Attributes:
        groups: the groups of the weights file, each with the name of its layer; "" if it has none.
        values: what each place of the weights file holds: a variable, or an array that its layer
            made for the file. A place is a path such as ``layers/dense/vars/0``.
        assets: the files that layers write, as vocabularies, by their names in the archive.
    """

    groups: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    assets: dict[str, bytes] = field(default_factory=dict)

    def places_of(self, variable: Any) -> tuple[str, ...]:
        """The places of a variable; none if its layer does not save it."""
        return self._places.get(id(variable), ())

    def __post_init__(self) -> None:
        self._places: dict[int, tuple[str, ...]] = {}

    def add(self, place: str, value: Any) -> None:
        """Notes what a place holds."""
        self.values[place] = value
        self._places[id(value)] = (*self._places.get(id(value), ()), place)


def layout_of(model: keras.Model) -> Layout:
    """The layout of a built model; reads no variable that Keras's own layers save."""
    remember_what_saving_skips()
    layout = Layout()
    archive = zipfile.ZipFile(io.BytesIO(), "w")
    assets = saving_lib.DiskIOStore("assets", archive=archive, mode="w")

    def save(optimizer: Any, store: Any) -> None:
        """Stores the variables of an optimizer, in place of their values."""
        for index, variable in enumerate(optimizer.variables):
            store[str(index)] = variable

    with contextlib.ExitStack() as stack:
        optimizer = model.optimizer
        while optimizer is not None:
            own = functools.partial(save, optimizer)
            stack.enter_context(replaced(optimizer, save_own_variables=own))
            optimizer = getattr(optimizer, "inner_optimizer", None)  # of LossScaleOptimizer
        saving_lib._save_state(
            model,
            weights_store=_Notes(layout),
            assets_store=assets,
            inner_path="",
            visited_saveables=set(),
        )
    assets.close()
    for member in archive.infolist():
        if not member.is_dir():
            layout.assets[member.filename] = archive.read(member)
    return layout


def configuration(model: keras.Model) -> tuple[str, str]:
    """The texts of a ``.keras`` file's ``config.json`` and ``metadata.json``.

    They say how to make the model, how it was compiled, and by which Keras.
    """
    config, metadata = saving_lib._serialize_model_as_json(model)
    return config, metadata


class _Notes(saving_lib.H5IOStore):
    """A store that notes what it is given."""

    def __init__(self, layout: Layout) -> None:
        # Without the parent's, which opens a file.
        self._layout = layout
        self._group = ""

    def __bool__(self) -> bool:
        return True

    def make(self, path: str, metadata: dict[str, str] | None = None) -> _Notes:
        self._group = f"{path}/vars".lstrip("/")
        if metadata:  # without, there is a group only for what is in it
            self._layout.groups[self._group] = metadata["name"]
        return self

    def __setitem__(self, key: str, value: Any) -> None:
        self._layout.groups.setdefault(self._group, "")
        if not isinstance(value, keras.Variable):
            value = np.asarray(keras.ops.convert_to_numpy(value))
        self._layout.add(f"{self._group}/{key}", value)
