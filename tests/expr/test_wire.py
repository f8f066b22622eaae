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
    row = {"wire": "float32", "epochs": "5", "loss": "0.5", "val_loss": "0.25"}
    rows = [row | {"seed": str(seed), "val_accuracy": str(seed / 4)} for seed in (1, 2, 3)]
    rows += [row | {"wire": "low rank 4", "val_accuracy": str(0.5 + s / 8)} for s in (1, 2, 3)]
    *_, first, other = accuracy.report(rows).splitlines()
    assert first == (
        "| float32 | 0.5000 (0.2500 to 0.7500) | 0.2500 (0.2500 to 0.2500) "
        "| 0.5000 (0.5000 to 0.5000) | - | - |"
    )
    # Differences of 0.375, 0.25 and 0.125: 4.303 standard errors of 0.0722 on both sides.
    assert other.endswith("| +0.2500 (-0.0605 to +0.5605) | - |")


def test_what_a_task_has_no_accuracy_of_is_left_out() -> None:
    accuracy = scripts.load("wire", "accuracy")
    row = {"wire": "float32", "seed": "1", "loss": "0.5", "val_loss": "0.25", "val_accuracy": ""}
    assert "| float32 | - | 0.2500 " in accuracy.report([row])
