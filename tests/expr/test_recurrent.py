"""The timing of recurrent layers: both ways train alike, and the table is right."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.expr.scripts import load


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load("recurrent", "run")


def test_both_ways_train_alike(script: ModuleType) -> None:
    row = script.read_row("gru:4:5:6")
    losses = [[float(step()) for _ in range(5)] for step in map(row.step, script.WAYS)]
    assert losses[0][0] > losses[0][-1]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_it_is_measured(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "steps.csv"
    script.main(["--rows", "lstm:2:3:4", "--turns", "3", "--steps", "1", "--output", str(file)])
    assert len(file.read_text().splitlines()) == 1 + 2 * 3
    assert "| lstm, 2 x 3, 4 units | " in capsys.readouterr().out


def test_the_table(script: ModuleType) -> None:
    row = {"kind": "lstm", "batch": 2, "time": 3, "units": 4}
    seconds = {"in the loop": (0.2, 0.3, 0.4), "after it": (0.1, 0.1, 0.1)}
    lines = [
        {**row, "way": way, "turn": turn, "seconds": str(each)}
        for way, times in seconds.items()
        for turn, each in enumerate(times)
    ]
    assert script.table(lines).splitlines()[-1] == (
        "| lstm, 2 x 3, 4 units | 300.0 ms | 100.0 ms | 3.00x | 2.00 to 4.00 |"
    )


@pytest.mark.parametrize("text", ["lstm", "lstm:1:2", "lstm:1:2:x", "dense:1:2:3"])
def test_a_row_that_is_none(script: ModuleType, text: str) -> None:
    with pytest.raises(SystemExit, match="is not KIND:BATCH:TIME:UNITS"):
        script.read_row(text)
