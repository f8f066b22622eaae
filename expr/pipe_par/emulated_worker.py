"""One rank of emulated.py: carries out all schedules of a folder in turn, over and over.

    mpirun -np 8 python expr/pipe_par/emulated_worker.py FOLDER REPEATS

The folder has for each row NAME.csv, its schedule, and NAME.yaml, the costs of its stages. Rank 0
prints a line of JSON for each row and repeat.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ooodist.emulation.emulate import emulate
from ooodist.engines.communicator import Communicator
from ooodist.planner.pipeline.actions import from_csv
from ooodist.planner.pipeline.costs import PipelineCosts
from ooodist.util import strict_yaml, yaml_dataclass


def main(folder: Path, repeats: int) -> None:
    world = Communicator.of_all()
    rows = []
    for file in sorted(folder.glob("*.csv")):
        schedule = from_csv(file.read_text(encoding="utf-8"), file.stem)
        text = file.with_suffix(".yaml").read_text(encoding="utf-8")
        costs: PipelineCosts = yaml_dataclass.read(
            PipelineCosts, strict_yaml.parse(text, file.stem)
        )
        rows.append((schedule, costs))
    for repeat in range(repeats):
        for schedule, costs in rows:
            # Connections are made once, and rows take turns: what the machine does meets all.
            warm_up = 1 if repeat == 0 else 0
            result = emulate(world, schedule, costs, steps=1, warm_up=warm_up)
            if result is None:
                continue
            line = {
                "row": schedule.name,
                "repeat": repeat,
                "seconds": result.median,
                "bubble": result.measured.bubble,
                "overhead": result.overhead,
            }
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
