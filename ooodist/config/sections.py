"""The sections of a job file that stand for themselves: each a dataclass that checks itself."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated, Literal

from ooodist.errors import UserError
from ooodist.planner.pipeline import plan as pipeline_plan
from ooodist.planner.pipeline.plan import AUTO
from ooodist.util.yaml_dataclass import Range

MOST_STEPS_PER_EXECUTION = 128  # each is traced
MOST_STEPS_OF_A_TRACE = 1000  # all are kept in memory until they are written


@dataclass(frozen=True)
class OrderConfig:
    """The order of the backward units and of the exchanges: ``inorder`` (TensorFlow's),
    ``first_k`` (the weight gradients of the first k layers last; without ``k`` the best k is
    found), ``priority`` (exchanges by the next forward pass's need), ``planned`` (the best that
    the planner finds; ``plan``: a file of ``python -m ooodist.plan`` instead of planning here).
    """

    name: Literal["inorder", "first_k", "priority", "planned"] = "inorder"
    k: Annotated[int, Range(0)] | None = None
    plan: str | None = None

    def __post_init__(self) -> None:
        if self.k is not None and self.name != "first_k":
            raise UserError(
                f"order.name is {self.name} and order.k is {self.k}; "
                "give k with first_k only, as {name: first_k, k: 4}"
            )
        if self.plan is not None and self.name != "planned":
            raise UserError(
                f"order.name is {self.name} and order.plan is {self.plan}; "
                "give a plan's file with planned only, as {name: planned, plan: FILE}"
            )

    @property
    def is_a_plan(self) -> bool:
        """Whether order and exchanges come from a plan."""
        return self.name in ("priority", "planned") or (self.name == "first_k" and self.k is None)


@dataclass(frozen=True)
class PlanningConfig:
    """``memory_bytes``: what a worker may use at most; null: no limit. ``max_steps_per_execution``:
    the planner takes no more. ``profiles``: the folder in which measured costs are kept; null:
    ``~/.cache/ooodist/profiles``. ``profile_anew``: measure even if a profile fits. ``trial``:
    training begins with the default; plans are found while it trains and take turns with it, and
    the fastest stays. Without it the plan is found before the first step and carried out as it is
    (as with ``memory_bytes``: the default knows no limit). ``share``: the most that planning may
    take of the training's time; what takes longer is left out. ``trial`` and ``share`` mean the
    same for pipelines whose schedule is ``auto``; the others are not theirs."""

    memory_bytes: Annotated[int, Range(1)] | None = None
    max_steps_per_execution: Annotated[int, Range(1, MOST_STEPS_PER_EXECUTION)] = field(
        default=8, metadata={"was": "max_steps_per_launch"}
    )
    profiles: str | None = None
    profile_anew: bool = False
    trial: bool = True
    share: Annotated[float, Range(0)] = 0.02

    @property
    def is_live(self) -> bool:
        """Whether plans are found and tried while training."""
        return self.trial and self.memory_bytes is None

    def check_for_pipelines(self, schedule: str, *, elastic: bool) -> None:
        """Raises UserError if something is given that a pipeline does not have.

        Args:
            schedule: its name; ``auto`` is one.
            elastic: it trains only some of the tensors.
        """
        if elastic and schedule == AUTO and self.share != PlanningConfig.share:
            raise UserError(
                "planning.share is given, but with elastic each selection's schedule is found "
                "before it is carried out; leave planning.share out"
            )
        theirs = ("trial", "share") if schedule == AUTO else ()
        for each in fields(self):
            if each.name not in theirs and getattr(self, each.name) != each.default:
                raise UserError(_NOT_OF_PIPELINES[each.name].format(schedule=schedule))


_NAMED = (
    "is given, but parallel.schedule is {schedule}, which is carried out as it is; leave it out, "
    f"or take the schedule {AUTO}"
)
_KEPT = "is given, but a pipeline keeps no profiles: it is measured in its own steps; leave it out"
_NOT_OF_PIPELINES = {
    "trial": f"planning.trial {_NAMED}",
    "share": f"planning.share {_NAMED}",
    "memory_bytes": "planning.memory_bytes is given, but the limit of a pipeline's ranks is "
    "parallel.memory_bytes; give that",
    "max_steps_per_execution": "planning.max_steps_per_execution is given, but a pipeline trains "
    "step by step; leave it out",
    "profiles": f"planning.profiles {_KEPT}",
    "profile_anew": f"planning.profile_anew {_KEPT}",
}


@dataclass(frozen=True)
class ExchangeConfig:
    """``credit``: exchanges in flight; ``bucket_bytes``: gradients smaller than this are
    exchanged together. null leaves the choice to ooodist."""

    credit: Annotated[int, Range(1)] | None = None
    bucket_bytes: Annotated[int, Range(0)] | None = None


@dataclass(frozen=True)
class ParallelConfig:
    """``pipeline``: so many ranks share the layers; ``data``: so many such pipelines share the
    samples. A batch (of a pipeline) is split into ``microbatches``. ``schedule``: a name, as
    ``1f1b`` or ``zb_h1``, ``auto`` (the fastest that is found while it trains), or a CSV file in
    PyTorch's form. ``chunks``: stages of a rank; null: as usual with that schedule. ``split``:
    names of the layers with which a new stage begins; null: balanced by measured costs.
    ``recompute``: activations are computed again instead of kept. ``memory_bytes``: what a rank may
    keep; null: no limit."""

    pipeline: Annotated[int, Range(1)] = 1
    data: Annotated[int, Range(1)] = 1
    microbatches: Annotated[int, Range(1)] = 1
    schedule: str = AUTO
    chunks: Annotated[int, Range(1)] | None = None
    split: tuple[str, ...] | None = None
    recompute: bool = False
    memory_bytes: Annotated[int, Range(1)] | None = None

    def __post_init__(self) -> None:
        pipeline_plan.check_name(self.schedule, self.chunks)

    @property
    def ranks(self) -> int:
        """Of all pipelines."""
        return self.pipeline * self.data


@dataclass(frozen=True)
class CheckpointConfig:
    """``every_epochs``: 0 writes none. ``keep``: so many of the newest. ``resume``: true takes
    the newest of the output folder; or the path of one. ``new_world_size``: a checkpoint of
    another number of workers may be resumed."""

    every_epochs: Annotated[int, Range(0)] = 1
    keep: Annotated[int, Range(1)] = 3
    resume: bool | str = False
    new_world_size: bool = False


@dataclass(frozen=True)
class EarlyStoppingConfig:
    """The arguments of Keras' EarlyStopping."""

    monitor: str = "val_loss"
    min_delta: Annotated[float, Range(0)] = 0.0
    patience: Annotated[int, Range(0)] = 0
    mode: Literal["auto", "min", "max"] = "auto"
    baseline: float | None = None
    restore_best_weights: bool = False
    start_from_epoch: Annotated[int, Range(0)] = 0


@dataclass(frozen=True)
class ReportConfig:
    """What is written to the output folder; ``trace``: so many steps are recorded (0: none)."""

    tensorboard: bool = True
    csv: bool = True
    trace: Annotated[int, Range(0, MOST_STEPS_OF_A_TRACE)] = 0
