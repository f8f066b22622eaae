"""What a job says of its steps in the end; tests/pipeline/test_job.py reads a whole summary."""

from __future__ import annotations

import pytest

from ooodist.job.reporting.summary import compare


@pytest.mark.parametrize(
    ("predicted", "measured", "is_said"),
    [
        (0.02, 0.0535, True),
        (0.02, 0.0149, True),
        (0.02, 0.0249, False),
        (0.02, 0.0151, False),
        (None, 0.0535, False),
        (0.02, None, False),
    ],
)
def test_steps_that_are_not_as_predicted_are_warned_of(
    predicted: float | None, measured: float | None, is_said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    compare(predicted, measured)
    assert bool(caplog.records) is is_said
    if is_said and measured is not None:
        words = f"the last steps took {measured * 1e3:.1f} ms, where the plan predicts 20.0 ms"
        assert words in caplog.text
