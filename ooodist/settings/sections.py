"""The sections of a job file that the parts of a training take, each checking its own values."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated, ClassVar, Literal

from ooodist.errors import UserError
from ooodist.planner.data_parallel.plan import RankSetting, WireSetting
from ooodist.planner.pipeline import plan as pipeline_plan
from ooodist.planner.pipeline.plan import AUTO
from ooodist.util.yaml_dataclass import Checked, Count, Fraction, Range

MOST_STEPS_PER_EXECUTION = 128  # each step is traced
MOST_STEPS_OF_A_TRACE = 1000  # all are kept in memory until written


@dataclass(frozen=True)
class OrderConfig:
    """The order of backward units and exchanges. ``name``: ``inorder`` (TensorFlow's), ``first_k``
    (the weight gradients of the first k layers last; without ``k``, the best k is found),
    ``priority`` (exchanges in the order in which the next forward pass needs them), ``planned``
    (the fastest found while it trains, which begins with ``inorder``). ``k``: the number of layers
    of ``first_k``. ``plan``: a plan's file from ``python -m ooodist.plan``.
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
        """Whether the order and the exchanges come from a plan."""
        return self.name in ("priority", "planned") or (self.name == "first_k" and self.k is None)


@dataclass(frozen=True)
class PlanningConfig(Checked):
    """Settings of the planner. ``memory_bytes``: bytes that a worker may use; null: no limit.
    ``max_steps_per_execution``: the most that a plan may use. ``profiles``: the folder of measured
    costs; null: ``~/.cache/ooodist/profiles``. ``profile_anew``: measure even if a profile matches.
    ``trial``: begin training with the default, search for plans meanwhile, try them in turn with it
    and keep the fastest; if false, or with ``memory_bytes`` (as the default has no limit), the plan
    is found before the first step and used untried. ``share``: the largest share of the training's
    time that planning may take; planning that would take longer is skipped. Pipelines with the
    schedule ``auto`` have ``trial`` and ``share`` as well, but none of the other keys."""

    keys_at: ClassVar[str] = "planning"

    memory_bytes: Count | None = None
    max_steps_per_execution: Annotated[int, Range(1, MOST_STEPS_PER_EXECUTION)] = field(
        default=8, metadata={"was": "max_steps_per_launch"}
    )
    profiles: str | None = None
    profile_anew: bool = False
    trial: bool = True
    share: Annotated[float, Range(0)] = 0.02

    @property
    def is_live(self) -> bool:
        """Whether plans are searched and tried during the training."""
        return self.trial and self.memory_bytes is None

    def check_for_pipelines(self, schedule: str, *, elastic: bool) -> None:
        """Raises UserError if a setting is given that a pipeline does not have.

        Args:
            schedule: the name of the pipeline's schedule, or ``auto``.
            elastic: whether the pipeline trains only some of the tensors.
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
class ExchangeConfig(Checked):
    """Settings of exchanges; null leaves the choice to ooodist. ``credit``: exchanges in flight.
    ``bucket_bytes``: gradients smaller than this are exchanged together. ``wire``: ``float32``
    (gradients travel as they are), ``float16`` or ``bfloat16`` (they all do in this dtype), or
    ``planned`` (in float16, where their time would be waited for, if the order is planned).
    ``error_feedback``: what is lost in 16 bits is added to the next step's gradient. ``low_rank``:
    the gradients of matrices travel as two thin ones of so many columns, about, and what is lost is
    added to the next step's (PowerSGD); for networks that are many times too slow. With ``auto``, a
    plan says which do, and with how many columns: as many as there is time for.
    ``low_rank_after``: how many steps come before, as without ``low_rank``; less than 1: the share
    of the training's steps. ``rows``: whether gradients of embeddings travel as the rows that a
    batch uses: ``auto`` (where that is less to send), or ``never`` (as whole tables)."""

    credit: Count | None = None
    bucket_bytes: Annotated[int, Range(0)] | None = None
    wire: WireSetting = "float32"
    error_feedback: bool = True
    low_rank: RankSetting = None
    low_rank_after: Annotated[int, Range(0)] | Fraction = 0
    rows: Literal["auto", "never"] = "auto"


@dataclass(frozen=True)
class ParallelConfig(Checked):
    """Settings of pipelines. ``pipeline``: the number of ranks that share the layers; ``data``: the
    number of such pipelines, which share the samples. ``devices``: in place of both, the number of
    ranks; what is predicted to be the fastest is chosen, and ``batch`` and ``microbatches`` are
    those of all pipelines together. ``microbatches``: into how many a pipeline's batch is split.
    ``schedule``: a name such as ``1f1b`` or ``zb_h1``, ``auto`` (the fastest found
    during training), or a CSV file in PyTorch's format. ``chunks``: stages per rank; null: the
    schedule's default. ``split``: names of the layers that begin a new stage; null: balanced by
    measured costs. ``costs``: a file with the costs of the layers, as ``costs.yaml`` of
    ``python -m ooodist.plan``; null: they are measured. ``recompute``: recompute activations
    instead of saving them. ``memory_bytes``: bytes that a rank may keep for weights, optimizer
    state, gradients, activations and messages of its stages; null: no limit. ``shard_optimizer``:
    each of the ``data`` pipelines keeps the optimizer state of a part of the weights only, and
    updates these for all (ZeRO stage 1)."""

    keys_at: ClassVar[str] = "parallel"

    pipeline: Count = 1
    data: Count = 1
    devices: Count | None = None
    microbatches: Count = 1
    schedule: str = AUTO
    chunks: Count | None = None
    split: tuple[str, ...] | None = None
    costs: str | None = None
    recompute: bool = False
    memory_bytes: Count | None = None
    shard_optimizer: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        pipeline_plan.check_name(self.schedule, self.chunks)
        if self.costs is not None and self.split is not None:
            raise UserError(
                f"parallel.costs is {self.costs}, by which stages would be balanced, but "
                "parallel.split says what they are; leave the one or the other out"
            )
        if self.shard_optimizer and self.data == 1 and self.devices is None:
            raise UserError(
                "parallel.shard_optimizer is true, but parallel.data is 1: a single pipeline has "
                "no others to share the optimizer state with; give parallel.data of at least 2, "
                "or leave parallel.shard_optimizer out"
            )
        if self.devices is not None:
            self._check_can_be_divided()

    def _check_can_be_divided(self) -> None:
        for name, value, default in (
            ("pipeline", self.pipeline, 1),
            ("data", self.data, 1),
            ("split", self.split, None),
        ):
            if value != default:
                raise UserError(
                    f"parallel.{name} is given, but parallel.devices is {self.devices}, which are "
                    "divided into pipelines as is predicted to be best; leave the one or the other "
                    "out"
                )
        if self.schedule.endswith(".csv"):
            raise UserError(
                f"parallel.schedule is {self.schedule}, which is for one number of ranks, but "
                f"parallel.devices is {self.devices}, of which pipelines are made; give the name "
                "of a schedule, or parallel.pipeline and parallel.data"
            )

    @property
    def ranks(self) -> int:
        """The number of ranks of all pipelines together."""
        return self.devices or self.pipeline * self.data


@dataclass(frozen=True)
class CheckpointConfig:
    """Settings of checkpoints. ``every_epochs``, ``every_steps``, ``every_minutes``: the intervals,
    of which any may be given; 0 is for none. ``background``: write checkpoints while training goes
    on, which takes as much memory as a checkpoint; null: unless ``parallel.memory_bytes`` is given.
    ``keep``: how many of the newest to keep. ``copy_to``: a second folder, or a bucket
    (``s3://bucket/folder``, or any other address of fsspec), to which rank 0 copies each checkpoint
    and the trained model while training goes on. ``resume``: true resumes from the newest in the
    output folder (if there is none, in ``copy_to``); or the path of one; or an address of copies.
    ``new_world_size``: whether one of another number of workers may be
    resumed. ``restart``: as a launcher sets it when it starts a job again: go on from the newest in
    the output folder, or begin as ``resume`` says if there is none; and train on as many samples a
    step as before, whatever the number of workers."""

    every_epochs: Annotated[int, Range(0)] = 1
    every_steps: Annotated[int, Range(0)] = 0
    every_minutes: Annotated[float, Range(0)] = 0.0
    background: bool | None = None
    keep: Count = 3
    copy_to: str | None = None
    resume: bool | str = False
    new_world_size: bool = False
    restart: bool = False

    @property
    def is_wanted(self) -> bool:
        """Whether any checkpoints are written."""
        return bool(self.every_epochs or self.every_steps or self.every_minutes)


@dataclass(frozen=True)
class EarlyStoppingConfig:
    """The arguments of Keras's EarlyStopping, whose documentation has their meanings."""

    monitor: str = "val_loss"
    min_delta: Annotated[float, Range(0)] = 0.0
    patience: Annotated[int, Range(0)] = 0
    mode: Literal["auto", "min", "max"] = "auto"
    baseline: float | None = None
    restore_best_weights: bool = False
    start_from_epoch: Annotated[int, Range(0)] = 0


@dataclass(frozen=True)
class ReportConfig:
    """What is written to the output folder. ``tensorboard``, ``csv``: the curves. ``trace``: the
    number of steps to record for Perfetto, with the plan's predictions beside them (0: none).
    ``metrics``: a file for operators (step, samples/s, loss, restarts, the hidden share of
    exchanges and more), in the text format of Prometheus, as the textfile collector of
    node_exporter reads it: its name ends with ``.prom``; null for none."""

    tensorboard: bool = True
    csv: bool = True
    trace: Annotated[int, Range(0, MOST_STEPS_OF_A_TRACE)] = 0
    metrics: str | None = None
