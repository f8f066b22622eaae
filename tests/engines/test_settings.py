"""The environment variables with which plans are carried out."""

from __future__ import annotations

import os

import pytest

from ooodist.engines import settings
from ooodist.errors import UserError


def test_horovods() -> None:
    variables = settings.planned_settings("horovod")
    assert variables["HOROVOD_CYCLE_ON_DEMAND"] == "1"
    assert float(variables["HOROVOD_CYCLE_TIME"]) > 1  # its default; nobody waits for it any more
    assert int(variables["HOROVOD_FUSION_THRESHOLD"]) == 4 << 20
    assert int(variables[settings.NICENESS]) < 0


def test_byteps_gets_the_partition_of_the_plan() -> None:
    variables = settings.planned_settings("byteps", 123456)
    assert variables["BYTEPS_PARTITION_BYTES"] == "123456"
    without = settings.planned_settings("byteps")
    assert without["BYTEPS_PARTITION_BYTES"] == str(settings.DEFAULT_PARTITION_BYTES)


def test_the_credit_that_byteps_gets_is_the_one_that_is_planned_with() -> None:
    variables = settings.planned_settings("byteps")
    assert (int(variables["BYTEPS_SCHEDULING_CREDIT"]),) == settings.planned_credits("byteps")
    for credit, setting in ((8, "8"), (None, "0")):
        variables = settings.planned_settings("byteps", pieces_in_flight=credit)
        assert variables["BYTEPS_SCHEDULING_CREDIT"] == setting


ONE_HOST = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1", "localhost"])
def test_without_a_network_byteps_is_left_as_it_comes(address: str) -> None:
    environ = {"DMLC_PS_ROOT_URI": address}
    assert not [
        name for name in settings.planned_settings("byteps", environ=environ) if "BYTEPS" in name
    ]
    of_a_file = settings.planned_settings("byteps", 123456, 8, environ=environ)
    assert of_a_file["BYTEPS_PARTITION_BYTES"] == "123456"
    assert of_a_file["BYTEPS_SCHEDULING_CREDIT"] == "8"
    assert settings.planned_settings("horovod", environ=environ)


@pytest.mark.parametrize(
    ("environ", "is_left"),
    [
        (ONE_HOST, True),
        ({"HOROVOD_SIZE": "2", "HOROVOD_LOCAL_SIZE": "2"}, True),
        ({"HOROVOD_SIZE": "4", "HOROVOD_LOCAL_SIZE": "2"}, False),
        (ONE_HOST | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, False),
        ({"HOROVOD_SIZE": "4"}, False),
        ({}, False),
    ],
)
def test_without_a_network_horovod_is_left_as_it_comes(
    environ: dict[str, str], is_left: bool
) -> None:
    variables = settings.planned_settings("horovod", environ=environ)
    assert ("HOROVOD_CYCLE_TIME" not in variables) == is_left
    assert (settings.NICENESS not in variables) == is_left


def test_on_a_network_byteps_is_set_up() -> None:
    for environ in ({"DMLC_PS_ROOT_URI": "10.7.0.1"}, {"DMLC_PS_ROOT_URI": "head.example"}):
        variables = settings.planned_settings("byteps", environ=environ)
        assert variables["BYTEPS_SCHEDULING_CREDIT"] == str(settings.BYTEPS_CREDIT)


@pytest.mark.parametrize("engine", ["horovod", "collective"])
def test_plans_for_libraries_without_an_order_keep_few_in_flight(engine: str) -> None:
    assert settings.planned_credits(engine) == (1, 2)
    assert settings.planned_credits(engine, most=1) == (1,)


@pytest.mark.parametrize("engine", ["local", "collective", "horovod", "byteps"])
def test_one_core_has_two_threads(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert settings.planned_settings(engine)["TF_NUM_INTEROP_THREADS"] == "2"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 4})
    assert "TF_NUM_INTEROP_THREADS" not in settings.planned_settings(engine)


@pytest.mark.parametrize(
    ("engine", "environ", "expected"),
    [
        ("mpi", ONE_HOST, settings.WITHOUT_TCP),
        ("horovod", ONE_HOST, settings.WITHOUT_TCP),
        ("byteps", ONE_HOST, {}),
        ("mpi", ONE_HOST | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, {}),
        ("mpi", ONE_HOST | {"OMPI_MCA_btl": "self,tcp"}, {}),
        ("mpi", {}, {}),
    ],
)
def test_open_mpi_listens_nowhere_on_one_host(
    engine: str, environ: dict[str, str], expected: dict[str, str]
) -> None:
    assert settings.one_host_settings(engine, environ) == expected


@pytest.mark.parametrize(
    ("engine", "seconds", "expected"),
    [
        ("horovod", 60.0, {"HOROVOD_STALL_CHECK_TIME_SECONDS": "20"}),
        ("horovod", 1.0, {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}),
        ("horovod", None, {}),
        ("byteps", 60.0, {}),
        ("collective", 60.0, {}),
    ],
)
def test_horovod_names_what_waits_before_the_job_ends(
    engine: str, seconds: float | None, expected: dict[str, str]
) -> None:
    assert settings.stall_settings(engine, seconds) == expected


@pytest.mark.parametrize(
    ("engine", "given", "expected"),
    [
        ("horovod", {}, {"HOROVOD_GLOO_TIMEOUT_SECONDS": "30"}),
        ("byteps", {settings.HEARTBEAT: "2.5"}, {"PS_HEARTBEAT_TIMEOUT": "3"}),
        ("collective", {settings.HEARTBEAT: "2.5"}, {}),
    ],
)
def test_all_engines_have_the_same_limit_of_silence(
    engine: str, given: dict[str, str], expected: dict[str, str]
) -> None:
    assert settings.heartbeat_settings(engine, given) == expected


@pytest.mark.parametrize("given", ["0", "-1", "nan", "inf", "long"])
def test_a_wrong_limit_of_silence(given: str) -> None:
    with pytest.raises(UserError, match=f"^{settings.HEARTBEAT} is '{given}'; it must be a number"):
        settings.heartbeat_seconds({settings.HEARTBEAT: given})
