"""Where ranks run, as text and as CSV."""

from __future__ import annotations

import csv
from pathlib import Path

from ooodist.planner.pipeline.layer_costs import Link
from ooodist.planner.placement.hosts import Hosts
from ooodist.report.pipeline.outcomes import Comparison, PipelineSubject, Setting, compare
from ooodist.report.pipeline.placement import csv_rows, text
from ooodist.report.pipeline.planned import plan_pipelines
from ooodist.report.tables import write_csv
from tests.report.pipeline_examples import equal_layers

HOSTS = Hosts(2, 4, Link(0.0, 1e-9), Link(0.0, 1e-3))


def subject(sent: int) -> PipelineSubject:
    """Eight layers whose gradients have 100 bytes."""
    costs = equal_layers(8, sent=sent, link=HOSTS.between)
    return PipelineSubject("layers", {4: costs, 8: costs}, hosts=HOSTS)


def example(sent: int) -> Comparison:
    return compare(subject(sent), Setting(4, 4, 2, replicas=2), ["zb_v"])


def test_replicas_inside_of_hosts() -> None:
    """Their gradients are large; in a V, rank 0 has the first and the last stage."""
    comparison = example(sent=1)
    assert comparison.best is not None
    assert text(comparison, comparison.best[1]).splitlines() == [
        "host  replica  ranks  stages",
        "0           0  0 1    0 1 6 7",
        "0           1  4 5    0 1 6 7",
        "1           0  2 3    2 3 4 5",
        "1           1  6 7    2 3 4 5",
    ]
    assert comparison.title == (
        "layers on 4 ranks, 4 micro-batches, 2 chunks, 2 replicas, 2 hosts of 4 devices, links of "
        "8 Gbit/s inside of them, and links of 8e-06 Gbit/s between"
    )


def test_a_pipeline_inside_of_each_host(tmp_path: Path) -> None:
    comparison = example(sent=1000)
    assert comparison.best is not None
    assert text(comparison, comparison.best[1]).splitlines()[1:] == [
        "0           0  0 1 2 3  0 1 2 3 4 5 6 7",
        "1           1  4 5 6 7  0 1 2 3 4 5 6 7",
    ]
    write_csv(csv_rows(comparison), tmp_path / "placement.csv")
    with (tmp_path / "placement.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert rows == [
        {
            "rank": str(rank),
            "replica": str(rank // 4),
            "position": str(rank % 4),
            "host": str(rank // 4),
        }
        for rank in range(8)
    ]


def test_it_is_printed_and_written(tmp_path: Path) -> None:
    one = plan_pipelines(subject(1), [Setting(4, 4, replicas=2)], ["1f1b"], tmp_path / "one")
    assert "host  replica  ranks  stages" in one
    assert (tmp_path / "one" / "placement.csv").exists()
    sizes = [Setting(8, 8), Setting(4, 4, replicas=2)]
    both = plan_pipelines(subject(1), sizes, ["1f1b"], tmp_path / "both")
    fastest = sizes[1] if f"placement of {sizes[1].title}:" in both else sizes[0]
    assert f"placement of {fastest.title}:\nhost  replica" in both
    assert f"fastest on 8 devices: {fastest.title}, with " in both
    for size in sizes:
        assert (tmp_path / "both" / size.folder / "placement.csv").exists()
