"""Compares plans: as a table for people, and as CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ooodist.planner.costs import Network, StepCosts
from ooodist.planner.data_parallel.bound import lower_bound
from ooodist.planner.data_parallel.orders import first_k_order, movable_layers
from ooodist.planner.data_parallel.plan import Plan, carried_exchanges
from ooodist.planner.data_parallel.search import costs_of_bound
from ooodist.planner.data_parallel.simulate import Simulator
from ooodist.planner.narrowing import narrow_bytes
from ooodist.planner.rows import with_rows
from ooodist.report.tables import Columns, Row, aligned, cells, milliseconds, readable_bytes
from ooodist.util.quantity import counted

BOUND = "lower_bound"
CARRIED = "carried"
NARROW = "narrow"
TITLES = {
    "baseline": "engine as it comes",
    "tuned": "engine tuned",
    CARRIED: "planned, carrying",
    NARROW: "planned, in fewer bytes:",
}  # others keep their names
_COMPARED = ("baseline", "tuned", "priority")
_COLUMNS: Columns = {
    "ms/step": ("step_ms", lambda ms: milliseconds(ms / 1e3)),
    "speed-up": ("speed_up", "{:.2f}x".format),
    "of bound": ("share_of_bound", "{:.0%}".format),
    "exchanges": ("exchanges", str),
    "steps/call": ("steps_per_execution", str),
    "peak memory": ("peak_bytes", readable_bytes),
}


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
class Table:
    """The plans for one cluster.

    Attributes:
        subject: what was planned.
        cluster: where the plans are to run.
        rows: by the name of the plan. The baseline is first, then others, the planned one and, if
            plans may carry exchanges, the best of those. The lower bound is last; it has no
            exchanges and no memory.
    """

    subject: Subject
    cluster: Cluster
    rows: Mapping[str, Row]

    @property
    def title(self) -> str:
        """Model and cluster in a few words."""
        return f"{self.subject.title} on {self.cluster.title}"

    @property
    def best(self) -> Row:
        """The row of the best plan that was found."""
        return list(self.rows.values())[-2]


def make_table(subject: Subject, cluster: Cluster, plans: Mapping[str, Plan]) -> Table:
    """Makes the table of plans, of which the first is baseline and the last the best one.

    The lower bound is for calls with as many steps as the longest. It is that of plans that carry
    exchanges if there is a row ``carried``, and of those with gradients in fewer bytes if one has
    some.

    Args:
        subject: what the plans are for.
        cluster: where they are to run.
        plans: from :func:`ooodist.planner.data_parallel.search.comparison`.
    """
    costs, network = subject.costs, cluster.network
    simulator = Simulator(costs, network)
    steps = max(plan.steps_per_execution for plan in plans.values())
    sent = costs_of_bound(costs, network, plans.values())
    bound = lower_bound(*sent, steps, carrying=CARRIED in plans)
    seconds = {name: simulator.step_seconds(plan) for name, plan in plans.items()}
    rows = {}
    for name, step_seconds in {**seconds, BOUND: bound}.items():
        row = rows[name] = {
            "model": subject.title,
            "engine": network.engine,
            "workers": network.workers,
            "servers": cluster.servers,
            "bandwidth": cluster.bandwidth,
            "latency": cluster.latency,
            "plan": name,
            "k": None,  # the least one with this order
            "step_ms": step_seconds * 1e3,
            "speed_up": next(iter(seconds.values())) / step_seconds,
            "share_of_bound": bound / step_seconds,
            "exchanges": None,
            "steps_per_execution": steps,
            "peak_bytes": None,
            "carried": None,  # exchanges that a call leaves to the next one
            "narrow_bytes": None,  # of gradients, in full width, that travel in 16 bits
            "wire": None,
            "low_rank": None,  # of which gradients travel so, the rank and the bytes in full width
        }
        if (plan := plans.get(name)) is not None:
            row["k"] = _k(plan, costs) if name == "first_k" else None
            row["exchanges"] = len(plan.exchanges) if network.workers > 1 else 0
            row["steps_per_execution"] = plan.steps_per_execution
            row["peak_bytes"] = simulator.peak_bytes(plan) if costs.tensors else None
            row["carried"] = len(carried_exchanges(plan)) if CARRIED in plans else None
            row["narrow_bytes"] = narrow_bytes(plan, costs) if NARROW in plans else None
            row["wire"] = plan.wire
            row["low_rank"] = ", ".join(_ranks(plan, costs)) or None
    return Table(subject, cluster, rows)


def text(table: Table) -> str:
    """Formats a table with a line per plan."""
    lines = [(title_of(row), *cells(row, _COLUMNS)) for row in table.rows.values()]
    return f"{table.title}\n\n{aligned([('', *_COLUMNS), *lines])}"


def sweep_text(tables: Sequence[Table]) -> str:
    """Formats a line per cluster: ms a step of each plan, and what planning gains."""
    names = [_title(name) for name in tables[0].rows]
    lines = [("ms/step", *names, "over as it comes", "over tuned", "over priority", "of bound")]
    for table in tables:
        gains = (table.rows[name]["step_ms"] / table.best["step_ms"] for name in _COMPARED)
        times = (milliseconds(row["step_ms"] / 1e3) for row in table.rows.values())
        share = f"{table.best['share_of_bound']:.0%}"
        lines.append((table.cluster.title, *times, *(f"{gain:.2f}x" for gain in gains), share))
    return aligned(lines)


def title_of(row: Row) -> str:
    """The name of a plan for people."""
    words = _title(row["plan"])
    if row["plan"] == CARRIED:
        words += f" {row['carried']}"
    sent = [row["low_rank"]] if row["low_rank"] else []
    if row["wire"] is not None:
        sent.append(f"{row['wire']} for {readable_bytes(row['narrow_bytes'] or 0)}")
    words = " ".join([words, *filter(None, [", ".join(sent)])])
    return words if row["k"] is None else f"{words} (k = {row['k']})"


def _ranks(plan: Plan, costs: StepCosts) -> list[str]:
    sizes = {weight.name: weight.num_bytes for weight in costs.weights}
    return [
        f"rank {group.rank} for {readable_bytes(sum(sizes[name] for name in group.weights))}"
        for group in plan.low_rank
    ]


def _title(name: str) -> str:
    return TITLES.get(name, name.replace("_", " "))


def _k(plan: Plan, costs: StepCosts) -> int:
    numbers = range(len(movable_layers(costs)) + 1)
    return next(k for k in numbers if first_k_order(costs, k) == plan.order)
