"""Whole jobs in this process: what is written, and that a resumed run is the uninterrupted one."""

from __future__ import annotations

import csv
import logging
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ooodist import engines
from ooodist.checkpoint import archive
from ooodist.checkpoint import folder as folders
from ooodist.checkpoint.keras_file import ModelContent
from ooodist.checkpoint.state import State
from ooodist.config import job as job_file
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.job.preparation import set_up
from ooodist.job.run import _holding_output, train
from ooodist.step.rank_state import RESIDUAL, RankState
from ooodist.trainer import resume
from ooodist.util import yaml_dataclass
from tests.util.test_folder_lock import another_job

SMALL = ["model={name: mlp, layers: [8], dropout: 0.3}", "batch=128", "report.tensorboard=false"]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    yield engines.init("local")
    keras.config.set_dtype_policy("float32")  # jobs set it for the whole process


def run(engine: Engine, output: Path, *overrides: str, resume: bool | str = False) -> None:
    config = job_file.load(None, [*SMALL, *overrides, f"output={output}"])
    config = replace(config, checkpoint=replace(config.checkpoint, resume=resume))
    train(set_up(config, engine), time.monotonic())


@pytest.fixture(scope="module")
def after_an_epoch(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a job of one epoch, for tests that only read it."""
    folder = tmp_path_factory.mktemp("after_an_epoch")
    run(engine, folder, "epochs=1")
    return folder


def last_state(folder: Path) -> State:
    return folders.latest(folder)[1]


@keras.saving.register_keras_serializable("tests")
class Noisy(keras.Model):
    """A subclassed model with random numbers of its own, and a dropout layer."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.noise = keras.random.SeedGenerator(3)
        self.flatten = keras.layers.Flatten()
        self.hidden = keras.layers.Dense(8, activation="relu")
        self.normalization = keras.layers.BatchNormalization()
        self.dropout = keras.layers.Dropout(0.2)
        self.out = keras.layers.Dense(10, dtype="float32")

    def call(self, x: Any, training: bool = False) -> Any:
        x = self.normalization(self.hidden(self.flatten(x)), training=training)
        if training:
            x += 0.1 * keras.random.normal((1, 8), seed=self.noise)
        return self.out(self.dropout(x, training=training))


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(
            [
                "data.augment=true",
                "optimizer={name: adam, use_ema: true, clipnorm: 1.0}",
                "optimizer.learning_rate={schedule: cosine_decay, initial_learning_rate: 1e-2,"
                " decay_steps: 40}",
                "early_stopping={monitor: val_accuracy, patience: 2, restore_best_weights: true}",
            ],
            id="adam, schedule, average, early stopping, augmentation",
        ),
        pytest.param(
            ["precision=mixed_float16", "optimizer=adamw", "accumulate=2", "steps_per_epoch=5"],
            id="loss scaling, accumulation, epochs of a part of the data",
        ),
        pytest.param(
            [
                "model=tests.job.test_run:Noisy",
                "order={name: first_k, k: 1}",
                "steps_per_execution=4",
            ],
            id="a model of the user's own, batch norm, several steps per execution",
        ),
    ],
)
def test_a_resumed_run_is_the_uninterrupted_one(
    overrides: list[str], engine: Engine, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(engine, whole, *overrides, "epochs=5")

    often = "checkpoint={every_epochs: 2, every_steps: 3, keep: 100, background: false}"
    run(engine, parts, *overrides, often, "epochs=3")
    *_, (before, _), (last, file) = folders.checkpoints(parts)
    assert (2, 0) < before < (3, 0) == last
    file.unlink()  # as if it was killed in epoch 3
    run(engine, parts, *overrides, "epochs=4", resume=True)
    keras.utils.set_random_seed(99)  # a new process knows nothing of the old one
    run(engine, parts, *overrides, "epochs=5", resume=True)

    assert (parts / "history.csv").read_text() == (whole / "history.csv").read_text()
    expected, found = last_state(whole), last_state(parts)
    assert found.fingerprint == expected.fingerprint
    assert (found.epoch, found.step, found.best) == (expected.epoch, expected.step, expected.best)
    models = [keras.models.load_model(folder / "model.keras") for folder in (whole, parts)]
    for one, other in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_run_goes_on_from_copies_when_its_disk_is_gone(engine: Engine, tmp_path: Path) -> None:
    whole, copies = tmp_path / "whole", tmp_path / "copies"
    run(engine, whole, "epochs=3")

    to_copy = f"checkpoint={{every_epochs: 1, keep: 2, copy_to: '{copies}'}}"
    run(engine, tmp_path / "first", to_copy, "epochs=2")
    assert [epoch for (epoch, _), _ in folders.checkpoints(copies)] == [1, 2]
    assert {"best.keras", "model.keras"} <= {file.name for file in copies.iterdir()}
    with pytest.raises(UserError, match=r"copy_to is .*, which has checkpoints of an earlier run"):
        run(engine, tmp_path / "other", to_copy, "epochs=3")

    elsewhere = f"file://{copies}"
    for name, overrides, place in (
        ("by address", [], elsewhere),
        ("asked for", [to_copy], True),
        ("restarted", [to_copy, "checkpoint.restart=true"], False),
    ):
        keras.utils.set_random_seed(99)
        run(engine, tmp_path / name, *overrides, "epochs=3", resume=place)
        assert last_state(tmp_path / name).fingerprint == last_state(whole).fingerprint
    assert [epoch for (epoch, _), _ in folders.checkpoints(copies)] == [2, 3]


def test_what_a_job_writes(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(engine, tmp_path, "epochs=4", "report.tensorboard=true", "checkpoint.keep=2")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        "best.keras",
        "checkpoint-epoch-000003.keras",
        "checkpoint-epoch-000004.keras",
        "config.yaml",
        "history.csv",
        "model.keras",
        "tensorboard",
    }
    with (tmp_path / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4"]
    events = EventAccumulator(str(tmp_path / "tensorboard" / "validation"))
    events.Reload()
    assert len(events.Tensors("epoch_loss")) == 4
    events = EventAccumulator(str(tmp_path / "tensorboard" / "train"))
    events.Reload()
    seconds, samples = (
        [tf.make_ndarray(each.tensor_proto) for each in events.Tensors(f"speed/{name}")]
        for name in ("step_seconds", "samples_per_second")
    )
    np.testing.assert_allclose(np.multiply(seconds, samples), [128] * 4, rtol=1e-5)
    written = job_file.load(tmp_path / "config.yaml")
    assert (written.epochs, written.model.layers) == (4, (8,))
    assert (
        folders.read_state(tmp_path / "best.keras").epoch
        == last_state(tmp_path).best["best_epoch"] + 1
    )

    output = capsys.readouterr().out
    assert "epoch 4/4 step 11/11" in output
    for word in ("mlp", "engine local", rows[-1]["val_accuracy"][:6], "checkpoint-epoch-000004"):
        assert word in output


def test_nothing_but_the_job_file_where_all_is_switched_off(engine: Engine, tmp_path: Path) -> None:
    run(engine, tmp_path, "epochs=1", "report.csv=false", "checkpoint.every_epochs=0")
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_early_stopping_ends_the_run_and_a_resume_leaves_it_ended(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [
        "epochs=30",
        "optimizer.learning_rate=0",
        "early_stopping={monitor: val_loss, patience: 1, restore_best_weights: true}",
    ]
    run(engine, tmp_path, *overrides)
    assert last_state(tmp_path).epoch == 2
    before = (tmp_path / "history.csv").read_text()
    run(engine, tmp_path, *overrides, resume=True)
    assert last_state(tmp_path).epoch == 2
    assert (tmp_path / "history.csv").read_text() == before
    assert "validation" in capsys.readouterr().out


def test_a_training_that_explodes_leaves_healthy_checkpoints(
    engine: Engine, tmp_path: Path
) -> None:
    """11 steps an epoch; the update of step 24 makes all too large."""
    rates = "{schedule: piecewise_constant_decay, boundaries: [22], values: [0.01, 1.0e+35]}"
    settings = [
        "epochs=4",
        "checkpoint={keep: 1, background: false}",
        "model.activation=linear",
        f"optimizer={{name: sgd, learning_rate: {rates}}}",
    ]
    with pytest.raises(
        UserError, match=r"steps .*: weight \S+ is no longer|loss is nan at epoch 3"
    ):
        run(engine, tmp_path, *settings)
    files = sorted(file.name for file in tmp_path.glob("*.keras"))
    assert files == ["best.keras", "checkpoint-epoch-000002.keras"]
    for name in files:
        weights = keras.models.load_model(tmp_path / name).get_weights()
        assert all(np.isfinite(weight).all() for weight in weights)


def test_a_training_that_explodes_goes_on_if_it_is_asked_to(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["epochs=2", "model.activation=linear", "data.validation_fraction=0"]
    explodes = "optimizer={name: sgd, learning_rate: 1.0e+35}"
    run(engine, tmp_path / "ignored", *settings, explodes, "on_nan=ignore")
    assert [epoch for (epoch, _), _ in folders.checkpoints(tmp_path / "ignored")] == [1, 2]
    assert "left out" not in capsys.readouterr().out
    weights = keras.models.load_model(tmp_path / "ignored" / "model.keras").get_weights()
    assert not np.isfinite(weights[0]).any()
    run(engine, tmp_path / "skipped", *settings, explodes, "on_nan=skip")
    assert re.search(r"left out +\d\d steps, as gradients were", capsys.readouterr().out)
    weights = keras.models.load_model(tmp_path / "skipped" / "model.keras").get_weights()
    assert all(np.isfinite(weight).all() for weight in weights)


def test_a_job_that_is_complete_is_only_evaluated(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(engine, tmp_path, "epochs=1", "optimizer={name: sgd, use_ema: true}")
    model = keras.models.load_model(tmp_path / "model.keras")
    caplog.set_level(logging.INFO, "ooodist")
    run(engine, tmp_path, "epochs=1", "optimizer={name: sgd, use_ema: true}", resume=True)
    assert "nothing is left to train after epoch 1" in caplog.text
    again = keras.models.load_model(tmp_path / "model.keras")
    for one, other in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_changes_on_resume_are_named_and_a_new_learning_rate_counts(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = "optimizer={name: sgd, learning_rate: 0.1}"
    run(engine, tmp_path, "epochs=1", plain)
    without = "optimizer.learning_rate=0"
    run(engine, tmp_path, "epochs=2", plain, without, "batch=64", resume=True)
    assert "resuming with optimizer.learning_rate: 0.0 instead of 0.1" in caplog.text
    assert "resuming with batch: 64 instead of 128" in caplog.text
    assert "resuming with epochs" not in caplog.text
    first, second = (keras.models.load_model(tmp_path / folders.file_name(n)) for n in (1, 2))
    assert float(first.optimizer.learning_rate) == np.float32(0.1)
    assert float(second.optimizer.learning_rate) == 0
    for one, other in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    # 11 steps of 128 samples, then 22 of 64: the stream goes on at the same sample.
    assert last_state(tmp_path).step == 22 + 22


def test_the_number_of_workers_may_change_if_the_job_says_so(
    after_an_epoch: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, state = folders.latest(after_an_epoch)
    source = resume.Source(file, replace(state, size=3))
    config = job_file.load(None, SMALL)
    with pytest.raises(UserError, match=r"is of 3 workers, this job has 2; .*new_world_size=true"):
        resume.start_step(source, config.checkpoint, config.batch, 2)
    allowed = replace(config.checkpoint, new_world_size=True)
    # 11 * 3 steps of one worker, rounded up
    assert resume.start_step(source, allowed, config.batch, 2) == 17
    resume.warn_of_changes(source, yaml_dataclass.plain(config), 2)
    assert "resuming with 2 workers instead of 3: random number streams are new" in caplog.text
    assert "samples a step" not in caplog.text  # the digits come in the order of the samples


def test_ranks_share_what_gradients_had_lost(
    engine: Engine, after_an_epoch: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Three ranks had lost something; the only one now has lost as much as they had together."""
    file, state = folders.latest(after_an_epoch)
    model = keras.models.load_model(file)
    lost = {"a/kernel": np.float32([[1, 2], [0, -5], [0.5, 0]]), "b": np.float64([3, 4, 2])}
    by_rank = {f"residual/{name}": value for name, value in lost.items()}
    archive.write(tmp_path / "lost.keras", ModelContent(model, state, by_rank=by_rank))
    source = resume.Source(tmp_path / "lost.keras", replace(state, size=3))
    rank_state = RankState({RESIDUAL})
    resume.restore_rank_state(engine, source, rank_state)
    restored = rank_state.values(RESIDUAL)
    assert {name: value.tolist() for name, value in restored.items()} == {
        "a/kernel": [1.5, -3],
        "b": 9,
    }
    assert [value.dtype for value in restored.values()] == [np.float32, np.float64]
    resume.restore_rank_state(engine, source, RankState())
    assert "resuming without residual/a/kernel, which this job does not keep" in caplog.text
    resume.restore_rank_state(engine, resume.Source(file, state), rank_state)  # which has none
    assert rank_state.values(RESIDUAL).keys() == lost.keys()


@pytest.mark.parametrize(("size", "batch"), [(4, 64), (2, 128), (3, 85), (1, 256), (8, 32)])
def test_a_restart_keeps_the_samples_of_a_step(size: int, batch: int, tmp_path: Path) -> None:
    """The first start had four workers with 64 samples each."""
    config = job_file.load(None, [*SMALL, "batch=64", "checkpoint.restart=true"])
    state = State(3, 33, 1, 4, 64, {"batch": 64}, (), "")
    source = resume.Source(tmp_path, state)
    restart = config.checkpoint
    assert resume.batch_after_restart(source, restart, config.batch, size) == batch
    first = resume.start_step(source, restart, batch, size)
    seen, before = first * size * batch, 33 * 4 * 64
    assert before <= seen < before + size * batch
    if 256 % size == 0:
        assert first == 33  # the same steps, so the same learning rates, and the same samples
    assert resume.batch_after_restart(None, restart, config.batch, size) == config.batch
    usual = replace(restart, restart=False)
    assert resume.batch_after_restart(source, usual, config.batch, size) == config.batch


def test_a_restart_begins_as_the_job_does_or_goes_on(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="ooodist")
    run(engine, tmp_path, "epochs=1", "checkpoint.restart=true")
    assert f"restart: there is no checkpoint in {tmp_path} yet" in caplog.text
    assert "resuming after" not in caplog.text
    run(engine, tmp_path, "epochs=2", "checkpoint.restart=true")
    assert "resuming after epoch 1 from" in caplog.text
    assert last_state(tmp_path).epoch == 2


@pytest.mark.parametrize(("batch", "is_named"), [(64, True), (96, False)])
def test_another_order_of_records_is_named(
    after_an_epoch: Path, caplog: pytest.LogCaptureFixture, batch: int, is_named: bool
) -> None:
    """A checkpoint of three workers with 64 samples each goes on with two."""
    file, state = folders.latest(after_an_epoch)
    source = resume.Source(file, replace(state, size=3, config={**state.config, "batch": 64}))
    config = job_file.load(None, [*SMALL, "data={name: tfds, dataset: mnist}", f"batch={batch}"])
    resume.warn_of_changes(source, yaml_dataclass.plain(config), 2)
    said = "resuming with 128 samples a step instead of 192: data tfds comes in another"
    assert (said in caplog.text) is is_named


def test_other_versions_are_named(after_an_epoch: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, state = folders.latest(after_an_epoch)
    old = replace(state, versions={**state.versions, "keras": "3.0.0"})
    config = yaml_dataclass.plain(job_file.load(None, SMALL))
    resume.warn_of_changes(resume.Source(file, old), config, 1)
    assert "but the checkpoint was written with 3.0.0" in caplog.text


def test_no_checkpoint_is_overwritten_unasked(engine: Engine, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    run(engine, old, "epochs=2")
    with pytest.raises(UserError, match=r"has checkpoints of an earlier run; go on .*--resume"):
        run(engine, old, "epochs=2")
    first = str(old / folders.file_name(1))
    with pytest.raises(UserError, match="has checkpoints of epoch 2 that would be overwritten"):
        run(engine, old, "epochs=2", resume=first)
    run(engine, new, "epochs=2", resume=first)
    assert last_state(new).fingerprint == last_state(old).fingerprint
    with pytest.raises(UserError, match="there is no checkpoint in"):
        run(engine, tmp_path / "empty", resume=True)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.layers=[9]"], r"is of another model or optimizer: it has .* of shape \(64, 8\)"),
        (["optimizer=adam"], "has sgd.*_momentum of shape .* where this job has adam"),
    ],
)
def test_another_model_cannot_be_resumed(
    overrides: list[str], message: str, engine: Engine, after_an_epoch: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    shutil.copytree(after_an_epoch, output)
    with pytest.raises(UserError, match=message):
        run(engine, output, *overrides, "epochs=2", resume=True)


class Unsaveable(keras.Model):
    """Keras cannot write down the argument of its constructor."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function
        self.flatten = keras.layers.Flatten()
        self.out = keras.layers.Dense(10)

    def call(self, x: Any) -> Any:
        return self.out(self.function(self.flatten(x)))


def unsaveable_model() -> keras.Model:
    return Unsaveable(lambda x: x)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["accumulate=12"], "accumulate is 12, but an epoch has only 11 steps"),
        (["early_stopping.monitor=val_acc"], r"is val_acc \(did you mean val_accuracy\?\); it mus"),
        (
            ["early_stopping.monitor=val_loss", "data.validation_fraction=0"],
            "there is no validation data",
        ),
        (["optimizer={name: adam, clipnorm: 1, clipvalue: 1}"], "optimizer: Keras refuses Adam"),
        (["metrics=[accuracy, accuracy]"], "metrics: accuracy is there twice"),
        (["model=tests.job.test_run:unsaveable_model"], "cannot be saved as a Keras file"),
        (["order={name: first_k, k: 99}"], "first_k has k = 99, but this model has 2 layers"),
        (
            ["optimizer.learning_rate=1e30", "epochs=2"],
            r"is no longer finite|the loss is (nan|inf) at epoch 1",
        ),
    ],
)
def test_jobs_that_cannot_run(
    overrides: list[str], message: str, engine: Engine, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        run(engine, tmp_path, "epochs=1", *overrides)
    assert folders.checkpoints(tmp_path) == []
    # A minute later it would end the process, whatever that does by then.
    assert "watchdog" not in [thread.name for thread in threading.enumerate()]


def test_an_unsaveable_model_trains_without_checkpoints(engine: Engine, tmp_path: Path) -> None:
    model = "model=tests.job.test_run:unsaveable_model"
    run(engine, tmp_path, model, "epochs=1", "checkpoint.every_epochs=0")


def test_losses_and_metrics_by_name(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ooodist")
    names = "[accuracy, {name: sparse_top_k_categorical_accuracy, k: 3}]"
    run(engine, tmp_path, "epochs=1", f"metrics={names}", "loss=sparse_categorical_crossentropy")
    assert "sparse_categorical_crossentropy takes logits" in caplog.text
    (epoch,) = last_state(tmp_path).history
    assert 0 < epoch["accuracy"] < epoch["sparse_top_k_categorical_accuracy"] < 1


def test_regression_has_mean_squared_error(engine: Engine, tmp_path: Path) -> None:
    data = "data={name: synthetic, input_shape: [4], target_shape: [2], num_samples: 1000}"
    run(engine, tmp_path, "epochs=1", data, "model={name: mlp, layers: [4]}")
    assert last_state(tmp_path).history[0].keys() == {"epoch", "loss", "val_loss"}


@pytest.mark.parametrize("background", [True, False])
def test_checkpoints_come_by_the_clock_until_one_cannot_be_written(
    engine: Engine, tmp_path: Path, background: bool
) -> None:
    output = tmp_path / "out"
    found: list[list[tuple[int, int]]] = []

    def wait_and_delete() -> None:
        while len(found) < 3:
            places = [place for place, _ in folders.checkpoints(output)]
            if places and places not in found:
                found.append(places)
            time.sleep(0.001)
        output.rename(tmp_path / "gone")

    thread = threading.Thread(target=wait_and_delete)
    thread.start()
    often = f"{{every_epochs: 0, every_minutes: 0.005, keep: 2, background: {background}}}".lower()
    with pytest.raises(UserError, match=r"checkpoint .*-step-\d+\.keras cannot be written: .*No s"):
        run(engine, output, f"checkpoint={often}", "epochs=1", "steps_per_epoch=100000")
    thread.join()
    assert max(map(len, found)) <= 3  # one more while the oldest is deleted
    assert all(epoch == 0 < step for places in found for epoch, step in places)
    state = last_state(tmp_path / "gone")  # what was there is kept
    assert state.within is not None
    assert state.step == state.within.step


def test_two_jobs_in_one_folder(engine: Engine, tmp_path: Path) -> None:
    config = job_file.load(None, [*SMALL, f"output={tmp_path}"])
    again = replace(config, checkpoint=replace(config.checkpoint, restart=True))
    with another_job(tmp_path) as first:
        with pytest.raises(UserError, match=f"another job writes .process {first.pid} on"):
            _holding_output(config, engine).__enter__()
        assert first.stdin is not None
        threading.Timer(2.0, first.stdin.close).start()
        with _holding_output(again, engine):  # the end of the job that is started again
            assert first.wait(timeout=20) == 0
    assert not list(tmp_path.iterdir())


REPORTS = """
import keras

class Seen(keras.callbacks.Callback):
    def __init__(self, rates):
        super().__init__()
        self.rates = rates

    def on_epoch_end(self, epoch, logs=None):
        self.rates.append(float(logs["learning_rate"]))
        logs["seen"] = len(self.rates)

RATES = []
def seen():
    return [Seen(RATES)]
def nothing():
    return None

def stream():
    import tensorflow as tf
    numbers = tf.data.Dataset.range(300).map(lambda n: (tf.one_hot(n % 8, 8), n % 4))
    return numbers.repeat(), numbers
"""


def test_callbacks_of_a_job_file(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_reports.py").write_text(REPORTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    lowers = "{name: reduce_lr_on_plateau, monitor: loss, patience: 0, min_delta: 10, cooldown: 0}"
    keras_s = f"[{lowers}, {{name: csv_logger, filename: {tmp_path}/log.csv}}]"
    run(engine, tmp_path / "out", "epochs=3", f"callbacks={keras_s[:-1]}, 'users_reports:seen']")
    import users_reports  # type: ignore[import-not-found]

    assert pytest.approx([0.1, 0.1, 0.01]) == users_reports.RATES  # before they are lowered
    with (tmp_path / "out" / "history.csv").open() as file:
        assert [float(row["seen"]) for row in csv.DictReader(file)] == [1, 2, 3]
    assert (tmp_path / "log.csv").read_text().startswith("epoch,accuracy,")


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        ("users_reports:nothing", "callbacks[0]: users_reports:nothing returned NoneType None"),
        ("users_reports:sean", "callbacks[0] users_reports:sean: module users_reports has no"),
        ("{name: users_reports:seen, n: 1}", "cannot be called with the arguments {'n': 1}"),
        ("{name: swap_ema_weights, swap_on_epoch: 3}", "swap_on_epoch is 3; it must be true"),
        ("{name: reduce_lr_on_plateau, factor: 2}", "callbacks[0]: Keras refuses ReduceLROnPla"),
        (
            "{name: reduce_lr_on_plateau, monitor: los}",
            "callbacks[0].monitor is los (did you mean loss?); it must be one of loss, accuracy",
        ),
    ],
)
def test_wrong_callbacks(
    engine: Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    callbacks: str,
    message: str,
) -> None:
    (tmp_path / "users_reports.py").write_text(REPORTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=re.escape(message)):
        run(engine, tmp_path / "out", f"callbacks=[{callbacks}]")


def test_an_endless_stream_needs_an_end_of_epochs(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_reports.py").write_text(REPORTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    data = "data={name: 'users_reports:stream', num_classes: 4}"
    with pytest.raises(UserError, match="steps_per_epoch is missing: the training data is endless"):
        run(engine, tmp_path / "out", data)
    run(engine, tmp_path / "out", data, "steps_per_epoch=3", "epochs=2")
    assert last_state(tmp_path / "out").step == 6
