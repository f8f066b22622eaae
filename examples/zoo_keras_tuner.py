"""KerasTuner searches for a learning rate and a width; each trial starts from the best so far."""

from typing import Any

import keras
import keras_tuner

import ooodist
from ooodist.data.kinds import digits

x, y = digits.load()  # your own data here
x, y, held_out = x[:1400] / 16, y[:1400], (x[1400:] / 16, y[1400:])
zoo = ooodist.Zoo("runs/keras_tuner_trials")


class FromZoo(keras_tuner.HyperModel):
    """Models that start from the zoo, and are added to it."""

    def build(self, hp: keras_tuner.HyperParameters) -> keras.Model:
        """Builds the model of a trial."""
        rate = hp.Float("rate", 1e-3, 1e-2, sampling="log")
        width = hp.Int("width", 16, 64, step=16)
        layers = [keras.layers.Flatten(), keras.layers.Dense(width, "relu"), keras.layers.Dense(10)]
        model = keras.Sequential([keras.Input((8, 8)), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
        return model

    def fit(self, _: Any, model: keras.Model, *data: Any, **settings: Any) -> Any:
        """Trains the model of a trial."""
        zoo.warm_start(model, task="classification")
        history = model.fit(*data, **settings)
        measured = model.evaluate(*held_out, return_dict=True, verbose=0)
        zoo.register(model, measured, task="classification")
        return history


search = keras_tuner.RandomSearch(
    FromZoo(), objective="val_accuracy", max_trials=3, directory="runs/keras_tuner_zoo"
)
search.search(x, y, validation_data=held_out, batch_size=64, epochs=2, verbose=0)
print(f"best of {len(search.oracle.trials)} trials: {search.get_best_hyperparameters()[0].values}")
