"""Charts as text, of pipelines and of data parallel training."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ooodist.planner.costs import Network
from ooodist.planner.data_parallel.plan import Plan
from ooodist.planner.data_parallel.simulate import Simulator
from ooodist.planner.pipeline.actions import Schedule
from ooodist.planner.pipeline.costs import PipelineCosts
from ooodist.planner.pipeline.layer_costs import Link
from ooodist.report.data_parallel.charts import simulated
from ooodist.report.grid import WIDTH, time_grid
from ooodist.report.pipeline.charts import pipeline_chart
from ooodist.report.pipeline.outcomes import Simulated
from tests.planner.chains import chain_costs, each_alone
from tests.planner.pipelines import pipelines
from tests.report.pipeline_examples import equal_layers, simulate, simulated_of


def grid_of(simulated: Simulated, width: int = WIDTH) -> str:
    return time_grid(pipeline_chart(simulated, ""), width)


def rows_of(text: str) -> list[str]:
    """What stands between the bars, of all lines of ranks."""
    lines = [line for line in text.splitlines() if line.endswith("|")]
    assert all(len(line) <= WIDTH for line in lines)
    return [line.partition("|")[2].removesuffix("|") for line in lines]


def test_two_ranks_by_hand() -> None:
    assert grid_of(simulate(equal_layers(2), 2, 3, "1f1b"), width=34) == (
        "rank 0 |F-F-....I-W-F-I-W-..I-W-|\n"
        "       |0 1     0 0 2 1 1   2 2 |\n"
        "rank 1 |..F-I-W-F-I-W-F-I-W-....|\n"
        "       |  0 0 0 1 1 1 2 2 2     |\n"
        "F forward, I input gradient, W weight gradient, . waits; a column is 500 ms; "
        "below: micro-batch (last digits)\n"
        "I and W are one action here (B): what I computes is sent after W"
    )


def test_exchanges_by_hand() -> None:
    """A message and a trip of the exchange take half a second each, an update one."""
    costs = equal_layers(2, update=1.0, link=Link(0.5), replicas=2)
    lines = grid_of(simulate(costs, 2, 2, "zb_h1"), width=39).splitlines()
    assert lines[:6] == [
        "rank 0   |F-F-....I-W-I-W-..U-|",
        "         |0 1     0 0 1 1     |",
        "exchange |................X-..|",
        "rank 1   |...F-I-F-I-W-W-..U-.|",
        "         |   0 0 1 1 0 1      |",
        "exchange |...............X-...|",
    ]
    assert "U update, X exchange with replicas, . waits" in lines[6]


def test_data_parallel_by_hand() -> None:
    """w2 travels from 3 to 5, hidden; w1 from 5 to 10, when nothing else is left to do."""
    costs, network = chain_costs([5, 2]), Network("horovod", 2, seconds_per_byte=1.0)
    simulation = Simulator(costs, network).run(Plan("", None, each_alone("w2", "w1")))
    chart = simulated(simulation, costs, network, name="")
    assert time_grid(chart, width=35).splitlines()[:4] == [
        "compute  |F-F-W-I-W-..........|",
        "exchange |......E---=---------|",
        "         |      w2  w1        |",
        "F forward, I dX: input gradient, W dW: weight gradient, U update, "
        "E exchange (even steps), = exchange (not hidden), . waits; a column is 500 ms; "
        "below: layer (last digits)",
    ]


def test_stages_and_updates_are_shown_where_there_are_some() -> None:
    lines = grid_of(simulate(equal_layers(4, update=0.5), 2, 2, "zb_v"), width=69).splitlines()
    assert [line[:6] for line in lines[:6]] == [
        "rank 0",
        " " * 6,
        " " * 6,
        "rank 1",
        " " * 6,
        " " * 6,
    ]
    # rank 0 has the first and the last stage
    letters, microbatches, stages = rows_of("\n".join(lines))[:3]
    assert set(stages) == {" ", "0", "3"}
    assert set(microbatches) == {" ", "0", "1"}
    assert letters.rstrip(".").rstrip("-").endswith("U")
    assert "U update" in lines[6]
    assert "below: micro-batch and stage" in lines[6]
    assert not lines[-1].startswith("I and W")


def test_numbers_of_two_digits_are_cut_where_there_is_no_room() -> None:
    costs = equal_layers(2)
    wide = rows_of(grid_of(simulate(costs, 2, 12, "zb_h1")))
    narrow = rows_of(grid_of(simulate(costs, 2, 12, "zb_h1"), width=50))
    assert (len(wide[0]), len(narrow[0])) == (3 * 37, 37)  # m (F + I + W) + F + I - W
    assert wide[1].split()[-4:] == ["10", "10", "11", "11"]
    assert narrow[1].endswith("0011")


@given(pipelines(), st.integers(60, WIDTH))
def test_columns_add_up(pipeline: tuple[Schedule, PipelineCosts], width: int) -> None:
    """On the line of each rank, and for each kind, to half a column for each end of a bar."""
    simulated = simulated_of(pipeline)
    assume(simulated.seconds > 0)
    text = grid_of(simulated, width)
    rows = rows_of(text)
    is_coarse = "shows what takes most" in text
    each = 1 if is_coarse else 2 + (simulated.chunks > 1)
    each += any(simulated.timeline.exchanges)
    assert len(rows) == each * len(simulated.timeline.runs)
    assert len({len(row) for row in rows}) == 1
    if is_coarse:
        return
    unit = simulated.seconds / len(rows[0])
    lanes = pipeline_chart(simulated, "").by_lane()
    ranks = [lanes[f"rank {rank}"] for rank in range(len(simulated.timeline.runs))]
    for lane, row in zip(ranks, rows[::each], strict=True):
        for letter, kind in {"F": "F", "I": "I", "W": "W", "U": "update"}.items():
            shown = sum(_lengths(row, letter))
            those = [bar.end - bar.start for bar in lane if bar.kind == kind]
            assert abs(shown * unit - sum(those)) <= unit * len(those) + 1e-9
    if any(simulated.timeline.exchanges):
        for moved, row in zip(simulated.timeline.exchanges, rows[each - 1 :: each], strict=True):
            seconds = sum(exchange.end - exchange.start for exchange in moved)
            assert abs(sum(_lengths(row, "X")) * unit - seconds) <= unit * len(moved) + 1e-9
            assert set(row) <= set("X-.")


def _lengths(row: str, kind: str) -> list[int]:
    """Columns of each bar of a kind."""
    lengths = []
    for place, letter in enumerate(row):
        if letter == kind:
            rest = row[place + 1 :]
            lengths.append(1 + len(rest) - len(rest.lstrip("-")))
    return lengths


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb_h1", "zb_h2", "zb_v", "interleaved"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_columns_add_up_exactly_where_bars_end_on_columns(name: str, ranks: int) -> None:
    simulated = simulate(equal_layers(8), ranks, 8, name)
    rows = rows_of(grid_of(simulated))
    each = 2 + (simulated.chunks > 1)
    unit = simulated.seconds / len(rows[0])
    for rank, row in enumerate(rows[::each]):
        busy = simulated.timeline.busy[rank]
        assert sum(sum(_lengths(row, kind)) for kind in "FIW") * unit == pytest.approx(busy)
        assert row.count(".") * unit == pytest.approx(simulated.seconds - busy)


def test_more_actions_than_columns() -> None:
    simulated = simulate(equal_layers(4, update=30), 4, 100, "gpipe")
    text = grid_of(simulated)
    rows = rows_of(text)
    assert len(rows) == 4
    assert "and shows what takes most of it" in text
    unit = simulated.seconds / len(rows[0])
    for rank, row in enumerate(rows):
        # F of 100 micro-batches, a pause, I and W of all, the update, and waiting again
        assert row.count("F") == pytest.approx(100 / unit, abs=1.5)
        assert row.count("I") + row.count("W") == pytest.approx(200 / unit, abs=1.5)
        assert row.count("U") == pytest.approx(30 / unit, abs=1.5)
        assert row.lstrip(".").startswith("FF")
        assert len(row) - len(row.lstrip(".")) == round(rank / unit)


def test_what_has_no_column_is_said() -> None:
    text = grid_of(simulate(equal_layers(2, update=0.01), 2, 3, "1f1b"), width=34)
    assert "what takes less than half a column may be left out" in text
    assert "U" not in "".join(rows_of(text))
