"""Graphs as JSON: what is written is read, and what contradicts itself is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.transfer.graph.graph import Graph
from ooodist.util import yaml_dataclass
from ooodist.zoo.reading.graph_json import MOST_NODES, read_graph
from tests.processor_time import fastest
from tests.zoo.entries import chain

graphs = st.lists(st.integers(1, 9), min_size=1, max_size=6).map(chain)


@given(graphs)
def test_a_graph_is_read_back(graph: Graph) -> None:
    assert read_graph(json.loads(json.dumps(yaml_dataclass.plain(graph)))) == graph


def test_a_graph_of_a_thousand_operators_is_read_fast() -> None:
    graph = chain([16] * 1000)
    text = json.dumps(yaml_dataclass.plain(graph))
    assert len(read_graph(json.loads(text)).nodes) == 1000
    assert fastest(lambda: read_graph(json.loads(text)), runs=3) < 0.2


def set_at(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy of a plain value with another value somewhere inside."""
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = set_at(value[path[0]], path[1:], new)
    return copy


AXIS = ("nodes", 1, "weights", 0, "axes", 0)
CONTRADICTIONS: list[tuple[tuple[str | int, ...], Any, str]] = [
    (("nodes", 1, "inputs"), [1], "operator 1 reads operator 1"),
    (("nodes", 1, "inputs"), [-1], "'-1' in the graph is not"),
    (("nodes", 1, "weights", 1, "name"), "layer1/kernel", "two weights have the name"),
    (("nodes", 1, "settings"), {"strides": [[1]]}, "as a setting"),
    (("nodes", 1, "settings"), {"strides": None}, "as a setting"),
    (("nodes", 1, "op"), "\x1b[2J", "in the graph is not"),
    ((*AXIS, "size"), 4, "has an axis of 4, but its spaces have 3"),
    ((*AXIS, "size"), 2**60, "in the graph is not"),
    ((*AXIS, "size"), True, "'True' in the graph is not"),
    ((*AXIS, "role"), "inside", "'inside' in the graph is not"),
    ((*AXIS, "segments", 0, "space"), 2, "runs over space 2 of 2"),
    ((*AXIS, "segments", 0, "place"), [0], "in a grid of"),
    ((*AXIS, "segments", 0, "inner"), 2, "its spaces have 6"),
    (("spaces",), [], "runs over space 0 of 0"),
    (("spaces", 0, "kind"), ["units"], "in the graph is not"),
    (("nodes",), {}, "in the graph is not"),
    (("nodes", 0), {}, "wrong or missing key"),
    (("nodes", 0), {"name": "a", "op": "b", "more": 1}, "wrong or missing key: 'more'"),
    ((), [], "in the graph is not"),
]


@pytest.mark.parametrize(("path", "value", "message"), CONTRADICTIONS)
def test_a_graph_that_contradicts_itself_is_refused(
    path: tuple[str | int, ...], value: Any, message: str
) -> None:
    plain = yaml_dataclass.plain(chain([3, 4]))
    with pytest.raises(UserError, match=message.replace("[", r"\[")):
        read_graph(set_at(plain, path, value))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(st.data())
def test_any_other_value_anywhere_is_a_graph_or_a_user_error(data: st.DataObject) -> None:
    value = plain = yaml_dataclass.plain(chain([3, 4, 2]))
    path: tuple[Any, ...] = ()
    while value and isinstance(value, dict | list) and data.draw(st.integers(0, 3)):
        keys = sorted(value) if isinstance(value, dict) else range(len(value))
        path = (*path, data.draw(st.sampled_from(keys)))
        value = value[path[-1]]
    try:
        graph = read_graph(set_at(plain, path, data.draw(json_values)))
    except UserError:
        return
    assert isinstance(graph, Graph)
    hash(graph.spaces)


def test_a_graph_with_too_many_operators_is_refused() -> None:
    many = [{"name": "n", "op": "N"}] * (MOST_NODES + 1)
    with pytest.raises(UserError, match="20001 operators"):
        read_graph({"nodes": many, "spaces": []})
