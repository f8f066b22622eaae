"""Plans for some clusters, and writes the plans, pictures and traces for Perfetto."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ooodist.planner.data_parallel.plan import Plan
from ooodist.planner.data_parallel.plan import write as write_plan
from ooodist.planner.data_parallel.search import Limits, comparison
from ooodist.planner.data_parallel.simulate import Simulation, Simulator
from ooodist.report import plan_files
from ooodist.report.chart import Chart
from ooodist.report.data_parallel.charts import calls_within, simulated
from ooodist.report.data_parallel.plan_table import (
    Cluster,
    Subject,
    Table,
    make_table,
    sweep_text,
    text,
)
from ooodist.report.grid import time_grid
from ooodist.report.overlap import simulated_overlap
from ooodist.report.plan_files import files_text, write_charts, written_to
from ooodist.report.search_line import search_line
from ooodist.report.tables import milliseconds, write_csv
from ooodist.util import yaml_dataclass
from ooodist.util.quantity import counted

logger = logging.getLogger("ooodist")

SHOWN = ("baseline", "planned", "carried", "narrow")  # as far as they are there
STEPS_SHOWN = 2  # of the first plan; pictures show how far the others get in that time


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
        with search_line() as line:
            plans = comparison(there.costs, cluster.network, limits=limits, progress=line)
        for name in plans.keys() & {"planned", "carried", "narrow"}:
            plans[name] = replace(plans[name], model=subject.model)
        tables.append(make_table(there, cluster, plans))
        folder = output
        if len(clusters) > 1:
            folder /= f"{cluster.network.workers}-workers-{cluster.bandwidth}"
        with written_to(output):
            folder.mkdir(parents=True, exist_ok=True)
            best = _write(folder, plans, tables[-1])
    with written_to(output):
        rows = [row for table in tables for row in table.rows.values()]
        write_csv(rows, output / plan_files.CSV_NAME)
        yaml_dataclass.write_file(subject.costs, output / plan_files.COSTS_NAME)
    if len(tables) > 1:
        files = files_text(output, [plan_files.CSV_NAME, plan_files.COSTS_NAME])
        return f"{sweep_text(tables)}\n\n{files}"
    files = files_text(output, plan_files.OF_CLUSTER)
    return "\n\n".join([text(tables[0]), f"{best.title}\n{time_grid(best)}", files])


def _write(folder: Path, plans: Mapping[str, Plan], table: Table) -> Chart:
    """Writes the best plan, which is the last, and the picture and trace for one cluster.

    The result is the chart of the best plan.
    """
    simulator = Simulator(table.subject.costs, table.cluster.network)
    simulations = {name: simulator.run(plans[name]) for name in SHOWN if name in plans}
    best = [*simulations][-1]
    plan, latency = plans[best], table.cluster.network.latency
    assert plan.predicted is not None
    # For those who run the plan without the costs.
    share = simulated_overlap(simulations[best], latency).share
    predicted = replace(plan.predicted, hidden_share=share)
    write_plan(replace(plan, predicted=predicted), folder / plan_files.PLAN_NAME)
    seconds = STEPS_SHOWN * next(iter(simulations.values())).step_seconds
    charts = [
        _chart(table, plans[name], name, simulation, seconds)
        for name, simulation in simulations.items()
    ]
    write_charts(charts, table.title, folder, seconds)
    return charts[-1]


def _chart(table: Table, plan: Plan, name: str, simulation: Simulation, seconds: float) -> Chart:
    """A chart of calls that take at least so many seconds together."""
    costs, network = table.subject.costs, table.cluster.network
    speed_up = "" if name == "baseline" else f" ({table.rows[name]['speed_up']:.2f}x)"
    hidden = simulated_overlap(simulation, network.latency).share
    title = (
        f"{name}: {milliseconds(simulation.step_seconds)} ms a step{speed_up}, "
        f"{counted(simulation.steps, 'step')} a call, {hidden:.0%} of the exchange hidden"
    )
    calls = calls_within(seconds, simulation)
    return simulated(
        simulation, costs, network, name=name, title=title, calls=calls, order=plan.order
    )
