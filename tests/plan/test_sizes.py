"""Which sizes of pipelines are planned, given options and a job."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.plan.options import parse
from ooodist.plan.sizes import settings_of, with_devices_of
from ooodist.report.pipeline.outcomes import Setting
from ooodist.settings.sections import ParallelConfig

JOB = ParallelConfig(pipeline=4, data=2, microbatches=8)


def sizes(text: str, parallel: ParallelConfig = JOB) -> list[Setting]:
    return settings_of(parse(text.split()), parallel)


def test_what_is_not_said_is_as_in_the_job() -> None:
    assert sizes("") == [Setting(4, 8, None, 2)]
    assert sizes("--pipeline 2 --chunks 3") == [Setting(2, 8, 3, 2)]
    assert sizes("--microbatches 4 --data 3") == [Setting(4, 4, None, 3)]


def test_every_combination() -> None:
    found = sizes("--pipeline 2 4 --microbatches 8 16 --data 1 3 1 --chunks 1 2")
    assert len(set(found)) == len(found) == 2**4
    assert {(s.ranks, s.microbatches, s.replicas, s.chunks) for s in found} == {
        (p, m, d, v) for p in (2, 4) for m in (8, 16) for d in (1, 3) for v in (1, 2)
    }


def test_replicas_shard_the_optimizer_if_the_job_or_an_option_says_so() -> None:
    assert sizes("--data 1 2 --shard-optimizer") == [
        Setting(4, 8, None, 1),
        Setting(4, 8, None, 2, shard_optimizer=True),
    ]
    job = replace(JOB, shard_optimizer=True)
    assert sizes("", job) == [Setting(4, 8, None, 2, shard_optimizer=True)]
    assert sizes("--data 1", job) == [Setting(4, 8)]
    with pytest.raises(UserError, match=r"^--shard-optimizer .* one pipeline; give --data 2"):
        sizes("--data 1 --shard-optimizer")
    devices = ParallelConfig(devices=4, microbatches=8, shard_optimizer=True)
    found = settings_of(*with_devices_of(parse([]), devices))
    assert [(each.replicas, each.shard_optimizer) for each in found] == [
        *((1, False), (2, True), (4, True)),
    ]


@given(st.integers(1, 48), st.integers(1, 96))
def test_devices_and_micro_batches_are_divided_in_all_ways(devices: int, microbatches: int) -> None:
    found = sizes(f"--devices {devices} --microbatches {microbatches}")
    for size in found:
        assert size.ranks * size.replicas == devices
        assert size.microbatches * size.replicas == microbatches
    assert {size.replicas for size in found} == {
        data for data in range(1, 49) if devices % data == 0 and microbatches % data == 0
    }


def test_the_jobs_micro_batches_are_those_of_all_its_replicas() -> None:
    assert sizes("--devices 4") == [Setting(4, 16), Setting(2, 8, None, 2), Setting(1, 4, None, 4)]
    assert sizes("--devices 4 --data 2") == [Setting(2, 8, None, 2)]


def test_why_a_division_is_left_out_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ooodist"):
        assert sizes("--devices 4 --microbatches 6") == [Setting(4, 6), Setting(2, 3, None, 2)]
    assert caplog.messages == [
        "left out: 6 micro-batches cannot be divided among 4 replicas (pipeline 1); make "
        "--microbatches a multiple of 4"
    ]


def test_stages_that_are_said() -> None:
    """Of three stages, each rank has one, or all are on one."""
    parallel = ParallelConfig(pipeline=3, microbatches=4, split=("a", "b"))
    assert sizes("", parallel) == [Setting(3, 4, 1)]
    found = sizes("--devices 6 --microbatches 12", parallel)
    assert [(size.ranks, size.replicas, size.chunks) for size in found] == [(3, 2, 1), (1, 6, 3)]
    with pytest.raises(
        UserError, match=r"the 3 stages of parallel.split cannot be divided among 2"
    ):
        sizes("--devices 2 --pipeline 2", parallel)
    with pytest.raises(UserError, match=r"parallel.split makes 3 stages, but there are 2 ranks"):
        sizes("--pipeline 2", parallel)
