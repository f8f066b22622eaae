"""The two tasks: handwritten digits that are moved about, and the next byte of Python's manual."""

from __future__ import annotations

from dataclasses import dataclass
from pydoc_data.topics import topics

import keras
import numpy as np
import tensorflow as tf

from ooodist.data.kinds.digits import load as load_digits
from ooodist.data.shift import shifted
from ooodist.data.split import split_indices

Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Task:
    """What is learned.

    Attributes:
        name: of the data set.
        task: in the words of a job.
        input_spec, num_classes: of the samples.
        batch: samples of a step.
        steps: of an epoch.
        epochs: of a training.
        rate: learning rate of Adam.
    """

    name: str
    task: str
    input_spec: tf.TensorSpec
    num_classes: int
    batch: int
    steps: int
    epochs: int
    rate: float

    def compiled(self, model: keras.Model, kept_epochs: int | None = None) -> keras.Model:
        """The model with a new Adam, whose rate falls to 0 (a cosine) if the model is to be kept.

        Args:
            model: to train.
            kept_epochs: of the training of a model that is to be kept.
        """
        rate = self.rate
        if kept_epochs is not None:
            rate = keras.optimizers.schedules.CosineDecay(rate, self.steps * kept_epochs)
        model.compile(
            keras.optimizers.Adam(rate),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
            jit_compile=False,
        )
        return model

    def train(self, seed: int) -> tf.data.Dataset:
        """Endless batches."""
        x, y = _digits()[0] if self.name == "digits" else _text()[0]
        data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=seed).repeat()
        data = data.batch(self.batch, drop_remainder=True)
        if self.name == "text":
            return data

        def move(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            noise = tf.random.uniform((self.batch,), maxval=2**31 - 1, dtype=tf.int32, seed=seed)
            return shifted(x, noise, FURTHEST), y

        return data.map(move)

    def validation(self) -> Arrays:
        """Other samples; digits at four places each."""
        if self.name == "text":
            return _text()[1]
        x, y = (np.repeat(values, 4, axis=0) for values in _digits()[1])
        noise = np.random.RandomState(0).randint(0, 2**31 - 1, len(x), dtype=np.int32)
        return shifted(tf.constant(x), tf.constant(noise), FURTHEST).numpy(), y


SIZE = 16  # pixels of an image, of which the digit has 8
FURTHEST = 2  # pixels that a digit is moved by
LENGTH = 32  # bytes of a sample

TASKS = {
    task.name: task
    for task in (
        Task(
            "digits",
            "classification",
            tf.TensorSpec((SIZE, SIZE, 1), tf.float32),
            10,
            batch=64,
            steps=22,
            epochs=40,
            rate=2e-3,
        ),
        Task(
            "text",
            "language",
            tf.TensorSpec((LENGTH,), tf.int32),
            128,
            batch=32,
            steps=40,
            epochs=20,
            rate=2e-3,
        ),
    )
}


def _digits() -> tuple[Arrays, Arrays]:
    pixels, digits = load_digits()
    gap = (SIZE - 8) // 2
    x = np.pad(pixels[..., None] / 16, ((0, 0), (gap, gap), (gap, gap), (0, 0)))
    x, y = x.astype(np.float32), digits.astype(np.int32)
    train, validation = split_indices(len(y), 0.2, 0, y)
    return (x[train], y[train]), (x[validation], y[validation])


def _text() -> tuple[Arrays, Arrays]:
    """Windows of the manual that comes with Python; the last tenth is for validation."""
    text = "\n".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")
    values = np.frombuffer(text, np.uint8).astype(np.int32)
    number = (len(values) - 1) // LENGTH
    x, y = (values[i : i + number * LENGTH].reshape(number, -1) for i in (0, 1))
    first = number - number // 10
    return (x[:first], y[:first]), (x[first:], y[first:])
