"""What a warm start has not copied as it is: the controller selects it before all else at first."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.elastic.controller import Controller
from ooodist.elastic.selection.items import Selectable
from ooodist.errors import UserError
from ooodist.transfer import provenance
from ooodist.transfer.mapping.report import Action, TensorReport
from ooodist.transfer.provenance import WarmStart
from tests.elastic.test_controller import (
    IMPORTANCE,
    A,
    B,
    choice_of,
    controller_of,
    layers_of,
    model,
)
from tests.expr.scripts import load

select_published = load("elastic", "published").select_published


def started(*not_copied: str) -> contextlib.AbstractContextManager[None]:
    """The model comes from a zoo, which had other shapes for these weights."""
    tensors = [TensorReport(f"{name}/bias", "copied", 5) for name in "abc"]
    tensors += [TensorReport(name, "widened", 20) for name in not_copied]
    return noted(WarmStart("parent", "name", 0.9, 0.5, tuple(tensors)))


@contextlib.contextmanager
def noted(start: WarmStart) -> Iterator[None]:
    provenance.note(model(), start)
    try:
        yield
    finally:
        del model().ooodist_warm_start


@pytest.mark.parametrize("action", ["fresh", "identity", "widened"])
def test_what_was_not_copied_goes_first(action: Action) -> None:
    """Its importance is smaller than that of a, and there is no room for both."""
    start = WarmStart("p", "n", 0.9, 0.5, (TensorReport("b/kernel", action, 20),))
    with noted(start):
        controller = controller_of(A)
    controller.renew([])
    assert layers_of(controller) == "bc"
    assert controller.renewals[0].importance == (1.0, 0.2, 0.8)  # which it is not told by


@pytest.mark.parametrize("action", ["copied", "narrowed"])
def test_what_was_copied_has_no_advantage(action: Action) -> None:
    start = WarmStart("p", "n", 0.9, 0.5, (TensorReport("b/kernel", action, 20),))
    with noted(start):
        controller = controller_of(A)
    controller.renew([])
    assert layers_of(controller) == "ac"


@pytest.mark.parametrize("epochs", [0, 1, 2, 3])
def test_it_goes_first_for_so_many_epochs(epochs: int) -> None:
    with started("b/kernel"):
        controller = controller_of(A, renew="1 epochs", not_copied_epochs=epochs, keep=0.0)
    found = []
    for _ in range(5):
        controller.renew([])
        found.append(layers_of(controller))
        controller.end_epoch(1.0)
    assert found == ["bc"] * epochs + ["ac"] * (5 - epochs)


def test_it_goes_first_even_if_it_seems_to_do_harm() -> None:
    with started("b/kernel"):
        controller = controller_of({"c": 1.0, "b": -0.9, "a": 0.9}, not_copied_epochs=1)
    controller.renew([])
    assert layers_of(controller) == "bc"
    controller.end_epoch(1.0)
    controller.renew([])
    assert layers_of(controller) == "ac"


def test_where_nothing_matters_it_still_goes_first() -> None:
    with started("b/bias"):
        controller = controller_of({"c": 0.0, "b": 0.0, "a": 0.0})
    controller.renew([])
    assert layers_of(controller) == "bc"


def test_of_more_than_there_is_room_for_the_most_important_goes_first() -> None:
    for importance, expected in ((A, "ac"), (B, "bc")):
        with started("a/kernel", "b/kernel"):
            controller = controller_of(importance)
        controller.renew([])
        assert layers_of(controller) == expected


def test_a_fixed_selection_is_what_it_is() -> None:
    with started("a/kernel"):
        controller = controller_of(select="head")
    controller.renew([])
    assert layers_of(controller) == "c"


def test_a_restored_controller_knows_how_many_epochs_it_was() -> None:
    with started("b/kernel"):
        before, after = (controller_of(A, renew="1 epochs", keep=0.0) for _ in range(2))
    before.renew([])
    before.end_epoch(1.0)
    after.restore(json.loads(json.dumps(before.state())))
    for expected in ("bc", "ac"):  # the second epoch, and the third
        after.renew([])
        assert layers_of(after) == expected
        after.end_epoch(1.0)


@st.composite
def started_with(draw: st.DrawFn) -> tuple[Selectable, dict[str, float], frozenset[str], float]:
    """Any costs, importance, weights that were not copied, and rho."""
    own = draw(st.lists(st.floats(0.001, 10), min_size=3, max_size=3))
    importance = dict(
        zip("cba", draw(st.lists(st.floats(-1, 1), min_size=3, max_size=3)), strict=True)
    )
    names = [f"{layer}/{kind}" for layer in "abc" for kind in ("kernel", "bias")]
    not_copied = draw(st.frozensets(st.sampled_from(names)))
    return choice_of(own, draw(st.floats(0, 50))), importance, not_copied, draw(st.floats(0, 1))


def items_of(controller: Controller) -> frozenset[int]:
    assert controller.mask is not None
    return controller.cost_model.choice.numbers(controller.mask.weights)


@given(started_with(), st.booleans())
def test_as_many_as_fit_and_never_more_than_that(
    problem: tuple[Selectable, dict[str, float], frozenset[str], float], published: bool
) -> None:
    """What was not copied leaves no room only to more of it; every feasible rho stays so."""
    choice, importance, not_copied, rho = problem
    try:
        without = controller_of(importance, rho=rho, choice=choice)
    except UserError:
        with started(*not_copied), pytest.raises(UserError, match="smallest feasible"):
            controller_of(importance, rho=rho, choice=choice)
        return
    with started(*not_copied):
        controller = controller_of(importance, rho=rho, not_copied_epochs=1, choice=choice)
    if published:
        controller.solver = without.solver = select_published
    controller.renew([])
    budget = rho * choice.full_seconds
    found, first = items_of(controller), choice.numbers(not_copied)
    # The published one rounds each of six times to the nearest thousandth of them all.
    rounding = 6 * 0.5e-3 * choice.full_seconds if published else 0.0
    assert choice.seconds(found) <= budget * (1 + 1e-6) + rounding
    if not published:
        subsets = itertools.chain.from_iterable(
            itertools.combinations(first, size) for size in range(len(first) + 1)
        )
        fitting = (
            len(subset)
            for subset in subsets
            if choice.seconds({*choice.head, *subset}) <= budget * (1 - 3 / 4096)
        )
        most = max(fitting, default=0)  # none: the head alone takes the budget, but for rounding
        assert len(first & found) >= most
    for each in (controller, without):
        each.end_epoch(1.0)
        each.mask = None  # as if nothing was selected before
        each.renew([])
    assert items_of(controller) == items_of(without)


def test_without_a_warm_start_nothing_changes() -> None:
    for importance in IMPORTANCE:
        one, other = (controller_of(importance, not_copied_epochs=n) for n in (0, 5))
        with noted(WarmStart("p", "n", 1.0, 1.0, (TensorReport("a/kernel", "copied", 20),))):
            all_copied = controller_of(importance, not_copied_epochs=5)
        for each in (one, other, all_copied):
            each.renew([])
        assert one.mask == other.mask == all_copied.mask
