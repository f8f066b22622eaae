"""Schedules side by side, with costs whose times are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from ooodist.errors import UserError
from ooodist.planner.pipeline.actions import Schedule, to_csv
from ooodist.planner.pipeline.costs import PipelineCosts
from ooodist.planner.pipeline.layer_costs import LayerCost, Link, ModelCosts
from ooodist.planner.pipeline.named.schedules import gpipe
from ooodist.report.pipeline.outcomes import (
    Outcome,
    PipelineSubject,
    Setting,
    Simulated,
    link_title,
)
from ooodist.report.pipeline.outcomes import compare as compare_subject
from tests.planner.pipelines import pipelines
from tests.report.pipeline_examples import ALL, compare, equal_layers, simulate, simulated_of


def made(outcome: Outcome) -> Simulated:
    assert outcome.simulated is not None
    return outcome.simulated


def test_golden_values() -> None:
    result = compare(equal_layers(8), 4, 8, *ALL)
    seconds = {one.name: made(one).seconds for one in result.outcomes}
    # A stage has two of the layers, or one if a rank has two stages.
    assert seconds["1f1b"] == seconds["gpipe"] == 2 * 33
    assert seconds["zb_h1"] == 2 * 27
    assert [made(one).chunks for one in result.outcomes] == [1, 1, 1, 2]
    assert result.baseline is result.outcomes[1].simulated
    assert result.speed_up(made(result.outcomes[2])) == pytest.approx(33 / 27)
    assert made(result.outcomes[1]).timeline.bubble == pytest.approx(1 - 24 / 33)
    assert result.best is not None
    assert result.best[1].seconds == min(seconds.values())


def test_the_first_of_the_fastest_is_the_best() -> None:
    result = compare(equal_layers(2), 2, 3, "gpipe", "1f1b")
    assert result.best is not None
    assert result.best[0].name == "gpipe"


def test_bubble_of_spans_by_hand() -> None:
    # rank 0: F0 F1 .. .. I0 W0 F2 I1 W1 .. I2 W2; rank 1 never waits after its first action.
    simulated = simulate(equal_layers(2), 2, 3, "1f1b")
    assert simulated.timeline.spans == (12, 9)
    assert simulated.timeline.busy == (9, 9)
    assert simulated.bubble_of_spans == pytest.approx((1 - 9 / 12 + 0) / 2)
    assert simulated.timeline.bubble == pytest.approx(1 - 18 / 24)


@given(pipelines())
def test_a_span_is_no_longer_than_the_step(pipeline: tuple[Schedule, PipelineCosts]) -> None:
    simulated = simulated_of(pipeline)
    assert 0 <= simulated.bubble_of_spans <= simulated.timeline.bubble + 1e-12
    assert simulated.seconds >= simulated.timeline.makespan
    assert simulated.peak_bytes == max(simulated.timeline.peak_bytes)


def test_what_does_not_fit_is_shown_with_the_reason() -> None:
    # 1f1b keeps four micro-batches at most, gpipe all eight.
    result = compare(equal_layers(4, kept=10, base=5, limit=45), 4, 8, *ALL, "auto")
    gpipe_, one, *_, auto = result.outcomes
    assert (made(gpipe_).peak_bytes, made(one).peak_bytes) == (85, 45)
    assert gpipe_.refused.startswith("rank 0, step 4: 0F4 needs 55 bytes, and the memory limit is")
    assert "\n" not in gpipe_.refused
    assert not one.refused
    assert not auto.refused
    assert result.best is not None
    assert not result.best[0].refused
    assert result.best[1].peak_bytes <= 45
    assert result.shown[0][0].name == "gpipe"


def test_what_cannot_be_made_is_shown_with_the_reason() -> None:
    result = compare(equal_layers(4), 4, 2, *ALL)
    assert result.outcomes[3].simulated is None
    assert "4 layers cannot be split into 8 stages" in result.outcomes[3].refused
    assert [outcome.name for outcome, _ in result.shown] == ["gpipe", "1f1b", "zb_h1"]
    result = compare(equal_layers(8), 4, 2, "1f1b", "gpipe", chunks=2)
    assert result.outcomes[0].simulated is None
    assert "the schedule 1f1b has 1 stage a rank" in result.outcomes[0].refused
    assert made(result.outcomes[1]).chunks == 2


def test_nothing_fits() -> None:
    result = compare(equal_layers(8, kept=10, limit=5), 4, 2, "1f1b", "auto")
    one, auto = result.outcomes
    assert one.refused
    assert made(one).peak_bytes == 40  # what it would take without the limit
    assert auto.simulated is None
    assert "a memory limit of 5 bytes a rank is too low for a single micro-batch" in auto.refused
    assert result.best is None
    assert result.baseline is one.simulated


def test_baseline_is_1f1b_with_one_stage_a_rank() -> None:
    result = compare(equal_layers(8), 4, 8, "zb_v", chunks=2)
    assert result.baseline is not None
    assert result.baseline.seconds == 2 * 33
    assert compare(equal_layers(8), 4, 8, "zb_v").baseline == result.baseline
    none = compare(equal_layers(2), 4, 8, "1f1b")
    assert none.baseline is None
    assert none.best is None
    assert none.speed_up(result.baseline) is None


def test_a_schedule_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text(to_csv(gpipe(2, 3)))
    costs = equal_layers(4, kept=10)
    (outcome,) = compare(costs, 2, 3, str(file)).outcomes
    assert made(outcome).seconds == 2 * (3 + 1) * 3
    (outcome,) = compare(costs, 2, 4, str(file)).outcomes
    assert outcome.simulated is None
    assert "is for 2 ranks and 3 micro-batches" in outcome.refused
    limited = equal_layers(4, kept=10, limit=40)
    (outcome,) = compare(limited, 2, 3, str(file)).outcomes
    assert made(outcome).peak_bytes == 60
    assert "memory limit is 40" in outcome.refused


def test_throughput_is_in_samples_where_they_are_known() -> None:
    costs = equal_layers(2)
    unknown, known = compare(costs, 2, 3, "1f1b"), compare(costs, 2, 3, "1f1b", batch=48)
    simulated = made(unknown.outcomes[0])
    assert (unknown.subject.unit, unknown.throughput(simulated)) == ("micro-batches/s", 3 / 12)
    assert (known.subject.unit, known.throughput(simulated)) == ("samples/s", 48 / 12)


def test_layers_that_take_no_time() -> None:
    costs = ModelCosts((LayerCost("a", update=1), LayerCost("b")))
    with pytest.raises(UserError, match="the 2 layers of layers take 0 seconds; give the seconds"):
        compare(costs, 2, 3, "1f1b")


def test_titles() -> None:
    setting = Setting(1, 1)
    assert (setting.title, setting.folder) == ("1 rank, 1 micro-batch", "p1-m1")
    setting = Setting(4, 8, 2)
    assert (setting.title, setting.folder) == ("4 ranks, 8 micro-batches, 2 chunks", "p4-m8-v2")
    setting = Setting(4, 8, replicas=3)
    assert (setting.title, setting.folder) == ("4 ranks, 8 micro-batches, 3 replicas", "p4-m8-d3")
    assert link_title(Link()) == "links that cost nothing"
    assert link_title(Link(5e-5, 8e-10)) == "links of 50 us and 10 Gbit/s"
    assert link_title(Link(5e-3)) == "links of 5 ms"
    assert link_title(Link(0, 8e-9)) == "links of 1 Gbit/s"
    costs = equal_layers(4, limit=3 << 20, link=Link(5e-5))
    between = replace(costs, replica_link=Link(0, 8e-9))
    subject = PipelineSubject("layers", {8: between}, {8: 64})
    assert compare_subject(subject, Setting(2, 8, replicas=2), ["1f1b"]).title == (
        "layers on 2 ranks, 8 micro-batches, 2 replicas, links of 50 us, at most 3.0 MiB a rank, "
        "between replicas links of 1 Gbit/s"
    )


def test_replicas_add_to_the_throughput_and_exchange() -> None:
    costs = equal_layers(2, link=Link(0.5))
    one, two = (
        compare(costs, 2, 3, "1f1b", batch=12, replicas=number).outcomes[0] for number in (1, 2)
    )
    alone, both = made(one), made(two)
    assert both.seconds == alone.seconds + 1
    assert both.timeline.exposed_exchange == 1
    for number, simulated in ((1, alone), (2, both)):
        result = compare(costs, 2, 3, "1f1b", batch=12, replicas=number)
        assert result.costs.replicas == number
        assert result.throughput(simulated) == pytest.approx(number * 12 / simulated.seconds)


def test_replicas_whose_gradients_have_no_known_size() -> None:
    with pytest.raises(UserError, match=r"2 replicas of a pipeline sum .* no layer has exchanged"):
        compare(ModelCosts((LayerCost("a", 1.0),)), 1, 1, "gpipe", replicas=2)
