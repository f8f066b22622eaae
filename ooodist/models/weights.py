"""Loads initial weights from a file."""

import logging
import tempfile
import warnings
import zipfile
from collections.abc import Collection, Iterator
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


def load_start_weights(model: keras.Model, path: str, heads: Collection[str] = ()) -> None:
    """Sets the weights of ``model`` to those in the ``.keras`` or ``.weights.h5`` file.

    The last layer may have other shapes there, as for other classes: it stays as initialized.
    Weights that have no value yet, or not on this rank, stay without one.

    Args:
        heads: names of layers that the file may have in the place of the last one. If it has
            one of them, the other layers are found by their names.

    Raises UserError if the file cannot be read, or if it does not hold exactly the other weights of
    this model; the error names the first layer that differs.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"model.weights is {path!r}, but there is no such file; check the path.")
    try:
        saved = _saved_layers(file)
        has_other = {layer.name for layer in saved.values()} & set(heads)
        has_other -= {layer.name for layer in model.layers}
        left: list[keras.Variable] | None = (
            _load_under_another_head(model, file, heads) if has_other else _load(model, file)
        )
    except (OSError, KeyError, NotImplementedError, zipfile.BadZipFile) as error:
        raise UserError(
            f"model.weights is {path!r}, which is no complete Keras weights file ({error}); "
            "write it again with model.save or model.save_weights."
        ) from error
    number = len(model.weights)
    is_whole = bool(has_other) or _num_weights(saved) == number
    if left is None or len(left) == number or not is_whole:
        raise _does_not_fit(path, model, _first_difference(model, saved))
    if any(map(has_value, model.weights)):
        kept = ", ".join(weight.path for weight in left)
        why = "have other shapes there"
        if has_other:
            why = f"are not there, but {', '.join(sorted(has_other))} of another task,"
        except_for = f"; {kept} {why} and start as initialized"
        logger.info(
            "model %s starts from the weights in %s%s", model.name, file, except_for if left else ""
        )


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


def _load_under_another_head(
    model: keras.Model, file: Path, heads: Collection[str]
) -> list[keras.Variable]:
    """Loads all layers but the last one by their names, and returns the weights of that.

    Of a layer the file may have more weights, as the bias of a table that is read in reverse.

    Raises UserError if another layer is missing there, or has other shapes, or is not in the model.
    """
    last = {id(weight) for weight in _last_weights(model)}
    with _open(file) as content:
        saved = _named(content)
        pairs: list[tuple[keras.Variable, h5py.Dataset]] = []
        left: list[keras.Variable] = []
        for name, own in _own_weights(model).items():
            found = saved.pop(name, [])[: len(own)]
            if {id(weight) for weight in own} <= last:
                left += own
                continue
            here, there = (_SavedLayer(name, tuple(map(_shape, each))) for each in (own, found))
            if here != there:
                raise _does_not_fit(
                    file,
                    model,
                    f"layer {name} has {_shapes(here)} in the model, but {_shapes(there)} in the "
                    "file",
                )
            pairs += zip(own, found, strict=True)
        if others := [name for name in saved if name.partition("/")[0] not in heads]:
            raise _does_not_fit(file, model, f"the file has layer {others[0]}, the model does not")
        for weight, data in pairs:
            if has_value(weight):
                weight.assign(data[()])
    return left


def _own_weights(model: keras.Model) -> dict[str, list[keras.Variable]]:
    """Of each layer, by name, the weights that no layer in it has."""
    layers = dict(layers_with_weights(model))
    inner: dict[str, set[int]] = {name: set() for name in layers}
    for name, layer in layers.items():
        inner.get(name.rpartition("/")[0], set()).update(map(id, layer.weights))
    own = {n: [w for w in layer.weights if id(w) not in inner[n]] for n, layer in layers.items()}
    return {name: weights for name, weights in own.items() if weights}


def _named(content: h5py.File) -> dict[str, list[h5py.Dataset]]:
    """The arrays of each layer in a weights file, by name, as ``attention/query``."""
    layers = _layers_in(content)

    def name_of(place: str) -> str:
        parts = place.split("/")
        outer = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
        return "/".join(layers[each][0] for each in outer if each in layers)

    return {name_of(place): arrays for place, (_, arrays) in layers.items() if arrays}


def _last_weights(model: keras.Model) -> list[keras.Variable]:
    """Those of the last layer that has any."""
    *_, last = [[], *(layer.weights for _, layer in layers_with_weights(model))]
    return last


def _saved_layers(file: Path) -> dict[str, _SavedLayer]:
    """The layers in a weights file by their place in it, such as ``layers/dense_1``."""
    with _open(file) as content:
        return {
            place: _SavedLayer(name, tuple(map(_shape, arrays)))
            for place, (name, arrays) in _layers_in(content).items()
            if arrays
        }


def _layers_in(content: h5py.File) -> dict[str, tuple[str, list[h5py.Dataset]]]:
    """Name and arrays of each layer, also of those that have none, by its place in the file."""
    layers: dict[str, tuple[str, list[h5py.Dataset]]] = {}

    def visit(path: str, node: h5py.Group | h5py.Dataset) -> None:
        place, _, last = path.rpartition("/")
        if isinstance(node, h5py.Group) and last == "vars" and not path.startswith("optimizer/"):
            arrays = [node[key] for key in sorted(node, key=_variable_order)]
            layers[place] = str(node.attrs.get("name", place)), arrays

    content.visititems(visit)
    return layers


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


def _does_not_fit(path: str | Path, model: keras.Model, difference: str) -> UserError:
    return UserError(
        f"model.weights is '{path}', which does not fit model {model.name}: {difference}. Give the "
        "model the sizes that the file was written with (only the last layer may have others), or "
        "leave model.weights out."
    )


def _shape(array: keras.Variable | h5py.Dataset) -> tuple[int, ...]:
    return tuple(array.shape)


def _shapes(layer: _SavedLayer) -> str:
    return f"shapes {', '.join(map(str, layer.shapes))}"
