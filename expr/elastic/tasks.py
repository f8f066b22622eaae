"""The tasks: a model that has learned one kind of data goes on to another.

``digits``: ResNet-20 on ooodist's handwritten digits, enlarged, and moved about. It has
learned 0 to 4, and goes on to 5 to 9 with a new head. ``mobilenet`` and ``vit``: the same with a
MobileNetV2 and with a small vision transformer.

``gpt``: a byte-level GPT that has learned the source code of Python's standard library goes on to
that of Keras.
"""

from __future__ import annotations

import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist import models
from ooodist.data.kinds.digits import load as load_digits
from ooodist.data.shift import shifted
from ooodist.data.split import split_indices
from ooodist.models.applications import MobileNetV2Config
from ooodist.models.resnet20 import ResNet20Config
from ooodist.models.transformers.gpt import GptConfig
from ooodist.models.transformers.vit import VitConfig

Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Samples:
    """What a model needs to know of them."""

    input_spec: tf.TensorSpec
    task: str
    num_classes: int
    num_tokens: int | None = None


class Task(ABC):
    """What is learned first and then, and how.

    Attributes:
        name: of the task.
        batch: samples of a step.
        steps: of an epoch.
        epochs: of full training; with a selection there are more of them in the same time.
        first_epochs: of learning what is learned first.
        first_rate: learning rate of Adam, while what is first is learned.
        rate: learning rate of SGD with momentum, then.
        renew: when tensors are selected anew.
    """

    name: str
    batch: int
    steps: int
    epochs: int
    first_epochs: int
    first_rate: float
    rate: float
    renew: str

    @abstractmethod
    def model(self) -> keras.Model:
        """With random weights."""

    def optimizer(self, decay_steps: int | None = None) -> keras.optimizers.Optimizer:
        """The same for all methods; its rate falls to zero in so many steps, or stays."""
        rate = keras.optimizers.schedules.CosineDecay(self.rate, decay_steps or 1)
        return keras.optimizers.SGD(rate if decay_steps else self.rate, momentum=0.9)

    @abstractmethod
    def first(self, seed: int) -> tf.data.Dataset:
        """Endless batches of what is learned first."""

    @abstractmethod
    def then(self, seed: int) -> tf.data.Dataset:
        """Endless batches of what is learned then."""

    @abstractmethod
    def validation(self) -> Arrays:
        """Other samples of what is learned then."""

    def go_on(self, known: keras.Model) -> keras.Model:
        """The model with the weights of another, to go on from."""
        model = self.model()
        model.set_weights(known.get_weights())
        return model


class Digits(Task):
    name = "digits"
    batch = 32
    steps = 28
    epochs = 24
    first_epochs = 12
    first_rate = 1e-3
    rate = 0.01
    renew = "280 steps"

    size = 32  # pixels; of the 8 that images have, operations would take longer than computing
    furthest = 8  # pixels that images are moved by
    classes = 5

    def config(self) -> Any:
        """Of the model."""
        return ResNet20Config()

    def model(self) -> keras.Model:
        spec = tf.TensorSpec((self.size, self.size, 1), tf.float32)
        return models.build(self.config(), Samples(spec, "classification", self.classes))

    def first(self, seed: int) -> tf.data.Dataset:
        return self._moved(self._digits(range(5))[0], seed)

    def then(self, seed: int) -> tf.data.Dataset:
        return self._moved(self._digits(range(5, 10))[0], seed)

    def validation(self) -> Arrays:
        x, y = self._digits(range(5, 10))[1]
        x, y = np.repeat(x, 2, axis=0), np.repeat(y, 2)  # each image at two places
        noise = np.random.RandomState(0).randint(0, 2**31 - 1, len(x), dtype=np.int32)
        return shifted(tf.constant(x), tf.constant(noise), self.furthest).numpy(), y

    def go_on(self, known: keras.Model) -> keras.Model:
        model = self.model()
        for layer, other in zip(model.layers, known.layers, strict=True):
            if layer.name != "predictions":  # the head is new
                layer.set_weights(other.get_weights())
        return model

    def _digits(self, classes: range) -> tuple[Arrays, Arrays]:
        """Those of some classes, numbered from 0: half for training, half for validation."""
        pixels, digits = load_digits()
        chosen = np.isin(digits, classes)
        x = tf.constant(pixels[chosen][..., None] / 16, tf.float32)
        x = tf.image.resize(x, (self.size, self.size)).numpy()
        y = (digits[chosen] - classes[0]).astype(np.int32)
        train, validation = split_indices(len(y), 0.5, 0, y)
        return (x[train], y[train]), (x[validation], y[validation])

    def _moved(self, samples: Arrays, seed: int) -> tf.data.Dataset:
        def move(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            noise = tf.random.uniform((self.batch,), maxval=2**31 - 1, dtype=tf.int32, seed=seed)
            return shifted(x, noise, self.furthest), y

        return _endless(samples, self.batch, seed).map(move)


class MobileNet(Digits):
    name = "mobilenet"

    def config(self) -> Any:
        return MobileNetV2Config()


class Vit(Digits):
    name = "vit"
    first_epochs = 40

    def config(self) -> Any:
        return VitConfig(patch=4, layers=4, width=128, heads=4, dropout=0, pooling="mean")


class Gpt(Task):
    name = "gpt"
    batch = 16
    steps = 40
    epochs = 15
    first_epochs = 120
    first_rate = 2e-3
    rate = 0.1
    renew = "400 steps"

    length = 128  # bytes of a sample
    text_bytes = 1_500_000  # of a text, the first files by name
    validation_windows = 256

    def model(self) -> keras.Model:
        spec = tf.TensorSpec((self.length,), tf.int32)
        # The head is a layer of its own, so that it can be selected alone.
        config = GptConfig(
            layers=4, width=128, heads=4, dropout=0, attention_dropout=0, tie_embeddings=False
        )
        return models.build(config, Samples(spec, "language", 256))

    def first(self, seed: int) -> tf.data.Dataset:
        files = Path(sysconfig.get_path("stdlib")).glob("*.py")
        return _endless(self._windows(self._text(sorted(files))), self.batch, seed)

    def then(self, seed: int) -> tf.data.Dataset:
        return _endless(self._windows(self._keras(validation=False)), self.batch, seed)

    def validation(self) -> Arrays:
        x, y = self._windows(self._keras(validation=True))
        chosen = np.linspace(0, len(x) - 1, self.validation_windows).astype(int)
        return x[chosen], y[chosen]

    def _keras(self, *, validation: bool) -> bytes:
        """Every tenth file is for validation."""
        files = sorted((Path(keras.__file__).parent / "src").rglob("*.py"))
        chosen = [file for number, file in enumerate(files) if (number % 10 == 0) is validation]
        return self._text([file for file in chosen if not file.name.endswith("_test.py")])

    def _text(self, files: Sequence[Path]) -> bytes:
        return b"".join(file.read_bytes() for file in files)[: self.text_bytes]

    def _windows(self, text: bytes) -> Arrays:
        """Neighboring windows, and the same one byte further."""
        values = np.frombuffer(text, np.uint8).astype(np.int32)
        number = (len(values) - 1) // self.length
        x, y = (values[i : i + number * self.length].reshape(number, -1) for i in (0, 1))
        return x, y


TASKS: dict[str, Task] = {task.name: task for task in (Digits(), MobileNet(), Vit(), Gpt())}


def _endless(samples: Arrays, batch: int, seed: int) -> tf.data.Dataset:
    dataset = tf.data.Dataset.from_tensor_slices(samples)
    dataset = dataset.shuffle(len(samples[0]), seed=seed).repeat()
    return dataset.batch(batch, drop_remainder=True)
