"""Tables of pipeline schedules, with costs whose times are known."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from ooodist.planner.pipeline.layer_costs import LayerCost, Link, ModelCosts
from ooodist.report.pipeline.outcomes import Comparison
from ooodist.report.pipeline.table import csv_rows, stages_text, sweep_text, text
from ooodist.report.tables import milliseconds, write_csv
from tests.report.pipeline_examples import compare, equal_layers

MIB = 1 << 20


def example() -> Comparison:
    """gpipe does not fit, zb_v has no layers for its eight stages."""
    costs = equal_layers(4, 1e-3, kept=MIB, base=MIB, limit=5 * MIB)
    return compare(costs, 4, 8, "gpipe", "1f1b", "zb_h1", "zb_v")


def read(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_text() -> None:
    title, empty, head, *lines = text(example()).splitlines()
    assert title.startswith("layers on 4 ranks, 8 micro-batches, links that cost nothing")
    assert not empty
    assert " ".join(head.split()) == (
        "chunks ms/step micro-batches/s over 1f1b bubble of spans peak memory fits"
    )
    assert lines[0].split() == (
        ["gpipe", "1", "33.0", "242.4", "1.00x", "27.3%", "14.6%", "9.0", "MiB", "no"]
    )
    assert lines[1].split() == (
        ["1f1b", "1", "33.0", "242.4", "1.00x", "27.3%", "14.6%", "5.0", "MiB", "yes"]
    )
    assert lines[2].split()[:6] == ["zb_h1", "1", "27.0", "296.3", "1.22x", "11.1%"]
    assert lines[3].split() == ["zb_v", *["-"] * 7, "no"]
    assert not lines[4]
    assert lines[5].startswith("gpipe cannot be used: rank 0, step 4: 0F4 needs 6291456 bytes")
    assert lines[6].startswith("zb_v cannot be used: 4 layers cannot be split into 8 stages")
    assert lines[7].startswith("bubble: ")
    assert lines[8].startswith("links that cost nothing: --bandwidth 10Gbit --latency 30us")


def test_links_that_cost_something() -> None:
    comparison = compare(equal_layers(4, link=Link(1e-3)), 4, 8, "1f1b")
    assert text(comparison).splitlines()[-1].startswith("bubble: ")
    assert "cost nothing" not in sweep_text([comparison])


def test_memory_is_shown_where_it_is_known() -> None:
    assert text(compare(equal_layers(4), 4, 8, "1f1b")).splitlines()[3].split()[-2:] == ["-", "yes"]


def test_samples_are_counted_where_the_batch_is_known() -> None:
    _, _, head, line, *_ = text(compare(equal_layers(4), 4, 8, "1f1b", batch=330)).splitlines()
    assert head.split()[2] == "samples/s"
    assert line.split()[3] == "10.0"


def test_stages() -> None:
    layers = (
        LayerCost("embedding", 1e-3, 0, 2e-3),
        LayerCost("b", 1e-3, 1e-3, 1e-3),
        LayerCost("a layer with quite a long name indeed", 1e-3, 1e-3, 1e-3),
        LayerCost("c", 1.5e-3, 2e-3, 3e-3),
    )
    comparison = compare(ModelCosts(layers), 2, 3, "1f1b")
    assert comparison.best is not None
    head, first, second = stages_text(comparison, comparison.best[1]).splitlines()
    assert head.split() == ["stage", "rank", "ms", "F", "ms", "I", "ms", "W", "layers"]
    assert first.split()[:5] == ["0", "0", "3.000", "2.000", "4.000"]
    assert first.endswith("  embedding … a layer with quite a lon… (3)")
    assert second.split() == ["1", "1", "1.500", "2.000", "3.000", "c"]


def test_sweep_has_a_line_a_setting() -> None:
    costs = equal_layers(4, 1e-3, kept=MIB, limit=2 * MIB)
    names = ("1f1b", "zb_h1")
    two, four = compare(costs, 2, 2, *names), compare(costs, 4, 2, *names)
    title, _, head, *lines, empty, links, note = sweep_text([two, four]).splitlines()
    assert title.startswith("layers, links that cost nothing")
    assert title.endswith("at most 2.0 MiB a rank")
    assert " ".join(head.split()) == (
        "best chunks ms/step micro-batches/s over 1f1b bubble of spans memory"
    )
    none, best = lines
    assert none.split() == ["2", "ranks,", "2", "micro-batches", *["-"] * 8]
    # 2 F, down to the last rank, I there, and up to the first, where I and W follow
    assert best.split()[4:8] == ["zb_h1", "1", "11.0", "181.8"]
    assert best.split()[8:] == [
        "1.36x",
        "45.5%",
        f"{four.shown[1][1].bubble_of_spans:.1%}",
        "2.0",
        "MiB",
    ]
    assert not empty
    assert links.startswith("links that cost nothing: ")
    assert note.startswith("nothing for 2 ranks, 2 micro-batches; zb_h1: ")


def test_replicas_have_a_column_for_the_exchange() -> None:
    comparison = compare(equal_layers(2, 1e-3, link=Link(5e-4)), 2, 3, "1f1b", replicas=2)
    _, _, head, line, _, *notes = text(comparison).splitlines()
    assert head.split()[:4] == ["chunks", "ms/step", "exposed", "micro-batches/s"]
    ((_, simulated),) = comparison.shown
    assert line.split()[2:5] == [
        *(milliseconds(simulated.seconds), "1.000", f"{6 / simulated.seconds:.1f}")
    ]
    assert notes[-1].startswith("micro-batches/s: of all replicas together; exposed: ")


def test_sweep_names_the_fastest_division_of_the_devices() -> None:
    """With a costly exchange that is the longest pipeline, without one the shortest."""
    for latency, ranks in ((1.0, 4), (0.0, 1)):
        costs = replace(equal_layers(4, 1e-3, kept=1, limit=1000), replica_link=Link(latency))
        all_of = [
            compare(costs, p, 8 * p // 4, "1f1b", batch=16 * p // 4, replicas=4 // p)
            for p in (4, 2, 1)
        ]
        *_, last = sweep_text(all_of).splitlines()
        (best,) = [each for each in all_of if each.setting.ranks == ranks]
        assert best.best is not None
        assert last == (
            f"fastest on 4 devices: {best.setting.title}, with "
            f"{best.throughput(best.best[1]):.1f} samples/s; for the job: --set batch={4 * ranks} "
            f"--set 'parallel={{pipeline: {ranks}, data: {4 // ranks}, microbatches: {2 * ranks}, "
            "schedule: 1f1b, memory_bytes: 1000}'"
        )
    # Nothing is said where the devices or the samples differ, or there is no choice.
    assert "fastest" not in sweep_text(all_of[:1])
    assert "fastest" not in sweep_text([all_of[0], compare(costs, 2, 8, "1f1b", replicas=2)])
    assert "fastest" not in sweep_text([all_of[0], compare(costs, 2, 4, "1f1b")])


def test_csv(tmp_path: Path) -> None:
    file = tmp_path / "plans.csv"
    comparisons = [example(), compare(equal_layers(8, 1e-3), 4, 8, "zb_h1", "zb_v", chunks=2)]
    write_csv([row for comparison in comparisons for row in csv_rows(comparison)], file)
    gpipe, one, zb_h1, none, refused, zb_v = read(file)
    assert (gpipe["schedule"], gpipe["fits"], gpipe["peak_bytes"]) == ("gpipe", "no", str(9 * MIB))
    assert gpipe["refused"].startswith("rank 0, step 4")
    assert (one["fits"], one["refused"], one["memory_limit"]) == ("yes", "", str(5 * MIB))
    assert (one["ranks"], one["microbatches"], one["chunks"]) == ("4", "8", "1")
    assert (one["model"], one["unit"]) == ("layers", "micro-batches/s")
    assert float(one["step_ms"]) == float(one["makespan_ms"]) == pytest.approx(33)
    assert float(one["throughput"]) == pytest.approx(8 / 33e-3, rel=1e-6)
    assert float(zb_h1["speed_up"]) == pytest.approx(33 / 27, abs=1e-6)
    assert float(zb_h1["bubble"]) == pytest.approx(1 - 24 / 27, abs=1e-6)
    assert 0 < float(zb_h1["bubble_of_spans"]) < float(zb_h1["bubble"])
    assert (none["schedule"], none["step_ms"], none["fits"]) == ("zb_v", "", "no")
    assert (refused["chunks"], refused["memory_limit"], refused["fits"]) == ("2", "", "no")
    assert (zb_v["chunks"], zb_v["fits"]) == ("2", "yes")
