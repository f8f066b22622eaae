"""What rank 0 prints while training."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace

import pytest

from ooodist.trainer import progress
from ooodist.trainer.progress import Progress, StepTimer, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Time that passes only when told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(progress.time, "perf_counter", lambda: self.now)


def model_of(steps_ahead: int) -> SimpleNamespace:
    return SimpleNamespace(ooodist=SimpleNamespace(steps_ahead=steps_ahead, is_catching_up=False))


def run(clock: Clock, stream: io.StringIO, *, step_seconds: float) -> StepTimer:
    """Two epochs of 20 steps in launches of 2; the first launch takes 30 s."""
    timer = StepTimer()
    timer.set_model(model_of(0))
    shown = Progress(timer, global_batch=64, epochs=2, steps_per_epoch=20, stream=stream)
    for epoch in range(2):
        for callback in (timer, shown):
            callback.on_epoch_begin(epoch)
        for end in range(1, 20, 2):
            clock.now += 30 if (epoch, end) == (0, 1) else 2 * step_seconds
            for callback in (timer, shown):
                callback.on_train_batch_end(end, {"loss": 1 / (end + 1)})
        clock.now += 3  # evaluation
        shown.on_epoch_end(epoch, {"loss": 0.05, "val_loss": 0.25})
    return timer


def test_elsewhere_than_on_a_terminal_it_prints_whole_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    timer = run(Clock(monkeypatch), stream, step_seconds=1.0)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "epoch 1/2 step  2/20 | loss 0.5000"
    assert lines[1] == (
        "epoch 1/2 step  8/20 | loss 0.1250 | 1000.0 ms/step 64 samples/s | 0:32 left"
    )
    assert next(line for line in lines if "val_loss" in line).endswith("| 0:23 left")
    assert lines[-1] == (
        "epoch 2/2 step 20/20 | loss 0.0500 val_loss 0.2500 | 1000.0 ms/step 64 samples/s"
        " | 0:00 left"
    )
    assert len(lines) == 9  # one in 5 s, and one at the end of each epoch
    assert timer.median() == 1.0  # the first launch, with its tracing, does not count


def test_on_a_terminal_it_updates_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK", raising=False)
    stream = Terminal()
    run(Clock(monkeypatch), stream, step_seconds=1.0)
    written = stream.getvalue()
    assert written.count("\n") == 2
    assert len(re.findall(r"\repoch .*?\x1b\[K", written)) == 22


def test_below_mpirun_it_prints_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    stream = Terminal()
    run(Clock(monkeypatch), stream, step_seconds=1.0)
    assert "\r" not in stream.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (75, "1:15"), (3675, "1:01:15")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_step_is_a_part_of_its_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches of four steps, in a fit that calls for one at a time."""
    clock = Clock(monkeypatch)
    timer = StepTimer()
    timer.on_epoch_begin(0)
    for step in range(12):
        ahead = 3 - step % 4
        clock.now += 8.0 if ahead == 3 else 0.001
        timer.set_model(model_of(ahead))
        timer.on_train_batch_end(step)
    assert timer.median() == pytest.approx(8.003 / 4)
    assert len(timer._all) == 2
