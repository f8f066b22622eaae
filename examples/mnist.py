"""Horovod's example for Keras and MNIST, changed as in docs/from_horovod.md: a small
convolutional network, a data set of which each worker reads its own part, a learning rate that
grows with the number of workers and is warmed up, and checkpoints on rank 0. Handwritten digits
that come with ooodist take the place of MNIST, which ``--mnist`` downloads.
"""

import argparse

import ooodist

ooodist.init()

import keras
import tensorflow as tf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--mnist", action="store_true", help="download and use MNIST")
parser.add_argument("--steps", type=int, default=500, help="per epoch, of all workers together")
parser.add_argument("--epochs", type=int, default=24)
arguments = parser.parse_args()

if arguments.mnist:
    (x, y), _ = keras.datasets.mnist.load_data()
    x = x / 255
else:
    from ooodist.data.kinds import digits

    x, y = digits.load()
    x = x / 16

dataset = tf.data.Dataset.from_tensor_slices((x[..., None].astype("float32"), y.astype("int64")))
dataset = dataset.shard(ooodist.size(), ooodist.rank())  # this worker's part
dataset = dataset.repeat().shuffle(10000).batch(128)

model = keras.Sequential(
    [
        keras.Input((*x.shape[1:], 1)),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.Conv2D(64, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Dropout(0.25),
        keras.layers.Flatten(),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
steps = max(1, arguments.steps // ooodist.size())
rate = keras.optimizers.schedules.CosineDecay(
    initial_learning_rate=0.001,
    decay_steps=arguments.epochs * steps,
    warmup_target=0.001 * ooodist.size(),
    warmup_steps=3 * steps,
)
model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
model = ooodist.distribute(model)
model.fit(
    dataset,
    steps_per_epoch=steps,
    epochs=arguments.epochs,
    callbacks=[keras.callbacks.ModelCheckpoint("mnist-{epoch}.keras")],  # rank 0 writes
    verbose=2 if ooodist.rank() == 0 else 0,
)
