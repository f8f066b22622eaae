"""What an exchange takes with each engine, on the wire and of the CPU: two emulated hosts.

    python expr/engines/run.py [--cases NAME ...] [--rounds 3] [--rate 250Mbit] [--out results.csv]

Needs root (launch/netlab.py says why). Each host has one core, on which its worker and its server
run. A round runs every case once, so that what else the machine does hits all alike. A row of the
table is the median over all repeats of all rounds, of the slower host.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for expr/lab, which is not installed

from expr.lab.network import Lab
from expr.lab.shaping import parse_rate
from ooodist.engines.kinds.kind import NICENESS
from ooodist.errors import UserError

HERE = Path(__file__).resolve().parent

MB = 10**6
LONGEST = 300.0  # seconds of one job


@dataclass(frozen=True)
class Case:
    """One way to exchange. ``options`` are those of worker.py."""

    name: str
    engine: str
    options: dict[str, object]
    variables: dict[str, str] = field(default_factory=dict)
    servers: int | None = None


def pieces(num_bytes: int, count: int, **more: object) -> dict[str, object]:
    """Options for ``count`` tensors."""
    return {"num_bytes": num_bytes, "count": count, **more}


def all_cases() -> list[Case]:
    """All that the README has."""
    large, small = pieces(4 << 20, 10), pieces(1 << 20, 40)
    tiny, one = pieces(4, 100, chained=True), pieces(1 << 20, 20, chained=True)
    made = []
    for engine in ("horovod", "byteps", "collective"):
        made.append(Case(f"{engine}, as it comes", engine, large))
        for credit in (1, 2, 4):
            settings = {"credit": credit, "planned": True}
            if engine == "byteps":
                own = {"BYTEPS_SCHEDULING_CREDIT": str(credit)}
                made.append(
                    Case(
                        f"byteps, planned, credit {credit}", engine, small | {"planned": True}, own
                    )
                )
            else:
                made.append(Case(f"{engine}, planned, credit {credit}", engine, small | settings))
        made.append(Case(f"{engine}, planned, chained 4 B", engine, tiny | {"planned": True}))
        made.append(Case(f"{engine}, planned, chained 1 MiB", engine, one | {"planned": True}))
    made.append(Case("byteps, as it comes, 1 server", "byteps", large, servers=1))
    made.append(Case("byteps, planned, 1 server", "byteps", small | {"planned": True}, servers=1))
    for cycle in ("0", "0.1", "1", "5"):
        own = {"HOROVOD_CYCLE_TIME": cycle}
        made.append(
            Case(f"horovod, cycle {cycle} ms, credit 2", "horovod", small | {"credit": 2}, own)
        )
        made.append(Case(f"horovod, cycle {cycle} ms, chained 4 B", "horovod", tiny, own))
    for engine in ("horovod", "byteps", "collective"):
        busy = {"busy": True, "planned": True, "credit": 0 if engine == "byteps" else 4}
        made.append(Case(f"{engine}, planned, busy core", engine, small | busy))
        if engine == "horovod":  # whose threads come first
            usual = {NICENESS: "0"}
            name = f"{engine}, planned, busy core, usual priority"
            made.append(Case(name, engine, small | busy, usual))
    return made


def run(lab: Lab, case: Case) -> list[list[dict[str, float]]]:
    """The rows of each host."""
    folder = Path(tempfile.mkdtemp(prefix="ooodist-engines-"))
    command = [sys.executable, str(HERE / "worker.py"), json.dumps(case.options), str(folder)]
    variables = {"TF_CPP_MIN_LOG_LEVEL": "2", **case.variables}
    job = lab.start(case.engine, command, folder, variables, case.servers)
    if job.wait(LONGEST) != 0:
        raise UserError(f"{case.name}: {job.failure} (logs: {folder})")
    hosts = []
    for rank in range(len(lab.hosts)):
        with open(folder / f"{rank}.csv", newline="") as file:
            hosts.append([{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)])
    return hosts


def median_row(case: Case, rate: int, hosts: list[list[dict[str, float]]]) -> dict[str, object]:
    """The line of the table. CPU is that of the host that needs most of it."""
    total = int(str(case.options["num_bytes"])) * int(str(case.options["count"]))
    middle = [
        {key: statistics.median(row[key] for row in rows) for key in rows[0]} for rows in hosts
    ]
    seconds = max(host["seconds"] for host in middle)
    # With two workers, both a ring and servers beside the workers send each byte once each way.
    row: dict[str, object] = {
        "case": case.name,
        "MB": round(total / MB, 1),
        "ms": round(seconds * 1e3, 1),
        "each_ms": round(seconds * 1e3 / int(str(case.options["count"])), 3),
        "share_of_rate": round(total * 8 / seconds / rate, 3),
    }
    costliest = max(middle, key=lambda host: host["own_ms"] + host["others_ms"])
    for key in ("own_ms", "others_ms", "lost_ms"):
        row[f"{key}_per_MB"] = round(costliest[key] / (total / MB), 2)
    row["idle_ms_per_second"] = round(costliest["idle_own_ms_per_second"], 1)
    return row


def main() -> None:
    """Runs the cases and prints the table as it grows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=[""], help="only those with such a name")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", default="250Mbit")
    parser.add_argument("--out", type=Path, default=HERE / "results.csv")
    options = parser.parse_args()
    cases = [case for case in all_cases() if any(name in case.name for name in options.cases)]
    found: dict[str, list[list[dict[str, float]]]] = {}
    for number in range(options.rounds):
        for case in cases:
            with Lab(2, options.rate) as lab:
                hosts = run(lab, case)
            so_far = found.setdefault(case.name, [[] for _ in hosts])
            for rows, more in zip(so_far, hosts, strict=True):
                rows.extend(more)
            row = median_row(case, parse_rate(options.rate), so_far)
            print(
                f"round {number + 1}:",
                *(f"{key} {value}" for key, value in row.items()),
                flush=True,
            )
    table = [median_row(case, parse_rate(options.rate), found[case.name]) for case in cases]
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)


if __name__ == "__main__":
    main()
