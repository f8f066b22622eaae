"""How long steps take with a selection, as a share of full steps: predicted, measured, corrected.

Costs are measured once and kept, and a machine may be slower or busier later. So a full step is
timed again whenever importance is measured, and if the first steps of a selection miss what was
predicted, predictions are scaled to them::

    saved by a selection = saving x what the cost model says
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

logger = logging.getLogger("ooodist")

MOST_OFF = 0.1  # a measured share that differs from the predicted one by more is corrected
LEAST_SAVING, MOST_SAVING = 0.5, 2.0  # anything else is a disturbance


@dataclass
class Pace:
    """Converts between shares of a full step and seconds.

    Attributes:
        full: seconds of a full step by the cost model.
        full_now: seconds of one as measured last; None: not measured since.
        saving: of the time that selections save by the cost model, what they really save.
        corrections: how often ``saving`` was changed.
    """

    full: float
    full_now: float | None = None
    saving: float = 1.0
    corrections: int = 0

    @property
    def full_step(self) -> float:
        """Seconds of a full step, as far as they are known."""
        return self.full_now or self.full

    def share(self, modeled: float) -> float:
        """The share of a full step to expect of one with these seconds by the cost model."""
        return 1 - self.saving * (1 - modeled / self.full)

    def budget(self, rho: float) -> float:
        """Seconds by the cost model of a step that takes this share of a full one."""
        return self.full * (1 - (1 - rho) / self.saving)

    def measured(self, seconds: float | None) -> float | None:
        """The share of a full step that a step of these seconds takes; None: not known."""
        return None if seconds is None else seconds / self.full_step

    def measured_now(self, seconds: float | None) -> float | None:
        """As :meth:`measured`; None also if it is not known how long a full step takes now."""
        return None if self.full_now is None else self.measured(seconds)

    def correct(self, measured: float, modeled: float) -> bool:
        """Scales predictions if one was missed; returns whether it was.

        Args:
            measured: the share of a full step that steps take.
            modeled: their seconds by the cost model.
        """
        expected = self.share(modeled)
        if modeled >= self.full or abs(measured / expected - 1) <= MOST_OFF:
            return False
        saving = (1 - measured) / (1 - modeled / self.full)
        self.saving = min(max(saving, LEAST_SAVING), MOST_SAVING)
        self.corrections += 1
        logger.info(
            "elastic: steps take %.2f of a full one, where %.2f was predicted: selecting again",
            measured,
            expected,
        )
        return True
