"""Models that grow with the number of devices: schedules, and replicas of shorter pipelines.

    python expr/pipe_par/weak_scaling.py                      # all settings
    python expr/pipe_par/weak_scaling.py --settings nvlink_8 --repeats 1
    python expr/pipe_par/weak_scaling.py --settings nvlink_32 --rows auto zb_h1
    python expr/pipe_par/weak_scaling.py --predict            # nothing is run

BERT with 12, 24, 36 and 48 layers on 8, 16, 24 and 32 devices, emulated as in emulated.py: as the
models that Oh et al. (EuroSys'22) scale with the number of GPUs. A step has as many micro-batches
as there are devices, also where replicas divide them::

    devices 8    8 x 1   one pipeline of 8 ranks, 8 micro-batches
                 4 x 2   two pipelines of 4 ranks, 4 micro-batches each, which sum their gradients
                 2 x 4   four of 2 ranks, 2 micro-batches each

Replicas do the same at the same time, so only one of them is carried out. Its ranks wait as long as
the sums would take. Each time is added to weak_scaling.csv at once.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path

import emulated_rows
import make_costs
import weak_scaling_report
from emulated import FOLDER, is_of_another
from emulated_rows import add_lines, keep_lines, run_rows, shortest_action

from ooodist.emulation.emulate import stretched
from ooodist.errors import UserError
from ooodist.planner.pipeline.layer_costs import ModelCosts, read_model_costs
from ooodist.planner.pipeline.plan import AUTO, PipelinePlan, make_plan
from ooodist.planner.placement.hosts import Hosts
from ooodist.planner.placement.search import best_placement

MODELS = {8: "bert_12", 16: "bert_24", 24: "bert_36", 32: "bert_48"}  # by devices
LINKS = ("nvlink", "hosts")
DEVICES_OF_A_HOST = 8
REPLICAS = (2, 4)
CHUNKS = (1, 2, 3)  # stages a rank, of which a tuned schedule takes the best
FEW_PROCESSES = 8
# Of the shortest, stretched, with few processes. It grows with their number: a message may be seen
# up to 1 ms late by a rank that computes, and the more ranks, the more messages follow each other.
ACTION_SECONDS = 15e-3


@dataclass(frozen=True)
class Setting:
    """What rows are compared on.

    Attributes:
        link: ``nvlink`` between all devices; ``hosts``: inside of hosts of 8 devices, and 10 GbE
            between them.
        devices: as many as micro-batches.
    """

    link: str
    devices: int

    @property
    def name(self) -> str:
        return f"{self.link}_{self.devices}"

    @cached_property
    def layers(self) -> ModelCosts:
        """Of the real devices, without hosts."""
        return read_model_costs(FOLDER / "costs" / f"{MODELS[self.devices]}_halves.yaml")

    def costs(self, replicas: int) -> ModelCosts:
        """With the links that the best placement gives to so many replicas of a pipeline."""
        costs = replace(self.layers, replicas=replicas)
        if self.link == "nvlink":
            return costs
        inside, between = make_costs.LINKS["nvlink"], make_costs.LINKS["10gbe"]
        number = self.devices // DEVICES_OF_A_HOST
        hosts = Hosts(number, DEVICES_OF_A_HOST, inside, between)
        size = self.devices // replicas
        return best_placement(costs, hosts, size, size).costs(costs, hosts)


SETTINGS = [
    Setting(link, devices)
    for link in LINKS
    for devices in MODELS
    if link == "nvlink" or devices > DEVICES_OF_A_HOST  # one host has no links to others
]
COLUMNS = (*(field.name for field in fields(Setting)), "replicas", *emulated_rows.COLUMNS)


def make_rows(setting: Setting) -> dict[int, dict[str, PipelinePlan]]:
    """What is compared: by the number of replicas, and by name."""
    rows = {1: _alone(setting)}
    for replicas in REPLICAS:
        costs, size = setting.costs(replicas), setting.devices // replicas
        rows[replicas] = {name: make_plan(costs, size, size, name) for name in ("1f1b", AUTO)}
    return rows


def _alone(setting: Setting) -> dict[str, PipelinePlan]:
    """The rows of one pipeline; one that does not fit into a device's memory is left out."""
    costs, size = setting.costs(1), setting.devices
    rows: dict[str, PipelinePlan] = {}
    for name in ("gpipe", "1f1b", "zb_h1", "zb_h2", "zb_v", "fast_forward"):
        try:
            rows[name] = make_plan(costs, size, size, name)
        except UserError as error:
            print(f"{setting.name}: no {name}: {str(error).splitlines()[0]}", flush=True)
    for name in ("interleaved", "modulo"):
        plans = [make_plan(costs, size, size, name, chunks) for chunks in CHUNKS]
        rows[name] = min(plans, key=lambda plan: plan.timeline.step_seconds)
    limit = max(rows["1f1b"].timeline.peak_bytes)
    rows["auto_equal_memory"] = make_plan(replace(costs, memory_limit=limit), size, size, AUTO)
    rows[AUTO] = make_plan(costs, size, size, AUTO)
    return rows


def stretch_factor(plan: PipelinePlan) -> float:
    """By how much a plan's seconds are stretched; each by its own, as stages differ in length."""
    longer = max(1.0, plan.schedule.ranks / FEW_PROCESSES)
    return longer * ACTION_SECONDS / shortest_action([plan])


def measure(
    setting: Setting, rows: Mapping[int, Mapping[str, PipelinePlan]], repeats: int
) -> Iterator[dict[str, object]]:
    """A line of the CSV file for each row and repeat, as soon as it is known."""
    for replicas, plans in rows.items():
        factors = {name: stretch_factor(plan) for name, plan in plans.items()}
        slow = {
            name: replace(plan, costs=stretched(plan.costs, factors[name]))
            for name, plan in plans.items()
        }
        for line in run_rows(slow, repeats):
            yield {**asdict(setting), "replicas": replicas, **line, "factor": factors[line["row"]]}


def predicted(rows: Mapping[int, Mapping[str, PipelinePlan]]) -> str:
    """The simulated rows as lines of text, with the seconds that one repeat takes here."""
    lines = []
    for replicas, plans in rows.items():
        for name, plan in plans.items():
            timeline, ranks = plan.timeline, plan.schedule.ranks
            speed = make_costs.SENTENCES * ranks * replicas / timeline.step_seconds
            lines.append(
                f"  {ranks:2} x {replicas} {name:18} {speed:6.0f} sentences/s, bubble "
                f"{timeline.bubble:4.0%}, {max(timeline.peak_bytes) / 1e9:4.1f} GB; "
                f"{timeline.step_seconds * stretch_factor(plan):4.1f} s here"
            )
    return "\n".join(lines)


def is_not_measured(setting: Setting, rows: Collection[str], line: Mapping[str, str]) -> bool:
    """Whether a line of the CSV file is of another setting or of none of these rows."""
    return is_of_another(setting, line) or line["row"] not in rows


def main() -> None:
    names = [setting.name for setting in SETTINGS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--rows", nargs="+", metavar="NAME", help="only these; the others stay")
    parser.add_argument("--repeats", type=int, default=2, help="of each row, after an untimed one")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of CSV and figure")
    parser.add_argument("--predict", action="store_true", help="only print the simulated rows")
    options = parser.parse_args()

    file = options.output / "weak_scaling.csv"
    start = time.monotonic()
    for setting in SETTINGS:
        if setting.name not in options.settings:
            continue
        rows = {
            replicas: {
                name: plan
                for name, plan in plans.items()
                if options.rows is None or name in options.rows
            }
            for replicas, plans in make_rows(setting).items()
        }
        if not any(rows.values()):
            parser.error(f"--rows {' '.join(options.rows)}: {setting.name} has none of these")
        print(f"{setting.name}: planned, {time.monotonic() - start:.0f} s", flush=True)
        print(predicted(rows), flush=True)
        if options.predict:
            continue
        measured = {name for plans in rows.values() for name in plans}
        keep_lines(file, COLUMNS, partial(is_not_measured, setting, measured))
        add_lines(file, COLUMNS, measure(setting, rows, options.repeats))
        print(f"{setting.name}: measured, {time.monotonic() - start:.0f} s", flush=True)
    if not options.predict:
        weak_scaling_report.write(file)


if __name__ == "__main__":
    main()
