"""The environment variables that engines get, by kind."""

from __future__ import annotations

import pytest

from ooodist.engines.kinds import find
from ooodist.engines.kinds.byteps import CREDIT, DEFAULT_PARTITION_BYTES
from ooodist.engines.kinds.kind import NICENESS
from ooodist.engines.kinds.mpi import WITHOUT_TCP


def test_horovods() -> None:
    variables = find("horovod").planned_settings()
    assert variables["HOROVOD_CYCLE_ON_DEMAND"] == "1"
    assert float(variables["HOROVOD_CYCLE_TIME"]) > 1  # its default; nobody waits for it any more
    assert int(variables["HOROVOD_FUSION_THRESHOLD"]) == 4 << 20
    assert int(variables[NICENESS]) < 0


def test_byteps_gets_the_partition_of_the_plan() -> None:
    variables = find("byteps").planned_settings(None, 123456)
    assert variables["BYTEPS_PARTITION_BYTES"] == "123456"
    without = find("byteps").planned_settings()
    assert without["BYTEPS_PARTITION_BYTES"] == str(DEFAULT_PARTITION_BYTES)


def test_the_credit_that_byteps_gets_is_the_one_that_is_planned_with() -> None:
    variables = find("byteps").planned_settings()
    assert (int(variables["BYTEPS_SCHEDULING_CREDIT"]),) == find("byteps").credits
    for credit, setting in ((8, "8"), (0, "0")):
        variables = find("byteps").planned_settings(pieces_in_flight=credit)
        assert variables["BYTEPS_SCHEDULING_CREDIT"] == setting


ONE_HOST = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1", "localhost"])
def test_without_a_network_byteps_is_left_as_it_comes(address: str) -> None:
    environ = {"DMLC_PS_ROOT_URI": address}
    assert not [name for name in find("byteps").planned_settings(environ) if "BYTEPS" in name]
    of_a_file = find("byteps").planned_settings(environ, 123456, 8)
    assert of_a_file["BYTEPS_PARTITION_BYTES"] == "123456"
    assert of_a_file["BYTEPS_SCHEDULING_CREDIT"] == "8"
    assert find("horovod").planned_settings(environ)


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
    variables = find("horovod").planned_settings(environ)
    assert ("HOROVOD_CYCLE_TIME" not in variables) == is_left
    assert (NICENESS not in variables) == is_left


def test_on_a_network_byteps_is_set_up() -> None:
    for environ in ({"DMLC_PS_ROOT_URI": "10.7.0.1"}, {"DMLC_PS_ROOT_URI": "head.example"}):
        variables = find("byteps").planned_settings(environ)
        assert variables["BYTEPS_SCHEDULING_CREDIT"] == str(CREDIT)


@pytest.mark.parametrize("engine", ["horovod", "collective"])
def test_plans_for_libraries_without_an_order_keep_few_in_flight(engine: str) -> None:
    assert find(engine).credits == (1, 2)


@pytest.mark.parametrize(
    ("engine", "environ", "expected"),
    [
        ("mpi", ONE_HOST, WITHOUT_TCP),
        ("horovod", ONE_HOST, WITHOUT_TCP),
        ("byteps", ONE_HOST, {}),
        ("mpi", ONE_HOST | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, {}),
        ("mpi", ONE_HOST | {"OMPI_MCA_btl": "self,tcp"}, {}),
        ("mpi", {}, {}),
    ],
)
def test_open_mpi_listens_nowhere_on_one_host(
    engine: str, environ: dict[str, str], expected: dict[str, str]
) -> None:
    assert find(engine).settings(environ, None) == expected


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
    assert find(engine).settings({}, seconds) == expected
