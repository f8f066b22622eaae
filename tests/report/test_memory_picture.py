"""What ranks keep over time."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from PIL import Image

from ooodist.planner.pipeline.actions import Schedule, from_csv
from ooodist.planner.pipeline.costs import PipelineCosts, StageCost
from ooodist.planner.pipeline.layer_costs import ModelCosts
from ooodist.report.chart import Chart
from ooodist.report.memory_picture import draw_memory
from ooodist.report.picture import write
from ooodist.report.pipeline.charts import memory_curves, pipeline_chart
from ooodist.report.pipeline.outcomes import Simulated
from tests.planner.pipelines import pipelines
from tests.report.pipeline_examples import equal_layers, simulate, simulated_of

BASE = 1000


def one_rank() -> Simulated:
    """Two micro-batches, the second one's W with its I; an update of a second."""
    cost = StageCost(
        1, 1, 1, input_bytes=1, weight_bytes=10, gradient_bytes=100, base_bytes=BASE, update=1
    )
    schedule = from_csv("0F0,0F1,0I0,0W0,0B1\n", "x")
    return simulated_of((schedule, PipelineCosts((cost,))))


def chart(name: str, costs: ModelCosts, ranks: int, microbatches: int) -> Chart:
    return pipeline_chart(simulate(costs, ranks, microbatches, name), name, name)


def test_by_hand() -> None:
    (curve,) = memory_curves(one_rank())
    assert [(seconds, num_bytes - BASE) for seconds, num_bytes in curve] == [
        (0, 0),
        *((0, 11), (1, 11)),
        *((1, 22), (2, 22)),
        *((2, 122), (3, 121)),
        *((3, 121), (4, 11)),
        *((4, 111), (6, 0)),
        (7, 0),
    ]


@given(pipelines())
def test_curves_begin_and_end_with_what_is_always_kept(
    pipeline: tuple[Schedule, PipelineCosts],
) -> None:
    schedule, costs = pipeline
    simulated = simulated_of(pipeline)
    curves = memory_curves(simulated)
    assert len(curves) == schedule.ranks
    for rank, curve in enumerate(curves):
        those = zip(schedule.rank_of, costs.stages, strict=True)
        base = sum(stage.base_bytes for owner, stage in those if owner == rank)
        assert curve[0] == (0, base)
        assert curve[-1] == (simulated.seconds, base)
        assert max(num_bytes for _, num_bytes in curve) == simulated.timeline.peak_bytes[rank]
        times = [seconds for seconds, _ in curve]
        assert times == sorted(times)


def test_each_rank_has_a_curve_and_all_panels_the_limit() -> None:
    costs = equal_layers(4, kept=3 << 20, base=1 << 20)
    charts = [chart(name, costs, 4, 8) for name in ("gpipe", "1f1b")]
    figure = draw_memory(charts, 20 << 20, "memory")
    above, below = figure.axes
    for axes, peaks in ((above, [25] * 4), (below, [13, 10, 7, 4])):
        *curves, limit = axes.lines
        assert [max(curve.get_ydata()) for curve in curves] == peaks
        assert list(limit.get_ydata()) == [20, 20]
        assert axes.get_ylabel() == "MiB"
    assert above.get_ylim() == below.get_ylim()
    assert above.get_ylim()[1] > 25
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["rank 0", "rank 1", "rank 2", "rank 3", "limit: 20.0 MiB"]


def test_no_limit_and_nothing_known_of_memory() -> None:
    figure = draw_memory([chart("1f1b", equal_layers(2), 2, 3)], None, "")
    (axes,) = figure.axes
    assert len(axes.lines) == 2
    assert axes.get_ylabel() == "bytes"


def test_a_limit_far_above_leaves_room_for_the_curves() -> None:
    costs = equal_layers(4, kept=3 << 20)
    figure = draw_memory([chart("1f1b", costs, 4, 8)], 1 << 40, "")
    (axes,) = figure.axes
    assert 12 < axes.get_ylim()[1] < 24  # MiB; rank 0 keeps 12
    (legend,) = figure.legends
    assert legend.get_texts()[-1].get_text() == "limit: 1.0 TiB"


@pytest.mark.parametrize("limit", [None, 1200])
def test_files(tmp_path: Path, limit: int | None) -> None:
    files = [tmp_path / "memory.png", tmp_path / "memory.svg"]
    write(draw_memory([pipeline_chart(one_rank(), "one")], limit, "what is kept"), files)
    with Image.open(files[0]) as image:
        image.load()
        assert image.format == "PNG"
    text = "".join(ElementTree.parse(files[1]).getroot().itertext())
    for part in ("what is kept", "rank 0", "time (ms)", "limit: 1.2 KiB" if limit else "KiB"):
        assert part in text
