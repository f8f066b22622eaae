"""Callbacks that only some ranks were given, and weights that only some ranks have changed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import ooodist
from ooodist.engines.base import Engine
from ooodist.trainer import writers
from tests.ranks_in_threads import on_ranks

callbacks = keras.callbacks
numbers = np.random.default_rng(0)
X = numbers.normal(size=(24, 8)).astype(np.float32)
Y = (2 * X[:, :1] + numbers.normal(size=(24, 1))).astype(np.float32)
V = numbers.normal(size=(16, 8)).astype(np.float32)
W = 2 * V[:, :1]


def made(seed: int = 3) -> keras.Model:
    keras.utils.set_random_seed(seed)
    hidden = keras.layers.Dense(32, "relu")
    model = keras.Sequential([keras.Input((8,)), hidden, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), "mse", jit_compile=False)
    return model


def trained(
    given: list[callbacks.Callback], epochs: int = 3, **options: Any
) -> tuple[keras.Model, dict[str, list[float]]]:
    model = ooodist.distribute(made())
    options = {"validation_data": (V, W), **options}
    history = model.fit(
        X, Y, batch_size=6, epochs=epochs, shuffle=False, callbacks=given, verbose=0, **options
    )
    return model, history.history


def results_of(monkeypatch: pytest.MonkeyPatch, work: Callable[[Engine], Any]) -> list[Any]:
    results = on_ranks(monkeypatch, work)
    errors = [each for each in results if isinstance(each, Exception)]
    if errors:
        raise errors[0]
    return results


class Meddler(callbacks.Callback):
    """One of the user's own, which changes what is trained."""

    def __init__(self, at: str) -> None:
        super().__init__()
        setattr(self, at, self.meddle)

    def meddle(self, *_: Any, **__: Any) -> None:
        self.model.set_weights([np.full(w.shape, 0.5) for w in self.model.get_weights()])
        self.model.optimizer.learning_rate = 0.25


def test_what_rank_0_alone_was_given_stops_restores_and_lowers_the_rate_on_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def work(engine: Engine) -> Any:
        # No epoch is better than the first by so much.
        stops = callbacks.EarlyStopping(patience=3, min_delta=100.0, restore_best_weights=True)
        lowers = callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=100.0, cooldown=99)
        saves = callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras")
        model, history = trained([stops, lowers, saves] if engine.rank == 0 else [], epochs=30)
        rate = float(model.optimizer.learning_rate)
        return history, model.evaluate(V, W, verbose=0), model.get_weights(), rate

    (history, found, *rest), (other_history, other_found, *other_rest) = results_of(
        monkeypatch, work
    )
    assert len(history["loss"]) == len(other_history["loss"]) == len(list(tmp_path.iterdir())) == 4
    assert history["val_loss"] == other_history["val_loss"]
    assert found == other_found
    assert found == pytest.approx(history["val_loss"][0], rel=1e-5)
    assert rest[1] == other_rest[1] == pytest.approx(0.005)
    for one, other in zip(rest[0], other_rest[0], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("at", ["on_epoch_begin", "on_epoch_end", "on_train_end"])
def test_what_rank_0_alone_changes_counts(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    def work(engine: Engine) -> Any:
        if at == "on_epoch_begin":  # where the first step gives all what rank 0 has
            given = [callbacks.LearningRateScheduler(lambda _, rate: rate / 2)]
        else:
            given = [Meddler(at)]
        model, _ = trained(given if engine.rank == 0 else [], epochs=2)
        return [v.numpy() for v in (*model.variables, *model.optimizer.variables)]

    for one, other in zip(*results_of(monkeypatch, work), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_rate_that_changes_within_an_epoch_on_one_rank_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def work(engine: Engine) -> None:
        trained([Meddler("on_train_batch_end")] if engine.rank == 0 else [])

    for error in on_ranks(monkeypatch, work):
        assert isinstance(error, ooodist.UserError), error
        assert "the learning rate was changed in the middle of an epoch" in str(error)
        assert "not all have Meddler" in str(error)


def test_what_stops_rank_0_within_an_epoch_stops_all_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def work(engine: Engine) -> int:
        def stop(batch: int, logs: Any) -> None:
            model.stop_training = batch == 1

        model = ooodist.distribute(made())
        given = [callbacks.LambdaCallback(on_train_batch_end=stop)] if engine.rank == 0 else []
        model.fit(X, Y, batch_size=3, epochs=3, callbacks=given, verbose=0)
        return int(model.optimizer.iterations)

    assert results_of(monkeypatch, work) == [4, 4]


def test_rank_0_resumes_for_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def work(engine: Engine) -> Any:
        def begin(epoch: int, _: Any) -> None:
            if epoch == 1:
                raise InterruptedError

        found = []
        for own in ([callbacks.LambdaCallback(on_epoch_begin=begin)], []):
            backup = callbacks.BackupAndRestore(tmp_path / "backup")
            try:
                model, history = trained([backup, *own] if engine.rank == 0 else own)
                found = [history["loss"], model.get_weights(), int(model.optimizer.iterations)]
            except InterruptedError:
                found = []
        return found

    one, other = results_of(monkeypatch, work)
    assert one[0] == other[0]
    assert len(one[0]) == 2
    assert one[2] == other[2] == 3 * 2


def test_an_evaluation_is_of_rank_0s_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(engine: Engine) -> Any:
        model = ooodist.distribute(made(seed=3 + engine.rank))
        found = [model.evaluate(V, W, verbose=0)]  # built with other seeds
        model.fit(X, Y, batch_size=6, verbose=0)
        if engine.rank == 0:
            model.set_weights([np.full(w.shape, 0.5) for w in model.get_weights()])
        found.append(model.evaluate(V, W, verbose=0))
        late = keras.Sequential([keras.layers.Dense(1)])  # built by its first batch
        late.compile("sgd", "mse")
        return found, ooodist.distribute(late).evaluate(V, W, verbose=0), late.get_weights()

    (found, late, weights), (other, other_late, other_weights) = results_of(monkeypatch, work)
    assert (found, late) == (other, other_late)
    plain = made()
    assert found[0] == pytest.approx(plain.evaluate(V, W, verbose=0), rel=1e-5)
    plain.set_weights([np.full(w.shape, 0.5) for w in plain.get_weights()])
    assert found[1] == pytest.approx(plain.evaluate(V, W, verbose=0), rel=1e-5)
    np.testing.assert_array_equal(weights[0], other_weights[0])


def test_what_runs_on_rank_0_alone_must_be_given_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def work(engine: Engine) -> None:
        trained([callbacks.CSVLogger(tmp_path / "x.csv")] if engine.rank else [])

    for error in on_ranks(monkeypatch, work):
        assert "CSVLogger was given on rank 1 and not on rank 0" in str(error), error


def test_what_only_logs_on_rank_0_is_nothing_to_follow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ooodist")

    def work(engine: Engine) -> None:
        logger, stops = callbacks.CSVLogger(tmp_path / "x.csv"), callbacks.EarlyStopping("loss")
        trained([logger, stops] if engine.rank == 0 else [stops])

    results_of(monkeypatch, work)
    assert len((tmp_path / "x.csv").read_text().splitlines()) == 1 + 3
    assert "callbacks" not in caplog.text


class Own(callbacks.Callback):
    """One of the user's own."""

    has_run = False

    def on_train_begin(self, logs: Any = None) -> None:
        self.has_run = True


class Marked(Own):
    ooodist_rank_0_only = True


Reporter = type("WandbMetricsLogger", (Own,), {"__module__": "wandb.integration.keras"})


class OwnReporter(Reporter):
    """It is one of Weights & Biases, too."""


class Asked(Reporter):
    ooodist_rank_0_only = False


def test_where_callbacks_of_others_run_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ooodist")
    monkeypatch.setattr(writers, "_said", set())
    kinds = (Own, Marked, Reporter, OwnReporter, Asked)

    def work(engine: Engine) -> list[bool]:
        for _ in range(2):
            given = [kind() for kind in kinds]
            trained(given, epochs=1)
        return [callback.has_run for callback in given]

    assert results_of(monkeypatch, work) == [[True] * 5, [True, False, False, False, True]]
    said = [each.getMessage() for each in caplog.records if "callbacks:" in each.getMessage()]
    assert said == [
        "fit: callbacks: Marked, OwnReporter, WandbMetricsLogger run on rank 0 alone; Asked, Own "
        "on every rank; with the attribute ooodist_rank_0_only = True on rank 0 alone, which is "
        "right for what writes or reports"
    ]
