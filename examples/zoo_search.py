"""Optuna searches for a learning rate and a width; each trial starts from the best so far."""

import keras
import optuna

import ooodist
from ooodist.data.kinds import digits

x, y = digits.load()  # your own data here
x, held_out_x, y, held_out_y = x[:1400] / 16, x[1400:] / 16, y[:1400], y[1400:]
zoo = ooodist.Zoo("runs/trials")


def objective(trial: optuna.Trial) -> float:
    """Trains one trial; returns the accuracy on held-out data."""
    rate = trial.suggest_float("rate", 1e-3, 1e-2, log=True)
    width = trial.suggest_int("width", 16, 64, step=16)
    layers = [keras.layers.Flatten(), keras.layers.Dense(width, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
    zoo.warm_start(model, task="classification")
    model.fit(x, y, batch_size=64, epochs=2, verbose=0)
    measured = model.evaluate(held_out_x, held_out_y, return_dict=True, verbose=0)
    zoo.register(model, measured, task="classification")
    return measured["accuracy"]


study = optuna.create_study(direction="maximize")
study.optimize(objective, n_trials=3)
print(f"best of {len(study.trials)} trials: {study.best_params}")
