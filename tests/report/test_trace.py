"""The callback, in real training runs of one worker."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from ooodist.errors import UserError
from ooodist.report.trace import Trace
from tests.report.recording import dense_model, distributed, fit, samples


def slices(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path) as file:
        return [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]


def profiler_is_free(folder: Path) -> bool:
    tf.profiler.experimental.start(str(folder))
    tf.profiler.experimental.stop(save=False)
    return True


@pytest.mark.parametrize(
    ("steps_per_launch", "num_steps", "shown"), [(1, 3, [3, 4, 5]), (2, 3, [5, 6, 7, 8])]
)
def test_records_whole_launches_behind_the_warm_up(
    steps_per_launch: int, num_steps: int, shown: list[int], tmp_path: Path, caplog: Any
) -> None:
    caplog.set_level(logging.INFO, "ooodist")
    model = distributed(dense_model, order="first_k", k=3, steps_per_launch=steps_per_launch)
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


def test_too_few_steps(tmp_path: Path, caplog: Any) -> None:
    model = distributed(dense_model, steps_per_launch=2)
    trace = Trace(tmp_path, 4)
    fit(model, 4, callbacks=[trace])
    assert trace.summary is None
    assert "nothing was recorded: the training ran 2 launches" in caplog.text
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
