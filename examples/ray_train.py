"""Ray Train starts the workers, on any hosts of its cluster, and keeps a model of each epoch."""

import tempfile
from typing import Any

import ray.train
from ray.train.tensorflow import TensorflowTrainer


def train(config: dict[str, Any]) -> None:
    """Trains on one worker, as any program of ooodist."""
    import ooodist

    ooodist.init()  # TensorflowTrainer has set TF_CONFIG

    import keras

    from ooodist.data.kinds import digits

    def report(epoch: int, logs: dict[str, Any]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if ooodist.rank() == 0:
                model.save(f"{folder}/model.keras")
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report(logs, checkpoint=checkpoint)  # on all workers

    x, y = digits.load()  # your own data here
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(config["rate"]), loss, metrics=["accuracy"])
    model = ooodist.distribute(model)
    callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=report)]
    model.fit(x / 16, y, batch_size=32, epochs=2, verbose=0, callbacks=callbacks)


trainer = TensorflowTrainer(
    train,
    train_loop_config={"rate": 1e-3},
    scaling_config=ray.train.ScalingConfig(num_workers=2),
)
result = trainer.fit()
print(f"accuracy {result.metrics['accuracy']:.2f}, model in {result.checkpoint.path}")
