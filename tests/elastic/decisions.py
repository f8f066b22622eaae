"""Selections that a test decides, so that they change as it needs them; and notes of all that were.

All else goes on as in a training: importance is measured, and something is selected by it, which
then does not count.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import keras

from ooodist.elastic.controller import Controller, Mask
from ooodist.elastic.selection.items import Selectable

Decision = Callable[[Selectable], Collection[int]]


def everything(choice: Selectable) -> Collection[int]:
    return range(len(choice.items))


def head(choice: Selectable) -> Collection[int]:
    return choice.head


def head_and_deepest(choice: Selectable) -> Collection[int]:
    """All dX runs, and hardly any dW."""
    return {*choice.head, max(range(len(choice.items)), key=lambda n: len(choice.items[n].needs))}


def every_second(choice: Selectable) -> Collection[int]:
    return {*choice.head, *range(1, len(choice.items), 2)}


CHANGING = (everything, head_and_deepest, every_second, everything)


@contextlib.contextmanager
def decided(decisions: Sequence[Decision]) -> Iterator[None]:
    """The first selection is the first of these, the second the second, and so on, in turns.

    Any rho is feasible meanwhile, whatever a busy machine has measured. Without any decision,
    nothing is changed.
    """
    plain, check_rho = Controller._decide, Controller._check_rho

    def decide(controller: Controller, values: Any) -> dict[str, Any]:
        choice = controller.cost_model.choice
        decision = decisions[len(controller.renewals) % len(decisions)]
        return {
            **plain(controller, values),
            "weights": sorted(choice.weights(frozenset(decision(choice)))),
        }

    def double_budget(controller: Controller) -> None:
        controller.full_seconds *= 2

    if decisions:
        Controller._decide, Controller._check_rho = decide, double_budget
    try:
        yield
    finally:
        Controller._decide, Controller._check_rho = plain, check_rho


class Notes(keras.callbacks.Callback):
    """Notes the selection of each step.

    Attributes:
        masks: of all steps so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.masks: list[Mask] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        controller = self.model.ooodist.strategy.controller
        launched = controller._steps - len(self.masks)
        self.masks += [controller.mask] * launched
        self.check(controller.mask)

    def check(self, mask: Mask) -> None:
        """Called after each launch with this selection."""
