"""Compares pipeline schedules: which can be made, which fit, and how long a step takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ooodist.errors import UserError
from ooodist.planner.pipeline.layer_costs import Link, ModelCosts, with_sharded_optimizer
from ooodist.planner.pipeline.plan import AUTO, PipelinePlan, make_plan
from ooodist.planner.pipeline.simulate import PipelineTimeline
from ooodist.planner.placement.hosts import Hosts, Placement
from ooodist.planner.placement.search import best_placement
from ooodist.report.tables import readable_bytes, readable_seconds
from ooodist.util.quantity import counted

BASELINE = "1f1b"
FREE_LINKS = "links that cost nothing"


@dataclass(frozen=True)
class PipelineSubject:
    """A model whose pipelines are planned.

    Attributes:
        title: the model in a few words.
        costs: the costs of its layers, by the number of micro-batches in a step.
        batches: samples per step of one pipeline, by the number of micro-batches; None if only the
            costs are known.
        hosts: the hosts on which ranks are placed; None if all links are alike.
    """

    title: str
    costs: Mapping[int, ModelCosts]
    batches: Mapping[int, int] | None = None
    hosts: Hosts | None = None

    @property
    def unit(self) -> str:
        """The unit of the throughput."""
        return "micro-batches/s" if self.batches is None else "samples/s"

    def throughput(self, setting: Setting, step_seconds: float) -> float:
        """The throughput of all replicas together, in ``unit``."""
        number = setting.microbatches
        return setting.replicas * (self.batches[number] if self.batches else number) / step_seconds


@dataclass(frozen=True)
class Setting:
    """The size of a pipeline for which schedules are made.

    Attributes:
        ranks: the number of ranks.
        microbatches: the number of micro-batches in a step of one pipeline.
        chunks: stages per rank; None: each schedule's default.
        replicas: the number of such pipelines, which train on different samples.
        shard_optimizer: whether the replicas divide the optimizer state among each other.
    """

    ranks: int
    microbatches: int
    chunks: int | None = None
    replicas: int = 1
    shard_optimizer: bool = False

    @property
    def title(self) -> str:
        """The setting in a few words."""
        words = [counted(self.ranks, "rank"), counted(self.microbatches, "micro-batch", "es")]
        if self.chunks is not None:
            words.append(counted(self.chunks, "chunk"))
        if self.replicas > 1:
            words.append(counted(self.replicas, "replica"))
        if self.shard_optimizer:
            words.append("sharded optimizer")
        return ", ".join(words)

    @property
    def short(self) -> str:
        """The setting in letters: ``p=4, m=8``."""
        return ", ".join(f"{letter}={number}" for letter, number in self._letters)

    @property
    def folder(self) -> str:
        """The name of the folder for the setting's files: ``p4-m8``."""
        return "-".join(f"{letter}{number}" for letter, number in self._letters)

    @property
    def _letters(self) -> list[tuple[str, int]]:
        replicas = self.replicas if self.replicas > 1 else None
        numbers = (self.ranks, self.microbatches, self.chunks, replicas)
        return [(letter, n) for letter, n in zip("pmvd", numbers, strict=True) if n is not None]


@dataclass(frozen=True)
class Simulated:
    """A plan with the timeline of a step, simulated or measured."""

    plan: PipelinePlan
    timeline: PipelineTimeline

    @property
    def chunks(self) -> int:
        """The number of stages per rank."""
        return self.plan.schedule.stages // self.plan.schedule.ranks

    @property
    def seconds(self) -> float:
        """Seconds of this timeline; steps as they are run take ``plan.seconds``."""
        return self.timeline.step_seconds

    @property
    def bubble_of_spans(self) -> float:
        """The share of its own span in which a rank waits, averaged over the ranks."""
        pairs = zip(self.timeline.busy, self.timeline.spans, strict=True)
        # Rounding may make a sum of floats slightly larger than the span.
        shares = [max(0.0, 1 - busy / span) if span else 0.0 for busy, span in pairs]
        return sum(shares) / len(shares)

    @property
    def peak_bytes(self) -> int:
        """The peak of the rank that keeps the most bytes."""
        return max(self.timeline.peak_bytes)


@dataclass(frozen=True)
class Outcome:
    """The result of planning one schedule.

    Attributes:
        name: the name under which the schedule was requested.
        simulated: the plan and its simulated step; None if it cannot be made.
        refused: why it cannot be made or does not fit into the memory limit; empty if it can be
            used.
    """

    name: str
    simulated: Simulated | None
    refused: str = ""


@dataclass(frozen=True)
class Comparison:
    """A comparison of the schedules for one setting.

    Attributes:
        subject: the model that was planned.
        setting: the size of the pipeline.
        costs: the costs of the layers and links, and the number of replicas; with all of the
            optimizer state, whether it is sharded or not.
        placement: on which hosts the ranks are placed; None if all links are alike.
        outcomes: the outcome of each schedule.
        baseline: 1F1B with one stage per rank, whether it fits or not; None if it cannot be made.
    """

    subject: PipelineSubject
    setting: Setting
    costs: ModelCosts
    placement: Placement | None
    outcomes: tuple[Outcome, ...]
    baseline: Simulated | None

    @property
    def title(self) -> str:
        """Model, setting and conditions in a few words."""
        return f"{self.subject.title} on {self.setting.title}, {self.conditions}"

    @property
    def conditions(self) -> str:
        """The links and the memory limit in a few words."""
        hosts = self.subject.hosts
        words = [link_title(self.costs.link)]
        if hosts is not None:
            each = f"{hosts.devices} devices, {link_title(hosts.inside)} inside of them"
            words = [f"{counted(hosts.number, 'host')} of {each}, and {words[0]} between"]
        if self.costs.memory_limit is not None:
            words.append(f"at most {readable_bytes(self.costs.memory_limit)} a rank")
        between = self.costs.replica_link
        if between is not None and hosts is None:
            words.append(f"between replicas {link_title(between)}")
        return ", ".join(words)

    @property
    def shown(self) -> list[tuple[Outcome, Simulated]]:
        """The outcomes that could be made, each with its simulated step."""
        return [(one, one.simulated) for one in self.outcomes if one.simulated is not None]

    @cached_property
    def best(self) -> tuple[Outcome, Simulated] | None:
        """The fastest schedule that can be used, the first if several are; None if none can."""
        usable = [(one, simulated) for one, simulated in self.shown if not one.refused]
        return min(usable, key=lambda item: item[1].plan.seconds, default=None)

    def throughput(self, simulated: Simulated) -> float:
        """The throughput in the subject's unit."""
        return self.subject.throughput(self.setting, simulated.plan.seconds)

    def speed_up(self, simulated: Simulated) -> float | None:
        """The speed-up over the baseline; None if there is no baseline."""
        if self.baseline is None:
            return None
        return self.baseline.plan.seconds / simulated.plan.seconds


def compare(subject: PipelineSubject, setting: Setting, names: Sequence[str]) -> Comparison:
    """Makes the schedules and simulates a step of each.

    Args:
        subject: the model, with costs for the setting's number of micro-batches.
        setting: the size of the pipeline.
        names: names in :data:`ooodist.planner.pipeline.plan.NAMES`, ``auto``, or CSV files.

    Raises:
        UserError: the layers take no time, it is not known what replicas exchange, or the hosts
            have another number of devices.
    """
    costs = replace(subject.costs[setting.microbatches], replicas=setting.replicas)
    if not sum(layer.seconds for layer in costs.layers) > 0:
        raise UserError(
            f"the {len(costs.layers)} layers of {subject.title} take 0 seconds; give the seconds "
            "of at least one as forward, input_gradient or weight_gradient"
        )
    placement = None
    if subject.hosts is not None:
        placement = best_placement(
            _as_kept(costs, setting),
            subject.hosts,
            setting.ranks,
            setting.microbatches,
            setting.chunks,
        )
        costs = placement.costs(costs, subject.hosts)
    outcomes = {name: _outcome(costs, setting, name) for name in names}
    baseline = outcomes.get(BASELINE)
    if baseline is None or setting.chunks not in (None, 1):
        baseline = _outcome(costs, replace(setting, chunks=None), BASELINE)
    return Comparison(
        subject, setting, costs, placement, tuple(outcomes.values()), baseline.simulated
    )


def link_title(link: Link) -> str:
    """The latency and bandwidth of a link in a few words."""
    words = [readable_seconds(link.latency)] if link.latency else []
    if link.seconds_per_byte:
        words.append(f"{8e-9 / link.seconds_per_byte:.4g} Gbit/s")
    return f"links of {' and '.join(words)}" if words else FREE_LINKS


def _outcome(costs: ModelCosts, setting: Setting, name: str) -> Outcome:
    try:
        simulated = _simulated(costs, setting, name)
        return Outcome(name, simulated, _too_large(simulated, costs.memory_limit))
    except UserError as error:
        # Only the first line: the grid of a schedule that cannot run follows it.
        refused = str(error).splitlines()[0].removeprefix(f"schedule {name}, ")
    return Outcome(name, _without_limit(costs, setting, name), refused)


def _without_limit(costs: ModelCosts, setting: Setting, name: str) -> Simulated | None:
    """The step of a refused schedule with unlimited memory; None if that does not help."""
    if costs.memory_limit is None or name == AUTO:  # auto finds a schedule that fits, if any does
        return None
    try:
        return _simulated(replace(costs, memory_limit=None), setting, name)
    except UserError:
        return None


def _simulated(costs: ModelCosts, setting: Setting, name: str) -> Simulated:
    kept = _as_kept(costs, setting)
    plan = make_plan(kept, setting.ranks, setting.microbatches, name, setting.chunks)
    return Simulated(plan, plan.timeline)


def _as_kept(costs: ModelCosts, setting: Setting) -> ModelCosts:
    """The costs with the optimizer state that a rank keeps."""
    return with_sharded_optimizer(costs, setting.replicas) if setting.shard_optimizer else costs


def _too_large(simulated: Simulated, limit: int | None) -> str:
    """Why it does not fit, else an empty string; schedule files are checked only here."""
    if limit is None or simulated.peak_bytes <= limit:
        return ""
    rank = simulated.timeline.peak_bytes.index(simulated.peak_bytes)
    return f"rank {rank} keeps {simulated.peak_bytes} bytes, and the memory limit is {limit}"
