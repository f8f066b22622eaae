"""Files of the zoo made without Keras, and what tests of zoos do with them."""

from __future__ import annotations

import io
import json
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ooodist.transfer.graph.graph import Axis, Graph, Node, Segment, Space, Weight
from ooodist.transfer.graph.operators import Outline, outline_of, plain_of
from ooodist.util import yaml_dataclass
from ooodist.zoo.entry import VERSION, WEIGHTS_MEMBER, Meta
from ooodist.zoo.reading.members import GRAPH_MEMBER, MEMBER
from ooodist.zoo.storage import Storage
from ooodist.zoo.zoo import Found, Zoo

META = Meta(
    *("A model", "digits", "mnist", ("small", "b"), ("alice",)), {"accuracy": 0.5}, "parent-0123"
)


def chain(widths: list[int], op: str = "Dense") -> Graph:
    """Dense layers of these widths, the first being that of the input."""
    spaces = tuple(Space(width) for width in widths)
    nodes = [Node("input:0", "Input")]
    for number in range(1, len(widths)):
        inputs = Axis(widths[number - 1], "in", (Segment(number - 1),))
        outputs = Axis(widths[number], "out", (Segment(number),))
        weights = (
            Weight(f"layer{number}/kernel", "kernel", (inputs, outputs)),
            Weight(f"layer{number}/bias", "bias", (outputs,)),
        )
        nodes.append(Node(f"layer{number}", op, (number - 1,), weights, {"use_bias": True}))
    return Graph(tuple(nodes), spaces)


def write_plain(
    file: Path,
    graph: Graph,
    meta: Meta = META,
    *,
    store: Callable[[h5py.File], None] | None = None,
    members: dict[str, bytes] | None = None,
    content: Callable[[dict[str, Any]], None] | None = None,
    compression: int = zipfile.ZIP_STORED,
) -> None:
    """A file as the zoo reads it, without Keras; thousands are written in seconds.

    Args:
        file: to write.
        graph: of the model; each weight has its name as its place.
        meta: what is said about it.
        store: makes the HDF5 data sets; else they are of random numbers.
        members: others, or others' contents.
        content: changes what the JSON members have.
        compression: of the archive.
    """
    weights = [weight for node in graph.nodes for weight in node.weights]
    hdf5 = io.BytesIO()
    with h5py.File(hdf5, "w") as opened:
        if store is not None:
            store(opened)
        else:
            for number, weight in enumerate(weights):
                values = np.random.default_rng(number).normal(size=weight.shape)
                opened[weight.name] = values.astype(np.float32)
    said: dict[str, Any] = {
        "version": VERSION,
        "meta": yaml_dataclass.plain(meta),
        "outline": plain_of(outline_of(graph)),
        "graph": yaml_dataclass.plain(graph),
        "places": {weight.name: weight.name for weight in weights},
    }
    if content is not None:
        content(said)
    parts = ("graph", "places", "answers") if said.get("version") == VERSION else ()
    apart = {key: said.pop(key) for key in parts if key in said}
    contents = {
        "metadata.json": b"{}",
        "config.json": b"{}",
        WEIGHTS_MEMBER: hdf5.getvalue(),
        GRAPH_MEMBER: json.dumps(apart).encode(),
        MEMBER: json.dumps(said).encode(),
    } | (members or {})
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, value in contents.items():
            archive.writestr(name, value)


class Adder:
    """Adds models without Keras."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, widths: list[int], meta: Meta, op: str = "Dense") -> Path:
        file = self.folder / f"{uuid.uuid4()}.keras"
        write_plain(file, chain(widths, op), meta)
        return file

    def __call__(self, zoo: Zoo, widths: list[int], op: str = "Dense", **meta: object) -> str:
        return zoo.add(self.file(widths, Meta(**meta), op))  # type: ignore[arg-type]


def outline(widths: list[int], op: str = "Dense") -> Outline:
    return outline_of(chain(widths, op))


def ids(found: list[Found]) -> list[str]:
    return [each.id for each in found]


def models_in(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir() if not file.name.startswith("index.sqlite")}


def sizes(storage: Storage) -> dict[str, int]:
    return {model: state.bytes for model, state in storage.states().items()}
