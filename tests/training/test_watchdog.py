"""The watchdog ends a process that stands still, and no other."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

STAGES = """
import sys, time
from ooodist.training.watchdog import Watchdog, expect_longer, expect_usual

watchdog = Watchdog(1.0, rank=3, engine="byteps")
watchdog.start()
time.sleep(2)  # tracing: the first launch may take ten times as long
watchdog.on_epoch_begin(4)
watchdog.on_train_batch_begin(0)
time.sleep(2)
watchdog.on_train_batch_end(1)
for step in range(4):  # training: longer in all than the limit, but it moves
    watchdog.on_train_batch_begin(2 * step)
    time.sleep(0.5)
    watchdog.on_train_batch_end(2 * step + 1)
watchdog.on_test_begin()
time.sleep(2)
watchdog.on_test_batch_end(0)
watchdog.on_test_end()
watchdog.on_train_batch_begin(8)
expect_longer("a selection began")
time.sleep(2)
watchdog.on_train_batch_end(9)
expect_longer("a checkpoint is saved")
time.sleep(2)
expect_usual("it was saved")
time.sleep(0.5)
print("alive", flush=True)
if sys.argv[1] == "stop":
    watchdog.stop()
    time.sleep(2)
    expect_longer("nobody watches any more")
    expect_usual("nor now")
    sys.exit(0)
watchdog.on_train_batch_begin(10)
expect_longer("a checkpoint is saved")
expect_usual("it was saved")
time.sleep(60)
"""


def test_it_ends_what_stands_still_and_nothing_else() -> None:
    root = Path(__file__).parents[2]
    stuck, stopped = (
        subprocess.Popen(
            [sys.executable, "-c", STAGES, what],
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for what in ("stuck", "stop")
    )
    try:
        start = time.monotonic()
        out, err = stuck.communicate(timeout=120)
        assert time.monotonic() - start < 60
        assert stuck.returncode == 1
        assert out == "alive\n"
        errors = [line for line in err.splitlines() if line.startswith("ooodist: error:")]
        assert len(errors) == 1
        assert "rank 3 (engine byteps) has made no progress for 1 s" in errors[0]
        assert "since it was saved" in errors[0]
        assert "raise stall_limit (1 s)" in errors[0]
        out, err = stopped.communicate(timeout=120)
        assert (stopped.returncode, out) == (0, "alive\n")
        assert "ooodist: error" not in err
    finally:
        for process in (stuck, stopped):
            process.kill()
            process.wait()
