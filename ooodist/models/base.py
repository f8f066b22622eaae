"""Common to all models: their settings, and what they need to know about the data."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import keras

from ooodist.errors import UserError
from ooodist.util.yaml_dataclass import Checked, Fraction

IMAGENET = "imagenet"
PRETRAINING = "pretraining"  # the task of data masked_text
WEIGHT_FILES = (".keras", ".weights.h5")


class DataDescription(Protocol):
    """The part of the data's description that decides a model's first and last layer."""

    @property
    def input_spec(self) -> Any:
        """tf.TensorSpec of one sample (no batch dimension), or a structure of them."""

    @property
    def task(self) -> str:
        """ "classification", "language" (a class at every position), "regression" or "pretraining".

        The latter is BERT's: x is a dictionary, see ``transformers/bert.py``.
        """

    @property
    def num_classes(self) -> int | None:
        """Classes, or size of the vocabulary; for regression the numbers to predict (None: 1)."""

    @property
    def num_tokens(self) -> int | None:
        """Different tokens of x, if they are known and are not the classes."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Checked):
    """Settings of a model; subclasses add their sizes.

    ``weights``: initial weights, a ``.keras`` or ``.weights.h5`` file, or None for random ones; the
    last layer keeps random ones if the file has it in other shapes, as for other classes. Models of
    keras.applications also take ``imagenet``. ``freeze``: layers that are not trained, by name or
    pattern, as ``stage_0*``; with ``!`` in front, one takes its layers out of those before:
    ``['*', '!predictions']``. Layers inside others are ``outer/inner``. A frozen batch
    normalization runs in inference mode.
    """

    keys_at: ClassVar[str] = "model"
    name: ClassVar[str]
    """The model's name in YAML."""
    has_imagenet_weights: ClassVar[bool] = False
    other_heads: ClassVar[tuple[str, ...]] = ()
    """Layers that a file of weights may have in the place of the last one."""

    weights: str | None = None
    freeze: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises UserError for a value that is invalid whatever the data."""
        super().__post_init__()
        if self.weights is None or self.weights.endswith(WEIGHT_FILES):
            return
        if self.weights != IMAGENET:
            raise UserError(
                f"model.weights is {self.weights!r}; it must name a file that ends in "
                f"{' or '.join(WEIGHT_FILES)} (written by model.save or model.save_weights)."
            )
        if not self.has_imagenet_weights:
            raise UserError(
                f"model.weights is {IMAGENET!r}, but there are no such weights for "
                f"{self.name}; name a file that ends in {' or '.join(WEIGHT_FILES)}, or leave "
                "model.weights out."
            )

    @property
    def weights_file(self) -> str | None:
        """The file with the initial weights, if they come from one."""
        return None if self.weights == IMAGENET else self.weights


@dataclass(frozen=True, kw_only=True)
class ImageModelConfig(ModelConfig):
    """Settings common to convolutional networks: ``dropout`` of the last layer's input."""

    dropout: Fraction = 0.0


def dense_head(x: keras.KerasTensor, outputs: int, config: ImageModelConfig) -> keras.KerasTensor:
    """The last layer, with its dropout: (batch, channels) to logits (batch, outputs)."""
    if config.dropout:
        x = keras.layers.Dropout(config.dropout, name="dropout")(x)
    return keras.layers.Dense(outputs, name="predictions")(x)


def finish(inputs: Any, outputs: keras.KerasTensor, name: str) -> keras.Model:
    """The model from ``inputs`` to ``outputs``, with logits cast to float32."""
    return keras.Model(inputs, float32_logits(outputs), name=name)


def float32_logits(logits: keras.KerasTensor, name: str = "float32_logits") -> keras.KerasTensor:
    """Casts logits to float32, as losses on float16 logits overflow."""
    return keras.layers.Activation("linear", dtype="float32", name=name)(logits)
