"""The file format of a model in a zoo: a ``.keras`` file that ``keras.models.load_model`` opens.

Besides Keras's own members, it has ``ooodist-zoo.json``, which is all that an index needs::

    version    version of this format
    meta       name, task, data set, tags, metrics and so on: Meta
    outline    operators and the shapes of their weights: ooodist.transfer.graph.operators

and ``ooodist-graph.json``, which is many times as large and slow to read::

    graph      operators, weights and the spaces that they run over: ooodist.transfer.graph.graph
    places     data set of each weight, by name, in the member model.weights.h5
    answers    outputs of the model for random inputs: ooodist.transfer.answers; may be missing

Versions 1 and 2 have all of this but the outline in the first member.

So a model is read without Keras, which would have to build it first: the graph comes from checked
JSON and the weights from HDF5. Nothing that is read can run code. Files may come from anyone, so
sizes are bounded and shapes checked before anything is allocated; every fault in a file raises
UserError. (HDF5 itself is read by a C library, which is trusted to survive damaged files.)

Optimizer state is left out: a model in a zoo is only a starting point, and Adam's state is twice as
large as the model.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import h5py
import numpy as np

from ooodist.checkpoint.archive import (
    CONFIG_MEMBER,
    METADATA_MEMBER,
    WEIGHTS_MEMBER,
    values_of,
)
from ooodist.errors import UserError
from ooodist.transfer import answers as questioning
from ooodist.transfer.answers import Answers
from ooodist.transfer.graph.graph import Graph, Weight
from ooodist.transfer.graph.operators import Outline, outline_of, plain_of
from ooodist.util import yaml_dataclass
from ooodist.util.digest import file_digest, hex_digest
from ooodist.util.replacing import replacing
from ooodist.zoo import metrics
from ooodist.zoo.reading.bounded_json import MOST_TEXT
from ooodist.zoo.reading.graph_json import read_graph
from ooodist.zoo.reading.hdf5_values import plain_dataset
from ooodist.zoo.reading.members import GRAPH_MEMBER, MEMBER, opened, read_json
from ooodist.zoo.reading.outline_json import read_outline

if TYPE_CHECKING:
    import keras

VERSION = 3
_WITHOUT_OUTLINE = 2
_WITH_ACCURACY = 1  # the version whose metadata has an accuracy in place of metrics
SHARED_KEY = "shared_object_id"  # marks objects in the config that layers share
ENDING = ".keras"  # suffix of the model files

MOST_TEXTS = 100  # tags or users


@dataclass(frozen=True)
class Meta:
    """Metadata of a model.

    Attributes:
        name: human-readable name.
        task: task such as ``image classification``; empty if unknown.
        dataset: data set that it was trained on; empty if unknown.
        tags: free-form labels.
        access: users who may use it; empty for everybody.
        metrics: what was measured on held-out data, by name: see :mod:`ooodist.zoo.metrics`.
        parent: id of the model that it was warm-started from; None if it started cold.
        judged_by: the metric that decides how good it is; empty for that of its task.
    """

    name: str = ""
    task: str = ""
    dataset: str = ""
    tags: tuple[str, ...] = ()
    access: tuple[str, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    parent: str | None = None
    judged_by: str = ""


@dataclass(frozen=True)
class Entry:
    """The content of a model file, apart from the weights.

    Attributes:
        meta: metadata, by which models are selected.
        graph: graph for matching the model and for transforming its weights.
        places: data set in the HDF5 member, by name of each weight in the graph.
        answers: outputs to compare those of a child with; None if unknown.
    """

    meta: Meta
    graph: Graph
    places: Mapping[str, str]
    answers: Answers | None = None


@dataclass(frozen=True)
class Checked:
    """What a zoo needs of a whole model file.

    Attributes:
        meta: metadata of the model.
        outline: its operators and the shapes of their weights.
        digest: digest of the file, as :func:`digest` returns it.
    """

    meta: Meta
    outline: Outline
    digest: str


def write(file: Path, model: keras.Model, meta: Meta, graph: Graph) -> None:
    """Writes a model to a file, which gets its name only once it is complete and on disk.

    The optimizer is detached from the model while it is saved: do not train it at the same time.

    Args:
        file: path with the suffix ``.keras``; an existing file is replaced.
        model: any model that Keras can save.
        meta: metadata of the model.
        graph: graph of the model; weights missing from it can be loaded by Keras only.

    Raises:
        UserError: the metadata is invalid, the model does not save a weight of the graph
            unchanged, or the file cannot be written.
    """
    check_meta(meta)
    with replacing(file, "model file") as temporary:
        _save_without_optimizer(model, temporary)
        answers = questioning.ask(model, graph)
        outline = plain_of(outline_of(graph))
        head = {"version": VERSION, "meta": yaml_dataclass.plain(meta), "outline": outline}
        content = {
            "graph": yaml_dataclass.plain(graph),
            "places": _find_places(temporary, model, graph),
        }
        if answers is not None:
            content["answers"] = yaml_dataclass.plain(answers)
        with zipfile.ZipFile(temporary, "a", zipfile.ZIP_DEFLATED) as archive:
            for member, value in ((GRAPH_MEMBER, content), (MEMBER, head)):
                text = json.dumps(value, separators=(",", ":"), allow_nan=False)
                archive.writestr(member, text)


def read(source: Path | BinaryIO) -> Entry:
    """Reads the entry from a model file, without the weights.

    Args:
        source: a path, or a seekable file opened for reading.

    Raises:
        UserError: the file cannot be read, is damaged, or was not made for a zoo.
    """
    with opened(source) as archive:
        return _entry(archive)


def read_for_index(source: Path | BinaryIO) -> tuple[Meta, Outline]:
    """Reads the metadata and the outline, in a small part of the time of :func:`read`.

    That the outline is that of the graph is left to whoever reads the graph.

    Raises:
        UserError: as in :func:`read`.
    """
    with opened(source) as archive:
        meta, content = _head(archive)
        if content["version"] > _WITHOUT_OUTLINE:
            return meta, read_outline(content["outline"])
        return meta, outline_of(_entry(archive).graph)


def read_with_weights(source: Path | BinaryIO) -> tuple[Entry, dict[str, np.ndarray]]:
    """Reads the entry, like :func:`read`, and the weights of the graph by name.

    The weights have the shapes of the graph and the dtypes of the file.

    Raises:
        UserError: the file is damaged, or its weights do not fit the graph.
    """
    with opened(source) as archive:
        entry = _entry(archive)
        return entry, dict(_weights(archive, entry))


def check(source: Path | BinaryIO) -> Checked:
    """Checks every byte, and that weights are finite, and returns what a zoo needs to add it.

    Raises:
        UserError: any part is damaged or does not fit the graph, or a weight is not finite.
    """
    with opened(source) as archive:
        if damaged := archive.testzip():
            raise UserError(f"its member {damaged} is not whole")
        read_json(archive, CONFIG_MEMBER)
        entry = _entry(archive)
        for weight, array in _weights(archive, entry):
            if array.dtype.kind not in "iub" and not np.isfinite(array).all():
                raise UserError(f"weight {weight} is not finite; train with a lower learning rate")
    return Checked(entry.meta, outline_of(entry.graph), digest(source))


def digest(source: Path | BinaryIO) -> str:
    """A SHA-256 digest of a model file, in hex, that does not change when it is saved anew.

    Left out is what changes with each save: the date, and the memory addresses by which the config
    identifies shared objects, which are renumbered in order of first appearance.

    Raises:
        UserError: as in :func:`read`.
    """
    with opened(source) as archive:
        config = json.dumps(_numbered_anew(read_json(archive, CONFIG_MEMBER), {}), sort_keys=True)
        parts = {CONFIG_MEMBER: hex_digest(config)}
        for name in set(archive.namelist()) - {METADATA_MEMBER, CONFIG_MEMBER}:
            with archive.open(name) as content:
                parts[name] = file_digest(content)
    return hex_digest("".join(f"{name}\0{part}\n" for name, part in sorted(parts.items())))


def check_meta(meta: Meta) -> None:
    """Raises UserError for too many, too long or unprintable texts, or invalid metrics."""
    texts = {"tags": meta.tags, "access": meta.access, "parent": (meta.parent or "",)}
    texts |= {"name": (meta.name,), "task": (meta.task,), "dataset": (meta.dataset,)}
    texts |= {"metrics": tuple(meta.metrics)}
    for key, values in texts.items():
        if len(values) > MOST_TEXTS:
            raise UserError(f"{key} has {len(values)} texts; there may be {MOST_TEXTS}")
        for text in values:
            if len(text) > MOST_TEXT or not text.isprintable():  # lone surrogates are unprintable
                raise UserError(
                    f"{key} is {text[:40]!r}, of {len(text)} characters; give at most {MOST_TEXT} "
                    "characters that can be printed"
                )
    for name, value in meta.metrics.items():
        metrics.check(name, value)
    if meta.judged_by and metrics.judge_of(meta) != meta.judged_by:
        names = ", ".join(filter(metrics.kind_of, meta.metrics))
        raise UserError(
            f"judged_by is {meta.judged_by[:40]!r}; it must be one of the known metrics of the "
            f"model ({names[:200] or 'it has none'}), or empty for that of its task"
        )


def _save_without_optimizer(model: keras.Model, file: Path) -> None:
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return model.save(file)
    model.optimizer = None
    try:
        model.save(file)
    finally:
        model.optimizer = optimizer


def _find_places(file: Path, model: keras.Model, graph: Graph) -> dict[str, str]:
    """Finds the data set of each weight, by equal shape, dtype and bytes.

    The names that Keras gives them in the file are an implementation detail. For weights with
    equal content any of their data sets will do.
    """
    from ooodist.step.backward import named_variables  # imports TensorFlow

    by_name = named_variables(model)
    places: dict[str, str] = {}
    with zipfile.ZipFile(file) as archive, _hdf5(archive) as store:
        names: list[str] = []
        store.visit(names.append)
        stored = [name for name in names if isinstance(store[name], h5py.Dataset)]
        by_content = {_content_of(values_of(store[name])): name for name in stored}
        for weight in _weights_of(graph):
            if weight.name not in by_name:
                raise UserError(f"model {model.name} has no weight {weight.name}; give its graph")
            place = by_content.get(_content_of(np.asarray(by_name[weight.name].numpy())))
            if place is None:
                raise UserError(
                    f"model {model.name} does not save its weight {weight.name} as it is, so the "
                    "zoo cannot read it; remove save_own_variables from the layer"
                )
            places[weight.name] = place
    return places


def _content_of(array: np.ndarray) -> tuple[Any, ...]:
    return array.shape, str(array.dtype), hex_digest(array.tobytes())


# Reading files that may be hostile


def _weights_of(graph: Graph) -> Iterator[Weight]:
    return (weight for node in graph.nodes for weight in node.weights)


def _head(archive: zipfile.ZipFile) -> tuple[Meta, dict[str, Any]]:
    """The metadata of a file, and everything in that member."""
    content = read_json(archive, MEMBER)
    said, version = content["meta"], content["version"]
    if version not in range(1, VERSION + 1):
        other = f"version {version!r}, where this ooodist reads 1 to {VERSION}"
        raise UserError(f"{MEMBER} is of {other}; add the model anew")
    if version == _WITH_ACCURACY:
        accuracy = said.pop("accuracy", None)
        said["metrics"] = {} if accuracy is None else {"accuracy": accuracy}
    meta = yaml_dataclass.read(Meta, said, "meta")
    check_meta(meta)
    return meta, content


def _entry(archive: zipfile.ZipFile) -> Entry:
    meta, head = _head(archive)
    content = head
    if head["version"] > _WITHOUT_OUTLINE:
        content = read_json(archive, GRAPH_MEMBER)
    graph = read_graph(content["graph"])
    if content is not head and head["outline"] != plain_of(outline_of(graph)):
        raise UserError("its outline is not that of its graph; add the model anew")
    places = content["places"]
    for weight in _weights_of(graph):
        place = places.get(weight.name)
        if not isinstance(place, str) or len(place) > MOST_TEXT:  # groups may contain themselves
            raise UserError(
                f"weight {weight.name} has no place, or one of over {MOST_TEXT} letters"
            )
    answers = None
    if "answers" in content:
        answers = yaml_dataclass.read(Answers, content["answers"], "answers")
        questioning.check(answers)
    return Entry(meta, graph, places, answers)


def _numbered_anew(value: Any, numbers: dict[Any, int]) -> Any:
    """Renumbers the shared objects of a config 0, 1, ... in order of first appearance."""
    if isinstance(value, list):
        return [_numbered_anew(each, numbers) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: numbers.setdefault(json.dumps(each), len(numbers))
        if key == SHARED_KEY
        else _numbered_anew(each, numbers)
        for key, each in value.items()
    }


@contextlib.contextmanager
def _hdf5(archive: zipfile.ZipFile) -> Iterator[h5py.File]:
    """Unpacks the weights to a temporary file, as HDF5 needs random access.

    The file has no name, so a killed process leaves nothing behind.
    """
    with tempfile.TemporaryFile() as unpacked:
        with archive.open(WEIGHTS_MEMBER) as packed:
            shutil.copyfileobj(packed, unpacked, 2**20)
        with h5py.File(unpacked, "r") as store:
            yield store


def _weights(archive: zipfile.ZipFile, entry: Entry) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the names and values of the graph's weights, one at a time."""
    left = archive.getinfo(WEIGHTS_MEMBER).file_size
    with _hdf5(archive) as store:
        for weight in _weights_of(entry.graph):
            stored = plain_dataset(store, entry.places[weight.name])
            if stored.shape != weight.shape:
                is_not = f"shape {stored.shape}, not {weight.shape}"
                raise UserError(f"weight {weight.name} has {is_not}")
            left -= stored.nbytes
            if left < 0:  # several weights share one place
                raise UserError(f"its weights are larger than {WEIGHTS_MEMBER}")
            yield weight.name, values_of(stored)
