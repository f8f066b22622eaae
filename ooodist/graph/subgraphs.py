"""Makes functions of parts of a graph that was traced once and is never run itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from ooodist.compat.tensorflow_graph import call_flat, capture, captures_of
from ooodist.graph.buffers import workspace_bytes
from ooodist.graph.ops import Subgraph


class Part(NamedTuple):
    """The part of a traced graph that a function computes.

    Attributes:
        feeds: tensors that it is given.
        fetches: tensors that it computes from them.
        effects: ops that it runs for their side effects.
    """

    feeds: Sequence[tf.Tensor]
    fetches: Sequence[tf.Tensor]
    effects: Sequence[tf.Operation] = ()


class Subgraphs:
    """The parts of a traced graph.

    Args:
        graph: of a concrete function.

    Attributes:
        ops: all its ops, in an order in which they can run.
    """

    def __init__(self, graph: Any) -> None:
        self.ops = Subgraph(graph.get_operations()).ops
        self._captures = captures_of(graph)
        self._graph_def = graph.as_graph_def()

    def function(
        self, part: Part, then: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]] | None = None
    ) -> Callable[..., list[tf.Tensor]]:
        """A function from feeds to fetches, or to what ``then`` makes of the fetches."""
        feeds, fetches, _ = part
        fed = {tensor.name for tensor in feeds}
        names = self._needed_names(part)
        nodes = [_within(node, names) for node in self._graph_def.node if node.name in names]
        graph_def = tf.compat.v1.GraphDef(
            node=nodes, library=self._graph_def.library, versions=self._graph_def.versions
        )
        used = {_as_tensor_name(text) for node in nodes for text in node.input}
        # A tensor that is fed may be fetched unchanged.
        made = [tensor for tensor in fetches if tensor.name not in fed]

        def run(*values: tf.Tensor) -> list[tf.Tensor]:
            given = dict(zip((tensor.name for tensor in feeds), values, strict=True))
            for name, outer in self._captures.items():
                if name in used:
                    given[name] = capture(outer)
            mapped = {name: value for name, value in given.items() if name in used}
            results = tf.graph_util.import_graph_def(
                graph_def,
                input_map=mapped,
                return_elements=[tensor.name for tensor in made],
                name="",
            )
            by_name = given | dict(zip((tensor.name for tensor in made), results, strict=True))
            found = [by_name[tensor.name] for tensor in fetches]
            return found if then is None else then(found)

        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in feeds]
        concrete = tf.function(run, autograph=False).get_concrete_function(*specs)
        return lambda *values: call_flat(concrete, values)

    def workspace_bytes(self, part: Part, saved: Sequence[tf.Tensor]) -> int:
        """The bytes that a part needs besides its feeds and its saved tensors."""
        names = self._needed_names(part)
        return workspace_bytes([op for op in self.ops if op.name in names], saved)

    def _needed_names(self, part: Part) -> set[str]:
        """The names of the ops to run, given the feeds; captures are fed as well."""
        given = {tensor.name for tensor in part.feeds} | set(self._captures)
        names: set[str] = set()
        left = [tensor.op for tensor in part.fetches if tensor.name not in given]
        left.extend(part.effects)
        while left:
            op = left.pop()
            if op.name not in names:
                names.add(op.name)
                left.extend(tensor.op for tensor in op.inputs if tensor.name not in given)
        return names


def _within(node: Any, names: set[str]) -> Any:
    """A copy of the node without control inputs from ops outside of ``names``."""
    copy = type(node)()
    copy.CopyFrom(node)
    del copy.input[:]
    copy.input.extend(text for text in node.input if not text.startswith("^") or text[1:] in names)
    copy.attr.pop("_class", None)
    return copy


def _as_tensor_name(text: str) -> str:
    """The tensor name of a node's input: ``op:0`` for ``op``."""
    return text if ":" in text else f"{text}:0"
