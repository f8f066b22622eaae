"""The watchdog ends a process that stands still, and no other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

# On a clock of its own, which does not go on while this machine stands still; the watchdog looks
# several times a second.
STAGES = """
import sys, time
from pathlib import Path
from ooodist.trainer.watchdog import Watchdog, expect_longer, expect_usual, place_in_training

now = time.monotonic()
time.monotonic = lambda: now

def wait(seconds):
    global now
    now += seconds
    time.sleep(0.7)

watchdog = Watchdog(1.0, rank=3, engine="byteps", folder=Path(sys.argv[2]) if sys.argv[2] else None)
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
            [sys.executable, "-c", STAGES, what, str(folder)],
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
