"""What a description says is read as it is meant, or refused at once."""

from __future__ import annotations

from typing import Any

import pytest

from ooodist.errors import UserError
from ooodist.transfer.graph.description import LayerDescription, Term


def test_axes_are_read() -> None:
    description = LayerDescription(
        {"q": "1 + sum(x) kv* dot(key)", "table": "rows(words) _ kv", "o": "sum(kv*) out"},
        output="out",
    )
    assert description.terms == {
        "q": (Term("x", "sum"), Term("kv", repeated=True), Term("key", "dot")),
        "table": (Term("words", "rows"), Term("_"), Term("kv")),
        "o": (Term("kv", "sum", repeated=True), Term("out")),
    }
    assert description.one_plus == ("q",)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"weights": {"kernel": "sum(x out"}}, r"'sum\(x' among the axes of kernel"),
        ({"weights": {"kernel": "mean(x) out"}}, r"an axis is a name, or sum\(name\)"),
        ({"weights": {"q": "dot(key) out"}}, "dot.. on an axis of q that is not the last"),
        ({"weights": {"q": "sum(x) kv*"}}, r"has an axis kv\*, and none of kv"),
        ({"weights": {"kernel": "sum(x) out"}, "output": "made"}, "has made as its output"),
        ({"weights": {"scale": "x"}, "averaged": ("y",)}, "has y in averaged"),
        ({"weights": {"s": "x"}, "output": "x", "scaling": ("t",)}, "has t in scaling"),
        (
            {"weights": {"a": "sum(x) y", "b": "sum(y) z"}, "output": "z", "scaling": ("a",)},
            r"has a in scaling, .* axis of the output's units \(z\)",
        ),
        ({"output": "x", "inputs": {"query": "q"}}, "these are q"),
    ],
)
def test_what_contradicts_itself_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        LayerDescription(**given)
