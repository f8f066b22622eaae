"""Records where a model's initial weights come from, for those who train it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import keras

from ooodist.transfer.mapping.report import TensorReport
from ooodist.util import yaml_dataclass

_ATTRIBUTE = "ooodist_warm_start"


@dataclass(frozen=True)
class WarmStart:
    """Describes where a model's initial weights come from.

    Attributes:
        parent: id of the parent in the zoo.
        name: name of the parent.
        score: similarity of the two models, 0 to 1.
        carried: the share of the model's parameters that come from it, 0 to 1.
        tensors: what became of each weight.
        lower_rate: the share by which the learning rate is lowered at first.
        ramp_steps: updates until the learning rate is no longer lowered.
        seconds: seconds taken by ``query``, ``fetch``, ``transform`` and ``compare``, and by
            ``probe`` if that was asked for.
        exact: whether the model computes what its parent does, within rounding.
        difference: the largest between the answers of both models to the same random inputs, as a
            share of the largest answer; None if the two cannot be compared.
        departures: where the model computes something else, and why.
    """

    parent: str
    name: str
    score: float
    carried: float
    tensors: tuple[TensorReport, ...]
    lower_rate: float = 0.0
    ramp_steps: int = 1
    seconds: dict[str, float] = field(default_factory=dict)
    exact: bool = False
    difference: float | None = None
    departures: tuple[str, ...] = ()

    @property
    def not_copied(self) -> frozenset[str]:
        """The weights that elastic training trains first: new ones, and copies of units."""
        actions = ("fresh", "identity", "widened")
        return frozenset(each.name for each in self.tensors if each.action in actions)


def note(model: keras.Model, start: WarmStart) -> None:
    """Records a warm start on the model."""
    setattr(model, _ATTRIBUTE, start)


def start_of(model: keras.Model) -> WarmStart | None:
    """The warm start of the model; None if it started cold."""
    found = getattr(model, _ATTRIBUTE, None)
    assert found is None or isinstance(found, WarmStart)
    return found


def not_copied(model: keras.Model) -> frozenset[str]:
    """The names of the weights that a warm start has not copied; none without one."""
    start = start_of(model)
    return frozenset() if start is None else start.not_copied


def plain_of(model: keras.Model) -> dict[str, Any] | None:
    """The warm start as plain values, for checkpoints; None if the model started cold."""
    start = start_of(model)
    return None if start is None else yaml_dataclass.plain(start)


def read(plain: Mapping[str, Any]) -> WarmStart:
    """Restores a warm start from the result of :func:`plain_of`."""
    return yaml_dataclass.read(WarmStart, dict(plain))
