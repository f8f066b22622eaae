"""The controller: when it selects, what it keeps, and what a checkpoint brings back."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ooodist
from ooodist.data_parallel.data_parallel_strategy import DataParallel
from ooodist.elastic.controller import Controller, Mask
from ooodist.elastic.cost_model import OneWorker
from ooodist.elastic.importance import Measured
from ooodist.elastic.optimizer_state import OptimizerState
from ooodist.elastic.pace import LEAST_SAVING
from ooodist.elastic.selection.items import Item, Selectable
from ooodist.elastic.step_meter import StepMeter
from ooodist.engines.local import LocalEngine
from ooodist.errors import UserError
from ooodist.settings.elastic import ElasticConfig
from ooodist.transfer import provenance
from tests.profiler.models import compiled, layers


@cache
def model() -> keras.Model:
    """Layers a, b and c, from the input up."""
    numbers = keras.Input((4,))
    x = layers.Dense(4, name="b")(layers.Dense(4, name="a")(numbers))
    found = compiled(keras.Model(numbers, layers.Dense(5, name="c")(x)), "adam")
    found.optimizer.build(found.trainable_variables)
    return found


def choice_of(own: Sequence[float] = (1, 1, 1), fixed: float = 3.0) -> Selectable:
    """An item for each layer, from the output down; each dX takes a second."""
    names = ("c", "b", "a")
    items = [
        Item(name, (f"{name}/kernel", f"{name}/bias"), seconds, frozenset(names[: number + 1]))
        for number, (name, seconds) in enumerate(zip(names, own, strict=True))
    ]
    return Selectable(tuple(items), dict.fromkeys(names, 1.0), fixed)


FULL = 9.0  # seconds of all of it: 5 with c alone, 7 with b besides, and 8 with a instead


class Importance:
    """Says of each layer what it matters, one after the other; the last again and again."""

    def __init__(self, *values: Mapping[str, float]) -> None:
        self.values = list(values)
        self.batches: list[Sequence[Any]] = []

    def __call__(self, batches: Sequence[Any]) -> Measured:
        now = self.values[min(len(self.batches), len(self.values) - 1)]
        self.batches.append(batches)
        changes = {f"{name}/kernel": -value for name, value in now.items()}
        return Measured(changes, {name: abs(value) for name, value in changes.items()})


# Importance of the three relative to the largest; c's is 1 so that nothing is scaled.
A = {"c": 1.0, "b": 0.2, "a": 0.8}
B = {"c": 1.0, "b": 0.8, "a": 0.2}


def controller_of(
    *importance: Mapping[str, float], choice: Selectable | None = None, **settings: Any
) -> Controller:
    """Room for c and either a or b, unless said otherwise."""
    config = ElasticConfig(**{"rho": 8.1 / FULL, "smoothing": 0.0, **settings})
    cost_model = OneWorker(choice or choice_of())
    measure = Importance(*(importance or (A,)))
    return Controller(
        config,
        model(),
        LocalEngine(),
        cost_model,
        OptimizerState(model()),
        measure,
        provenance.not_copied(model()),
    )


def layers_of(controller: Controller) -> str:
    assert controller.mask is not None
    return "".join(sorted({name.partition("/")[0] for name in controller.mask.weights}))


# When


def test_before_the_first_step_a_selection_is_due() -> None:
    for renew in ("5 steps", "2 epochs", "plateau"):
        controller = controller_of(renew=renew)
        assert controller.is_due
        controller.renew([])
        assert not controller.is_due


def test_after_so_many_steps() -> None:
    controller = controller_of(renew="5 steps")
    controller.renew([])
    due = []
    for _ in range(12):
        controller.count(1)
        due.append(controller.is_due)
        if controller.is_due:
            controller.renew([])
    assert [step for step, is_due in enumerate(due, start=1) if is_due] == [5, 10]
    assert [renewal.step for renewal in controller.renewals] == [0, 5, 10]


def test_launches_of_several_steps_are_not_cut_short() -> None:
    controller = controller_of(renew="5 steps")
    controller.renew([])
    for _ in range(5):
        controller.count(3)
        if controller.is_due:
            controller.renew([])
    assert [renewal.step for renewal in controller.renewals] == [0, 6, 12]


def test_after_so_many_epochs() -> None:
    controller = controller_of(renew="2 epochs")
    controller.renew([])
    due = []
    for _ in range(6):
        controller.count(100)
        controller.end_epoch(1.0)
        due.append(controller.is_due)
        if controller.is_due:
            controller.renew([])
    assert due == [False, True] * 3


@pytest.mark.parametrize(
    ("losses", "due"),
    [
        ((1.0, 0.5, 0.25), (False, False, False)),
        ((1.0, 0.995, 0.98), (False, True, False)),  # of which 1 % is not reached, and then is
        ((1.0, 2.0, 1.5), (False, True, True)),  # the best so far counts
        ((1.0, None, 0.5), (False, False, False)),
        ((np.nan, 1.0, 0.5), (False, False, False)),
    ],
)
def test_when_the_loss_stays_where_it_is(
    losses: Sequence[float | None], due: Sequence[bool]
) -> None:
    controller = controller_of(renew="plateau")
    controller.renew([])
    found = []
    for loss in losses:
        controller.end_epoch(loss)
        found.append(controller.is_due)
        if controller.is_due:
            controller.renew([])
            assert not controller.is_due
    assert tuple(found) == tuple(due)


# What


def test_the_batches_are_measured() -> None:
    controller = controller_of()
    controller.renew(["one", "two"])
    assert controller.measure.batches == [["one", "two"]]


def test_what_matters_most_is_selected() -> None:
    for importance, expected in ((A, "ac"), (B, "bc")):
        controller = controller_of(importance)
        controller.renew([])
        assert layers_of(controller) == expected
        assert controller.renewals[0].predicted <= 8.1


def test_what_does_harm_is_not_selected() -> None:
    controller = controller_of({"c": 1.0, "b": -0.5, "a": -0.1}, rho=0.999)
    controller.renew([])
    assert layers_of(controller) == "c"


@pytest.mark.parametrize(("a", "expected"), [(0.57, "bc"), (0.64, "bc"), (0.66, "ac"), (0.9, "ac")])
def test_the_selection_stays_unless_another_matters_clearly_more(a: float, expected: str) -> None:
    """All together matter 1.5 + a, and with a instead of b it is a - 0.5 more: 7 % at a = 0.651."""
    after = {"c": 1.0, "b": 0.5, "a": a}
    controller = controller_of({"c": 1.0, "b": 0.5, "a": 0.2}, after, keep=0.07)
    controller.renew([])
    assert layers_of(controller) == "bc"
    controller.renew([])
    assert layers_of(controller) == expected
    assert controller.renewals[1].changed == (expected == "ac")


def test_a_selection_that_does_harm_does_not_stay() -> None:
    controller = controller_of(B, {"c": 1.0, "b": -1.0, "a": 0.1}, keep=0.5)
    controller.renew([])
    controller.renew([])
    assert layers_of(controller) == "ac"


def test_what_does_harm_makes_no_change_matter_more() -> None:
    """Only what helps counts: a instead of b is 0.1 more of 1.1."""
    controller = controller_of(B, {"c": -1.0, "b": 0.5, "a": 0.6}, keep=0.1)
    controller.renew([])
    controller.renew([])
    assert layers_of(controller) == "bc"


def test_importance_is_smoothed() -> None:
    controller = controller_of(A, B, smoothing=0.75)
    controller.renew([])
    assert controller.renewals[0].importance == (1.0, 0.2, 0.8)
    controller.renew([])
    np.testing.assert_allclose(controller.renewals[1].importance, (1.0, 0.35, 0.65))
    controller.renew([])
    np.testing.assert_allclose(controller.renewals[2].importance, (1.0, 0.4625, 0.5375))


def test_the_correlation_is_with_the_importance_before() -> None:
    controller = controller_of(A, A, {"c": -1.0, "b": -0.2, "a": -0.8})
    for _ in range(3):
        controller.renew([])
    found = [renewal.correlation for renewal in controller.renewals]
    assert found[0] is None
    assert found[1:] == [pytest.approx(1), pytest.approx(-1)]


def test_versions_count_and_digests_tell_selections_apart() -> None:
    controller = controller_of(A, B, B, A)
    masks: list[Mask] = []
    for _ in range(4):
        controller.renew([])
        assert controller.mask is not None
        masks.append(controller.mask)
    assert [mask.version for mask in masks] == [1, 2, 3, 4]
    first, second, third, fourth = (mask.digest for mask in masks)
    assert first == fourth != second == third
    assert [renewal.changed for renewal in controller.renewals] == [True, True, False, True]


def test_what_is_no_longer_selected_starts_anew() -> None:
    controller = controller_of(A, B)
    controller.renew([])
    controller.optimizer_state.restore(dict.fromkeys(controller.optimizer_state.counts, 7))
    controller.renew([])
    counts = controller.optimizer_state.state()
    assert {name for name, count in counts.items() if count == 0} == {"a/kernel", "a/bias"}
    assert counts["b/kernel"] == counts["c/bias"] == 7


# What is always trained


@pytest.mark.parametrize("always", [("b",), ("b/kernel",), ("b", "b/bias")])
def test_a_layer_or_a_weight_is_always_trained(always: tuple[str, ...]) -> None:
    controller = controller_of({"c": 1.0, "b": -1.0, "a": -0.2}, always=always)
    controller.renew([])
    assert layers_of(controller) == "bc"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("d", "elastic.always names d"),
        ("kernel", "elastic.always names kernel"),
        ("b/kernal", r"give a layer, as a, or a weight, as a/bias"),
    ],
)
def test_unknown_names_are_refused(wanted: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        controller_of(always=("a", wanted))


def test_a_layer_that_was_probably_meant_is_named() -> None:
    choice = Selectable(
        (Item("x", ("chain/dense_1/kernel", "chain/dense_1/bias"), 1.0, frozenset({"x"})),),
        {"x": 1.0},
    )
    with pytest.raises(UserError, match=r"names dense_2 \(did you mean dense_1\?\)"):
        controller_of(choice=choice, always=("dense_2",))


def test_a_layer_within_another_is_found() -> None:
    item = Item("x", ("net/block/dense/kernel",), 1.0, frozenset({"x"}))
    other = Item("y", ("net/blocks/dense/kernel",), 1.0, frozenset({"x", "y"}))
    choice = Selectable((item, other), {"x": 1.0, "y": 1.0}, 1.0)
    for name in ("block", "net/block", "block/dense", "net/block/dense/kernel"):
        assert controller_of(choice=choice, always=(name,))._forced == {0}
    assert controller_of(choice=choice, always=("dense",), rho=1.0)._forced == {0, 1}


# rho


def smallest_rho(message: str) -> float:
    found = re.search(r"the smallest feasible rho is ([\d.]+)$", message)
    assert found, message
    return float(found[1])


def test_a_rho_that_is_too_small_is_refused_with_the_reason() -> None:
    with pytest.raises(UserError) as caught:
        controller_of(rho=0.5)
    message = str(caught.value)
    assert message.startswith("elastic.rho is 0.5, but the forward pass and what is always ")
    assert "(c) take 0.556 of a full step" in message
    assert smallest_rho(message) == 0.556


@given(
    st.lists(st.floats(0.001, 10), min_size=3, max_size=3),
    st.floats(0, 50),
    st.sampled_from([(), ("a",), ("b/bias",), ("a", "b")]),
)
def test_the_smallest_feasible_rho_is_accepted(
    own: list[float], fixed: float, always: tuple[str, ...]
) -> None:
    choice = choice_of(own, fixed)
    with pytest.raises(UserError) as caught:
        controller_of(choice=choice, always=always, rho=1e-9)
    rho = smallest_rho(str(caught.value))
    controller = controller_of(choice=choice, always=always, rho=rho)
    controller.renew([])
    assert controller.mask is not None
    assert controller._forced <= choice.numbers(controller.mask.weights)
    if rho > 0.002:
        with pytest.raises(UserError, match="smallest feasible"):
            controller_of(choice=choice, always=always, rho=rho - 0.002)


@pytest.mark.parametrize("elastic", [{"rho": 1.0}, {"select": "full"}, {"rho": 1, "always": ["x"]}])
def test_to_train_all_is_plain_training(
    elastic: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    ooodist.init("local")
    with caplog.at_level(logging.INFO, logger="ooodist"):
        found = ooodist.distribute(keras.models.clone_model(model()), elastic=elastic)
    assert isinstance(found.ooodist.strategy, DataParallel)
    assert "all tensors are trained, always" in caplog.text


# Reports and checkpoints


class Median(StepMeter):
    """Steps that have taken this long."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def median(self, digest: str) -> float | None:
        return self.seconds

    steady = median


def test_steps_a_little_longer_than_asked_for_are_not_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    controller = controller_of()
    controller.renew([])
    controller.compare(Median(FULL * controller.config.rho * 1.2))
    assert "was asked for" not in caplog.text


def test_steps_much_longer_than_asked_for_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    controller = controller_of()
    controller.renew([])
    for _ in range(2):
        controller.compare(Median(FULL * 1.24))
    assert caplog.text.count("1.24 of a full one") == 1
    assert f"where rho {controller.config.rho:g} was asked for" in caplog.text


def checked(controller: Controller, seconds: float) -> None:
    """20 updates of these seconds, on a machine that is as fast as it was."""
    controller.pace.full_now = FULL
    controller.count(20)
    assert controller.is_to_check
    controller.check(Median(seconds))
    assert not controller.is_to_check


def test_a_rho_that_is_missed_by_a_tenth_is_corrected_without_measuring_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    controller = controller_of(A)  # of 8 s with c and a
    with caplog.at_level(logging.INFO, logger="ooodist"):
        controller.renew([])
        checked(controller, FULL * 0.99)
    assert "steps take 0.99 of a full one, where 0.89 was predicted" in caplog.text
    assert controller.is_due
    controller.renew([])
    assert layers_of(controller) == "bc"
    assert len(controller.measure.batches) == 1
    assert controller.renewals[1].importance == controller.renewals[0].importance
    assert not controller.is_due
    restored = controller_of(A)
    restored.restore(json.loads(json.dumps(controller.state())))
    assert restored.pace.saving == controller.pace.saving == LEAST_SAVING


def test_a_rho_that_is_not_known_yet_is_looked_at_more_and_more_rarely() -> None:
    controller, looked = controller_of(A), []
    controller.renew([])
    for step in range(1, 200):
        controller.count(1)
        if controller.is_to_check:
            looked.append(step)
            controller.check(StepMeter())
    assert looked == [20, 40, 80, 160]


def test_a_rho_that_is_kept_is_not_corrected() -> None:
    controller = controller_of(A)
    controller.renew([])
    checked(controller, 8.5)
    assert not controller.is_due


def test_scalars_tell_what_the_selection_saves() -> None:
    controller = controller_of()
    controller.renew([])
    meter = StepMeter()
    found = controller.scalars(meter, exchanges=True)
    assert found == {"elastic_share": 45 / 65, "elastic_exchanged_bytes": 45 * 4}
    assert controller.scalars(meter, exchanges=False)["elastic_exchanged_bytes"] == 0
    assert controller.mask is not None
    for _ in range(3):
        meter.launched(controller.mask.digest, 1)
    assert 0 <= controller.scalars(meter, exchanges=True)["elastic_rho"] < 0.1


IMPORTANCE = [
    {"c": 1.0, "b": float(b), "a": float(a)}
    for a, b in np.random.default_rng(2).uniform(-0.5, 1, (8, 2))
]


def go_on(controller: Controller, rounds: int) -> None:
    for _ in range(rounds):
        controller.count(5)
        controller.end_epoch(1.0)
        if controller.is_due:
            controller.renew([])


@pytest.mark.parametrize("renew", ["10 steps", "3 epochs", "plateau"])
@pytest.mark.parametrize("before", [0, 1, 4, 5])
def test_a_restored_controller_goes_on_as_if_nothing_had_been(renew: str, before: int) -> None:
    def measured_in(controller: Controller) -> None:
        controller.measure = lambda _: Importance(IMPORTANCE[len(controller.renewals) % 8])([])

    whole, first, second = (controller_of(renew=renew, smoothing=0.3) for _ in range(3))
    for controller in (whole, first, second):
        measured_in(controller)
    go_on(whole, 12)
    go_on(first, before)
    second.restore(json.loads(json.dumps(first.state())))
    assert second.state() == first.state()
    assert second.mask == first.mask
    go_on(second, 12 - before)

    def plain(controller: Controller) -> dict[str, Any]:
        state = controller.state()
        for renewal in state["renewals"]:
            del renewal["seconds"]
        return state

    assert len(whole.renewals) >= 3
    whole_state, found = (json.loads(json.dumps(plain(each))) for each in (whole, second))
    assert found == whole_state
    assert second.mask == whole.mask


@pytest.mark.parametrize(
    ("changed", "expected"), [({"rho": 7.1 / FULL}, "bc"), ({"always": ["b"]}, "bc"), ({}, "ac")]
)
def test_a_restored_selection_stays_only_if_it_still_may(
    changed: dict[str, Any], expected: str
) -> None:
    before = controller_of(A)
    before.renew([])
    assert layers_of(before) == "ac"
    after = controller_of(A, keep=9.9, **{"always": [], **changed})
    after.restore(before.state())
    after.renew([])
    assert layers_of(after) == expected


def test_before_the_first_selection_there_is_nothing_to_restore() -> None:
    controller = controller_of()
    controller.restore(json.loads(json.dumps(controller_of().state())))
    assert controller.mask is None
    assert controller.is_due
