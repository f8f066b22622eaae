"""Tables of plans, with costs whose times are known."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ooodist.planner.costs import Network, SavedTensor, StepCosts
from ooodist.planner.data_parallel.bound import lower_bound
from ooodist.planner.data_parallel.named import NamedPlans, baseline_plan, first_k_plan
from ooodist.planner.data_parallel.plan import with_carried
from ooodist.planner.data_parallel.simulate import Simulator
from ooodist.report.data_parallel.plan_table import (
    Cluster,
    Subject,
    Table,
    make_table,
    sweep_text,
    text,
    title_of,
)
from ooodist.report.tables import write_csv
from tests.planner.chains import chain_costs, each_alone

COSTS = chain_costs([1, 1, 3], forward=0.1, output_gradient=0.1, weight_gradient=0.1)


def table_of(costs: StepCosts = COSTS, workers: int = 4) -> Table:
    """Exchanges take five seconds, and nearly nothing else takes time."""
    network = Network("horovod", workers, seconds_per_byte=1.0)
    named = NamedPlans(Simulator(costs, network))
    plans = {
        "baseline": named.baseline(),
        "tuned": named.tuned(),
        "first_k": first_k_plan(costs, network, 2),
        "priority": named.priority(credit=None),
        "planned": baseline_plan(costs, network, steps_per_execution=2),
    }
    return make_table(Subject("three layers", costs), Cluster(network, "8bit", "0s"), plans)


def test_rows_are_compared_with_the_first_and_the_bound() -> None:
    rows = table_of().rows
    assert list(rows) == [*("baseline", "tuned", "first_k", "priority", "planned", "lower_bound")]
    baseline, bound = rows["baseline"], rows["lower_bound"]
    assert baseline["step_ms"] == pytest.approx(400 + 5000)  # F F F W3, and then the exchange
    assert baseline["speed_up"] == 1
    for row in rows.values():
        assert row["speed_up"] == pytest.approx(baseline["step_ms"] / row["step_ms"])
        assert row["share_of_bound"] == pytest.approx(bound["step_ms"] / row["step_ms"])
        assert 0 < row["share_of_bound"] <= 1
    assert (rows["first_k"]["k"], baseline["k"]) == (2, None)
    steps = [rows[name]["steps_per_execution"] for name in ("baseline", "planned")]
    assert steps == [1, 2]
    assert (baseline["exchanges"], bound["exchanges"]) == (2, None)  # w3, then w2 and w1


def test_a_row_for_what_may_be_carried() -> None:
    network = Network("horovod", 4, seconds_per_byte=1.0)
    baseline = baseline_plan(COSTS, network)
    names = [weight.name for weight in COSTS.weights]
    carried = with_carried(replace(baseline, exchanges=each_alone(*names)), ("w2", "w3"))
    plans = {"baseline": baseline, "planned": baseline, "carried": carried}
    table = make_table(Subject("three layers", COSTS), Cluster(network), plans)
    assert table.best == table.rows["carried"]
    assert title_of(table.best) == "planned, carrying 2"
    assert [row["carried"] for row in table.rows.values()] == [0, 0, 2, None]
    bound = table.rows["lower_bound"]["step_ms"]
    carrying, alone = (lower_bound(COSTS, network, 1, carrying=each) for each in (True, False))
    assert bound == carrying * 1e3 < alone * 1e3
    assert bound <= table.best["step_ms"]
    assert "planned, carrying 2" in text(table)


def test_text() -> None:
    title, empty, head, *lines = text(table_of()).splitlines()
    assert title == "three layers on 4 workers, horovod, 8bit, 0s"
    assert not empty
    assert " ".join(head.split()) == ("ms/step speed-up of bound exchanges steps/call peak memory")
    assert lines[0].split("  ")[0] == "engine as it comes"
    assert lines[0].split()[4:6] == ["5400.0", "1.00x"]
    assert lines[0].split()[-3:] == ["2", "1", "-"]  # these costs know nothing of memory
    assert lines[1].startswith("engine tuned")
    assert lines[2].startswith("first k (k = 2)")
    assert lines[-1].split()[0:2] == ["lower", "bound"]
    assert lines[-1].split()[-3:] == ["-", "2", "-"]


def test_titles_of_clusters() -> None:
    assert Cluster(Network("horovod", 2)).title == "2 workers, horovod, as measured"
    servers = Cluster(Network("byteps", 4), "10Gbit", "30us", 2)
    assert servers.title == "4 workers, 2 servers, byteps, 10Gbit, 30us"


def test_memory_is_shown_where_it_is_known() -> None:
    kept = SavedTensor(3 << 20, "F1", ("W1",))
    costs = StepCosts(COSTS.forward, COSTS.backward, COSTS.weights, (kept,), base_bytes=1 << 20)
    assert text(table_of(costs)).splitlines()[3].endswith("4.0 MiB")


def test_sweep_has_a_line_a_cluster() -> None:
    few, many = table_of(workers=4), table_of(workers=64)
    head, *lines = sweep_text([few, many]).splitlines()
    assert re.split("  +", head)[:3] == ["ms/step", "engine as it comes", "engine tuned"]
    assert [line.split(",")[0] for line in lines] == ["4 workers", "64 workers"]
    planned = few.rows["planned"]
    assert lines[0].split()[-4:] == [
        f"{planned['speed_up']:.2f}x",
        f"{planned['speed_up'] / few.rows['tuned']['speed_up']:.2f}x",
        f"{planned['speed_up'] / few.rows['priority']['speed_up']:.2f}x",
        f"{planned['share_of_bound']:.0%}",
    ]


def test_csv(tmp_path: Path) -> None:
    file = tmp_path / "plans.csv"
    tables = [table_of(workers=4), table_of(workers=64)]
    write_csv([row for table in tables for row in table.rows.values()], file)
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 12
    assert {row["workers"] for row in rows} == {"4", "64"}
    assert (rows[2]["plan"], rows[2]["k"], rows[2]["bandwidth"]) == ("first_k", "2", "8bit")
    assert float(rows[0]["step_ms"]) == pytest.approx(5400)
    assert rows[5]["exchanges"] == ""
