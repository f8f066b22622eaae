"""The callback, in real training runs of one worker."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path
from typing import Any, Literal

import keras
import pytest
import tensorflow as tf

from ooodist.errors import UserError
from ooodist.planner.costs import Network, StepCosts, UnitCost, WeightCost
from ooodist.planner.data_parallel.plan import Plan, PlannedExchange, PlanWithCosts, Prediction
from ooodist.report.data_parallel.trace import Trace
from tests.report.recording import dense_model, distributed, fit, samples


def slices(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path) as file:
        return [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]


def profiler_is_free(folder: Path) -> bool:
    tf.profiler.experimental.start(str(folder))
    tf.profiler.experimental.stop(save=False)
    return True


@pytest.mark.parametrize(
    ("steps_per_execution", "num_steps", "shown"), [(1, 3, [3, 4, 5]), (2, 3, [5, 6, 7, 8])]
)
def test_records_whole_launches_behind_the_warm_up(
    steps_per_execution: int, num_steps: int, shown: list[int], tmp_path: Path, caplog: Any
) -> None:
    caplog.set_level(logging.INFO, "ooodist")
    model = distributed(dense_model, order="first_k", k=3, steps_per_execution=steps_per_execution)
    trace = Trace(tmp_path / "made" / "here", num_steps)
    fit(model, 12, callbacks=[trace])

    summary = trace.summary
    assert summary is not None
    found = slices(summary.path)
    # The first launch is traced, the second warms up.
    assert sorted({e["args"]["step"] for e in found}) == shown
    assert summary.path == tmp_path / "made" / "here" / "trace.json.gz"
    assert summary.num_steps == len(shown)
    assert 0 < sum(e["dur"] for e in found) / 1e6 < summary.step_seconds * len(shown) < 60
    assert summary.exchange_seconds == 0
    (line,) = [r.getMessage() for r in caplog.records if "trace" in r.getMessage()]
    assert line == str(summary)
    assert f"shows {len(shown)} steps" in line
    assert "no exchange" in line
    assert profiler_is_free(tmp_path)


def test_recording_begins_when_no_plan_is_tried_any_more(tmp_path: Path) -> None:
    model = distributed(dense_model)
    strategy = model.ooodist.strategy
    strategy.is_trying = True
    settle = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: setattr(strategy, "is_trying", batch < 5)
    )
    trace = Trace(tmp_path, 2)
    fit(model, 12, callbacks=[trace, settle])
    assert trace.summary is not None
    assert sorted({e["args"]["step"] for e in slices(trace.summary.path)}) == [7, 8]


def test_too_few_steps(tmp_path: Path, caplog: Any) -> None:
    model = distributed(dense_model, steps_per_execution=2)
    trace = Trace(tmp_path, 4)
    fit(model, 4, callbacks=[trace])
    assert trace.summary is None
    assert "nothing was recorded: the training ran 2 calls" in caplog.text
    assert not list(tmp_path.iterdir())


def test_fewer_steps_than_asked_for(tmp_path: Path, caplog: Any) -> None:
    model = distributed(dense_model)
    trace = Trace(tmp_path, 50)
    fit(model, 6, callbacks=[trace])
    assert "the training ended after 4 of the 50 steps" in caplog.text
    assert trace.summary is not None
    assert trace.summary.num_steps == 4
    assert profiler_is_free(tmp_path)


def test_an_evaluation_is_not_recorded(tmp_path: Path, caplog: Any) -> None:
    model = distributed(dense_model)
    trace = Trace(tmp_path, 50)
    fit(model, 5, callbacks=[trace], validation_data=samples(2), epochs=2)
    assert "an evaluation began after 3 of the 50 steps" in caplog.text
    assert trace.summary is not None
    assert trace.summary.num_steps == 3


def test_waits_for_the_profiler(tmp_path: Path, caplog: Any) -> None:
    class InUse(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 4:
                tf.profiler.experimental.stop(save=False)

    model = distributed(dense_model)
    trace = Trace(tmp_path / "out", 2)
    tf.profiler.experimental.start(str(tmp_path))
    fit(model, 10, callbacks=[trace, InUse()])
    assert caplog.text.count("profiler does not start") == 1
    assert trace.summary is not None
    assert {e["args"]["step"] for e in slices(trace.summary.path)} == {6, 7}


def test_beside_tensorboard_that_profiles(tmp_path: Path) -> None:
    model = distributed(dense_model)
    trace = Trace(tmp_path / "out", 4)
    board = keras.callbacks.TensorBoard(tmp_path / "board", profile_batch=(4, 6))
    fit(model, 12, callbacks=[board, trace])
    assert trace.summary is not None


def test_output_is_a_file(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "file").write_text("")
    model = distributed(dense_model)
    trace = Trace(tmp_path / "file", 1)
    fit(model, 5, callbacks=[trace])
    assert trace.summary is None
    assert "trace: not written" in caplog.text


def test_eager_steps_leave_nothing_to_see(tmp_path: Path, caplog: Any) -> None:
    model = distributed(dense_model)
    model.run_eagerly = True
    trace = Trace(tmp_path, 1)
    fit(model, 4, callbacks=[trace])
    assert trace.summary is None
    assert "not written: the profiler's recording holds no traced step" in caplog.text


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    model = distributed(dense_model, accumulate=2)
    trace = Trace(tmp_path, 2)
    fit(model, 10, callbacks=[trace])
    assert trace.summary is not None
    assert trace.summary.num_steps == 2


def test_no_step_to_record() -> None:
    with pytest.raises(UserError, match=r"report\.trace is 0; record at least 1 step"):
        Trace(Path("out"), 0)


LAYERS = ("layer1", "layer2", "layer3", "layer4")


def some_costs() -> StepCosts:
    """Of :func:`dense_model`: a tenth of a millisecond for each unit."""

    def unit(kind: Literal["F", "dX", "dW"], layer: str) -> UnitCost:
        weights = () if kind == "dX" else (f"{layer}/kernel", f"{layer}/bias")
        return UnitCost(f"{kind}:{layer}", kind, 1e-4, weights=weights)

    return StepCosts(
        tuple(unit("F", layer) for layer in LAYERS),
        tuple(unit(kind, layer) for layer in reversed(LAYERS) for kind in ("dX", "dW")),
        tuple(WeightCost(f"{layer}/{name}", 4) for layer in LAYERS for name in ("kernel", "bias")),
        base_bytes=1000,
    )


def a_plan(steps_per_execution: int, costs: StepCosts | None = None) -> PlanWithCosts:
    """Baseline, for one worker; with a prediction of 2 ms a step if there are no costs."""
    network = Network("local", 1)
    prediction = None if costs else Prediction(0.002, 0.001, 0.003)
    weights = [weight.name for weight in some_costs().weights]
    plan = Plan(
        "baseline",
        None,
        tuple(PlannedExchange((weight,)) for weight in weights),
        steps_per_execution=steps_per_execution,
        predicted=prediction,
    )
    return PlanWithCosts(plan, costs, network if costs else None)


def test_predicted_beside_measured(tmp_path: Path, caplog: Any) -> None:
    caplog.set_level(logging.INFO, "ooodist")
    costs = some_costs()
    planned = a_plan(2, costs)
    model = distributed(dense_model, order=planned.plan)
    model.ooodist.strategy.inner.planned = planned
    trace = Trace(tmp_path, 4)
    fit(model, 21, callbacks=[trace])  # the last step is no launch of two

    comparison = trace.comparison
    assert comparison is not None
    assert comparison.predicted_seconds == pytest.approx(12e-4)
    assert 0 < comparison.measured_seconds < 1.0
    assert comparison.error == comparison.predicted_seconds / comparison.measured_seconds - 1
    assert comparison.shares == "100% of the exchange hidden (ideal 100%)"  # there is none
    (line,) = [
        r.getMessage() for r in caplog.records if r.getMessage().startswith("plan baseline:")
    ]
    assert line == str(comparison)
    assert "recorded" not in line

    with gzip.open(tmp_path / "trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {0: "measured, rank 0", 1: "predicted"}
    of_process = {
        number: [e for e in events if e["pid"] == number and e["ph"] == "X"] for number in names
    }
    for found in of_process.values():
        assert {e["args"]["step"] for e in found} == {5, 6, 7, 8}
    # Each predicted launch begins where the recorded one did, or behind the one before it.
    begins = {
        (number, step): min(e["ts"] for e in found if e["args"]["step"] == step)
        for number, found in of_process.items()
        for step in (5, 7)
    }
    assert begins[1, 5] == pytest.approx(begins[0, 5])
    seconds = comparison.predicted_seconds * 2
    assert begins[1, 7] == pytest.approx(max(begins[0, 7], begins[1, 5] + seconds * 1e6))
    assert any(e["ph"] == "C" and e["pid"] == 1 for e in events)


def test_a_plan_of_a_file_has_a_prediction_alone(tmp_path: Path) -> None:
    model = distributed(dense_model, order=a_plan(1).plan)
    trace = Trace(tmp_path, 2)
    fit(model, 12, callbacks=[trace])
    assert trace.comparison is not None
    assert trace.comparison.predicted_seconds == 0.002
    assert trace.comparison.shares == "100% of the exchange hidden"
    assert "ideal" not in str(trace.comparison)
    assert {e["pid"] for e in slices(tmp_path / "trace.json.gz")} == {0}


def test_without_launches_after_the_recording_it_measures_those_within(tmp_path: Path) -> None:
    model = distributed(dense_model, order=a_plan(1).plan)
    trace = Trace(tmp_path, 3)
    fit(model, 5, callbacks=[trace])
    assert trace.comparison is not None
    assert "(while it was recorded)" in str(trace.comparison)


def test_without_a_plan_there_is_nothing_to_compare(tmp_path: Path) -> None:
    model = distributed(dense_model)
    trace = Trace(tmp_path, 1)
    fit(model, 6, callbacks=[trace])
    assert trace.summary is not None
    assert trace.comparison is None
