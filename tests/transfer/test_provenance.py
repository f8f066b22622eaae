"""Where a model's start weights come from: how it is noted, and kept in a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import keras
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ooodist
from ooodist.errors import UserError
from ooodist.step.backward import variable_names
from ooodist.transfer import provenance
from ooodist.transfer.mapping.report import Action, TensorReport
from ooodist.transfer.provenance import WarmStart
from tests.zoo.starts import network, zoo_of

NOT_COPIED = {"fresh", "identity", "widened"}
numbers = st.floats(0, 1)
reports = st.builds(
    TensorReport,
    name=st.text(),
    action=st.sampled_from(get_args(Action)),
    parameters=st.integers(0, 10**12),
    source=st.text(),
)
starts = st.builds(
    WarmStart,
    parent=st.text(),
    name=st.text(),
    score=numbers,
    carried=numbers,
    tensors=st.lists(reports, max_size=5).map(tuple),
    lower_rate=numbers,
    ramp_steps=st.integers(1, 10**6),
    seconds=st.dictionaries(st.sampled_from(["query", "fetch", "probe"]), numbers),
    exact=st.booleans(),
    difference=st.none() | numbers,
    departures=st.lists(st.text(), max_size=3).map(tuple),
)


@given(starts)
def test_any_start_survives_a_checkpoint(start: WarmStart) -> None:
    model = keras.Model()
    provenance.note(model, start)
    plain = json.loads(json.dumps(provenance.plain_of(model)))
    assert provenance.read(plain) == start


@given(st.dictionaries(st.text(), st.sampled_from(get_args(Action))))
def test_what_is_to_be_trained_first(actions: dict[str, Action]) -> None:
    tensors = tuple(TensorReport(name, action, 1) for name, action in actions.items())
    start = WarmStart("p", "n", 1.0, 1.0, tensors)
    expected = {name for name, action in actions.items() if action in NOT_COPIED}
    assert start.not_copied == expected
    model = keras.Model()
    provenance.note(model, start)
    assert provenance.not_copied(model) == expected


def test_a_cold_model_has_none() -> None:
    model = network()
    assert provenance.start_of(model) is None
    assert provenance.plain_of(model) is None
    assert provenance.not_copied(model) == frozenset()


def test_a_damaged_note_is_refused() -> None:
    with pytest.raises(UserError):
        provenance.read({"parent": "p"})


def test_the_names_are_those_that_elastic_training_has(tmp_path: Path) -> None:
    """Both number layers of the same name."""
    model = network(8, 2, seed=1)
    found = ooodist.warm_start(model, zoo_of(tmp_path, network()))
    assert found is not None
    names = variable_names(model.trainable_variables)
    of_those_trained = found.not_copied & set(names)
    assert of_those_trained
    moving = {name for name in found.not_copied if "/moving_" in name}
    assert found.not_copied == of_those_trained | moving


def test_a_saved_model_knows_nothing_of_it(tmp_path: Path) -> None:
    """The note is for those who train now; the zoo has it as the model's parent."""
    model = network(seed=1)
    provenance.note(model, WarmStart("p", "n", 1.0, 1.0, ()))
    model.save(tmp_path / "model.keras")
    assert provenance.start_of(keras.models.load_model(tmp_path / "model.keras")) is None


def test_the_last_start_counts(tmp_path: Path) -> None:
    model = network(seed=1)
    first = ooodist.warm_start(model, zoo_of(tmp_path / "one", network()))
    second = ooodist.warm_start(model, zoo_of(tmp_path / "two", network(seed=2)))
    assert first is not None
    assert provenance.start_of(model) is second
    assert second is not None
    assert second.parent != first.parent
