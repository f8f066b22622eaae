"""Measures how much the loss falls, from the mean over an epoch that Keras reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ooodist.errors import UserError

STRETCH = 60  # updates of a stretch, at least
STRETCHES = 50  # of a training, at most: the longer they are, the less a batch decides


def check_loss(logs: Mapping[str, Any]) -> None:
    """Raises UserError if the logs of a call have no loss."""
    if "loss" not in logs:
        raise UserError(
            f"elastic.rho is auto, but train_step returns no loss, only {', '.join(logs)}; "
            "return one, as Keras does, or set rho to a number, 0 to 1"
        )


class FallMeter:
    """Compares the mean losses of the halves of a stretch. It reads logs only where a half ends.

    Args:
        updates: of the training; None if unknown.

    Attributes:
        updates: of a stretch.
    """

    def __init__(self, updates: int | None = None) -> None:
        self.updates = max(STRETCH, (updates or 0) // STRETCHES)
        self._logs: Mapping[str, Any] = {}
        self._in_epoch = 0  # updates
        self._epoch_sum = 0.0  # of the loss, up to the present half
        self._before = 0.0  # of the loss in this half, in earlier epochs
        self._in_half = 0  # updates
        self._means: list[float] = []

    def ran(self, updates: int, logs: Mapping[str, Any]) -> None:
        """Counts a call of this many updates, which has these logs; see :func:`check_loss`."""
        check_loss(logs)
        self._in_epoch += updates
        self._in_half += updates
        self._logs = logs
        if 2 * self._in_half >= self.updates:
            before, total = self._before, self._sum()
            self._means.append((before + total - self._epoch_sum) / self._in_half)
            self._before, self._epoch_sum, self._in_half = 0.0, total, 0

    def end_epoch(self) -> None:
        """Keras begins a new mean."""
        if self._in_half:
            self._before += self._sum() - self._epoch_sum
        self._in_epoch, self._epoch_sum = 0, 0.0

    def ended(self) -> float | None:
        """Ends the stretch and returns the fall of its loss per update; None if it goes on."""
        if len(self._means) < 2:
            return None
        first, second = self._means
        self._means.clear()
        return 2 * (first - second) / self.updates

    def _sum(self) -> float:
        return float(self._logs["loss"]) * self._in_epoch
