"""What ranks do to have one model, whatever each of them calls its weights."""

from __future__ import annotations

import re
from pathlib import Path

import keras
import numpy as np
import pytest

import ooodist
from ooodist.engines.base import Engine
from ooodist.step import replicas
from tests.ranks_in_threads import on_ranks

layers = keras.layers


def made(rank: int, width: int = 3) -> keras.Model:
    """Layers of other numbers on rank 0, and a path without the model's name on others."""
    keras.backend.clear_session()  # of this thread
    numbers = range(2) if rank else range(4, 6)
    first, second = (f"dense_{number}" for number in numbers)
    hidden = layers.Dense(width, name=first)
    norm = layers.BatchNormalization(synchronized=True, name=f"norm_{rank}")
    model = keras.Sequential([keras.Input((2,)), hidden, norm, layers.Dense(1, name=second)])
    model.compile(keras.optimizers.Adam(0.1), "mse", jit_compile=False)
    return model


def test_place_and_shape_say_which_weight_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=(16, 2)).astype(np.float32)

    def work(engine: Engine) -> tuple[list[np.ndarray], list[str], list[str]]:
        model = ooodist.distribute(made(engine.rank), order="first_k", k=1)
        model.fit(x, x[:, :1], batch_size=4, verbose=0)
        own = [*model.variables, *model.optimizer.variables]
        traced = model.ooodist.strategy.backward.steps[0]
        return model.get_weights(), [v.path for v in own], [e.name for e in traced.exchanges]

    results = on_ranks(monkeypatch, work)
    assert not [each for each in results if isinstance(each, Exception)], results
    (weights, *names), (others, *others_names) = results
    assert names == others_names
    assert any("dense_5" in name for name in names[0])
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_first_variable_that_differs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(engine: Engine) -> None:
        replicas.broadcast_weights(engine, made(engine.rank, width=3 + engine.rank))

    for error in on_ranks(monkeypatch, work):
        assert isinstance(error, ooodist.UserError)
        assert re.search(
            r"its variable number 1 is \S*dense_4/kernel float32 \(2, 3\) on rank 0, but "
            r"\S*dense_0/kernel float32 \(2, 4\) on rank 1;",
            str(error),
        ), error


def test_a_model_that_rank_0_alone_has_loaded_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its paths lack the model's name; weights, moments and the number of steps are rank 0's."""
    x = np.random.default_rng(0).normal(size=(16, 2)).astype(np.float32)
    before = made(0)
    before.fit(x, x[:, :1], batch_size=8, verbose=0)
    before.save(tmp_path / "before.keras")

    def work(engine: Engine) -> tuple[list[np.ndarray], int]:
        own = made(1)
        if engine.rank == 0:
            own = keras.models.load_model(tmp_path / "before.keras")
        ooodist.distribute(own).fit(x, x[:, :1], batch_size=4, verbose=0)
        return own.get_weights(), int(own.optimizer.iterations)

    (weights, steps), (others, other_steps) = on_ranks(monkeypatch, work)
    assert steps == other_steps == 4
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_weight_that_one_rank_alone_has_changed_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On all ranks; what those have that need not have it does not matter."""

    def work(engine: Engine) -> None:
        weights = [keras.Variable([1.0, 2.0], name=name) for name in ("one", "two", "three")]
        everywhere = range(engine.size)
        replicas.check_copies(engine, [(weight, everywhere) for weight in weights])
        if engine.rank == 2:
            weights[0].assign([1.0, 3.0])
            weights[1].assign([-0.0, 2.0])
        replicas.check_copies(engine, [(weights[0], (0, 1)), (weights[2], everywhere)])
        replicas.check_copies(engine, [(weights[0], (0, 1)), (weights[1], (0, 2))])

    errors = on_ranks(monkeypatch, work, size=3)
    assert all(isinstance(error, ooodist.UserError) for error in errors), errors
    assert {str(error).partition(":")[0] for error in errors} == {
        "weight two is not the same on all ranks that have it (0, 2)"
    }


def test_the_mean_is_of_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(engine: Engine) -> list[list[float]]:
        same, other = keras.Variable([0.1, 0.2]), keras.Variable([float(engine.rank), 4.0])
        kept = same.value
        replicas.average(engine, [same, other])
        assert same.value is kept
        return [same.numpy().tolist(), other.numpy().tolist()]

    tenths = np.array([0.1, 0.2], np.float32).tolist()
    assert on_ranks(monkeypatch, work) == [[tenths, [0.5, 4.0]]] * 2


def test_each_weight_that_is_trained_must_be_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other weights need not, such as the statistics of each rank's batches."""

    def work(engine: Engine) -> list[tuple[bool, bool]]:
        model = made(0)
        refused = []
        for changed in model.variables:
            for variable in model.variables:
                own = 1e-3 * engine.rank if variable is changed else 0.0
                variable.assign(np.full(variable.shape, 1.0 + own))
            try:
                replicas.check_replicas(engine, model)
            except ooodist.UserError as error:
                refused.append((changed.trainable, changed.name in str(error)))
        return refused

    for refused in on_ranks(monkeypatch, work):
        assert not isinstance(refused, Exception), refused
        assert refused == [(True, True)] * 6
