"""A step of a pipeline keeps what is predicted, however many micro-batches it has."""

from __future__ import annotations

import shutil
from types import ModuleType
from typing import Any

import pytest

from tests.expr.scripts import load

pytestmark = pytest.mark.timing("what is freed late, as a thread waits for a core, counts")
FLAT = 0.1
GROWTH = 2.0  # of what is kept, of three times as many; some 20 MB are kept whatever they are
PREDICTED = 0.1


@pytest.fixture(scope="module")
def memory() -> ModuleType:
    return load("pipe_par", "memory")


@pytest.fixture(scope="module")
def rows(memory: ModuleType) -> dict[tuple[str, int, int], dict[str, Any]]:
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun here: run ooodist-engines mpi")
    found = [row for name in ("1f1b", "gpipe") for row in memory.run(name, [3, 9], 2048, 128)]
    return {(row["schedule"], row["rank"], row["microbatches"]): row for row in found}


@pytest.mark.parametrize("rank", [0, 1])
def test_memory_does_not_grow_with_the_number_of_micro_batches(rows: Any, rank: int) -> None:
    few, many = rows["1f1b", rank, 3], rows["1f1b", rank, 9]
    assert many["predicted"] == few["predicted"]
    assert many["measured"] == pytest.approx(few["measured"], rel=FLAT)


@pytest.mark.parametrize("rank", [0, 1])
def test_where_all_are_kept_it_grows(rows: Any, rank: int) -> None:
    """So it is the schedule that keeps the other flat, and not the measuring."""
    few, many = rows["gpipe", rank, 3], rows["gpipe", rank, 9]
    assert many["measured"] > GROWTH * few["measured"]


def test_the_prediction_holds(rows: Any) -> None:
    for key, row in rows.items():
        assert row["predicted"] == pytest.approx(row["measured"], rel=PREDICTED), key
