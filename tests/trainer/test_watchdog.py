"""The watchdog ends a process that stands still, and no other."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from ooodist.trainer import watchdog
from ooodist.util.patience import Patience
from tests.fork_server import fast_python

# On a clock of its own, which does not go on while this machine stands still; the watchdog looks
# several times a second.
STAGES = """
import sys, time
from pathlib import Path
from ooodist.engines.local import LocalEngine
from ooodist.trainer.watchdog import Watchdog, expect_longer, expect_usual, place_in_training
from ooodist.util.patience import Patience
import numpy as np

class Two(LocalEngine):  # an engine whose exchanges take the time of what others send
    size = 2
    def _sum(self, tensor, key, position):
        return tensor

now = time.monotonic()
time.monotonic = lambda: now

def wait(seconds):
    global now
    now += seconds
    time.sleep(0.7)

watchdog = Watchdog(
    Patience(1.0), rank=3, engine="byteps", folder=Path(sys.argv[2]) if sys.argv[2] else None
)
assert place_in_training() == "the start"
watchdog.start()
wait(2)  # tracing: the first launch may take ten times as long
watchdog.on_epoch_begin(4)
watchdog.on_train_batch_begin(0)
wait(2)
watchdog.on_train_batch_end(1)
for step in range(3):  # training: longer in all than the limit, but it moves
    watchdog.on_train_batch_begin(2 * step)
    wait(0.9)
    watchdog.on_train_batch_end(2 * step + 1)
watchdog.on_test_begin()
wait(2)
watchdog.on_test_batch_end(0)
watchdog.on_test_end()
watchdog.on_train_batch_begin(8)
expect_longer("a selection began")
wait(2)
watchdog.on_train_batch_end(9)
expect_longer("a checkpoint is saved")
wait(2)
expect_usual("it was saved")
wait(0.9)
engine = Two()
for piece in range(3):  # an exchange outside of a step: longer in all than the limit, but it moves
    engine._sum_array(np.zeros(9, np.int32))
    wait(0.9)
print("alive", flush=True)
if sys.argv[1] == "stop":
    assert place_in_training() == "it was saved"
    watchdog.stop()
    assert place_in_training() == "it was saved"
    wait(2)
    expect_longer("nobody watches any more")
    expect_usual("nor now")
    sys.exit(0)
watchdog.on_train_batch_begin(10)
expect_longer("a checkpoint is saved")
expect_usual("it was saved")
wait(1.1)
time.sleep(60)
"""


def test_it_ends_what_stands_still_and_nothing_else(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    stuck, nowhere, stopped = (
        subprocess.Popen(
            [fast_python(), "-c", STAGES, what, str(folder)],
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for what, folder in (
            ("stuck", tmp_path),
            ("stuck", tmp_path / "not there"),  # as on a disk that has gone
            ("stop", ""),
        )
    )
    try:
        out, err = stuck.communicate(timeout=120)
        assert stuck.returncode == 1
        assert out == "alive\n"
        errors = [line for line in err.splitlines() if line.startswith("ooodist: error:")]
        assert len(errors) == 1
        assert "rank 3 (engine byteps) has made no progress for 1 s" in errors[0]
        assert "since it was saved" in errors[0]
        assert "raise timeout (1 s)" in errors[0]
        file = tmp_path / "stacks-rank-3.txt"
        assert errors[0].endswith(f"Where each of its threads is: {file}")
        assert re.search(r"line \d+ in wait\n", file.read_text())
        out, err = nowhere.communicate(timeout=120)
        assert (nowhere.returncode, out) == (1, "alive\n")
        assert err.rstrip().endswith("raise timeout (1 s)")
        out, err = stopped.communicate(timeout=120)
        assert (stopped.returncode, out) == (0, "alive\n")
        assert "ooodist: error" not in err
    finally:
        for process in (stuck, nowhere, stopped):
            process.kill()
            process.wait()


def test_limits_follow_what_steps_have_taken_unless_one_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: now)
    patience, fixed = Patience(), Patience(5.0)
    watching = [watchdog.Watchdog(each, 0, "local") for each in (patience, fixed)]
    limits = [patience.seconds]
    # The first step is traced: it counts only until there is another. What has been stopped for an
    # hour counts as what could have been waited for.
    for step, seconds in enumerate((70.0, 2.0, 70.0, 8.0, 3600.0)):
        for each in watching:
            each.on_train_batch_begin(step)
        now += seconds
        for each in watching:  # what is exchanged after a step does not make it shorter
            each.note_exchange()
            each.on_train_batch_end(step)
        limits.append(patience.seconds)
    assert limits == [60, 700, 60, 600, 600, 6000]
    assert fixed.seconds == 5
    rule = "10 times the longest step so far, 60 s at least"
    said = [str(each) for each in (patience, Patience(), fixed)]
    assert said == [f"6000 s: {rule}", f"60 s: {rule}", "5 s"]
