"""Schedules on emulated pipelines of 4, 8 and 16 devices: measured beside simulated.

    python expr/pipe_par/emulated.py                       # all settings
    python expr/pipe_par/emulated.py --settings bert_24_nvlink_8x16 --repeats 5

Every device is a process that waits instead of computing; schedules, runtime, MPI and messages are
real. The files in costs/ say how long a device would compute. All seconds of a setting, those of
links too, are stretched by one factor, so that no action of any row is shorter than ACTION_SECONDS:
long against what a process has to wait for a core.

Each time is added to emulated.csv at once; emulated_report.py makes the table and the figure of it.
A setting that is there already is measured anew and replaced.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path

import emulated_report
import emulated_rows
from emulated_rows import add_lines, keep_lines, run_rows, shortest_action

from ooodist.emulation.emulate import stretched
from ooodist.errors import UserError
from ooodist.planner.pipeline.layer_costs import ModelCosts, read_model_costs
from ooodist.planner.pipeline.plan import AUTO, PipelinePlan, make_plan

FOLDER = Path(__file__).parent
MODELS = ("bert_24", "bert_48")
LINKS = ("nvlink", "10gbe")
SIZES = ((4, 8), (8, 16), (16, 32))  # devices and micro-batches
PAPER = (4, 4)  # of the out-of-order paper's example, with BERT-24
ACTION_SECONDS = 15e-3  # of the shortest, stretched
CHUNKS = (2, 3, 4, 6)  # stages a rank, of which a tuned schedule takes the best


@dataclass(frozen=True)
class Setting:
    """What rows are compared on."""

    model: str
    link: str
    ranks: int
    microbatches: int

    @property
    def name(self) -> str:
        return f"{self.model}_{self.link}_{self.ranks}x{self.microbatches}"

    @property
    def costs(self) -> ModelCosts:
        """Of the real devices."""
        return read_model_costs(FOLDER / "costs" / f"{self.model}_{self.link}.yaml")


COLUMNS = (*(field.name for field in fields(Setting)), *emulated_rows.COLUMNS)


def settings() -> Iterator[Setting]:
    """All of them."""
    for link in LINKS:
        yield Setting(MODELS[0], link, *PAPER)
    for ranks, microbatches in SIZES:
        for model in MODELS:
            for link in LINKS:
                yield Setting(model, link, ranks, microbatches)


def make_rows(setting: Setting) -> dict[str, PipelinePlan]:
    """What is compared, by name. A row that does not fit into a device's memory is left out."""
    costs = setting.costs

    def plan(name: str, chunks: int | None = None) -> PipelinePlan:
        return make_plan(costs, setting.ranks, setting.microbatches, name, chunks)

    def tuned(name: str) -> PipelinePlan:
        most = len(costs.layers) // setting.ranks
        plans = [plan(name, chunks) for chunks in CHUNKS if chunks <= most] or [plan(name, 1)]
        return min(plans, key=lambda each: each.timeline.step_seconds)

    plain = plan("1f1b")
    rows = {"gpipe": plan("gpipe"), "1f1b": plain, "interleaved": tuned("interleaved")}
    rows["zb_h1"] = plan("zb_h1")
    for name in ("zb_h2", "zb_v"):
        try:
            rows[name] = plan(name)
        except UserError as error:
            print(f"{setting.name}: no {name}: {str(error).splitlines()[0]}", flush=True)
    rows["modulo"] = tuned("modulo")
    limited = replace(setting.costs, memory_limit=max(plain.timeline.peak_bytes))
    rows["auto_equal_memory"] = make_plan(limited, setting.ranks, setting.microbatches, AUTO)
    rows["auto"] = plan(AUTO)
    return rows


def measure(
    setting: Setting, rows: Mapping[str, PipelinePlan], repeats: int
) -> Iterator[dict[str, object]]:
    """A line of the CSV file for each row and repeat, as soon as it is known."""
    factor = ACTION_SECONDS / shortest_action(rows.values())
    plans = {
        name: replace(plan, costs=stretched(plan.costs, factor)) for name, plan in rows.items()
    }
    for line in run_rows(plans, repeats):
        yield {**asdict(setting), **line, "factor": factor}


def is_of_another(setting: Setting, line: Mapping[str, str]) -> bool:
    """Whether a line of the CSV file is of another setting."""
    own = {key: str(value) for key, value in asdict(setting).items()}
    return any(line[key] != value for key, value in own.items())


def main() -> None:
    names = [setting.name for setting in settings()]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--repeats", type=int, default=3, help="of each row")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of CSV and figure")
    options = parser.parse_args()

    file = options.output / "emulated.csv"
    start = time.monotonic()
    for setting in settings():
        if setting.name not in options.settings:
            continue
        rows = make_rows(setting)
        print(f"{setting.name}: planned, {time.monotonic() - start:.0f} s", flush=True)
        keep_lines(file, COLUMNS, partial(is_of_another, setting))
        add_lines(file, COLUMNS, measure(setting, rows, options.repeats))
        print(f"{setting.name}: measured, {time.monotonic() - start:.0f} s", flush=True)
    emulated_report.write(file)


if __name__ == "__main__":
    main()
