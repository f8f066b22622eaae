"""Compares plans: as a table for people, and as CSV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ooodist.planner.costs import Network, StepCosts
from ooodist.planner.data_parallel.bound import lower_bound
from ooodist.planner.data_parallel.orders import first_k_order, movable_layers
from ooodist.planner.data_parallel.plan import Plan, carried_exchanges
from ooodist.planner.data_parallel.simulate import Simulator
from ooodist.planner.narrowing import narrow_bytes
from ooodist.planner.rows import with_rows
from ooodist.planner.wire import at_least
from ooodist.report.tables import aligned, milliseconds, readable_bytes
from ooodist.util.quantity import counted

BOUND = "lower_bound"
CARRIED = "carried"
NARROW = "narrow"
TITLES = {
    "baseline": "engine as it comes",
    "tuned": "engine tuned",
    CARRIED: "planned, carrying",
    NARROW: "planned, with a wire:",
}  # others keep their names


@dataclass(frozen=True)
class Subject:
    """The model that plans are made for.

    Attributes:
        title: the model in a few words.
        costs: costs of a step.
        model: digest of the model; empty if only the costs are known.
        rows: whether gradients of embeddings may travel as rows.
    """

    title: str
    costs: StepCosts
    model: str = ""
    rows: bool = True

    def on(self, network: Network) -> Subject:
        """The subject with the bytes that it exchanges on a network."""
        return replace(self, costs=with_rows(self.costs, network)) if self.rows else self


@dataclass(frozen=True)
class Cluster:
    """The cluster that plans are made for.

    Attributes:
        network: costs of exchanges on the cluster.
        bandwidth, latency: as they were described; empty if the network was measured.
        servers: number of servers on hosts of their own; None if there are none.
        devices: workers per host.
    """

    network: Network
    bandwidth: str = ""
    latency: str = ""
    servers: int | None = None
    devices: int = 1

    @property
    def title(self) -> str:
        """The cluster in a few words."""
        workers = self.network.workers
        words = [counted(workers, "worker")]
        if self.devices > 1:
            words.append(counted(workers // self.devices, "host"))
        if self.servers is not None:
            words.append(counted(self.servers, "server"))
        words.append(self.network.engine)
        words += [self.bandwidth, self.latency] if self.bandwidth else ["as measured"]
        return ", ".join(words)


@dataclass(frozen=True)
class Row:
    """One plan, or the lower bound, which has no exchanges and no memory.

    Attributes:
        name: as in :func:`ooodist.planner.data_parallel.search.comparison`.
        step_seconds: seconds of a step, in simulation.
        speed_up: over the first row of the table.
        share: the lower bound divided by ``step_seconds``, 0 to 1.
        num_exchanges: exchanges per step.
        peak_bytes: peak memory of a worker; None if the costs have no tensors.
        k: for first_k, the least k with its order.
        num_carried: exchanges that a call leaves to the next one; None if no plan may.
        narrow_bytes: bytes of gradients, in full width, that travel in 16 bits; None if none may.
        wire: the dtype in which they do, if any.
    """

    name: str
    step_seconds: float
    speed_up: float
    share: float
    num_exchanges: int | None = None
    steps_per_execution: int | None = None
    peak_bytes: int | None = None
    k: int | None = None
    num_carried: int | None = None
    narrow_bytes: int | None = None
    wire: str | None = None

    @property
    def title(self) -> str:
        """The name for people."""
        words = _title(self.name)
        if self.name == CARRIED:
            words += f" {self.num_carried}"
        if self.wire is not None:
            words += f" {self.wire} for {readable_bytes(self.narrow_bytes or 0)}"
        return words if self.k is None else f"{words} (k = {self.k})"


@dataclass(frozen=True)
class Table:
    """The plans for one cluster.

    Attributes:
        subject: what was planned.
        rows: the baseline plan first, then others, the planned one and, if plans may carry
            exchanges, the best of those; the lower bound last.
    """

    subject: Subject
    cluster: Cluster
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        """Model and cluster in a few words."""
        return f"{self.subject.title} on {self.cluster.title}"

    @property
    def best(self) -> Row:
        """The row of the best plan that was found."""
        return self.rows[-2]

    def row(self, name: str) -> Row:
        """The row of a plan by its name."""
        return next(row for row in self.rows if row.name == name)


def make_table(subject: Subject, cluster: Cluster, plans: Mapping[str, Plan]) -> Table:
    """Makes the table of plans, of which the first is baseline and the last the best one.

    The lower bound is for calls with as many steps as the longest. It is that of plans that carry
    exchanges if there is a row ``carried``, and of those with gradients in 16 bits if one has some.

    Args:
        subject: what the plans are for.
        cluster: where they are to run.
        plans: from :func:`ooodist.planner.data_parallel.search.comparison`.
    """
    costs, network = subject.costs, cluster.network
    simulator = Simulator(costs, network)
    seconds = {name: simulator.step_seconds(plan) for name, plan in plans.items()}
    baseline = next(iter(plans))
    carrying = CARRIED in plans
    steps = max(plan.steps_per_execution for plan in plans.values())
    wire = next((plan.wire for plan in plans.values() if plan.wire is not None), None)
    sent = (costs, network) if wire is None else at_least(costs, network, wire)
    bound = lower_bound(*sent, steps, carrying=carrying)
    rows = [
        Row(
            name=name,
            step_seconds=seconds[name],
            speed_up=seconds[baseline] / seconds[name],
            share=bound / seconds[name],
            num_exchanges=len(plan.exchanges) if network.workers > 1 else 0,
            steps_per_execution=plan.steps_per_execution,
            peak_bytes=simulator.peak_bytes(plan) if costs.tensors else None,
            k=_k(plan, costs) if name == "first_k" else None,
            num_carried=len(carried_exchanges(plan)) if carrying else None,
            narrow_bytes=narrow_bytes(plan, costs) if NARROW in plans else None,
            wire=plan.wire,
        )
        for name, plan in plans.items()
    ]
    rows.append(Row(BOUND, bound, seconds[baseline] / bound, 1.0, steps_per_execution=steps))
    return Table(subject, cluster, tuple(rows))


def text(table: Table) -> str:
    """Formats a table with a line per plan."""
    lines = [
        ("", "ms/step", "speed-up", "of bound", "exchanges", "steps/call", "peak memory"),
        *(
            (
                row.title,
                milliseconds(row.step_seconds),
                f"{row.speed_up:.2f}x",
                f"{row.share:.0%}",
                _or_dash(row.num_exchanges),
                _or_dash(row.steps_per_execution),
                "-" if row.peak_bytes is None else readable_bytes(row.peak_bytes),
            )
            for row in table.rows
        ),
    ]
    return f"{table.title}\n\n{aligned(lines)}"


def sweep_text(tables: Sequence[Table]) -> str:
    """Formats a line per cluster: ms a step of each plan, and what planning gains."""
    names = [_title(row.name) for row in tables[0].rows]
    lines = [
        ("ms/step", *names, "over as it comes", "over tuned", "over priority", "of bound"),
        *(
            (
                table.cluster.title,
                *(milliseconds(row.step_seconds) for row in table.rows),
                f"{table.best.speed_up:.2f}x",
                *(
                    f"{table.best.speed_up / table.row(other).speed_up:.2f}x"
                    for other in ("tuned", "priority")
                ),
                f"{table.best.share:.0%}",
            )
            for table in tables
        ),
    ]
    return aligned(lines)


def csv_rows(tables: Sequence[Table]) -> Iterator[dict[str, object]]:
    """Yields a row for each plan and cluster."""
    for table in tables:
        for row in table.rows:
            yield {
                "model": table.subject.title,
                "engine": table.cluster.network.engine,
                "workers": table.cluster.network.workers,
                "servers": table.cluster.servers,
                "bandwidth": table.cluster.bandwidth,
                "latency": table.cluster.latency,
                "plan": row.name,
                "k": row.k,
                "step_ms": f"{row.step_seconds * 1e3:.4f}",
                "speed_up": f"{row.speed_up:.4f}",
                "share_of_bound": f"{row.share:.4f}",
                "exchanges": row.num_exchanges,
                "steps_per_execution": row.steps_per_execution,
                "peak_bytes": row.peak_bytes,
                "carried": row.num_carried,
                "narrow_bytes": row.narrow_bytes,
            }


def _k(plan: Plan, costs: StepCosts) -> int:
    numbers = range(len(movable_layers(costs)) + 1)
    return next(k for k in numbers if first_k_order(costs, k) == plan.order)


def _title(name: str) -> str:
    return TITLES.get(name, name.replace("_", " "))


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)
