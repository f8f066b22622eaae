"""Where a model's start weights come from, for those who train it."""

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
    """Where a model's start weights come from.

    Attributes:
        parent: id of the model in the zoo.
        name: of that model.
        score: how similar it is, 0 to 1.
        carried: the share of the model's parameters that come from it, 0 to 1.
        tensors: what became of each weight.
        lower_rate: by which share the learning rate begins lower.
        ramp_steps: updates until it is its own again.
        seconds: for ``query``, ``fetch``, ``transform`` and ``compare``, and ``probe`` if that was
            asked for.
        exact: whether the model computes what its parent does, within rounding.
        difference: the largest between their answers to the same random inputs, as a share of the
            largest answer; None if the two cannot be compared.
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
        """The weights that elastic training is to train first: new ones, and copies of units."""
        actions = ("fresh", "identity", "widened")
        return frozenset(each.name for each in self.tensors if each.action in actions)


def note(model: keras.Model, start: WarmStart) -> None:
    """From now on the model is known to come from there."""
    setattr(model, _ATTRIBUTE, start)


def start_of(model: keras.Model) -> WarmStart | None:
    """Where the model's weights come from; None if it started cold."""
    found = getattr(model, _ATTRIBUTE, None)
    assert found is None or isinstance(found, WarmStart)
    return found


def not_copied(model: keras.Model) -> frozenset[str]:
    """The names of the weights that a warm start has not copied; none without such a start."""
    start = start_of(model)
    return frozenset() if start is None else start.not_copied


def plain_of(model: keras.Model) -> dict[str, Any] | None:
    """The warm start as plain values, for checkpoints; None if the model started cold."""
    start = start_of(model)
    return None if start is None else yaml_dataclass.plain(start)


def read(plain: Mapping[str, Any]) -> WarmStart:
    """What :func:`plain_of` has written."""
    return yaml_dataclass.read(WarmStart, dict(plain))
