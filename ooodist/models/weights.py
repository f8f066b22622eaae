"""Loads initial weights from a file."""

import logging
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import h5py
import keras

from ooodist.compat.keras_deferred import assigning_to_those_with_values, has_value
from ooodist.errors import UserError
from ooodist.models.freezing import layers_with_weights

logger = logging.getLogger("ooodist")

WEIGHTS_IN_ARCHIVE = "model.weights.h5"
"""Name of the weights inside a .keras file."""


@dataclass(frozen=True)
class _SavedLayer:
    name: str
    shapes: tuple[tuple[int, ...], ...]


def load_start_weights(model: keras.Model, path: str) -> None:
    """Sets the weights of ``model`` to those in the ``.keras`` or ``.weights.h5`` file.

    The last layer may have other shapes there, as for other classes: it stays as initialized.
    Weights that have no value yet, or not on this rank, stay without one.

    Raises UserError if the file cannot be read, or if it does not hold exactly the other weights of
    this model; the error names the first layer that differs.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"model.weights is {path!r}, but there is no such file; check the path.")
    try:
        saved = _saved_layers(file)
        left = _load(model, file)
    except (OSError, KeyError, NotImplementedError, zipfile.BadZipFile) as error:
        raise UserError(
            f"model.weights is {path!r}, which is no complete Keras weights file ({error}); "
            "write it again with model.save or model.save_weights."
        ) from error
    number = len(model.weights)
    if left is None or len(left) == number or _num_weights(saved) != number:
        raise UserError(
            f"model.weights is {path!r}, which does not fit model {model.name}: "
            f"{_first_difference(model, saved)}. Give the model the sizes that the file was "
            "written with (only the last layer may have others), or leave model.weights out."
        )
    if any(map(has_value, model.weights)):
        kept = ", ".join(weight.path for weight in left)
        except_for = f"; {kept} have other shapes there and start as initialized" if left else ""
        logger.info("model %s starts from the weights in %s%s", model.name, file, except_for)


def _load(model: keras.Model, file: Path) -> list[keras.Variable] | None:
    """Loads the file into the model.

    Returns:
        the weights of the last layer that do not fit; None if others do not.
    """
    with (
        warnings.catch_warnings(record=True) as caught,
        assigning_to_those_with_values(may_differ=_last_weights(model)) as left,
    ):
        try:
            model.load_weights(file)
        except ValueError:
            return None
    for warning in caught:
        logger.warning("while reading %s: %s", file, warning.message)
    return left


def _last_weights(model: keras.Model) -> list[keras.Variable]:
    """Those of the last layer that has any."""
    *_, last = [[], *(layer.weights for _, layer in layers_with_weights(model))]
    return last


def _saved_layers(file: Path) -> dict[str, _SavedLayer]:
    """The layers in a weights file by their place in it, such as ``layers/dense_1``."""
    layers: dict[str, _SavedLayer] = {}

    def visit(path: str, node: h5py.Group | h5py.Dataset) -> None:
        place, _, last = path.rpartition("/")
        if isinstance(node, h5py.Group) and last == "vars" and not path.startswith("optimizer/"):
            shapes = tuple(node[key].shape for key in sorted(node, key=_variable_order))
            name = str(node.attrs.get("name", place))
            layers[place] = _SavedLayer(name, shapes)

    with _open(file) as content:
        content.visititems(visit)
    return {place: layer for place, layer in layers.items() if layer.shapes}


def _variable_order(key: str) -> tuple[int, str]:
    """A sort key: Keras numbers a layer's variables (10 after 9); users may use words."""
    return (int(key), key) if key.isdecimal() else (-1, key)


@contextmanager
def _open(file: Path) -> Iterator[h5py.File]:
    if file.suffix == ".keras":
        with (
            zipfile.ZipFile(file) as archive,
            archive.open(WEIGHTS_IN_ARCHIVE) as member,
            h5py.File(member) as content,
        ):
            yield content
    else:
        with h5py.File(file) as content:
            yield content


def _num_weights(layers: dict[str, _SavedLayer]) -> int:
    return sum(len(layer.shapes) for layer in layers.values())


def _first_difference(model: keras.Model, saved: dict[str, _SavedLayer]) -> str:
    """Describes the first layer, in the model's order, that the file lacks or has otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        reference = Path(folder) / "expected.weights.h5"
        model.save_weights(reference)
        expected = _saved_layers(reference)
    rank = {layer.name: index for index, layer in enumerate(model.layers)}

    def order(place: str) -> tuple[int, str]:
        outermost = "/".join(place.split("/")[:2])
        layer = expected.get(outermost) or expected.get(place)
        return (rank.get(layer.name, len(rank)) if layer else len(rank), place)

    for place in sorted(expected.keys() | saved.keys(), key=order):
        wanted, found = expected.get(place), saved.get(place)
        if wanted is None and found is not None:
            return f"the file has layer {found.name} with {_shapes(found)}, the model does not"
        if wanted is not None and found is None:
            return f"the model has layer {wanted.name} with {_shapes(wanted)}, the file does not"
        if wanted is not None and found is not None and wanted.shapes != found.shapes:
            return (
                f"layer {wanted.name} has {_shapes(wanted)} in the model, but "
                f"{_shapes(found)} in the file"
            )
    return "Keras could not assign them"


def _shapes(layer: _SavedLayer) -> str:
    return f"shapes {', '.join(map(str, layer.shapes))}"
