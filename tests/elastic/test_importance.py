"""Importance: what is measured is the formula's, and measuring leaves no trace."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import ooodist
from ooodist.elastic.importance import Probe, by_item, rank_correlation
from ooodist.elastic.optimizer_state import OptimizerState
from ooodist.elastic.selection.items import Item, Selectable
from ooodist.settings.sections import PlanningConfig
from tests.elastic.decisions import decided, everything
from tests.profiler.models import BATCH, batch, compiled, dense_chain, layers, with_everything

optimizers = keras.optimizers


@pytest.fixture(autouse=True)
def _local_engine() -> None:
    ooodist.init("local")


def state(model: keras.Model) -> list[bytes]:
    """Weights, statistics, random generators, metrics, optimizer state and learning rate."""
    held = [*model.variables, *model.metrics_variables, *model.optimizer.variables]
    return [np.asarray(variable.numpy()).tobytes() for variable in held]


def momentum() -> optimizers.Optimizer:
    return optimizers.SGD(0.05, momentum=0.9)


MAKE: dict[str, Callable[[], keras.Model]] = {
    "momentum": lambda: with_everything(momentum()),
    "loss scale": lambda: with_everything("adam", "mixed_float16"),
}


@pytest.mark.parametrize("name", MAKE)
def test_a_probe_leaves_no_trace(name: str) -> None:
    plain, probed = MAKE[name](), MAKE[name]()
    for model in (plain, probed):
        model.optimizer.build(model.trainable_variables)  # else Keras traces the first step twice
        model.fit(*batch(0), batch_size=BATCH // 2, verbose=0, shuffle=False)
    optimizer_state = OptimizerState(probed)
    before, counts = state(probed), optimizer_state.state()
    assert before == state(plain)
    generators = random.getstate(), np.random.get_state()[1].tobytes()
    measured = Probe(probed, optimizer_state)([batch(1), batch(2), batch(3)])
    assert state(probed) == before
    assert optimizer_state.state() == counts
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == generators
    names = {weight.path for weight in probed.trainable_variables}
    assert set(measured.loss_change) == set(measured.gradient) == names
    for model in (plain, probed):
        model.fit(*batch(4), batch_size=BATCH // 2, verbose=0, shuffle=False)
    assert state(plain) == state(probed)


def test_training_with_probes_in_between_is_training_without(tmp_path: Path) -> None:
    planning = PlanningConfig(profiles=str(tmp_path))
    histories, states = [], []
    for elastic in (None, {"rho": 0.99, "renew": "2 steps", "batches": 3}):
        model = ooodist.distribute(with_everything("adam"), elastic=elastic, planning=planning)
        with decided([everything]):
            history = model.fit(*batch(), batch_size=8, epochs=2, verbose=0, shuffle=False).history
        histories.append({key: history[key] for key in ("loss", "accuracy")})
        states.append(state(model))
    assert len(model.ooodist.strategy.controller.renewals) == 8
    assert histories[0] == histories[1]
    assert states[0] == states[1]


def gradients_of(model: keras.Model, given: Any) -> list[np.ndarray]:
    x, y = given
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x, training=True))
    found = tape.gradient(loss, [weight.value for weight in model.trainable_variables])
    return [tf.convert_to_tensor(gradient).numpy().astype(np.float64) for gradient in found]


def by_hand(
    model: keras.Model, batches: Sequence[Any], step: Callable[[np.ndarray], np.ndarray]
) -> dict[str, float]:
    """The change of the loss, with a step of the optimizer as it follows from a gradient."""
    found = [gradients_of(model, each) for each in batches]
    pairs = list(zip(found, [*found[1:], found[0]], strict=True))
    return {
        weight.path: float(np.mean([(later[k] * step(g[k])).sum() for g, later in pairs]))
        for k, weight in enumerate(model.trainable_variables)
    }


def assert_close(found: dict[str, float], expected: dict[str, float]) -> None:
    assert found.keys() == expected.keys()
    scale = max(map(abs, expected.values()))
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-3, abs=1e-5 * scale), name


def embedded() -> keras.Model:
    """Whose embedding's gradients are sparse, with tokens that come several times."""
    tokens = keras.Input((32,), dtype="int32")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(7, 4, name="embedding")(tokens))
    return compiled(keras.Model(tokens, layers.Dense(5)(x)), optimizers.SGD(0.1))


def token_batch(seed: int) -> Any:
    x, y = batch(seed)
    return (np.abs(x) * 3).astype(np.int32) % 7, y


@pytest.fixture(scope="module")
def chain() -> tuple[keras.Model, Probe]:
    model = dense_chain(optimizers.SGD(0.1))
    return model, Probe(model, OptimizerState(model))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_change_of_the_loss_is_that_of_the_formula(
    number: int, chain: tuple[keras.Model, Probe]
) -> None:
    """A single batch serves itself."""
    model, probe = chain
    batches = [batch(seed) for seed in range(number)]
    assert_close(probe(batches).loss_change, by_hand(model, batches, lambda g: -0.1 * g))


@pytest.mark.parametrize("number", [1, 2, 5])
def test_batches_of_one_update_count_together(number: int) -> None:
    """What is left over does not count; too few count several times."""
    model = dense_chain(optimizers.SGD(0.1))
    model.optimizer.build(model.trainable_variables)
    batches = [batch(seed) for seed in range(number)]
    pairs = [(batches * 2)[n : n + 2] for n in range(0, max(number - 1, 1), 2)]
    together = [tuple(map(np.concatenate, zip(*pair, strict=True))) for pair in pairs]
    found = Probe(model, OptimizerState(model), accumulate=2)(batches).loss_change
    assert_close(found, by_hand(model, together, lambda g: -0.1 * g))


def test_sparse_gradients_count_like_dense_ones() -> None:
    model, batches = embedded(), [token_batch(0), token_batch(1)]
    model.optimizer.build(model.trainable_variables)
    measured = Probe(model, OptimizerState(model))(batches)
    assert_close(measured.loss_change, by_hand(model, batches, lambda g: -0.1 * g))
    sums = [np.abs(gradients_of(model, each)[0]).sum() for each in batches]
    assert measured.gradient["embedding/embeddings"] == pytest.approx(np.mean(sums), rel=1e-4)


def test_steps_are_those_of_a_new_optimizer_at_the_present_learning_rate() -> None:
    rate = optimizers.schedules.PiecewiseConstantDecay([6], [1e-2, 1e-3])
    model = dense_chain(optimizers.Adam(rate, epsilon=1e-12))
    model.optimizer.build(model.trainable_variables)
    model.fit(*batch(9), batch_size=8, verbose=0, shuffle=False)  # moments are full now
    assert int(model.optimizer.iterations) == 8
    batches = [batch(0), batch(1)]
    found = Probe(model, OptimizerState(model))(batches).loss_change
    assert_close(found, by_hand(model, batches, lambda g: -1e-3 * np.sign(g)))


def test_gradients_are_sums_of_absolute_values(chain: tuple[keras.Model, Probe]) -> None:
    (model, probe), batches = chain, [batch(0), batch(1)]
    found = [gradients_of(model, each) for each in batches]
    sums = [np.mean([np.abs(g[k]).sum() for g in found]) for k in range(6)]
    np.testing.assert_allclose(list(probe(batches).gradient.values()), sums, rtol=1e-4)


def test_a_last_batch_of_another_size_counts_like_the_others(
    chain: tuple[keras.Model, Probe],
) -> None:
    (model, probe), batches = chain, [batch(0), tuple(part[:10] for part in batch(1))]
    assert_close(probe(batches).loss_change, by_hand(model, batches, lambda g: -0.1 * g))


def test_without_a_learning_rate_all_items_matter_alike() -> None:
    model = dense_chain(optimizers.SGD(0.0))
    measured = Probe(model, OptimizerState(model))([batch(0), batch(1)])
    assert set(measured.loss_change.values()) == {0.0}
    assert by_item(choice_of("a", "b", "c"), measured.loss_change).tolist() == [1, 1, 1]


def choice_of(*names: str) -> Selectable:
    """An item of kernel and bias for each layer."""
    weights = [(f"{name}/kernel", f"{name}/bias") for name in names]
    items = [Item(n, w, 1.0, frozenset({n})) for n, w in zip(names, weights, strict=True)]
    return Selectable(tuple(items), dict.fromkeys(names, 1.0))


def test_an_items_importance_is_its_share_of_the_largest_change() -> None:
    changes = {"a/kernel": -3.0, "a/bias": -1.0, "b/kernel": 2.0, "b/bias": 0.0, "c/bias": -0.5}
    assert by_item(choice_of("a", "b", "c"), changes).tolist() == [1.0, -0.5, 0.125]


@pytest.mark.parametrize("change", [0.0, np.nan, np.inf, -np.inf])
def test_what_cannot_be_compared_matters_alike(change: float) -> None:
    assert by_item(choice_of("a", "b"), {"a/kernel": change}).tolist() == [1, 1]


def test_nothing_to_select_has_no_importance() -> None:
    assert by_item(Selectable((), {}), {}).tolist() == []


@given(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3))
def test_importance_is_between_minus_one_and_one_in_the_order_of_what_helps(
    changes: list[float],
) -> None:
    found = by_item(
        choice_of("a", "b", "c"), dict(zip(("a/bias", "b/bias", "c/bias"), changes, strict=True))
    )
    assert np.abs(found).max() == 1
    if any(changes):
        assert all(
            (found[i] >= found[j]) or (changes[i] > changes[j]) for i in range(3) for j in range(3)
        )


numbers = st.lists(st.integers(-50, 50), min_size=2, max_size=12, unique=True)


@given(numbers)
def test_the_correlation_is_that_of_the_ranks(values: list[int]) -> None:
    assert rank_correlation(values, [v**3 for v in values]) == pytest.approx(1)
    assert rank_correlation(values, [-v for v in values]) == pytest.approx(-1)


@given(numbers, st.integers())
def test_where_all_are_the_same_there_is_no_correlation(values: list[int], same: int) -> None:
    assert rank_correlation(values, [same] * len(values)) is None
    assert rank_correlation([same] * len(values), values) is None
