"""Plans for some clusters, and writes the plans, figures and timelines for Perfetto."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ooodist.errors import UserError
from ooodist.planner.data_parallel import plan as plan_files
from ooodist.planner.data_parallel.plan import Plan
from ooodist.planner.data_parallel.search import Limits, comparison
from ooodist.planner.data_parallel.simulate import Simulation, Simulator
from ooodist.report import perfetto
from ooodist.report.data_parallel import figure
from ooodist.report.data_parallel.figure import Panel, deferred_units
from ooodist.report.data_parallel.overlap import simulated_overlap
from ooodist.report.data_parallel.plan_table import (
    Cluster,
    Subject,
    Table,
    make_table,
    sweep_text,
    text,
    write_csv,
)
from ooodist.report.data_parallel.tracks import predicted
from ooodist.report.search_line import SearchLine
from ooodist.util import yaml_dataclass
from ooodist.util.quantity import counted

logger = logging.getLogger("ooodist")

COSTS_NAME = "costs.yaml"
CSV_NAME = "plans.csv"
PLAN_NAME = "plan.yaml"
FIGURE_NAMES = ("timeline.png", "timeline.svg")
TRACE_NAME = "timeline.json.gz"
SHOWN = ("baseline", "planned", "carried", "narrow")  # as far as they are there
LAUNCHES_IN_TRACE = 2  # to show the arrows from one to the next


def plan_clusters(
    subject: Subject, clusters: Sequence[Cluster], limits: Limits, output: Path
) -> str:
    """Plans for each cluster and writes the files.

    Args:
        subject: what is planned.
        clusters: if there are several, each has a folder of its own in ``output``.
        limits: limits of each search.
        output: the folder for the files; made if needed, and files of an earlier planning are
            replaced.

    Returns:
        the text for people.

    Raises:
        UserError: no plan fits into the limits, or the files cannot be written.
    """
    tables: list[Table] = []
    with written_to(output):  # now rather than after the search, which may take minutes
        output.mkdir(parents=True, exist_ok=True)
    for cluster in clusters:
        logger.info("planning for %s", cluster.title)
        there = subject.on(cluster.network)
        with SearchLine() as line:
            plans = comparison(there.costs, cluster.network, limits=limits, progress=line)
        for name in plans.keys() & {"planned", "carried", "narrow"}:
            plans[name] = replace(plans[name], model=subject.model)
        tables.append(make_table(there, cluster, plans))
        folder = output
        if len(clusters) > 1:
            folder /= f"{cluster.network.workers}-workers-{cluster.bandwidth}"
        with written_to(output):
            folder.mkdir(parents=True, exist_ok=True)
            _write(folder, plans, tables[-1])
    with written_to(output):
        write_csv(tables, output / CSV_NAME)
        yaml_dataclass.write_file(subject.costs, output / COSTS_NAME)
    if len(tables) > 1:
        return (
            f"{sweep_text(tables)}\n\n{files_text(_KIND_OF_FILE, output, [CSV_NAME, COSTS_NAME])}"
        )
    files = [PLAN_NAME, *FIGURE_NAMES, TRACE_NAME, CSV_NAME, COSTS_NAME]
    return f"{text(tables[0])}\n\n{files_text(_KIND_OF_FILE, output, files)}"


@contextmanager
def written_to(output: Path) -> Iterator[None]:
    """Turns an OSError from writing there into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"--output is {output}, where nothing can be written ({error.strerror}); "
            "give a folder that can be written to"
        ) from error


def _write(folder: Path, plans: Mapping[str, Plan], table: Table) -> None:
    """Writes the best plan, which is the last, and the figure and timeline for one cluster."""
    costs, network = table.subject.costs, table.cluster.network
    simulator = Simulator(costs, network)
    simulations = {name: simulator.run(plans[name]) for name in SHOWN if name in plans}
    best = [*simulations][-1]
    planned = _with_hidden_share(plans[best], simulations[best], network.latency)
    plan_files.write(planned, folder / PLAN_NAME)
    panels = [
        Panel(
            _title(table, name, simulation, network.latency),
            simulation,
            network,
            deferred_units(costs.backward, plans[name].order),
        )
        for name, simulation in simulations.items()
    ]
    figure.write(figure.draw(panels, table.title), [folder / name for name in FIGURE_NAMES])
    processes = [
        predicted(
            simulation,
            costs,
            number=number,
            title=name,
            launches=[
                (launch * simulation.launch_seconds, launch * simulation.steps + 1)
                for launch in range(LAUNCHES_IN_TRACE)
            ],
        )
        for number, (name, simulation) in enumerate(simulations.items())
    ]
    perfetto.write_perfetto(processes, folder / TRACE_NAME)


def _with_hidden_share(plan: Plan, simulation: Simulation, latency: float) -> Plan:
    """Adds the hidden share to the prediction, for those who run the plan without the costs."""
    assert plan.predicted is not None
    share = simulated_overlap(simulation, latency).share
    return replace(plan, predicted=replace(plan.predicted, hidden_share=share))


def _title(table: Table, name: str, simulation: Simulation, latency: float) -> str:
    row = table.row(name)
    speed_up = "" if row is table.rows[0] else f" ({row.speed_up:.2f}x)"
    hidden = simulated_overlap(simulation, latency).share
    return (
        f"{name}: {row.step_seconds * 1e3:.1f} ms a step{speed_up}, "
        f"{counted(simulation.steps, 'step')} a call, {hidden:.0%} of the exchange hidden"
    )


_KIND_OF_FILE = {
    PLAN_NAME: "plan",
    "timeline.png": "picture",
    "timeline.svg": "picture",
    TRACE_NAME: "trace",
    CSV_NAME: "table",
    COSTS_NAME: "costs",
}


def files_text(kinds: Mapping[str, str], output: Path, names: Sequence[str]) -> str:
    """Formats a line per file."""
    return "\n".join(f"{kinds[name]:<9}{output / name}" for name in names)
