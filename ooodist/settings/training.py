"""What a training is told, by keywords or in a job file, and what of it does not go together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, TypeAlias

from ooodist.errors import UserError
from ooodist.planner.data_parallel.plan import Plan, RankSetting, WireSetting
from ooodist.settings.elastic import ElasticConfig
from ooodist.settings.sections import (
    MOST_STEPS_PER_EXECUTION,
    ExchangeConfig,
    ParallelConfig,
    PlanningConfig,
)
from ooodist.util.yaml_dataclass import Checked, Count, Range

OnNan: TypeAlias = Literal["stop", "skip", "ignore"]
JitCompile: TypeAlias = Literal["auto"] | bool | None
StepsPerExecution: TypeAlias = Annotated[int, Range(1, MOST_STEPS_PER_EXECUTION)] | None

FROM_COSTS = ("first_k", "priority", "planned")
"""Orders that are found from measured costs (``first_k`` if k is not given)."""

_PLAN = "a plan has its own; leave it out, or choose another order"
_XLA = "steps that XLA compiles cannot have that; leave one of them out"
_PIPELINE = (
    "a pipeline does not have it (its schedule orders what stages compute, and micro-batches "
    "accumulate); leave it out"
)
REFUSED: Mapping[tuple[str, str], str] = {
    ("credit", "plan"): _PLAN,
    ("bucket_bytes", "plan"): _PLAN,
    ("steps_per_execution", "given plan"): _PLAN,
    ("given wire", "given plan"): _PLAN,
    ("planned wire", "order that is not planned"): "no plan is made that could say which gradients "
    "are sent in 16 bits; let the order be planned, too, or give wire float16 or bfloat16",
    ("no error_feedback", "float32"): "nothing is lost in float32; leave error_feedback out, or "
    "give wire, as float16",
    ("skip", "wire"): "on a wire of 16 bits, infinity becomes the largest number, and what is lost "
    "of it is added to all steps that follow; take on_nan: stop, or wire: float32",
    ("low_rank", "wire of all"): "all gradients that can are sent in low rank, and the others are "
    "small; leave wire out",
    ("fixed low_rank", "planned wire"): "low_rank says how all gradients travel; give low_rank "
    "auto, or leave wire out",
    ("given low_rank", "given plan"): _PLAN,
    ("planned low_rank", "order that is not planned"): "no plan is made that could say which "
    "gradients are sent in low rank; let the order be planned, too, or give low_rank a number",
    ("low_rank_after", "no low_rank"): "nothing would change after these steps; give low_rank, as "
    "4, or leave low_rank_after out",
    ("low_rank", "elastic"): "what low rank loses is added to all steps that follow; leave one of "
    "them out",
    ("skip", "elastic"): "what matters is measured on batches as they come, and a loss that is NaN "
    "says nothing; take on_nan: stop, or train without elastic",
    ("elastic", "fixed order"): "it is for one selection of weights alone; let it be found: order "
    "planned, priority, first_k without k, or inorder",
    ("jit_compile", "order"): _XLA,
    ("jit_compile", "accumulate"): _XLA,
    ("jit_compile", "skip"): _XLA,
    ("jit_compile", "elastic"): _XLA,
    ("jit_compile", "features"): _XLA,
    ("jit_compile", "shard_optimizer"): _XLA,
    ("elastic", "shard_optimizer"): "what a worker keeps would change with the selection; leave "
    "one of them out",
    ("shard_optimizer", "pipeline"): "the pipelines of a job divide the optimizer among each other "
    "with parallel.shard_optimizer; set that",
    ("features", "pipeline"): _PIPELINE,
    ("order", "pipeline"): _PIPELINE,
    ("exchange", "pipeline"): _PIPELINE,
    ("steps_per_execution", "pipeline"): _PIPELINE,
    ("accumulate", "pipeline"): _PIPELINE,
    ("jit_compile", "pipeline"): _PIPELINE,
}
"""What does not go together: two names of :meth:`Training.given`, the reason and the way out."""


@dataclass(frozen=True, kw_only=True)
class Training(Checked):
    """What ``ooodist.distribute``, ``ooodist.pipelined`` and job files are told of a training.

    Attributes:
        order: a name, a plan, a list of names of units, or a function that makes such a list.
        k: of the order ``first_k``.
        plan_file: the file of a plan, if it is not read yet.
        features: :class:`ooodist.Feature` objects, whose gradients each gets in turn.
        steps_per_execution, accumulate, exchange, planning, parallel, elastic, shard_optimizer,
            on_nan, jit_compile, timeout: see the reference of job files.
        sum_rows: see :func:`ooodist.distribute`.

    Raises:
        UserError: a value is none of those allowed, or two do not go together (``REFUSED``).
    """

    order: Any = "inorder"
    k: Annotated[int, Range(0)] | None = None
    plan_file: str | None = None
    steps_per_execution: StepsPerExecution = None
    accumulate: Count = 1
    exchange: ExchangeConfig = ExchangeConfig()
    planning: PlanningConfig = PlanningConfig()
    parallel: ParallelConfig | None = None
    elastic: ElasticConfig | None = None
    shard_optimizer: bool = False
    features: tuple[Any, ...] = ()
    on_nan: OnNan = "stop"
    jit_compile: JitCompile = None
    sum_rows: bool | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.order, str) and self.order not in (ordered := ("inorder", *FROM_COSTS)):
            raise UserError(
                f"order is {self.order!r}; it must be one of {', '.join(ordered)}, a plan, a list "
                "of unit names, or a function from units to unit names"
            )
        given = self.given()
        for (one, other), reason in REFUSED.items():
            if one in given and other in given:
                raise UserError(f"{given[one]}, but {given[other]}: {reason}")
        names = [feature.name for feature in self.features]
        if twice := [name for name in names if names.count(name) > 1]:
            raise UserError(f"features has two called {twice[0]}; override the name of one")
        for feature in self.features:
            for other, reason in feature.refuses.items():
                if other in given:
                    raise UserError(f"feature {feature.name}, but {given[other]}: {reason}")
        if self.parallel is not None:
            self.planning.check_for_pipelines(
                self.parallel.schedule, elastic=self.elastic is not None
            )

    @property
    def to_find(self) -> str | None:
        """The name of an order that is found from measured costs; None for others."""
        if self.plan_file is not None or not isinstance(self.order, str):
            return None
        is_found = self.order in FROM_COSTS and not (self.order == "first_k" and self.k is not None)
        return self.order if is_found else None

    @property
    def tries_plans(self) -> bool:
        """Whether plans are tried while several workers train."""
        is_planned = self.to_find == "planned" and self.planning.is_live
        return is_planned and self.elastic is None

    @property
    def may_compile(self) -> bool:
        """Whether XLA may compile the steps, as nothing is asked for that keeps it from that."""
        against = {"order", "accumulate", "skip", "elastic", "features", "shard_optimizer"}
        return not against & self.given().keys()

    @property
    def wire(self) -> WireSetting:
        """In which dtypes gradients travel, also by a plan that was given."""
        of_plan = self.order.wire if isinstance(self.order, Plan) else None
        return of_plan or self.exchange.wire

    @property
    def low_rank(self) -> RankSetting:
        """In which rank gradients travel, also by a plan that was given."""
        of_plan = isinstance(self.order, Plan) and self.order.low_rank
        return "auto" if of_plan else self.exchange.low_rank

    @property
    def arguments(self) -> str:
        """What all ranks must have been told alike, as text."""
        order = self.order.digest() if isinstance(self.order, Plan) else self.order
        text = {each.name: getattr(self, each.name) for each in fields(self)}
        del text["timeout"]  # how long each waits
        text["order"] = getattr(order, "__qualname__", order)
        text["features"] = [feature.summary() for feature in self.features]
        text["planning"] = (self.planning.trial, self.planning.share)
        return str(text)

    def given(self) -> dict[str, str]:
        """What differs from the default, by name, in words; also what follows from it."""
        names = [feature.name for feature in self.features]
        exchange, plan = self.exchange, isinstance(self.order, Plan) or self.plan_file is not None
        order = getattr(self.order, "__qualname__", self.order)
        of_order = f"the order is {self.plan_file or ('a plan' if plan else order)}"
        if self.k:
            of_order += f" with k = {self.k}"
        steps = self.steps_per_execution
        has_own_steps = isinstance(self.order, Plan) and steps == self.order.steps_per_execution
        is_tried = self.tries_plans and self.jit_compile is not True  # compiled steps beside plans
        low_rank = f"low_rank is {self.low_rank}"
        rows = {
            "order": (self.order != "inorder" and not is_tried, of_order),
            "plan": (plan or self.to_find is not None, of_order),
            "given plan": (plan, of_order),
            "fixed order": (plan or self.k or self.order not in ("inorder", *FROM_COSTS), of_order),
            "order that is not planned": (plan or self.order != "planned", of_order),
            "wire": (self.wire != "float32", f"wire is {self.wire}"),
            "wire of all": (
                exchange.wire not in ("float32", "planned"),
                f"wire is {exchange.wire}",
            ),
            "given wire": (exchange.wire != "float32", f"wire is {exchange.wire}"),
            "float32": (not plan and self.wire == "float32", "wire is float32"),
            "planned wire": (self.wire == "planned", "wire is planned"),
            "no error_feedback": (not exchange.error_feedback, "error_feedback is false"),
            "given low_rank": (exchange.low_rank is not None, low_rank),
            "fixed low_rank": (isinstance(exchange.low_rank, int), low_rank),
            "planned low_rank": (exchange.low_rank == "auto", low_rank),
            "low_rank": (self.low_rank is not None, low_rank),
            "no low_rank": (
                self.low_rank is None and self.plan_file is None,
                "low_rank is not given",
            ),
            "low_rank_after": (
                exchange.low_rank_after != 0,
                f"low_rank_after is {exchange.low_rank_after}",
            ),
            "exchange": (exchange != ExchangeConfig(), "exchange is given"),
            "steps_per_execution": (
                steps is not None and not has_own_steps,
                f"steps_per_execution is {steps}",
            ),
            "accumulate": (self.accumulate > 1, f"accumulate is {self.accumulate}"),
            "skip": (self.on_nan == "skip", "on_nan is skip"),
            "features": (bool(self.features), f"features are {', '.join(names)}"),
            "elastic": (self.elastic is not None, "elastic trains some of the weights"),
            "shard_optimizer": (self.shard_optimizer, "shard_optimizer is true"),
            "jit_compile": (bool(self.jit_compile), f"jit_compile is {self.jit_compile}"),
            "pipeline": (self.parallel is not None, "parallel is given"),
        }
        for name in ("credit", "bucket_bytes"):
            value = getattr(exchange, name)
            rows[name] = value is not None, f"{name} is {value}"
        return {name: text for name, (is_given, text) in rows.items() if is_given}
