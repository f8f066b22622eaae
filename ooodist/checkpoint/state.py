"""What a checkpoint says of a run, in both of its forms; see :class:`State`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ooodist.errors import UserError


@dataclass(frozen=True)
class Variable:
    """The path, shape and dtype of a saved variable, and its places in a Keras file."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    places: tuple[str, ...] = ()  # as ``layers/dense/vars/0``; a Keras file has them all

    @property
    def name(self) -> str:
        """What tells it from others: its path; Keras numbers optimizers as they are made."""
        of_optimizer = any(place.startswith("optimizer/") for place in self.places)
        return self.path.rpartition("/")[2] if of_optimizer else self.path

    def __str__(self) -> str:
        return f"{self.path} of shape {self.shape}, {self.dtype}"


@dataclass(frozen=True)
class WithinEpoch:
    """A position in an epoch, and what each rank had counted and drawn by then.

    ``values`` has, by the index of a variable, its value on each rank, as base64 of its bytes;
    null where a rank does not have it. Which variables: see ``trainer/saving/within_epoch.py``.
    """

    step: int  # batches of the epoch that each worker has used
    values: dict[str, list[str | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """The position of a run when a checkpoint was written, and what describes the run."""

    epoch: int  # number of complete epochs
    step: int  # batches of the sample stream that each worker has used
    seed: int
    size: int  # number of workers
    batch: int  # samples per worker and step
    config: dict[str, Any]  # the job, as in its YAML file
    variables: tuple[Variable, ...]  # the model's weights, then the optimizer's
    fingerprint: str  # SHA-256 of all their values; empty in parts, where each has its own
    history: list[dict[str, Any]] = field(default_factory=list)  # the logs of each epoch
    best: dict[str, Any] | None = None  # the state of callbacks.Best
    selection: dict[str, Any] | None = None  # see Strategy.selection
    warm_start: dict[str, Any] | None = None  # a transfer.provenance.WarmStart
    versions: dict[str, str] = field(default_factory=dict)
    within: WithinEpoch | None = None  # of the epoch that was under way; None at the end of one

    @property
    def place(self) -> tuple[int, int]:
        """The number of complete epochs, and the batches of the next one that were used."""
        return self.epoch, self.within.step if self.within is not None else 0

    def where(self) -> str:
        """Where in the training it is, for messages."""
        return place_text(self.place)


def place_text(place: tuple[int, int]) -> str:
    """A place, as ``State.place`` has it, for messages."""
    epoch, step = place
    return f"step {step} of epoch {epoch + 1}" if step else f"epoch {epoch}"


def check_fits(
    mine: Sequence[Variable], saved: Sequence[Variable], file: object, *, by_name: bool = False
) -> None:
    """Checks that a job's variables are those of a checkpoint, in the same order.

    Args:
        mine, saved: the variables of the job, and those of the checkpoint.
        file: names the checkpoint in the message.
        by_name: whether their names must be equal, too. Where each rank reads only some of them,
            nothing else would tell two layers of one shape apart.

    Raises:
        UserError: they are not; the message names the first that differs.
    """
    for own, theirs in zip(mine, saved, strict=False):
        is_same = (own.shape, own.dtype) == (theirs.shape, theirs.dtype)
        if not is_same or (by_name and own.name != theirs.name):
            raise UserError(
                f"checkpoint {file} is of another model or optimizer: it has {theirs} where this "
                f"job has {own}; {_WAY_OUT}"
            )
    if len(mine) != len(saved):
        longer = max(mine, saved, key=len)
        where = "this job" if longer is mine else "the checkpoint"
        first = longer[min(len(mine), len(saved))]
        raise UserError(
            f"checkpoint {file} is of another model or optimizer: only {where} has {first}; "
            f"{_WAY_OUT}"
        )


_WAY_OUT = "give model and optimizer as in the config.yaml beside it, or start anew without resume"
