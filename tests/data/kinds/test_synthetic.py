from __future__ import annotations

import numpy as np
import pytest

from ooodist.config.data import SyntheticConfig
from ooodist.errors import UserError
from tests.data.laws import assert_laws, batches, joined, load_one

CLASSES = SyntheticConfig((4, 4, 1), num_classes=4)
TARGETS = SyntheticConfig((12,), target_shape=(2, 3))
TOKENS = SyntheticConfig((6,), num_classes=3, dtype="int32", vocabulary=20)
LANGUAGE = SyntheticConfig((50,), dtype="int32", vocabulary=20)


@pytest.mark.parametrize("config", [CLASSES, TARGETS, TOKENS, LANGUAGE])
def test_laws(config: SyntheticConfig) -> None:
    assert_laws(config, batch=64)


def _linear_fit(config: SyntheticConfig) -> tuple[np.ndarray, np.ndarray]:
    """Validation targets, and a linear model's prediction from the training samples."""
    data = load_one(config, batch=819)
    (x, y), *_ = batches(data.train, 1)
    validation_x, validation_y = joined(batches(data.validation))
    targets = np.eye(data.num_classes)[y] if data.num_classes else y.reshape(len(y), -1)
    weights = np.linalg.lstsq(x.reshape(len(x), -1), targets, rcond=None)[0]
    return validation_y, validation_x.reshape(len(validation_x), -1) @ weights


def test_classes_can_be_learned() -> None:
    labels, predicted = _linear_fit(CLASSES)
    assert np.mean(predicted.argmax(axis=1) == labels) > 0.8


def test_regression_can_be_learned() -> None:
    targets, predicted = _linear_fit(TARGETS)
    assert np.allclose(predicted.reshape(targets.shape), targets, atol=1e-4)


def test_language_can_be_learned() -> None:
    data = load_one(LANGUAGE, batch=819)
    (x, y), *_ = batches(data.train, 1)
    validation_x, validation_y = joined(batches(data.validation))
    assert np.array_equal(x[:, 1:], y[:, :-1])
    counts = np.zeros((20, 20))
    np.add.at(counts, (x, y), 1)
    right = counts.argmax(axis=1)[validation_x] == validation_y
    assert 0.88 < right.mean() < 0.93
    assert (data.task, data.num_classes) == ("language", 20)


def test_tokens_with_classes() -> None:
    data = load_one(TOKENS, batch=819)
    (x, y), *_ = batches(data.train, 1)
    assert x.dtype == np.int32
    assert (x.min(), x.max()) == (0, 19)
    assert set(y) == {0, 1, 2}


def test_the_samples_depend_on_the_settings_seed_alone() -> None:
    def first(seed: int) -> np.ndarray:
        config = SyntheticConfig((3,), num_classes=2, seed=seed)
        return batches(load_one(config).train, 1)[0][0]

    assert np.array_equal(first(0), first(0))
    assert not np.array_equal(first(0), first(1))


def test_too_large() -> None:
    config = SyntheticConfig((224, 224, 3), num_classes=10, num_samples=100_000)
    with pytest.raises(UserError, match=r"would take 56.1 GiB .*reduce data.num_samples"):
        load_one(config)
