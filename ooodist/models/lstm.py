"""A recurrent network: embedding, LSTM layers, a dense layer."""

from dataclasses import dataclass
from typing import ClassVar

import keras

from ooodist.models.base import DataDescription, ModelConfig, finish
from ooodist.models.interface import num_outputs, token_input, vocabulary_size
from ooodist.util.yaml_dataclass import Count, Fraction


@dataclass(frozen=True, kw_only=True)
class LstmConfig(ModelConfig):
    """Settings of a recurrent network: ``layers`` LSTM layers of ``width`` units.

    ``vocabulary_size``: None takes the data's (language only).
    """

    name: ClassVar[str] = "lstm"

    layers: Count = 1
    width: Count = 128
    dropout: Fraction = 0.0
    vocabulary_size: Count | None = None


def build_lstm(config: LstmConfig, data: DataDescription) -> keras.Model:
    """Builds the model from tokens (batch, length) to logits.

    Logits are (batch, length, vocabulary) for the task "language", otherwise (batch, outputs),
    read from the last position.
    """
    inputs = token_input(config.name, data)
    tasks = ("language", "classification", "regression")
    outputs = num_outputs(config.name, data, tasks)
    vocabulary = vocabulary_size(config.name, data, config.vocabulary_size)
    at_every_position = data.task == "language"
    x = keras.layers.Embedding(vocabulary, config.width, name="tokens")(inputs)
    for index in range(config.layers):
        is_last = index == config.layers - 1
        x = keras.layers.LSTM(
            config.width,
            return_sequences=at_every_position or not is_last,
            dropout=config.dropout,
            name=f"lstm_{index}",
        )(x)
    if at_every_position:
        outputs = vocabulary
    return finish(inputs, keras.layers.Dense(outputs, name="predictions")(x), config.name)
