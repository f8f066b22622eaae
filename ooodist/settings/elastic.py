"""The ``elastic`` section of a job. Nothing here imports TensorFlow."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from ooodist.errors import UserError
from ooodist.util import yaml_dataclass
from ooodist.util.yaml_dataclass import Checked, Count, Range

logger = logging.getLogger("ooodist")


@dataclass(frozen=True)
class ElasticConfig(Checked):
    """Trains only the most important tensors. ``rho``: the time that a step may take, as a share of
    a full step's; 1 is full training, ``auto``: begins with it, and takes the smallest one with
    which the loss falls as fast per second. ``renew``: when to select again, such as ``200 steps``,
    ``2 epochs`` or ``plateau`` (after an epoch whose loss is not 1 % below the best). ``batches``:
    the number of batches on which importance is measured. ``smoothing``: the weight of earlier
    importance in the average. ``keep``: the selection changes only if another one has more of the
    total importance by this share. ``always``: layers or weights to train in any case (as the head
    is). ``select``: ``importance``, or a baseline that ignores rho: ``full``, ``head``,
    ``bias_norm_head``. ``cache``: traced steps to keep, one per selection. ``not_copied_epochs``:
    epochs after a warm start in which tensors that were not copied unchanged have priority."""

    keys_at: ClassVar[str] = "elastic"

    rho: Annotated[float, Range(0, 1)] | Literal["auto"] = 0.5
    renew: str = "200 steps"
    batches: Count = 4
    smoothing: Annotated[float, Range(0, 0.99)] = 0.5
    keep: Annotated[float, Range(0)] = 0.05
    always: tuple[str, ...] = ()
    select: Literal["importance", "full", "head", "bias_norm_head"] = "importance"
    cache: Count = 4
    not_copied_epochs: Annotated[int, Range(0)] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.interval  # noqa: B018 - raises UserError for an invalid value

    @property
    def interval(self) -> tuple[int, str]:
        """The interval between two selections: a number, and its unit (step, epoch or plateau)."""
        if self.renew == "plateau":
            return 1, "plateau"
        number, _, unit = self.renew.partition(" ")
        if unit.rstrip("s") not in ("step", "epoch") or not number.isdecimal() or int(number) < 1:
            raise UserError(
                f"elastic.renew is {self.renew}; it must be as 200 steps, 2 epochs, or plateau"
            )
        return int(number), unit.rstrip("s")

    @property
    def is_full(self) -> bool:
        """Whether all tensors are always trained."""
        return self.rho == 1 or self.select == "full"


def read_elastic(given: ElasticConfig | Mapping[str, Any] | None) -> ElasticConfig | None:
    """Reads the ``elastic`` section; returns None if all tensors are trained. Raises UserError."""
    config = given if isinstance(given, ElasticConfig) else None
    if isinstance(given, Mapping):
        config = yaml_dataclass.read_dataclass(ElasticConfig, dict(given), "elastic")
    if config is not None and config.is_full:
        logger.info("elastic: rho is 1, or select is full, so all tensors are trained, always")
        return None
    return config
