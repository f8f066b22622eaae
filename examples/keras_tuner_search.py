"""KerasTuner searches for a learning rate and a width; each trial trains on two workers."""

import keras_tuner

import ooodist


def train(rate: float, width: int) -> float:
    """Trains on one worker of a trial, as any program of ooodist; returns the accuracy."""
    import ooodist

    ooodist.init()

    import keras

    from ooodist.data.kinds import digits

    x, y = digits.load()  # your own data here
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Flatten(), keras.layers.Dense(width, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
    model = ooodist.distribute(model)
    fitted = model.fit(x / 16, y, batch_size=64, epochs=2, validation_split=0.2, verbose=0)
    return fitted.history["val_accuracy"][-1]


class Search(keras_tuner.RandomSearch):
    """Any tuner of KerasTuner, whose trials run on workers."""

    def run_trial(self, trial: keras_tuner.engine.trial.Trial) -> dict[str, float]:
        """Runs one trial; all workers have the same accuracy."""
        choice = trial.hyperparameters
        rate = choice.Float("rate", 1e-3, 1e-1, sampling="log")
        width = choice.Int("width", 16, 64, step=16)
        return {"accuracy": ooodist.run(train, [rate, width], np=2)[0]}


search = Search(
    objective=keras_tuner.Objective("accuracy", "max"), max_trials=2, directory="runs/keras_tuner"
)
search.search()
print(f"best of {len(search.oracle.trials)} trials: {search.get_best_hyperparameters()[0].values}")
