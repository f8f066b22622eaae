"""What rank 0 does for all: on one process, on real workers, and beyond the limit of a stall."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from ooodist.engines.local import LocalEngine
from ooodist.engines.rank_0 import on_rank_0
from ooodist.errors import UserError
from tests.jobs import ENGINES, needs_built, run_job

WORKER = Path(__file__).parents[1] / "zoo" / "worker.py"
OF_EACH_ENGINE = ["all_ranks_get_the_weights_of_rank_0", "all_ranks_learn_of_what_fails"]


@pytest.mark.parametrize("engine", [None, LocalEngine()], ids=["none", "local"])
def test_one_process_does_it_itself(engine: LocalEngine | None) -> None:
    here = threading.current_thread()
    assert on_rank_0(engine, threading.current_thread) is here
    assert on_rank_0(engine, lambda: None) is None

    def fails() -> None:
        raise UserError("no luck")

    with pytest.raises(UserError, match="no luck"):
        on_rank_0(engine, fails)


@pytest.mark.parametrize("engine", ENGINES)
def test_workers_pass_every_check(engine: str, tmp_path: Path) -> None:
    needs_built(engine)
    names = OF_EACH_ENGINE
    if engine == "collective":  # what is asked of a zoo is the same with each
        names = re.findall(r"\n@check\ndef (\w+)", WORKER.read_text())
        assert len(names) > 8
    size = 3 if engine == "horovod" else 2
    job = run_job(engine, size, WORKER, str(tmp_path), *names, seconds=300)
    assert job.returncode == 0, job.stdout[-6000:]
    assert re.findall(r"passed (\w+)", job.stdout) == names
