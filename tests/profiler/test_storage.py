"""Profiles in a folder: kept, found again, refused; with made-up measurements."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ooodist.engines.local import LocalEngine
from ooodist.errors import UserError
from ooodist.graph.digest import model_digest
from ooodist.planner.costs import (
    LowRankCosts,
    Network,
    SavedTensor,
    StepCosts,
    UnitCost,
    WeightCost,
)
from ooodist.profiler import folder, storage
from ooodist.profiler.conditions import Conditions, Machine
from ooodist.profiler.folder import Profile, file_name, find, from_yaml, write
from ooodist.profiler.step import trace_step
from ooodist.profiler.storage import STEP_TOLERANCE
from ooodist.settings.sections import PlanningConfig
from ooodist.step.backward import OrderedBackward
from ooodist.step.exchange import GradientExchange
from ooodist.step.execution import Execution
from ooodist.util.yaml_dataclass import dump
from tests.profiler.models import batch, compiled, dense_chain

CONDITIONS = Conditions(
    model="0123456789abcdef",
    inputs=("float32 (64, 32)", "int32 (64,)"),
    accumulate=1,
    precision="float32",
    optimizer="SGD",
    engine="horovod",
    workers=2,
    machine=Machine("A CPU: model 1", (), 4, None),
    versions={"tensorflow": "2.21.0", "horovod": "0.28.1"},
)
COSTS = StepCosts(
    forward=(UnitCost("F:a", "F", 0.1 + 0.2, (), ("a",)),),
    backward=(UnitCost("dX:a", "dX", 1e-9), UnitCost("dW:a", "dW", 0.25, ("dX:a",), ("a",))),
    weights=(WeightCost("a", 4096, "float32", 1e-5),),
    tensors=(SavedTensor(4096, "dW:a", ()),),
    middle_seconds=1e-3,
    base_bytes=8192,
)
NETWORK = Network("horovod", 2, 1e-3, 1e-4, 3.2e-8)
PROFILE = Profile("a/model", "2027-01-31T09:00:00Z", "host", CONDITIONS, NETWORK, COSTS)


def with_machine(**changed: object) -> Conditions:
    return replace(CONDITIONS, machine=replace(CONDITIONS.machine, **changed))


def test_text_makes_the_same_profile() -> None:
    assert from_yaml(dump(PROFILE), "text") == PROFILE
    assert PROFILE.model == CONDITIONS.model


def test_is_found_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write(tmp_path / "new folder", PROFILE)
    assert file.name == file_name("a/model", CONDITIONS)
    assert file.name.startswith("a_model-horovod-2-workers-")
    assert [other.name for other in file.parent.iterdir()] == [file.name]
    with caplog.at_level(logging.INFO, "ooodist"):
        assert find(file.parent, "a/model", CONDITIONS) == PROFILE
    assert f"profile: {file}, measured 2027-01-31T09:00:00Z" in caplog.text


@pytest.mark.parametrize(
    ("now", "difference"),
    [
        (replace(CONDITIONS, workers=4), "workers: 4, not 2"),
        (replace(CONDITIONS, model="f" * 16), "model: ffffffffffffffff, not 0123456789abcdef"),
        (with_machine(cores=2), "machine.cores: 2, not 4"),
        (with_machine(onednn="1"), "machine.onednn: 1, not None"),
        (replace(CONDITIONS, inputs=("float32 (8, 32)",)), "inputs: "),
        (
            replace(CONDITIONS, versions={"tensorflow": "2.20.0"}),
            "versions.tensorflow: 2.20.0, not 2.21.0; versions.horovod: None, not 0.28.1",
        ),
    ],
    ids=["workers", "model", "cores", "onednn", "inputs", "versions"],
)
def test_another_one_does_not_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, now: Conditions, difference: str
) -> None:
    file = write(tmp_path, PROFILE)
    with caplog.at_level(logging.INFO, "ooodist"):
        assert find(tmp_path, "a/model", now) is None
    assert f"{file} does not count here: {difference}" in caplog.text
    assert "measuring" in caplog.text


def test_a_damaged_one_does_not_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write(tmp_path, PROFILE)
    file.write_text(dump(PROFILE).replace("latency: 0.001", "latency: -1"))
    assert find(tmp_path, "a/model", CONDITIONS) is None
    assert f"profile {file}: network.latency is -1" in caplog.text
    file.write_bytes(b"\xff\xfe")
    assert find(tmp_path, "a/model", CONDITIONS) is None
    assert f"profile {file} cannot be read" in caplog.text


def test_no_folder(tmp_path: Path) -> None:
    assert find(tmp_path / "none", "a/model", CONDITIONS) is None


class Made:
    """Counts measurements, which it makes up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps = self.networks = 0
        self.holds = True
        monkeypatch.setattr(storage, "measure_step", self._step)
        monkeypatch.setattr(storage, "measure_network", self._network)
        monkeypatch.setattr(storage, "still_holds", lambda engine, network: self.holds)

    def _step(self, traced: object) -> StepCosts:
        self.steps += 1
        return replace(COSTS, trace_seconds=float(self.steps))

    def _network(self, engine: object, step: Callable[[], float]) -> Network:
        step()  # trains, and must leave no trace
        self.networks += 1
        return Network("local", 1, latency=float(self.networks))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


def profile_of(
    folder: Path,
    *,
    anew: bool = False,
    samples: int = 64,
    low_rank: bool = False,
    step_seconds: float | None = None,
) -> Profile:
    x, y = batch()
    model = dense_chain()
    return storage.profile_of(
        model,
        (x[:samples], y[:samples]),
        LocalEngine(),
        PlanningConfig(profiles=str(folder), profile_anew=anew),
        low_rank=low_rank,
        step_seconds=step_seconds,
    )


def test_is_measured_once(tmp_path: Path, made: Made) -> None:
    first = profile_of(tmp_path)
    assert profile_of(tmp_path) == first
    assert (made.steps, made.networks) == (1, 1)
    assert first.conditions.inputs == ("float32 (64, 32)", "int32 (64,)")
    assert first.conditions.optimizer == "SGD"
    assert (first.conditions.engine, first.conditions.workers) == ("local", 1)
    assert len(first.model) == 16


def test_low_rank_is_measured_once_when_it_is_wanted(
    tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = iter([LowRankCosts(1e-9, 2e-9, 3e-9)])
    monkeypatch.setattr(storage, "measure_low_rank", lambda weights: next(measured))
    without = profile_of(tmp_path)
    assert without.costs.low_rank == LowRankCosts()
    completed = profile_of(tmp_path, low_rank=True)
    assert completed.costs.low_rank == LowRankCosts(1e-9, 2e-9, 3e-9)
    assert profile_of(tmp_path, low_rank=True) == profile_of(tmp_path) == completed
    assert (made.steps, made.networks) == (1, 1)


def test_the_steps_beside_which_exchanges_are_measured_leave_no_trace(
    tmp_path: Path, made: Made
) -> None:
    model = dense_chain()
    model.train_on_batch(*batch())
    before = [variable.numpy() for variable in (*model.variables, *model.optimizer.variables)]
    storage.profile_of(model, batch(), LocalEngine(), PlanningConfig(profiles=str(tmp_path)))
    assert made.networks == 1
    after = [variable.numpy() for variable in (*model.variables, *model.optimizer.variables)]
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


def test_no_step_is_traced_for_a_kept_profile_of_a_known_model(
    tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest of a training's own steps is that of steps that are traced to be measured."""
    model = dense_chain()
    backward = OrderedBackward(GradientExchange(LocalEngine()))
    Execution(model, backward).trace((batch(),))
    digest = model_digest(backward.steps[-1].backward)

    def profile() -> Profile:
        settings = PlanningConfig(profiles=str(tmp_path))
        return storage.profile_of(model, batch(), LocalEngine(), settings, digest=digest)

    first = profile()
    assert first == profile_of(tmp_path)  # which has traced one
    monkeypatch.setattr(storage, "trace_step", None)
    assert profile() == first
    made.holds = False
    monkeypatch.setattr(storage, "trace_step", trace_step)
    assert profile().network != first.network  # it is measured beside a step


def test_is_measured_anew_when_told(tmp_path: Path, made: Made) -> None:
    profile_of(tmp_path)
    again = profile_of(tmp_path, anew=True)
    assert (made.steps, made.networks) == (2, 2)
    assert profile_of(tmp_path) == again  # which is the one that is kept


def test_is_measured_again_where_steps_take_longer_or_shorter_than_then(
    tmp_path: Path, made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ooodist")
    first = profile_of(tmp_path, step_seconds=0.1)
    for as_fast in (None, 0.1 * (1 + 0.9 * STEP_TOLERANCE), 0.1 * (1 - 0.9 * STEP_TOLERANCE)):
        assert profile_of(tmp_path, step_seconds=as_fast) == first
    assert "measuring again" not in caplog.text
    slower = profile_of(tmp_path, step_seconds=0.2)
    assert (made.steps, made.networks) == (2, 2)
    assert f"a step takes 200.00 ms, and took 100.00 ms on {first.measured}" in caplog.text
    assert profile_of(tmp_path, step_seconds=0.2) == slower  # which is the one that is kept
    profile_of(tmp_path, step_seconds=0.1)
    assert (made.steps, made.networks) == (3, 3)


def test_what_was_measured_without_training_is_not_compared(tmp_path: Path, made: Made) -> None:
    first = profile_of(tmp_path)
    assert profile_of(tmp_path, step_seconds=0.1) == first
    assert first.step_seconds is None


def test_another_batch_is_measured(tmp_path: Path, made: Made) -> None:
    profile_of(tmp_path)
    profile_of(tmp_path, samples=32)
    assert made.steps == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_a_network_that_has_changed_is_measured_again(tmp_path: Path, made: Made) -> None:
    first = profile_of(tmp_path)
    made.holds = False
    again = profile_of(tmp_path)
    assert (made.steps, made.networks) == (1, 2)
    assert again == replace(first, network=Network("local", 1, latency=2.0))
    made.holds = True
    assert profile_of(tmp_path) == again


def test_the_network_of_another_model_holds_as_long_as_exchanges_take_as_long(
    tmp_path: Path, made: Made, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    present = storage.present_conditions
    of_two = lambda *arguments: replace(present(*arguments), workers=2)  # noqa: E731
    monkeypatch.setattr(storage, "present_conditions", of_two)
    caplog.set_level(logging.INFO, "ooodist")
    first = profile_of(tmp_path)
    other = profile_of(tmp_path, samples=32)
    assert (made.steps, made.networks) == (2, 1)
    assert other.network == first.network
    assert f"the network is that of {tmp_path / file_name(first.name, first.conditions)}" in (
        caplog.text
    )
    made.holds = False
    profile_of(tmp_path, samples=16)
    assert (made.steps, made.networks) == (3, 2)
    made.holds = True
    profile_of(tmp_path, samples=8, anew=True)
    assert (made.steps, made.networks) == (4, 3)


@pytest.mark.parametrize(
    "now",
    [
        replace(CONDITIONS, engine="byteps"),
        replace(CONDITIONS, workers=4),
        with_machine(cores=2),
        replace(CONDITIONS, versions={"tensorflow": "2.21.0", "horovod": "0.29"}),
    ],
    ids=["engine", "workers", "cores", "versions"],
)
def test_the_network_of_other_conditions_does_not_count(tmp_path: Path, now: Conditions) -> None:
    write(tmp_path, PROFILE)
    assert folder.network_of_others(tmp_path, replace(CONDITIONS, model="f" * 16)) == NETWORK
    assert folder.network_of_others(tmp_path, replace(now, model="f" * 16)) is None


def test_goes_on_where_it_cannot_be_kept(
    tmp_path: Path, made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    no_folder = tmp_path / "file"
    no_folder.write_text("")
    assert profile_of(no_folder).costs.base_bytes == COSTS.base_bytes
    assert f"it cannot be kept in {no_folder}" in caplog.text


def test_the_default_folder_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert folder.folder_of(None) == Path("/home/ada/.cache/ooodist/profiles")
    assert folder.folder_of("~/mine") == Path("/home/ada/mine")
    assert folder.folder_of("here") == Path("here")


def test_whether_one_of_a_model_is_kept(tmp_path: Path, made: Made) -> None:
    model, engine = dense_chain(), LocalEngine()
    settings = PlanningConfig(profiles=str(tmp_path))
    assert not folder.is_kept(settings, model.name, engine)
    assert not folder.is_kept(PlanningConfig(profiles=str(tmp_path / "none")), None, engine)
    storage.profile_of(model, batch(), engine, settings)
    assert folder.is_kept(settings, model.name, engine)
    assert folder.is_kept(settings, None, engine)
    assert not folder.is_kept(replace(settings, profile_anew=True), model.name, engine)
    assert not folder.is_kept(settings, "another", engine)
    engine.size = 2
    assert not folder.is_kept(settings, None, engine)
    engine.name, engine.size = "horovod", 1
    assert not folder.is_kept(settings, None, engine)


def test_fails_with_what_is_wrong(tmp_path: Path) -> None:
    model = dense_chain()
    model.trainable = False
    compiled(model)
    with pytest.raises(UserError, match="0 backward passes"):
        storage.profile_of(model, batch(), LocalEngine(), PlanningConfig(profiles=str(tmp_path)))
