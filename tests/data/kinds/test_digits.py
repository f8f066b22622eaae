from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from ooodist.config.data import DigitsConfig
from ooodist.data.kinds.digits import load
from tests.data.laws import assert_laws, batches, epoch_targets, joined, load_one


@pytest.mark.parametrize(
    "config",
    [DigitsConfig(), DigitsConfig(augment=True), DigitsConfig(image_size=20, channels=3)],
    ids=["plain", "augment", "resized"],
)
def test_laws(config: DigitsConfig) -> None:
    assert_laws(config, batch=100)


def test_the_data_set_is_what_its_authors_describe() -> None:
    pixels, digits = load()
    assert pixels.shape == (1797, 8, 8)
    assert (pixels.min(), pixels.max()) == (0, 16)
    assert np.bincount(digits).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert pixels[0, 2].tolist() == [0, 3, 15, 2, 0, 11, 8, 0]
    assert digits[:10].tolist() == list(range(10))


def test_training_and_validation_are_the_real_digits() -> None:
    data = load_one(DigitsConfig(), batch=1438)
    (x, y), *_ = batches(data.train, 1)
    validation_x, validation_y = joined(batches(data.validation))
    assert (data.num_samples, data.num_validation_samples) == (1438, 359)
    found = {(image.tobytes(), int(label)) for image, label in zip(x, y, strict=True)}
    held_out = {
        (image.tobytes(), int(label))
        for image, label in zip(validation_x, validation_y, strict=True)
    }
    pixels, digits = load()
    images = (pixels / 16).astype(np.float32)
    real = {(image.tobytes(), int(label)) for image, label in zip(images, digits, strict=True)}
    assert found | held_out == real
    assert not found & held_out
    assert data.description == (
        "digits: 1,438 training and 359 validation samples, images of 8x8x1, 10 classes"
    )
    assert (data.task, data.num_classes) == ("classification", 10)
    assert data.input_spec == tf.TensorSpec((8, 8, 1), tf.float32)


def test_validation_has_all_classes_alike_whatever_the_seed_of_the_run() -> None:
    (_, y) = joined(batches(load_one(DigitsConfig()).validation))
    counts = np.bincount(y)
    assert len(counts) == 10
    assert counts.max() - counts.min() <= 3
    (_, other) = joined(batches(load_one(DigitsConfig(split_seed=1)).validation))
    assert not np.array_equal(y, other)


def test_resized_and_colored() -> None:
    data = load_one(DigitsConfig(image_size=32, channels=3))
    (x, _), *_ = batches(data.train, 1)
    assert x.shape == (4, 32, 32, 3)
    assert np.array_equal(x[..., 0], x[..., 2])
    assert 0 <= x.min() < x.max() <= 1


def test_augmentation_moves_training_images_by_one_pixel() -> None:
    (plain, y), *_ = batches(load_one(DigitsConfig(), batch=300).train, 1)
    (moved, same_y), *_ = batches(load_one(DigitsConfig(augment=True), batch=300).train, 1)
    assert np.array_equal(y, same_y)
    padded = np.pad(plain, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifts = set()
    for index, image in enumerate(moved):
        fits = [
            (down, right)
            for down in range(3)
            for right in range(3)
            if np.array_equal(image, padded[index, down : down + 8, right : right + 8])
        ]
        assert fits
        shifts.add(fits[0])
    assert len(shifts) == 9


def test_without_validation_all_digits_are_trained_on() -> None:
    data = load_one(DigitsConfig(validation_fraction=0), batch=64)
    assert data.validation is None
    assert data.description.startswith("digits: 1,797 training and no validation samples")
    assert np.array_equal(np.bincount(epoch_targets(data, 64)), np.bincount(load()[1]))
