"""Schedules of a pipeline side by side: which can be made, which fit, and what a step takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ooodist.errors import UserError
from ooodist.planner.pipeline.layer_costs import Link, ModelCosts
from ooodist.planner.pipeline.plan import AUTO, PipelinePlan, make_plan
from ooodist.planner.pipeline.simulate import PipelineTimeline
from ooodist.report.data_parallel.plan_table import readable_bytes

BASELINE = "1f1b"
FREE_LINKS = "links that cost nothing"


@dataclass(frozen=True)
class PipelineSubject:
    """What is planned.

    Attributes:
        title: the model in a few words.
        costs: of its layers, for each number of micro-batches that is planned for.
        batch: samples of a step; None where only the costs are known.
        pipelines: that share the samples of all; what they exchange is not counted.
    """

    title: str
    costs: Mapping[int, ModelCosts]
    batch: int | None = None
    pipelines: int = 1

    @property
    def unit(self) -> str:
        """Of the throughput of a pipeline."""
        return "micro-batches/s" if self.batch is None else "samples/s"

    def throughput(self, microbatches: int, step_seconds: float) -> float:
        """Of a pipeline, in its unit."""
        return (self.batch or microbatches) / step_seconds


@dataclass(frozen=True)
class Setting:
    """For what schedules are made.

    Attributes:
        ranks: of the pipeline.
        microbatches: of a step.
        chunks: stages of a rank; None: as usual with each schedule.
    """

    ranks: int
    microbatches: int
    chunks: int | None = None

    @property
    def title(self) -> str:
        """In a few words."""
        words = f"{_count(self.ranks, 'rank')}, {_count(self.microbatches, 'micro-batch', 'es')}"
        return words if self.chunks is None else f"{words}, {_count(self.chunks, 'chunk')}"

    @property
    def folder(self) -> str:
        """A name for the folder of its files."""
        name = f"p{self.ranks}-m{self.microbatches}"
        return name if self.chunks is None else f"{name}-v{self.chunks}"


@dataclass(frozen=True)
class Simulated:
    """A plan, and what a step of it does."""

    plan: PipelinePlan
    timeline: PipelineTimeline

    @property
    def chunks(self) -> int:
        """Stages of a rank."""
        return self.plan.schedule.stages // self.plan.schedule.ranks

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.timeline.step_seconds

    @property
    def bubble_of_spans(self) -> float:
        """The share of its own span in which a rank waits, on average over the ranks."""
        pairs = zip(self.timeline.busy, self.timeline.spans, strict=True)
        # Sums of floats may be more than the span by their last digits.
        shares = [max(0.0, 1 - busy / span) if span else 0.0 for busy, span in pairs]
        return sum(shares) / len(shares)

    @property
    def peak_bytes(self) -> int:
        """Of the rank that keeps most."""
        return max(self.timeline.peak_bytes)


@dataclass(frozen=True)
class Outcome:
    """What became of a schedule.

    Attributes:
        name: as it was asked for.
        simulated: None if it cannot be made.
        refused: why it cannot be made, or does not fit into the memory limit; empty if it can be
            used.
    """

    name: str
    simulated: Simulated | None
    refused: str = ""


@dataclass(frozen=True)
class Comparison:
    """The schedules for one setting.

    Attributes:
        subject: what was planned.
        setting: for which.
        outcomes: of each schedule.
        baseline: 1F1B with one stage a rank, whether it fits or not; None if it cannot be made.
    """

    subject: PipelineSubject
    setting: Setting
    outcomes: tuple[Outcome, ...]
    baseline: Simulated | None

    @property
    def costs(self) -> ModelCosts:
        """Of the layers."""
        return self.subject.costs[self.setting.microbatches]

    @property
    def title(self) -> str:
        """Model, setting and conditions in a few words."""
        return f"{self.subject.title} on {self.setting.title}, {self.conditions}"

    @property
    def conditions(self) -> str:
        """Links and limit in a few words."""
        words = [link_title(self.costs.link)]
        if self.costs.memory_limit is not None:
            words.append(f"at most {readable_bytes(self.costs.memory_limit)} a rank")
        if self.subject.pipelines > 1:
            words.append(f"one of {self.subject.pipelines} pipelines, without what they exchange")
        return ", ".join(words)

    @property
    def shown(self) -> list[tuple[Outcome, Simulated]]:
        """Those that could be made."""
        return [(one, one.simulated) for one in self.outcomes if one.simulated is not None]

    @cached_property
    def best(self) -> tuple[Outcome, Simulated] | None:
        """The first of the fastest that can be used; None if there is none."""
        usable = [(one, simulated) for one, simulated in self.shown if not one.refused]
        return min(usable, key=lambda item: item[1].seconds, default=None)

    def throughput(self, simulated: Simulated) -> float:
        """In the subject's unit."""
        return self.subject.throughput(self.setting.microbatches, simulated.seconds)

    def speed_up(self, simulated: Simulated) -> float | None:
        """Over the baseline; None if there is none."""
        return None if self.baseline is None else self.baseline.seconds / simulated.seconds


def compare(subject: PipelineSubject, setting: Setting, names: Sequence[str]) -> Comparison:
    """Makes the schedules and simulates a step of each.

    Args:
        subject: with the costs for the setting's number of micro-batches.
        setting: for which.
        names: of :data:`ooodist.planner.pipeline.plan.NAMES`, ``auto``, or CSV files.

    Raises:
        UserError: the layers take no time.
    """
    costs = subject.costs[setting.microbatches]
    if not sum(layer.seconds for layer in costs.layers) > 0:
        raise UserError(
            f"the {len(costs.layers)} layers of {subject.title} take 0 seconds; give the seconds "
            "of at least one as forward, input_gradient or weight_gradient"
        )
    outcomes = {name: _outcome(costs, setting, name) for name in names}
    baseline = outcomes.get(BASELINE)
    if baseline is None or setting.chunks not in (None, 1):
        baseline = _outcome(costs, replace(setting, chunks=None), BASELINE)
    return Comparison(subject, setting, tuple(outcomes.values()), baseline.simulated)


def link_title(link: Link) -> str:
    """What links cost, in a few words."""
    words = [readable_seconds(link.latency)] if link.latency else []
    if link.seconds_per_byte:
        words.append(f"{8e-9 / link.seconds_per_byte:.4g} Gbit/s")
    return f"links of {' and '.join(words)}" if words else FREE_LINKS


def readable_seconds(seconds: float) -> str:
    """``0.0015`` -> ``1.5 ms``."""
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e6:.3g} us"


def _outcome(costs: ModelCosts, setting: Setting, name: str) -> Outcome:
    try:
        simulated = _simulated(costs, setting, name)
        return Outcome(name, simulated, _too_large(simulated, costs.memory_limit))
    except UserError as error:
        # Without the grid of a schedule that cannot run.
        refused = str(error).splitlines()[0].removeprefix(f"schedule {name}, ")
    return Outcome(name, _without_limit(costs, setting, name), refused)


def _without_limit(costs: ModelCosts, setting: Setting, name: str) -> Simulated | None:
    """What a schedule that is refused would take with more memory; None if that is not it."""
    if costs.memory_limit is None or name == AUTO:  # which finds what fits, if there is anything
        return None
    try:
        return _simulated(replace(costs, memory_limit=None), setting, name)
    except UserError:
        return None


def _simulated(costs: ModelCosts, setting: Setting, name: str) -> Simulated:
    plan = make_plan(costs, setting.ranks, setting.microbatches, name, setting.chunks)
    return Simulated(plan, plan.timeline)


def _too_large(simulated: Simulated, limit: int | None) -> str:
    """Why it does not fit, which nobody has checked for a file of a schedule; empty if it fits."""
    if limit is None or simulated.peak_bytes <= limit:
        return ""
    rank = simulated.timeline.peak_bytes.index(simulated.peak_bytes)
    return f"rank {rank} keeps {simulated.peak_bytes} bytes, and the memory limit is {limit}"


def _count(number: int, word: str, plural: str = "s") -> str:
    return f"{number} {word}{'' if number == 1 else plural}"
