"""What the two kinds of elastic models share: a controller, and what is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ooodist.config.elastic import ElasticConfig
from ooodist.elastic.controller import Controller
from ooodist.elastic.step_meter import StepMeter
from ooodist.trainer.joint import JointModel


class Selecting(JointModel):
    """A model that trains on all ranks, of which a selection is trained.

    Attributes:
        controller: selects; None before the first batch is known.
        config: what is selected, and how often.
    """

    controller: Controller | None

    def _begin_selecting(self, elastic: ElasticConfig) -> None:
        """To be called when the model was made."""
        self._arguments += f" {elastic}"
        self.config = elastic
        self._meter = StepMeter()
        self.controller = None

    @property
    def _selector(self) -> Controller:
        """The controller, where there must be one."""
        assert self.controller is not None
        return self.controller

    def _count(self, updates: int) -> None:
        """A launch of so many updates has ended."""
        assert self._selector.mask is not None
        self._selector.count(updates)
        self._meter.launched(self._selector.mask.digest, updates)

    def _end_selected_epoch(self, logs: dict[str, Any], *, exchanges: bool) -> None:
        """Tells the controller, and adds to the logs what it knows.

        Args:
            logs: of the epoch.
            exchanges: whether gradients of one weight are exchanged between ranks.
        """
        self._selector.end_epoch(logs.get("loss"))
        logs.update(self._selector.scalars(self._meter, exchanges))

    def selection(self) -> dict[str, Any] | None:
        return None if self.controller is None else self.controller.state()

    def restore_selection(self, state: dict[str, Any]) -> None:
        self._selector.restore(state)

    def write_report(self, folder: Path) -> list[str]:
        return [] if self.controller is None else self.controller.write_report(folder)
