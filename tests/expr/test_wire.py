"""The tables of expr/wire: medians over the row that is stock, and means over seeds."""

from __future__ import annotations

from tests.expr import scripts


def test_a_line_a_row_with_its_gain_over_stock() -> None:
    speed = scripts.load("wire", "speed")
    common = {"model": "mlp", "ratio": "2.0", "steps_per_execution": 1, "predicted": 0.5}
    lines = [
        {**common, "row": row, "narrow_mb": narrow, "seconds": seconds}
        for row, narrow, times in (("stock", 0, (3, 1, 2)), ("float16", 4, (1, 1.5, 0.5)))
        for seconds in times
    ]
    lines.append({**lines[0], "model": "bert", "seconds": 4})
    *_, stock, narrow, other = speed.report(lines).splitlines()
    assert stock == "| mlp, 2.0 | stock | 2.000 | 1.00x | 0.5 | 0 |"
    assert narrow == "| mlp, 2.0 | float16 | 1.000 | 2.00x | 0.5 | 4 |"
    assert other == "| bert, 2.0 | stock | 4.000 | 1.00x | 0.5 | 0 |"


def test_a_line_a_wire_with_its_mean_over_the_seeds() -> None:
    accuracy = scripts.load("wire", "accuracy")
    row = {"wire": "float16", "epochs": "5", "loss": "0.5", "val_loss": "0.25"}
    rows = [row | {"seed": str(seed), "val_accuracy": str(seed / 4)} for seed in (1, 2, 3)]
    *_, line = accuracy.report(rows).splitlines()
    assert line == (
        "| float16 | 0.5000 (0.2500 to 0.7500) | 0.2500 (0.2500 to 0.2500) "
        "| 0.5000 (0.5000 to 0.5000) |"
    )
