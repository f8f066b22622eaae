"""One rank of live.py's job: trains, and notes when steps ended and what the log said.

    mpirun -np 2 python live_worker.py JOB.yaml ANSWER.json STEPS BURN_AT BURN_SECONDS KEY=VALUE ...

With BURN_AT, from that step on another process keeps a core busy for so many seconds (0: none).
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ooodist import engines
from ooodist.config import job as job_file

job, answer = Path(sys.argv[1]), Path(sys.argv[2])
steps, burn_at, burn_seconds = map(int, sys.argv[3:6])
config = job_file.load(
    job, [f"output={answer.parent}/output", "checkpoint.every_epochs=0", *sys.argv[6:]]
)
engine = engines.init("mpi", timeout=300.0)

import keras  # noqa: E402

from ooodist.job.preparation import set_up  # noqa: E402

BURN = "import time\nend = time.time() + {seconds}\nwhile time.time() < end: pass"


class Times(keras.callbacks.Callback):
    """When each step ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []
        self.burning: subprocess.Popen[bytes] | None = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.ends.append(time.time())
        if burn_at and len(self.ends) == burn_at and engine.rank == 0:
            command = [sys.executable, "-c", BURN.format(seconds=burn_seconds)]
            self.burning = subprocess.Popen(command)


class Lines(logging.Handler):
    """What the log says, and after how many steps."""

    def __init__(self, times: Times) -> None:
        super().__init__()
        self.lines: list[tuple[int, str]] = []
        self._times = times

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((len(self._times.ends), record.getMessage()))


def main() -> None:
    times = Times()
    lines = Lines(times)
    logger = logging.getLogger("ooodist")
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    began = time.time()
    ready = set_up(config, engine)
    ready.model.fit(
        ready.data.train,
        epochs=1,
        steps_per_epoch=steps,
        callbacks=[times],
        shuffle=False,
        verbose=0,
    )
    if times.burning is not None:
        times.burning.kill()
        times.burning.wait()
    if engine.rank == 0:
        found = {
            "first_step_seconds": times.ends[0] - began,
            "stages": ready.model.ooodist.strategy.inner.fastest.schedule.stages,
            "schedule": ready.model.ooodist.strategy.inner.fastest.schedule.name,
            "ends": [end - began for end in times.ends],
            "lines": lines.lines,
        }
        answer.write_text(json.dumps(found))
    ready.model.ooodist.strategy.close()
    engines.shutdown()


if __name__ == "__main__":
    main()
