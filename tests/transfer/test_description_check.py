"""Right descriptions pass, and wrong ones are found, whatever is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import keras
import pytest

import ooodist
from ooodist.errors import UserError
from ooodist.transfer.description_check import check_description
from ooodist.transfer.graph.description import DESCRIBED, LayerDescription, describe_layer
from tests.jobs import ROOT
from tests.transfer import own_layers
from tests.transfer.own_layers import (
    ATTENTION,
    ATTENTION_WEIGHTS,
    NORM,
    NORM_OF_ANY_WIDTH,
    SCALE,
    Attention,
    Cached,
    Multiplier,
    Norm,
    Scale,
    Table,
)


@pytest.fixture(autouse=True)
def _described() -> Iterator[None]:
    before = dict(DESCRIBED)
    own_layers.describe()
    yield
    DESCRIBED.clear()
    DESCRIBED.update(before)


LAYERS: dict[str, tuple[Callable[[int], Any], int]] = {
    "scale": (lambda units: Scale(), 0),
    "scale and offset": (lambda units: Scale(offset=True), 0),
    "norm": (lambda units: Norm(), 0),
    "attention, more groups": (lambda units: Attention(units // 4, 2, 3, 2), 0),
    "attention, more heads in a group": (lambda units: Attention(2, units // 4, 3, 2), 0),
    "attention, wider heads": (lambda units: Attention(2, 2, units // 2, units + 1), 0),
    "table": (Table, 9),
    "several numbers of each unit": (lambda units: Multiplier(), 0),
    "like its base class": (lambda units: Cached(units // 2, 3), 0),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_right_description_passes(name: str) -> None:
    make, below = LAYERS[name]
    check_description(make, below=below)


WRONG: dict[str, tuple[Callable[[int], Any], LayerDescription]] = {
    "summed, but each on its own": (
        lambda units: Attention(2, 2, 3, 2),
        replace(ATTENTION, weights=ATTENTION_WEIGHTS | {"q": "x groups* dot(key)"}),
    ),
    "each on its own, but summed": (
        lambda units: Scale(),
        LayerDescription({"gamma": "sum(x)"}, output="x"),
    ),
    "products without dot": (
        lambda units: Attention(2, 2, units // 2, 2),
        replace(ATTENTION, weights=ATTENTION_WEIGHTS | {"q": "sum(x) groups* key"}),
    ),
    "another order of heads": (
        lambda units: Attention(2, units // 4, 3, 2),
        replace(
            ATTENTION,
            weights=ATTENTION_WEIGHTS | {"q": "sum(x) a dot(key)", "o": "sum(a) sum(value) out"},
        ),
    ),
    "not added to one": (
        lambda units: Norm(),
        replace(NORM_OF_ANY_WIDTH, weights={"scale": "x"}),
    ),
    "not proportional": (lambda units: Scale(offset=True), replace(SCALE, scaling=("gamma",))),
    "repeated in another order": (
        lambda units: Attention(2, units // 4, 3, 2),
        replace(ATTENTION, weights=ATTENTION_WEIGHTS | {"k": "key sum(y) groups"}),
    ),
    "not averaged": (lambda units: Norm(), replace(NORM, averaged=())),
    "the wrong input": (
        lambda units: Attention(2, 2, 3, 2),
        replace(ATTENTION, inputs={"query": "y", "others": "x"}),
    ),
    "the wrong output": (
        lambda units: Attention(2, 2, 3, 2),
        replace(ATTENTION, output="value", scaling=()),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_description_is_found(name: str) -> None:
    make, description = WRONG[name]
    describe_layer(type(make(8)), description)
    with pytest.raises(UserError, match=f"{type(make(8)).__name__}"):
        check_description(make)


def test_a_layer_without_a_description_is_named() -> None:
    with pytest.raises(UserError, match=r"Other has no description.*ooodist\.describe_layer"):
        check_description(lambda units: own_layers.undescribed()())


def test_a_subclass_with_another_call_is_not_described() -> None:
    class Twice(Scale):
        def call(self, inputs: Any) -> Any:
            return 2 * super().call(inputs)

    with pytest.raises(UserError, match="Twice has no description, or a call of its own"):
        check_description(lambda units: Twice())


def test_what_does_not_fit_the_layer_is_named() -> None:
    for weights, said in (
        ({"gamma": "x", "beta": "x"}, "a weight .*offset, which is none of gamma, beta"),
        ({"gamma": "x x"}, "gamma has 1 axes, and 2 are named"),
        ({"offset": "x"}, "a weight .*gamma, which is none of offset"),
    ):
        describe_layer(Scale, LayerDescription(weights, output="x"))
        with pytest.raises(UserError, match=f"does not fit layer .*{said}"):
            check_description(lambda units: Scale(offset=True))


def test_the_documentation_has_a_right_one() -> None:
    page = (ROOT / "docs/warm_start.md").read_text("utf-8")
    (code,) = (part for part in page.split("```python\n") if part.startswith("class LayerScale"))
    exec(code.partition("```")[0], {"keras": keras, "ooodist": ooodist})
